//! Bits of the real models: every tier, thread count and chunk against the recorded logits of the reference pass.
//!
//! Exists with the feature `real-models` only; `SLM_MODELS` names a folder with the two GGUF files, `SLM_REFERENCE` one with `adapters/`, and
//! anything missing fails.

#![cfg(feature = "real-models")]

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::{LIMITS, bits, engine, resolve};
use slm_golden::vectors::{RealModelVector, real_models};
use slm_manifest::ExecutionProfile;
use slm_quant::Tier;
use slm_runtime::load::{Base, Bytes};
use slm_runtime::{Composition, Engine, Session};

/// One by one, odd, and larger than half of the prompts.
const CHUNKS: [usize; 3] = [1, 5, 64];

fn read(variable: &str, path: &str) -> Vec<u8> {
    let path = PathBuf::from(std::env::var_os(variable).expect(variable)).join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn composition(base: Base, record: &RealModelVector) -> Arc<Composition> {
    let base = Arc::new(base);
    let adapters = record.stack.iter().map(|entry| {
        let file = |file| read("SLM_REFERENCE", &format!("adapters/{}/{file}", entry.adapter));
        let (config, weights) = (file("adapter_config.json"), file("adapter_model.safetensors"));
        let resolved = resolve(&config, &weights, &base.shape()).expect("an adapter of this model");
        let bound = Arc::new(resolved.adapter).bind(base.id(), &base.shape()).expect("a binding");
        (entry.adapter.clone(), Arc::new(bound), entry.weight)
    });
    let adapters = adapters.collect();
    Arc::new(Composition::new(base, adapters).expect("a composition"))
}

fn check(record: &RealModelVector, composition: &Arc<Composition>, engine: &Engine, chunk: usize) {
    let mut session =
        Session::new(Arc::clone(composition), ExecutionProfile::DEFAULT, engine.clone())
            .expect("a session");
    let found = bits(&mut session, &record.tokens, chunk).all_blake3;
    assert_eq!(found, record.all_blake3, "{}, {engine:?}, chunk {chunk}", record.name);
}

/// The record of this name, with rows as a store has them on everything, and as the file has them once on each tier.
fn every_tier(name: &str) {
    let file = real_models();
    assert_eq!((file.activations.as_str(), file.kv.as_str()), ("int8", "f16"));
    let record = file.records.iter().find(|record| record.name == name).expect("a record");
    let bytes = read("SLM_MODELS", &record.gguf);
    let found = blake3::hash(&bytes).to_hex();
    assert_eq!(found.as_str(), record.gguf_blake3, "{}: another file", record.gguf);
    let bytes: Bytes = Arc::new(bytes);
    for tier in Tier::available() {
        let two = engine(tier, 2);
        let (kernels, exec) = (two.kernels, &*two.exec);
        let rows = Base::open(Arc::clone(&bytes), &LIMITS, kernels, exec).expect("a model");
        check(record, &composition(rows, record), &two, 64);
        let strips = Base::load((*bytes).as_ref(), &LIMITS, kernels, exec, &|_| {});
        let composition = composition(strips.expect("a model"), record);
        for engine in [&engine(tier, 1), &two] {
            for chunk in CHUNKS {
                check(record, &composition, engine, chunk);
            }
        }
    }
}

#[test]
fn smollm2_base() {
    every_tier("SmolLM2 base");
}

#[test]
fn smollm2_weighted_pair() {
    every_tier("SmolLM2 kjv@0.7+shakespeare@0.3");
}

#[test]
fn gemma3_base() {
    every_tier("Gemma 3 base");
}
