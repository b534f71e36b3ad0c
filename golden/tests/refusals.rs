//! What the reference pass refuses, each beside a twin that differs in the one thing and is accepted.

mod common;

use common::{F32, INT8};
use slm_golden::load::gguf_model;
use slm_golden::reference::{Encoding, Lora, Model, ReferenceError, logits};
use slm_golden::{TINY_Q8_0, vectors};

const TOKENS: [u32; 2] = [767, 261];

fn tiny() -> Model<'static> {
    gguf_model(TINY_Q8_0)
}

fn run(model: &Model<'_>, stack: &[(&Lora, f32)]) -> Result<Vec<Vec<f32>>, ReferenceError> {
    logits(model, stack, &TOKENS, INT8)
}

#[test]
fn a_missing_tensor_and_a_wrong_shape_are_refused() {
    let mut model = tiny();
    assert!(run(&model, &[]).is_ok());
    let name = "blk.2.ffn_up.weight".to_string();
    model.tensors.get_mut(&name).unwrap().rows -= 1;
    assert_eq!(run(&model, &[]).unwrap_err(), ReferenceError::Shape(name.clone()));
    model.tensors.remove(&name);
    assert_eq!(run(&model, &[]).unwrap_err(), ReferenceError::MissingTensor(name));
}

#[test]
fn a_token_outside_the_vocabulary_is_refused() {
    let model = tiny();
    assert!(logits(&model, &[], &[1023], INT8).is_ok());
    assert_eq!(logits(&model, &[], &[1024], INT8).unwrap_err(), ReferenceError::Token(1024));
    assert_eq!(logits(&model, &[], &[], INT8).unwrap().len(), 0);
}

#[test]
fn an_adapter_that_would_be_ignored_or_does_not_fit_is_refused() {
    let model = tiny();
    let adapter = vectors::adapter("tiny-kjv", &model.config);
    assert!(run(&model, &[(&adapter, 1.0)]).is_ok());

    let mut ignored = adapter.clone();
    let factors = ignored.targets["blk.0.attn_q.weight"].clone();
    ignored.targets.insert("blk.4.attn_q.weight".to_string(), factors);
    assert_eq!(
        run(&model, &[(&ignored, 1.0)]).unwrap_err(),
        ReferenceError::UnusedTarget("blk.4.attn_q.weight".to_string())
    );

    let mut short = adapter;
    short.targets.get_mut("blk.0.attn_q.weight").unwrap().b.pop();
    assert!(matches!(run(&model, &[(&short, 1.0)]).unwrap_err(), ReferenceError::Shape(_)));
}

#[test]
fn a_nan_is_refused_in_both_modes() {
    let mut model = tiny();
    let norm = model.tensors.get_mut("output_norm.weight").unwrap();
    assert_eq!(norm.encoding, Encoding::F32);
    norm.bytes.to_mut()[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    for options in [INT8, F32] {
        let refused = logits(&model, &[], &TOKENS, options).unwrap_err();
        assert!(matches!(refused, ReferenceError::NotFinite(_)), "{refused}");
    }
}

/// Weight 0 skips an adapter bit for bit, and the order of a stack is part of what it computes.
#[test]
fn weights_and_order_count() {
    let model = tiny();
    let kjv = vectors::adapter("tiny-kjv", &model.config);
    let python = vectors::adapter("tiny-python", &model.config);
    let bits = |stack: &[(&Lora, f32)]| -> Vec<u32> {
        run(&model, stack).unwrap().iter().flatten().map(|v| v.to_bits()).collect()
    };
    assert_eq!(bits(&[(&kjv, 0.0), (&python, -0.0)]), bits(&[]));
    // Skipped, not multiplied by zero: an infinite factor would leave NaN.
    let mut infinite = kjv.clone();
    infinite.targets.get_mut("blk.0.attn_q.weight").unwrap().b[0] = f32::INFINITY;
    assert_eq!(bits(&[(&infinite, 0.0)]), bits(&[]));
    assert!(run(&model, &[(&infinite, 0.5)]).is_err());
    assert_eq!(bits(&[(&kjv, 1.0), (&python, 0.0)]), bits(&[(&kjv, 1.0)]));
    assert_ne!(bits(&[(&kjv, 0.7), (&python, 0.3)]), bits(&[(&python, 0.3), (&kjv, 0.7)]));
}
