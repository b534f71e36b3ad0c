//! A token of a warm session allocates nothing: counted by the allocator itself. One test, alone in its process.

mod common;

use std::alloc::System;

use common::{composition, engine, tiny};
use slm_manifest::ExecutionProfile;
use slm_quant::Tier;
use slm_runtime::{Session, Step};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allocations and reallocations that `f` makes, on any thread.
fn allocations(f: impl FnOnce()) -> usize {
    let region = Region::new(ALLOCATOR);
    f();
    let change = region.change();
    change.allocations + change.reallocations
}

#[test]
fn decoding_allocates_nothing() {
    assert_ne!(allocations(|| drop(std::hint::black_box(vec![1u8; 100]))), 0, "the counter counts");
    // More than a page of the cache, and a stack, so that every kind of buffer is used.
    let (warm, counted) = (70, 100);
    for tier in Tier::available() {
        for n_threads in [1, 2] {
            for stack in [&[][..], &[("kjv", 0.7), ("python", 0.3)]] {
                for profile in [ExecutionProfile::DEFAULT, ExecutionProfile::ORACLE] {
                    let engine = engine(tier, n_threads);
                    let composition = composition(&tiny(), stack);
                    let mut session =
                        Session::new(composition, profile, engine.clone()).expect("a session");
                    session.reserve(warm + counted).expect("room");
                    let mut logits = Vec::new();
                    let step = |session: &mut Session, logits: &mut Vec<f32>, n: usize| {
                        for token in 0..n as u32 {
                            session.advance_into(logits, &[token * 7 % 1024], 1).expect("a token");
                        }
                    };
                    // On the executor's threads, as a loop that cares does: entering them from outside now and then allocates there.
                    let mut made = usize::MAX;
                    engine.exec.enter(&mut || {
                        step(&mut session, &mut logits, warm);
                        made = allocations(|| step(&mut session, &mut logits, counted));
                    });
                    assert_eq!(made, 0, "{tier:?}, {n_threads} threads, {stack:?}, {profile:?}");
                }
            }
        }
    }

    // Entering for every token costs the pool's queue an allocation in some dozens of tokens.
    let engine = engine(Tier::detect(), 2);
    let open = || {
        let composition = composition(&tiny(), &[]);
        let mut session = Session::new(composition, ExecutionProfile::DEFAULT, engine.clone())
            .expect("a session");
        session.reserve(400).expect("room");
        session
    };
    let mut session = open();
    let mut logits = Vec::new();
    session.advance_into(&mut logits, &[1], 1).expect("a token");
    let made = allocations(|| {
        for _ in 0..128 {
            session.advance_into(&mut logits, &[1], 1).expect("a token");
        }
    });
    assert!(made <= 128 / 16, "{made} allocations in 128 tokens");

    // A common step allocates its list of sequences, and nothing that grows with the model.
    let (mut a, mut b) = (open(), open());
    let mut common = |n: usize| {
        for _ in 0..n {
            let mut steps =
                [Step { session: &mut a, tokens: &[1] }, Step { session: &mut b, tokens: &[2] }];
            Session::advance_together(&mut steps, &mut |_, _| {}).expect("a common step");
        }
    };
    common(2);
    let made = allocations(|| common(64));
    assert!(made <= 64 * 2, "{made} allocations in 64 common steps");
}
