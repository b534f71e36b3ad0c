//! The active generation and its history.

use std::sync::atomic::Ordering;

use slm_format::Digest;

use super::{Store, WriteLock, check_time};
use crate::error::StoreError;
use crate::layout;
use crate::record::Generation;
use crate::slot::{SlotFault, SlotRecord, Slots};
use crate::storage::{Access, Storage};

/// How often a reader looks at slots that seem damaged, or at a generation that is gone: without the lock, it may have met a writer half-way.
const LOOKS: usize = 3;

/// The active generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Active {
    /// Number of the commit.
    pub sequence: u64,
    /// The generation's blob.
    pub generation: Digest,
    /// What it says.
    pub record: Generation,
    /// The other slot, where it cannot be used: the last commit was torn and this is the state before it, or the medium failed.
    pub fault: Option<SlotFault>,
}

impl<S: Storage> Store<S> {
    /// The active generation; `None` where nothing is active.
    ///
    /// # Errors
    /// [`StoreError::SlotDamaged`] where neither slot can be used, [`StoreError::SlotContradicts`] where the slot and the generation
    /// differ; otherwise as [`Store::generation`].
    pub fn active(&self) -> Result<Option<Active>, StoreError> {
        let mut slots = self.slots()?;
        let mut looks = 1;
        let record = loop {
            let SlotRecord { sequence, generation, .. } = slots.current;
            if sequence == 0 {
                return Ok(None);
            }
            match self.generation(generation) {
                Ok(record) => break record,
                // Without the lock, a commit and a collection may have passed between the two reads; then the slots say so.
                Err(StoreError::NotFound { .. }) if looks < LOOKS => {
                    looks += 1;
                    let before = std::mem::replace(&mut slots, self.slots()?);
                    if before.current == slots.current {
                        return Err(StoreError::BlobMissing { digest: generation });
                    }
                }
                Err(error) => return Err(error.missing_is_damage()),
            }
        };
        let SlotRecord { sequence, generation, manifest, composition } = slots.current;
        for (field, same) in [
            ("manifest", record.manifest == manifest),
            ("composition", record.composition == composition),
        ] {
            if !same {
                return Err(StoreError::SlotContradicts { generation, field });
            }
        }
        Ok(Some(Active { sequence, generation, record, fault: slots.fault }))
    }

    /// The slot that cannot be used, where the other can. Also says so where the first commit was torn and nothing is active.
    ///
    /// # Errors
    /// [`StoreError::SlotDamaged`]; [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn slot_fault(&self) -> Result<Option<SlotFault>, StoreError> {
        Ok(self.slots()?.fault)
    }

    /// Makes `generation` the active one, past the audit log, and gives the digest of its blob. [`Store::begin`] and
    /// [`Change::Activate`](super::Change::Activate) do it with a record. To go back, commit a generation that was active before: it
    /// is the same blob. Committing what is active changes nothing.
    ///
    /// Order: the generation's blob, its folder, then the older slot, each synced before the next. A failure or a power cut anywhere
    /// leaves the old generation or the new one active.
    ///
    /// # Errors
    /// Before anything is written: [`StoreError::BadTime`]; [`StoreError::NotFound`] for a manifest or a parent that is not stored;
    /// [`StoreError::BadNumber`]; [`StoreError::SlotDamaged`]; a parent's errors as [`Store::generation`]. Later: [`StoreError::Io`],
    /// and the old generation is active, but for one case: the sync of the slot fails after its bytes arrived. [`Store::active`] says
    /// which it is.
    ///
    /// # Panics
    /// If `lock` is another store's.
    pub fn commit(&self, lock: &WriteLock, generation: Generation) -> Result<Digest, StoreError> {
        self.check(lock);
        self.check_generation(&generation)?;
        self.slots()?;
        let digest = self.put_bytes(lock, &generation.encode())?;
        self.commit_stored(lock, digest, &generation)?;
        Ok(digest)
    }

    /// Makes `generation`, which was checked and is stored as `digest`, the active one; `true` if that changed something.
    pub(super) fn commit_stored(
        &self,
        lock: &WriteLock,
        digest: Digest,
        generation: &Generation,
    ) -> Result<bool, StoreError> {
        let slots = self.slots()?;
        self.sync_slots(lock, &slots)?;
        let current = slots.current;
        if current.sequence > 0 && current.generation == digest && slots.fault.is_none() {
            return Ok(false);
        }
        // Published whole, so that a slot is never absent or torn but through damage.
        for (slot, exists) in layout::SLOTS.iter().zip(slots.exists) {
            if !exists {
                self.write_small(slot, &SlotRecord::NOTHING.encode(), Access::Overwrite)?;
            }
        }
        let record = SlotRecord {
            sequence: current.sequence + 1,
            generation: digest,
            manifest: generation.manifest,
            composition: generation.composition,
        };
        self.storage.overwrite(layout::SLOTS[slots.next], &record.encode())?;
        Ok(true)
    }

    /// The generation in the blob `digest`, whose bytes are compared with the digest.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::GenerationDamaged`]; [`StoreError::NotAGeneration`]; [`StoreError::Symlink`];
    /// [`StoreError::Io`].
    pub fn generation(&self, digest: Digest) -> Result<Generation, StoreError> {
        let blob = self.verified_blob(digest).map_err(|error| match error {
            StoreError::BlobDamaged { expected: generation, found } => {
                StoreError::GenerationDamaged { generation, found }
            }
            other => other,
        })?;
        Generation::decode((*blob).as_ref())
            .map_err(|problem| StoreError::NotAGeneration { digest, problem })
    }

    /// The active generation and those before it, newest first, at most `limit`. The list ends early at a parent that is no longer stored.
    ///
    /// # Errors
    /// As [`Store::active`], and as [`Store::generation`] for damaged parents.
    pub fn history(&self, limit: usize) -> Result<Vec<(Digest, Generation)>, StoreError> {
        let mut entries = Vec::new();
        let Some(active) = self.active()? else { return Ok(entries) };
        let mut next = Some((active.generation, active.record));
        while let Some((digest, generation)) = next.take().filter(|_| entries.len() < limit) {
            // A parent's digest is inside its child's, so the chain has no circle.
            if let Some(parent) = generation.parent {
                match self.generation(parent) {
                    Ok(record) => next = Some((parent, record)),
                    Err(StoreError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            entries.push((digest, generation));
        }
        Ok(entries)
    }

    /// Syncs what is in force, once per lock: the process that wrote it may have died before it did, and what is shown as active, or
    /// is the one record that stays while the other is overwritten, must outlive a power cut.
    pub(super) fn sync_slots(&self, lock: &WriteLock, slots: &Slots) -> Result<(), StoreError> {
        if !lock.slots_synced.load(Ordering::Relaxed) {
            for (slot, exists) in layout::SLOTS.iter().zip(slots.exists) {
                if exists {
                    self.storage.sync_file(slot)?;
                }
            }
            self.storage.sync_dir(layout::ROOT)?;
            lock.slots_are_synced();
        }
        Ok(())
    }

    /// Puts the record in force into the slot that cannot be used, too.
    pub(super) fn heal_slots(&self, slots: &Slots) -> Result<(), StoreError> {
        let (slot, bytes) = (layout::SLOTS[slots.next], slots.current.encode());
        if slots.exists[slots.next] {
            self.storage.overwrite(slot, &bytes)
        } else {
            self.write_small(slot, &bytes, Access::Overwrite)
        }
    }

    pub(super) fn check_generation(&self, generation: &Generation) -> Result<(), StoreError> {
        check_time(&generation.time)?;
        if !self.has_blob(generation.manifest)? {
            return Err(StoreError::NotFound { digest: generation.manifest });
        }
        // One that is stored was checked when it was; its parent may be gone since, as the history is kept to some length only.
        let known = self.has_blob(Digest::of(&generation.encode()))?;
        if let Some(parent) = generation.parent.filter(|_| !known) {
            let parent = self.generation(parent)?.number;
            if generation.number <= parent {
                return Err(StoreError::BadNumber { number: generation.number, parent });
            }
        }
        Ok(())
    }

    pub(super) fn slots(&self) -> Result<Slots, StoreError> {
        let mut slots = self.look_at_slots();
        for _ in 1..LOOKS {
            match &slots {
                Ok(Slots { fault: None, .. }) => break,
                _ => slots = self.look_at_slots(),
            }
        }
        slots
    }

    fn look_at_slots(&self) -> Result<Slots, StoreError> {
        let [a, b] = layout::SLOTS.map(|slot| self.storage.read(slot, SlotRecord::LEN + 1));
        let (a, b) = (a?, b?);
        Slots::pick([a.as_deref(), b.as_deref()])
    }
}
