//! The switch: `activate_composition`, `rollback`, `deactivate_adapter`.

use std::sync::Arc;

use slm_format::Digest;
use slm_manifest::{AdapterId, CompositionId, ExecutionProfile, Manifest, RawManifest};
use slm_store::{Generation, NameKind, Storage, StoreError, WriteLock};

use crate::composition::Composition;
use crate::error::{ActivationError, RuntimeError};
use crate::runtime::{Activation, HistoryEntry, Reference, Runtime, Status};
use crate::session::Session;

/// Generations that `history` walks at most.
pub(super) const HISTORY_LIMIT: usize = 1_000;

impl<S: Storage> Runtime<S> {
    /// Validates a composition and makes it the active one.
    ///
    /// Activating the active composition changes nothing, and the rollback target stays.
    ///
    /// # Errors
    /// No such composition; anything wrong with the manifest, a blob or a binding; `store-busy`. On any error the old composition is active, but for one case: the system
    /// fails to sync the record after its bytes arrived. [`Runtime::status`] says which it is.
    pub fn activate_composition(
        &self,
        reference: &Reference,
        now: &str,
    ) -> Result<Activation, RuntimeError> {
        // Validate and stage: nothing in the store has changed when any of this fails.
        let manifest = self.manifest_by_reference(reference)?;
        let composition = self.composition_of(&manifest)?;
        let lock = self.store.lock()?;
        self.switch(&lock, &manifest, composition, now)
    }

    /// Goes back to the parent of the active generation, through the same validation.
    ///
    /// # Errors
    /// Nothing is active; `no-parent`; as [`Runtime::activate_composition`].
    pub fn rollback(&self) -> Result<Activation, RuntimeError> {
        let lock = self.store.lock()?;
        let active = self.store.active()?.ok_or(ActivationError::NoneActive)?;
        let record = &active.record;
        let parent = record.parent.ok_or(ActivationError::NoParent { number: record.number })?;
        let target = self.store.generation(parent)?;
        let composition = self.staged(target.manifest, target.composition)?;
        let generation = self.store.commit(&lock, target.clone())?;
        self.set_active(generation, composition);
        Ok(Activation {
            composition: target.composition,
            manifest: target.manifest,
            generation: target.number,
            previous: Some(record.composition),
            changed: true,
        })
    }

    /// Activates the active stack without one adapter, given by name or id. An adapter that is not in the stack changes nothing.
    ///
    /// # Errors
    /// Nothing is active; as [`Runtime::activate_composition`].
    pub fn deactivate_adapter(&self, adapter: &str, now: &str) -> Result<Activation, RuntimeError> {
        let lock = self.store.lock()?;
        let status = self.status()?;
        let mut raw: RawManifest = (*status.manifest).clone();
        let meant = self.adapter_meant(adapter)?;
        raw.adapters
            .retain(|entry| entry.name.as_str() != adapter && Some(entry.adapter_id) != meant);
        if raw.adapters.len() == status.manifest.adapters.len() {
            return Ok(Activation {
                composition: status.composition,
                manifest: status.manifest_digest,
                generation: status.generation,
                previous: Some(status.composition),
                changed: false,
            });
        }
        for (at, entry) in raw.adapters.iter_mut().enumerate() {
            entry.load_order = at as u32 + 1;
        }
        raw.timestamp_utc = now.to_owned();
        raw.evaluation = None;
        let manifest = Manifest::check(raw)?;
        let composition = self.composition_of(&manifest)?;
        self.switch(&lock, &manifest, composition, now)
    }

    /// The identity behind an adapter's id or its name in the store; none for a name that only a manifest knows.
    fn adapter_meant(&self, adapter: &str) -> Result<Option<AdapterId>, RuntimeError> {
        if adapter.starts_with("sha256:") {
            return Ok(Some(adapter.parse()?));
        }
        let record = self.record(NameKind::Adapter, adapter)?;
        Ok(record.map(|record| AdapterId::from_digest(record.id)))
    }

    /// What is active.
    ///
    /// # Errors
    /// `none-active`; a damaged record.
    pub fn status(&self) -> Result<Status, RuntimeError> {
        let active = self.store.active()?.ok_or(ActivationError::NoneActive)?;
        let manifest = self.stored_manifest(active.record.manifest).map_err(missing_is_damage)?;
        Ok(Status {
            composition: active.record.composition,
            generation: active.record.number,
            manifest_digest: active.record.manifest,
            manifest,
            fault: active.fault,
        })
    }

    /// The active generation and its ancestors, newest first.
    ///
    /// # Errors
    /// A damaged record.
    pub fn history(&self) -> Result<Vec<HistoryEntry>, RuntimeError> {
        let mut entries = Vec::new();
        for (_, generation) in self.store.history(HISTORY_LIMIT)? {
            entries.push(HistoryEntry {
                generation: generation.number,
                composition: generation.composition,
                manifest: generation.manifest,
                time: generation.time,
            });
        }
        Ok(entries)
    }

    /// The active composition, opened and verified at the first call after a switch.
    ///
    /// # Errors
    /// `none-active`; what opening refuses.
    pub fn active_composition(&self) -> Result<Arc<Composition>, RuntimeError> {
        let active = self.store.active()?.ok_or(ActivationError::NoneActive)?;
        if let Some(composition) = self.cached_active(active.generation) {
            return Ok(composition);
        }
        let composition = self.staged(active.record.manifest, active.record.composition)?;
        self.set_active(active.generation, Arc::clone(&composition));
        Ok(composition)
    }

    /// A session on the active composition.
    ///
    /// # Errors
    /// As [`Runtime::active_composition`].
    pub fn session(&self, profile: ExecutionProfile) -> Result<Session, RuntimeError> {
        Session::new(self.active_composition()?, profile, self.engine.clone())
    }

    /// Swaps to a staged composition, under the lock.
    fn switch(
        &self,
        lock: &WriteLock,
        manifest: &Manifest,
        composition: Arc<Composition>,
        now: &str,
    ) -> Result<Activation, RuntimeError> {
        let active = self.store.active()?;
        let previous = active.as_ref().map(|active| active.record.composition);
        if let Some(active) = &active
            && active.record.composition == composition.id()
        {
            self.set_active(active.generation, composition);
            return Ok(Activation {
                composition: active.record.composition,
                manifest: active.record.manifest,
                generation: active.record.number,
                previous,
                changed: false,
            });
        }
        let manifest_digest = self.put_manifest(lock, manifest)?;
        let generation = Generation {
            number: active.as_ref().map_or(1, |active| active.sequence + 1),
            composition: composition.id(),
            manifest: manifest_digest,
            parent: active.as_ref().map(|active| active.generation),
            time: now.to_owned(),
        };
        // Swap: the slot on the medium, then the pointer in memory, which cannot fail.
        let digest = self.store.commit(lock, generation.clone())?;
        self.set_active(digest, Arc::clone(&composition));
        Ok(Activation {
            composition: composition.id(),
            manifest: manifest_digest,
            generation: generation.number,
            previous,
            changed: true,
        })
    }

    /// Opens what a generation recorded, and refuses a manifest that gives another composition.
    fn staged(
        &self,
        manifest: Digest,
        expected: CompositionId,
    ) -> Result<Arc<Composition>, RuntimeError> {
        let manifest = self.stored_manifest(manifest).map_err(missing_is_damage)?;
        let composition = self.composition_of(&manifest).map_err(missing_is_damage)?;
        if composition.id() != expected {
            return Err(ActivationError::ManifestContradicts {
                field: "composition".to_owned(),
                found: composition.id().to_string(),
                expected: expected.to_string(),
            }
            .into());
        }
        Ok(composition)
    }
}

/// What a generation of this store needs and the store has not is damage, not a wrong name.
fn missing_is_damage(error: RuntimeError) -> RuntimeError {
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
