//! Manifests and blobs that are refused at activation: the code, a store that is byte for byte what it was, and the old composition serving.

mod common;

use common::bend::Bend;
use common::{
    Bits, Medium, NOW, Stock, active_bits, blob_path, code, compose, composition, import, name,
    open, runtime, stocked, tiny,
};
use slm_format::{Coded, Digest, ErrorClass};
use slm_golden::TINY_Q8_0;
use slm_manifest::{Manifest, PlanId, RawManifest};
use slm_runtime::Runtime;
use slm_runtime::runtime::{Reference, Status};

on_both_media!(
    documents_that_do_not_hold_together,
    manifests_that_say_what_the_blobs_do_not,
    blobs_that_are_another,
    blobs_that_were_changed,
    a_base_that_was_changed,
    a_rollback_is_refused_as_an_activation_is,
);

const PAIR: [(&str, f32); 2] = [("kjv", 0.7), ("python", 0.3)];

/// A store where `bare` is active and the pair is composed.
fn ready<S: Medium>(storage: S) -> (Runtime<S>, Stock, Manifest) {
    let (runtime, stock) = stocked(storage);
    let composed = compose(&runtime, "pair", &PAIR);
    runtime.activate_composition(&Reference::Text("bare".to_owned()), NOW).expect("active");
    (runtime, stock, composed.manifest)
}

fn state<S: Medium>(
    runtime: &Runtime<S>,
) -> (std::collections::BTreeMap<String, Vec<u8>>, Status, Bits) {
    let status = runtime.status().expect("active");
    (runtime.store().storage().files(), status, active_bits(runtime))
}

fn document(bytes: impl Into<Vec<u8>>) -> Reference {
    Reference::Manifest(bytes.into())
}

/// Activation must refuse each reference with the code, and change nothing.
fn refused<S: Medium>(runtime: &Runtime<S>, references: &[Reference], expected: &str, what: &str) {
    let before = state(runtime);
    for reference in references {
        let error = runtime
            .activate_composition(reference, NOW)
            .err()
            .unwrap_or_else(|| panic!("{what} is accepted"));
        assert_eq!(error.code(), expected, "{what}: {error}");
        assert!(state(runtime) == before, "{what} changed the store or what is active");
    }
}

/// Both forms of a manifest.
fn both(raw: RawManifest) -> [Reference; 2] {
    let manifest = Manifest::check(raw).expect("a manifest that holds together");
    [document(manifest.to_toml()), document(manifest.to_canonical_json())]
}

/// `text` with the first `from` made `to`.
fn bent(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "no {from} in {text}");
    text.replacen(from, to, 1)
}

fn documents_that_do_not_hold_together<S: Medium>(storage: S) {
    let (runtime, _, manifest) = ready(storage);
    let toml = manifest.to_toml();
    let json = String::from_utf8(manifest.to_canonical_json()).expect("UTF-8");
    for (what, toml_from, toml_to, json_from, json_to, expected) in [
        (
            "another arithmetic",
            "numerics = 1",
            "numerics = 2",
            "\"numerics\":1",
            "\"numerics\":2",
            "numerics-version",
        ),
        (
            "a key twice",
            "load_order = 1",
            "load_order = 1\nload_order = 1",
            "\"load_order\":1",
            "\"load_order\":1,\"load_order\":1",
            "manifest-duplicate-key",
        ),
        (
            "a missing field",
            "load_order = 1\n",
            "",
            "\"load_order\":1,",
            "",
            "manifest-missing-field",
        ),
        (
            "a gap in the order",
            "load_order = 2",
            "load_order = 3",
            "\"load_order\":2",
            "\"load_order\":3",
            "manifest-load-order",
        ),
        (
            "an order from zero",
            "load_order = 1",
            "load_order = 0",
            "\"load_order\":1",
            "\"load_order\":0",
            "manifest-load-order",
        ),
        (
            "an unknown field",
            "load_order = 1",
            "load_order = 1\npriority = 1",
            "\"load_order\":1",
            "\"load_order\":1,\"priority\":1",
            "manifest-unknown-field",
        ),
        (
            "a weight that is text",
            "merge_weight = 0.7",
            "merge_weight = \"0.7\"",
            "\"merge_weight\":0.7",
            "\"merge_weight\":\"0.7\"",
            "manifest-type",
        ),
        (
            "a digest too short",
            "file_hash = \"sha256:",
            "file_hash = \"sha256:0",
            "\"file_hash\":\"sha256:",
            "\"file_hash\":\"sha256:0",
            "digest-spelling",
        ),
        (
            "another runtime",
            "name = \"slm\"",
            "name = \"mls\"",
            "\"name\":\"slm\"",
            "\"name\":\"mls\"",
            "manifest-runtime",
        ),
        (
            "a name twice",
            "name = \"python\"",
            "name = \"kjv\"",
            "\"name\":\"python\"",
            "\"name\":\"kjv\"",
            "manifest-duplicate-name",
        ),
        (
            "an end too early",
            "merge_weight = 0.3",
            "merge_weight =",
            "\"merge_weight\":0.3",
            "\"merge_weight\":",
            "manifest-syntax",
        ),
    ] {
        let forms =
            [document(bent(&toml, toml_from, toml_to)), document(bent(&json, json_from, json_to))];
        refused(&runtime, &forms, expected, what);
    }
    // Weights that are no finite f32. JSON has no word for NaN: there it is a fault of form.
    for weight in ["nan", "inf", "-inf", "1e39"] {
        let toml = bent(&toml, "merge_weight = 0.7", &format!("merge_weight = {weight}"));
        refused(&runtime, &[document(toml)], "manifest-weight", weight);
    }
    let json_weight = |weight: &str| {
        document(bent(&json, "\"merge_weight\":0.7", &format!("\"merge_weight\":{weight}")))
    };
    refused(&runtime, &[json_weight("1e39")], "manifest-weight", "1e39");
    refused(&runtime, &[json_weight("NaN")], "manifest-syntax", "NaN");
    refused(&runtime, &[document(&b"\xff\xfe"[..])], "not-utf8", "no text");
    refused(&runtime, &[document("")], "manifest-missing-field", "nothing");
    // The twins: both documents as they are.
    assert!(runtime.activate_composition(&document(toml), NOW).expect("active").changed);
    assert!(!runtime.activate_composition(&document(json), NOW).expect("active").changed);
}

fn manifests_that_say_what_the_blobs_do_not<S: Medium>(storage: S) {
    let (runtime, stock, manifest) = ready(storage);
    let nothing = Digest::of(b"no blob has this content");
    type Change<'a> = &'a dyn Fn(&mut RawManifest);
    let changes: [(&str, &str, Change<'_>); 12] = [
        ("base", "base-absent", &|raw| {
            raw.base_model_hash = slm_manifest::BaseId::from_digest(nothing);
        }),
        ("tokenizer", "tokenizer-mismatch", &|raw| {
            raw.tokenizer_id = slm_manifest::TokenizerId::from_digest(nothing);
        }),
        ("quantization", "manifest-contradicts", &|raw| raw.quantization[0].tensors += 1),
        ("quantization", "manifest-contradicts", &|raw| {
            raw.quantization.pop();
        }),
        ("targets", "manifest-contradicts", &|raw| {
            raw.adapters[0].targets.pop();
        }),
        ("targets", "manifest-contradicts", &|raw| {
            raw.adapters[1].targets.push("blk.9.attn_q.weight".to_owned());
        }),
        ("rank", "manifest-contradicts", &|raw| raw.adapters[0].rank += 1),
        ("nnz", "manifest-contradicts", &|raw| raw.adapters[1].nnz -= 1),
        ("adapter", "adapter-mismatch", &|raw| {
            raw.adapters[0].adapter_id = slm_manifest::AdapterId::from_digest(nothing);
        }),
        ("file", "adapter-absent", &|raw| raw.adapters[1].file_hash = nothing),
        // The blob of the other adapter, and one that is no adapter at all.
        ("file", "adapter-mismatch", &|raw| {
            raw.adapters[0].file_hash = stock.python.blob;
            let python = raw.adapters[1].clone();
            raw.adapters[0].targets = python.targets;
        }),
        ("plan", "plan-unsupported", &|raw| raw.plan = Some(PlanId::from_digest(nothing))),
    ];
    for (what, expected, change) in changes {
        let mut raw = (*manifest).clone();
        change(&mut raw);
        refused(&runtime, &both(raw), expected, what);
    }
    // Refused with the adapters resident as well: what is in memory excuses nothing.
    runtime.activate_composition(&Reference::Text("pair".to_owned()), NOW).expect("active");
    for (what, expected, change) in changes {
        let mut raw = (*manifest).clone();
        change(&mut raw);
        refused(&runtime, &both(raw), expected, what);
    }
    // What no identity covers may say anything: names, the time, the program's version.
    let mut raw = (*manifest).clone();
    raw.adapters[0].name = name("scripture");
    raw.timestamp_utc = "1999-12-31T23:59:59Z".to_owned();
    raw.runtime.version = "9.9.9".to_owned();
    for twin in both(raw) {
        let activation = runtime.activate_composition(&twin, NOW).expect("active");
        assert_eq!(activation.composition, composition(&tiny(), &PAIR).id());
    }
}

fn blobs_that_are_another<S: Medium>(storage: S) {
    let (runtime, stock, manifest) = ready(storage);
    // An adapter of another base of the same shape, with the same identity.
    let mut bend = Bend::of(TINY_Q8_0);
    bend.tensor("output_norm.weight").data.to_mut()[0] ^= 1;
    let other = open(&bend.to_bytes()).expect("a base");
    runtime.load_base(&other, &name("other"), NOW, false).expect("an import");
    let (config, weights) = common::adapter_files("kjv");
    let there = runtime
        .load_adapter(
            &|shape| common::resolve(config, weights, shape),
            "other",
            &name("there"),
            NOW,
            false,
        )
        .expect("an import");
    assert_eq!(there.adapter, stock.kjv.adapter);
    let mut raw = (*manifest).clone();
    raw.adapters[0].file_hash = there.blob;
    refused(&runtime, &both(raw), "adapter-base-mismatch", "an adapter of another base");
    let mut raw = (*manifest).clone();
    raw.base_model_hash = other.id();
    refused(&runtime, &both(raw), "adapter-base-mismatch", "another base");
    let mut raw = (*manifest).clone();
    raw.adapters[0].file_hash = stock.base.blob;
    refused(&runtime, &both(raw), "adapter-section", "a base in an adapter's place");
    let mut raw = (*manifest).clone();
    raw.adapters[0].file_hash = manifest.digest();
    refused(&runtime, &both(raw), "slm-magic", "a manifest in an adapter's place");
    let mut raw = (*manifest).clone();
    raw.base_model_hash = other.id();
    raw.adapters[0].file_hash = there.blob;
    raw.adapters.truncate(1);
    for twin in both(raw) {
        runtime.activate_composition(&twin, NOW).expect("the twin");
    }
}

/// Offsets at the start, in the middle and at the end of a file.
fn offsets(len: usize) -> [usize; 5] {
    [0, 70, len / 3, len / 2, len - 1]
}

fn blobs_that_were_changed<S: Medium>(storage: S) {
    let (runtime, stock, _) = ready(storage);
    let pair = Reference::Text("pair".to_owned());
    let media = runtime.store().storage();
    let path = blob_path(stock.python.blob);
    let good = media.files()[&path].clone();
    for at in offsets(good.len()) {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        media.put(&path, &bad);
        refused(&runtime, std::slice::from_ref(&pair), "blob-damaged", &format!("byte {at}"));
    }
    // As an adapter that is resident: its file is looked at all the same.
    media.put(&path, &good);
    runtime.activate_composition(&pair, NOW).expect("active");
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    media.put(&path, &bad);
    runtime.deactivate_adapter("python", NOW).expect("a switch that does not need it");
    refused(&runtime, std::slice::from_ref(&pair), "blob-damaged", "a resident adapter");
    // A manifest is a blob like any other.
    media.put(&path, &good);
    let manifest = blob_path(runtime.manifest_by_reference(&pair).expect("a manifest").digest());
    let text = media.files()[&manifest].clone();
    let changed = String::from_utf8(text.clone()).expect("UTF-8").replacen("0.7", "0.8", 1);
    media.put(&manifest, changed.as_bytes());
    refused(
        &runtime,
        std::slice::from_ref(&pair),
        "blob-damaged",
        "a manifest with another weight",
    );
    media.put(&manifest, &text);
    // Importing the adapter again puts a damaged blob right.
    media.put(&path, &bad);
    import(&runtime, "python", "tiny").expect("an import");
    assert!(media.files()[&path] == good);
    runtime.activate_composition(&pair, NOW).expect("the twin");
}

fn a_base_that_was_changed<S: Medium>(storage: S) {
    let (first, stock, _) = ready(storage);
    let again = || runtime(first.store().storage().again());
    let path = blob_path(stock.base.blob);
    let good = first.store().storage().files()[&path].clone();
    let pair = Reference::Text("pair".to_owned());
    let files = |bytes: &[u8]| {
        let mut files = first.store().storage().files();
        files.insert(path.clone(), bytes.to_vec());
        files
    };
    for at in offsets(good.len()) {
        let mut bad = good.clone();
        bad[at] ^= 0x04;
        first.store().storage().put(&path, &bad);
        // A process that has nothing resident.
        let second = again();
        let error = second.activate_composition(&pair, NOW).expect_err("a damaged base");
        assert_eq!(error.code(), "blob-damaged", "byte {at}: {error}");
        assert_eq!(error.class(), ErrorClass::Damaged, "byte {at}: {error}");
        assert_eq!(code(second.active_composition()), "blob-damaged", "byte {at}");
        assert!(second.store().storage().files() == files(&bad), "byte {at}");
        assert_eq!(
            second.status().expect("active").composition,
            composition(&tiny(), &[]).id(),
            "byte {at}"
        );
    }
    first.store().storage().delete(&path);
    assert_eq!(code(again().activate_composition(&pair, NOW)), "not-found");
    first.store().storage().put(&path, &good);
    again().activate_composition(&pair, NOW).expect("the twin");
}

fn a_rollback_is_refused_as_an_activation_is<S: Medium>(storage: S) {
    let (runtime, stock, _) = ready(storage);
    compose(&runtime, "a", &[("kjv", 1.0)]);
    for name in ["a", "bare"] {
        runtime.activate_composition(&Reference::Text(name.to_owned()), NOW).expect("active");
    }
    let path = blob_path(stock.kjv.blob);
    let good = runtime.store().storage().files()[&path].clone();
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    runtime.store().storage().put(&path, &bad);
    let before = state(&runtime);
    assert_eq!(code(runtime.rollback(NOW)), "blob-damaged");
    assert!(state(&runtime) == before);
    runtime.store().storage().put(&path, &good);
    let rolled = runtime.rollback(NOW).expect("the twin");
    assert_eq!(rolled.composition, composition(&tiny(), &[("kjv", 1.0)]).id());
}
