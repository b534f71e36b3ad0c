//! A composition worth sharing, and its packages.

use std::collections::BTreeMap;

use slm_format::Digest;
use slm_manifest::evaluation::{
    Environment, Evaluator, Measure, PromptPolicy, RawEvaluationRecord,
};
use slm_manifest::signature::{DocumentKind, SecretKey, SignedDocument};
use slm_manifest::{
    BaseId, CompositionId, EvaluationRecord, ExecutionProfile, Manifest, RawManifest,
};
use slm_runtime::Runtime;
use slm_runtime::runtime::Reference;
use slm_store::{MemStorage, Storage};

use super::{NOW, active_bits, compose, name, stocked};

pub const PAIR: [(&str, f32); 2] = [("kjv", 0.7), ("python", 0.3)];

/// A store with a composition under the name `pair`, whose manifest names an evaluation record; both are signed.
pub struct Origin {
    pub storage: MemStorage,
    pub runtime: Runtime<MemStorage>,
    pub manifest: Manifest,
    pub reference: Reference,
    pub secret: SecretKey,
}

pub fn origin() -> Origin {
    let storage = MemStorage::new();
    let (runtime, _) = stocked(storage.clone());
    let composed = compose(&runtime, "pair", &PAIR);
    let secret = SecretKey::from_random([7; 40]).expect("a key");
    let made = &composed.manifest;
    let record = record(composed.composition, made.base_model_hash, Some(made.digest()), 12.5);
    let record = record.to_canonical_json();
    sign(&runtime, &secret, DocumentKind::EvaluationRecord, &record);
    let mut raw: RawManifest = (*composed.manifest).clone();
    raw.evaluation = Some(Digest::of(&record));
    let manifest = Manifest::check(raw).expect("a manifest");
    let document = manifest.to_canonical_json();
    sign(&runtime, &secret, DocumentKind::Manifest, &document);
    Origin { storage, runtime, manifest, reference: Reference::Manifest(document), secret }
}

pub fn sign(
    runtime: &Runtime<MemStorage>,
    secret: &SecretKey,
    kind: DocumentKind,
    document: &[u8],
) {
    let signed = SignedDocument { kind, digest: Digest::of(document) };
    let signature = secret.sign(document, &signed.comment(0)).expect("a comment");
    let key = secret.public_key();
    let add = || runtime.add_signature(kind, document, &signature, &key, NOW).expect("a signature");
    let (blob, new) = add();
    assert!(new);
    assert_eq!(add(), (blob, false));
}

/// A record of a composition, which tells its perplexity.
pub fn record(
    composition: CompositionId,
    base: BaseId,
    manifest: Option<Digest>,
    perplexity: f64,
) -> EvaluationRecord {
    EvaluationRecord::check(RawEvaluationRecord {
        format: RawEvaluationRecord::FORMAT.to_owned(),
        composition,
        execution: ExecutionProfile::DEFAULT.execution_id(composition),
        base,
        manifest,
        timestamp_utc: NOW.to_owned(),
        sampling: None,
        prompt_policy: PromptPolicy {
            add_bos: false,
            context: 64,
            chat_template: None,
            system: None,
        },
        router: "fixed".to_owned(),
        evaluator: Evaluator {
            name: "slm".to_owned(),
            version: "0.1.0".to_owned(),
            method: "ppl".to_owned(),
            data: Digest::of(b"text"),
            limit: None,
        },
        environment: Environment {
            os: "linux".to_owned(),
            arch: "x86_64".to_owned(),
            kernel: "scalar".to_owned(),
            threads: 1,
        },
        results: BTreeMap::from([(
            "perplexity".to_owned(),
            Measure { value: perplexity, low: None, high: None, count: 64 },
        )]),
    })
    .expect("a record")
}

pub fn pack<S: Storage>(runtime: &Runtime<S>, reference: &Reference) -> Vec<u8> {
    let mut file = Vec::new();
    let shared = runtime.pack(reference, &mut file).expect("a package");
    assert_eq!((shared.bytes, shared.digest), (file.len() as u64, Digest::of(&file)));
    file
}

/// The origin's bits and ids, from whatever store the composition is in.
pub fn is_the_same<S: Storage>(origin: &Origin, fresh: &Runtime<S>, name: &str) {
    let by_name = Reference::Text(name.to_owned());
    assert_eq!(fresh.manifest_by_reference(&by_name).expect("a manifest"), origin.manifest);
    let here = origin.runtime.activate_composition(&origin.reference, NOW).expect("active");
    let there = fresh.activate_composition(&by_name, NOW).expect("active");
    assert_eq!((there.composition, there.manifest), (here.composition, here.manifest));
    assert_eq!(active_bits(fresh), active_bits(&origin.runtime));
}

pub type Layout = BTreeMap<String, Vec<u8>>;

pub fn exported(origin: &Origin) -> (Layout, Digest) {
    let mut layout = Layout::new();
    let tag = name("v1");
    let shared = origin.runtime.export_oci(&origin.reference, &tag, &mut layout).expect("a layout");
    assert_eq!(shared.signatures, 2);
    assert_eq!(shared.bytes, layout.values().map(|file| file.len() as u64).sum::<u64>());
    (layout, shared.digest)
}
