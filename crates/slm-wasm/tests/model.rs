//! The model behind the class, on the machine that runs the tests. What JavaScript sees of it is checked by `cargo xtask parity`.

use slm_format::{Coded, ErrorClass};
use slm_golden::vectors::{TINY_Q8_0_F32, TINY_Q8_0_INT8, parse};
use slm_golden::{
    TINY_KJV_CONFIG, TINY_KJV_WEIGHTS, TINY_PYTHON_CONFIG, TINY_PYTHON_WEIGHTS, TINY_Q8_0,
};
use slm_runtime::audit::hex;
use slm_wasm::{Mode, Model, WasmError};

fn tiny(kernel: Option<&str>) -> Model {
    let mut model = Model::open(TINY_Q8_0, kernel).expect("the tiny model");
    for (name, config, weights) in [
        ("tiny-kjv", TINY_KJV_CONFIG, TINY_KJV_WEIGHTS),
        ("tiny-python", TINY_PYTHON_CONFIG, TINY_PYTHON_WEIGHTS),
    ] {
        model.add_adapter(name, config, weights).expect("an adapter of the tiny model");
    }
    model
}

fn code<T: std::fmt::Debug>(result: Result<T, WasmError>) -> &'static str {
    result.expect_err("a refusal").code()
}

#[test]
fn digests_are_those_of_the_reference_pass_on_every_tier() {
    for tier in Model::tiers() {
        let mut model = tiny(Some(tier));
        for text in [TINY_Q8_0_INT8, TINY_Q8_0_F32] {
            let file = parse(text);
            let mode = Mode::parse(Some(&file.activations), Some(&file.kv)).expect("a mode");
            // Weights come as the f64 that JavaScript reads from the decimal.
            let weight = |f: f32| f.to_string().parse::<f64>().expect("a number");
            for vector in file.vectors.iter().filter(|vector| vector.tokens.len() < 64) {
                let stack: Vec<(&str, f64)> =
                    vector.stack.iter().map(|e| (e.adapter.as_str(), weight(e.weight))).collect();
                let id = model.compose(&stack).expect("a stack");
                let digest = model.logits_digest(&vector.tokens, 5, mode).expect("a digest");
                assert_eq!(digest.composition, id);
                assert_eq!(hex(digest.logits.all), vector.all_blake3, "{tier}, {}", vector.name);
            }
        }
    }
}

#[test]
fn a_stored_model_is_the_same_model() {
    let bytes = std::sync::Arc::new(TINY_Q8_0);
    let engine = slm_runtime::Engine::inline();
    let limits = slm_format::Limits::STANDARD;
    let base = slm_runtime::load::Base::open(bytes, &limits, engine.kernels, &*engine.exec)
        .expect("the tiny model");
    let mut stored = Vec::new();
    base.write_slm(&mut stored).expect("a .slm file");
    let stored = Model::open(&stored, None).expect("a .slm file is a model");
    let digest =
        |model: &Model| model.logits_digest(&[1, 2, 3], 2, Mode::default()).expect("a digest");
    assert_eq!(digest(&stored), digest(&tiny(None)));
}

#[test]
fn what_is_wrong_is_refused_by_code_and_changes_nothing() {
    assert_eq!(code(Model::open(&[], None)), "unknown-format");
    assert_eq!(code(Model::open(TINY_Q8_0, Some("none"))), "option-value");
    let mut model = tiny(Some("scalar"));
    let mode = Mode::default();
    let pair = [("tiny-kjv", 0.7), ("tiny-python", 0.3)];
    let composed = model.compose(&pair).expect("a stack");

    let unknown = model.compose(&[("tiny-kjv", 0.7), ("none", 0.3)]).expect_err("unknown");
    assert_eq!((unknown.code(), unknown.class()), ("not-found", ErrorClass::NotFound));
    let twice = [("tiny-kjv", 0.7), ("tiny-kjv", 0.3)];
    assert_eq!(code(model.compose(&twice)), "duplicate-adapter");
    for weight in [f64::NAN, f64::INFINITY, 1e60] {
        assert_eq!(code(model.compose(&[("tiny-kjv", weight)])), "adapter-weight");
    }
    let underflow = model.compose(&[("tiny-kjv", -1e-60)]).expect_err("it would be none");
    assert_eq!((underflow.code(), underflow.class()), ("option-value", ErrorClass::Usage));
    let cut = &TINY_KJV_WEIGHTS[..TINY_KJV_WEIGHTS.len() - 1];
    assert!(model.add_adapter("tiny-kjv", TINY_KJV_CONFIG, cut).is_err());
    let digest = model.logits_digest(&[1, 2], 1, mode).expect("a digest");
    assert_eq!(digest.composition, composed);

    assert_eq!(code(model.logits_digest(&[], 1, mode)), "empty-prompt");
    assert_eq!(code(model.logits_digest(&[1024], 1, mode)), "token-out-of-range");
    assert!(model.logits_digest(&[1023], 1, mode).is_ok());
    assert_eq!(code(Mode::parse(Some("int4"), None)), "option-value");
    assert_eq!(code(Mode::parse(None, Some("f64"))), "option-value");
    assert_eq!(Mode::parse(Some("int8"), None).expect("a mode"), mode);
}

#[test]
fn weight_zero_is_a_weight() {
    let mut model = tiny(None);
    let mode = Mode::default();
    let bare = model.logits_digest(&[1, 2], 2, mode).expect("a digest");
    model.compose(&[("tiny-kjv", 0.0)]).expect("a stack");
    let zero = model.logits_digest(&[1, 2], 2, mode).expect("a digest");
    assert_eq!(zero.logits, bare.logits);
    assert_ne!(zero.composition, bare.composition);
}
