//! The local policy as a runtime follows it: its wait, its source, a document that cannot be followed; and what the log tells of refusals.

mod common;

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use common::{LIMITS, Medium as _, NOW, code, compose, name, runtime, stocked};
use slm_format::{Coded, ErrorClass};
use slm_manifest::ExecutionProfile;
use slm_manifest::policy::{DuringGeneration, LocalPolicy, RawLocalPolicy};
use slm_runtime::runtime::{Pause, Reference, SystemPause, no_patience};
use slm_runtime::{Engine, Runtime};
use slm_store::{MemStorage, NameKind, Storage, Store};

fn text(composition: &str) -> Reference {
    Reference::Text(composition.to_owned())
}

/// A store with `bare` active and `k` beside it.
fn medium() -> MemStorage {
    let storage = MemStorage::new();
    let (runtime, _) = stocked(storage.clone());
    compose(&runtime, "k", &[("kjv", 1.0)]);
    runtime.activate_composition(&text("bare"), NOW).expect("active");
    storage
}

fn under(storage: &MemStorage) -> Runtime<MemStorage> {
    let store = Store::open(storage.clone()).expect("a store");
    Runtime::under_store_policy(store, Engine::inline(), LIMITS)
}

fn draining(storage: &MemStorage, drain_wait_ms: u64) -> Runtime<MemStorage> {
    let mut raw = RawLocalPolicy::default();
    raw.switch.during_generation = DuringGeneration::Drain;
    raw.switch.drain_wait_ms = drain_wait_ms;
    let policy = LocalPolicy::check(raw).expect("a policy");
    let store = Store::open(storage.clone()).expect("a store");
    Runtime::with_policy(store, Engine::inline(), LIMITS, policy)
}

/// A clock of its own, which also lets go of a generation at some time.
struct Counted {
    passed: AtomicU64,
    /// Says that less has passed than was asked for, down to nothing.
    stands: bool,
}

impl Pause for Counted {
    fn pause(&self, at_most_us: u64) -> u64 {
        let passed = if self.stands { 0 } else { at_most_us };
        self.passed.fetch_add(1, Ordering::Relaxed);
        passed
    }
}

#[test]
fn a_draining_switch_waits_as_long_as_the_policy_says() {
    for (ms, stands, looks) in [(0, false, 0), (7, false, 7), (3, true, 3_000)] {
        let storage = medium();
        let clock = Arc::new(Counted { passed: AtomicU64::new(0), stands });
        let runtime = draining(&storage, ms).pausing_with(Arc::clone(&clock) as Arc<dyn Pause>);
        let generation = runtime.generation(ExecutionProfile::DEFAULT, &mut no_patience);
        let generation = generation.expect("a generation");
        let error = runtime.activate_composition(&text("k"), NOW).expect_err("it runs on");
        assert_eq!((error.code(), error.class()), ("drain-timeout", ErrorClass::Busy));
        assert_eq!(error.class().exit_status(), 6);
        assert_eq!(clock.passed.load(Ordering::Relaxed), looks, "{ms} ms");
        // Rollback and deactivation wait by the same rule; here neither has anything to wait for.
        assert_eq!(code(runtime.rollback(NOW)), "no-parent");
        drop(generation);
        assert!(runtime.activate_composition(&text("k"), NOW).expect("drained").changed);
    }
}

/// By the system's clock, without anything given: a generation that ends in time lets the switch through, one that does not fails it in bounded time.
#[test]
fn the_usual_wait_is_by_the_systems_clock() {
    let storage = medium();
    let runtime = draining(&storage, 60);
    let generation =
        runtime.generation(ExecutionProfile::DEFAULT, &mut no_patience).expect("a generation");
    let began = Instant::now();
    assert_eq!(code(runtime.activate_composition(&text("k"), NOW)), "drain-timeout");
    let waited = began.elapsed();
    assert!(waited.as_millis() >= 60, "{waited:?}");
    drop(generation);

    let runtime = draining(&storage, 3_600_000).pausing_with(Arc::new(SystemPause));
    std::thread::scope(|scope| {
        let generation =
            runtime.generation(ExecutionProfile::DEFAULT, &mut no_patience).expect("a generation");
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(30));
            drop(generation);
        });
        assert!(runtime.activate_composition(&text("k"), NOW).expect("it has ended").changed);
    });
    // Reject does not wait, whatever the time.
    let mut patience = runtime_rejecting(&storage).patience();
    assert_eq!(patience(), ControlFlow::Break(()));
}

fn runtime_rejecting(storage: &MemStorage) -> Runtime<MemStorage> {
    let store = Store::open(storage.clone()).expect("a store");
    Runtime::with_policy(store, Engine::inline(), LIMITS, LocalPolicy::default())
}

#[test]
fn a_policy_that_another_process_changed_binds_from_the_next_lock_on() {
    let storage = medium();
    let here = under(&storage);
    let given = runtime(storage.clone());
    assert!(here.policy_fault().is_none() && *here.policy() == LocalPolicy::default());
    let there = under(&storage);
    let change = |document: &[u8]| {
        let lock = there.lock(NOW).expect("the lock");
        assert!(there.store().set_policy(&lock, document).expect("written"));
    };
    change(b"[trust]\nrule = \"signed\"\n");
    assert_eq!(code(here.activate_composition(&text("k"), NOW)), "unsigned");
    assert_eq!(code(here.activate_composition(&text("bare"), NOW)), "unsigned");
    let last = here.store().audit().expect("a chain").records.pop().expect("a record");
    assert_eq!(
        (last.stage.to_string().as_str(), last.code.as_deref()),
        ("refused", Some("unsigned"))
    );
    // A caller's own policy stays what the caller gave.
    assert!(given.activate_composition(&text("k"), NOW).expect("no rule").changed);
    assert!(given.activate_composition(&text("bare"), NOW).expect("no rule").changed);
    change(b"[budget]\nadapters_bytes = 1\n[store]\nkeep_generations = 3\n");
    assert_eq!(code(here.activate_composition(&text("k"), NOW)), "over-budget-adapters");
    assert_eq!((here.policy().store.keep_generations, here.budgets().adapters), (3, Some(1)));
    change(b"");
    assert!(here.activate_composition(&text("k"), NOW).expect("no rule any more").changed);
}

#[test]
fn a_policy_that_cannot_be_followed_hinders_changes_and_nothing_else() {
    let storage = medium();
    let digest = runtime(storage.clone()).status().expect("active").manifest_digest;
    for (document, expected) in [
        (&b"[trust\n"[..], "policy-syntax"),
        (b"[trust]\nrule = \"nobody\"\n", "policy-syntax"),
        (b"[store]\nkeep_generations = 0\n", "policy-range"),
        (b"\xff", "not-utf8"),
        (&[b'#'; (1 << 20) + 1], "limit-exceeded"),
    ] {
        storage.put("policy.toml", document);
        let before = storage.files();
        let here = under(&storage);
        let fault = here.policy_fault().expect("a fault");
        assert_eq!((fault.code(), fault.class()), (expected, ErrorClass::Refused));
        // Looking goes on.
        assert_eq!(here.status().expect("active").manifest_digest, digest);
        assert!(here.history().is_ok() && here.store().audit().is_ok());
        assert!(here.verify(true).is_clean());
        assert_eq!(here.store().names(NameKind::Composition).expect("names").len(), 2);
        here.manifest_by_reference(&text("k")).expect("a manifest");
        // Whatever would change something, or bring it into memory, is refused.
        assert_eq!(code(here.activate_composition(&text("k"), NOW)), expected);
        let last = here.store().audit().expect("a chain").records.pop().expect("a record");
        assert_eq!(last.code.as_deref(), Some(expected), "told");
        assert_eq!(code(here.rollback(NOW)), expected);
        assert_eq!(code(here.deactivate_adapter("kjv", NOW)), expected);
        assert_eq!(code(here.gc(10, NOW)), expected);
        assert_eq!(code(here.compose(&name("x"), "tiny", &[], NOW, false)), expected);
        assert_eq!(code(here.session(ExecutionProfile::DEFAULT)), expected);
        assert_eq!(code(here.open_composition(&text("k"))), expected);
        assert_eq!(code(here.remove_name(NameKind::Composition, &name("k"), NOW)), expected);
        assert_eq!(storage.files(), before, "{expected}");
    }
    // The twin.
    storage.put("policy.toml", b"[store]\nkeep_generations = 1\n");
    assert!(under(&storage).activate_composition(&text("k"), NOW).expect("a switch").changed);
    // Mended while a process runs, it is followed from the next lock on.
    storage.put("policy.toml", b"[trust\n");
    let here = under(&storage);
    storage.put("policy.toml", b"");
    assert!(here.activate_composition(&text("bare"), NOW).expect("a switch").changed);
    assert!(here.policy_fault().is_none());
}

/// A refusal is in the log wherever there is a store and its lock can be had; where there is no store, nothing comes into being.
#[test]
fn refusals_are_told_and_make_no_store() {
    let empty = MemStorage::new();
    let nothing = runtime(empty.clone());
    assert_eq!(code(nothing.activate_composition(&text("k"), NOW)), "not-found");
    assert_eq!(code(nothing.rollback(NOW)), "none-active");
    assert_eq!(code(nothing.deactivate_adapter("kjv", NOW)), "none-active");
    assert!(empty.paths().is_empty(), "{:?}", empty.paths());

    let storage = MemStorage::new();
    let (runtime, stock) = stocked(storage.clone());
    let told = |expected: &str| {
        let records = runtime.store().audit().expect("a chain").records;
        let last = records.last().expect("a record");
        assert_eq!(last.stage.to_string(), "refused");
        assert_eq!(last.code.as_deref(), Some(expected));
        records.len()
    };
    let records = Cell::new(runtime.store().audit().expect("a chain").records.len());
    let each = |expected: &str| {
        let now = told(expected);
        assert_eq!(now, records.get() + 2, "one that it began and one that it was refused");
        records.set(now);
    };
    assert_eq!(code(runtime.rollback(NOW)), "none-active");
    each("none-active");
    assert_eq!(code(runtime.deactivate_adapter("kjv", NOW)), "none-active");
    each("none-active");
    assert_eq!(code(runtime.activate_composition(&text("nobody"), NOW)), "not-found");
    each("not-found");
    let manifest = Reference::Manifest(b"{}".to_vec());
    assert_eq!(code(runtime.activate_composition(&manifest, NOW)), "manifest-missing-field");
    each("manifest-missing-field");
    // A damaged manifest.
    let k = compose(&runtime, "k", &[("kjv", 1.0)]);
    records.set(records.get() + 3);
    storage.put(&common::blob_path(k.manifest_digest), b"{}");
    assert_eq!(code(runtime.activate_composition(&text("k"), NOW)), "blob-damaged");
    each("blob-damaged");
    // A damaged active record: what is active cannot be told, and that is told.
    runtime.activate_composition(&text("bare"), NOW).expect("active");
    records.set(records.get() + 3);
    for slot in ["active.a", "active.b"] {
        storage.put(slot, b"?");
    }
    assert_eq!(code(runtime.rollback(NOW)), "slot-damaged");
    each("slot-damaged");
    // Where another has the lock, the caller hears what is wrong all the same.
    let lock = Store::open(storage.clone()).expect("a store").lock().expect("the lock");
    assert_eq!(code(runtime.activate_composition(&text("nobody"), NOW)), "not-found");
    assert_eq!(code(runtime.activate_composition(&text("bare"), NOW)), "store-busy");
    drop(lock);
    assert_eq!(stock.base.base, common::tiny().id());
}

/// A damaged name or manifest stops `gc`, which says which name it is and what to do; taking the name away is a way out.
#[test]
fn damage_stops_gc_until_its_name_is_gone() {
    let storage = medium();
    let runtime = runtime(storage.clone());
    let p = compose(&runtime, "p", &[("python", 1.0)]);
    let blocked = |what: NameKind, which: &str, inner: &str| {
        let before = storage.files();
        let error = runtime.gc(10, NOW).expect_err("blocked");
        assert_eq!((error.code(), error.class()), (inner, ErrorClass::Damaged));
        let (text, hint) = (error.to_string(), error.hint().expect("a hint"));
        assert!(text.contains(&format!("{what} {which}")), "{text}");
        assert!(hint.contains(&format!("{what} name {which}")), "{hint}");
        assert_eq!(storage.files(), before, "nothing is removed");
        assert!(runtime.remove_name(what, &name(which), NOW).expect("removed"));
        assert!(!runtime.remove_name(what, &name(which), NOW).expect("gone already"));
        runtime.gc(10, NOW).expect("the way out");
    };
    storage.put("names/adapter/python", b"?");
    blocked(NameKind::Adapter, "python", "name-damaged");
    let manifest = common::blob_path(p.manifest_digest);
    storage.put(&manifest, b"{}");
    blocked(NameKind::Composition, "p", "blob-damaged");
    // Nothing names it any more, so that it may have been anything: it goes when somebody says so.
    assert!(storage.read(&manifest, 1).expect("memory").is_some(), "kept with its damage");
    let dropped = runtime.gc_dropping_damaged(10, NOW).expect("a collection").removed;
    assert!(dropped.contains(&p.manifest_digest));
    // A manifest that only the history needs: keeping less of it is the way out.
    let q = compose(&runtime, "q", &[("kjv", 0.5)]);
    for composition in ["q", "k", "bare"] {
        runtime.activate_composition(&text(composition), NOW).expect("active");
    }
    assert!(runtime.remove_name(NameKind::Composition, &name("q"), NOW).expect("removed"));
    storage.put(&common::blob_path(q.manifest_digest), b"{}");
    let error = runtime.gc(10, NOW).expect_err("blocked");
    assert_eq!(error.code(), "blob-damaged");
    assert!(error.to_string().contains(&q.manifest_digest.to_string()), "{error}");
    assert!(error.hint().expect("a hint").contains("gc --keep"), "{error}");
    runtime.gc(1, NOW).expect("the way out");
    assert!(runtime.verify(true).is_clean());
}
