//! The tiny model against the logits that Hugging Face transformers and PEFT computed (`golden/vectors/hf/README.md`).

mod common;

use std::sync::Arc;

use common::{HfFolder, composition, session, tiny};
use safetensors::SafeTensors;
use slm_manifest::ExecutionProfile;
use slm_runtime::load::Base;

const FILES: [(&str, &[(&str, f32)]); 4] = [
    ("tiny-base", &[]),
    ("tiny-kjv", &[("kjv", 1.0)]),
    ("tiny-python", &[("python", 1.0)]),
    ("tiny-kjv0.7-python0.3", &[("kjv", 0.7), ("python", 0.3)]),
];

/// Tokens and last logits of each prompt in a file.
fn prompts(file: &str) -> Vec<(Vec<u32>, Vec<f32>)> {
    let path = slm_golden::path("vectors/hf").join(format!("{file}.safetensors"));
    let bytes = std::fs::read(&path).expect("a file of vectors");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let words = |name: String| -> Vec<u32> {
        let tensor = file.tensor(&name).expect("a tensor");
        tensor
            .data()
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    };
    let prompts: Vec<(Vec<u32>, Vec<f32>)> = (0..file.len() / 2)
        .map(|i| {
            let logits = words(format!("logits_{i}")).into_iter().map(f32::from_bits).collect();
            (words(format!("tokens_{i}")), logits)
        })
        .collect();
    assert_eq!(prompts.len(), 6);
    prompts
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn wide(logits: &[f32]) -> Vec<f64> {
    logits.iter().copied().map(f64::from).collect()
}

fn centred(logits: &[f32]) -> Vec<f64> {
    let mean = logits.iter().copied().map(f64::from).sum::<f64>() / logits.len() as f64;
    logits.iter().map(|&logit| f64::from(logit) - mean).collect()
}

fn top_1(logits: &[f32]) -> usize {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    best
}

/// What to hold against each other: the prompt for messages, logits found, logits expected.
type Check = dyn Fn(&str, &[f32], &[f32]);

fn each(base: &Arc<Base>, profile: ExecutionProfile, check: &Check) {
    for (file, stack) in FILES {
        let composition = composition(base, stack);
        for (i, (tokens, expected)) in prompts(file).iter().enumerate() {
            let logits = session(&composition, profile).advance(tokens, 64).expect("a pass");
            assert_eq!(logits.len(), expected.len());
            check(&format!("{file}, prompt {i}"), &logits, expected);
        }
    }
}

#[test]
fn bf16_in_f32_mode_is_what_hf_computes() {
    let base = Arc::new(HfFolder::tiny().open().expect("the tiny folder"));
    each(&base, ExecutionProfile::ORACLE, &|what, found, expected| {
        let cosine = cosine(&wide(found), &wide(expected));
        assert!(cosine >= 0.999_999, "{what}: cosine {cosine}");
        assert_eq!(top_1(found), top_1(expected), "{what}");
        let largest = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(largest < 2e-3, "{what}: a logit differs by {largest}");
    });
}

#[test]
fn q8_0_in_int8_mode_is_close_to_hf() {
    each(&tiny(), ExecutionProfile::DEFAULT, &|what, found, expected| {
        let cosine = cosine(&centred(found), &centred(expected));
        assert!(cosine >= 0.999, "{what}: centred cosine {cosine}");
    });
}

/// The distance is a measure only if the wrong stack fails it.
#[test]
fn another_stack_is_not_close() {
    let base = Arc::new(HfFolder::tiny().open().expect("the tiny folder"));
    let bare = composition(&base, &[]);
    for (file, _) in &FILES[1..] {
        for (tokens, expected) in prompts(file) {
            let logits =
                session(&bare, ExecutionProfile::ORACLE).advance(&tokens, 64).expect("a pass");
            assert!(cosine(&wide(&logits), &wide(&expected)) < 0.999_999, "{file}");
        }
    }
}
