//! One content, one digest: whatever form, order or spelling it came in.

#[allow(unreachable_pub, reason = "shared by test files")]
mod common;

use common::{Table, Value, full};
use proptest::prelude::*;
use slm_format::{Digest, Encoding, Limits};
use slm_manifest::{
    AdapterEntry, AdapterId, BaseId, MAX_COUNT, Manifest, PlanId, Provenance, QuantizationEntry,
    RawManifest, RuntimeTag, TokenizerId,
};

/// Written by Python's json.dumps(sort_keys=True, separators=(',', ':')).
const CANONICAL: &str = concat!(
    r#"{"adapters":[{"adapter_id":"sha256:3333333333333333333333333333333333333333333333333333333333333333","#,
    r#""file_hash":"sha256:4444444444444444444444444444444444444444444444444444444444444444","load_order":1,"merge_weight":0.7,"#,
    r#""name":"medical-domain","nnz":9216,"rank":8,"targets":["blk.0.attn_q.weight","blk.0.attn_v.weight"]},"#,
    r#"{"adapter_id":"sha256:5555555555555555555555555555555555555555555555555555555555555555","#,
    r#""file_hash":"sha256:7777777777777777777777777777777777777777777777777777777777777777","load_order":2,"merge_weight":0.5,"#,
    r#""name":"safety-filter","nnz":4096,"rank":4,"targets":["blk.1.ffn_up.weight"]}],"#,
    r#""base_model_hash":"sha256:1111111111111111111111111111111111111111111111111111111111111111","#,
    r#""quantization":[{"block_size":1,"dtype":"f32","scheme":"F32","tensors":61},"#,
    r#"{"block_size":32,"dtype":"int4","scheme":"Q4_1","tensors":211}],"#,
    r#""runtime":{"name":"slm","numerics":1,"version":"0.1.0"},"timestamp_utc":"2026-07-21T00:00:00Z","#,
    r#""tokenizer_id":"sha256:2222222222222222222222222222222222222222222222222222222222222222"}"#
);

#[test]
fn the_digest_is_what_other_software_computes() {
    let manifest = Manifest::from_json(CANONICAL.as_bytes(), &Limits::STANDARD).unwrap();
    assert_eq!(core::str::from_utf8(&manifest.to_canonical_json()).unwrap(), CANONICAL);
    // By Python's hashlib over the text above.
    assert_eq!(
        manifest.digest().to_string(),
        "sha256:4a51bb3b6aaf6304ca0561844aee0c77650fb2d73cb5758f0307f6656a9418db"
    );
    // By the same script as the golden ids: this base, tokenizer and stack.
    assert_eq!(
        manifest.composition_id().to_string(),
        "sha256:ce4071255a9161636ce45ca9ba2bd6dd2ff48461074f906557defb1bfa4e707b"
    );
    let toml = manifest.to_toml();
    assert!(toml.contains("merge_weight = 0.7\n"), "{toml}");
    assert_eq!(Manifest::from_toml(&toml, &Limits::STANDARD).unwrap(), manifest);
}

#[test]
fn order_and_white_space_do_not_count_where_they_mean_nothing() {
    let expected = Manifest::from_toml(&full().toml(), &Limits::STANDARD).unwrap();
    let reversed = reverse(full());
    for text in
        [full().json(), reversed.toml(), reversed.json(), format!("\n\t {}\n", full().json())]
    {
        let manifest = Manifest::parse(text.as_bytes(), &Limits::STANDARD).unwrap();
        assert_eq!(manifest.digest(), expected.digest());
    }
    assert_eq!(expected.quantization[0].scheme, "F32");
    assert_eq!(expected.adapters[0].targets, ["blk.0.attn_q.weight", "blk.0.attn_v.weight"]);
    // The order of adapters means something.
    let mut swapped = (*expected).clone();
    swapped.adapters.swap(0, 1);
    (swapped.adapters[0].load_order, swapped.adapters[1].load_order) = (1, 2);
    let swapped = Manifest::check(swapped).unwrap();
    assert_ne!(swapped.composition_id(), expected.composition_id());
    assert_ne!(swapped.digest(), expected.digest());
}

#[test]
fn names_and_times_are_in_the_digest_and_outside_the_composition() {
    let expected = Manifest::from_toml(&full().toml(), &Limits::STANDARD).unwrap();
    for (path, raw, in_composition) in [
        ("adapters.0.name", "\"other\"", false),
        ("timestamp_utc", "\"2027-01-01T00:00:00Z\"", false),
        ("runtime.version", "\"9.9.9\"", false),
        ("adapters.0.rank", "9", false),
        ("adapters.0.merge_weight", "0.71", true),
    ] {
        let bent = Manifest::from_toml(&full().set(path, raw).toml(), &Limits::STANDARD).unwrap();
        assert_ne!(bent.digest(), expected.digest(), "{path}");
        assert_eq!(bent.composition_id() != expected.composition_id(), in_composition, "{path}");
    }
}

#[test]
fn absent_and_empty_are_one() {
    let without = full().remove("adapters").add("adapters", "[]").remove("provenance");
    let mut empty = without.clone();
    empty.0.push(("provenance".to_owned(), Value::Table(Table::default())));
    let expected = Manifest::from_toml(&without.toml(), &Limits::STANDARD).unwrap();
    for text in [without.json(), empty.toml(), empty.json(), expected.to_toml()] {
        assert_eq!(
            Manifest::parse(text.as_bytes(), &Limits::STANDARD).unwrap().digest(),
            expected.digest()
        );
    }
    let json = String::from_utf8(expected.to_canonical_json()).unwrap();
    assert!(json.contains("\"adapters\":[]") && !json.contains("provenance"), "{json}");
}

/// RFC 8785, sections 3.2.2 to 3.2.4: the sample and its canonical form, through the crate that writes ours.
#[test]
fn the_canonical_form_is_that_of_rfc_8785() {
    let sample = r#"{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"#;
    let expected = "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\
                    \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}";
    let value: serde_json::Value = serde_json::from_str(sample).unwrap();
    assert_eq!(serde_json_canonicalizer::to_string(&value).unwrap(), expected);
}

#[test]
fn weights_are_written_as_short_as_they_can_be() {
    // The right column follows ECMAScript's Number::toString, as RFC 8785 asks.
    for (weight, written) in [
        (0.7f32, "0.7"),
        (0.1 + 0.2, "0.3"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (-0.0, "0"),
        (4.5, "4.5"),
        (2e-3, "0.002"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1e-27, "1e-27"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1e30, "1e+30"),
        (16_777_216.0, "16777216"),
        (f32::MAX, "3.4028235e+38"),
        (f32::MIN_POSITIVE, "1.1754944e-38"),
        (f32::from_bits(1), "1e-45"),
        (core::f32::consts::PI, "3.1415927"),
    ] {
        let manifest = with_weight(weight);
        let json = String::from_utf8(manifest.to_canonical_json()).unwrap();
        assert!(json.contains(&format!("\"merge_weight\":{written},")), "{weight:e}: {json}");
    }
}

#[test]
fn every_weight_comes_back() {
    // A prime stride over all finite bit patterns, both signs.
    for bits in (0..=f32::MAX.to_bits()).step_by(400_009).chain([1, f32::MAX.to_bits()]) {
        for weight in [f32::from_bits(bits), -f32::from_bits(bits)] {
            let manifest = with_weight(weight);
            for text in [manifest.to_canonical_json(), manifest.to_toml().into_bytes()] {
                let back = Manifest::parse(&text, &Limits::STANDARD).unwrap();
                assert_eq!(
                    back.adapters[0].merge_weight.to_bits(),
                    manifest.adapters[0].merge_weight.to_bits(),
                    "{weight:e}"
                );
            }
        }
    }
}

fn with_weight(weight: f32) -> Manifest {
    let mut raw = (*Manifest::from_json(CANONICAL.as_bytes(), &Limits::STANDARD).unwrap()).clone();
    raw.adapters[0].merge_weight = weight;
    Manifest::check(raw).unwrap()
}

fn reverse(mut table: Table) -> Table {
    table.0.reverse();
    for (key, value) in &mut table.0 {
        match value {
            Value::Raw(_) => {}
            Value::Table(inner) => *inner = reverse(core::mem::take(inner)),
            Value::Tables(tables) => {
                tables.iter_mut().for_each(|inner| *inner = reverse(core::mem::take(inner)));
                if key == "quantization" {
                    tables.reverse();
                }
            }
        }
    }
    table
}

prop_compose! {
    fn digests()(bytes in any::<[u8; 32]>()) -> Digest {
        Digest::from_bytes(bytes)
    }
}

prop_compose! {
    fn adapters()(entries in prop::collection::vec((
        "[A-Za-z0-9_@+-][A-Za-z0-9._@+-]{0,30}",
        (digests(), digests()),
        prop_oneof![Just(1.0f32), any::<f32>().prop_filter("finite", |weight| weight.is_finite())],
        prop::collection::btree_set("blk\\.[0-9]{1,2}\\.(attn_q|attn_v|ffn_up)\\.weight", 1..5),
        (any::<u32>(), 0..=MAX_COUNT),
    ), 0..6)) -> Vec<AdapterEntry> {
        (1u32..).zip(entries).map(|(load_order, (name, (id, file_hash), merge_weight, targets, (rank, nnz)))| AdapterEntry {
            // Names and digests are random; the number makes the names differ for certain.
            name: format!("{name}.{load_order}").parse().unwrap(),
            adapter_id: AdapterId::from_digest(id),
            file_hash,
            load_order,
            merge_weight,
            targets: targets.into_iter().rev().collect(),
            rank,
            nnz,
        }).collect()
    }
}

prop_compose! {
    fn manifests()(
        (base, tokenizer) in (digests(), digests()),
        schemes in prop::sample::subsequence(Encoding::all().collect::<Vec<_>>(), 1..6),
        tensors in 1..=u32::MAX,
        seconds in 0..60u32,
        plan in prop::option::of(digests()),
        adapters in adapters(),
        provenance in (prop::option::of(digests()), prop::option::of(digests()), prop::option::of(digests())),
        evaluation in prop::option::of(digests()),
    ) -> Manifest {
        Manifest::check(RawManifest {
            base_model_hash: BaseId::from_digest(base),
            tokenizer_id: TokenizerId::from_digest(tokenizer),
            quantization: schemes.into_iter().map(|scheme| QuantizationEntry::of(scheme, tensors)).collect(),
            runtime: RuntimeTag::current(),
            timestamp_utc: format!("2026-07-21T00:00:{seconds:02}Z"),
            plan: plan.map(PlanId::from_digest),
            adapters,
            provenance: Provenance {
                base_file_hash: provenance.0,
                base_source_hash: provenance.1,
                tokenizer_file_hash: provenance.2,
            },
            evaluation,
        }).unwrap()
    }
}

proptest! {
    #[test]
    fn toml_and_json_are_one_manifest(manifest in manifests()) {
        let (toml, json) = (manifest.to_toml(), manifest.to_canonical_json());
        let from_toml = Manifest::from_toml(&toml, &Limits::STANDARD).unwrap();
        let from_json = Manifest::from_json(&json, &Limits::STANDARD).unwrap();
        prop_assert_eq!(&from_toml, &manifest);
        prop_assert_eq!(&from_json, &manifest);
        prop_assert_eq!(from_toml.digest(), from_json.digest());
        prop_assert_eq!(from_toml.digest(), Digest::of(&json));
        prop_assert_eq!(from_toml.composition_id(), manifest.composition_id());
        prop_assert_eq!(Manifest::parse(toml.as_bytes(), &Limits::STANDARD).unwrap().to_toml(), toml);
        prop_assert_eq!(Manifest::parse(&json, &Limits::STANDARD).unwrap().to_canonical_json(), json);
    }

    #[test]
    fn no_text_panics(text in "\\PC*", cut in any::<prop::sample::Index>(), junk in any::<u8>()) {
        let _ = Manifest::parse(text.as_bytes(), &Limits::STANDARD);
        for whole in [full().toml(), full().json()] {
            let mut bytes = whole.into_bytes();
            let at = cut.index(bytes.len());
            bytes[at] = junk;
            // Whatever is accepted has a canonical form that is accepted with the same digest.
            if let Ok(manifest) = Manifest::parse(&bytes, &Limits::STANDARD) {
                let again = Manifest::parse(&manifest.to_canonical_json(), &Limits::STANDARD).unwrap();
                prop_assert_eq!(again.digest(), manifest.digest());
            }
            bytes.truncate(at);
            prop_assert!(at > 0 || Manifest::parse(&bytes, &Limits::STANDARD).is_err());
        }
    }
}
