//! Packages: a composition in one file or in an OCI layout, and the same composition in another store.

mod common;

use common::share::{exported, is_the_same, origin, pack, record, sign};
use common::{Medium as _, NOW, code, compose, name, open, runtime, stocked};
use slm_format::{Coded, Digest};
use slm_manifest::policy::{LocalPolicy, RawLocalPolicy, TrustedKey};
use slm_manifest::signature::{DocumentKind, SecretKey};
use slm_manifest::{BareBase, Manifest, RawManifest, TrustPolicy, TrustRule};
use slm_runtime::runtime::{Reference, media_type};
use slm_runtime::{Engine, Runtime};
use slm_store::{MemStorage, NameKind, Store};

/// A package tells where its base came from, and a composition made of what was unpacked tells it again.
#[test]
fn where_a_base_came_from_goes_along() {
    let (origin, _) = stocked(MemStorage::new());
    let source = Some(Digest::of(slm_golden::TINY_Q8_0));
    origin.load_base_from(&common::tiny(), source, &name("from"), NOW, false).expect("imported");
    let made = |runtime: &Runtime<MemStorage>, composition: &str, base: &str| {
        let stack = [("kjv", 1.0)];
        let made = runtime.compose(&name(composition), base, &stack, NOW, false);
        made.expect("a composition").manifest.provenance.base_source_hash
    };
    assert_eq!(made(&origin, "k", "from"), source);
    // Another name of the same blob says nothing of its own.
    assert_eq!(made(&origin, "l", "tiny"), source);
    let package = pack(&origin, &Reference::Text("k".to_owned()));
    let fresh = runtime(MemStorage::new());
    fresh.unpack(&package, &name("k"), false, NOW).expect("unpacked");
    assert_eq!(made(&fresh, "again", "k"), source);
    let without = stocked(MemStorage::new()).0;
    assert_eq!(made(&without, "k", "tiny"), None);
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

/// All that was measured of a composition goes with it, whatever manifest it was measured under, and so do the signatures of that.
#[test]
fn every_record_of_the_composition_goes_along() {
    let origin = origin();
    let (composition, base) = (origin.manifest.composition_id(), origin.manifest.base_model_hash);
    let mut raw: RawManifest = (*origin.manifest).clone();
    raw.evaluation = None;
    let silent = Manifest::check(raw).expect("a manifest").to_canonical_json();
    let silent = Reference::Manifest(silent);
    let others = [13.5, 14.5].map(|value| record(composition, base, None, value));
    for other in &others {
        let (digest, new) = origin.runtime.record_evaluation(other, NOW).expect("stored");
        assert!(new && digest == other.digest());
    }
    sign(
        &origin.runtime,
        &origin.secret,
        DocumentKind::EvaluationRecord,
        &others[0].to_canonical_json(),
    );
    // One of another composition stays.
    let kjv = compose(&origin.runtime, "kjv-alone", &[("kjv", 1.0)]);
    let stranger = record(kjv.composition, base, None, 9.0);
    origin.runtime.record_evaluation(&stranger, NOW).expect("stored");
    // The manifest that names one record, and the one that names none: three records, of which two are signed, and the first manifest's signature.
    for (reference, signatures) in [(&origin.reference, 3), (&silent, 2)] {
        let file = pack(&origin.runtime, reference);
        assert_eq!(pack(&origin.runtime, reference), file, "packing twice");
        let storage = MemStorage::new();
        let fresh = runtime(storage.clone());
        let unpacked = fresh.unpack(&file, &name("shared"), false, NOW).expect("unpacked");
        assert_eq!((unpacked.signatures, unpacked.verified), (signatures, 0));
        let found = fresh.evaluations_of(composition).expect("records");
        assert_eq!(found, origin.runtime.evaluations_of(composition).expect("records"));
        assert_eq!(found.len(), 3);
        let signed = fresh.signatures_of(others[0].digest()).expect("signatures");
        assert_eq!(signed, origin.runtime.signatures_of(others[0].digest()).expect("signatures"));
        assert_eq!(signed.len(), 1);
        assert!(fresh.evaluations_of(kjv.composition).expect("records").is_empty());
        assert_eq!(pack(&fresh, &Reference::Text("shared".to_owned())), file, "and on");
        // They are kept for as long as the composition is, and nothing else is.
        assert_eq!(fresh.gc(10, NOW).expect("a collection").removed, []);
        let mut layout = common::share::Layout::new();
        let tag = name("v1");
        origin.runtime.export_oci(reference, &tag, &mut layout).expect("a layout");
        let imported = runtime(MemStorage::new());
        let imported = imported.import_oci(&layout, None, &name("shared"), false, NOW);
        assert_eq!(imported.expect("imported"), unpacked);
    }
}

/// A signature that says it is by a key that is trusted here must be; one by a key that nobody here knows can be held against nothing.
#[test]
fn signatures_by_trusted_keys_are_verified() {
    let origin = origin();
    let file = pack(&origin.runtime, &origin.reference);
    // Another key under the same id, which is a label that anybody can copy: the last 32 bytes are the key's own.
    let mut random = [7; 40];
    random[39] = 8;
    let twin = SecretKey::from_random(random).expect("a key");
    let stranger = SecretKey::from_random([9; 40]).expect("a key");
    for (key, expected) in
        [(&origin.secret, Ok(2)), (&stranger, Ok(0)), (&twin, Err("signature-invalid"))]
    {
        let keys = vec![TrustedKey { name: name("key"), key: key.public_key() }];
        let raw = RawLocalPolicy { keys, ..RawLocalPolicy::default() };
        let policy = LocalPolicy::check(raw).expect("a policy");
        let storage = MemStorage::new();
        let store = Store::open(storage.clone()).expect("a store");
        let fresh = Runtime::with_policy(store, Engine::inline(), common::LIMITS, policy);
        match (fresh.unpack(&file, &name("shared"), false, NOW), expected) {
            (Ok(unpacked), Ok(verified)) => assert_eq!(unpacked.verified, verified),
            (Err(error), Err(code)) => {
                assert_eq!(error.code(), code);
                assert!(storage.files().is_empty());
            }
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    }
}
