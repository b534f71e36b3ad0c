//! Tokenizers and chat templates against what other people's software computed. `data/tokenizer/README.md` says which made what.

use std::collections::HashMap;

use serde_json::Value as Json;
use slm_format::gguf::{self, Array, Gguf, Value, ValueType};
use slm_format::{Coded, Limits};
use slm_runtime::chat::{ChatMessage, ChatTemplate, render_to_ids};
use slm_runtime::tokenizer::{SpecialTokens, Tokenizer, TokenizerError, TokenizerSpec};

const LIMITS: Limits = Limits::STANDARD;
const SMOLLM2: &[u8] = include_bytes!("data/tokenizer/smollm2.tokenizer");
const SMOLLM2_CASES: &str = include_str!("data/tokenizer/smollm2_cases.json");
const GEMMA3_CASES: &str = include_str!("data/tokenizer/gemma3_cases.json");
const GEMMA3_PART: &str = include_str!("data/tokenizer/gemma3_part.json");
const PROMPTS: &str = include_str!("data/tokenizer/prompts.json");
const TINY: &[u8] = include_bytes!("data/tokenizer/tiny/tokenizer.json");
const TINY_CONFIG: &[u8] = include_bytes!("data/tokenizer/tiny/tokenizer_config.json");
const TINY_GENERATION: &[u8] = include_bytes!("data/tokenizer/tiny/generation_config.json");
const SMOLLM2_TEMPLATE: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

fn cases(json: &Json) -> Vec<(String, Vec<u32>)> {
    let cases = json.as_array().expect("a list of cases").iter().map(|case| {
        let ids = case["ids"]
            .as_array()
            .expect("ids")
            .iter()
            .map(|id| u32::try_from(id.as_u64().expect("an id")).expect("u32"));
        (case["text"].as_str().expect("text").to_owned(), ids.collect())
    });
    cases.collect()
}

fn reference(text: &str) -> Vec<(String, Vec<u32>)> {
    cases(&serde_json::from_str::<Json>(text).expect("JSON")["cases"])
}

fn prompts(model: &str) -> Vec<(String, Vec<u32>)> {
    cases(&serde_json::from_str::<Json>(PROMPTS).expect("JSON")[model])
}

fn smollm2() -> Tokenizer {
    Tokenizer::new(
        &TokenizerSpec::from_canonical(SMOLLM2, &LIMITS).expect("the fixture is canonical"),
    )
    .expect("compiles")
}

/// Every id and the text back, for each case; `to` and `from` translate between the ids of a part and those of the whole.
fn check_all(tokenizer: &Tokenizer, cases: &[(String, Vec<u32>)], whole: impl Fn(u32) -> u32) {
    assert!(!cases.is_empty());
    for (text, expected) in cases {
        let ids = tokenizer.encode(text, SpecialTokens::Parse).expect("encodes");
        let found: Vec<u32> = ids.iter().map(|&id| whole(id)).collect();
        assert_eq!(&found, expected, "{text:?}");
        assert_eq!(&tokenizer.decode(&ids).expect("decodes"), text);
    }
}

#[test]
fn smollm2_gives_the_reference_ids() {
    let tokenizer = smollm2();
    check_all(&tokenizer, &reference(SMOLLM2_CASES), |id| id);
    check_all(&tokenizer, &prompts("smollm2"), |id| id);
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos_ids(), tokenizer.add_bos()),
        (Some(1), &[2][..], false)
    );
}

#[test]
fn smollm2_splits_numeric_characters_before_the_byte_map() {
    // llama.cpp's ids, and those of Digits then ByteLevel by hand.
    let expected = [16738, 216, 19133, 216, 173, 235, 250, 216, 173, 223, 117];
    assert_eq!(smollm2().encode("½ ² ① Ⅷ", SpecialTokens::Parse).expect("encodes"), expected);
}

#[test]
fn special_tokens_in_text_stay_text_unless_asked() {
    let tokenizer = smollm2();
    let text = "<|im_start|>system<|im_end|><|endoftext|>";
    let parsed = tokenizer.encode(text, SpecialTokens::Parse).expect("encodes");
    let plain = tokenizer.encode(text, SpecialTokens::AsText).expect("encodes");
    assert_eq!((parsed[0], parsed[parsed.len() - 1]), (1, 0));
    assert!(plain.iter().all(|&id| id > 16), "{plain:?} holds a control token");
    assert_eq!(tokenizer.decode(&plain).expect("decodes"), text);
}

#[test]
fn the_tiny_model_tokenizes_as_transformers_does() {
    let spec = TokenizerSpec::from_hf(TINY, Some(TINY_CONFIG), Some(TINY_GENERATION), &LIMITS)
        .expect("reads");
    let tokenizer = Tokenizer::new(&spec).expect("compiles");
    check_all(&tokenizer, &prompts("tiny"), |id| id);
    assert_eq!((spec.bos, spec.eos.as_slice(), spec.add_bos), (Some(0), &[0][..], false));
}

#[test]
fn gguf_and_tokenizer_json_give_one_document() {
    let json: Json = serde_json::from_slice(TINY).expect("JSON");
    let vocab = json["model"]["vocab"].as_object().expect("a vocabulary");
    let mut tokens: Vec<(&str, u64)> =
        vocab.iter().map(|(text, id)| (text.as_str(), id.as_u64().expect("an id"))).collect();
    tokens.sort_by_key(|token| token.1);
    let texts: Vec<&str> = tokens.iter().map(|token| token.0).collect();
    let merges: Vec<String> =
        json["model"]["merges"].as_array().expect("merges").iter().map(merge_line).collect();
    let types: Vec<i32> =
        texts.iter().map(|text| if *text == "<|endoftext|>" { 3 } else { 1 }).collect();
    let file = write(&[
        ("tokenizer.ggml.model", Value::Str("gpt2")),
        ("tokenizer.ggml.pre", Value::Str("gpt-2")),
        ("tokenizer.ggml.tokens", strings(&texts)),
        ("tokenizer.ggml.token_type", i32s(&types)),
        ("tokenizer.ggml.merges", strings(&merges.iter().map(String::as_str).collect::<Vec<_>>())),
        ("tokenizer.ggml.bos_token_id", Value::U32(0)),
        ("tokenizer.ggml.eos_token_id", Value::U32(0)),
    ]);
    let from_gguf = spec_of(&file).expect("reads");
    let from_hf = TokenizerSpec::from_hf(TINY, Some(TINY_CONFIG), Some(TINY_GENERATION), &LIMITS)
        .expect("reads");
    assert_eq!(from_gguf.to_canonical(), from_hf.to_canonical());
    assert_eq!(from_gguf.id(), from_hf.id());
}

fn merge_line(merge: &Json) -> String {
    match merge.as_array() {
        Some(parts) => {
            format!("{} {}", parts[0].as_str().expect("left"), parts[1].as_str().expect("right"))
        }
        None => merge.as_str().expect("a line").to_owned(),
    }
}

/// The part of Gemma 3's vocabulary that can occur in the reference texts; other tokens cannot take part in their merges.
struct GemmaPart {
    whole_ids: Vec<u32>,
    file: Vec<u8>,
}

fn gemma_part() -> GemmaPart {
    let json: Json = serde_json::from_str(GEMMA3_PART).expect("JSON");
    let rows = json["tokens"].as_array().expect("tokens");
    let whole_ids: Vec<u32> = rows
        .iter()
        .map(|row| u32::try_from(row[0].as_u64().expect("an id")).expect("u32"))
        .collect();
    let texts: Vec<&str> = rows.iter().map(|row| row[1].as_str().expect("text")).collect();
    let scores: Vec<f32> =
        rows.iter().map(|row| row[2].as_f64().expect("a score") as f32).collect();
    let types: Vec<i32> = rows
        .iter()
        .map(|row| i32::try_from(row[3].as_i64().expect("a type")).expect("i32"))
        .collect();
    let score_bytes: Vec<u8> = scores.iter().flat_map(|score| score.to_le_bytes()).collect();
    let file = write(&[
        ("tokenizer.ggml.model", Value::Str("llama")),
        ("tokenizer.ggml.pre", Value::Str("default")),
        ("tokenizer.ggml.tokens", strings(&texts)),
        (
            "tokenizer.ggml.scores",
            Value::Array(Array::Numbers { element: ValueType::F32, bytes: score_bytes.into() }),
        ),
        ("tokenizer.ggml.token_type", i32s(&types)),
        ("tokenizer.ggml.bos_token_id", Value::U32(2)),
        ("tokenizer.ggml.eos_token_id", Value::U32(1)),
        ("tokenizer.ggml.unknown_token_id", Value::U32(3)),
        ("tokenizer.ggml.padding_token_id", Value::U32(0)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
        ("tokenizer.ggml.add_space_prefix", Value::Bool(false)),
    ]);
    GemmaPart { whole_ids, file }
}

#[test]
fn gemma3s_part_gives_the_reference_ids() {
    let part = gemma_part();
    let spec = spec_of(&part.file).expect("reads");
    let tokenizer = Tokenizer::new(&spec).expect("compiles");
    let whole = |id: u32| part.whole_ids[usize::try_from(id).expect("usize")];
    check_all(&tokenizer, &reference(GEMMA3_CASES), whole);
    assert!(tokenizer.add_bos());
    for (text, expected) in prompts("gemma3") {
        let ids = tokenizer.encode(&text, SpecialTokens::Parse).expect("encodes");
        let found: Vec<u32> = tokenizer.bos().into_iter().chain(ids).map(whole).collect();
        assert_eq!(found, expected, "{text:?} behind <bos>");
    }
    let again = TokenizerSpec::from_canonical(&spec.to_canonical(), &LIMITS).expect("canonical");
    assert_eq!(again, spec);
}

#[test]
fn gemma3_matches_user_defined_tokens_and_falls_back_to_bytes_in_plain_text() {
    let part = gemma_part();
    let tokenizer = Tokenizer::new(&spec_of(&part.file).expect("reads")).expect("compiles");
    let ids = tokenizer.encode("\n\n\n<b>   \u{10FFFD}", SpecialTokens::AsText).expect("encodes");
    let whole: Vec<u32> =
        ids.iter().map(|&id| part.whole_ids[usize::try_from(id).expect("usize")]).collect();
    assert_eq!(
        whole,
        [109, 200, 139, 482, 381, 429, 427],
        "three newlines, <b>, three spaces, bytes f4 8f bf bd"
    );
    let plain = tokenizer.encode("<bos><start_of_turn>", SpecialTokens::AsText).expect("encodes");
    let parsed = tokenizer.encode("<bos><start_of_turn>", SpecialTokens::Parse).expect("encodes");
    assert_eq!(parsed.len(), 2);
    assert!(plain.len() > 2 && !plain.contains(&parsed[0]) && !plain.contains(&parsed[1]));
}

/// Over the real files, in the folder that `SLM_MODELS` names; exists with the feature `real-models` only.
#[cfg(feature = "real-models")]
#[test]
fn the_real_models_give_the_reference_ids() {
    let folder = std::env::var_os("SLM_MODELS").expect("SLM_MODELS");
    for (name, json, budget) in [
        ("gemma-3-270m-q4_k_m.gguf", GEMMA3_CASES, 100 << 20),
        ("smollm2-135m-instruct-q4_1.gguf", SMOLLM2_CASES, 32 << 20),
    ] {
        let path = std::path::Path::new(&folder).join(name);
        let file = std::fs::read(&path)
            .unwrap_or_else(|error| panic!("SLM_MODELS is set, but {}: {error}", path.display()));
        let spec = spec_of(&file).expect("reads");
        let tokenizer = Tokenizer::new(&spec).expect("compiles");
        check_all(&tokenizer, &reference(json), |id| id);
        assert!(tokenizer.table_bytes() < budget, "{} bytes", tokenizer.table_bytes());
        if matches!(spec.algorithm, slm_runtime::tokenizer::Algorithm::ByteLevelBpe { .. }) {
            assert!(spec.to_canonical() == SMOLLM2, "the fixture is not the file's tokenizer");
        }
    }
}

#[test]
fn smollm2s_template_gives_the_reference_prompt() {
    let (text, ids) = prompts("smollm2").swap_remove(3);
    let template = ChatTemplate::new(SMOLLM2_TEMPLATE).expect("parses");
    let system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
    let user = ChatMessage::new("user", "Name three primary colours.");
    for messages in [vec![ChatMessage::new("system", system), user.clone()], vec![user]] {
        assert_eq!(
            template.render(&messages, true, "<|im_start|>", "<|im_end|>", None).expect("renders"),
            text
        );
        assert_eq!(
            render_to_ids(&template, &smollm2(), &messages, true, None).expect("renders"),
            ids
        );
    }
}

#[test]
fn templates_render_as_jinja2_does() {
    let json: Json = serde_json::from_str(include_str!("data/chat_cases.json")).expect("JSON");
    let mut wrong = Vec::new();
    let cases = json["cases"].as_array().expect("cases");
    assert!(cases.len() > 25);
    for case in cases {
        let messages: Vec<ChatMessage> =
            case["messages"].as_array().expect("messages").iter().map(message).collect();
        let render = || {
            let template = ChatTemplate::new(case["template"].as_str().expect("a template"))?;
            let prompt = case["add_generation_prompt"].as_bool().expect("a flag");
            template.render(&messages, prompt, "<s>", "</s>", case["today"].as_str())
        };
        match render() {
            Ok(text) if Some(text.as_str()) == case["expected"].as_str() => {}
            other => wrong
                .push(format!("{}: {other:?}\n  expected {:?}", case["name"], case["expected"])),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn message(json: &Json) -> ChatMessage {
    let role = json["role"].as_str().expect("a role");
    match json["content"].as_array() {
        Some(parts) => ChatMessage::with_parts(
            role,
            parts.iter().map(|part| part["text"].as_str().expect("text")),
        ),
        None => ChatMessage::new(role, json["content"].as_str().expect("content")),
    }
}

#[test]
fn a_wrong_tokenizer_is_refused_and_its_twin_is_not() {
    let file = |change: &[(&'static str, Value<'static>)]| write(&byte_level_with(change));
    let code = |change: &[(&'static str, Value<'static>)]| {
        spec_of(&file(change)).map(|_| "accepted").unwrap_or_else(|error| error.code())
    };
    assert_eq!(code(&[]), "accepted");
    for (key, bad, expected) in [
        ("tokenizer.ggml.eos_token_id", Value::U32(99_999), "tokenizer-special-out-of-range"),
        ("tokenizer.ggml.eos_token_id", Value::U32(259), "tokenizer-special-out-of-range"),
        ("tokenizer.ggml.bos_token_id", Value::U32(259), "tokenizer-special-out-of-range"),
        ("tokenizer.ggml.pre", Value::Str("wat-9000"), "tokenizer-unknown-pre"),
        ("tokenizer.ggml.model", Value::Str("t5"), "tokenizer-unknown-model"),
        ("tokenizer.ggml.token_type", i32s(&[1]), "tokenizer-length-mismatch"),
        ("tokenizer.ggml.token_type", i32s(&[7; 259]), "tokenizer-unknown-token-type"),
        ("tokenizer.ggml.merges", strings(&["h  e"]), "tokenizer-bad-merge"),
        ("tokenizer.ggml.merges", strings(&["h\u{a0}e"]), "tokenizer-bad-merge"),
        ("tokenizer.ggml.merges", strings(&["h €"]), "tokenizer-merge-unknown-token"),
        ("tokenizer.ggml.merges", strings(&["€ h"]), "tokenizer-merge-unknown-token"),
        // Both parts are known, the result is not: the merge does nothing.
        ("tokenizer.ggml.merges", strings(&["h i"]), "accepted"),
        ("tokenizer.ggml.merges", strings(&["h e", "h e"]), "tokenizer-duplicate-merge"),
        ("tokenizer.ggml.merges", strings(&["< >"]), "tokenizer-merge-makes-special"),
    ] {
        assert_eq!(code(&[(key, bad.clone())]), expected, "{key} = {bad:?}");
    }
    // The message names the culprit.
    let error =
        spec_of(&file(&[("tokenizer.ggml.pre", Value::Str("wat-9000"))])).expect_err("refused");
    assert!(error.to_string().contains("wat-9000"), "{error}");
    // The highest id is one of the vocabulary's.
    assert_eq!(code(&[("tokenizer.ggml.eos_token_id", Value::U32(258))]), "accepted");
}

#[test]
fn scores_and_duplicates_are_checked() {
    let spec = |texts: &[&str], scores: &[f32]| {
        let bytes: Vec<u8> = scores.iter().flat_map(|score| score.to_le_bytes()).collect();
        spec_of(&write(&[
            ("tokenizer.ggml.model", Value::Str("llama")),
            ("tokenizer.ggml.tokens", strings(texts)),
            (
                "tokenizer.ggml.scores",
                Value::Array(Array::Numbers { element: ValueType::F32, bytes: bytes.into() }),
            ),
        ]))
    };
    let code = |texts: &[&str], scores: &[f32]| {
        spec(texts, scores).map(|_| "accepted").unwrap_or_else(|error| error.code())
    };
    assert_eq!(code(&["a", "b", "ab"], &[0.0, -1.0, -2.0]), "accepted");
    assert_eq!(code(&["a", "b", "ab"], &[0.0, -1.0, f32::NAN]), "tokenizer-bad-score");
    assert_eq!(code(&["a", "b", "ab"], &[0.0, f32::NEG_INFINITY, -2.0]), "tokenizer-bad-score");
    assert_eq!(code(&["a", "b", "ab"], &[0.0, -1.0]), "tokenizer-length-mismatch");
    assert_eq!(code(&["a", "b", "b"], &[0.0, -1.0, -2.0]), "tokenizer-duplicate-token");
    assert_eq!(code(&["a", "b", ""], &[0.0, -1.0, -2.0]), "tokenizer-token-length");
    // Scores decide an order and nothing else.
    let (a, b) =
        (spec(&["a", "b", "ab"], &[0.0, -1.0, -2.0]), spec(&["a", "b", "ab"], &[9.0, 9.0, 3.5]));
    assert_eq!(a.expect("reads").id(), b.expect("reads").id());
}

#[test]
fn a_canonical_document_is_exactly_one_encoding() {
    let spec = spec_of(&write(&byte_level_with(&[]))).expect("reads");
    let bytes = spec.to_canonical();
    assert_eq!(TokenizerSpec::from_canonical(&bytes, &LIMITS).expect("canonical"), spec);
    let refused =
        |bytes: &[u8]| TokenizerSpec::from_canonical(bytes, &LIMITS).expect_err("refused").code();
    assert_eq!(refused(&[bytes.as_slice(), &[0]].concat()), "tokenizer-not-canonical");
    assert_eq!(refused(&bytes[..bytes.len() - 1]), "tokenizer-not-canonical");
    assert_eq!(refused(&[]), "tokenizer-not-canonical");
    // The format's number, padded: the same value in one byte more.
    assert_eq!(refused(&[&[0x81, 0x00], &bytes[1..]].concat()), "tokenizer-not-canonical");
    for cut in (0..bytes.len()).step_by(97) {
        assert!(TokenizerSpec::from_canonical(&bytes[..cut], &LIMITS).is_err());
    }
    let small = Limits { max_header_bytes: bytes.len() as u64 - 1, ..LIMITS };
    assert_eq!(
        TokenizerSpec::from_canonical(&bytes, &small).expect_err("refused").code(),
        "limit-exceeded"
    );
}

/// All 256 bytes, `he`, and the control tokens `<|endoftext|>` and `<>`.
fn byte_level_with(
    change: &[(&'static str, Value<'static>)],
) -> Vec<(&'static str, Value<'static>)> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    let mut texts: Vec<String> = Vec::new();
    for byte in 0..256 {
        let code = if printable(byte) { byte } else { next };
        next += u32::from(!printable(byte));
        texts.push(char::from_u32(code).expect("a character").to_string());
    }
    texts.extend(["he".to_owned(), "<|endoftext|>".to_owned(), "<>".to_owned()]);
    let types: Vec<i32> = (0..texts.len()).map(|id| if id > 256 { 3 } else { 1 }).collect();
    let texts: Vec<&'static str> = texts.into_iter().map(|text| &*text.leak()).collect();
    let mut entries = vec![
        ("tokenizer.ggml.model", Value::Str("gpt2")),
        ("tokenizer.ggml.pre", Value::Str("gpt-2")),
        ("tokenizer.ggml.tokens", strings(&texts)),
        ("tokenizer.ggml.token_type", i32s(&types)),
        ("tokenizer.ggml.merges", strings(&["h e"])),
        ("tokenizer.ggml.bos_token_id", Value::U32(257)),
        ("tokenizer.ggml.eos_token_id", Value::U32(257)),
    ];
    let change: HashMap<&str, &Value<'static>> =
        change.iter().map(|(key, value)| (*key, value)).collect();
    for (key, value) in &mut entries {
        if let Some(&new) = change.get(key) {
            *value = new.clone();
        }
    }
    entries
}

fn strings<'a>(texts: &[&'a str]) -> Value<'a> {
    Value::Array(Array::Str(texts.to_vec()))
}

fn i32s(numbers: &[i32]) -> Value<'static> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Value::Array(Array::Numbers { element: ValueType::I32, bytes: bytes.into() })
}

fn write(entries: &[(&str, Value<'_>)]) -> Vec<u8> {
    let mut file = Vec::new();
    gguf::write(&mut file, entries, &[]).expect("writes");
    file
}

fn spec_of(file: &[u8]) -> Result<TokenizerSpec, TokenizerError> {
    TokenizerSpec::from_gguf(Gguf::parse(file, &LIMITS).expect("a GGUF file").metadata(), &LIMITS)
}
