//! Writes the embedded tiny model and the vectors.
//!
//! ```text
//! cargo run --release -p slm-golden --features generate --bin generate            # says what would change; exit 1 if anything
//! cargo run --release -p slm-golden --features generate --bin generate -- --accept   # writes it
//! ```
//!
//! The model comes from the Hugging Face folder `files/tiny`: matrices become Q8_0, norms F32, rows of q and k take GGUF's order, and the
//! tokenizer goes over token by token. The vectors come from the reference pass over that model.

use std::process::ExitCode;

use serde_json::Value as Json;
use slm_format::Encoding;
use slm_format::gguf::{self, TensorSource, Value};
use slm_golden::load::hf_model;
use slm_golden::reference::{Config, decode_row};
use slm_golden::{path, vectors};
use slm_quant::codec;

fn main() -> ExitCode {
    let accept = std::env::args().skip(1).any(|argument| argument == "--accept");
    let model = tiny_gguf();
    let files = [
        (
            "vectors/tiny-q8_0-int8.json",
            vectors::format(&vectors::compute(&model, true)).into_bytes(),
        ),
        (
            "vectors/tiny-q8_0-f32.json",
            vectors::format(&vectors::compute(&model, false)).into_bytes(),
        ),
        ("files/tiny-q8_0.gguf", model),
    ];
    let mut changed = false;
    for (name, bytes) in files {
        if std::fs::read(path(name)).is_ok_and(|old| old == bytes) {
            println!("same      {name}");
            continue;
        }
        changed = true;
        if accept {
            std::fs::write(path(name), bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        println!("{} {name}", if accept { "written  " } else { "different" });
    }
    if changed && !accept { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The tiny model as a GGUF file.
fn tiny_gguf() -> Vec<u8> {
    let config = text("files/tiny/config.json");
    let weights = read("files/tiny/model.safetensors");
    let model = hf_model(&config, &weights);
    let json: Json = serde_json::from_str(&config).expect("config.json");

    let tensors: Vec<(&String, Vec<u64>, Encoding, Vec<u8>)> = model
        .tensors
        .iter()
        .map(|(name, tensor)| {
            let values: Vec<f32> = (0..tensor.rows).flat_map(|o| decode_row(tensor, o)).collect();
            let (encoding, shape) = match name.ends_with("_norm.weight") {
                true => (Encoding::F32, vec![tensor.cols as u64]),
                false => (Encoding::Q8_0, vec![tensor.cols as u64, tensor.rows as u64]),
            };
            let bytes = codec::encode(encoding, &values, tensor.cols).expect("finite weights");
            (name, shape, encoding, bytes)
        })
        .collect();
    let sources: Vec<TensorSource<'_>> = tensors
        .iter()
        .map(|(name, shape, encoding, data)| TensorSource {
            name,
            shape,
            encoding: *encoding,
            data,
        })
        .collect();

    let tokenizer: Json =
        serde_json::from_str(&text("files/tiny/tokenizer.json")).expect("tokenizer.json");
    let (tokens, token_types, merges) = vocabulary(&tokenizer);
    let mut metadata = model_keys(&model.config, &json);
    metadata.extend([
        ("tokenizer.ggml.model", Value::Str("gpt2")),
        ("tokenizer.ggml.pre", Value::Str("gpt-2")),
        ("tokenizer.ggml.tokens", Value::str_array(tokens)),
        ("tokenizer.ggml.token_type", Value::i32_array(&token_types)),
        ("tokenizer.ggml.merges", Value::str_array(merges.iter().map(String::as_str).collect())),
        ("tokenizer.ggml.bos_token_id", Value::U32(int(&json, "bos_token_id"))),
        ("tokenizer.ggml.eos_token_id", Value::U32(int(&json, "eos_token_id"))),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
    ]);

    let mut out = Vec::new();
    gguf::write(&mut out, &metadata, &sources).expect("a GGUF file");
    out
}

fn model_keys(config: &Config, json: &Json) -> Vec<(&'static str, Value<'static>)> {
    let u32 = |value: usize| Value::U32(u32::try_from(value).expect("a dimension"));
    vec![
        ("general.architecture", Value::Str("llama")),
        ("general.type", Value::Str("model")),
        ("general.name", Value::Str("slm tiny")),
        ("general.file_type", Value::U32(FILE_TYPE_MOSTLY_Q8_0)),
        ("general.quantization_version", Value::U32(2)),
        ("llama.block_count", u32(config.n_layers)),
        ("llama.context_length", Value::U32(int(json, "max_position_embeddings"))),
        ("llama.embedding_length", u32(config.n_embd)),
        ("llama.feed_forward_length", Value::U32(int(json, "intermediate_size"))),
        ("llama.attention.head_count", u32(config.n_heads)),
        ("llama.attention.head_count_kv", u32(config.n_kv_heads)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(config.rms_norm_eps)),
        ("llama.rope.freq_base", Value::F32(config.rope_theta)),
        ("llama.rope.dimension_count", u32(config.head_dim)),
        ("llama.vocab_size", Value::U32(int(json, "vocab_size"))),
    ]
}

/// Tokens in the order of their ids, their types, and merges as GGUF spells them.
fn vocabulary(tokenizer: &Json) -> (Vec<&str>, Vec<i32>, Vec<String>) {
    let vocab = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
    let mut tokens = vec![""; vocab.len()];
    for (token, id) in vocab {
        tokens[id.as_u64().expect("an id") as usize] = token;
    }
    let mut types = vec![TOKEN_NORMAL; tokens.len()];
    for added in tokenizer["added_tokens"].as_array().expect("added tokens") {
        let id = added["id"].as_u64().expect("an id") as usize;
        assert_eq!(added["content"], tokens[id], "an added token outside the vocabulary");
        assert_eq!(added["special"], true);
        types[id] = TOKEN_CONTROL;
    }
    let merge = |pair: &Json| {
        let half = |i: usize| pair[i].as_str().expect("half of a merge").to_string();
        format!("{} {}", half(0), half(1))
    };
    let merges = tokenizer["model"]["merges"].as_array().expect("merges");
    (tokens, types, merges.iter().map(merge).collect())
}

const FILE_TYPE_MOSTLY_Q8_0: u32 = 7;
const TOKEN_NORMAL: i32 = 1;
const TOKEN_CONTROL: i32 = 3;

fn int(json: &Json, key: &str) -> u32 {
    let value = json[key].as_u64().unwrap_or_else(|| panic!("{key} is missing"));
    u32::try_from(value).unwrap_or_else(|_| panic!("{key} is {value}"))
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn text(name: &str) -> String {
    String::from_utf8(read(name)).expect("UTF-8")
}
