//! Small random models of both graphs against HF transformers in f32, every position (`files/families/`): a sliding window that is
//! shorter than the sequence, two RoPE bases, QK-norm, an untied head.

mod common;

use common::{F32, INT8, cosine, golden, read, text};
use safetensors::SafeTensors;
use slm_golden::load::{floats, hf_model};
use slm_golden::reference::logits;

fn check(family: &str) {
    let folder = golden("files/families").join(family);
    let weights = read(&folder.join("model.safetensors"));
    let model = hf_model(&text(&folder.join("config.json")), &weights);
    let expected = read(&folder.join("expected.safetensors"));
    let expected = SafeTensors::deserialize(&expected).expect("safetensors");
    let values = |name: &str| {
        let view = expected.tensor(name).expect("logits");
        floats(view.dtype(), view.data())
    };
    let tokens = |name: &str| -> Vec<u32> {
        let view = expected.tensor(name).expect("tokens");
        view.data().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    for (options, least) in [(F32, 1.0 - 1e-9), (INT8, 1.0 - 1e-6)] {
        let short = logits(&model, &[], &tokens("short_tokens"), options).expect("logits");
        let long = logits(&model, &[], &tokens("long_tokens"), options).expect("logits");
        let mut rows: Vec<(&[f32], Vec<f32>)> =
            vec![(&long[40], values("long_logits_at_40")), (&long[99], values("long_last_logits"))];
        let short_expected = values("short_logits");
        rows.extend(
            short.iter().zip(short_expected.chunks(320)).map(|(row, e)| (&row[..], e.to_vec())),
        );
        assert_eq!(rows.len(), 14);
        for (i, (row, expected)) in rows.into_iter().enumerate() {
            let c = cosine(row, &expected);
            assert!(c >= least, "{family} row {i}: 1 - cosine is {:e}", 1.0 - c);
        }
    }
}

#[test]
fn gemma3() {
    check("gemma3");
}

#[test]
fn llama_untied() {
    check("llama-untied");
}

/// The linear factor stretches global layers alone: five layers under a window keep their bits, the sixth, global, does not.
#[test]
fn the_linear_factor_is_for_global_layers() {
    let folder = golden("files/families/gemma3");
    let weights = read(&folder.join("model.safetensors"));
    let mut model = hf_model(&text(&folder.join("config.json")), &weights);
    let tokens = [5, 9, 2, 77];
    for (n_layers, same) in [(5, true), (6, false)] {
        model.config.n_layers = n_layers;
        model.config.rope_linear_factor = 1.0;
        let plain = logits(&model, &[], &tokens, F32).expect("logits");
        model.config.rope_linear_factor = 8.0;
        let stretched = logits(&model, &[], &tokens, F32).expect("logits");
        assert_eq!(plain[0], stretched[0], "position 0 is not turned");
        assert_eq!(plain == stretched, same, "{n_layers} layers");
    }
}
