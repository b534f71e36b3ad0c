//! The way back where neither slot tells what is active: the audit log does.

use slm_format::Digest;

use super::verify::{is_in_force, is_made_active};
use super::{Store, WriteLock};
use crate::audit::{AuditRecord, Outcome};
use crate::error::StoreError;
use crate::layout;
use crate::record::Generation;
use crate::slot::{SlotFault, SlotProblem, SlotRecord};
use crate::storage::{Access, Storage};

/// What the audit log says was active last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The generation's blob.
    pub generation: Digest,
    /// What it says.
    pub record: Generation,
    /// A later generation that the log does not know to be active or not: the process that was at it died, and the slots could not be read.
    pub unsure: Option<Digest>,
}

impl<S: Storage> Store<S> {
    /// The generation that the audit log says was made active last, where neither slot tells what is active: what
    /// [`Change::Recover`](super::Change::Recover) takes. `None` where a slot tells, or nothing ever was active. The whole chain of the log is
    /// verified, and the generation's bytes are compared with their digest; what it needs is the caller's to look at.
    ///
    /// # Errors
    /// [`StoreError::LogDamaged`]; [`StoreError::NothingRecorded`] where the log tells of no generation; [`StoreError::BlobMissing`],
    /// [`StoreError::GenerationDamaged`] or [`StoreError::NotAGeneration`] for the one it tells of; [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn recorded_generation(&self) -> Result<Option<Recorded>, StoreError> {
        match self.lost_slots()? {
            Some(_) => Ok(Some(self.last_recorded()?.0)),
            None => Ok(None),
        }
    }

    /// What is wrong with both slots, where that is so.
    fn lost_slots(&self) -> Result<Option<[SlotFault; 2]>, StoreError> {
        let lost = match self.slots() {
            Ok(slots) if slots.current.sequence > 0 => return Ok(None),
            Ok(slots) => self.check_never_active(&slots),
            Err(error) => Err(error),
        };
        match lost {
            Ok(()) => Ok(None),
            Err(StoreError::SlotDamaged { first, second }) => Ok(Some([first, second])),
            Err(error) => Err(error),
        }
    }

    /// The generation, and how many times the log says that one was made active.
    fn last_recorded(&self) -> Result<(Recorded, u64), StoreError> {
        let (mut last, mut unsure, mut count) = (None, None, 0);
        self.audit_each(&mut |record| {
            if is_made_active(&record) {
                count += 1;
                (last, unsure) = (record.generation, None);
            } else if is_in_force(&record) || record.is_open() {
                unsure = record.generation.or(unsure);
            } else if is_told_of(&record) {
                unsure = None;
            }
        })?;
        let generation = last.ok_or(StoreError::NothingRecorded)?;
        let record = self.generation(generation).map_err(StoreError::missing_is_damage)?;
        let unsure = unsure.filter(|unsure| *unsure != generation);
        Ok((Recorded { generation, record, unsure }, count))
    }

    /// Refuses another generation than the log's.
    pub(super) fn check_recovery(&self, generation: &Generation) -> Result<(), StoreError> {
        let digest = Digest::of(&generation.encode());
        if self.lost_slots()?.is_none() {
            return Ok(());
        }
        let recorded = self.last_recorded()?.0.generation;
        if recorded != digest {
            let recorded = recorded.to_string();
            return Err(StoreError::LogContradicts { found: digest, recorded });
        }
        if !self.has_blob(generation.manifest)? {
            return Err(StoreError::BlobMissing { digest: generation.manifest });
        }
        Ok(())
    }

    /// Puts a record of `generation`, which was checked, into both slots; `false` where a slot tells what is active.
    ///
    /// Each slot is replaced by a rename, so that there is no torn one at any moment. The number is above everything that may have been in
    /// either, so that the first of them decides.
    pub(super) fn recover_slots(
        &self,
        lock: &WriteLock,
        digest: Digest,
        generation: &Generation,
    ) -> Result<bool, StoreError> {
        let Some(faults) = self.lost_slots()? else { return Ok(false) };
        let readable = faults.iter().map(|fault| match fault.problem {
            SlotProblem::SameSequence(number) => number,
            _ => 0,
        });
        let commits = self.last_recorded()?.1;
        let highest = readable.fold(commits.max(generation.number), u64::max);
        let record = SlotRecord {
            // The last number there is stands for no commit.
            sequence: highest.saturating_add(1).min(u64::MAX - 1),
            generation: digest,
            manifest: generation.manifest,
            composition: generation.composition,
        };
        for slot in layout::SLOTS {
            self.write_small(slot, &record.encode(), Access::Overwrite)?;
        }
        lock.slots_are_synced();
        Ok(true)
    }
}

/// Whether the record says what became of an activation.
fn is_told_of(record: &AuditRecord) -> bool {
    record.generation.is_some() && record.outcome != Some(Outcome::Unknown)
}
