//! Every operation, stopped at every single step of its storage: by an error, by a death of the process, and by a power cut that keeps of what was
//! not synced whatever the medium likes. Afterwards: the old state or the new one, nothing damaged, nothing unreachable once collected, and
//! the operation works.
#![allow(unreachable_pub, reason = "one program of several files")]

#[path = "../common/mod.rs"]
mod common;
mod ops;
mod outputs;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Instant;

use common::NOW;
use ops::{Op, PACKAGE, ops, over, package};
use slm_format::{Coded, Digest};
use slm_runtime::Runtime;
use slm_store::faulty::{CrashStorage, FailingStorage, Failure};
use slm_store::{Finding, MemStorage, NameKind, Operation, Outcome, Storage, StoreError};

/// After a step that leaves at most so many states, all of them are looked at; after another one, a sample of so many.
const IMAGES: usize = if cfg!(debug_assertions) { 4 } else { 128 };

/// Where `SLM_SWEEP=exhaustive` asks for it, as `cargo xtask faults` does, all states are looked at after a step that leaves at most so many.
const ALL_IMAGES: usize = 4_096;

/// As [`ALL_IMAGES`], for heavy operations: the states of a step are in memory together, each with the whole package, some 6 MB.
const ALL_HEAVY_IMAGES: usize = 1_024;

/// What is there for whoever asks: names, what they stand for, and what is active.
fn state<S: Storage>(runtime: &Runtime<S>) -> String {
    let store = runtime.store();
    let mut state = String::new();
    for kind in [NameKind::Base, NameKind::Adapter, NameKind::Composition] {
        for (name, record) in store.names(kind).expect("names") {
            let record = record.expect("a whole record");
            // A manifest's own digest has the time of its making.
            let _ = writeln!(state, "{kind} {name} {}", record.id);
        }
    }
    let active = store.active().map_err(|error| error.code());
    let number = |active: slm_store::Active| (active.record.composition, active.record.number);
    let _ = writeln!(state, "{:?}", active.map(|active| active.map(number)));
    let _ = writeln!(
        state,
        "{:?}",
        store.policy().expect("a document").map(|bytes| Digest::of(&bytes))
    );
    if let Some(file) = store.storage().open(PACKAGE).expect("a file") {
        assert!(file.as_ref() == package(), "a package of something else");
        state.push_str("packed\n");
    }
    state
}

/// The store before an operation, made once.
fn before(op: &Op) -> MemStorage {
    let storage = MemStorage::new();
    (op.before)(&over(storage.clone()));
    copy(&storage)
}

fn copy(storage: &MemStorage) -> MemStorage {
    let copy = MemStorage::new();
    for path in storage.paths() {
        let bytes = storage.read(&path, usize::MAX).expect("memory").expect("a listed file");
        copy.insert(&path, &bytes);
    }
    copy
}

/// What must hold of a store that an operation was stopped in: `at` names the stop.
fn survives(op: &Op, storage: MemStorage, old: &str, new: &str, at: &str) -> bool {
    let runtime = over(storage.clone());
    let found = state(&runtime);
    assert!(found == old || found == new, "{}, {at}: neither old nor new:\n{found}", op.name);
    let report = runtime.verify(true);
    // Half of a slot may have arrived: the other one is in force, this says so, and the next lock writes it anew.
    // What the operation is there to mend is damaged until it has.
    let is_to_mend = found == old && op.name.starts_with("recover");
    let torn = |found: &Finding| match found.error {
        StoreError::SlotUnusable { .. } => true,
        StoreError::SlotDamaged { .. } => is_to_mend,
        _ => false,
    };
    assert!(report.findings.iter().all(torn), "{}, {at}: {:?}", op.name, report.findings);
    tells_the_truth(&runtime, found == new, at);
    if !report.is_clean() && !is_to_mend {
        let report = runtime.verify(true);
        assert!(report.is_clean(), "{}, {at}, recovered: {:?}", op.name, report.findings);
    }
    if let Ok(Some(_)) = runtime.store().active() {
        runtime.active_composition().unwrap_or_else(|error| panic!("{}, {at}: {error}", op.name));
    }
    op.run.mem(&runtime).unwrap_or_else(|error| panic!("{}, {at}, again: {error}", op.name));
    assert_eq!(state(&runtime), new, "{}, {at}: the next run did not complete it", op.name);
    runtime.gc(2, NOW).unwrap_or_else(|error| panic!("{}, {at}, gc: {error}", op.name));
    let report = runtime.verify(true);
    assert!(report.is_clean(), "{}, {at}, after gc: {:?}", op.name, report.findings);
    assert!(report.unneeded.is_empty(), "{}, {at}: kept after gc: {:?}", op.name, report.unneeded);
    found == new
}

/// What a recovery records is what is in force.
fn tells_the_truth<S: Storage>(runtime: &Runtime<S>, is_new: bool, at: &str) {
    let open = |runtime: &Runtime<S>| {
        let last = runtime.store().audit().expect("a chain").records.pop();
        last.filter(slm_store::AuditRecord::is_open)
    };
    let Some(open) = open(runtime).filter(|record| record.stage == slm_store::Stage::Staged) else {
        return;
    };
    drop(runtime.lock(NOW).expect("the lock"));
    let told = runtime.store().audit().expect("a chain").records.pop().expect("a record");
    assert_eq!((told.operation, told.policy), (open.operation, open.policy), "{at}");
    let expected = match (open.operation, is_new) {
        (Operation::Gc, _) => Outcome::Partial,
        (_, true) => Outcome::New,
        (_, false) => Outcome::Old,
    };
    assert_eq!(told.outcome, Some(expected), "{at}: {:?}", told.why);
}

/// The state before and after an undisturbed run.
fn old_and_new(op: &Op) -> (MemStorage, String, String) {
    let start = before(op);
    let old = state(&over(copy(&start)));
    let runtime = over(copy(&start));
    op.run.mem(&runtime).unwrap_or_else(|error| panic!("{}: {error}", op.name));
    (start, old, state(&runtime))
}

fn errors_everywhere(op: &Op) -> (usize, usize) {
    let (start, old, new) = old_and_new(op);
    let (mut stops, mut steps) = (0, 0);
    // Once and after its effect, lasting and without one; in a build without checks all four.
    for lasting in [false, true] {
        for after_effect in [false, true] {
            if cfg!(debug_assertions) && lasting == after_effect {
                continue;
            }
            // A counter of its own for each run: the n-th operation fails, until there is no n-th.
            let stride = if cfg!(debug_assertions) && op.heavy { 5 } else { 1 };
            for n in (0..).step_by(stride) {
                let storage = FailingStorage::new(copy(&start));
                let runtime = over(storage.clone());
                let base = storage.operations();
                let failure =
                    if lasting { Failure::lasting(base + n) } else { Failure::once(base + n) };
                storage.fail(Some(Failure { after_effect, ..failure }));
                let outcome = op.run.fail(&runtime);
                if storage.operations() <= base + n {
                    steps = steps.max((storage.operations() - base) as usize);
                    break;
                }
                storage.fail(None);
                let at =
                    format!("error at {n} (lasting {lasting}, after its effect {after_effect})");
                if let Err(error) = &outcome {
                    assert_ne!(error.class().exit_status(), 70, "{}, {at}: {error}", op.name);
                }
                // In the same process first: the pointer in memory follows the store.
                if let Ok(active) = runtime.store().active()
                    && let Some(active) = active
                {
                    let serving = runtime.active_composition();
                    let serving =
                        serving.unwrap_or_else(|error| panic!("{}, {at}: {error}", op.name));
                    assert_eq!(serving.id(), active.record.composition, "{}, {at}", op.name);
                }
                drop(runtime);
                survives(op, copy(storage.inner()), &old, &new, &at);
                stops += 1;
            }
        }
    }
    (steps, stops)
}

/// What was looked at after power cuts.
#[derive(Default)]
struct Cuts {
    /// Steps that write.
    steps: usize,
    /// Steps after which every state was looked at.
    whole: usize,
    /// States that all steps can leave, and the most of one step.
    possible: usize,
    most: usize,
    /// States, and how many of them differ.
    images: usize,
    distinct: usize,
    news: usize,
}

fn crashes_everywhere(op: &Op) -> Cuts {
    let (start, old, new) = old_and_new(op);
    let whole = CrashStorage::holding(&start);
    op.run.crash(&over(whole.clone())).expect("undisturbed");
    let exhaustive = std::env::var("SLM_SWEEP").is_ok_and(|how| how == "exhaustive");
    let mut cuts = Cuts { steps: whole.steps(), ..Cuts::default() };
    // Many steps leave the same files, which are looked at once.
    let mut known: HashMap<blake3::Hash, bool> = HashMap::new();
    for step in 0..=cuts.steps {
        let storage = CrashStorage::holding(&start);
        let runtime = over(storage.clone());
        storage.stop_at(step);
        let outcome = op.run.crash(&runtime);
        drop(runtime);
        let possible = storage.possible_images().unwrap_or(usize::MAX);
        let few = if cfg!(debug_assertions) && op.heavy { IMAGES / 2 } else { IMAGES };
        let all = if op.heavy { ALL_HEAVY_IMAGES } else { ALL_IMAGES };
        let limit = if exhaustive && possible <= all { all } else { few };
        cuts.whole += usize::from(possible <= limit);
        cuts.most = cuts.most.max(possible);
        cuts.possible = cuts.possible.saturating_add(possible);
        for image in storage.images(limit) {
            let at = format!("power cut at {step} of {}, {}", cuts.steps, image.what);
            let files = fingerprint(&image.files);
            let is_new = match known.get(&files) {
                Some(is_new) => *is_new,
                None => survives(op, image.files, &old, &new, &at),
            };
            cuts.distinct += usize::from(known.insert(files, is_new).is_none());
            // What was said to be done stays done; only the last record of the log may be missing.
            assert!(is_new || outcome.is_err(), "{}, {at}: done, and lost", op.name);
            cuts.news += usize::from(is_new);
            cuts.images += 1;
        }
    }
    assert!(cuts.news > 0, "{}: no cut came after the change", op.name);
    cuts
}

/// Paths and bytes.
fn fingerprint(files: &MemStorage) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for path in files.paths() {
        let bytes = files.open(&path).expect("memory").expect("a listed file");
        hasher.update(&(path.len() as u64).to_le_bytes()).update(path.as_bytes());
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(&bytes);
    }
    hasher.finalize()
}

fn sweep(what: &str) {
    let ops = ops();
    let op = ops.iter().find(|op| op.name == what).expect("an operation");
    let start = Instant::now();
    let (operations, stops) = errors_everywhere(op);
    let Cuts { steps, whole, possible, most, images, distinct, news } = crashes_everywhere(op);
    println!(
        "{what}: {operations} storage operations, {stops} failures; {steps} steps that write, after {whole} of {} every state of a power cut: \
         {images} of {possible} states (up to {most} after one step), {distinct} of them different, {news} the new one; {:.1} s",
        steps + 1,
        start.elapsed().as_secs_f64()
    );
}

#[test]
fn import_survives() {
    sweep("import");
}

#[test]
fn adapter_import_survives() {
    sweep("adapter import");
}

#[test]
fn compose_survives() {
    sweep("compose");
}

#[test]
fn the_first_activation_survives() {
    sweep("first activate");
}

#[test]
fn activation_survives() {
    sweep("activate");
}

#[test]
fn rollback_survives() {
    sweep("rollback");
}

#[test]
fn deactivation_survives() {
    sweep("deactivate");
}

#[test]
fn gc_survives() {
    sweep("gc");
}

#[test]
fn pack_survives() {
    sweep("pack");
}

#[test]
fn unpack_survives() {
    sweep("unpack");
}

#[test]
fn unpack_over_other_names_survives() {
    sweep("unpack over other names");
}

#[test]
fn removing_a_name_survives() {
    sweep("remove a name");
}

#[test]
fn recovery_survives() {
    sweep("recover");
}

#[test]
fn recovery_of_lost_records_survives() {
    sweep("recover lost slots");
}

#[test]
fn a_change_of_the_policy_survives() {
    sweep("trust");
}

/// A death of the process keeps what was written, synced or not, and the next one goes on.
#[test]
fn a_killed_process_is_followed_by_another() {
    let ops = ops();
    let op = ops.iter().find(|op| op.name == "activate").expect("an operation");
    let (start, old, new) = old_and_new(op);
    let whole = CrashStorage::holding(&start);
    op.run.crash(&over(whole.clone())).expect("undisturbed");
    for step in 0..whole.steps() {
        let storage = CrashStorage::holding(&start);
        let runtime = over(storage.clone());
        storage.stop_at(step);
        let outcome = op.run.crash(&runtime);
        drop(runtime);
        storage.restart();
        let next = over(storage.clone());
        let found = state(&next);
        assert!(found == new || (found == old && outcome.is_err()), "step {step}: {found}");
        op.run.crash(&next).unwrap_or_else(|error| panic!("step {step}: {error}"));
        assert_eq!(state(&next), new, "step {step}");
        assert!(next.verify(true).is_clean(), "step {step}");
    }
}
