//! Switches beside running generations, under each policy; budgets at each component; and the states of a switch one by one.

mod common;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::{
    Choices, LIMITS, NOW, TOKENS, active_bits, bits_of, code, compose, composition, import, name,
    session, tiny, to_bits,
};
use slm_format::{Coded, ErrorClass};
use slm_manifest::policy::{BudgetPolicy, DuringGeneration, LocalPolicy, RawLocalPolicy};
use slm_manifest::{CompositionId, ExecutionProfile};
use slm_runtime::budget::{BudgetError, Component, MemoryPlan, Workload};
use slm_runtime::generate::{GenerateOptions, Stop};
use slm_runtime::runtime::{Prepared, Reference, Request, no_patience};
use slm_runtime::sample::Sampling;
use slm_runtime::{Engine, Runtime, RuntimeError};
use slm_store::{MemStorage, Storage, Store};

const UNLIMITED: BudgetPolicy =
    BudgetPolicy { base: None, adapters: None, kv: None, scratch: None, total: None };

const STACKS: [(&str, &[(&str, f32)]); 4] = [
    ("bare", &[]),
    ("k", &[("kjv", 1.0)]),
    ("p", &[("python", 1.0)]),
    ("kp", &[("kjv", 0.5), ("python", 1.0)]),
];

fn runtime_with(
    storage: MemStorage,
    budget: BudgetPolicy,
    policy: DuringGeneration,
) -> Runtime<MemStorage> {
    let mut raw = RawLocalPolicy { budget, ..RawLocalPolicy::default() };
    raw.switch.during_generation = policy;
    let policy = LocalPolicy::check(raw).expect("a policy");
    let store = Store::open(storage).expect("a store");
    Runtime::with_policy(store, Engine::inline(), LIMITS, policy)
}

/// Everything imported, all of [`STACKS`] composed, `bare` active.
fn ready(policy: DuringGeneration) -> Runtime<MemStorage> {
    let storage = MemStorage::new();
    let (first, _) = common::stocked(storage.clone());
    for (name, stack) in &STACKS[1..] {
        compose(&first, name, stack);
    }
    drop(first);
    let runtime = runtime_with(storage, UNLIMITED, policy);
    activate(&runtime, "bare").expect("active");
    runtime
}

fn request(composition: &str) -> Request {
    Request::Activate(Reference::Text(composition.to_owned()))
}

fn activate<S: Storage>(
    runtime: &Runtime<S>,
    composition: &str,
) -> Result<slm_runtime::runtime::Activation, RuntimeError> {
    runtime.activate_composition(&Reference::Text(composition.to_owned()), NOW)
}

fn options(max_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens, sampling: Sampling::GREEDY, stop_ids: Vec::new(), chunk: 64 }
}

fn no_op() {}

#[test]
fn reject_refuses_a_switch_while_generations_run() {
    let runtime = ready(DuringGeneration::Reject);
    let mut generation =
        runtime.generation(ExecutionProfile::DEFAULT, &mut no_patience).expect("a generation");
    let second = runtime.generation(ExecutionProfile::DEFAULT, &mut no_patience);
    let second = second.expect("another");
    assert_eq!(runtime.running(), 2);
    let history = runtime.history().expect("a history");
    for attempt in [
        activate(&runtime, "k"),
        runtime.switch(&request("k"), NOW, &mut || panic!("reject does not wait")),
    ] {
        let error = attempt.expect_err("refused");
        assert_eq!((error.code(), error.class()), ("generation-running", ErrorClass::Busy));
        assert!(error.to_string().starts_with("2 generations"), "{error}");
    }
    assert_eq!(runtime.history().expect("a history"), history);
    // What is active already is no switch.
    assert!(!activate(&runtime, "bare").expect("unchanged").changed);
    drop(second);
    let (_, stop) = generation
        .generate(&[], &TOKENS, &options(3), &mut no_op, &mut |_| ControlFlow::Continue(()))
        .expect("tokens");
    assert_eq!(stop, Stop::MaxTokens);
    assert_eq!(code(activate(&runtime, "k")), "generation-running");
    drop(generation);
    assert!(activate(&runtime, "k").expect("the twin").changed);
}

#[test]
fn abort_ends_what_runs_with_a_reason() {
    let runtime = ready(DuringGeneration::Abort);
    let mut generation =
        runtime.generation(ExecutionProfile::DEFAULT, &mut no_patience).expect("a generation");
    let mut seen = 0;
    let (tokens, stop) = generation
        .generate(&[], &TOKENS, &options(50), &mut no_op, &mut |_| {
            seen += 1;
            if seen == 4 {
                assert!(activate(&runtime, "k").expect("a switch").changed);
            }
            ControlFlow::Continue(())
        })
        .expect("tokens");
    assert_eq!((tokens.len(), stop, stop.name()), (4, Stop::Switched, "switched"));
    assert!(generation.has_ended());
    // It stays ended, and is on the composition it began with; a new one has the new composition.
    let again = generation
        .generate(&[], &[1], &options(5), &mut no_op, &mut |_| ControlFlow::Continue(()))
        .expect("no tokens");
    assert_eq!(again, (Vec::new(), Stop::Switched));
    assert_eq!(generation.composition().id(), composition(&tiny(), &[]).id());
    let new = runtime.generation(ExecutionProfile::DEFAULT, &mut no_patience).expect("a new one");
    assert_eq!(new.composition().id(), composition(&tiny(), &[("kjv", 1.0)]).id());
    assert!(!new.has_ended());
    // A switch that fails ends nobody.
    assert_eq!(code(activate(&runtime, "nobody")), "not-found");
    assert!(!new.has_ended());
}

#[test]
fn drain_waits_as_long_as_its_caller_says() {
    let runtime = ready(DuringGeneration::Drain);
    let generation =
        runtime.generation(ExecutionProfile::DEFAULT, &mut no_patience).expect("a generation");
    let mut looks = 0;
    let error = runtime
        .switch(&request("k"), NOW, &mut || {
            looks += 1;
            // While the switch waits, new generations are held back, and so are other switches.
            let held = runtime.generation(ExecutionProfile::DEFAULT, &mut no_patience);
            assert_eq!(code(held), "switch-running");
            if looks < 5 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .expect_err("a generation runs on");
    assert_eq!((error.code(), error.class(), looks), ("drain-timeout", ErrorClass::Busy, 5));
    assert_eq!(runtime.status().expect("active").composition, composition(&tiny(), &[]).id());
    // The gate is open again.
    let second = runtime.generation(ExecutionProfile::DEFAULT, &mut no_patience).expect("open");
    let (mut one, mut two) = (Some(generation), Some(second));
    let activation = runtime
        .switch(&request("k"), NOW, &mut || {
            drop(one.take().or_else(|| two.take()));
            ControlFlow::Continue(())
        })
        .expect("drained");
    assert!(activation.changed && one.is_none() && two.is_none());
    assert_eq!(active_bits(&runtime), bits_of(&composition(&tiny(), &[("kjv", 1.0)])));
}

#[test]
fn old_overlays_are_freed_with_their_last_user() {
    for policy in [DuringGeneration::Abort, DuringGeneration::Reject] {
        let runtime = ready(policy);
        activate(&runtime, "k").expect("active");
        let weak = Arc::downgrade(&runtime.active_composition().expect("active"));
        let adapter = Arc::downgrade(&weak.upgrade().expect("held").stack().entries()[0].0);
        let user = match policy {
            DuringGeneration::Abort => {
                Some(runtime.generation(ExecutionProfile::DEFAULT, &mut no_patience).expect("one"))
            }
            _ => None,
        };
        activate(&runtime, "p").expect("active");
        assert_eq!(weak.upgrade().is_some(), user.is_some());
        let own = runtime.active_composition().expect("active").stack().bytes();
        assert_eq!(runtime.memory().adapters > own, user.is_some());
        drop(user);
        assert!(weak.upgrade().is_none(), "the composition outlives its users");
        assert!(adapter.upgrade().is_none(), "the adapter outlives its users");
        assert_eq!(runtime.running(), 0);
    }
}

#[test]
fn a_staged_switch_can_be_called_off() {
    let runtime = ready(DuringGeneration::Reject);
    let history = runtime.history().expect("a history");
    let before = active_bits(&runtime);
    {
        let mut lock = runtime.lock(NOW).expect("the lock");
        assert_eq!(code(runtime.lock(NOW)), "store-busy");
        let Prepared::Staged(staged) =
            runtime.prepare(&mut lock, &request("k"), NOW).expect("staged")
        else {
            panic!("nothing was to do");
        };
        assert_eq!(staged.composition().id(), composition(&tiny(), &[("kjv", 1.0)]).id());
        // Sessions meanwhile have what is active.
        assert_eq!(active_bits(&runtime), before);
        staged.cancel().expect("called off");
        // And dropped, as by a panic of its caller.
        drop(runtime.prepare(&mut lock, &request("p"), NOW).expect("staged"));
    }
    assert_eq!(runtime.history().expect("a history"), history);
    assert_eq!(active_bits(&runtime), before);
    assert!(activate(&runtime, "k").expect("a switch").changed);
    let log: Vec<(String, String, Option<String>)> = runtime
        .store()
        .audit()
        .expect("a whole log")
        .records
        .into_iter()
        .map(|record| (record.operation.to_string(), record.stage.to_string(), record.code))
        .collect();
    let said = |stage: &str, code: Option<&str>| {
        log.iter().any(|entry| entry.1 == stage && entry.2.as_deref() == code)
    };
    assert!(said("rolled-back", Some("switch-cancelled")), "{log:?}");
    assert!(said("recovered", None), "{log:?}");
    assert_eq!(log.last().map(|entry| entry.1.as_str()), Some("committed"), "{log:?}");
}

/// Every state of every operation is a record with its digests and its time.
#[test]
fn the_log_tells_each_step() {
    let storage = MemStorage::new();
    let (runtime, _) = common::stocked(storage);
    compose(&runtime, "k", &[("kjv", 1.0)]);
    let runtime = runtime.acting_for(Some(name("alice")));
    let bare = activate(&runtime, "bare").expect("active");
    let k = activate(&runtime, "k").expect("active");
    runtime.rollback("2026-07-22T00:00:00Z").expect("a parent");
    assert_eq!(code(runtime.rollback(NOW)), "no-parent");
    activate(&runtime, "k").expect("active");
    runtime.deactivate_adapter("kjv", NOW).expect("a switch");
    let records = runtime.store().audit().expect("a whole log").records;
    let of = |operation: &str| -> Vec<_> {
        records.iter().filter(|record| record.operation.to_string() == operation).collect()
    };
    let stages = |operation: &str| -> Vec<String> {
        of(operation).iter().map(|record| record.stage.to_string()).collect()
    };
    assert_eq!(stages("import"), ["validating", "staged", "committed"]);
    assert_eq!(stages("adapter-import").len(), 6);
    assert_eq!(stages("compose").len(), 6);
    assert_eq!(stages("activate"), ["validating", "staged", "committed"].repeat(3));
    assert_eq!(stages("rollback"), ["validating", "staged", "committed", "validating", "refused"]);
    assert_eq!(stages("deactivate"), ["validating", "staged", "committed"]);
    let done = of("activate")[5];
    assert_eq!(done.composition, Some(k.composition));
    assert_eq!(done.manifest, Some(k.manifest));
    assert_eq!(done.actor, Some(name("alice")));
    let back = of("rollback")[2];
    assert_eq!(
        (back.time.as_str(), back.composition),
        ("2026-07-22T00:00:00Z", Some(bare.composition))
    );
    assert_eq!(of("rollback")[4].code.as_deref(), Some("no-parent"));
}

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
    let (whole, ended, held) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let switched = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                began.wait();
                while !over.load(Ordering::Relaxed) {
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
        let (mut switched, mut attempts) = (0, 0);
        while switched < 30 && attempts < 300 {
            attempts += 1;
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
                    std::thread::sleep(Duration::from_micros(500));
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        switched
    });
    println!(
        "{policy:?}: {switched} switches beside {} whole generations, {} ended, {} held back too long",
        whole.load(Ordering::Relaxed),
        ended.load(Ordering::Relaxed),
        held.load(Ordering::Relaxed)
    );
    assert!(switched > 0 || policy == DuringGeneration::Reject, "{policy:?} never switched");
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

/// The error of an over-budget attempt, with what it needs.
fn over<T>(result: Result<T, RuntimeError>) -> BudgetError {
    match result {
        Err(RuntimeError::Budget(error)) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("accepted"),
    }
}

/// For each component: what is just allowed is accepted, a byte less is refused, and the old composition serves on.
#[test]
fn each_component_has_its_budget_at_activation_and_at_generation() {
    let storage = MemStorage::new();
    let (first, _) = common::stocked(storage.clone());
    compose(&first, "k", &[("kjv", 1.0)]);
    compose(&first, "kp", &[("kjv", 0.5), ("python", 1.0)]);
    activate(&first, "bare").expect("active");
    drop(first);
    let with = |budgets| runtime_with(storage.clone(), budgets, DuringGeneration::Reject);
    let none = || UNLIMITED;

    // Base: nothing is opened at all.
    let error = over(with(BudgetPolicy { base: Some(1), ..none() }).active_composition());
    assert_eq!((error.code(), error.component), ("over-budget-base", Component::Base));
    let needed = error.needed;
    let tight = with(BudgetPolicy { base: Some(needed - 1), ..none() });
    assert_eq!(over(activate(&tight, "k")).code(), "over-budget-base");
    let exact = with(BudgetPolicy { base: Some(needed), ..none() });
    exact.active_composition().expect("the twin");
    // The base is resident once, whatever is activated beside it.
    activate(&exact, "k").expect("the same base");
    activate(&exact, "bare").expect("the same base");

    // Adapters: the old composition's count for as long as it serves.
    let probe = with(BudgetPolicy { adapters: Some(1), ..none() });
    let error = over(activate(&probe, "k"));
    assert_eq!(error.code(), "over-budget-adapters");
    let tight = with(BudgetPolicy { adapters: Some(error.needed - 1), ..none() });
    let before = active_bits(&tight);
    assert_eq!(over(activate(&tight, "k")).needed, error.needed);
    assert_eq!(active_bits(&tight), before, "the old composition serves");
    assert_eq!(tight.status().expect("active").composition, composition(&tiny(), &[]).id());
    let exact = with(BudgetPolicy { adapters: Some(error.needed), ..none() });
    activate(&exact, "k").expect("the twin");
    let error = over(activate(&exact, "kp"));
    assert_eq!(error.code(), "over-budget-adapters");
    assert_eq!(active_bits(&exact), bits_of(&composition(&tiny(), &[("kjv", 1.0)])));
    activate(&exact, "bare").expect("active");

    // Cache and buffers: at the start, and where more is asked for than was reserved.
    let plan = |positions, chunk| {
        let work = Workload { positions, chunk, all_logits: false };
        MemoryPlan::of_session(&composition(&tiny(), &[]), &ExecutionProfile::DEFAULT, 1, work)
            .expect("a plan")
    };
    let go = |runtime: &Runtime<MemStorage>| {
        let mut generation = runtime.generation(ExecutionProfile::DEFAULT, &mut no_patience)?;
        generation
            .generate(&[], &TOKENS, &options(100), &mut no_op, &mut |_| ControlFlow::Continue(()))
    };
    let (kv, scratch) = (plan(112, 12).kv, plan(112, 12).scratch);
    for (component, bytes) in [(Component::Kv, kv), (Component::Scratch, scratch)] {
        for (less, accepted) in [(0, true), (1, false)] {
            let mut budgets = none();
            match component {
                Component::Kv => budgets.kv = Some(bytes - less),
                _ => budgets.scratch = Some(bytes - less),
            }
            let runtime = with(budgets);
            match go(&runtime) {
                Ok((tokens, _)) => assert!(accepted && tokens.len() == 100, "{component}"),
                Err(error) => {
                    assert!(!accepted, "{component}: {error}");
                    assert_eq!(error.code(), format!("over-budget-{component}"));
                    assert_eq!(error.class(), ErrorClass::Budget);
                }
            }
            // Whatever it was, it is given back.
            assert_eq!((runtime.memory().kv, runtime.memory().scratch), (0, 0));
        }
    }
    let error = over(go(&with(BudgetPolicy { kv: Some(plan(1, 1).kv - 1), ..none() })));
    assert_eq!(error.code(), "over-budget-kv");

    // Two at once share what there is.
    let shared = with(BudgetPolicy { kv: Some(2 * kv - 1), ..none() });
    let mut one = shared.generation(ExecutionProfile::DEFAULT, &mut no_patience).expect("one");
    let mut two = shared.generation(ExecutionProfile::DEFAULT, &mut no_patience).expect("two");
    let work = Workload { positions: 112, chunk: 12, all_logits: false };
    one.reserve(work).expect("room");
    assert_eq!(code(two.reserve(work)), "over-budget-kv");
    drop(one);
    two.reserve(work).expect("room now");
    // A session that asks for more than was reserved is stopped before the page.
    let tokens: Vec<u32> = (0..129).collect();
    assert_eq!(code(two.session().advance(&tokens, 64)), "over-budget-kv");
    two.session().advance(&tokens[..128], 64).expect("two pages");

    // Everything together.
    let probe = with(BudgetPolicy { total: Some(1), ..none() });
    let error = over(activate(&probe, "k"));
    assert_eq!(error.code(), "over-budget-total");
    let exact = with(BudgetPolicy { total: Some(error.needed), ..none() });
    exact.active_composition().expect("the twin");
    assert_eq!(over(activate(&exact, "k")).code(), "over-budget-total");
    assert_eq!(active_bits(&exact), bits_of(&composition(&tiny(), &[])));
}

#[test]
fn an_import_within_budgets_and_one_beyond() {
    let storage = MemStorage::new();
    drop(common::stocked(storage.clone()));
    let tight = runtime_with(
        storage.clone(),
        BudgetPolicy { base: Some(1000), ..UNLIMITED },
        DuringGeneration::Reject,
    );
    assert_eq!(code(import(&tight, "kjv", "tiny")), "over-budget-base");
    let twin = runtime_with(storage, UNLIMITED, DuringGeneration::Reject);
    import(&twin, "kjv", "tiny").expect("the twin");
}

#[test]
fn f32_activations_have_an_f32_cache() {
    use slm_manifest::{Activations, KvType};
    for (activations, kv, accepted) in [
        (Activations::Int8, KvType::F16, true),
        (Activations::Int8, KvType::F32, true),
        (Activations::F32, KvType::F32, true),
        (Activations::F32, KvType::F16, false),
    ] {
        let profile = ExecutionProfile { activations, kv, ..ExecutionProfile::DEFAULT };
        let opened =
            slm_runtime::Session::new(composition(&tiny(), &[]), profile, Engine::inline());
        match opened {
            Ok(_) => assert!(accepted),
            Err(error) => {
                assert!(!accepted);
                assert_eq!(
                    (error.code(), error.class()),
                    ("profile-contradicts", ErrorClass::Usage)
                );
            }
        }
    }
}
