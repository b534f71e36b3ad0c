//! Every operation, stopped at every single step of its storage: by an error, by a death of the process, and by a power cut that keeps of what was
//! not synced whatever the medium likes. Afterwards: the old state or the new one, nothing damaged, nothing unreachable once collected, and
//! the operation works.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::sync::OnceLock;
use std::time::Instant;

use common::{LIMITS, NOW, compose, import, name, tiny};
use slm_format::{Coded, Digest, ErrorClass};
use slm_runtime::runtime::Reference;
use slm_runtime::{Engine, Runtime, RuntimeError};
use slm_store::faulty::{CrashStorage, FailingStorage, Failure};
use slm_store::{
    Access, Change, Intent, MemStorage, NameKind, Operation, Outcome, Storage, StorageFile as _,
    Store, StoreError,
};

/// After a step that leaves at most so many states, all of them are looked at; after another one, a sample of so many.
const IMAGES: usize = if cfg!(debug_assertions) { 4 } else { 64 };

/// The same where `SLM_SWEEP=exhaustive` asks for it, as `cargo xtask faults` does.
const ALL_IMAGES: usize = 4_096;

/// The file that a composition is packed to, on the medium itself.
const PACKAGE: &str = "package.slm";

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
            // To a file aside that takes its name when it is whole and synced, as the program writes it.
            run: run!(Pack, runtime => {
                let medium = runtime.store().storage();
                let io = |error: io::Error| StoreError::io(PACKAGE, &error);
                medium.remove("tmp/package")?;
                let mut out = BufWriter::with_capacity(1 << 16, medium.create("tmp/package")?);
                runtime.pack(&text("kp"), &mut out)?;
                let file = out.into_inner().map_err(|error| io(error.into_error()))?;
                file.seal(Access::ReadOnly).map_err(io)?;
                medium.publish("tmp/package", PACKAGE)?;
                Ok(medium.sync_dir("")?)
            }),
        },
        Op {
            name: "unpack",
            before: nothing,
            run: run!(Unpack, runtime => {
                runtime.unpack(package(), &name("shared"), false, NOW).map(drop)
            }),
        },
        Op {
            name: "unpack over other names",
            before: a_composition_in_the_way,
            run: run!(UnpackOver, runtime => {
                runtime.unpack(package(), &name("bare"), true, NOW).map(drop)
            }),
        },
        Op {
            name: "remove a name",
            before: everything,
            run: run!(Remove, runtime => {
                runtime.remove_name(NameKind::Composition, &name("kp"), NOW).map(drop)
            }),
        },
        Op {
            name: "trust",
            before: one_active,
            // As the program changes the policy: named in the log, written, told.
            run: run!(Trust, runtime => {
                let mut lock = runtime.lock(NOW)?;
                let intent = Intent {
                    operation: Operation::Trust,
                    time: NOW.to_owned(),
                    actor: None,
                    composition: None,
                    manifest: None,
                };
                let pending = runtime.store().begin(&mut lock, intent)?;
                let change = Change::SetPolicy(b"[trust]\nbare_base = \"refused\"\n".to_vec());
                pending.stage(change)?.commit()?;
                Ok(())
            }),
        },
    ]
}

/// The name that the package is to have stands for something else, and one of its adapters' names for another adapter.
fn a_composition_in_the_way(runtime: &Runtime<MemStorage>) {
    tiny_alone(runtime);
    let python = |shape: &slm_overlay::BaseShape| {
        let (config, weights) = common::adapter_files("python");
        common::resolve(config, weights, shape)
    };
    runtime.load_adapter(&python, "tiny", &name("kjv"), NOW, false).expect("an import");
    compose(runtime, "bare", &[]);
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
    assert!(report.is_clean(), "{}, {at}: {:?}", op.name, report.findings);
    tells_the_truth(&runtime, found == new, at);
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

/// What was looked at after power cuts.
#[derive(Default)]
struct Cuts {
    /// Steps that write.
    steps: usize,
    /// Steps after which every state was looked at.
    whole: usize,
    /// States, and how many of them differ.
    images: usize,
    distinct: usize,
    news: usize,
}

fn crashes_everywhere(op: &Op) -> Cuts {
    let (start, old, new) = old_and_new(op);
    let whole = CrashStorage::holding(&start);
    op.run.crash(&over(whole.clone())).expect("undisturbed");
    let limit = match std::env::var("SLM_SWEEP") {
        Ok(how) if how == "exhaustive" => ALL_IMAGES,
        _ => IMAGES,
    };
    let mut cuts = Cuts { steps: whole.steps(), ..Cuts::default() };
    // Many steps leave the same files, which are looked at once.
    let mut known: HashMap<blake3::Hash, bool> = HashMap::new();
    for step in 0..=cuts.steps {
        let storage = CrashStorage::holding(&start);
        let runtime = over(storage.clone());
        storage.stop_at(step);
        let outcome = op.run.crash(&runtime);
        drop(runtime);
        cuts.whole += usize::from(storage.possible_images().is_some_and(|count| count <= limit));
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
    let Cuts { steps, whole, images, distinct, news } = crashes_everywhere(op);
    println!(
        "{what}: {operations} storage operations, {stops} failures; {steps} steps that write, after {whole} of {} every state of a power cut: \
         {images} states, {distinct} of them different, {news} the new one; {:.1} s",
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
fn a_change_of_the_policy_survives() {
    sweep("trust");
}

/// An output that takes so many writes, of at most so many bytes each, and then is full.
struct Filling {
    writes: usize,
    taken: Vec<u8>,
}

impl Write for Filling {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.writes == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.writes -= 1;
        let some = bytes.len().min(1 << 15);
        self.taken.extend_from_slice(&bytes[..some]);
        Ok(some)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Packing to an output that fails at each of its writes says so, and neither the store nor the next package is touched by it.
#[test]
fn an_output_that_fails_at_any_write() {
    let storage = MemStorage::new();
    let runtime = over(storage.clone());
    everything(&runtime);
    let before = fingerprint(&storage);
    let mut failures = 0;
    loop {
        let mut out = Filling { writes: failures, taken: Vec::new() };
        match runtime.pack(&text("kp"), &mut out) {
            Ok(_) => {
                assert!(out.taken == package(), "a package of something else");
                break;
            }
            Err(error) => {
                assert_eq!(error.class(), ErrorClass::Io, "write {failures}: {error}");
                assert!(package().starts_with(&out.taken), "write {failures}");
            }
        }
        failures += 1;
    }
    assert_eq!(fingerprint(&storage), before);
    println!("pack: {failures} writes, each of them failed once");
    assert!(failures > 20, "{failures}");

    // A layout: after any failed file there is no index, which comes last.
    let mut files = 0;
    loop {
        let mut out = FillingFolder { left: files, files: BTreeMap::new() };
        let tag = name("v1");
        match runtime.export_oci(&text("kp"), &tag, &mut out) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.class(), ErrorClass::Io, "file {files}: {error}"),
        }
        assert!(!out.files.contains_key("index.json"), "file {files}");
        files += 1;
    }
    println!("export oci: {files} files, each of them failed once");
    assert!(files >= 7, "{files}");
}

/// A folder that takes so many files, and then is full.
struct FillingFolder {
    left: usize,
    files: BTreeMap<String, Vec<u8>>,
}

impl slm_runtime::runtime::LayoutWriter for FillingFolder {
    fn put(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        if self.left == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.left -= 1;
        self.files.insert(path.to_owned(), bytes.to_vec());
        Ok(())
    }
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
