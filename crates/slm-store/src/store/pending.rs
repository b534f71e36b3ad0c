//! A change as a type: begun, staged, committed. Each step consumes the one before, so no other order can be written down, and a change that
//! is not in the log cannot be made through it.

use slm_format::{Coded, Digest};
use slm_manifest::{CompositionId, Name};

use super::journal::NameChange;
use super::policy::check_policy;
use super::{Store, WriteLock, check_time};
use crate::audit::{AuditRecord, Operation, Stage};
use crate::error::StoreError;
use crate::record::{Generation, NameKind, NameRecord};
use crate::storage::Storage;

/// What somebody sets out to do, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// What.
    pub operation: Operation,
    /// When: RFC 3339 in UTC. All records of the operation say this time, until [`Pending::at`] gives another. Times may go back; the order
    /// of records is their number.
    pub time: String,
    /// Who, as the caller calls them.
    pub actor: Option<Name>,
    /// The composition, where it is known already.
    pub composition: Option<CompositionId>,
    /// The manifest's blob, where it is known already.
    pub manifest: Option<Digest>,
}

/// What a change does to the store, beyond new blobs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Makes a generation the active one, as [`Store::commit`] does.
    Activate(Generation),
    /// Makes the generation the active one that [`Store::recorded_generation`] tells of, where neither slot tells what is active: a fresh record
    /// goes into both.
    Recover(Generation),
    /// Makes a name stand for a record, as [`Store::set_name`] does.
    SetName {
        /// The kind of the name.
        kind: NameKind,
        /// The name.
        name: Name,
        /// What it is to stand for.
        record: NameRecord,
        /// Whether it may have stood for something else.
        replace: bool,
    },
    /// Makes several names stand for their records, all or none, as [`Store::set_names`] does. The log tells of the first one.
    SetNames(Vec<NameChange>),
    /// Puts this document in the place of the policy, as [`Store::set_policy`] does.
    SetPolicy(Vec<u8>),
    /// Takes a name away, as [`Store::remove_name`] does.
    RemoveName {
        /// The kind of the name.
        kind: NameKind,
        /// The name.
        name: Name,
    },
    /// Nothing but what was done outside the store, or blobs that nothing names.
    Nothing,
}

/// An operation that looks at what it was given. It is in the log; nothing but blobs without names has changed.
///
/// Dropped, it leaves the log without an outcome, as a crash does: the next operation records that the old state is in force.
#[derive(Debug)]
#[must_use = "an operation ends with an outcome"]
pub struct Pending<'a, S: Storage> {
    store: &'a Store<S>,
    lock: &'a mut WriteLock,
    record: AuditRecord,
}

/// An operation that is ready: its intent is synced, and [`Staged::commit`] makes the change.
#[derive(Debug)]
#[must_use = "what is staged is committed or refused"]
pub struct Staged<'a, S: Storage> {
    pending: Pending<'a, S>,
    change: Change,
}

/// What a commit did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// False where everything was so already.
    pub changed: bool,
    /// The generation that is active now, for [`Change::Activate`] and [`Change::Recover`].
    pub generation: Option<Digest>,
    /// The change is made and durable, but the log could not be told; the next operation tells it.
    pub unrecorded: Option<StoreError>,
}

impl<S: Storage> Store<S> {
    /// Begins an operation: its first record, [`Stage::Validating`], is in the log and synced. There is one at a time.
    ///
    /// If the operation before this one has no outcome in the log, because its process died or its last record could not be written, it
    /// first gets a record [`Stage::Recovered`].
    ///
    /// # Errors
    /// [`StoreError::BadTime`]; [`StoreError::LogDamaged`]; [`StoreError::Symlink`]; [`StoreError::Io`].
    ///
    /// # Panics
    /// If `lock` is another store's.
    pub fn begin<'a>(
        &'a self,
        lock: &'a mut WriteLock,
        intent: Intent,
    ) -> Result<Pending<'a, S>, StoreError> {
        self.check(lock);
        check_time(&intent.time)?;
        self.complete_log(lock, &intent.time)?;
        let mut record = AuditRecord::new(intent.operation, Stage::Validating, &intent.time);
        record.actor = intent.actor;
        record.composition = intent.composition;
        record.manifest = intent.manifest;
        self.append_record(lock, record.clone())?;
        Ok(Pending { store: self, lock, record })
    }
}

impl<'a, S: Storage> Pending<'a, S> {
    /// The lock, to store blobs with.
    pub fn lock(&self) -> &WriteLock {
        self.lock
    }

    /// The records from here on say this time, RFC 3339 in UTC.
    ///
    /// # Errors
    /// [`StoreError::BadTime`].
    pub fn at(&mut self, now: &str) -> Result<(), StoreError> {
        check_time(now)?;
        now.clone_into(&mut self.record.time);
        Ok(())
    }

    /// The records from here on name this composition and its manifest's blob.
    pub fn about(&mut self, composition: CompositionId, manifest: Digest) {
        self.record.composition = Some(composition);
        self.record.manifest = Some(manifest);
    }

    /// Records that everything is ready for `change`. A generation's blob is stored first, so that the intent can name it.
    ///
    /// # Errors
    /// What the change would be refused for: for [`Change::Activate`] as [`Store::commit`] before anything is written, for
    /// [`Change::SetName`] as [`Store::set_name`], and so on; the log then says `refused` with that code. [`StoreError::Io`], after which the
    /// next operation records that the old state is in force.
    pub fn stage(mut self, change: Change) -> Result<Staged<'a, S>, StoreError> {
        match self.describe(&change) {
            Ok(()) => {}
            Err(error) => {
                // The error is what the caller must hear; where the log cannot be told either, the next operation tells it.
                let _ = self.refuse(&error);
                return Err(error);
            }
        }
        self.write(Stage::Staged)?;
        Ok(Staged { pending: self, change })
    }

    /// Records that the operation was refused, with the error's code. Nothing has changed.
    ///
    /// # Errors
    /// [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn refuse(mut self, error: &dyn Coded) -> Result<(), StoreError> {
        self.record.code = Some(error.code().to_owned());
        self.write(Stage::Refused)
    }

    /// Records that everything is so already.
    ///
    /// # Errors
    /// [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn unchanged(mut self) -> Result<(), StoreError> {
        self.write(Stage::Unchanged)
    }

    /// Checks `change`, and takes what the log should say of it.
    fn describe(&mut self, change: &Change) -> Result<(), StoreError> {
        match change {
            Change::Activate(generation) => {
                self.store.check_generation(generation)?;
                self.store.slots()?;
                self.record.composition = Some(generation.composition);
                self.record.manifest = Some(generation.manifest);
                self.record.generation =
                    Some(self.store.put_bytes(self.lock, &generation.encode())?);
            }
            Change::Recover(generation) => {
                self.store.check_recovery(generation)?;
                self.record.composition = Some(generation.composition);
                self.record.manifest = Some(generation.manifest);
                self.record.generation = Some(Digest::of(&generation.encode()));
            }
            Change::SetName { kind, name, record, replace } => {
                self.record.kind = Some(*kind);
                self.record.name = Some(name.clone());
                self.record.id = Some(record.id);
                self.record.blob = Some(record.blob);
                self.store.check_name(*kind, name, record, *replace)?;
            }
            Change::SetNames(changes) => {
                if let Some(first) = changes.first() {
                    self.record.kind = Some(first.kind);
                    self.record.name = Some(first.name.clone());
                    self.record.id = Some(first.record.id);
                    self.record.blob = Some(first.record.blob);
                }
                self.store.check_names(changes)?;
            }
            Change::SetPolicy(document) => {
                check_policy(document)?;
                self.record.policy = Some(Digest::of(document));
            }
            Change::RemoveName { kind, name } => {
                self.record.kind = Some(*kind);
                self.record.name = Some(name.clone());
            }
            Change::Nothing => {}
        }
        Ok(())
    }

    fn write(&mut self, stage: Stage) -> Result<(), StoreError> {
        self.record.stage = stage;
        self.store.append_record(self.lock, self.record.clone())
    }
}

impl<S: Storage> Staged<'_, S> {
    /// The lock, to store blobs with.
    pub fn lock(&self) -> &WriteLock {
        self.pending.lock()
    }

    /// As [`Pending::at`].
    ///
    /// # Errors
    /// [`StoreError::BadTime`].
    pub fn at(&mut self, now: &str) -> Result<(), StoreError> {
        self.pending.at(now)
    }

    /// The generation's blob, for [`Change::Activate`] and [`Change::Recover`].
    pub fn generation(&self) -> Option<Digest> {
        self.pending.record.generation
    }

    /// Makes the change and records the outcome. `Ok` says that the change is made and durable, whether the log could be told or not.
    ///
    /// # Errors
    /// [`StoreError::Io`] and what else the change may meet. The old state is in force and the log says `rolled-back` with the code, but
    /// for one case: the medium failed after the new state had arrived. [`Store::active`] and [`Store::name`] say which it is, and
    /// the next operation records it.
    pub fn commit(mut self) -> Result<Committed, StoreError> {
        let Pending { store, lock, .. } = &self.pending;
        let made = match &self.change {
            Change::Activate(generation) => {
                let digest = self.generation().expect("BUG: staged without its generation");
                store.commit_stored(lock, digest, generation)
            }
            Change::Recover(generation) => {
                let digest = self.generation().expect("BUG: staged without its generation");
                store.recover_slots(lock, digest, generation)
            }
            Change::SetName { kind, name, record, replace } => {
                store.set_name(lock, *kind, name, record, *replace)
            }
            Change::SetNames(changes) => store.set_names(lock, changes),
            Change::SetPolicy(document) => store.set_policy(lock, document),
            Change::RemoveName { kind, name } => store.remove_name(lock, *kind, name),
            Change::Nothing => Ok(true),
        };
        let changed = match made {
            Ok(changed) => changed,
            Err(error) => {
                if self.is_old() {
                    // As in `stage`: the error is what the caller must hear.
                    let _ = self.refuse(&error);
                }
                return Err(error);
            }
        };
        let generation = self.generation();
        let stage = if changed { Stage::Committed } else { Stage::Unchanged };
        let unrecorded = self.pending.write(stage).err();
        Ok(Committed { changed, generation, unrecorded })
    }

    /// Records that the operation was given up after all, with the error's code. Nothing has changed.
    ///
    /// # Errors
    /// [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn refuse(mut self, error: &dyn Coded) -> Result<(), StoreError> {
        self.pending.record.code = Some(error.code().to_owned());
        self.pending.write(Stage::RolledBack)
    }

    /// Whether the state before the change is in force, as far as that can be read.
    fn is_old(&self) -> bool {
        let store = self.pending.store;
        match &self.change {
            Change::Activate(_) => {
                let generation = self.generation();
                store
                    .active()
                    .is_ok_and(|active| active.map(|active| active.generation) != generation)
            }
            // The old state is that nothing tells what is active.
            Change::Recover(_) => match store.active() {
                Ok(active) => active.map(|active| active.generation) != self.generation(),
                Err(error) => matches!(error, StoreError::SlotDamaged { .. }),
            },
            Change::SetName { kind, name, record, .. } => {
                !matches!(store.name(*kind, name), Ok(Some(found)) if found.is_same(record))
            }
            Change::SetNames(changes) => changes.iter().any(|change| {
                !matches!(store.name(change.kind, &change.name), Ok(Some(found)) if found.is_same(&change.record))
            }),
            Change::SetPolicy(document) => {
                !matches!(store.policy_digest(), Ok(Some(found)) if found == Digest::of(document))
            }
            Change::RemoveName { kind, name } => !matches!(store.name(*kind, name), Ok(None)),
            Change::Nothing => true,
        }
    }
}
