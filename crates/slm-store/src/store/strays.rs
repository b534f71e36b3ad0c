//! Small blobs that are damaged and that nothing names: signatures and evaluation records say themselves what they are about, so that damage
//! hides it.

use std::collections::BTreeSet;

use slm_format::Digest;

use super::Store;
use super::walk::{MAX_DOCUMENT, Walk};
use crate::error::StoreError;
use crate::storage::Storage;

impl<S: Storage> Store<S> {
    /// Blobs up to 1 MiB whose bytes do not have their digest, or that are a link, and that neither a name, a generation nor a manifest of one
    /// speaks for; in ascending order. What such a blob was cannot be told: it may be a signature or an evaluation record of anything.
    ///
    /// A crash leaves none: bytes are synced before a blob gets its name. Hashes every small blob that nothing speaks for.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn damaged_strays(&self) -> Result<Vec<Digest>, StoreError> {
        let all: Vec<Digest> = self.blobs()?.collect();
        self.damaged_strays_among(&all)
    }

    /// Those of `candidates`.
    pub(super) fn damaged_strays_among(
        &self,
        candidates: &[Digest],
    ) -> Result<Vec<Digest>, StoreError> {
        let mut damaged = Vec::new();
        for digest in candidates {
            if self.is_small_and_damaged(*digest)? {
                damaged.push(*digest);
            }
        }
        if !damaged.is_empty() {
            let known = self.spoken_for();
            damaged.retain(|digest| !known.contains(digest));
        }
        Ok(damaged)
    }

    fn is_small_and_damaged(&self, digest: Digest) -> Result<bool, StoreError> {
        match self.blob(digest) {
            Ok(blob) => {
                let bytes = (*blob).as_ref();
                Ok(bytes.len() <= MAX_DOCUMENT && Digest::of(bytes) != digest)
            }
            // Gone since the listing.
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(StoreError::Symlink { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// What names and all generations name by digest, as far as that can be read.
    fn spoken_for(&self) -> BTreeSet<Digest> {
        let mut nothing_more = |_: &_| Ok(Vec::new());
        let mut told = |_, _| Ok(());
        let mut walk = Walk::new(self, &mut nothing_more, &mut told);
        let walked = walk.names().and_then(|()| walk.generations(usize::MAX));
        debug_assert!(walked.is_ok(), "BUG: a walk that nobody ended ended");
        walk.needed
    }
}
