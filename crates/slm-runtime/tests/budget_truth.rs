//! The plan beside what is allocated, counted by the allocator itself. One test, alone in its process.

mod common;

use std::alloc::System;

use common::adapter_files;
use common::truth::{Bounds, COUNTING, check};
use slm_golden::TINY_Q8_0;
use slm_runtime::budget::Workload;
use stats_alloc::StatsAlloc;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = COUNTING;

#[test]
fn what_is_planned_is_what_is_allocated() {
    let adapters = ["kjv", "python"].map(|name| {
        let (config, weights) = adapter_files(name);
        (name, config, weights)
    });
    let work = |positions, chunk, all_logits| Workload { positions, chunk, all_logits };
    let works =
        [work(40, 1, false), work(200, 64, false), work(512, 256, false), work(200, 64, true)];
    // Of a model of 1 MB, the tokenizer's tables and everything small are a good part: the allowance is for them.
    let bounds = Bounds { base: 10, adapters: 10, scratch: 10, total: 10 };
    check(TINY_Q8_0, &adapters, &works, bounds);
}
