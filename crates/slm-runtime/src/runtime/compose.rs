//! Manifests: made from names, resolved to compositions.

use std::sync::{Arc, OnceLock};

use slm_format::container::{Container, SectionKind};
use slm_format::{Digest, Limits};
use slm_manifest::{
    AdapterEntry, AdapterId, BaseId, Manifest, Name, Provenance, QuantizationEntry, RawManifest,
    RuntimeTag, TokenizerId,
};
use slm_overlay::{Adapter, BoundAdapter};
use slm_store::{Blob as _, NameKind, NameRecord, Storage};

use crate::budget::Budgets;
use crate::composition::Composition;
use crate::error::{ActivationError, ModelError, RuntimeError};
use crate::load::Base;
use crate::parallel::parallel_for;
use crate::runtime::import::not_found;
use crate::runtime::{Composed, Reference, Requires, Runtime, read_adapter};

/// One adapter of a composition to be made: a name or an id, and a weight.
pub type StackEntry<'a> = (&'a str, f32);

impl<S: Storage> Runtime<S> {
    /// Puts a composition together from a base and adapters (bottom first), and stores its manifest under a name.
    ///
    /// # Errors
    /// No such base or adapter; an adapter for another base; the same adapter twice; a weight that is not finite; `name-taken`.
    pub fn compose(
        &self,
        name: &Name,
        base: &str,
        stack: &[StackEntry<'_>],
        now: &str,
        replace: bool,
    ) -> Result<Composed, RuntimeError> {
        let (reference, base) = (base, self.base_by_reference(base)?);
        let mut entries = Vec::new();
        for &(reference, weight) in stack {
            let (name, record) = self.adapter_record(reference)?;
            entries.push((name, record, weight));
        }
        let blob = self.shared.resident.blob_of(&base);
        // One blob holds the base and its tokenizer.
        let provenance = Provenance {
            base_file_hash: blob,
            base_source_hash: self.base_source(reference, base.id(), blob)?,
            tokenizer_file_hash: blob,
        };
        let manifest = self.manifest(&base, provenance, &entries, now)?;
        // The whole composition is opened once here, so that a manifest that cannot be activated is never stored.
        let composition = self.composition_of(&manifest)?;
        let mut lock = self.lock_to_change(now)?;
        let existing = match self.store.name(NameKind::Composition, name) {
            // A damaged record is what --replace mends.
            Err(slm_store::StoreError::NameDamaged { .. }) if replace => None,
            existing => existing?,
        };
        if let Some(record) = existing
            && record.id == composition.id().digest()
        {
            match self.stored_manifest(record.blob) {
                // The same composition, put together again: the manifest that is there stays, with its time.
                Ok(manifest) => {
                    return Ok(Composed {
                        composition: composition.id(),
                        manifest,
                        manifest_digest: record.blob,
                        changed: false,
                    });
                }
                Err(error) if !replace => return Err(error),
                Err(_) => {}
            }
        }
        if let Some(record) = existing
            && !replace
        {
            // Before the manifest is stored, so that a refusal leaves nothing behind.
            return Err(slm_store::StoreError::NameTaken {
                kind: NameKind::Composition,
                name: name.clone(),
                current: record.id,
            }
            .into());
        }
        let manifest_digest = self.put_manifest(&lock, &manifest)?;
        let record = NameRecord::new(composition.id().digest(), manifest_digest);
        let (operation, kind) = (slm_store::Operation::Compose, NameKind::Composition);
        let changed = self.name_logged(&mut lock, operation, kind, name, record, now, replace)?;
        Ok(Composed { composition: composition.id(), manifest, manifest_digest, changed })
    }

    /// The composition that a reference means, opened and verified, without activating it.
    ///
    /// # Errors
    /// No such composition; a manifest that is malformed or does not match the store.
    pub fn open_composition(
        &self,
        reference: &Reference,
    ) -> Result<(Arc<Composition>, Manifest), RuntimeError> {
        let manifest = self.manifest_by_reference(reference)?;
        let composition = self.composition_of(&manifest)?;
        Ok((composition, manifest))
    }

    /// The manifest that a reference means.
    ///
    /// # Errors
    /// As [`Runtime::open_composition`], but for what only opening finds.
    pub fn manifest_by_reference(&self, reference: &Reference) -> Result<Manifest, RuntimeError> {
        match reference {
            Reference::Manifest(document) => Ok(Manifest::parse(document, &self.limits)?),
            Reference::Text(text) => {
                if let Some(record) = self.record(NameKind::Composition, text)? {
                    return self.named_manifest(text, &record);
                }
                let Ok(digest) = text.parse::<Digest>() else {
                    return Err(not_found("composition", text));
                };
                for (name, record) in self.store.names(NameKind::Composition)? {
                    let Ok(record) = record else { continue };
                    if record.id == digest || record.blob == digest {
                        return self.named_manifest(name.as_str(), &record);
                    }
                }
                for (_, entry) in self.store.history(super::activate::HISTORY_LIMIT)? {
                    if entry.composition.digest() == digest || entry.manifest == digest {
                        return self.stored_manifest(entry.manifest);
                    }
                }
                Err(not_found("composition", text))
            }
        }
    }

    /// Opens what a manifest names, and holds the manifest against it.
    ///
    /// # Errors
    /// A blob that is absent, damaged, or something else than the manifest says.
    pub fn composition_of(&self, manifest: &Manifest) -> Result<Arc<Composition>, RuntimeError> {
        if manifest.plan.is_some() {
            return Err(ActivationError::PlanUnsupported.into());
        }
        let id = manifest.base_model_hash;
        // The base and the adapters side by side, unless a budget wants to be asked before each.
        let together = self.budgets() == Budgets::UNLIMITED && self.engine.exec.n_workers() > 1;
        let n_adapters = if together { manifest.adapters.len() } else { 0 };
        let base = OnceLock::new();
        let mut read = parallel_for(&*self.engine.exec, 1 + n_adapters, &|n| match n {
            0 => {
                let _ = base.set(self.find_base(id, Some(manifest.tokenizer_id)));
                None
            }
            n => self.unbound_adapter(id, &manifest.adapters[n - 1]).transpose(),
        });
        let base = base.into_inner().expect("BUG: no base was looked for")?;
        let base = base.ok_or(ActivationError::BaseAbsent { base: id })?;
        if base.tokenizer_id() != manifest.tokenizer_id {
            return Err(ActivationError::TokenizerMismatch {
                expected: manifest.tokenizer_id,
                found: base.tokenizer_id(),
            }
            .into());
        }
        let quantization = quantization(&base);
        compare("quantization", &manifest.quantization, &quantization)?;
        let mut stack = Vec::new();
        for (n, entry) in manifest.adapters.iter().enumerate() {
            let read = read.get_mut(1 + n).and_then(Option::take).transpose()?;
            let adapter = self.bound_adapter(&base, entry, read)?;
            stack.push((entry.name.to_string(), adapter, entry.merge_weight));
        }
        Ok(Arc::new(Composition::new(base, stack)?))
    }

    /// The base of this id: by a name, or by looking into every blob. Where `tokenizer` is given, one with that tokenizer before any other.
    pub(super) fn find_base(
        &self,
        id: BaseId,
        tokenizer: Option<TokenizerId>,
    ) -> Result<Option<Arc<Base>>, RuntimeError> {
        let fits = |base: &Base| tokenizer.is_none_or(|wanted| wanted == base.tokenizer_id());
        let (mut other, mut failure) = (None, None);
        for (_, record) in self.store.names(NameKind::Base)? {
            if let Ok(record) = record
                && record.id == id.digest()
            {
                match self.open_base(id, record.blob) {
                    Ok(base) if fits(&base) => return Ok(Some(base)),
                    Ok(base) => other = Some(base),
                    // Another blob may hold the same base undamaged.
                    Err(error) => failure = Some(error),
                }
            }
        }
        let is_base = |bytes: &[u8]| crate::load::peek_base_id(bytes, &self.limits) == Some(id);
        let found = self.store.find_blob(&|bytes| {
            is_base(bytes)
                && tokenizer.is_none_or(|wanted| has_tokenizer(bytes, wanted, &self.limits))
        })?;
        if let Some(blob) = found {
            match self.open_base(id, blob) {
                Ok(base) => return Ok(Some(base)),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if other.is_some() {
            return Ok(other);
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        self.store.find_blob(&is_base)?.map(|blob| self.open_base(id, blob)).transpose()
    }

    /// Opens a base blob, or takes the resident one after hashing its weights again.
    pub(super) fn open_base(&self, id: BaseId, blob: Digest) -> Result<Arc<Base>, RuntimeError> {
        if let Some(base) = self.shared.resident.base(blob) {
            let found = base.rehash(&*self.engine.exec);
            if found != id {
                self.store.verify_blob(blob)?;
                return Err(ModelError::BaseMismatch { expected: id, found }.into());
            }
            return Ok(base);
        }
        let bytes = self.store.blob(blob)?;
        // A stored base is little else than its tensors, each from a multiple of 64 on.
        self.shared.check_room((*bytes).as_ref().len() as u64, 0)?;
        let (kernels, exec) = (self.engine.kernels, &*self.engine.exec);
        let opened = if self.in_place {
            Base::open(bytes, &self.limits, kernels, exec)
        } else {
            let release = |range| bytes.release(range);
            Base::load((*bytes).as_ref(), &self.limits, kernels, exec, &release)
        };
        let base = match opened.and_then(|base| Ok(Arc::new(base).expect_id(id)?)) {
            Ok(base) => base,
            Err(error) => {
                // A blob that was fit for import and is not now has changed: the store is damaged, not the file refused.
                self.store.verify_blob(blob)?;
                return Err(error);
            }
        };
        self.shared.resident.keep_base(blob, &base);
        Ok(base)
    }

    /// An adapter that is not resident, read but not yet held against a base.
    fn unbound_adapter(
        &self,
        base: BaseId,
        entry: &AdapterEntry,
    ) -> Result<Option<ReadAdapter>, RuntimeError> {
        let resident = self.shared.resident.adapter(base, entry.adapter_id, entry.file_hash);
        if resident.is_some() || !self.store.has_blob(entry.file_hash)? {
            return Ok(None);
        }
        self.described_adapter(entry).map(Some)
    }

    /// The adapter of an entry, and whether it is what the entry says: counting its values takes as long as reading them.
    fn described_adapter(&self, entry: &AdapterEntry) -> Result<ReadAdapter, RuntimeError> {
        let (adapter, requires) = self.stored_adapter(entry.file_hash)?;
        let described = describe(entry, &adapter);
        Ok(ReadAdapter { adapter, requires, described })
    }

    /// `read` is the adapter where it was read already.
    fn bound_adapter(
        &self,
        base: &Arc<Base>,
        entry: &AdapterEntry,
        read: Option<ReadAdapter>,
    ) -> Result<Arc<BoundAdapter>, RuntimeError> {
        let absent = || ActivationError::AdapterAbsent {
            name: entry.name.to_string(),
            file_hash: entry.file_hash,
        };
        if !self.store.has_blob(entry.file_hash)? {
            return Err(absent().into());
        }
        if let Some(adapter) =
            self.shared.resident.adapter(base.id(), entry.adapter_id, entry.file_hash)
        {
            self.store.verify_blob(entry.file_hash)?;
            describe(entry, adapter.adapter())?;
            return Ok(adapter);
        }
        let ReadAdapter { adapter, requires, described } = match read {
            Some(read) => read,
            None => self.described_adapter(entry)?,
        };
        requires.check(entry.name.as_str(), base)?;
        if adapter.id() != entry.adapter_id {
            return Err(ActivationError::AdapterMismatch {
                name: entry.name.to_string(),
                expected: entry.adapter_id,
                found: adapter.id(),
            }
            .into());
        }
        described?;
        let bound = Arc::new(Arc::new(adapter).bind(base.id(), &base.shape())?);
        self.shared.resident.keep_adapter(base.id(), entry.file_hash, &bound);
        Ok(bound)
    }

    /// Reads a stored adapter and refuses one that was imported for another base.
    pub(super) fn read_adapter(
        &self,
        blob: Digest,
        name: &str,
        base: &Base,
    ) -> Result<Adapter, RuntimeError> {
        let (adapter, requires) = self.stored_adapter(blob)?;
        requires.check(name, base)?;
        Ok(adapter)
    }

    /// Reads a stored adapter. Its sections are compared with their hashes; the identity that callers compare is computed from the factors in
    /// memory.
    fn stored_adapter(&self, blob: Digest) -> Result<(Adapter, Requires), RuntimeError> {
        let bytes = self.store.blob(blob)?;
        // The factors, and their copy in the order that kernels read.
        self.shared.check_room(0, 2 * (*bytes).as_ref().len() as u64)?;
        let container = Container::open((*bytes).as_ref(), &self.limits);
        let read = container
            .map_err(RuntimeError::from)
            .and_then(|container| read_adapter(&container, &self.limits));
        if read.is_err() {
            // As for a base: it was fit for import.
            self.store.verify_blob(blob)?;
        }
        read
    }

    /// The base that the adapter of this name or id is bound to.
    ///
    /// # Errors
    /// No such adapter; a file that is damaged.
    pub fn adapter_base(&self, reference: &str) -> Result<BaseId, RuntimeError> {
        let (_, record) = self.adapter_record(reference)?;
        let bytes = self.store.verified_blob(record.blob)?;
        let container = Container::open((*bytes).as_ref(), &self.limits)?;
        Ok(read_adapter(&container, &self.limits)?.1.base)
    }

    fn adapter_record(&self, reference: &str) -> Result<(Name, NameRecord), RuntimeError> {
        if let Ok(id) = reference.parse::<AdapterId>() {
            for (name, record) in self.store.names(NameKind::Adapter)? {
                if let Ok(record) = record
                    && record.id == id.digest()
                {
                    return Ok((name, record));
                }
            }
            return Err(not_found("adapter", reference));
        }
        let record = self
            .record(NameKind::Adapter, reference)?
            .ok_or_else(|| not_found("adapter", reference))?;
        Ok((reference.parse()?, record))
    }

    /// The digest of what a base was imported from: as the name says that was given, else as any other name of the same blob does.
    fn base_source(
        &self,
        reference: &str,
        id: BaseId,
        blob: Option<Digest>,
    ) -> Result<Option<Digest>, RuntimeError> {
        let named = self.record(NameKind::Base, reference)?.and_then(|record| record.source);
        if named.is_some() {
            return Ok(named);
        }
        let records = self.store.names(NameKind::Base)?.into_iter();
        let mut same = records
            .filter_map(|(_, record)| record.ok())
            .filter(|record| record.id == id.digest() && Some(record.blob) == blob);
        Ok(same.find_map(|record| record.source))
    }

    fn manifest(
        &self,
        base: &Arc<Base>,
        provenance: Provenance,
        stack: &[(Name, NameRecord, f32)],
        now: &str,
    ) -> Result<Manifest, RuntimeError> {
        let mut adapters = Vec::new();
        for (at, (name, record, weight)) in stack.iter().enumerate() {
            let adapter = self.read_adapter(record.blob, name.as_str(), base)?;
            if adapter.id().digest() != record.id {
                return Err(ActivationError::RecordContradicts {
                    kind: "adapter",
                    name: name.to_string(),
                    expected: record.id,
                    found: adapter.id().digest(),
                }
                .into());
            }
            adapters.push(AdapterEntry {
                name: name.clone(),
                adapter_id: adapter.id(),
                file_hash: record.blob,
                load_order: at as u32 + 1,
                merge_weight: *weight,
                targets: targets(&adapter),
                rank: adapter.max_rank(),
                nnz: adapter.nnz(),
            });
        }
        let raw = RawManifest {
            base_model_hash: base.id(),
            tokenizer_id: base.tokenizer_id(),
            quantization: quantization(base),
            runtime: RuntimeTag::current(),
            timestamp_utc: now.to_owned(),
            plan: None,
            adapters,
            provenance,
            evaluation: None,
        };
        Ok(Manifest::check(raw)?)
    }

    /// The manifest behind a composition's name; the record's identity is what the manifest gives, or the store is damaged.
    fn named_manifest(&self, name: &str, record: &NameRecord) -> Result<Manifest, RuntimeError> {
        let manifest = self.stored_manifest(record.blob)?;
        let found = manifest.composition_id().digest();
        if found == record.id {
            Ok(manifest)
        } else {
            Err(ActivationError::RecordContradicts {
                kind: "composition",
                name: name.to_owned(),
                expected: record.id,
                found,
            }
            .into())
        }
    }

    pub(super) fn stored_manifest(&self, blob: Digest) -> Result<Manifest, RuntimeError> {
        let bytes = self.store.verified_blob(blob)?;
        Ok(Manifest::parse((*bytes).as_ref(), &self.limits)?)
    }

    pub(super) fn put_manifest(
        &self,
        lock: &slm_store::WriteLock,
        manifest: &Manifest,
    ) -> Result<Digest, RuntimeError> {
        let json = manifest.to_canonical_json();
        Ok(self.store.put_blob(lock, &mut |out| out.write_all(&json))?)
    }
}

/// Whether the `.slm` file in `bytes` says that it holds this tokenizer; opening it checks the claim.
fn has_tokenizer(bytes: &[u8], wanted: TokenizerId, limits: &Limits) -> bool {
    Container::open(bytes, limits).is_ok_and(|container| {
        container
            .section(SectionKind::Tokenizer)
            .is_some_and(|section| TokenizerId::of_canonical(section.bytes()) == wanted)
    })
}

/// In the order that a checked manifest has: by scheme.
fn quantization(base: &Base) -> Vec<QuantizationEntry> {
    let mut entries: Vec<QuantizationEntry> = base
        .quantization()
        .into_iter()
        .map(|(encoding, tensors)| QuantizationEntry::of(encoding, tensors))
        .collect();
    entries.sort_by(|a, b| a.scheme.cmp(&b.scheme));
    entries
}

fn targets(adapter: &Adapter) -> Vec<String> {
    adapter.modules().iter().map(|module| module.target.clone()).collect()
}

/// An adapter that was read for an entry of a manifest, not yet held against a base.
struct ReadAdapter {
    adapter: Adapter,
    requires: Requires,
    /// Whether it is what the entry says.
    described: Result<(), ActivationError>,
}

/// Holds the descriptive fields of an entry against the adapter they describe.
fn describe(entry: &AdapterEntry, adapter: &Adapter) -> Result<(), ActivationError> {
    let mut targets = targets(adapter);
    targets.sort();
    compare("targets", &entry.targets, &targets)?;
    compare("rank", &entry.rank, &adapter.max_rank())?;
    compare("nnz", &entry.nnz, &adapter.nnz())
}

fn compare<T: PartialEq + std::fmt::Debug>(
    field: &str,
    found: &T,
    expected: &T,
) -> Result<(), ActivationError> {
    let shorten = |value: &T| format!("{value:?}").chars().take(200).collect();
    if found == expected {
        Ok(())
    } else {
        Err(ActivationError::ManifestContradicts {
            field: field.to_owned(),
            found: shorten(found),
            expected: shorten(expected),
        })
    }
}
