//! Evaluation records in the store: blobs that name the composition they are of.

use slm_format::Digest;
use slm_manifest::{CompositionId, EvaluationRecord};
use slm_store::{Change, Intent, Operation, Storage, StoreError};

use crate::error::RuntimeError;
use crate::runtime::Runtime;

/// Longest record that is looked for.
const MAX_RECORD: usize = 1 << 20;

impl<S: Storage> Runtime<S> {
    /// Stores an evaluation record as a blob, as one logged operation. It can be signed, is found by its composition, and is kept for as long as a
    /// manifest of that composition is. Gives its digest, and whether it is new.
    ///
    /// # Errors
    /// `store-busy`; what the storage returns.
    pub fn record_evaluation(
        &self,
        record: &EvaluationRecord,
        now: &str,
    ) -> Result<(Digest, bool), RuntimeError> {
        let (document, digest) = (record.to_canonical_json(), record.digest());
        let mut lock = self.lock_to_change(now)?;
        if self.store.has_blob(digest)? && self.store.verify_blob(digest).is_ok() {
            return Ok((digest, false));
        }
        let intent = Intent {
            operation: Operation::Evaluate,
            time: now.to_owned(),
            actor: self.actor.clone(),
            composition: Some(record.composition),
            manifest: record.manifest,
        };
        let pending = self.store.begin(&mut lock, intent)?;
        match self.store.put_bytes(pending.lock(), &document) {
            Ok(_) => pending.stage(Change::Nothing)?.commit()?,
            Err(error) => {
                // The caller must hear what was wrong; where the log cannot be told, the next holder of the lock tells it.
                let _ = pending.refuse(&error);
                return Err(error.into());
            }
        };
        Ok((digest, true))
    }

    /// The evaluation records of a composition, whatever manifest it was measured under, in ascending order of their digests. Looks at every small
    /// blob.
    ///
    /// # Errors
    /// What the storage returns. A blob that is no record, or is damaged, is passed over: see [`slm_store::Store::damaged_strays`].
    pub fn evaluations_of(
        &self,
        composition: CompositionId,
    ) -> Result<Vec<(Digest, EvaluationRecord)>, StoreError> {
        let mut records = Vec::new();
        for digest in self.store.blobs()? {
            let blob = match self.store.blob(digest) {
                Ok(blob) => blob,
                // Gone since the listing, or no blob at all.
                Err(StoreError::NotFound { .. } | StoreError::Symlink { .. }) => continue,
                Err(error) => return Err(error),
            };
            let bytes: &[u8] = (*blob).as_ref();
            if bytes.len() <= MAX_RECORD
                && bytes.first() == Some(&b'{')
                && let Ok(record) = EvaluationRecord::parse(bytes, &self.limits)
                && record.composition == composition
                && Digest::of(bytes) == digest
            {
                records.push((digest, record));
            }
        }
        Ok(records)
    }
}
