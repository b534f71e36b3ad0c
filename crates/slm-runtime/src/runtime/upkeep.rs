//! `gc` and `verify`: the store's, with what only a runtime knows of models and signatures.

use slm_format::Digest;
use slm_manifest::Manifest;
use slm_store::{GcOptions, GcReport, Storage, StoreError, VerifyReport};

use crate::error::RuntimeError;
use crate::runtime::Runtime;

impl<S: Storage> Runtime<S> {
    /// Removes what nothing needs: neither a name, nor the last `keep_generations` generations, nor a reader who has leased it. A manifest
    /// that is kept keeps its base, its adapters and its signatures.
    ///
    /// # Errors
    /// `store-busy`; damage that hides what is needed, and nothing is removed then; what the storage returns.
    pub fn gc(&self, keep_generations: usize, now: &str) -> Result<GcReport, RuntimeError> {
        let mut lock = self.lock(now)?;
        let options =
            GcOptions { keep_generations, actor: self.actor.clone(), ..GcOptions::new(now) };
        Ok(self.store.gc(&mut lock, &options, &mut |manifest| self.needed_by(manifest))?)
    }

    /// Looks at everything in the store and goes on past what is wrong; `deep` hashes every blob.
    pub fn verify(&self, deep: bool) -> VerifyReport {
        self.store.verify(deep, &mut |manifest| self.needed_by(manifest))
    }

    /// What a manifest needs beside what it names by digest: its base where that has no name, signatures, and the evaluation records of its
    /// composition with theirs.
    fn needed_by(&self, manifest: &Manifest) -> Result<Vec<Digest>, StoreError> {
        let mut needed = self.companions(manifest)?;
        for (record, _) in self.evaluations_of(manifest.composition_id())? {
            needed.push(record);
            needed.extend(self.signatures_of(record)?.into_iter().map(|(blob, _)| blob));
        }
        Ok(needed)
    }
}
