//! Signatures in the store: blobs that name what they sign in their own first line.

use slm_format::{Coded, Digest};
use slm_manifest::Manifest;
use slm_manifest::signature::{DocumentKind, MAX_FILE_BYTES, PublicKey, Signature, SignedDocument};
use slm_store::{Change, Intent, Operation, Storage, StoreError};

use super::error::ShareError;
use crate::error::RuntimeError;
use crate::runtime::Runtime;

impl<S: Storage> Runtime<S> {
    /// The signatures that are stored for the manifest or evaluation record of this digest: their blobs, in ascending order, and their bytes,
    /// compared with their digests. That one claims to sign something proves nothing: see [`slm_manifest::TrustPolicy::judge`].
    ///
    /// Looks at the first bytes of every blob: time grows with the number of blobs, not with their size.
    ///
    /// # Errors
    /// What the storage says. A signature that is damaged is passed over: it is among [`slm_store::Store::damaged_strays`].
    pub fn signatures_of(&self, document: Digest) -> Result<Vec<(Digest, Vec<u8>)>, StoreError> {
        let mut signatures = Vec::new();
        for digest in self.store.blobs()? {
            let blob = match self.store.blob(digest) {
                Ok(blob) => blob,
                // Gone since the listing, or no blob at all: `verify` tells of it.
                Err(StoreError::NotFound { .. } | StoreError::Symlink { .. }) => continue,
                Err(error) => return Err(error),
            };
            let bytes = (*blob).as_ref();
            if bytes.len() > MAX_FILE_BYTES {
                continue;
            }
            if SignedDocument::claimed_by(bytes).is_some_and(|claimed| claimed.digest == document) {
                match self.store.verified_blob(digest) {
                    Ok(blob) => signatures.push((digest, (*blob).as_ref().to_vec())),
                    // Signs nothing any more, and takes nothing from the others: `verify` tells of it.
                    Err(StoreError::BlobDamaged { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(signatures)
    }

    /// What belongs to a manifest and has no name of its own: its base's blob, its signatures, the evaluation record it names and that one's
    /// signatures. What is not in the store is left out. For [`slm_store::Store::gc`], which keeps what is told here.
    ///
    /// # Errors
    /// As [`Runtime::signatures_of`].
    pub fn companions(&self, manifest: &Manifest) -> Result<Vec<Digest>, StoreError> {
        let mut blobs = Vec::new();
        blobs.extend(self.base_blob(manifest)?);
        for (digest, _) in self.signatures_of(manifest.digest())? {
            blobs.push(digest);
        }
        if let Some(record) = manifest.evaluation
            && self.store.has_blob(record)?
        {
            blobs.push(record);
            for (digest, _) in self.signatures_of(record)? {
                blobs.push(digest);
            }
        }
        Ok(blobs)
    }

    /// Stores a signature of `document`, which is the canonical JSON of a manifest or an evaluation record and is stored with it. Gives the
    /// signature's blob, and whether it is new.
    ///
    /// # Errors
    /// `signature-…` where it is not `key`'s signature of the document; `store-busy`; what the storage says.
    pub fn add_signature(
        &self,
        kind: DocumentKind,
        document: &[u8],
        signature: &Signature,
        key: &PublicKey,
        now: &str,
    ) -> Result<(Digest, bool), RuntimeError> {
        key.verify_document(kind, document, signature).map_err(ShareError::from)?;
        let signed = SignedDocument { kind, digest: Digest::of(document) };
        let bytes = signature.to_document_of(signed).into_bytes();
        let blob = Digest::of(&bytes);
        let mut lock = self.lock_to_change(now)?;
        let pending = self.store.begin(
            &mut lock,
            Intent {
                operation: Operation::Sign,
                time: now.to_owned(),
                actor: self.actor.clone(),
                composition: None,
                manifest: (kind == DocumentKind::Manifest).then_some(signed.digest),
            },
        )?;
        // One that is damaged is replaced.
        let there = self.store.verify_blob(blob).is_ok();
        let stored = self.store.put_bytes(pending.lock(), document).and_then(|_| {
            self.store.put_bytes(pending.lock(), &bytes)?;
            Ok(there)
        });
        match stored {
            Ok(true) => pending.unchanged()?,
            Ok(false) => {
                pending.stage(Change::Nothing)?.commit()?;
            }
            Err(error) => {
                refused(pending, &error);
                return Err(error.into());
            }
        }
        Ok((blob, matches!(stored, Ok(false))))
    }
}

/// Tells the log of a refusal. The error is what the caller must hear; where the log cannot be told either, the next operation tells it.
pub(super) fn refused<S: Storage>(pending: slm_store::Pending<'_, S>, error: &dyn Coded) {
    let _ = pending.refuse(error);
}
