//! Manifests that are well-formed and say what cannot be, or what is not so here.

use slm_format::Digest;

use crate::common::Place;
use crate::transcript::Transcript;

const ABSENT: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";

/// The line of the document that begins so.
fn line<'a>(document: &'a str, key: &str) -> &'a str {
    let found = document.lines().find(|line| line.starts_with(key));
    found.unwrap_or_else(|| panic!("{key} in {document}"))
}

#[test]
fn what_a_manifest_says() {
    let place = Place::with_active();
    place.json([
        "compose",
        "told",
        "--base",
        "tiny",
        "--adapter",
        "kjv",
        "--adapter",
        "python",
        "--out",
        "good.toml",
    ]);
    let good = std::fs::read_to_string(place.path("good.toml")).expect("the manifest");
    let mut transcript = Transcript::new(&place);
    transcript.accepted(&["activate", "good.toml"]);
    let base = line(&good, "base_model_hash");
    let kjv_id = line(&good, "adapter_id");
    let targets = line(&good, "targets");
    let cases: [(&str, String, String); 14] = [
        ("a-key-twice", base.to_owned(), format!("{base}\n{base}")),
        ("a-name-twice", "name = \"python\"".to_owned(), "name = \"kjv\"".to_owned()),
        ("another-block", "block_size = 32".to_owned(), "block_size = 64".to_owned()),
        ("another-runtime", "name = \"slm\"".to_owned(), "name = \"llama.cpp\"".to_owned()),
        ("no-targets", targets.to_owned(), "targets = []".to_owned()),
        ("other-numerics", "numerics = 1".to_owned(), "numerics = 2".to_owned()),
        ("short-digest", base.to_owned(), "base_model_hash = \"sha256:11\"".to_owned()),
        ("absent-base", base.to_owned(), format!("base_model_hash = \"{ABSENT}\"")),
        (
            "absent-adapter",
            line(&good, "file_hash").to_owned(),
            format!("file_hash = \"{ABSENT}\""),
        ),
        ("another-adapter", kjv_id.to_owned(), format!("adapter_id = \"{ABSENT}\"")),
        (
            "another-tokenizer",
            line(&good, "tokenizer_id").to_owned(),
            format!("tokenizer_id = \"{ABSENT}\""),
        ),
        ("another-rank", "rank = 8".to_owned(), "rank = 9".to_owned()),
        ("weight-as-text", "merge_weight = 1.0".to_owned(), "merge_weight = \"1\"".to_owned()),
        ("a-plan", base.to_owned(), format!("{base}\nplan = \"{ABSENT}\"")),
    ];
    for (name, from, to) in cases {
        let bent = good.replacen(&from, &to, 1);
        assert_ne!(bent, good, "{name}: {from}");
        place.write(&format!("{name}.toml"), bent);
        transcript.refused(3, &["activate", &format!("{name}.toml")]);
    }
    place.write("no-text.toml", b"\xff\xfe");
    transcript.refused(3, &["activate", "no-text.toml"]);
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn what_a_measurement_is_about() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    // The record that a manifest names must be one.
    place.json(["compose", "told", "--base", "tiny", "--adapter", "kjv", "--out", "good.toml"]);
    let good = std::fs::read_to_string(place.path("good.toml")).expect("the manifest");
    let named = format!("evaluation = \"{}\"\n{good}", Digest::of(b"nothing"));
    place.write("named.toml", named);
    transcript.accepted(&["activate", "good.toml"]);
    let text = place.write("text.txt", "one");
    transcript.refused(3, &["eval", "ppl", &text]);
    transcript.refused(3, &["eval", "ppl", &text, "--ctx", "1"]);
    transcript.refused(4, &["eval", "ppl", "absent.txt"]);
    let model = crate::common::golden("tiny-q8_0.gguf");
    transcript.refused(2, &["eval", "ppl", &text, "--record", "--model", &model]);
    insta::assert_snapshot!(transcript.finish());
}
