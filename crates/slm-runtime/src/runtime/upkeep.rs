//! `gc` and `verify`: the store's, with what only a runtime knows of models and signatures.

use slm_format::Digest;
use slm_manifest::{Manifest, Name};
use slm_store::{
    Change, GcOptions, GcReport, Intent, NameKind, Operation, Storage, StoreError, VerifyReport,
};

use crate::error::RuntimeError;
use crate::runtime::Runtime;

impl<S: Storage> Runtime<S> {
    /// Removes what nothing needs: neither a name, nor the last `keep_generations` generations, nor a reader who has leased it. A manifest
    /// that is kept keeps its base, its adapters and its signatures. Damaged blobs that may be signatures or records stay as well.
    ///
    /// # Errors
    /// `store-busy`; damage that hides what is needed, and nothing is removed then; what the storage returns.
    pub fn gc(&self, keep_generations: usize, now: &str) -> Result<GcReport, RuntimeError> {
        self.collect(keep_generations, false, now)
    }

    /// As [`Runtime::gc`], and away with damaged blobs that nothing names, whatever they were: whoever asks for it lets go of a signature or a record.
    ///
    /// # Errors
    /// As [`Runtime::gc`].
    pub fn gc_dropping_damaged(
        &self,
        keep_generations: usize,
        now: &str,
    ) -> Result<GcReport, RuntimeError> {
        self.collect(keep_generations, true, now)
    }

    fn collect(
        &self,
        keep_generations: usize,
        drop_damaged: bool,
        now: &str,
    ) -> Result<GcReport, RuntimeError> {
        let mut lock = self.lock_to_change(now)?;
        let actor = self.actor.clone();
        let options = GcOptions { keep_generations, drop_damaged, actor, ..GcOptions::new(now) };
        Ok(self.store.gc(&mut lock, &options, &mut |manifest| self.needed_by(manifest))?)
    }

    /// Takes a name away, whatever it stands for and whether that can be read or not; `false` where nothing has it. What it stood for stays until
    /// [`Runtime::gc`].
    ///
    /// # Errors
    /// `store-busy`; what the storage returns.
    pub fn remove_name(
        &self,
        kind: NameKind,
        name: &Name,
        now: &str,
    ) -> Result<bool, RuntimeError> {
        let mut lock = self.lock_to_change(now)?;
        if matches!(self.store.name(kind, name), Ok(None)) {
            return Ok(false);
        }
        let intent = Intent {
            operation: Operation::RemoveName,
            time: now.to_owned(),
            actor: self.actor.clone(),
            composition: None,
            manifest: None,
        };
        let change = Change::RemoveName { kind, name: name.clone() };
        Ok(self.store.begin(&mut lock, intent)?.stage(change)?.commit()?.changed)
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
