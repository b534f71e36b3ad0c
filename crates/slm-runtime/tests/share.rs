//! Packages: a composition in one file or in an OCI layout, and the same composition in another store.

mod common;

use std::collections::BTreeMap;

use common::{LIMITS, Medium as _, NOW, active_bits, code, compose, name, open, runtime, stocked};
use slm_format::container::{Container, ContainerWriter, SectionKind, TensorLayout};
use slm_format::{Coded, Digest};
use slm_manifest::evaluation::{
    Environment, Evaluator, Measure, PromptPolicy, RawEvaluationRecord,
};
use slm_manifest::signature::{DocumentKind, SecretKey, SignedDocument};
use slm_manifest::{
    BareBase, EvaluationRecord, ExecutionProfile, Manifest, RawManifest, TrustPolicy, TrustRule,
};
use slm_runtime::Runtime;
use slm_runtime::runtime::{Reference, media_type};
use slm_store::{MemStorage, NameKind, Storage};

const PAIR: [(&str, f32); 2] = [("kjv", 0.7), ("python", 0.3)];

/// A store with a composition under the name `pair`, whose manifest names an evaluation record; both are signed.
struct Origin {
    storage: MemStorage,
    runtime: Runtime<MemStorage>,
    manifest: Manifest,
    reference: Reference,
    secret: SecretKey,
}

fn origin() -> Origin {
    let storage = MemStorage::new();
    let (runtime, _) = stocked(storage.clone());
    let composed = compose(&runtime, "pair", &PAIR);
    let secret = SecretKey::from_random([7; 40]).expect("a key");
    let record = record(&composed.manifest).to_canonical_json();
    sign(&runtime, &secret, DocumentKind::EvaluationRecord, &record);
    let mut raw: RawManifest = (*composed.manifest).clone();
    raw.evaluation = Some(Digest::of(&record));
    let manifest = Manifest::check(raw).expect("a manifest");
    let document = manifest.to_canonical_json();
    sign(&runtime, &secret, DocumentKind::Manifest, &document);
    Origin { storage, runtime, manifest, reference: Reference::Manifest(document), secret }
}

fn sign(runtime: &Runtime<MemStorage>, secret: &SecretKey, kind: DocumentKind, document: &[u8]) {
    let signed = SignedDocument { kind, digest: Digest::of(document) };
    let signature = secret.sign(document, &signed.comment(0)).expect("a comment");
    let key = secret.public_key();
    let add = || runtime.add_signature(kind, document, &signature, &key, NOW).expect("a signature");
    let (blob, new) = add();
    assert!(new);
    assert_eq!(add(), (blob, false));
}

fn record(manifest: &Manifest) -> EvaluationRecord {
    let composition = manifest.composition_id();
    EvaluationRecord::check(RawEvaluationRecord {
        format: RawEvaluationRecord::FORMAT.to_owned(),
        composition,
        execution: ExecutionProfile::DEFAULT.execution_id(composition),
        base: manifest.base_model_hash,
        manifest: Some(manifest.digest()),
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
            Measure { value: 12.5, low: None, high: None, count: 64 },
        )]),
    })
    .expect("a record")
}

fn pack<S: Storage>(runtime: &Runtime<S>, reference: &Reference) -> Vec<u8> {
    let mut file = Vec::new();
    let shared = runtime.pack(reference, &mut file).expect("a package");
    assert_eq!((shared.bytes, shared.digest), (file.len() as u64, Digest::of(&file)));
    file
}

/// The origin's bits and ids, from whatever store the composition is in.
fn is_the_same<S: Storage>(origin: &Origin, fresh: &Runtime<S>, name: &str) {
    let by_name = Reference::Text(name.to_owned());
    assert_eq!(fresh.manifest_by_reference(&by_name).expect("a manifest"), origin.manifest);
    let here = origin.runtime.activate_composition(&origin.reference, NOW).expect("active");
    let there = fresh.activate_composition(&by_name, NOW).expect("active");
    assert_eq!((there.composition, there.manifest), (here.composition, here.manifest));
    assert_eq!(active_bits(fresh), active_bits(&origin.runtime));
}

#[test]
fn a_packed_composition_is_the_same_in_a_fresh_store() {
    let origin = origin();
    let file = pack(&origin.runtime, &origin.reference);
    assert_eq!(pack(&origin.runtime, &origin.reference), file, "packing twice");
    let storage = MemStorage::new();
    let fresh = runtime(storage.clone());
    let unpacked = fresh.unpack(&file, &name("shared"), false, NOW).expect("unpacked");
    assert_eq!(unpacked.composition, origin.manifest.composition_id());
    assert_eq!((unpacked.manifest, unpacked.signatures), (origin.manifest.digest(), 2));
    assert!(unpacked.changed && unpacked.adapters.iter().all(|adapter| adapter.2));
    // Every blob is a blob of the store it came from, byte for byte; the manifest with its record was only a document there.
    let (from, to) = (origin.storage.files(), storage.files());
    let mut blobs = 0;
    for (path, bytes) in to.iter().filter(|(path, _)| path.starts_with("blobs/")) {
        assert_eq!(from.get(path), Some(bytes), "{path}");
        blobs += 1;
    }
    // Base, two adapters, manifest, record, two signatures.
    assert_eq!((blobs, unpacked.blobs.len()), (7, 7));
    is_the_same(&origin, &fresh, "shared");
    // And on: the package made there is this package.
    assert_eq!(pack(&fresh, &Reference::Text("shared".to_owned())), file);
    let again = fresh.unpack(&file, &name("shared"), false, NOW).expect("unpacked");
    assert!(!again.changed);
}

#[test]
fn signatures_and_records_come_along_and_hold() {
    let origin = origin();
    let fresh = runtime(MemStorage::new());
    let file = pack(&origin.runtime, &origin.reference);
    fresh.unpack(&file, &name("shared"), false, NOW).expect("unpacked");
    let manifest = origin.manifest.digest();
    let signatures = fresh.signatures_of(manifest).expect("signatures");
    assert_eq!(signatures, origin.runtime.signatures_of(manifest).expect("signatures"));
    let documents: Vec<&Vec<u8>> = signatures.iter().map(|(_, bytes)| bytes).collect();
    let policy = TrustPolicy { rule: TrustRule::Signed, bare_base: BareBase::AsOthers };
    let judge = |keys: &[_]| policy.judge(&origin.manifest, &documents, keys);
    assert_eq!(judge(&[origin.secret.public_key()]), Ok(()));
    assert_eq!(judge(&[]).unwrap_err().code(), "untrusted-key");
    // What a manifest brings along is what gc must keep: base, signature, record, the record's signature.
    let companions = fresh.companions(&origin.manifest).expect("companions");
    assert_eq!(companions.len(), 4);
    assert!(companions.contains(&origin.manifest.evaluation.expect("a record")));
    let mut others = origin.runtime.companions(&origin.manifest).expect("companions");
    others.sort_unstable();
    let mut sorted = companions;
    sorted.sort_unstable();
    assert_eq!(sorted, others);
}

#[test]
fn a_signature_that_does_not_hold_is_not_stored() {
    let origin = origin();
    let before = origin.storage.files();
    let signature = origin.secret.sign(b"another", "comment").expect("a comment");
    let document = origin.manifest.to_canonical_json();
    let key = origin.secret.public_key();
    let kind = DocumentKind::Manifest;
    let added = origin.runtime.add_signature(kind, &document, &signature, &key, NOW);
    assert_eq!(code(added), "signature-invalid");
    assert_eq!(origin.storage.files(), before);
}

#[test]
fn a_package_opens_as_the_model_it_holds() {
    let origin = origin();
    let base = open(&pack(&origin.runtime, &origin.reference)).expect("a base");
    assert_eq!(base.id(), origin.manifest.base_model_hash);
    assert_eq!(base.tokenizer_id(), origin.manifest.tokenizer_id);
}

#[test]
fn names_are_taken_from_nobody() {
    let origin = origin();
    let file = pack(&origin.runtime, &origin.reference);
    let (here, _) = stocked(MemStorage::new());
    compose(&here, "shared", &[("kjv", 1.0)]);
    compose(&here, "other", &[("python", 1.0)]);
    let kjv = here.store().name(NameKind::Adapter, &name("kjv")).expect("a record");
    assert_eq!(code(here.unpack(&file, &name("shared"), false, NOW)), "name-taken");
    // The base and the adapters have these names here already, and keep them.
    let unpacked = here.unpack(&file, &name("shared"), true, NOW).expect("unpacked");
    assert!(unpacked.changed && unpacked.adapters.iter().all(|adapter| adapter.2));
    assert_eq!(here.store().name(NameKind::Adapter, &name("kjv")).expect("a record"), kjv);
    is_the_same(&origin, &here, "shared");
    // Where another adapter has the name, the package's goes without one.
    let fresh = runtime(MemStorage::new());
    let base = common::tiny();
    fresh.load_base(&base, &name("tiny"), NOW, false).expect("imported");
    let python = |shape: &slm_overlay::BaseShape| {
        let (config, weights) = common::adapter_files("python");
        common::resolve(config, weights, shape)
    };
    fresh.load_adapter(&python, "tiny", &name("kjv"), NOW, false).expect("imported");
    let unpacked = fresh.unpack(&file, &name("shared"), false, NOW).expect("unpacked");
    let named: Vec<(&str, bool)> =
        unpacked.adapters.iter().map(|(name, _, named)| (name.as_str(), *named)).collect();
    assert_eq!(named, [("kjv", false), ("python", true)]);
    is_the_same(&origin, &fresh, "shared");
}

/// A package's sections, its weights put in as they are.
fn rebuilt(file: &[u8], change: impl Fn(&mut Vec<(SectionKind, Vec<u8>)>)) -> Vec<u8> {
    let container = Container::open(file, &LIMITS).expect("a container");
    let mut sections: Vec<(SectionKind, Vec<u8>)> = container
        .sections()
        .iter()
        .filter(|section| section.kind() != SectionKind::BaseWeights)
        .map(|section| (section.kind(), section.bytes().to_vec()))
        .collect();
    change(&mut sections);
    let mut writer = ContainerWriter::new();
    for (kind, bytes) in sections {
        writer.section(kind, bytes).expect("a section");
    }
    for tensor in container.tensors() {
        let (name, encoding, shape) = (tensor.name, tensor.encoding, &tensor.shape);
        match tensor.layout {
            TensorLayout::Rows => writer.tensor(name, encoding, shape, tensor.data),
            TensorLayout::Interleaved16 => {
                writer.interleaved_tensor(name, encoding, shape, tensor.content, tensor.data)
            }
        }
        .expect("a tensor");
    }
    let mut out = Vec::new();
    writer.write_to(&mut out).expect("written");
    out
}

fn position(sections: &[(SectionKind, Vec<u8>)], kind: SectionKind) -> usize {
    sections.iter().position(|section| section.0 == kind).expect("a section")
}

/// Unpacking refuses with this code, and the store is as before.
fn refused(file: &[u8], expected: &str, what: &str) {
    let storage = MemStorage::new();
    let fresh = runtime(storage.clone());
    let before = storage.files();
    assert_eq!(code(fresh.unpack(file, &name("shared"), false, NOW)), expected, "{what}");
    assert_eq!(storage.files(), before, "{what}");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let origin = origin();
    let file = pack(&origin.runtime, &origin.reference);
    assert_eq!(rebuilt(&file, |_| {}), file, "the twin of all that follows");
    let kjv_alone = compose(&origin.runtime, "kjv-alone", &[("kjv", 1.0)]).manifest;
    let bytes = |manifest: &Manifest| manifest.to_canonical_json();
    let change = |change: &dyn Fn(&mut RawManifest)| {
        let mut raw: RawManifest = (*origin.manifest).clone();
        change(&mut raw);
        bytes(&Manifest::check(raw).expect("a manifest"))
    };
    let with_manifest = |manifest: Vec<u8>| {
        rebuilt(&file, |sections| {
            // Signatures and records are of the old one.
            sections.retain(|section| {
                !matches!(section.0, SectionKind::Signature | SectionKind::EvaluationRecord)
            });
            let at = position(sections, SectionKind::Manifest);
            sections[at].1.clone_from(&manifest);
        })
    };
    let no_record = change(&|raw| raw.evaluation = None);
    let fresh = runtime(MemStorage::new());
    let twin = with_manifest(no_record.clone());
    fresh.unpack(&twin, &name("shared"), false, NOW).expect("the twin");
    let spaced = [b" ".as_slice(), &no_record].concat();
    for (manifest, expected) in [
        (spaced, "package-not-canonical"),
        (bytes(&origin.manifest), "package-incomplete"),
        (bytes(&kjv_alone), "package-stray"),
        (change(&|raw| raw.adapters[0].file_hash = Digest::of(b"x")), "package-incomplete"),
        (
            change(&|raw| (raw.evaluation, raw.adapters[0].rank) = (None, 99)),
            "manifest-contradicts",
        ),
        (change(&|raw| (raw.evaluation, raw.adapters[0].nnz) = (None, 1)), "manifest-contradicts"),
        (change(&|raw| raw.quantization[0].tensors += 1), "manifest-contradicts"),
        (
            change(&|raw| raw.adapters[0].adapter_id = raw.base_model_hash_as_adapter()),
            "adapter-mismatch",
        ),
        (
            change(&|raw| {
                raw.base_model_hash = slm_manifest::BaseId::from_digest(Digest::of(b"x"))
            }),
            "base-mismatch",
        ),
        (
            change(&|raw| {
                raw.tokenizer_id = slm_manifest::TokenizerId::from_digest(Digest::of(b"x"))
            }),
            "tokenizer-mismatch",
        ),
        (
            change(&|raw| raw.provenance.base_file_hash = Some(Digest::of(b"x"))),
            "package-base-form",
        ),
        (b"{}".to_vec(), "manifest-missing-field"),
    ] {
        let shown = String::from_utf8_lossy(&manifest).into_owned();
        refused(&with_manifest(manifest), expected, &shown);
    }
}

trait AsAdapter {
    fn base_model_hash_as_adapter(&self) -> slm_manifest::AdapterId;
}

impl AsAdapter for RawManifest {
    fn base_model_hash_as_adapter(&self) -> slm_manifest::AdapterId {
        slm_manifest::AdapterId::from_digest(self.base_model_hash.digest())
    }
}

#[test]
fn sections_are_those_of_a_package() {
    let origin = origin();
    let file = pack(&origin.runtime, &origin.reference);
    let other = origin.secret.sign(b"x", &SignedDocument::manifest(b"x").comment(0));
    let other = other.expect("a comment").to_document().into_bytes();
    type Change<'a> = &'a dyn Fn(&mut Vec<(SectionKind, Vec<u8>)>);
    let cases: [(Change<'_>, &str); 9] = [
        (&|s| drop(s.remove(position(s, SectionKind::Manifest))), "package-manifests"),
        (&|s| s.push(s[position(s, SectionKind::Manifest)].clone()), "package-manifests"),
        (&|s| drop(s.remove(position(s, SectionKind::Adapter))), "package-incomplete"),
        (&|s| drop(s.remove(position(s, SectionKind::EvaluationRecord))), "package-incomplete"),
        (&|s| s.push(s[position(s, SectionKind::Adapter)].clone()), "package-stray"),
        (&|s| s.push((SectionKind::Signature, other.clone())), "package-stray"),
        (&|s| s.push((SectionKind::Signature, b"x".to_vec())), "signature-malformed"),
        (&|s| s.push((SectionKind::PrefixCache, b"x".to_vec())), "package-section"),
        (
            &|s| {
                let tokenizer = s.remove(position(s, SectionKind::Tokenizer));
                s.push(tokenizer);
            },
            "package-section",
        ),
    ];
    for (at, (change, expected)) in cases.into_iter().enumerate() {
        refused(&rebuilt(&file, change), expected, &format!("case {at}"));
    }
    // A base alone is no package.
    let mut base = Vec::new();
    common::tiny().write_slm(&mut base).expect("written");
    refused(&base, "package-manifests", "a base");
    // Without signatures it is a package as well: nobody has signed it.
    let unsigned = rebuilt(&file, |s| s.retain(|section| section.0 != SectionKind::Signature));
    let fresh = runtime(MemStorage::new());
    let unpacked = fresh.unpack(&unsigned, &name("shared"), false, NOW).expect("unpacked");
    assert_eq!(unpacked.signatures, 0);
}

#[test]
fn damage_anywhere_is_noticed_before_anything_is_stored() {
    let origin = origin();
    let file = pack(&origin.runtime, &origin.reference);
    let container = Container::open(&file, &LIMITS).expect("a container");
    let mut places = vec![9, 70, 100];
    for section in container.sections() {
        let (start, len) = (section.offset() as usize, section.bytes().len());
        places.extend([start, start + len / 2, start + len - 1]);
    }
    let storage = MemStorage::new();
    let fresh = runtime(storage.clone());
    let before = storage.files();
    for at in places {
        let mut bad = file.clone();
        bad[at] ^= 0x10;
        assert!(fresh.unpack(&bad, &name("shared"), false, NOW).is_err(), "byte {at}");
        let cut = &file[..at];
        assert!(fresh.unpack(cut, &name("shared"), false, NOW).is_err(), "cut at {at}");
    }
    assert_eq!(storage.files(), before);
}

type Layout = BTreeMap<String, Vec<u8>>;

fn exported(origin: &Origin) -> (Layout, Digest) {
    let mut layout = Layout::new();
    let tag = name("v1");
    let shared = origin.runtime.export_oci(&origin.reference, &tag, &mut layout).expect("a layout");
    assert_eq!(shared.signatures, 2);
    assert_eq!(shared.bytes, layout.values().map(|file| file.len() as u64).sum::<u64>());
    (layout, shared.digest)
}

#[test]
fn an_oci_layout_is_the_same_composition() {
    let origin = origin();
    let (layout, image) = exported(&origin);
    assert_eq!(exported(&origin).0, layout, "exporting twice");
    assert!(layout.contains_key(&format!("blobs/sha256/{}", image.hex())));
    // Every layer is a blob of the store, byte for byte.
    let manifest: serde_json::Value =
        serde_json::from_slice(&layout[&format!("blobs/sha256/{}", image.hex())]).expect("JSON");
    let stored = origin.storage.files();
    let mut types = Vec::new();
    for layer in manifest["layers"].as_array().expect("layers") {
        let digest: Digest = layer["digest"].as_str().expect("a text").parse().expect("a digest");
        let path = format!("blobs/sha256/{}", digest.hex());
        assert_eq!(stored.get(&path), layout.get(&path), "{layer}");
        types.push(layer["mediaType"].as_str().expect("a type").to_owned());
    }
    assert_eq!(
        types,
        [
            media_type::MANIFEST,
            media_type::BASE,
            media_type::ADAPTER,
            media_type::ADAPTER,
            media_type::EVALUATION_RECORD,
            media_type::SIGNATURE,
            media_type::SIGNATURE
        ]
    );
    for tag in [None, Some("v1")] {
        let storage = MemStorage::new();
        let fresh = runtime(storage.clone());
        let imported =
            fresh.import_oci(&layout, tag, &name("shared"), false, NOW).expect("imported");
        assert_eq!((imported.blobs.len(), imported.signatures), (7, 2));
        for (path, bytes) in storage.files().iter().filter(|(path, _)| path.starts_with("blobs/")) {
            assert_eq!(stored.get(path), Some(bytes), "{path}");
        }
        is_the_same(&origin, &fresh, "shared");
    }
    // The two forms hold the same.
    let packed = runtime(MemStorage::new());
    let file = pack(&origin.runtime, &origin.reference);
    let unpacked = packed.unpack(&file, &name("shared"), false, NOW).expect("unpacked");
    let fresh = runtime(MemStorage::new());
    let imported = fresh.import_oci(&layout, None, &name("shared"), false, NOW).expect("imported");
    assert_eq!(imported, unpacked);
}

#[test]
fn what_is_no_layout_of_a_composition_is_refused() {
    let origin = origin();
    let (layout, image) = exported(&origin);
    let image_path = format!("blobs/sha256/{}", image.hex());
    let text = |path: &str| String::from_utf8(layout[path].clone()).expect("text");
    let replace = |path: &str, from: &str, to: &str| {
        let mut bad = layout.clone();
        let changed = text(path).replacen(from, to, 1);
        assert_ne!(changed, text(path), "{from}");
        bad.insert(path.to_owned(), changed.into_bytes());
        bad
    };
    // A changed image under its own new digest, so that only what it says is wrong.
    let with_image = |from: &str, to: &str| {
        let changed = text(&image_path).replacen(from, to, 1).into_bytes();
        assert_ne!(changed, layout[&image_path], "{from}");
        let mut bad = layout.clone();
        let digest = Digest::of(&changed);
        let index =
            text("index.json").replacen(&image.to_string(), &digest.to_string(), 1).replacen(
                &format!(":{}", layout[&image_path].len()),
                &format!(":{}", changed.len()),
                1,
            );
        bad.insert("index.json".to_owned(), index.into_bytes());
        bad.insert(format!("blobs/sha256/{}", digest.hex()), changed);
        bad
    };
    let without = |path: &str| {
        let mut bad = layout.clone();
        bad.remove(path);
        bad
    };
    let base_blob = |bad: &mut Layout, change: &dyn Fn(&mut Vec<u8>)| {
        let largest = bad.iter().max_by_key(|(_, bytes)| bytes.len()).expect("files").0.clone();
        change(bad.get_mut(&largest).expect("a file"));
    };
    let mut flipped = layout.clone();
    base_blob(&mut flipped, &|bytes| bytes[1000] ^= 1);
    let mut cut = layout.clone();
    base_blob(&mut cut, &|bytes| bytes.truncate(1000));
    let entry = text("index.json");
    let entry = &entry[entry.find("[").expect("a list") + 1..entry.rfind("]").expect("a list")];
    let first_hex = image.hex();
    for (bad, expected) in [
        (Layout::new(), "oci-layout"),
        (without("oci-layout"), "oci-layout"),
        (without("index.json"), "oci-layout"),
        (without(&image_path), "oci-layout"),
        (replace("oci-layout", "1.0.0", "2.0.0"), "oci-layout"),
        (
            replace("index.json", "\"manifests\":[", &format!("\"manifests\":[{entry},")),
            "oci-layout",
        ),
        (replace("index.json", media_type::OCI_MANIFEST, media_type::OCI_INDEX), "oci-media-type"),
        (replace("index.json", &first_hex, "../../../etc/passwd"), "oci-layout"),
        (replace("index.json", "\"size\":", "\"size\":1"), "oci-blob-digest"),
        (flipped, "oci-blob-digest"),
        (cut, "oci-blob-digest"),
        (
            with_image(media_type::ADAPTER, "application/vnd.oci.image.layer.v1.tar+gzip"),
            "oci-media-type",
        ),
        (with_image(media_type::BASE, media_type::ADAPTER), "oci-layout"),
        (with_image(media_type::ADAPTER, media_type::BASE), "oci-layout"),
        (with_image(media_type::MANIFEST, media_type::EVALUATION_RECORD), "package-manifests"),
        (with_image("\"schemaVersion\":2", "\"schemaVersion\":1"), "oci-layout"),
    ] {
        let storage = MemStorage::new();
        let fresh = runtime(storage.clone());
        let before = storage.files();
        let imported = fresh.import_oci(&bad, None, &name("shared"), false, NOW);
        assert_eq!(code(imported), expected);
        assert_eq!(storage.files(), before);
    }
    let fresh = runtime(MemStorage::new());
    let absent = fresh.import_oci(&layout, Some("v2"), &name("shared"), false, NOW);
    assert_eq!(code(absent), "oci-layout");
    // The twin of those that changed the image: a field that nobody reads.
    let twin = with_image("\"annotations\":{", "\"annotations\":{\"x\":\"y\",");
    fresh.import_oci(&twin, None, &name("shared"), false, NOW).expect("imported");
}
