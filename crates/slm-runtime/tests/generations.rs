//! Switches beside running generations, under each policy; and the states of a switch one by one.

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::switch::{activate, no_op, options, ready, request};
use common::{NOW, TOKENS, active_bits, bits_of, code, compose, composition, name, tiny};
use slm_format::{Coded, ErrorClass};
use slm_manifest::ExecutionProfile;
use slm_manifest::policy::DuringGeneration;
use slm_runtime::Engine;
use slm_runtime::generate::Stop;
use slm_runtime::runtime::{Prepared, no_patience};
use slm_store::MemStorage;

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
