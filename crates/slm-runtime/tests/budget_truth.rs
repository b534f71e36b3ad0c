//! The plan beside what is allocated, counted by the allocator itself. One test, alone in its process.

mod common;

use std::alloc::System;
use std::sync::Arc;

use common::{LIMITS, adapter_files, resolve};
use slm_golden::TINY_Q8_0;
use slm_manifest::ExecutionProfile;
use slm_quant::{Inline, Kernels};
use slm_runtime::budget::{MemoryPlan, Workload};
use slm_runtime::load::Base;
use slm_runtime::{Composition, Engine, Session};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes that what `f` returns keeps allocated.
fn kept<T>(f: impl FnOnce() -> T) -> (T, u64) {
    let region = Region::new(ALLOCATOR);
    let value = f();
    let change = region.change();
    (value, (change.bytes_allocated - change.bytes_deallocated) as u64)
}

/// `found` bytes are what was planned, to so many percent.
fn near(what: &str, found: u64, planned: u64, percent: u64) {
    println!("{what:<10} planned {planned:>9}, allocated {found:>9}");
    assert!(found <= planned, "{what}: {found} bytes, planned {planned}");
    assert!(found * 100 >= planned * (100 - percent), "{what}: {found} bytes, planned {planned}");
}

#[test]
fn what_is_planned_is_what_is_allocated() {
    let (bytes, counted) = kept(|| vec![1u8; 1000]);
    assert_eq!(counted, 1000, "the counter counts");
    drop(bytes);
    let load = || Base::load(TINY_Q8_0, &LIMITS, Kernels::detect(), &Inline, &|_| {});
    let (base, base_bytes) = kept(|| Arc::new(load().expect("the tiny model")));
    // Weights in pages of their own do not come from the allocator.
    let in_pages = if base_bytes < base.weight_bytes() { base.weight_bytes() } else { 0 };
    let base_bytes = base_bytes + in_pages;
    let (_, tokenizer_bytes) = kept(|| base.tokenizer().expect("a tokenizer").bos());
    let (stack, adapter_bytes) = kept(|| {
        ["kjv", "python"].map(|adapter| {
            let (config, weights) = adapter_files(adapter);
            let resolved = resolve(config, weights, &base.shape()).expect("an adapter");
            let bound = Arc::new(resolved.adapter).bind(base.id(), &base.shape());
            (adapter.to_owned(), Arc::new(bound.expect("a binding")), 1.0)
        })
    });
    println!("base {base_bytes}, tokenizer {tokenizer_bytes}, adapters {adapter_bytes}");
    let composition = Composition::new(Arc::clone(&base), stack.to_vec()).expect("a composition");
    let composition = Arc::new(composition);
    for (positions, chunk, n_tokens) in [(64, 1, 40), (200, 64, 200), (512, 256, 300)] {
        for profile in [ExecutionProfile::DEFAULT, ExecutionProfile::ORACLE] {
            let work = Workload { positions, chunk, all_logits: false };
            let plan = MemoryPlan::of_session(&composition, &profile, 1, work).expect("a plan");
            let tokens: Vec<u32> = (0..n_tokens).collect();
            let (session, session_bytes) = kept(|| {
                let mut session = Session::new(Arc::clone(&composition), profile, Engine::inline())
                    .expect("a session");
                session.reserve(positions as usize).expect("room");
                session.advance(&tokens, chunk).expect("a pass");
                session
            });
            println!("{positions} positions, passes of {chunk}:");
            assert_eq!(session.kv_bytes(), plan.kv);
            println!(
                "  scratch  planned {:>9}, allocated {:>9}",
                plan.scratch,
                session_bytes.saturating_sub(plan.kv)
            );
            let whole = base_bytes + tokenizer_bytes + adapter_bytes + session_bytes;
            near("total", whole, plan.total(), 30);
            let small = plan.overhead;
            assert!(session_bytes <= plan.kv + plan.scratch + small, "{session_bytes}");
            assert_eq!(plan.requantization, 0);
        }
    }
    let plan = MemoryPlan::of_session(
        &composition,
        &ExecutionProfile::DEFAULT,
        1,
        Workload { positions: 64, chunk: 1, all_logits: false },
    )
    .expect("a plan");
    println!("base       planned {:>9}, allocated {base_bytes:>9}", plan.base);
    println!("tokenizer  {tokenizer_bytes:>9} of an overhead of {}", plan.overhead);
    println!("adapters   planned {:>9}, allocated {adapter_bytes:>9}", plan.adapters);
    assert!(base_bytes.abs_diff(plan.base) * 100 <= plan.base * 8, "{base_bytes}");
    assert!(adapter_bytes.abs_diff(plan.adapters) * 100 <= plan.adapters * 3, "{adapter_bytes}");
    // Each multiplication of an adapter reads one of its values once: the tiny adapters are of 32-bit values.
    assert_eq!(plan.extra_bytes, 4 * plan.extra_macs);
    assert_eq!(plan.adapters, 2 * plan.extra_bytes);
}
