//! The same beside SmolLM2 under its adapter. Exists with the feature `real-models` only; `SLM_MODELS` names a folder with the GGUF file,
//! `SLM_REFERENCE` one with `adapters/`.

#![cfg(feature = "real-models")]

mod common;

use std::alloc::System;
use std::path::PathBuf;

use common::truth::{Bounds, COUNTING, check};
use slm_runtime::budget::Workload;
use stats_alloc::StatsAlloc;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = COUNTING;

fn read(variable: &str, path: &str) -> Vec<u8> {
    let path = PathBuf::from(std::env::var_os(variable).expect(variable)).join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn what_is_planned_for_smollm2_is_what_is_allocated() {
    let model = read("SLM_MODELS", "smollm2-135m-instruct-q4_1.gguf");
    let file = |file: &str| read("SLM_REFERENCE", &format!("adapters/smollm2-kjv/{file}"));
    let (config, weights) = (file("adapter_config.json"), file("adapter_model.safetensors"));
    let work = |positions, chunk, all_logits| Workload { positions, chunk, all_logits };
    let works = [work(64, 1, false), work(512, 64, false), work(256, 256, true)];
    let bounds = Bounds { base: 10, adapters: 10, scratch: 10, total: 10 };
    check(&model, &[("kjv", &config, &weights)], &works, bounds);
}
