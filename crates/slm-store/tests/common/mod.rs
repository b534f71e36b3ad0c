//! What several test files use.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

pub mod commands;

use slm_format::Digest;
use slm_manifest::{
    AdapterEntry, AdapterId, BaseId, CompositionId, Manifest, Provenance, RawManifest, RuntimeTag,
    TokenizerId,
};
use slm_store::{
    Change, Generation, Intent, NameKind, NameRecord, Operation, Storage, Store, StoreError,
    VerifyReport, WriteLock,
};

/// The callers' clock.
pub const NOW: &str = "2026-07-21T00:00:00Z";

/// A generation whose manifest is a blob of the store.
pub fn generation<S: Storage>(
    store: &Store<S>,
    lock: &WriteLock,
    number: u64,
    parent: Option<Digest>,
) -> Generation {
    let manifest = store.put_bytes(lock, format!("manifest {number}").as_bytes()).unwrap();
    Generation {
        number,
        composition: CompositionId::of_canonical(&number.to_le_bytes()),
        manifest,
        parent,
        time: NOW.to_owned(),
    }
}

pub fn intent(operation: Operation) -> Intent {
    Intent { operation, time: NOW.to_owned(), actor: None, composition: None, manifest: None }
}

/// What a composition of the tests is made of: a base of this many bytes, and adapters that are these bytes.
pub fn manifest(base: &[u8], adapters: &[&[u8]]) -> Manifest {
    let entries = adapters.iter().enumerate().map(|(at, bytes)| AdapterEntry {
        name: format!("adapter-{at}").parse().unwrap(),
        adapter_id: AdapterId::of_canonical(bytes),
        file_hash: Digest::of(bytes),
        load_order: at as u32 + 1,
        merge_weight: 1.0,
        targets: vec!["blk.0.attn_q.weight".to_owned()],
        rank: 8,
        nnz: 1,
    });
    Manifest::check(RawManifest {
        base_model_hash: base_id(base),
        tokenizer_id: TokenizerId::of_canonical(b"tokenizer"),
        quantization: vec![slm_manifest::QuantizationEntry::of(slm_format::Encoding::NF4, 1)],
        runtime: RuntimeTag::current(),
        timestamp_utc: NOW.to_owned(),
        plan: None,
        adapters: entries.collect(),
        provenance: Provenance::default(),
        evaluation: None,
    })
    .unwrap()
}

pub fn base_id(base: &[u8]) -> BaseId {
    BaseId::of_canonical(base)
}

/// What the tests' manifests need that only somebody who knows models can tell: nothing.
pub fn nothing_more(_: &Manifest) -> Result<Vec<Digest>, StoreError> {
    Ok(Vec::new())
}

/// Stores `bytes` and gives them a name, through the log.
pub fn import<S: Storage>(
    store: &Store<S>,
    lock: &mut WriteLock,
    kind: NameKind,
    name: &str,
    bytes: &[u8],
) -> Result<NameRecord, StoreError> {
    let operation = match kind {
        NameKind::Base => Operation::Import,
        NameKind::Adapter => Operation::AdapterImport,
        _ => Operation::Compose,
    };
    let pending = store.begin(lock, intent(operation))?;
    let blob = store.put_bytes(pending.lock(), bytes)?;
    let id = match kind {
        NameKind::Base => base_id(bytes).digest(),
        NameKind::Adapter => AdapterId::of_canonical(bytes).digest(),
        _ => Manifest::from_json(bytes, &slm_format::Limits::STANDARD)
            .unwrap()
            .composition_id()
            .digest(),
    };
    let record = NameRecord::new(id, blob);
    let name = name.parse().unwrap();
    pending.stage(Change::SetName { kind, name, record, replace: true })?.commit()?;
    Ok(record)
}

/// Activates `manifest` through the log, as the runtime does.
pub fn activate<S: Storage>(
    store: &Store<S>,
    lock: &mut WriteLock,
    manifest: &Manifest,
) -> Result<Digest, StoreError> {
    let pending = store.begin(lock, intent(Operation::Activate))?;
    let active = store.active()?;
    let generation = Generation {
        number: active.as_ref().map_or(1, |active| active.sequence + 1),
        composition: manifest.composition_id(),
        manifest: store.put_bytes(pending.lock(), &manifest.to_canonical_json())?,
        parent: active.map(|active| active.generation),
        time: NOW.to_owned(),
    };
    let committed = pending.stage(Change::Activate(generation))?.commit()?;
    Ok(committed.generation.unwrap())
}

/// Goes back to the parent of what is active, through the log.
pub fn rollback<S: Storage>(store: &Store<S>, lock: &mut WriteLock) -> Result<Digest, StoreError> {
    let pending = store.begin(lock, intent(Operation::Rollback))?;
    let parent = store.active()?.unwrap().record.parent.unwrap();
    let parent = store.generation(parent)?;
    let committed = pending.stage(Change::Activate(parent))?.commit()?;
    Ok(committed.generation.unwrap())
}

/// A deep look at everything, which must find nothing.
pub fn assert_clean<S: Storage>(store: &Store<S>, context: &str) -> VerifyReport {
    let report = store.verify(true, &mut nothing_more);
    for finding in &report.findings {
        println!("{finding}");
    }
    assert!(report.is_clean(), "{context}");
    assert_eq!((report.hashed, report.hashed_bytes), (report.blobs, report.bytes));
    report
}
