//! Eight threads that generate while another switches, under each policy.

mod common;

use std::ops::ControlFlow;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::switch::{STACKS, ready, request};
use common::{Choices, NOW, TOKENS, active_bits, bits_of, composition, session, tiny, to_bits};
use slm_format::Coded;
use slm_manifest::policy::DuringGeneration;
use slm_manifest::{CompositionId, ExecutionProfile};

/// What each composition says to the prompt, token by token, alone: the id, and a hash of each step's logits.
fn alone(steps: usize) -> Vec<(CompositionId, Vec<blake3::Hash>)> {
    STACKS
        .iter()
        .map(|(_, stack)| {
            let composition = composition(&tiny(), stack);
            let mut session = session(&composition, ExecutionProfile::DEFAULT);
            (composition.id(), hashes(&mut session, steps))
        })
        .collect()
}

/// Takes the prompt and then the likeliest token, again and again; a hash of each step's logits.
fn hashes(session: &mut slm_runtime::Session, steps: usize) -> Vec<blake3::Hash> {
    let mut next = TOKENS.to_vec();
    (0..steps).map(|_| step(session, &mut next)).collect()
}

/// One pass over `next`, which becomes the best token after it; the hash of its logits.
fn step(session: &mut slm_runtime::Session, next: &mut Vec<u32>) -> blake3::Hash {
    let logits = session.advance(next, 64).expect("a pass");
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("logits");
    *next = vec![best.0 as u32];
    let bytes: Vec<u8> = to_bits(&logits).iter().flat_map(|bits| bits.to_le_bytes()).collect();
    blake3::hash(&bytes)
}

/// Eight threads generate while another switches: no step's logits are of any other composition than the one that the generation began with.
fn stress(policy: DuringGeneration) {
    const STEPS: usize = 12;
    let expected = alone(STEPS);
    let runtime = ready(policy);
    let (over, began) = (AtomicBool::new(false), Barrier::new(9));
    // Under reject a switch succeeds only where nobody generates: now and then everybody pauses for one.
    let pause = AtomicBool::new(false);
    let (whole, ended, held) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (switched, refused) = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                began.wait();
                while !over.load(Ordering::Relaxed) {
                    if pause.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_micros(200));
                        continue;
                    }
                    let mut looks = 0;
                    let generation = runtime.generation(ExecutionProfile::DEFAULT, &mut || {
                        std::thread::sleep(Duration::from_micros(200));
                        looks += 1;
                        if looks > 500 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    });
                    let mut generation = match generation {
                        Ok(generation) => generation,
                        Err(error) => {
                            assert_eq!(error.code(), "switch-running");
                            held.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                    };
                    let id = generation.composition().id();
                    let (_, steps) =
                        expected.iter().find(|entry| entry.0 == id).expect("one of the stacks");
                    let (mut next, mut found) = (TOKENS.to_vec(), Vec::new());
                    while found.len() < STEPS && !generation.has_ended() {
                        found.push(step(generation.session(), &mut next));
                    }
                    assert_eq!(found[..], steps[..found.len()], "a mixed composition");
                    assert_eq!(generation.session().composition().id(), id);
                    let counter = if found.len() == STEPS { &whole } else { &ended };
                    counter.fetch_add(1, Ordering::Relaxed);
                    assert!(found.len() == STEPS || policy == DuringGeneration::Abort);
                    drop(generation);
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        }
        began.wait();
        let mut choices = Choices(policy as u64 + 1);
        let (mut switched, mut refused, mut attempts) = (0, 0, 0);
        while switched < 30 && attempts < 300 {
            attempts += 1;
            if policy == DuringGeneration::Reject && attempts % 8 == 0 {
                pause.store(true, Ordering::Relaxed);
                while runtime.running() > 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            let (composition, _) = STACKS[choices.below(STACKS.len())];
            let mut looks = 0;
            let outcome = runtime.switch(&request(composition), NOW, &mut || {
                std::thread::sleep(Duration::from_micros(200));
                looks += 1;
                if looks > 2_000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            match outcome {
                Ok(activation) => switched += u32::from(activation.changed),
                Err(error) => {
                    let expected = match policy {
                        DuringGeneration::Reject => "generation-running",
                        _ => "drain-timeout",
                    };
                    assert_eq!(error.code(), expected);
                    refused += 1;
                    std::thread::sleep(Duration::from_micros(500));
                }
            }
            pause.store(false, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
        (switched, refused)
    });
    println!(
        "{policy:?}: {switched} switches and {refused} refused beside {} whole generations, {} ended, {} held back too long",
        whole.load(Ordering::Relaxed),
        ended.load(Ordering::Relaxed),
        held.load(Ordering::Relaxed)
    );
    // Every eighth attempt under reject finds nobody inside, and three of four draw another composition than the active one.
    assert!(switched >= 10, "{policy:?}: {switched} switches");
    assert!(policy != DuringGeneration::Reject || refused > 0, "nobody was in the way");
    assert!(policy != DuringGeneration::Abort || ended.load(Ordering::Relaxed) > 0);
    assert_eq!(runtime.running(), 0);
    let id = runtime.status().expect("active").composition;
    let stack = STACKS.iter().find(|(_, stack)| composition(&tiny(), stack).id() == id);
    assert_eq!(active_bits(&runtime), bits_of(&composition(&tiny(), stack.expect("a stack").1)));
}

#[test]
fn eight_threads_under_reject() {
    stress(DuringGeneration::Reject);
}

#[test]
fn eight_threads_under_abort() {
    stress(DuringGeneration::Abort);
}

#[test]
fn eight_threads_under_drain() {
    stress(DuringGeneration::Drain);
}
