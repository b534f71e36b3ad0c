//! The embedded GGUF is the Hugging Face folder: the same weights under Q8_0, the same tokenizer, and nearly the same logits.

mod common;

use common::{golden, read, text};
use serde_json::Value as Json;
use slm_golden::load::{Value, gguf, gguf_model, hf_model};
use slm_golden::reference::{Encoding, decode_row, f16_to_f32, f32_to_f16};
use slm_golden::{TINY_Q8_0, vectors};

#[test]
fn tensors_are_the_folders_quantized() {
    let weights = read(&golden("files/tiny/model.safetensors"));
    let source = hf_model(&text(&golden("files/tiny/config.json")), &weights);
    let model = gguf_model(TINY_Q8_0);
    assert_eq!(model.config, source.config);
    assert_eq!(model.tensors.keys().collect::<Vec<_>>(), source.tensors.keys().collect::<Vec<_>>());
    for (name, tensor) in &model.tensors {
        let source = &source.tensors[name];
        assert_eq!((tensor.rows, tensor.cols), (source.rows, source.cols), "{name}");
        for row in 0..tensor.rows {
            let values = decode_row(source, row);
            let expected = match tensor.encoding {
                Encoding::F32 => values,
                Encoding::Q8_0 => values.chunks_exact(32).flat_map(q8_0).collect(),
                other => panic!("{name} is {}", other.name()),
            };
            assert_eq!(decode_row(tensor, row), expected, "{name} row {row}");
        }
        assert_eq!(tensor.encoding == Encoding::F32, name.ends_with("_norm.weight"), "{name}");
    }
}

/// ggml's rule: codes round half away from zero under the scale before it is rounded to f16.
fn q8_0(x: &[f32]) -> Vec<f32> {
    let d = x.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0;
    let id = if d == 0.0 { 0.0 } else { 1.0 / d };
    x.iter().map(|v| f16_to_f32(f32_to_f16(d)) * (v * id).round()).collect()
}

#[test]
fn the_tokenizer_is_the_folders() {
    let tokenizer: Json =
        serde_json::from_str(&text(&golden("files/tiny/tokenizer.json"))).expect("tokenizer.json");
    let metadata = gguf(TINY_Q8_0).metadata;
    let array = |key: &str| match &metadata[key] {
        Value::Array(values) => values.clone(),
        other => panic!("{key} is {other:?}"),
    };

    let vocab = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
    let tokens = array("tokenizer.ggml.tokens");
    assert_eq!((tokens.len(), vocab.len()), (1024, 1024));
    for (token, id) in vocab {
        let id = id.as_u64().expect("an id") as usize;
        assert_eq!(tokens[id], Value::Text(token.clone()), "id {id}");
    }

    let merges = tokenizer["model"]["merges"].as_array().expect("merges");
    let joined: Vec<Value> = merges
        .iter()
        .map(|pair| Value::Text([pair[0].as_str().unwrap(), pair[1].as_str().unwrap()].join(" ")))
        .collect();
    assert_eq!(array("tokenizer.ggml.merges"), joined);
    assert!(
        vocab.keys().all(|token| !token.contains(' ')),
        "a space in a token would make merges ambiguous"
    );

    let mut types = vec![Value::Int(1); 1024];
    types[0] = Value::Int(3);
    assert_eq!(array("tokenizer.ggml.token_type"), types);
    assert_eq!(metadata["tokenizer.ggml.model"], Value::Text("gpt2".to_string()));
    assert_eq!(metadata["tokenizer.ggml.pre"], Value::Text("gpt-2".to_string()));
    for (key, value) in [("bos_token_id", 0), ("eos_token_id", 0), ("add_bos_token", 0)] {
        assert_eq!(metadata[&format!("tokenizer.ggml.{key}")], Value::Int(value), "{key}");
    }
}

/// Q8_0 weights against HF's bf16 ones: what the quantization and 8-bit activations cost together.
#[test]
fn logits_stay_near_the_folders() {
    let model = gguf_model(TINY_Q8_0);
    let kjv = vectors::adapter("tiny-kjv", &model.config);
    for (file, stack) in
        [("tiny-base.safetensors", vec![]), ("tiny-kjv.safetensors", vec![(&kjv, 1.0)])]
    {
        let expected = read(&golden("vectors/hf").join(file));
        for (i, (tokens, expected)) in common::prompts(&expected).into_iter().enumerate() {
            for options in [common::F32, common::INT8] {
                let logits = common::last_logits(&model, &stack, &tokens, options);
                let (c, k) = (common::cosine(&expected, &logits), common::kl(&expected, &logits));
                eprintln!(
                    "tiny-q8_0 {file} prompt {i} int8 {}: cos {c:.6} KL {k:.2e}",
                    options.int8
                );
                assert!(c >= 0.999 && k <= 0.01, "{file} prompt {i}: cosine {c}, KL {k}");
            }
        }
    }
}
