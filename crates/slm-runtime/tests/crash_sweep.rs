//! Every operation, stopped at every single step of its storage: by an error, by a death of the process, and by a power cut that keeps of what was
//! not synced whatever the medium likes. Afterwards: the old state or the new one, nothing damaged, nothing unreachable once collected, and
//! the operation works.

mod common;

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::time::Instant;

use common::{LIMITS, NOW, compose, import, name, tiny};
use slm_format::Coded;
use slm_runtime::runtime::Reference;
use slm_runtime::{Engine, Runtime, RuntimeError};
use slm_store::faulty::{CrashStorage, FailingStorage, Failure};
use slm_store::{MemStorage, NameKind, Storage, Store};

/// How many states of a power cut are looked at after each step.
const IMAGES: usize = if cfg!(debug_assertions) { 4 } else { 40 };

/// Something that changes a store.
struct Op {
    name: &'static str,
    before: fn(&Runtime<MemStorage>),
    run: &'static dyn Run,
}

/// An operation over any medium.
trait Run: Sync {
    fn mem(&self, runtime: &Runtime<MemStorage>) -> Result<(), RuntimeError>;
    fn crash(&self, runtime: &Runtime<CrashStorage>) -> Result<(), RuntimeError>;
    fn fail(&self, runtime: &Runtime<FailingStorage<MemStorage>>) -> Result<(), RuntimeError>;
}

/// One body for each medium.
macro_rules! run {
    ($kind:ident, $runtime:ident => $body:expr) => {{
        struct $kind;
        impl $kind {
            fn any<S: Storage>($runtime: &Runtime<S>) -> Result<(), RuntimeError> {
                $body
            }
        }
        impl Run for $kind {
            fn mem(&self, runtime: &Runtime<MemStorage>) -> Result<(), RuntimeError> {
                $kind::any(runtime)
            }
            fn crash(&self, runtime: &Runtime<CrashStorage>) -> Result<(), RuntimeError> {
                $kind::any(runtime)
            }
            fn fail(
                &self,
                runtime: &Runtime<FailingStorage<MemStorage>>,
            ) -> Result<(), RuntimeError> {
                $kind::any(runtime)
            }
        }
        &$kind
    }};
}

fn text(composition: &str) -> Reference {
    Reference::Text(composition.to_owned())
}

fn nothing(_: &Runtime<MemStorage>) {}

fn tiny_alone(runtime: &Runtime<MemStorage>) {
    runtime.load_base(&tiny(), &name("tiny"), NOW, false).expect("an import");
}

fn everything(runtime: &Runtime<MemStorage>) {
    tiny_alone(runtime);
    import(runtime, "kjv", "tiny").expect("an import");
    import(runtime, "python", "tiny").expect("an import");
    compose(runtime, "bare", &[]);
    compose(runtime, "kp", &[("kjv", 0.5), ("python", 1.0)]);
}

fn one_active(runtime: &Runtime<MemStorage>) {
    everything(runtime);
    runtime.activate_composition(&text("bare"), NOW).expect("active");
}

fn two_active(runtime: &Runtime<MemStorage>) {
    one_active(runtime);
    runtime.activate_composition(&text("kp"), NOW).expect("active");
}

/// Generations to collect, and a base that no name has any more.
fn garbage(runtime: &Runtime<MemStorage>) {
    two_active(runtime);
    runtime.deactivate_adapter("kjv", NOW).expect("a switch");
    runtime.activate_composition(&text("bare"), NOW).expect("active");
}

fn ops() -> Vec<Op> {
    vec![
        Op {
            name: "import",
            before: nothing,
            run: run!(Import, runtime => runtime.load_base(&tiny(), &name("tiny"), NOW, false).map(drop)),
        },
        Op {
            name: "adapter import",
            before: tiny_alone,
            run: run!(AdapterImport, runtime => import(runtime, "kjv", "tiny").map(drop)),
        },
        Op {
            name: "compose",
            before: everything,
            run: run!(Compose, runtime => {
                runtime.compose(&name("k"), "tiny", &[("kjv", 1.0)], NOW, false).map(drop)
            }),
        },
        Op {
            name: "first activate",
            before: everything,
            run: run!(First, runtime => runtime.activate_composition(&text("kp"), NOW).map(drop)),
        },
        Op {
            name: "activate",
            before: one_active,
            run: run!(Activate, runtime => runtime.activate_composition(&text("kp"), NOW).map(drop)),
        },
        Op {
            name: "rollback",
            before: two_active,
            run: run!(Rollback, runtime => match runtime.status()?.generation {
                2 => runtime.rollback(NOW).map(drop),
                _ => Ok(()),
            }),
        },
        Op {
            name: "deactivate",
            before: two_active,
            run: run!(Deactivate, runtime => runtime.deactivate_adapter("kjv", NOW).map(drop)),
        },
        Op { name: "gc", before: garbage, run: run!(Gc, runtime => runtime.gc(2, NOW).map(drop)) },
        Op {
            name: "pack",
            before: everything,
            run: run!(Pack, runtime => {
                let mut file = Vec::new();
                runtime.pack(&text("kp"), &mut file)?;
                assert!(file == package(), "a package of something else");
                Ok(())
            }),
        },
    ]
}

/// Both adapters on the base, as one file.
fn package() -> &'static [u8] {
    static PACKAGE: OnceLock<Vec<u8>> = OnceLock::new();
    PACKAGE.get_or_init(|| {
        let runtime = over(MemStorage::new());
        everything(&runtime);
        let mut file = Vec::new();
        runtime.pack(&text("kp"), &mut file).expect("a package");
        file
    })
}

fn over<S: Storage>(storage: S) -> Runtime<S> {
    Runtime::new(Store::open(storage).expect("a store"), Engine::inline(), LIMITS)
}

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
    let active = store.active().expect("a whole record");
    let _ = writeln!(
        state,
        "{:?}",
        active.map(|active| (active.record.composition, active.record.number))
    );
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
    assert!(report.is_clean(), "{}, {at}: {:?}", op.name, report.findings);
    if runtime.store().active().expect("a whole record").is_some() {
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
            for n in 0.. {
                let storage = FailingStorage::new(copy(&start));
                let runtime = over(storage.clone());
                let base = storage.operations();
                let failure =
                    if lasting { Failure::lasting(base + n) } else { Failure::once(base + n) };
                storage.fail(Some(Failure { after_effect, ..failure }));
                let outcome = op.run.fail(&runtime);
                if storage.operations() <= base + n {
                    steps = steps.max(n as usize);
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

fn crashes_everywhere(op: &Op) -> (usize, usize, usize) {
    let (start, old, new) = old_and_new(op);
    let whole = CrashStorage::holding(&start);
    op.run.crash(&over(whole.clone())).expect("undisturbed");
    let steps = whole.steps();
    let (mut images, mut news) = (0, 0);
    for step in 0..=steps {
        let storage = CrashStorage::holding(&start);
        let runtime = over(storage.clone());
        storage.stop_at(step);
        let outcome = op.run.crash(&runtime);
        drop(runtime);
        for image in storage.images(IMAGES) {
            let at = format!("power cut at {step} of {steps}, {}", image.what);
            let is_new = survives(op, image.files, &old, &new, &at);
            // What was said to be done stays done; only the last record of the log may be missing.
            assert!(is_new || outcome.is_err(), "{}, {at}: done, and lost", op.name);
            news += usize::from(is_new);
            images += 1;
        }
    }
    assert!(news > 0, "{}: no cut came after the change", op.name);
    (steps, images, news)
}

fn sweep(nth: usize) {
    let op = &ops()[nth];
    let start = Instant::now();
    let (operations, stops) = errors_everywhere(op);
    let (steps, images, news) = crashes_everywhere(op);
    println!(
        "{}: {operations} storage operations, {stops} failures; {steps} steps that write, {images} states after power cuts ({news} of them the new one); {:.1} s",
        op.name,
        start.elapsed().as_secs_f64()
    );
    static COUNT: OnceLock<()> = OnceLock::new();
    COUNT.get_or_init(|| println!("{IMAGES} states at most for each step"));
}

#[test]
fn import_survives() {
    sweep(0);
}

#[test]
fn adapter_import_survives() {
    sweep(1);
}

#[test]
fn compose_survives() {
    sweep(2);
}

#[test]
fn the_first_activation_survives() {
    sweep(3);
}

#[test]
fn activation_survives() {
    sweep(4);
}

#[test]
fn rollback_survives() {
    sweep(5);
}

#[test]
fn deactivation_survives() {
    sweep(6);
}

#[test]
fn gc_survives() {
    sweep(7);
}

#[test]
fn pack_survives() {
    sweep(8);
}

/// A death of the process keeps what was written, synced or not, and the next one goes on.
#[test]
fn a_killed_process_is_followed_by_another() {
    let op = &ops()[4];
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
