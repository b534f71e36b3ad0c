//! What several tests need: Hugging Face's logits and the distances to them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use slm_golden::TRIG;
use slm_golden::load::floats;
use slm_golden::reference::{Lora, Model, Options, logits};

pub const F32: Options = Options { int8: false, kv_f16: false, trig: TRIG };
pub const INT8: Options = Options { int8: true, kv_f16: true, trig: TRIG };

pub fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn text(path: &Path) -> String {
    String::from_utf8(read(path)).expect("UTF-8")
}

/// Tokens and last logits of each prompt in a file of Hugging Face's logits.
pub fn prompts(bytes: &[u8]) -> Vec<(Vec<u32>, Vec<f32>)> {
    let file = SafeTensors::deserialize(bytes).expect("safetensors");
    let n_prompts = file.len() / 2;
    (0..n_prompts)
        .map(|i| {
            let tokens = file.tensor(&format!("tokens_{i}")).expect("tokens");
            let tokens = tokens
                .data()
                .chunks_exact(4)
                .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            let logits = file.tensor(&format!("logits_{i}")).expect("logits");
            (tokens, floats(logits.dtype(), logits.data()))
        })
        .collect()
}

pub fn last_logits(
    model: &Model<'_>,
    stack: &[(&Lora, f32)],
    tokens: &[u32],
    options: Options,
) -> Vec<f32> {
    let mut rows = logits(model, stack, tokens, options).expect("logits");
    rows.pop().expect("a position")
}

pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// KL divergence of softmax(b) from softmax(a), in nats.
pub fn kl(a: &[f32], b: &[f32]) -> f64 {
    let log_softmax = |v: &[f32]| -> Vec<f64> {
        let max = v.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = v.iter().map(|x| f64::from(x - max).exp()).sum();
        v.iter().map(|x| f64::from(x - max) - total.ln()).collect()
    };
    log_softmax(a).iter().zip(log_softmax(b)).map(|(p, q)| p.exp() * (p - q)).sum()
}

pub fn argmax(v: &[f32]) -> usize {
    (0..v.len()).fold(0, |best, i| if v[i] > v[best] { i } else { best })
}

/// Compares the reference pass with one file of Hugging Face's logits: in f32 tightly, in int8 by `min_cosine` and `max_kl`.
pub fn compare(
    what: &str,
    model: &Model<'_>,
    stack: &[(&Lora, f32)],
    expected: &[u8],
    min_cosine: f64,
    max_kl: f64,
) {
    for (i, (tokens, expected)) in prompts(expected).into_iter().enumerate() {
        let f32s = last_logits(model, stack, &tokens, F32);
        let c = cosine(&expected, &f32s);
        let int8 = last_logits(model, stack, &tokens, INT8);
        let (ci, ki) = (cosine(&expected, &int8), kl(&expected, &int8));
        eprintln!(
            "{what} prompt {i}: f32 1-cos {:.2e} KL {:.2e}; int8 cos {ci:.6} KL {ki:.2e} top {}",
            1.0 - c,
            kl(&expected, &f32s),
            argmax(&expected) == argmax(&int8)
        );
        assert!(c >= 0.999_999, "{what} prompt {i}: f32 cosine {c}");
        assert_eq!(argmax(&expected), argmax(&f32s), "{what} prompt {i}: f32 top token");
        assert!(ci >= min_cosine, "{what} prompt {i}: int8 cosine {ci}");
        assert!(ki <= max_kl, "{what} prompt {i}: int8 KL {ki}");
    }
}
