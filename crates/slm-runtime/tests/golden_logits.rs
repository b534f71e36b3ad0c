//! Bits: every tier, thread count and chunk against the logits of the reference pass.

mod common;

use std::sync::Arc;

use common::{Bits, LIMITS, bits, composition, engine, tiny, to_bits};
use slm_golden::TINY_Q8_0;
use slm_golden::vectors::{TINY_Q8_0_F32, TINY_Q8_0_INT8, Vector, VectorFile, parse};
use slm_manifest::ExecutionProfile;
use slm_quant::Tier;
use slm_runtime::load::{Base, Bytes};
use slm_runtime::{Composition, Engine, Session};

/// Smaller than the prompts, odd, as large as a page, larger than either prompt.
const CHUNKS: [usize; 5] = [1, 5, 7, 64, 1000];
const THREADS: [usize; 3] = [1, 2, 3];

fn stack(vector: &Vector) -> Arc<Composition> {
    composition(&tiny(), &entries(vector))
}

fn entries(vector: &Vector) -> Vec<(&str, f32)> {
    vector.stack.iter().map(|entry| (entry.adapter.as_str(), entry.weight)).collect()
}

fn file(text: &str, activations: &str, kv: &str) -> VectorFile {
    let file = parse(text);
    assert_eq!((file.activations.as_str(), file.kv.as_str()), (activations, kv));
    assert_eq!(file.vectors.len(), 8, "four stacks by two prompts");
    file
}

fn check(vector: &Vector, profile: ExecutionProfile, engine: &Engine, chunk: usize) {
    let mut session = Session::new(stack(vector), profile, engine.clone()).expect("a session");
    let Bits { all_blake3, last } = bits(&mut session, &vector.tokens, chunk);
    let last: Vec<String> = last[..8].iter().map(|bits| format!("{bits:08x}")).collect();
    let what = format!("{}, {engine:?}, chunk {chunk}", vector.name);
    assert_eq!(last, vector.last_bits, "{what}");
    assert_eq!(all_blake3, vector.all_blake3, "{what}");
}

fn every_engine(file: &VectorFile, profile: ExecutionProfile) {
    let tiers = Tier::available();
    assert!(tiers.contains(&Tier::Scalar));
    let mut turn = 0;
    for tier in tiers {
        for n_threads in THREADS {
            let engine = engine(tier, n_threads);
            // Every vector once, the chunks taking turns; the short prompt under both adapters in every chunk.
            for vector in &file.vectors {
                check(vector, profile, &engine, CHUNKS[turn % CHUNKS.len()]);
                turn += 1;
            }
            let pair = &file.vectors[file.vectors.len() - 2];
            assert_eq!((pair.stack.len(), pair.tokens.len()), (2, 7));
            for chunk in CHUNKS {
                check(pair, profile, &engine, chunk);
            }
        }
    }
}

fn every_chunk(file: &VectorFile, profile: ExecutionProfile) {
    // Every stack over the short prompt, and the last one over the long prompt, which runs over two pages.
    let (long, short) = file.vectors.iter().partition::<Vec<&Vector>, _>(|v| v.tokens.len() > 64);
    assert_eq!((long.len(), short.len()), (4, 4));
    for vector in short.into_iter().chain(long.last().copied()) {
        for chunk in CHUNKS {
            check(vector, profile, &Engine::inline(), chunk);
        }
    }
}

#[test]
fn int8_on_every_tier_and_thread_count() {
    every_engine(&file(TINY_Q8_0_INT8, "int8", "f16"), ExecutionProfile::DEFAULT);
}

#[test]
fn f32_on_every_tier_and_thread_count() {
    every_engine(&file(TINY_Q8_0_F32, "f32", "f32"), ExecutionProfile::ORACLE);
}

#[test]
fn int8_in_every_chunk() {
    every_chunk(&file(TINY_Q8_0_INT8, "int8", "f16"), ExecutionProfile::DEFAULT);
}

#[test]
fn f32_in_every_chunk() {
    every_chunk(&file(TINY_Q8_0_F32, "f32", "f32"), ExecutionProfile::ORACLE);
}

/// A stored base has its rows interleaved, and a GGUF file's can be brought into that order in memory: each tier must read them as it reads
/// the file's own.
#[test]
fn interleaved_rows_give_the_same_bits_on_every_tier() {
    let mut stored = Vec::new();
    tiny().write_slm(&mut stored).expect("a .slm file");
    let stored: Bytes = Arc::new(stored);
    for tier in Tier::available() {
        let engine = engine(tier, 1);
        let exec = &*engine.exec;
        let load = |file: &[u8]| {
            Base::load(file, &LIMITS, engine.kernels, exec, &|_| {}).expect("a model")
        };
        let in_place = Base::open(Arc::clone(&stored), &LIMITS, engine.kernels, exec);
        let bases = [in_place.expect("a model"), load((*stored).as_ref()), load(TINY_Q8_0)];
        for base in bases.map(Arc::new) {
            assert_eq!((base.id(), base.rehash(exec)), (tiny().id(), tiny().id()));
            for (text, profile) in [
                (TINY_Q8_0_INT8, ExecutionProfile::DEFAULT),
                (TINY_Q8_0_F32, ExecutionProfile::ORACLE),
            ] {
                for vector in parse(text).vectors.iter().filter(|v| v.tokens.len() == 7) {
                    let composition = composition(&base, &entries(vector));
                    let mut session =
                        Session::new(composition, profile, engine.clone()).expect("a session");
                    let found = bits(&mut session, &vector.tokens, 64);
                    assert_eq!(found.all_blake3, vector.all_blake3, "{}, {engine:?}", vector.name);
                }
            }
        }
    }
}

#[test]
fn the_stacks_and_the_modes_differ() {
    let (int8, f32) = (parse(TINY_Q8_0_INT8), parse(TINY_Q8_0_F32));
    let mut digests: Vec<&str> =
        int8.vectors.iter().chain(&f32.vectors).map(|vector| vector.all_blake3.as_str()).collect();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 16, "a test that compares equal vectors proves nothing");
}

#[test]
fn last_position_alone_gives_the_same_bits() {
    for (text, profile) in
        [(TINY_Q8_0_INT8, ExecutionProfile::DEFAULT), (TINY_Q8_0_F32, ExecutionProfile::ORACLE)]
    {
        for vector in &parse(text).vectors {
            for chunk in [5, 1000] {
                let mut all = common::session(&stack(vector), profile);
                let mut last = common::session(&stack(vector), profile);
                let expected = bits(&mut all, &vector.tokens, chunk).last;
                let logits = last.advance(&vector.tokens, chunk).expect("a pass");
                assert_eq!(to_bits(&logits), expected, "{}", vector.name);
            }
        }
    }
}
