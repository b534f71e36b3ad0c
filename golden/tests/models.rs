//! The real models against the logits that HF transformers + PEFT computed in f32 from the same GGUF files.
//!
//! The files are too large for the repository. `SLM_MODELS` names a folder with the two GGUF files, `SLM_REFERENCE` one with
//! `adapters/` and `reference/logits/`. The tests exist with the feature `real-models` only, and then anything missing fails.

mod common;

use std::path::PathBuf;

use common::{INT8, compare, read, text};
use slm_golden::load::{gguf_model, peft};
use slm_golden::reference::{Lora, logits};
use slm_golden::vectors::{StackEntry, real_models};

const SMOLLM2: &str = "smollm2-135m-instruct-q4_1.gguf";
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

fn folder(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(name).expect("SLM_MODELS and SLM_REFERENCE"))
}

fn check(gguf: &str, logits: &str, stack: &[(&str, f32)], min_cosine: f64, max_kl: f64) {
    let (models, reference) = (folder("SLM_MODELS"), folder("SLM_REFERENCE"));
    let bytes = read(&models.join(gguf));
    let model = gguf_model(&bytes);
    let stack: Vec<(Lora, f32)> = stack
        .iter()
        .map(|&(name, weight)| {
            let folder = reference.join("adapters").join(name);
            let config = text(&folder.join("adapter_config.json"));
            let weights = read(&folder.join("adapter_model.safetensors"));
            (peft(&config, &weights, &model.config), weight)
        })
        .collect();
    let stack: Vec<(&Lora, f32)> = stack.iter().map(|(lora, weight)| (lora, *weight)).collect();
    let expected = read(&reference.join("reference/logits").join(logits));
    compare(logits, &model, &stack, &expected, min_cosine, max_kl);
}

#[test]
fn smollm2_base() {
    check(SMOLLM2, "smollm2-base.safetensors", &[], 0.99, 0.05);
}

#[test]
fn smollm2_kjv() {
    check(SMOLLM2, "smollm2-kjv.safetensors", &[("smollm2-kjv", 1.0)], 0.99, 0.05);
}

#[test]
fn smollm2_shakespeare() {
    let stack = [("smollm2-shakespeare", 1.0)];
    check(SMOLLM2, "smollm2-shakespeare.safetensors", &stack, 0.99, 0.05);
}

#[test]
fn smollm2_weighted_pair() {
    let stack = [("smollm2-kjv", 0.7), ("smollm2-shakespeare", 0.3)];
    check(SMOLLM2, "smollm2-kjv0.7-shakespeare0.3.safetensors", &stack, 0.99, 0.05);
}

#[test]
fn gemma3_base() {
    check(GEMMA3, "gemma3-base.safetensors", &[], 0.99, 0.05);
}

/// Every logit of the records, which slm's tests compare with every tier.
#[test]
fn the_records_are_what_the_reference_computes() {
    let file = real_models();
    assert_eq!(
        (file.activations.as_str(), file.kv.as_str(), file.records.len()),
        ("int8", "f16", 3)
    );
    for record in file.records {
        let bytes = read(&folder("SLM_MODELS").join(&record.gguf));
        let name = &record.name;
        assert_eq!(
            blake3::hash(&bytes).to_hex().as_str(),
            record.gguf_blake3,
            "{name}: another file"
        );
        let model = gguf_model(&bytes);
        let stack: Vec<(Lora, f32)> = record
            .stack
            .iter()
            .map(|StackEntry { adapter, weight }| {
                let folder = folder("SLM_REFERENCE").join("adapters").join(adapter);
                let config = text(&folder.join("adapter_config.json"));
                let weights = read(&folder.join("adapter_model.safetensors"));
                (peft(&config, &weights, &model.config), *weight)
            })
            .collect();
        let stack: Vec<(&Lora, f32)> = stack.iter().map(|(lora, weight)| (lora, *weight)).collect();
        let mut hasher = blake3::Hasher::new();
        for logit in logits(&model, &stack, &record.tokens, INT8).expect("logits").iter().flatten()
        {
            hasher.update(&logit.to_le_bytes());
        }
        assert_eq!(hasher.finalize().to_hex().as_str(), record.all_blake3, "{name}");
    }
}
