//! A token of a warm session allocates nothing: counted by the allocator itself. One test, alone in its process.

mod common;

use std::alloc::System;
use std::sync::Arc;

use common::{LIMITS, composition, engine, tiny};
use slm_format::{Coded, Encoding};
use slm_manifest::ExecutionProfile;
use slm_overlay::peft::PeftAdapter;
use slm_overlay::{Adapter, AdapterKind, Delta, DenseDelta, Factor, Lora, Module, SparseDelta};
use slm_quant::Tier;
use slm_runtime::{Composition, Session, Step};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How often a number is looked at that another thread of the pool may add to.
const LOOKS: usize = 4;

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
    // Before any pool: threads of one that was dropped may still be ending, and that counts too.
    the_first_token_after_a_reservation_allocates_nothing();
    a_reservation_reads_nothing_of_a_refused_pass();
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
                    session.reserve(warm + LOOKS * counted).expect("room");
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
                        made = fewest(n_threads, || step(&mut session, &mut logits, counted));
                    });
                    assert_eq!(made, 0, "{tier:?}, {n_threads} threads, {stack:?}, {profile:?}");
                }
            }
        }
    }

    every_kind_allocates_nothing();

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

/// The fewest allocations that `f` makes in some calls. With other threads, the pool's own queue grows where one is held up by others of the
/// machine: once, and not in every call.
fn fewest(n_threads: usize, mut f: impl FnMut()) -> usize {
    let looks = if n_threads == 1 { 1 } else { LOOKS };
    let mut made = usize::MAX;
    for _ in 0..looks {
        made = made.min(allocations(&mut f));
        if made == 0 {
            break;
        }
    }
    made
}

/// Every kind of adapter, on one thread and on two, on both paths.
fn every_kind_allocates_nothing() {
    let mut kinds: Vec<AdapterKind> = Vec::new();
    for (name, adapter) in adapters() {
        kinds.push(adapter.kind());
        let composition = alone(adapter);
        for n_threads in [1, 2] {
            for profile in [ExecutionProfile::DEFAULT, ExecutionProfile::ORACLE] {
                let engine = engine(Tier::detect(), n_threads);
                let composition = Arc::clone(&composition);
                let mut session =
                    Session::new(composition, profile, engine.clone()).expect("a session");
                session.reserve(70 + LOOKS * 30).expect("room");
                let mut logits = Vec::new();
                let mut step = |n: u32| {
                    for token in 0..n {
                        session.advance_into(&mut logits, &[token * 7 % 1024], 1).expect("a token");
                    }
                };
                let mut made = usize::MAX;
                engine.exec.enter(&mut || {
                    step(70);
                    made = fewest(n_threads, || step(30));
                });
                assert_eq!(made, 0, "{name}, {n_threads} threads, {profile:?}");
            }
        }
    }
    kinds.sort_by_key(|kind| kind.name());
    kinds.dedup();
    assert_eq!(kinds.len(), 9, "not every kind is here: {kinds:?}");
}

fn adapters() -> Vec<(&'static str, Adapter)> {
    let read = |path: &str| {
        let path = slm_golden::path("files/adapters").join(path);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let folder = |name: &'static str| {
        let config = read(&format!("{name}/adapter_config.json"));
        let weights = read(&format!("{name}/adapter_model.safetensors"));
        let parsed = PeftAdapter::parse(&config, &weights, &LIMITS).expect("a PEFT adapter");
        (name, parsed.resolve(&tiny().shape()).expect("an adapter of this model").0)
    };
    let mut all: Vec<_> =
        ["lora-all-linear", "lora-bias-term", "lora-embed", "dora", "ia3", "loha", "lokr", "vera"]
            .map(folder)
            .into();
    let factor = |rows: u64, cols: u64| {
        let values = (0..rows * cols).flat_map(|at| (at as f32 * 1e-5).to_le_bytes()).collect();
        Factor::new("x", Encoding::F32, rows, cols, values).expect("a factor")
    };
    let module = |delta| vec![Module { target: "blk.1.attn_v.weight".into(), delta }];
    let dense = Delta::Dense(DenseDelta { scale: 1.0, delta: factor(128, 256) });
    let indices = (0..100).map(|at| at * 300).collect();
    let sparse = SparseDelta { scale: 1.0, rows: 128, cols: 256, indices, values: factor(1, 100) };
    let lora = Lora { scale: 1.0, a: factor(4, 256), b: factor(128, 4), bias: None };
    let waiting = Adapter::with_invocation(module(Delta::Lora(lora)), vec![7, 14]);
    all.push(("dense", Adapter::new(module(dense)).expect("dense")));
    all.push(("sparse", Adapter::new(module(Delta::Sparse(sparse))).expect("sparse")));
    all.push(("alora", waiting.expect("an invocation")));
    all
}

fn the_first_token_after_a_reservation_allocates_nothing() {
    let base = tiny();
    let mut compositions = vec![
        ("bare", composition(&base, &[])),
        ("two", composition(&base, &[("kjv", 0.7), ("python", 0.3)])),
    ];
    compositions.extend(adapters().into_iter().map(|(name, adapter)| (name, alone(adapter))));
    let mut logits = Vec::with_capacity(base.config().vocab_size as usize);
    for (name, composition) in compositions {
        for profile in [ExecutionProfile::DEFAULT, ExecutionProfile::ORACLE] {
            let engine = engine(Tier::detect(), 1);
            let mut session =
                Session::new(Arc::clone(&composition), profile, engine).expect("a session");
            session.reserve(1).expect("room");
            let made = allocations(|| session.advance_into(&mut logits, &[1], 1).expect("a token"));
            assert_eq!(made, 0, "{name}, {profile:?}");
        }
    }
}

fn a_reservation_reads_nothing_of_a_refused_pass() {
    let session = |value: f32| {
        let rows = u64::from(tiny().config().n_ff);
        let values = value.to_le_bytes().repeat(256);
        let a = Factor::new("a", Encoding::F32, 1, 256, values.into()).expect("a factor");
        let ones = 1.0f32.to_le_bytes().repeat(rows as usize);
        let b = Factor::new("b", Encoding::F32, rows, 1, ones.into()).expect("a factor");
        let lora = Delta::Lora(Lora { scale: 1.0, a, b, bias: None });
        let module = Module { target: "blk.0.ffn_gate.weight".into(), delta: lora };
        let composition = alone(Adapter::new(vec![module]).expect("an adapter"));
        let engine = engine(Tier::detect(), 1);
        Session::new(composition, ExecutionProfile::DEFAULT, engine).expect("a session")
    };
    // The same adapter, so weak that all is finite, runs.
    for (value, refused) in [(3e38, true), (1e-3, false)] {
        let mut session = session(value);
        let mut logits = Vec::new();
        let outcome = session.advance_into(&mut logits, &[1], 1);
        assert_eq!(
            outcome.err().map(|error| error.code()),
            refused.then_some("non-finite-activation")
        );
        session.reserve(2).expect("room");
        assert_eq!(session.position(), usize::from(!refused));
    }
}

/// A composition of the tiny model with one adapter.
fn alone(adapter: Adapter) -> Arc<Composition> {
    let base = tiny();
    let bound = Arc::new(adapter).bind(base.id(), &base.shape()).expect("a binding");
    let stack = vec![("an adapter".to_owned(), Arc::new(bound), 0.5)];
    Arc::new(Composition::new(base, stack).expect("a composition"))
}
