//! Every refusal, in both forms, by code and by field. The twin of each is the document without the bend, which is accepted.

#[allow(unreachable_pub, reason = "shared by test files")]
mod common;

use common::{Table, full};
use slm_format::{Coded as _, ErrorClass, Limits};
use slm_manifest::{Manifest, ManifestError, NUMERICS_VERSION, RawManifest};

const D: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";

fn refused_in_both(document: &Table, code: &str, field: &str) {
    let twin = full();
    for (form, text, twin) in
        [("TOML", document.toml(), twin.toml()), ("JSON", document.json(), twin.json())]
    {
        let error = Manifest::parse(text.as_bytes(), &Limits::STANDARD).expect_err(&text);
        assert_eq!(error.code(), code, "{form}: {error}\n{text}");
        assert_eq!(error.class(), ErrorClass::Refused);
        assert!(error.to_string().contains(field), "{form}: {error:?} does not name {field}");
        Manifest::parse(twin.as_bytes(), &Limits::STANDARD).expect("the twin is accepted");
    }
}

#[test]
fn every_field_that_may_not_be_absent() {
    for path in [
        "base_model_hash",
        "tokenizer_id",
        "quantization",
        "runtime",
        "timestamp_utc",
        "adapters",
        "quantization.0.dtype",
        "quantization.1.scheme",
        "quantization.0.block_size",
        "quantization.0.tensors",
        "runtime.name",
        "runtime.version",
        "runtime.numerics",
        "adapters.0.name",
        "adapters.0.adapter_id",
        "adapters.1.file_hash",
        "adapters.1.load_order",
        "adapters.0.merge_weight",
        "adapters.0.targets",
        "adapters.0.rank",
        "adapters.1.nnz",
    ] {
        refused_in_both(&full().remove(path), "manifest-missing-field", &spelled(path));
    }
    for path in [
        "plan",
        "evaluation",
        "provenance",
        "provenance.base_file_hash",
        "provenance.base_source_hash",
        "provenance.tokenizer_file_hash",
    ] {
        let document = full().remove(path);
        let whole = Manifest::parse(full().toml().as_bytes(), &Limits::STANDARD).unwrap();
        for text in [document.toml(), document.json()] {
            assert_ne!(
                Manifest::parse(text.as_bytes(), &Limits::STANDARD).unwrap().digest(),
                whole.digest()
            );
        }
    }
}

#[test]
fn keys_that_are_unknown_or_stand_twice() {
    for table in ["", "quantization.1.", "runtime.", "provenance.", "adapters.1."] {
        for key in ["merge_wieght", "Name", "sha256"] {
            let path = format!("{table}{key}");
            refused_in_both(&full().add(&path, "1"), "manifest-unknown-field", &spelled(&path));
        }
    }
    for path in [
        "base_model_hash",
        "plan",
        "quantization.0.dtype",
        "runtime.name",
        "provenance.base_file_hash",
        "adapters.1.merge_weight",
    ] {
        let key = path.rsplit('.').next().unwrap();
        // Also with the same value, which a reader that keeps the last one would not notice.
        for raw in ["1", "0.5", "\"x\""] {
            refused_in_both(&full().add(path, raw), "manifest-duplicate-key", key);
        }
    }
    let json = full().add("adapters.1.merge_weight", "0.5").json();
    let error = Manifest::from_json(json.as_bytes(), &Limits::STANDARD).unwrap_err();
    assert_eq!(error, ManifestError::DuplicateKey { field: "adapters[1].merge_weight".to_owned() });
    // Escapes do not hide a key from its twin.
    let json = full().json().replacen("\"plan\"", "\"\\u0065valuation\"", 1);
    assert_eq!(
        Manifest::from_json(json.as_bytes(), &Limits::STANDARD).unwrap_err().code(),
        "manifest-duplicate-key"
    );
}

#[test]
fn values_of_another_type() {
    for (path, raw) in [
        ("base_model_hash", "1"),
        ("tokenizer_id", "true"),
        ("plan", "[]"),
        ("evaluation", "1.5"),
        ("timestamp_utc", "20260721"),
        ("quantization", "\"Q4_1\""),
        ("quantization", "[1]"),
        ("runtime", "\"slm\""),
        ("provenance", "[]"),
        ("adapters", "1"),
        ("adapters", "[\"a\"]"),
        ("runtime.numerics", "1.0"),
        ("adapters.0.name", "1"),
        ("adapters.0.load_order", "1.0"),
        ("adapters.0.load_order", "\"1\""),
        ("adapters.0.merge_weight", "\"0.7\""),
        ("adapters.0.merge_weight", "[0.7]"),
        ("adapters.0.merge_weight", "false"),
        ("adapters.0.targets", "\"blk.0.attn_q.weight\""),
        ("adapters.0.targets", "[1]"),
        ("adapters.0.rank", "8.0"),
        ("adapters.0.nnz", "true"),
    ] {
        refused_in_both(&full().set(path, raw), "manifest-type", &spelled(path));
    }
    for path in ["adapters.0.merge_weight", "plan", "provenance", "adapters"] {
        let json = full().set(path, "null").json();
        let error = Manifest::from_json(json.as_bytes(), &Limits::STANDARD).unwrap_err();
        assert_eq!(error.code(), "manifest-type", "{error}");
        assert!(
            error.to_string().contains(&spelled(path)) && error.to_string().contains("null"),
            "{error}"
        );
    }
    let toml = full().set("timestamp_utc", "2026-07-21T00:00:00Z").toml();
    let error = Manifest::from_toml(&toml, &Limits::STANDARD).unwrap_err();
    assert_eq!(error.code(), "manifest-type");
    for document in ["[]", "1", "null", "\"x\""] {
        assert_eq!(
            Manifest::from_json(document.as_bytes(), &Limits::STANDARD).unwrap_err().code(),
            "manifest-type"
        );
    }
}

#[test]
fn digests_names_and_times_are_spelled_one_way() {
    let upper = format!("sha256:{}", "A".repeat(64));
    for path in [
        "base_model_hash",
        "tokenizer_id",
        "plan",
        "evaluation",
        "provenance.base_file_hash",
        "provenance.base_source_hash",
        "provenance.tokenizer_file_hash",
        "adapters.0.adapter_id",
        "adapters.1.file_hash",
    ] {
        for bad in ["", &D[7..], &D[..70], &upper, &D.replace("sha256", "sha512"), &format!("{D} ")]
        {
            refused_in_both(
                &full().set(path, &format!("\"{bad}\"")),
                "digest-spelling",
                &spelled(path),
            );
        }
    }
    for bad in ["", "..", "a/b", ".a", "a b", "\\u0000", "é"] {
        refused_in_both(
            &full().set("adapters.0.name", &format!("\"{bad}\"")),
            "bad-name",
            "adapters[0].name",
        );
    }
    for bad in [
        "",
        "2026-07-21",
        "2026-02-29T00:00:00Z",
        "2026-07-21T00:00:00+00:00",
        "2026-07-21t00:00:00z",
    ] {
        refused_in_both(
            &full().set("timestamp_utc", &format!("\"{bad}\"")),
            "manifest-timestamp",
            "timestamp_utc",
        );
    }
}

#[test]
fn weights_that_an_f32_cannot_hold() {
    for raw in ["1e39", "-1e39", "3.4028236e38", "1e300", "1e-46", "-1e-300"] {
        refused_in_both(
            &full().set("adapters.1.merge_weight", raw),
            "manifest-weight",
            "adapters[1].merge_weight",
        );
    }
    for raw in ["nan", "-nan", "inf", "-inf"] {
        let toml = full().set("adapters.1.merge_weight", raw).toml();
        let error = Manifest::from_toml(&toml, &Limits::STANDARD).unwrap_err();
        assert_eq!(error.code(), "manifest-weight", "{raw}");
        assert!(error.to_string().contains("adapters[1].merge_weight"), "{error}");
    }
    for raw in ["1e999", "-1e999", "0x1p3", "1e", ".5", "+"] {
        refused_in_both(&full().set("adapters.1.merge_weight", raw), "manifest-syntax", "line");
    }
    for raw in ["NaN", "Infinity", "-Infinity", "nan", "+1"] {
        let json = full().set("adapters.1.merge_weight", raw).json();
        assert_eq!(
            Manifest::from_json(json.as_bytes(), &Limits::STANDARD).unwrap_err().code(),
            "manifest-syntax",
            "{raw}"
        );
    }
    // The twins at the borders.
    for (raw, weight) in [
        ("1", 1.0),
        ("0", 0.0),
        ("-2", -2.0),
        ("3.4028235e38", f32::MAX),
        ("1e-45", f32::from_bits(1)),
        ("-0.25", -0.25),
        ("0.699999988", 0.7),
    ] {
        let document = full().set("adapters.1.merge_weight", raw);
        for text in [document.toml(), document.json()] {
            let manifest = Manifest::parse(text.as_bytes(), &Limits::STANDARD).unwrap();
            assert_eq!(manifest.adapters[1].merge_weight.to_bits(), f32::to_bits(weight), "{raw}");
        }
    }
    // A negative zero is zero: one weight, one identity.
    let zero = Manifest::parse(
        full().set("adapters.1.merge_weight", "0.0").toml().as_bytes(),
        &Limits::STANDARD,
    )
    .unwrap();
    for text in [
        full().set("adapters.1.merge_weight", "-0.0").toml(),
        full().set("adapters.1.merge_weight", "-0").json(),
    ] {
        let manifest = Manifest::parse(text.as_bytes(), &Limits::STANDARD).unwrap();
        assert_eq!(manifest.adapters[1].merge_weight.to_bits(), 0);
        assert_eq!(
            (manifest.digest(), manifest.composition_id()),
            (zero.digest(), zero.composition_id())
        );
    }
}

#[test]
fn stacks_that_are_no_stack() {
    for (path, raw, field) in [
        ("adapters.0.load_order", "0", "adapters[0].load_order"),
        ("adapters.0.load_order", "2", "adapters[0].load_order"),
        ("adapters.1.load_order", "3", "adapters[1].load_order"),
        ("adapters.1.load_order", "1", "adapters[1].load_order"),
    ] {
        refused_in_both(&full().set(path, raw), "manifest-load-order", field);
    }
    let same_id = format!("\"sha256:{}\"", "3".repeat(64));
    refused_in_both(
        &full().set("adapters.1.adapter_id", &same_id),
        "duplicate-adapter",
        "adapters[1].adapter_id",
    );
    refused_in_both(
        &full().set("adapters.1.name", "\"medical-domain\""),
        "manifest-duplicate-name",
        "adapters[1].name",
    );
    for bad in [
        "[]",
        "[\"\"]",
        "[\"a b\"]",
        "[\"../x\"]",
        "[\"blk.0.attn_q.weight\", \"blk.0.attn_v.weight\", \"blk.0.attn_q.weight\"]",
    ] {
        refused_in_both(
            &full().set("adapters.0.targets", bad),
            "manifest-targets",
            "adapters[0].targets",
        );
    }
}

#[test]
fn counts_out_of_range() {
    for (path, raw) in [
        ("adapters.0.rank", "-1"),
        ("adapters.0.rank", "4294967296"),
        ("adapters.0.nnz", "-1"),
        ("adapters.0.nnz", "9007199254740992"),
        ("adapters.0.load_order", "-1"),
        ("quantization.0.block_size", "4294967296"),
        ("quantization.0.tensors", "-1"),
        ("quantization.0.tensors", "0"),
    ] {
        refused_in_both(&full().set(path, raw), "manifest-range", &spelled(path));
    }
    for (path, raw) in [
        ("adapters.0.rank", "4294967295"),
        ("adapters.0.nnz", "9007199254740991"),
        ("adapters.0.nnz", "0"),
    ] {
        let document = full().set(path, raw);
        let [toml, json] = [document.toml(), document.json()]
            .map(|text| Manifest::parse(text.as_bytes(), &Limits::STANDARD).unwrap());
        assert_eq!(toml, json);
        assert!(String::from_utf8(json.to_canonical_json()).unwrap().contains(raw));
    }
}

#[test]
fn quantization_must_agree_with_its_scheme() {
    for (path, raw) in [
        ("quantization.0.scheme", "\"Q4_7\""),
        ("quantization.0.scheme", "\"q4_1\""),
        ("quantization.0.dtype", "\"int8\""),
        ("quantization.0.block_size", "64"),
    ] {
        refused_in_both(&full().set(path, raw), "manifest-quantization", &spelled(path));
    }
    refused_in_both(&full().set("quantization", "[]"), "manifest-quantization", "quantization");
    let twice = full()
        .set("quantization.1.scheme", "\"Q4_1\"")
        .set("quantization.1.dtype", "\"int4\"")
        .set("quantization.1.block_size", "32");
    refused_in_both(&twice, "manifest-quantization", "quantization[1].scheme");
}

#[test]
fn another_runtime_or_another_arithmetic() {
    refused_in_both(
        &full().set("runtime.name", "\"TinyRustLM\""),
        "manifest-runtime",
        "runtime.name",
    );
    for bad in ["", "v1", "1 0", "1.0\\n"] {
        refused_in_both(
            &full().set("runtime.version", &format!("\"{bad}\"")),
            "manifest-runtime",
            "runtime.version",
        );
    }
    for bad in ["0", "2", "4294967296"] {
        refused_in_both(
            &full().set("runtime.numerics", bad),
            "numerics-version",
            "runtime.numerics",
        );
    }
    refused_in_both(&full().set("runtime.numerics", "-1"), "manifest-range", "runtime.numerics");
    // Another version may well have other fields: the version is what is reported.
    let newer = full().set("runtime.numerics", "2").remove("timestamp_utc").add("signatures", "[]");
    refused_in_both(&newer, "numerics-version", "runtime.numerics");
    let twin = full().set("runtime.version", "\"1.0.0-rc.1+build5\"");
    Manifest::from_json(twin.json().as_bytes(), &Limits::STANDARD).unwrap();
    assert_eq!(NUMERICS_VERSION, 1);
}

#[test]
fn text_that_is_neither() {
    let (toml, json) = (full().toml(), full().json());
    for bad in [
        format!("{json} x"),
        format!("{json}{json}"),
        json[..json.len() - 1].to_owned(),
        format!("{{{json}"),
        "{".repeat(100_000),
    ] {
        assert_eq!(
            Manifest::parse(bad.as_bytes(), &Limits::STANDARD).unwrap_err().code(),
            "manifest-syntax"
        );
    }
    for bad in [
        format!("{toml}\nx"),
        format!("{toml}\n[a"),
        format!("a = {}", "[".repeat(100_000)),
        "\u{feff}{}".to_owned(),
    ] {
        assert_eq!(
            Manifest::parse(bad.as_bytes(), &Limits::STANDARD).unwrap_err().code(),
            "manifest-syntax"
        );
    }
    let error = Manifest::from_toml(&toml.replacen("scheme = ", "scheme ", 1), &Limits::STANDARD)
        .unwrap_err();
    let ManifestError::Syntax { line, .. } = error else { panic!("{error:?}") };
    assert_eq!(toml.lines().nth(line as usize - 1), Some("scheme = \"Q4_1\""));
    assert_eq!(
        Manifest::parse(b"", &Limits::STANDARD).unwrap_err().code(),
        "manifest-missing-field"
    );

    let mut bytes = json.clone().into_bytes();
    bytes.push(0xff);
    let error = Manifest::parse(&bytes, &Limits::STANDARD).unwrap_err();
    assert_eq!(error, ManifestError::NotUtf8 { at: json.len() as u64 });
    assert_eq!(error.code(), "not-utf8");

    let limits = Limits { max_header_bytes: json.len() as u64, ..Limits::STANDARD };
    Manifest::from_json(json.as_bytes(), &limits).unwrap();
    let error = Manifest::from_json(format!("{json} ").as_bytes(), &limits).unwrap_err();
    assert_eq!(error.code(), "limit-exceeded");
    assert_eq!(
        Manifest::from_toml(&" ".repeat(json.len() + 1), &limits).unwrap_err().code(),
        "limit-exceeded"
    );
}

#[test]
fn a_caller_is_held_to_the_same_rules() {
    let raw: RawManifest =
        (*Manifest::from_toml(&full().toml(), &Limits::STANDARD).unwrap()).clone();
    type Bend = fn(&mut RawManifest);
    let bends: [(&str, Bend); 9] = [
        ("manifest-weight", |raw| raw.adapters[0].merge_weight = f32::NAN),
        ("manifest-weight", |raw| raw.adapters[1].merge_weight = f32::INFINITY),
        ("manifest-load-order", |raw| raw.adapters.swap(0, 1)),
        ("duplicate-adapter", |raw| raw.adapters[1].adapter_id = raw.adapters[0].adapter_id),
        ("manifest-range", |raw| raw.adapters[0].nnz = 1 << 53),
        ("manifest-targets", |raw| raw.adapters[0].targets.clear()),
        ("manifest-timestamp", |raw| raw.timestamp_utc.clear()),
        ("numerics-version", |raw| raw.runtime.numerics = 2),
        ("manifest-quantization", |raw| raw.quantization.clear()),
    ];
    for (code, bend) in bends {
        let mut bent = raw.clone();
        bend(&mut bent);
        assert_eq!(Manifest::check(bent).unwrap_err().code(), code);
    }
    Manifest::check(raw).unwrap();
}

/// `adapters.1.rank` as messages spell it, `adapters[1].rank`.
fn spelled(path: &str) -> String {
    let mut text = String::new();
    for part in path.split('.') {
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            text.push_str(&format!("[{part}]"));
        } else {
            text.push_str(if text.is_empty() { "" } else { "." });
            text.push_str(part);
        }
    }
    text
}
