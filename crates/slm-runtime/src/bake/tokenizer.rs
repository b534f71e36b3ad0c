//! `tokenizer.json` and the files beside it, from the canonical document.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use slm_format::Limits;

use crate::bake::BakeError;
use crate::bake::hf::pretty;
use crate::error::RuntimeError;
use crate::tokenizer::{Algorithm, PreTokenizer, TokenKind, TokenizerSpec, every_split};

/// The tokenizer's files of a HF folder.
pub(super) struct Documents {
    pub(super) tokenizer: Vec<u8>,
    pub(super) tokenizer_config: Vec<u8>,
    pub(super) generation_config: Vec<u8>,
}

/// The files, which read back give `spec`.
///
/// # Errors
/// `bake-tokenizer` where they would not: a token that is never made, scores that rank two tokens alike.
pub(super) fn documents(spec: &TokenizerSpec) -> Result<Documents, RuntimeError> {
    let documents = Documents {
        tokenizer: tokenizer(spec).into_bytes(),
        tokenizer_config: pretty(&tokenizer_config(spec)),
        generation_config: pretty(&generation_config(spec)),
    };
    let read = TokenizerSpec::from_hf(
        &documents.tokenizer,
        Some(&documents.tokenizer_config),
        Some(&documents.generation_config),
        &Limits::STANDARD,
    );
    let reason = match read {
        Ok(read) if read == *spec => return Ok(documents),
        Ok(_) => "read back it is another one".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(BakeError::Tokenizer { reason }.into())
}

fn tokenizer(spec: &TokenizerSpec) -> String {
    let mut vocabulary = String::new();
    let mut added = Vec::new();
    for (id, token) in (0u32..).zip(&spec.tokens) {
        let special = match token.kind {
            TokenKind::Control => true,
            TokenKind::UserDefined => false,
            TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => {
                let comma = if vocabulary.is_empty() { "" } else { "," };
                write!(vocabulary, "{comma}{}:{id}", json!(token.text))
                    .expect("BUG: a string refuses text");
                continue;
            }
        };
        let strip = spec.stripping.iter().find(|strip| strip.id == id);
        added.push(json!({
            "id": id,
            "content": token.text,
            "single_word": false,
            "lstrip": strip.is_some_and(|strip| strip.left),
            "rstrip": strip.is_some_and(|strip| strip.right),
            "normalized": false,
            "special": special,
        }));
    }
    let mut merges = String::new();
    let mut pairs = every_pair(spec).into_iter();
    if let Some((left, right)) = pairs.next() {
        write!(merges, "{}", json!([left, right])).expect("BUG: a string refuses text");
    }
    for (left, right) in pairs {
        write!(merges, ",{}", json!([left, right])).expect("BUG: a string refuses text");
    }
    let text = |id: Option<u32>| id.map(|id| spec.tokens[id as usize].text.as_str());
    let Rules { normalizer, pre_tokenizer, decoder, byte_fallback, ignore_merges } = rules(spec);
    let unk = json!(text(spec.unk));
    format!(
        "{{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":{},\"normalizer\":{normalizer},\
         \"pre_tokenizer\":{pre_tokenizer},\"post_processor\":{},\"decoder\":{decoder},\"model\":{{\"type\":\"BPE\",\
         \"dropout\":null,\"unk_token\":{unk},\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\
         \"fuse_unk\":{byte_fallback},\"byte_fallback\":{byte_fallback},\"ignore_merges\":{ignore_merges},\
         \"vocab\":{{{vocabulary}}},\"merges\":[{merges}]}}}}\n",
        Value::from(added),
        post_processor(spec),
    )
}

/// What stands around the vocabulary.
struct Rules {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    byte_fallback: bool,
    ignore_merges: bool,
}

fn rules(spec: &TokenizerSpec) -> Rules {
    let byte_level = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex });
    match &spec.algorithm {
        Algorithm::ByteLevelBpe { pre, .. } => Rules {
            normalizer: if pre.normalizes_nfc() { json!({ "type": "NFC" }) } else { Value::Null },
            pre_tokenizer: match pre {
                PreTokenizer::Gpt2 => byte_level(true),
                PreTokenizer::Smollm => json!({ "type": "Sequence", "pretokenizers": [
                    { "type": "Digits", "individual_digits": true }, byte_level(true),
                ] }),
                _ => json!({ "type": "Sequence", "pretokenizers": [
                    { "type": "Split", "pattern": { "Regex": pre.published_pattern() }, "behavior": "Isolated", "invert": false },
                    byte_level(false),
                ] }),
            },
            decoder: byte_level(true),
            byte_fallback: false,
            ignore_merges: pre.takes_whole_words(),
        },
        Algorithm::SentencePieceBpe { add_space_prefix, .. } => {
            let marks = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
            let mut normalizers = vec![marks];
            let mut decoders = vec![
                json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
                json!({ "type": "ByteFallback" }),
                json!({ "type": "Fuse" }),
            ];
            if *add_space_prefix {
                normalizers.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
                decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
            }
            Rules {
                normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
                pre_tokenizer: Value::Null,
                decoder: json!({ "type": "Sequence", "decoders": decoders }),
                byte_fallback: true,
                ignore_merges: false,
            }
        }
    }
}

/// Pairs of texts that merges join, first merged first.
fn every_pair(spec: &TokenizerSpec) -> Vec<(&str, &str)> {
    let text = |id: u32| spec.tokens[id as usize].text.as_str();
    match &spec.algorithm {
        Algorithm::ByteLevelBpe { merges, .. } => {
            merges.iter().map(|&(left, right)| (text(left), text(right))).collect()
        }
        Algorithm::SentencePieceBpe { ranks, .. } => {
            let mut order: Vec<(u32, usize)> = ranks
                .iter()
                .enumerate()
                .filter(|(_, rank)| **rank > 0)
                .map(|(id, &rank)| (rank, id))
                .collect();
            order.sort_unstable();
            let ids = order.into_iter().map(|(_, id)| id);
            every_split(&spec.tokens, ids)
                .into_iter()
                .map(|(left, right)| (text(left), text(right)))
                .collect()
        }
    }
}

fn post_processor(spec: &TokenizerSpec) -> Value {
    let token = |id: u32| spec.tokens[id as usize].text.clone();
    let begin = spec.bos.filter(|_| spec.add_bos);
    let end = spec.eos.first().copied().filter(|_| spec.add_eos);
    if begin.is_none() && end.is_none() {
        return Value::Null;
    }
    let special = |id: u32, of: u32| json!({ "SpecialToken": { "id": token(id), "type_id": of } });
    let sequence = |name: &str, of: u32| {
        let mut parts: Vec<Value> = begin.map(|id| special(id, of)).into_iter().collect();
        parts.push(json!({ "Sequence": { "id": name, "type_id": of } }));
        parts.extend(end.map(|id| special(id, of)));
        parts
    };
    let tokens: Map<String, Value> = begin
        .into_iter()
        .chain(end)
        .map(|id| (token(id), json!({ "id": token(id), "ids": [id], "tokens": [token(id)] })))
        .collect();
    let pair = [sequence("A", 0), sequence("B", 1)].concat();
    json!({ "type": "TemplateProcessing", "single": sequence("A", 0), "pair": pair, "special_tokens": tokens })
}

fn tokenizer_config(spec: &TokenizerSpec) -> Value {
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": spec.add_bos,
        "add_eos_token": spec.add_eos,
        "add_prefix_space": false,
        "clean_up_tokenization_spaces": false,
    });
    let named = [
        ("bos_token", spec.bos),
        ("eos_token", spec.eos.first().copied()),
        ("unk_token", spec.unk),
        ("pad_token", spec.pad),
    ];
    for (name, id) in named {
        if let Some(id) = id {
            config[name] = spec.tokens[id as usize].text.as_str().into();
        }
    }
    config
}

fn generation_config(spec: &TokenizerSpec) -> Value {
    match spec.eos.is_empty() {
        true => json!({}),
        false => json!({ "eos_token_id": spec.eos }),
    }
}
