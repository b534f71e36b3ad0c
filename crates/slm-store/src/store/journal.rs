//! Several names at once: a journal that says all of them in one file, and is in force from the moment it is there.
//!
//! The journal is published as a whole, and readers look at it before they look at a name's own file; so its one rename gives all names or none.
//! The names' files are then written, each synced, and the journal is removed. A holder of the lock who finds one does the rest.

use serde::{Deserialize, Serialize};
use slm_format::Digest;
use slm_manifest::Name;

use super::{Store, WriteLock};
use crate::error::StoreError;
use crate::layout;
use crate::record::{NameKind, NameRecord};
use crate::storage::{Access, Storage};

/// Longest journal.
const MAX_JOURNAL: usize = 1 << 20;

/// A name, and what it is to stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameChange {
    /// The kind of the name.
    pub kind: NameKind,
    /// The name.
    pub name: Name,
    /// What it is to stand for.
    pub record: NameRecord,
    /// Whether it may have stood for something else.
    pub replace: bool,
}

/// One name of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    kind: NameKind,
    name: Name,
    id: Digest,
    blob: Digest,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    source: Option<Digest>,
}

/// The names that are given and not all in their files yet; mostly none.
#[derive(Debug, Default)]
pub(super) struct Journal(Vec<Entry>);

impl Journal {
    pub(super) fn get(&self, kind: NameKind, name: &Name) -> Option<NameRecord> {
        let entry = self.0.iter().find(|entry| entry.kind == kind && entry.name == *name)?;
        Some(NameRecord { id: entry.id, blob: entry.blob, source: entry.source })
    }

    pub(super) fn names(&self, kind: NameKind) -> impl Iterator<Item = &Name> {
        self.0.iter().filter(move |entry| entry.kind == kind).map(|entry| &entry.name)
    }

    fn of<'a>(changes: impl Iterator<Item = &'a NameChange>) -> Journal {
        let entry = |change: &NameChange| Entry {
            kind: change.kind,
            name: change.name.clone(),
            id: change.record.id,
            blob: change.record.blob,
            source: change.record.source,
        };
        Journal(changes.map(entry).collect())
    }

    fn encode(&self) -> Result<Vec<u8>, StoreError> {
        let bytes = serde_json::to_vec(&self.0).expect("BUG: a journal could not be encoded");
        if bytes.len() > MAX_JOURNAL {
            let (found, limit) = (bytes.len() as u64, MAX_JOURNAL as u64);
            return Err(StoreError::TooLong { what: "a journal of names", found, limit });
        }
        Ok(bytes)
    }
}

impl<S: Storage> Store<S> {
    /// Makes all of these names stand for their records, past the audit log; `true` if that changed something. A failure or a power cut anywhere
    /// leaves all of them as they were or gives all of them.
    ///
    /// # Errors
    /// As [`Store::set_name`] for any of them, before anything is changed; [`StoreError::TooLong`]; [`StoreError::Io`].
    ///
    /// # Panics
    /// If `lock` is another store's.
    pub fn set_names(&self, lock: &WriteLock, changes: &[NameChange]) -> Result<bool, StoreError> {
        self.check(lock);
        self.apply_journal()?;
        let mut due = Vec::new();
        for change in changes {
            if self.check_name(change.kind, &change.name, &change.record, change.replace)? {
                due.push(change);
            } else {
                // Whoever gave the name may have died before this step.
                self.sync_names(change.kind)?;
            }
        }
        if due.is_empty() {
            return Ok(false);
        }
        let journal = Journal::of(due.into_iter()).encode()?;
        self.write_small(layout::JOURNAL, &journal, Access::ReadOnly)?;
        // All names are given and durable; whatever hinders the rest hinders nobody, and the next holder of the lock does it.
        let _ = self.apply_journal();
        Ok(true)
    }

    /// That all of `changes` may be made.
    pub(super) fn check_names(&self, changes: &[NameChange]) -> Result<(), StoreError> {
        for change in changes {
            self.check_name(change.kind, &change.name, &change.record, change.replace)?;
        }
        Journal::of(changes.iter()).encode().map(drop)
    }

    /// What is given and not all in its files yet.
    pub(super) fn journal(&self) -> Result<Journal, StoreError> {
        let Some(bytes) = self.storage.read(layout::JOURNAL, MAX_JOURNAL + 1)? else {
            return Ok(Journal::default());
        };
        let damaged = |problem: String| StoreError::JournalDamaged { problem };
        if bytes.len() > MAX_JOURNAL {
            return Err(damaged(format!("it is longer than {MAX_JOURNAL} bytes")));
        }
        let entries = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        Ok(Journal(entries))
    }

    /// Brings what a journal says into the names' own files, and removes it.
    pub(super) fn apply_journal(&self) -> Result<(), StoreError> {
        let Journal(entries) = self.journal()?;
        if entries.is_empty() {
            return Ok(());
        }
        // Whoever published it may have died before this step; no part of it may come before the whole.
        self.storage.sync_dir(layout::ROOT)?;
        for Entry { kind, name, id, blob, source } in entries {
            let record = NameRecord { id, blob, source };
            self.write_small(&layout::name(kind, &name), &record.encode(&name), Access::ReadOnly)?;
        }
        self.storage.remove(layout::JOURNAL)?;
        self.storage.sync_dir(layout::ROOT)
    }
}
