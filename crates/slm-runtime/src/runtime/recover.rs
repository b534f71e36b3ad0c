//! The way back where the store's own records do not tell what is active.

use slm_format::Digest;
use slm_manifest::Manifest;
use slm_store::{Change, Generation, Intent, Operation, Recorded, Storage};

use crate::error::RuntimeError;
use crate::runtime::machine::missing_is_damage;
use crate::runtime::{Recovery, Runtime};

impl Recovery {
    fn of(recorded: &Recorded, changed: bool) -> Recovery {
        let Recorded { record, unsure, .. } = recorded;
        Recovery {
            composition: record.composition,
            manifest: record.manifest,
            generation: record.number,
            time: record.time.clone(),
            unsure: *unsure,
            changed,
        }
    }
}

impl<S: Storage> Runtime<S> {
    /// What [`Runtime::recover`] would make active; `None` where the store tells what is active, and there is nothing to recover. Changes nothing, and
    /// opens nothing but the generation.
    ///
    /// # Errors
    /// `log-damaged`; `nothing-recorded`; `blob-damaged`, `blob-missing` for what the log names; what the storage returns.
    pub fn recoverable(&self) -> Result<Option<Recovery>, RuntimeError> {
        let recorded = self.store.recorded_generation()?;
        Ok(recorded.map(|recorded| Recovery::of(&recorded, false)))
    }

    /// Makes active again what the audit log says was made active last, where both active records are damaged or gone. It goes through the whole
    /// validation: the chain of the log, the generation, its manifest, trust, every blob re-hashed, binding, budgets. Then a fresh record is written
    /// into both slots, and the log says so. Where the store tells what is active, nothing changes.
    ///
    /// # Errors
    /// As [`Runtime::recoverable`]; what opening the composition refuses; `store-busy`. On any error the records are as they were.
    pub fn recover(&self, now: &str) -> Result<Option<Recovery>, RuntimeError> {
        // The lock makes a store where there is none.
        if !self.store.exists()? {
            return Ok(None);
        }
        let mut lock = self.lock_to_change(now)?;
        let found = match self.store.recorded_generation() {
            Ok(None) => return Ok(None),
            found => found,
        };
        let intent = Intent {
            operation: Operation::Recover,
            time: now.to_owned(),
            actor: self.actor.clone(),
            composition: None,
            manifest: None,
        };
        let mut pending = self.store.begin(&mut lock, intent)?;
        let opened = found.map_err(RuntimeError::from).and_then(|recorded| {
            let recorded = recorded.expect("BUG: looked at above");
            let Generation { composition, manifest, .. } = recorded.record;
            pending.about(composition, manifest);
            self.judge(&self.manifest_of(manifest)?)?;
            self.opened(manifest, composition)?;
            Ok(recorded)
        });
        let recorded = match opened {
            Ok(recorded) => recorded,
            Err(error) => {
                // The caller must hear what was wrong; where the log cannot be told, the next holder of the lock tells it.
                let _ = pending.refuse(&error);
                return Err(error);
            }
        };
        let staged = pending.stage(Change::Recover(recorded.record.clone()))?;
        let changed = staged.commit()?.changed;
        Ok(Some(Recovery::of(&recorded, changed)))
    }

    fn manifest_of(&self, manifest: Digest) -> Result<Manifest, RuntimeError> {
        self.stored_manifest(manifest).map_err(missing_is_damage)
    }
}
