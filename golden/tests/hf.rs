//! The tiny model against the logits that HF transformers + PEFT computed in f32 (`vectors/hf/`).

mod common;

use common::{compare, golden, read, text};
use slm_golden::load::{hf_model, peft};
use slm_golden::reference::Lora;

fn check(file: &str, stack: &[(&str, f32)]) {
    let weights = read(&golden("files/tiny/model.safetensors"));
    let model = hf_model(&text(&golden("files/tiny/config.json")), &weights);
    let stack: Vec<(Lora, f32)> = stack
        .iter()
        .map(|&(name, weight)| {
            let folder = golden("files").join(name);
            let config = text(&folder.join("adapter_config.json"));
            let weights = read(&folder.join("adapter_model.safetensors"));
            (peft(&config, &weights, &model.config), weight)
        })
        .collect();
    let stack: Vec<(&Lora, f32)> = stack.iter().map(|(lora, weight)| (lora, *weight)).collect();
    // The base is bf16, so int8 mode differs from f32 mode by the f16 cache alone.
    let expected = read(&golden("vectors/hf").join(file));
    compare(file, &model, &stack, &expected, 0.999_999, 1e-5);
}

#[test]
fn base() {
    check("tiny-base.safetensors", &[]);
}

#[test]
fn kjv() {
    check("tiny-kjv.safetensors", &[("tiny-kjv", 1.0)]);
}

#[test]
fn python_rslora() {
    check("tiny-python.safetensors", &[("tiny-python", 1.0)]);
}

#[test]
fn weighted_pair() {
    check("tiny-kjv0.7-python0.3.safetensors", &[("tiny-kjv", 0.7), ("tiny-python", 0.3)]);
}
