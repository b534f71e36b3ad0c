//! Whether a manifest may be activated here: the local policy over the signatures that the store holds.

use slm_manifest::{Manifest, TrustError, TrustRule};
use slm_store::{NameKind, Storage, StoreError};

use crate::error::RuntimeError;
use crate::runtime::Runtime;
use crate::runtime::activate::HISTORY_LIMIT;

impl<S: Storage> Runtime<S> {
    /// Holds `manifest` against the policy.
    ///
    /// # Errors
    /// `unsigned`, `untrusted-key`, `bad-signature`, `bare-base-refused`; `blob-damaged` where a signature is missing and a damaged blob may be it; what the storage returns.
    pub(super) fn judge(&self, manifest: &Manifest) -> Result<(), RuntimeError> {
        let policy = self.shared.followed()?.policy;
        let signatures = match policy.trust.rule {
            // Nobody needs to have signed: nothing is looked for.
            TrustRule::None => Vec::new(),
            _ => {
                let found = self.signatures_of(manifest.digest())?;
                found.into_iter().map(|(_, signature)| signature).collect()
            }
        };
        match policy.judge(manifest, &signatures) {
            Err(error @ (TrustError::Unsigned { .. } | TrustError::UntrustedKey { .. })) => {
                self.refuse_strays(manifest)?;
                Err(error.into())
            }
            judged => Ok(judged?),
        }
    }

    /// Refuses where a damaged blob may be a signature or an evaluation record that belongs to `manifest`: damage must not read as absence.
    ///
    /// # Errors
    /// `blob-damaged`; what the storage returns.
    pub(super) fn refuse_strays(&self, manifest: &Manifest) -> Result<(), StoreError> {
        match self.store.damaged_strays()?.first() {
            Some(&digest) => Err(StoreError::StrayDamaged { digest, about: manifest.digest() }),
            None => Ok(()),
        }
    }

    /// A manifest of the same composition that may be activated, where the store has one: what somebody signed is not signed anew because it
    /// would be put together at another time.
    pub(super) fn trusted_twin(
        &self,
        manifest: &Manifest,
    ) -> Result<Option<Manifest>, RuntimeError> {
        let id = manifest.composition_id();
        let named = self.store.names(NameKind::Composition)?;
        let named = named.into_iter().filter_map(|(_, record)| record.ok());
        let mut blobs: Vec<_> =
            named.filter(|record| record.id == id.digest()).map(|record| record.blob).collect();
        let past = self.store.history(HISTORY_LIMIT)?;
        blobs.extend(past.iter().filter(|(_, g)| g.composition == id).map(|(_, g)| g.manifest));
        for blob in blobs {
            if let Ok(twin) = self.stored_manifest(blob)
                && twin.composition_id() == id
                && self.judge(&twin).is_ok()
            {
                return Ok(Some(twin));
            }
        }
        Ok(None)
    }
}
