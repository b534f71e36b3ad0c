//! What every form of a package holds, gathered from a store and checked on its way into one.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use slm_format::container::{Container, SectionKind};
use slm_format::{Digest, DigestWriter};
use slm_manifest::signature::{DocumentKind, Signature, SignedDocument};
use slm_manifest::{
    AdapterEntry, AdapterId, BaseId, EvaluationRecord, Manifest, Name, QuantizationEntry,
    TokenizerId,
};
use slm_overlay::Adapter;
use slm_store::{Change, Intent, NameChange, NameKind, NameRecord, Operation, Storage, StoreError};

use super::Unpacked;
use super::error::ShareError;
use super::signed::refused;
use crate::composition::Composition;
use crate::error::{ActivationError, ModelError, RuntimeError};
use crate::load::Base;
use crate::runtime::{Reference, Runtime, read_adapter};

/// A composition's blobs in a store, all verified.
pub(super) struct Parts {
    pub(super) manifest: Manifest,
    pub(super) base: Digest,
    /// In the order of the stack; a file once.
    pub(super) adapters: Vec<Digest>,
    /// The one that the manifest names, then every other of the composition.
    pub(super) records: Vec<Digest>,
    pub(super) signatures: Vec<(Digest, Vec<u8>)>,
}

/// A package in some form, in place; nothing of it is believed yet.
pub(super) struct Package<'a> {
    pub(super) manifest: &'a [u8],
    /// A file that opens as the base.
    pub(super) base: &'a [u8],
    /// Writes the base as the store keeps it.
    pub(super) write_base: &'a (dyn Fn(&mut dyn Write) -> io::Result<()> + Sync),
    pub(super) adapters: Vec<&'a [u8]>,
    pub(super) records: Vec<&'a [u8]>,
    pub(super) signatures: Vec<&'a [u8]>,
}

impl Parts {
    /// Every blob but the manifest's, which may not be stored.
    pub(super) fn blobs(&self) -> Vec<Digest> {
        let mut blobs = vec![self.base];
        blobs.extend(&self.adapters);
        blobs.extend(&self.records);
        blobs.extend(self.signatures.iter().map(|(digest, _)| *digest));
        blobs
    }
}

impl<S: Storage> Runtime<S> {
    /// Opens and verifies a composition, and gives the blobs it is made of.
    pub(super) fn parts(&self, reference: &Reference) -> Result<Parts, RuntimeError> {
        let manifest = self.manifest_by_reference(reference)?;
        self.composition_of(&manifest)?;
        let id = manifest.base_model_hash;
        let base = self.base_blob(&manifest)?.ok_or(ActivationError::BaseAbsent { base: id })?;
        self.store.verify_blob(base)?;
        let mut adapters: Vec<Digest> = Vec::new();
        for entry in &manifest.adapters {
            if !adapters.contains(&entry.file_hash) {
                adapters.push(entry.file_hash);
            }
        }
        let mut signatures = self.signatures_of(manifest.digest())?;
        let mut records = Vec::new();
        if let Some(record) = manifest.evaluation {
            let bytes = self.store.verified_blob(record)?;
            EvaluationRecord::parse((*bytes).as_ref(), &self.limits).map_err(ShareError::from)?;
            records.push(record);
        }
        let of_composition = self.evaluations_of(manifest.composition_id())?;
        let others = of_composition.into_iter().map(|(digest, _)| digest);
        records.extend(others.filter(|digest| Some(*digest) != manifest.evaluation));
        for record in &records {
            signatures.extend(self.signatures_of(*record)?);
        }
        // What is left out must be known not to belong.
        self.refuse_strays(&manifest)?;
        Ok(Parts { base, adapters, records, signatures, manifest })
    }

    /// The blob of a manifest's base with its tokenizer: a named one, else whichever blob claims to be it.
    pub(super) fn base_blob(&self, manifest: &Manifest) -> Result<Option<Digest>, StoreError> {
        let (id, tokenizer) = (manifest.base_model_hash, manifest.tokenizer_id);
        let is_it = |bytes: &[u8]| {
            crate::load::peek_base_id(bytes, &self.limits) == Some(id)
                && has_tokenizer(bytes, tokenizer, &self.limits)
        };
        for (_, record) in self.store.names(NameKind::Base)? {
            if let Ok(record) = record
                && record.id == id.digest()
                && let Ok(blob) = self.store.blob(record.blob)
                && is_it((*blob).as_ref())
            {
                return Ok(Some(record.blob));
            }
        }
        self.store.find_blob(&is_it)
    }

    /// Checks all of a package and then stores it under a name; base and adapters get the names that are free.
    pub(super) fn install(
        &self,
        package: &Package<'_>,
        name: &Name,
        replace: bool,
        now: &str,
    ) -> Result<Unpacked, RuntimeError> {
        let (manifest, verified) = self.check(package)?;
        let composition = manifest.composition_id();
        let manifest_digest = Digest::of(package.manifest);
        let mut lock = self.lock_to_change(now)?;
        let mut pending = self.store.begin(
            &mut lock,
            Intent {
                operation: Operation::Unpack,
                time: now.to_owned(),
                actor: self.actor.clone(),
                composition: Some(composition),
                manifest: Some(manifest_digest),
            },
        )?;
        pending.about(composition, manifest_digest);
        let record = NameRecord::new(composition.digest(), manifest_digest);
        let stored = self.name_is_free(name, &record, replace).and_then(|()| {
            let lock = pending.lock();
            let mut blobs = vec![self.store.put_blob(lock, &mut |out| (package.write_base)(out))?];
            for bytes in package.adapters.iter().chain(&package.records).chain(&package.signatures)
            {
                blobs.push(self.store.put_bytes(lock, bytes)?);
            }
            blobs.push(self.store.put_bytes(lock, package.manifest)?);
            let kind = NameKind::Composition;
            let mut changes = vec![NameChange { kind, name: name.clone(), record, replace }];
            let base = NameRecord {
                source: manifest.provenance.base_source_hash,
                ..NameRecord::new(manifest.base_model_hash.digest(), blobs[0])
            };
            self.offer_name(&mut changes, NameKind::Base, name, base)?;
            let mut adapters = Vec::new();
            for AdapterEntry { name, adapter_id, file_hash, .. } in &manifest.adapters {
                let record = NameRecord::new(adapter_id.digest(), *file_hash);
                let named = self.offer_name(&mut changes, NameKind::Adapter, name, record)?;
                adapters.push((name.clone(), *adapter_id, named));
            }
            Ok((blobs, changes, adapters))
        });
        let (blobs, changes, adapters) = match stored {
            Ok(stored) => stored,
            Err(error) => {
                refused(pending, &error);
                return Err(error.into());
            }
        };
        // One change of all the names: whoever looks sees none of them or all.
        let changed = pending.stage(Change::SetNames(changes))?.commit()?.changed;
        Ok(Unpacked {
            composition,
            manifest: manifest_digest,
            base: manifest.base_model_hash,
            adapters,
            blobs,
            signatures: package.signatures.len() as u64,
            verified,
            changed,
        })
    }

    /// Everything that activation checks, and that the package holds what it needs and nothing else; and how many of its signatures are by
    /// trusted keys.
    fn check(&self, package: &Package<'_>) -> Result<(Manifest, u64), RuntimeError> {
        let manifest = Manifest::parse(package.manifest, &self.limits)?;
        if manifest.to_canonical_json() != package.manifest {
            return Err(ShareError::NotCanonical { found: Digest::of(package.manifest) }.into());
        }
        if manifest.plan.is_some() {
            return Err(ActivationError::PlanUnsupported.into());
        }
        let files = by_digest("adapter", &package.adapters)?;
        let base = self.check_base(package, &manifest)?;
        let mut stack = Vec::new();
        for entry in &manifest.adapters {
            let digest = entry.file_hash;
            let file = files.get(&digest).ok_or(ShareError::Absent { what: "adapter", digest })?;
            stack.push(self.check_adapter(&base, entry, file)?);
        }
        let used = |digest: &&Digest| manifest.adapters.iter().any(|e| e.file_hash == **digest);
        if let Some(&digest) = files.keys().find(|digest| !used(digest)) {
            return Err(ShareError::Stray { what: "adapter", digest }.into());
        }
        let found = Composition::new(base, stack)?.id();
        let expected = manifest.composition_id();
        if found != expected {
            return Err(contradicts("composition", &found, &expected).into());
        }
        let verified = self.check_companions(package, &manifest)?;
        Ok((manifest, verified))
    }

    fn check_base(
        &self,
        package: &Package<'_>,
        manifest: &Manifest,
    ) -> Result<Arc<Base>, RuntimeError> {
        let (kernels, exec) = (self.engine.kernels, &*self.engine.exec);
        let base = Base::load(package.base, &self.limits, kernels, exec, &|_| {})?;
        let (expected, found) = (manifest.base_model_hash, base.id());
        if expected != found {
            return Err(ModelError::BaseMismatch { expected, found }.into());
        }
        let (expected, found) = (manifest.tokenizer_id, base.tokenizer_id());
        if expected != found {
            return Err(ActivationError::TokenizerMismatch { expected, found }.into());
        }
        let mut quantization: Vec<QuantizationEntry> = base
            .quantization()
            .into_iter()
            .map(|(encoding, tensors)| QuantizationEntry::of(encoding, tensors))
            .collect();
        quantization.sort_by(|a, b| a.scheme.cmp(&b.scheme));
        if manifest.quantization != quantization {
            return Err(contradicts("quantization", &manifest.quantization, &quantization).into());
        }
        if let Some(expected) = manifest.provenance.base_file_hash {
            let found = digest_of(package.write_base)?;
            if found != expected {
                return Err(ShareError::BaseForm { base: base.id(), expected, found }.into());
            }
        }
        Ok(Arc::new(base))
    }

    fn check_adapter(
        &self,
        base: &Arc<Base>,
        entry: &AdapterEntry,
        file: &[u8],
    ) -> Result<(String, Arc<slm_overlay::BoundAdapter>, f32), RuntimeError> {
        let name = entry.name.to_string();
        let (adapter, requires) =
            read_adapter(&Container::open(file, &self.limits)?, &self.limits)?;
        requires.check(&name, base)?;
        let (expected, found): (AdapterId, AdapterId) = (entry.adapter_id, adapter.id());
        if expected != found {
            return Err(ActivationError::AdapterMismatch { name, expected, found }.into());
        }
        describe(entry, &adapter)?;
        let bound = Arc::new(adapter).bind(base.id(), &base.shape())?;
        Ok((name, Arc::new(bound), entry.merge_weight))
    }

    /// Evaluation records are of this composition, the one that the manifest names is there, and every signature is of what is there. How
    /// many of the signatures are by trusted keys.
    fn check_companions(
        &self,
        package: &Package<'_>,
        manifest: &Manifest,
    ) -> Result<u64, RuntimeError> {
        let records = by_digest("evaluation record", &package.records)?;
        if let Some(digest) = manifest.evaluation.filter(|digest| !records.contains_key(digest)) {
            return Err(ShareError::Absent { what: "evaluation record", digest }.into());
        }
        for (&digest, bytes) in &records {
            let record = EvaluationRecord::parse(bytes, &self.limits).map_err(ShareError::from)?;
            if record.composition != manifest.composition_id() {
                return Err(ShareError::Stray { what: "evaluation record", digest }.into());
            }
        }
        let signed = |document: &SignedDocument| {
            *document == SignedDocument::manifest(package.manifest)
                || records.values().any(|r| *document == SignedDocument::evaluation_record(r))
        };
        let mut verified = 0;
        for (digest, bytes) in by_digest("signature", &package.signatures)? {
            let signature = Signature::parse(bytes).map_err(ShareError::from)?;
            let claimed = SignedDocument::claimed_by(bytes).filter(|claimed| signed(claimed));
            let claimed = claimed.ok_or(ShareError::Stray { what: "signature", digest })?;
            let document = records.get(&claimed.digest).copied().unwrap_or(package.manifest);
            verified += u64::from(self.holds(claimed.kind, document, &signature)?);
        }
        Ok(verified)
    }

    /// Whether a signature is by a trusted key. One by an unknown key can be held against nothing; one that says that it is by a trusted key and is not
    /// is refused.
    fn holds(
        &self,
        kind: DocumentKind,
        document: &[u8],
        signature: &Signature,
    ) -> Result<bool, RuntimeError> {
        let policy = self.policy();
        let mut wrong = None;
        for trusted in policy.keys.iter().filter(|key| key.key.id() == signature.key_id()) {
            match trusted.key.verify_document(kind, document, signature) {
                Ok(()) => return Ok(true),
                Err(error) => wrong = wrong.or(Some(error)),
            }
        }
        match wrong {
            Some(error) => Err(ShareError::from(error).into()),
            None => Ok(false),
        }
    }

    fn name_is_free(
        &self,
        name: &Name,
        record: &NameRecord,
        replace: bool,
    ) -> Result<(), StoreError> {
        let kind = NameKind::Composition;
        match self.store.name(kind, name) {
            Ok(Some(current)) if current != *record && !replace => {
                Err(StoreError::NameTaken { kind, name: name.clone(), current: current.id })
            }
            Err(error) if !replace => Err(error),
            _ => Ok(()),
        }
    }

    /// Puts a name that nothing has among the names to be given; whether the name stands for the thing then. A package takes no name from
    /// anything.
    fn offer_name(
        &self,
        changes: &mut Vec<NameChange>,
        kind: NameKind,
        name: &Name,
        record: NameRecord,
    ) -> Result<bool, StoreError> {
        let given = changes.iter().find(|change| change.kind == kind && change.name == *name);
        let current = match given {
            Some(change) => Some(change.record),
            None => match self.store.name(kind, name) {
                // A damaged record is somebody's, and `verify` tells of it.
                Err(StoreError::NameDamaged { .. }) => return Ok(false),
                current => current?,
            },
        };
        if current.is_none() {
            changes.push(NameChange { kind, name: name.clone(), record, replace: false });
        }
        Ok(current.is_none_or(|current| current == record))
    }
}

/// Holds the descriptive fields of an entry against the adapter they describe.
fn describe(entry: &AdapterEntry, adapter: &Adapter) -> Result<(), ActivationError> {
    let mut targets: Vec<String> =
        adapter.modules().iter().map(|module| module.target.clone()).collect();
    targets.sort();
    if entry.targets != targets {
        return Err(contradicts("targets", &entry.targets, &targets));
    }
    if entry.rank != adapter.max_rank() {
        return Err(contradicts("rank", &entry.rank, &adapter.max_rank()));
    }
    if entry.nnz != adapter.nnz() {
        return Err(contradicts("nnz", &entry.nnz, &adapter.nnz()));
    }
    Ok(())
}

/// Whether the `.slm` file in `bytes` says that it holds this tokenizer; opening it checks the claim.
fn has_tokenizer(bytes: &[u8], wanted: TokenizerId, limits: &slm_format::Limits) -> bool {
    Container::open(bytes, limits).is_ok_and(|container| {
        container
            .section(SectionKind::Tokenizer)
            .is_some_and(|section| TokenizerId::of_canonical(section.bytes()) == wanted)
    })
}

fn by_digest<'a>(
    what: &'static str,
    files: &[&'a [u8]],
) -> Result<BTreeMap<Digest, &'a [u8]>, ShareError> {
    let mut all = BTreeMap::new();
    for &bytes in files {
        let digest = Digest::of(bytes);
        if all.insert(digest, bytes).is_some() {
            return Err(ShareError::Stray { what, digest });
        }
    }
    Ok(all)
}

fn contradicts<T: core::fmt::Debug>(field: &str, found: &T, expected: &T) -> ActivationError {
    let shorten = |value: &T| format!("{value:?}").chars().take(200).collect();
    ActivationError::ManifestContradicts {
        field: field.to_owned(),
        found: shorten(found),
        expected: shorten(expected),
    }
}

/// The digest of what `write` writes.
pub(super) fn digest_of(
    write: &(dyn Fn(&mut dyn Write) -> io::Result<()> + Sync),
) -> Result<Digest, ShareError> {
    let mut hashing = Hashing(DigestWriter::new());
    write(&mut hashing).map_err(|error| ShareError::io("the package", &error))?;
    Ok(hashing.0.finish())
}

/// Takes what is written for its digest alone.
struct Hashing(DigestWriter);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a base is called in an error.
pub(super) fn base_form(base: BaseId, expected: Digest, found: Digest) -> ShareError {
    ShareError::BaseForm { base, expected, found }
}
