//! Names.

use std::collections::BTreeSet;
use std::io;

use slm_format::Digest;
use slm_manifest::Name;

use super::{Store, WriteLock};
use crate::error::StoreError;
use crate::layout;
use crate::record::{MAX_NAME_FILE, NameKind, NameRecord};
use crate::storage::{Access, Storage};

/// A name in a list, with its record or why that cannot be read.
pub type NameEntry = (Name, Result<NameRecord, StoreError>);

impl<S: Storage> Store<S> {
    /// Makes `name` stand for `record`, past the audit log; `true` if that changed something. A name that stands for the same thing stays as it is,
    /// wherever that came from. With `replace`, a name that stands for something else, or
    /// whose record is damaged, is given anew.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`] without `replace`; [`StoreError::NotFound`] where the record's blob is not stored;
    /// [`StoreError::NameDamaged`] without `replace`; [`StoreError::Symlink`]; [`StoreError::Io`].
    ///
    /// # Panics
    /// If `lock` is another store's.
    pub fn set_name(
        &self,
        lock: &WriteLock,
        kind: NameKind,
        name: &Name,
        record: &NameRecord,
        replace: bool,
    ) -> Result<bool, StoreError> {
        self.check(lock);
        self.apply_journal()?;
        if !self.check_name(kind, name, record, replace)? {
            // Whoever gave the name may have died before this step.
            self.sync_names(kind)?;
            return Ok(false);
        }
        self.write_small(&layout::name(kind, name), &record.encode(name), Access::ReadOnly)?;
        Ok(true)
    }

    /// Whether making `name` stand for `record` would change something, if it may be done.
    pub(super) fn check_name(
        &self,
        kind: NameKind,
        name: &Name,
        record: &NameRecord,
        replace: bool,
    ) -> Result<bool, StoreError> {
        match self.name(kind, name) {
            Ok(Some(current)) if current.is_same(record) => return Ok(false),
            Ok(None) => {}
            Ok(Some(_)) | Err(StoreError::NameDamaged { .. }) if replace => {}
            Ok(Some(current)) => {
                return Err(StoreError::NameTaken {
                    kind,
                    name: name.clone(),
                    current: current.id,
                });
            }
            Err(error) => return Err(error),
        }
        if self.has_blob(record.blob)? {
            Ok(true)
        } else {
            Err(StoreError::NotFound { digest: record.blob })
        }
    }

    /// Takes `name` away, past the audit log, whatever it stands for; `true` if that changed something. The blob stays until `gc`.
    ///
    /// # Errors
    /// [`StoreError::Symlink`]; [`StoreError::Io`].
    ///
    /// # Panics
    /// If `lock` is another store's.
    pub fn remove_name(
        &self,
        lock: &WriteLock,
        kind: NameKind,
        name: &Name,
    ) -> Result<bool, StoreError> {
        self.check(lock);
        self.apply_journal()?;
        let path = layout::name(kind, name);
        let there = self.storage.read(&path, 0)?.is_some();
        if there {
            self.storage.remove(&path)?;
        }
        // Also for a name that was not there: whoever took it away may have died before this step.
        self.sync_names(kind)?;
        Ok(there)
    }

    /// Syncs the names of a kind, if there ever was one.
    pub(super) fn sync_names(&self, kind: NameKind) -> Result<(), StoreError> {
        match self.storage.sync_dir(layout::names(kind)) {
            Err(StoreError::Io { kind: io::ErrorKind::NotFound, .. }) => Ok(()),
            result => result,
        }
    }

    /// What `name` stands for.
    ///
    /// # Errors
    /// [`StoreError::NameDamaged`]; [`StoreError::JournalDamaged`]; [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn name(&self, kind: NameKind, name: &Name) -> Result<Option<NameRecord>, StoreError> {
        match self.journal()?.get(kind, name) {
            Some(record) => Ok(Some(record)),
            None => self.name_file(kind, name),
        }
    }

    /// What the name's own file says.
    fn name_file(&self, kind: NameKind, name: &Name) -> Result<Option<NameRecord>, StoreError> {
        let Some(bytes) = self.storage.read(&layout::name(kind, name), MAX_NAME_FILE + 1)? else {
            return Ok(None);
        };
        NameRecord::decode(&bytes, name).map(Some).map_err(|problem| StoreError::NameDamaged {
            kind,
            name: name.clone(),
            problem,
        })
    }

    /// All names of a kind, in ascending order, each with its record or why that cannot be read. Files that are not named by a name are
    /// passed over.
    ///
    /// # Errors
    /// Where the list itself cannot be read: [`StoreError::JournalDamaged`], [`StoreError::Symlink`], [`StoreError::Io`].
    pub fn names(&self, kind: NameKind) -> Result<Vec<NameEntry>, StoreError> {
        let journal = self.journal()?;
        let files = self.storage.list(layout::names(kind))?;
        let mut names: BTreeSet<Name> = files.iter().filter_map(|name| name.parse().ok()).collect();
        names.extend(journal.names(kind).cloned());
        let mut records = Vec::new();
        for name in names {
            if let Some(record) = journal.get(kind, &name) {
                records.push((name, Ok(record)));
                continue;
            }
            match self.name_file(kind, &name) {
                Ok(Some(record)) => records.push((name, Ok(record))),
                // Gone since the listing.
                Ok(None) => {}
                Err(error) => records.push((name, Err(error))),
            }
        }
        Ok(records)
    }

    /// The blob of the thing of this kind and identity, found through its names; damaged records are passed over. What has no name can
    /// be looked for with [`Store::find_blob`].
    ///
    /// # Errors
    /// [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn resolve(&self, kind: NameKind, id: Digest) -> Result<Option<Digest>, StoreError> {
        let records = self.names(kind)?;
        Ok(records
            .into_iter()
            .filter_map(|(_, record)| record.ok())
            .find(|record| record.id == id)
            .map(|record| record.blob))
    }
}
