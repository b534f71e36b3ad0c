//! The local policy: a document of the store's owner, which the store keeps and does not read.

use slm_format::Digest;

use super::{Store, WriteLock};
use crate::error::StoreError;
use crate::layout;
use crate::storage::{Access, Storage};

/// Longest policy that is kept.
pub const MAX_POLICY: usize = 1 << 20;

impl<S: Storage> Store<S> {
    /// The document `policy.toml`; `None` where there is none. Of one that is longer than [`MAX_POLICY`], the first [`MAX_POLICY`] bytes and one more.
    ///
    /// # Errors
    /// [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn policy(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.storage.read(layout::POLICY, MAX_POLICY + 1)
    }

    /// Puts `document` in the place of `policy.toml`, past the audit log; `true` if that changed something. [`Store::begin`] and
    /// [`Change::SetPolicy`](super::Change::SetPolicy) do it with a record. A failure or a power cut anywhere leaves the old document or the new one.
    ///
    /// # Errors
    /// [`StoreError::TooLong`]; [`StoreError::Symlink`]; [`StoreError::Io`].
    ///
    /// # Panics
    /// If `lock` is another store's.
    pub fn set_policy(&self, lock: &WriteLock, document: &[u8]) -> Result<bool, StoreError> {
        self.check(lock);
        check_policy(document)?;
        if self.policy()?.as_deref() == Some(document) {
            // Whoever wrote it may have died before this step.
            self.storage.sync_file(layout::POLICY)?;
            self.storage.sync_dir(layout::ROOT)?;
            return Ok(false);
        }
        // Its owner may edit it.
        self.write_small(layout::POLICY, document, Access::Overwrite)?;
        Ok(true)
    }

    /// The digest of the document that is there.
    pub(super) fn policy_digest(&self) -> Result<Option<Digest>, StoreError> {
        Ok(self.policy()?.map(|document| Digest::of(&document)))
    }
}

pub(super) fn check_policy(document: &[u8]) -> Result<(), StoreError> {
    if document.len() > MAX_POLICY {
        let (found, limit) = (document.len() as u64, MAX_POLICY as u64);
        return Err(StoreError::TooLong { what: "a policy", found, limit });
    }
    Ok(())
}
