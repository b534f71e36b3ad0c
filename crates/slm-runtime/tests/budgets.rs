//! Budgets at each component, at activation, at generation, and for sessions whose work is known.

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::switch::{UNLIMITED, activate, no_op, options, runtime_with};
use common::{TOKENS, active_bits, bits_of, code, compose, composition, import, session, tiny};
use slm_format::{Coded, ErrorClass};
use slm_manifest::ExecutionProfile;
use slm_manifest::policy::{BudgetPolicy, DuringGeneration};
use slm_runtime::budget::{BudgetError, Component, MemoryPlan, Workload};
use slm_runtime::eval::{perplexity, workload};
use slm_runtime::runtime::no_patience;
use slm_runtime::{Runtime, RuntimeError};
use slm_store::MemStorage;

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

/// Logits of given tokens and an evaluation ask for cache and buffers as a generation does: what is just enough is accepted, a byte less is refused
/// before anything is allocated, and it is given back.
#[test]
fn sessions_for_known_work_have_budgets_too() {
    let storage = MemStorage::new();
    let (first, _) = common::stocked(storage.clone());
    activate(&first, "bare").expect("active");
    drop(first);
    let with = |budgets| runtime_with(storage.clone(), budgets, DuringGeneration::Reject);
    let ids: Vec<u32> = TOKENS.iter().copied().cycle().take(100).collect();
    let bare = composition(&tiny(), &[]);
    let profile = ExecutionProfile::DEFAULT;
    let expected = {
        let mut session = session(&bare, profile);
        perplexity(&mut session, &ids, 64, None, 16, &mut |_, _| {}).expect("a perplexity")
    };
    let work = workload(ids.len(), 64, false, 16);
    let plan = MemoryPlan::of_session(&bare, &profile, 1, work).expect("a plan");
    for component in [Component::Kv, Component::Scratch] {
        for (less, accepted) in [(0, true), (1, false)] {
            let mut budgets = UNLIMITED;
            match component {
                Component::Kv => budgets.kv = Some(plan.kv - less),
                _ => budgets.scratch = Some(plan.scratch - less),
            }
            let runtime = with(budgets);
            let active = runtime.active_composition().expect("active");
            let opened = runtime.session_for(Arc::clone(&active), profile, work);
            if !accepted {
                let error = over(opened);
                assert_eq!(error.code(), format!("over-budget-{component}"));
                assert_eq!(error.budget + 1, error.needed);
                assert_eq!((runtime.memory().kv, runtime.memory().scratch), (0, 0));
                continue;
            }
            let mut session = opened.expect("the twin");
            assert_eq!((runtime.memory().kv, runtime.memory().scratch), (plan.kv, plan.scratch));
            let found = perplexity(&mut session, &ids, 64, None, 16, &mut |_, _| {});
            assert_eq!(found.expect("a perplexity"), expected);
            // More than it was opened for is stopped before it is there.
            session.truncate(0);
            let more = match component {
                Component::Kv => session.advance_all(&ids, 16, &mut |_, _| {}),
                _ => session.advance_all(&ids[..64], 64, &mut |_, _| {}),
            };
            assert_eq!(code(more), format!("over-budget-{component}"));
            // What it holds is not there for another.
            assert_eq!(
                code(runtime.session_for(active, profile, work)),
                format!("over-budget-{component}")
            );
            drop(session);
            assert_eq!((runtime.memory().kv, runtime.memory().scratch), (0, 0));
        }
    }
    // A session without a plan is held to what is left.
    let runtime = with(BudgetPolicy { scratch: Some(plan.scratch), ..UNLIMITED });
    let mut session = runtime.session(profile).expect("a session");
    assert_eq!(code(session.advance_all(&ids[..64], 64, &mut |_, _| {})), "over-budget-scratch");
    assert_eq!(session.position(), 0);
    session.advance_all(&ids[..64], 16, &mut |_, _| {}).expect("the twin");
}
