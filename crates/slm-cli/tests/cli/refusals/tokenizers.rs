//! Tokenizers of GGUF files and of folders, and texts and ids that one does not take.

use std::path::Path;

use serde_json::{Value as Json, json};
use slm_format::gguf::{Array, Value};

use super::bend::Bend;
use super::{Imports, VALID};
use crate::common::{Place, golden};
use crate::transcript::Transcript;

/// The texts of the model's vocabulary.
fn texts(good: &Bend<'_>) -> Vec<String> {
    match good.metadata.iter().find(|entry| entry.0 == "tokenizer.ggml.tokens") {
        Some((_, Value::Array(Array::Str(texts)))) => {
            texts.iter().map(|&text| text.to_owned()).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn list(texts: &[String]) -> Value<'_> {
    Value::str_array(texts.iter().map(String::as_str).collect())
}

#[test]
fn of_gguf_files() {
    let place = Place::new();
    let mut imports = Imports::new(&place);
    let plain = Bend::of(VALID);
    let mut texts = texts(&plain);
    // What the file's one merge makes.
    "he".clone_into(&mut texts[255]);
    let good = plain.clone().set("tokenizer.ggml.tokens", list(&texts));
    imports.accepted("good.gguf", &good.to_bytes());
    let changed = |at: usize, text: &str| {
        let mut texts = texts.clone();
        text.clone_into(&mut texts[at]);
        texts
    };
    let (empty, twice) = (changed(270, ""), changed(270, &texts[0]));
    let types = |at: usize, kind: i32| {
        let mut types = vec![1; texts.len()];
        types[at] = kind;
        Value::i32_array(&types)
    };
    for (file, key, value) in [
        ("model-t5.gguf", "tokenizer.ggml.model", Value::Str("t5")),
        ("an-empty-token.gguf", "tokenizer.ggml.tokens", list(&empty)),
        ("a-token-twice.gguf", "tokenizer.ggml.tokens", list(&twice)),
        ("too-few-types.gguf", "tokenizer.ggml.token_type", Value::i32_array(&[1, 1])),
        ("type-7.gguf", "tokenizer.ggml.token_type", types(3, 7)),
        ("a-merge-of-one.gguf", "tokenizer.ggml.merges", Value::str_array(vec!["he"])),
        ("a-merge-twice.gguf", "tokenizer.ggml.merges", Value::str_array(vec!["h e", "h e"])),
        ("a-merge-of-none.gguf", "tokenizer.ggml.merges", Value::str_array(vec!["h xyz"])),
        ("a-merge-to-control.gguf", "tokenizer.ggml.token_type", types(255, 3)),
        ("begins-with-nothing.gguf", "tokenizer.ggml.add_bos_token", Value::Bool(true)),
    ] {
        let mut bent = good.clone().set(key, value);
        if file.starts_with("begins") {
            bent = bent.set("tokenizer.ggml.bos_token_id", Value::U32(u32::MAX));
        }
        imports.refused(file, &bent.to_bytes());
    }
    let mut short = texts.clone();
    short.truncate(271);
    let fewer = good
        .clone()
        .set("tokenizer.ggml.tokens", list(&short))
        .set("tokenizer.ggml.token_type", Value::i32_array(&[1; 271]))
        .set("tokenizer.ggml.merges", Value::str_array(Vec::new()));
    imports.refused("a-token-less.gguf", &fewer.to_bytes());
    insta::assert_snapshot!(imports.finish());
}

#[test]
fn of_the_sentence_piece_kind() {
    let place = Place::new();
    let mut imports = Imports::new(&place);
    let texts: Vec<String> = (0..272).map(|n| format!("t{n}")).collect();
    let scores = |at: usize, score: f32| {
        let mut scores = vec![-1.0; 272];
        scores[at] = score;
        Value::f32_array(&scores)
    };
    let good = Bend::of(VALID)
        .set("tokenizer.ggml.model", Value::Str("llama"))
        .set("tokenizer.ggml.tokens", list(&texts))
        .set("tokenizer.ggml.scores", scores(0, -1.0));
    imports.accepted("good.gguf", &good.to_bytes());
    let nan = good.clone().set("tokenizer.ggml.scores", scores(7, f32::NAN));
    imports.refused("a-score-of-nan.gguf", &nan.to_bytes());
    let mut types = vec![1; 272];
    types[7] = 6;
    let byte = good.clone().set("tokenizer.ggml.token_type", Value::i32_array(&types));
    imports.refused("a-byte-called-t7.gguf", &byte.to_bytes());
    // Its tokens stand for nobody's text.
    imports.transcript.refused(3, &["tokenize", "x", "--model", "good.gguf"]);
    imports.transcript.accepted(&["tokenize", "", "--model", "good.gguf"]);
    insta::assert_snapshot!(imports.finish());
}

#[test]
fn of_folders() {
    let place = Place::new();
    let mut transcript = Transcript::new(&place);
    let good: Json = serde_json::from_slice(
        &std::fs::read(golden("tiny/tokenizer.json")).expect("the tokenizer"),
    )
    .expect("JSON");
    let mut import = |name: &str, document: &Json, is_good: bool| {
        let folder = place.path(name);
        std::fs::create_dir(&folder).expect("the folder is made");
        for part in ["config.json", "tokenizer_config.json", "model.safetensors"] {
            std::fs::copy(golden(&format!("tiny/{part}")), folder.join(part)).expect("a copy");
        }
        std::fs::write(folder.join("tokenizer.json"), document.to_string()).expect("it is written");
        match is_good {
            true => transcript.accepted(&["import", &place.arg(name), "--name", "x"]),
            false => transcript.refused(3, &["import", &place.arg(name), "--name", "y"]),
        }
    };
    import("good", &good, true);
    type Change<'a> = &'a dyn Fn(&mut Json);
    let changes: [(&str, Change<'_>); 6] = [
        ("no-model", &|t| drop(t.as_object_mut().expect("an object").remove("model"))),
        ("word-piece", &|t| t["model"]["type"] = json!("WordPiece")),
        ("another-cut", &|t| t["pre_tokenizer"]["type"] = json!("Metaspace")),
        ("dropout", &|t| t["model"]["dropout"] = json!(0.5)),
        ("an-id-twice", &|t| t["model"]["vocab"]["another"] = json!(0)),
        ("a-hole", &|t| t["model"]["vocab"]["!"] = json!(5000)),
    ];
    for (name, change) in changes {
        let mut bent = good.clone();
        change(&mut bent);
        import(name, &bent, false);
    }
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn ids_and_texts() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    transcript.accepted(&["detokenize", "1023"]);
    transcript.refused(2, &["detokenize", "1024"]);
    transcript.refused(2, &["detokenize", "minus"]);
    transcript.refused(2, &["detokenize"]);
    transcript.refused(2, &["tokenize"]);
    let text = place.write("text", b"caf\xe9");
    transcript.refused(3, &["tokenize", "--file", &text]);
    transcript.refused(4, &["tokenize", "--file", "absent"]);
    assert!(Path::new(&text).exists());
    insta::assert_snapshot!(transcript.finish());
}
