//! Evaluation records: one form, one digest, and everything that can be wrong with one.

use std::collections::BTreeMap;

use slm_format::{Coded, Digest, Limits};
use slm_manifest::evaluation::{
    Environment, EvaluationError, EvaluationRecord, Evaluator, Measure, PromptPolicy,
    RawEvaluationRecord, Sampling,
};
use slm_manifest::signature::{DocumentKind, SecretKey, Signature, SignedDocument};
use slm_manifest::{BaseId, CompositionId, ExecutionId};

fn raw() -> RawEvaluationRecord {
    RawEvaluationRecord {
        format: RawEvaluationRecord::FORMAT.to_owned(),
        composition: CompositionId::from_digest(Digest::of(b"composition")),
        execution: ExecutionId::from_digest(Digest::of(b"execution")),
        base: BaseId::from_digest(Digest::of(b"base")),
        manifest: Some(Digest::of(b"manifest")),
        timestamp_utc: "2026-11-30T00:00:00Z".to_owned(),
        sampling: Some(Sampling {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.0,
            repeat_penalty: 1.0,
            seed: 7,
            max_tokens: 128,
        }),
        prompt_policy: PromptPolicy {
            add_bos: true,
            context: 512,
            chat_template: Some(Digest::of(b"template")),
            system: None,
        },
        router: "fixed".to_owned(),
        evaluator: Evaluator {
            name: "slm".to_owned(),
            version: "0.1.0".to_owned(),
            method: "ppl".to_owned(),
            data: Digest::of(b"data"),
            limit: Some(4096),
        },
        environment: Environment {
            os: "linux".to_owned(),
            arch: "x86_64".to_owned(),
            kernel: "avx2".to_owned(),
            threads: 2,
        },
        results: BTreeMap::from([(
            "perplexity".to_owned(),
            Measure { value: 12.5, low: Some(12.25), high: Some(12.75), count: 4095 },
        )]),
    }
}

fn parse(bytes: &[u8]) -> Result<EvaluationRecord, EvaluationError> {
    EvaluationRecord::parse(bytes, &Limits::STANDARD)
}

#[test]
fn a_record_has_one_form_and_its_digest() {
    let record = EvaluationRecord::check(raw()).expect("a record");
    let bytes = record.to_canonical_json();
    assert_eq!(parse(&bytes).expect("a record"), record);
    assert_eq!(record.digest(), Digest::of(&bytes));
    let text = String::from_utf8(bytes).expect("text");
    assert!(
        text.starts_with("{\"base\":\"sha256:") && text.contains("\"temperature\":0.7"),
        "{text}"
    );
    // Nothing optional is nothing written.
    let bare =
        EvaluationRecord::check(RawEvaluationRecord { manifest: None, sampling: None, ..raw() });
    let bytes = bare.expect("a record").to_canonical_json();
    parse(&bytes).expect("a record");
    let text = String::from_utf8(bytes).expect("text");
    assert!(!text.contains("null") && !text.contains("manifest"), "{text}");
    // The digest is told once more by Python: sha256 of the canonical JSON that json.dumps writes of the same values.
    assert_eq!(record.digest().to_string(), PYTHON_DIGEST);
}

/// hashlib.sha256 of json.dumps(record, sort_keys=True, separators=(",", ":")) in Python 3.11, where the record is that of `raw`.
const PYTHON_DIGEST: &str =
    "sha256:5ef46405cbf7b986cc2619589e024aa196ad9a91a9d868f17496d34e0c7d3316";

#[test]
fn another_spelling_is_refused() {
    let text =
        String::from_utf8(EvaluationRecord::check(raw()).expect("a record").to_canonical_json())
            .expect("text");
    parse(text.as_bytes()).expect("the twin");
    for (from, to, expected) in [
        ("\"threads\":2", "\"threads\": 2", "evaluation-not-canonical"),
        ("\"threads\":2", "\"threads\":2.0", "evaluation-syntax"),
        ("\"value\":12.5", "\"value\":12.50", "evaluation-not-canonical"),
        ("\"router\":\"fixed\"", "\"router\":\"f\\u0069xed\"", "evaluation-not-canonical"),
        ("\"router\":\"fixed\"", "\"router\":\"fixed\",\"router\":\"fixed\"", "evaluation-syntax"),
        (
            "\"results\":{",
            "\"results\":{\"perplexity\":{\"count\":1,\"value\":1},",
            "evaluation-not-canonical",
        ),
        ("\"router\":\"fixed\",", "", "evaluation-syntax"),
        ("\"router\":\"fixed\"", "\"router\":\"fixed\",\"routes\":1", "evaluation-syntax"),
        ("\"value\":12.5", "\"value\":NaN", "evaluation-syntax"),
        ("\"value\":12.5", "\"value\":1e999", "evaluation-syntax"),
        ("\"seed\":7", "\"seed\":7,\"speed\":7", "evaluation-syntax"),
    ] {
        assert!(text.contains(from), "{from}");
        assert_eq!(
            parse(text.replacen(from, to, 1).as_bytes()).unwrap_err().code(),
            expected,
            "{to}"
        );
    }
    assert_eq!(
        parse(format!("{text}\n").as_bytes()).unwrap_err().code(),
        "evaluation-not-canonical"
    );
    let small = Limits { max_header_bytes: text.len() as u64 - 1, ..Limits::STANDARD };
    let error = EvaluationRecord::parse(text.as_bytes(), &small).unwrap_err();
    assert_eq!(error.code(), "limit-exceeded");
}

#[test]
fn every_value_is_checked() {
    let with = |change: &dyn Fn(&mut RawEvaluationRecord)| {
        let mut raw = raw();
        change(&mut raw);
        EvaluationRecord::check(raw)
    };
    let field = |change: &dyn Fn(&mut RawEvaluationRecord)| match with(change) {
        Err(EvaluationError::Value { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    with(&|_| {}).expect("the twin");
    assert_eq!(field(&|r| r.format.push('1')), "format");
    assert_eq!(field(&|r| r.timestamp_utc.push('Z')), "timestamp_utc");
    assert_eq!(field(&|r| r.router.clear()), "router");
    assert_eq!(field(&|r| r.evaluator.method.push('\n')), "evaluator.method");
    assert_eq!(field(&|r| r.environment.os = "x".repeat(257)), "environment.os");
    with(&|r| r.environment.os = "x".repeat(256)).expect("the twin");
    assert_eq!(field(&|r| r.environment.threads = 1 << 53), "environment.threads");
    with(&|r| r.environment.threads = (1 << 53) - 1).expect("the twin");
    assert_eq!(field(&|r| r.sampling.as_mut().expect("sampling").seed = u64::MAX), "sampling.seed");
    assert_eq!(
        field(&|r| r.sampling.as_mut().expect("sampling").min_p = f64::NAN),
        "sampling.min_p"
    );
    assert_eq!(field(&|r| r.results.clear()), "results");
    let measure = |r: &mut RawEvaluationRecord, change: &dyn Fn(&mut Measure)| {
        change(r.results.get_mut("perplexity").expect("a result"));
    };
    assert_eq!(field(&|r| measure(r, &|m| m.value = f64::INFINITY)), "results.perplexity");
    assert_eq!(field(&|r| measure(r, &|m| m.value = 12.0)), "results.perplexity");
    assert_eq!(field(&|r| measure(r, &|m| m.high = Some(12.0))), "results.perplexity");
    assert_eq!(field(&|r| measure(r, &|m| m.count = 1 << 53)), "results.perplexity");
    assert_eq!(with(&|r| r.router.clear()).unwrap_err().code(), "evaluation-value");
}

#[test]
fn a_record_is_signed_as_a_manifest_is() {
    let bytes = EvaluationRecord::check(raw()).expect("a record").to_canonical_json();
    let secret = SecretKey::from_random([4; 40]).expect("a key");
    let document = SignedDocument::evaluation_record(&bytes);
    let signed = secret.sign(&bytes, &document.comment(0)).expect("a comment").to_document();
    let signature = Signature::parse(signed.as_bytes()).expect("a signature");
    let key = secret.public_key();
    key.verify_document(DocumentKind::EvaluationRecord, &bytes, &signature).expect("it holds");
    let error = key.verify_document(DocumentKind::Manifest, &bytes, &signature).unwrap_err();
    assert_eq!(error.code(), "signature-other-document");
}
