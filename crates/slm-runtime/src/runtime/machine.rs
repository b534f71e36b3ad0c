//! The state machine of a switch, each state a type that has what is legal in it and nothing else.
//!
//! ```text
//! Runtime::prepare ── Validating ──▶ Prepared::Unchanged    nothing was to do
//!                        │      └────▶ Err                    refused; the old composition serves
//!                        ▼
//!                      Staged ── swap ──▶ Committed           the new one serves
//!                        │         └────▶ RolledBack          the old one serves
//!                        └── cancel or drop                   the old one serves
//! ```
//!
//! `activate`, `rollback` and `deactivate` differ in how they find their target and in nothing after it. The store's lock is held from the first
//! look to the last record, so that what was validated is what is swapped in, and `gc` takes nothing away in between. Each state is a synced record of the
//! store's log: `validating`, `staged`, then `committed` or `rolled-back`; or `refused`. What is active already is neither changed nor logged.
//!
//! What is verified when: a blob's bytes are hashed, and an adapter bound, in *validating*; weights that are resident are hashed again there. *Swap* reads
//! no blob of the composition.

use std::ops::ControlFlow;
use std::sync::Arc;

use slm_format::{Coded, Digest};
use slm_manifest::{AdapterId, CompositionId, Manifest, RawManifest};
use slm_store::{
    Change, Generation, Intent, NameKind, Operation, Pending, Storage, StoreError, WriteLock,
};

use crate::composition::Composition;
use crate::error::{ActivationError, RuntimeError, SwitchError};
use crate::runtime::{Activation, Active, Reference, Runtime};

/// What a switch is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Make this composition the active one.
    Activate(Reference),
    /// Go back to the parent of the active generation.
    Rollback,
    /// Activate the active stack without this adapter, a name or an id.
    Deactivate(String),
}

/// What validating came to.
#[must_use = "a staged switch that is dropped is cancelled"]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, and it is taken apart at once"
)]
pub enum Prepared<'r, S: Storage> {
    /// What was asked for is what is active.
    Unchanged(Activation),
    /// The target is validated and in memory.
    Staged(Staged<'r, S>),
}

impl Request {
    fn operation(&self) -> Operation {
        match self {
            Request::Activate(_) => Operation::Activate,
            Request::Rollback => Operation::Rollback,
            Request::Deactivate(_) => Operation::Deactivate,
        }
    }
}

/// The first state: what is active, and when it is.
struct Validating<'r, S: Storage> {
    runtime: &'r Runtime<S>,
    active: Option<slm_store::Active>,
    now: &'r str,
}

/// Where a switch goes: a manifest, and the generation to commit where it exists already.
struct Target {
    manifest: Manifest,
    existing: Option<Generation>,
}

/// A validated target in working form. Dropping it is cancelling.
#[must_use = "a staged switch that is dropped is cancelled"]
pub struct Staged<'r, S: Storage> {
    runtime: &'r Runtime<S>,
    staged: slm_store::Staged<'r, S>,
    composition: Arc<Composition>,
    activation: Activation,
}

/// The switch is done.
#[derive(Debug)]
pub struct Committed {
    activation: Activation,
    unrecorded: Option<StoreError>,
}

/// The switch failed at its last step; the old composition serves.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct RolledBack(RuntimeError);

impl<S: Storage> Runtime<S> {
    /// Validates the target of a switch and brings it into memory; the caller then swaps or cancels. `lock` is of [`Runtime::lock`].
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use slm_format::Limits;
    /// # use slm_runtime::load::Base;
    /// use slm_runtime::runtime::{Prepared, Reference, Request};
    /// use slm_runtime::{Engine, Runtime};
    /// use slm_store::{MemStorage, Store};
    ///
    /// let (engine, now) = (Engine::inline(), "2026-07-21T00:00:00Z");
    /// let runtime = Runtime::new(Store::open(MemStorage::new())?, engine.clone(), Limits::STANDARD);
    /// # let file = Arc::new(slm_golden::TINY_Q8_0);
    /// # let base = Base::open(file, &Limits::STANDARD, engine.kernels, &*engine.exec)?;
    /// runtime.load_base(&base, &"tiny".parse()?, now, false)?;
    /// runtime.compose(&"bare".parse()?, "tiny", &[], now, false)?;
    ///
    /// let request = Request::Activate(Reference::Text("bare".to_owned()));
    /// let mut lock = runtime.lock(now)?;
    /// if let Prepared::Staged(staged) = runtime.prepare(&mut lock, &request, now)? {
    ///     staged.cancel()?;
    /// }
    /// assert!(runtime.status().is_err());
    ///
    /// if let Prepared::Staged(staged) = runtime.prepare(&mut lock, &request, now)? {
    ///     let committed = staged.swap(&mut slm_runtime::runtime::no_patience)?;
    ///     assert_eq!(committed.activation().generation, 1);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Runtime::switch`], but for those of the swap.
    pub fn prepare<'r>(
        &'r self,
        lock: &'r mut WriteLock,
        request: &Request,
        now: &'r str,
    ) -> Result<Prepared<'r, S>, RuntimeError> {
        let intent = Intent {
            operation: request.operation(),
            time: now.to_owned(),
            actor: self.actor.clone(),
            composition: None,
            manifest: None,
        };
        let active = self.shared.followed().and_then(|_| Ok(self.store.active()?));
        let active = match active {
            Ok(active) => active,
            Err(error) => return Err(refused(self.store.begin(lock, intent)?, error)),
        };
        let validating = Validating { runtime: self, active, now };
        if validating.aims_at_what_is_active(request) {
            // The whole validation, but no record unless it is refused.
            return match validating.target(request).and_then(|target| validating.open(&target)) {
                Ok(composition) => Ok(Prepared::Unchanged(validating.unchanged(composition)?)),
                Err(error) => Err(refused(self.store.begin(lock, intent)?, error)),
            };
        }
        let mut pending = self.store.begin(lock, intent)?;
        let opened = validating.target(request).and_then(|target| {
            pending.about(target.manifest.composition_id(), target.manifest.digest());
            Ok((validating.open(&target)?, target))
        });
        match opened {
            Ok((composition, target)) => {
                Ok(Prepared::Staged(validating.stage(pending, target, composition)?))
            }
            Err(error) => Err(refused(pending, error)),
        }
    }

    /// Opens what a generation recorded, and refuses a manifest that gives another composition.
    pub(super) fn opened(
        &self,
        manifest: Digest,
        expected: CompositionId,
    ) -> Result<Arc<Composition>, RuntimeError> {
        let manifest = self.stored_manifest(manifest).map_err(missing_is_damage)?;
        let composition = self.composition_of(&manifest).map_err(missing_is_damage)?;
        same_composition(composition.id(), expected)?;
        Ok(composition)
    }
}

impl<'r, S: Storage> Validating<'r, S> {
    /// Whether nothing will have to change, as far as names and manifests tell.
    fn aims_at_what_is_active(&self, request: &Request) -> bool {
        let Some(active) = &self.active else { return false };
        match request {
            Request::Activate(reference) => self
                .runtime
                .manifest_by_reference(reference)
                .is_ok_and(|manifest| manifest.composition_id() == active.record.composition),
            Request::Rollback => false,
            Request::Deactivate(adapter) => matches!(self.without(adapter), Ok(None)),
        }
    }

    fn target(&self, request: &Request) -> Result<Target, RuntimeError> {
        let (manifest, existing) = match request {
            Request::Activate(reference) => (self.runtime.manifest_by_reference(reference)?, None),
            Request::Rollback => {
                let record = &self.active()?.record;
                let parent =
                    record.parent.ok_or(ActivationError::NoParent { number: record.number })?;
                let generation = match self.runtime.store.generation(parent) {
                    // Older than what `gc` keeps.
                    Err(StoreError::NotFound { .. }) => {
                        return Err(ActivationError::NoParent { number: record.number }.into());
                    }
                    generation => generation?,
                };
                (self.active_manifest(generation.manifest)?, Some(generation))
            }
            Request::Deactivate(adapter) => match self.without(adapter)? {
                Some(manifest) if self.runtime.judge(&manifest).is_err() => {
                    // Nobody can have signed what has been put together just now.
                    let twin = self.runtime.trusted_twin(&manifest)?;
                    (twin.unwrap_or(manifest), None)
                }
                Some(manifest) => (manifest, None),
                None => (self.active_manifest(self.active()?.record.manifest)?, None),
            },
        };
        Ok(Target { manifest, existing })
    }

    /// Opens and verifies everything that the target names, if the policy trusts it.
    fn open(&self, target: &Target) -> Result<Arc<Composition>, RuntimeError> {
        self.runtime.judge(&target.manifest)?;
        let composition = self.runtime.composition_of(&target.manifest);
        let composition = match &target.existing {
            None => composition?,
            Some(generation) => {
                let composition = composition.map_err(missing_is_damage)?;
                same_composition(composition.id(), generation.composition)?;
                composition
            }
        };
        // To the byte, now that it is there; what would not fit was refused before it was read.
        self.runtime.shared.check_room(0, 0)?;
        Ok(composition)
    }

    /// The manifest goes to the store, where nothing points to it yet, and the intent to the log.
    fn stage(
        self,
        pending: Pending<'r, S>,
        target: Target,
        composition: Arc<Composition>,
    ) -> Result<Staged<'r, S>, RuntimeError> {
        let Validating { runtime, active, now } = self;
        let previous = active.as_ref().map(|active| active.record.composition);
        let generation = match target.existing {
            Some(generation) => generation,
            None => match runtime.put_manifest(pending.lock(), &target.manifest) {
                Ok(manifest) => Generation {
                    number: active.as_ref().map_or(1, |active| active.sequence + 1),
                    composition: composition.id(),
                    manifest,
                    parent: active.as_ref().map(|active| active.generation),
                    time: now.to_owned(),
                },
                Err(error) => return Err(refused(pending, error)),
            },
        };
        let activation = Activation {
            composition: composition.id(),
            manifest: generation.manifest,
            generation: generation.number,
            previous,
            changed: true,
        };
        let staged = pending.stage(Change::Activate(generation))?;
        Ok(Staged { runtime, staged, composition, activation })
    }

    fn active(&self) -> Result<&slm_store::Active, ActivationError> {
        self.active.as_ref().ok_or(ActivationError::NoneActive)
    }

    fn active_manifest(&self, manifest: Digest) -> Result<Manifest, RuntimeError> {
        self.runtime.stored_manifest(manifest).map_err(missing_is_damage)
    }

    /// The manifest of the active stack without an adapter; `None` where it is not in the stack.
    fn without(&self, adapter: &str) -> Result<Option<Manifest>, RuntimeError> {
        let manifest = self.active_manifest(self.active()?.record.manifest)?;
        let mut raw: RawManifest = (*manifest).clone();
        let meant = self.adapter_meant(adapter)?;
        raw.adapters
            .retain(|entry| entry.name.as_str() != adapter && Some(entry.adapter_id) != meant);
        if raw.adapters.len() == manifest.adapters.len() {
            return Ok(None);
        }
        for (at, entry) in raw.adapters.iter_mut().enumerate() {
            entry.load_order = at as u32 + 1;
        }
        self.now.clone_into(&mut raw.timestamp_utc);
        raw.evaluation = None;
        Ok(Some(Manifest::check(raw)?))
    }

    /// The identity behind an adapter's id or its name in the store; none for a name that only a manifest knows.
    fn adapter_meant(&self, adapter: &str) -> Result<Option<AdapterId>, RuntimeError> {
        if adapter.starts_with("sha256:") {
            return Ok(Some(adapter.parse()?));
        }
        let record = self.runtime.record(NameKind::Adapter, adapter)?;
        Ok(record.map(|record| AdapterId::from_digest(record.id)))
    }

    fn unchanged(&self, composition: Arc<Composition>) -> Result<Activation, ActivationError> {
        let active = self.active()?;
        let board = &self.runtime.shared.board;
        board.offer(board.draw_epoch(), Active { generation: active.generation, composition });
        Ok(Activation {
            composition: active.record.composition,
            manifest: active.record.manifest,
            generation: active.record.number,
            previous: Some(active.record.composition),
            changed: false,
        })
    }
}

impl<S: Storage> Staged<'_, S> {
    /// What will serve after the swap.
    pub fn composition(&self) -> &Arc<Composition> {
        &self.composition
    }

    /// Calls the switch off: the stage is discarded. The log says `rolled-back`, code `switch-cancelled`.
    ///
    /// # Errors
    /// The log could not be told, which the next holder of the lock makes up for; the switch is called off all the same.
    pub fn cancel(self) -> Result<(), RuntimeError> {
        Ok(self.staged.refuse(&SwitchError::Cancelled)?)
    }

    /// The switch itself: generations are dealt with as the policy says, the slot is written and synced, the pointer in memory replaced. `wait` is called between looks at
    /// running generations, under the policy `drain` only.
    ///
    /// # Errors
    /// [`RolledBack`] with `generation-running`, `drain-timeout`, `switch-running`, or what the storage returned.
    pub fn swap(self, wait: &mut dyn FnMut() -> ControlFlow<()>) -> Result<Committed, RolledBack> {
        let Staged { runtime, staged, composition, activation } = self;
        let shared = &runtime.shared;
        let during_generation = runtime.policy().switch.during_generation;
        let closed = match shared.board.close(during_generation, wait) {
            Ok(closed) => closed,
            Err(error) => {
                // The caller must hear why; where the log cannot be told, the next holder of the lock tells it.
                let _ = staged.refuse(&error);
                return Err(RolledBack(error.into()));
            }
        };
        let generation = staged.generation().expect("BUG: an activation without a generation");
        let done = staged.commit().map_err(|error| RolledBack(error.into()))?;
        closed.swap(Active { generation, composition });
        Ok(Committed { activation, unrecorded: done.unrecorded })
    }
}

impl Committed {
    /// What the switch did.
    pub fn activation(&self) -> &Activation {
        &self.activation
    }

    /// What the switch did.
    pub fn into_activation(self) -> Activation {
        self.activation
    }

    /// Why the outcome is not in the log, where that is so: the switch is made and durable, and the next operation records it.
    pub fn unrecorded(&self) -> Option<&StoreError> {
        self.unrecorded.as_ref()
    }
}

impl RolledBack {
    /// Why.
    pub fn error(&self) -> &RuntimeError {
        &self.0
    }

    /// Why.
    pub fn into_error(self) -> RuntimeError {
        self.0
    }
}

/// Ends an operation in the log and gives the error back.
fn refused<S: Storage>(pending: Pending<'_, S>, error: RuntimeError) -> RuntimeError {
    // The caller must hear what was wrong; where the log cannot be told, the next holder of the lock tells it.
    let _ = pending.refuse(&error as &dyn Coded);
    error
}

fn same_composition(found: CompositionId, expected: CompositionId) -> Result<(), ActivationError> {
    if found == expected {
        return Ok(());
    }
    Err(ActivationError::ManifestContradicts {
        field: "composition".to_owned(),
        found: found.to_string(),
        expected: expected.to_string(),
    })
}

/// What a generation of this store needs and the store has not is damage, not a wrong name.
pub(super) fn missing_is_damage(error: RuntimeError) -> RuntimeError {
    match error {
        RuntimeError::Store(error) => error.missing_is_damage().into(),
        RuntimeError::Activation(ActivationError::AdapterAbsent { file_hash, .. }) => {
            StoreError::BlobMissing { digest: file_hash }.into()
        }
        RuntimeError::Activation(ActivationError::BaseAbsent { base }) => {
            ActivationError::BaseLost { base }.into()
        }
        other => other,
    }
}
