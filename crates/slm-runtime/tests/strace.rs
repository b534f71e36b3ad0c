//! What the runtime does to a folder, as the system sees it, is what it does to the medium that forgets: each operation, step for step.
//!
//! Where there is no `strace`, the test says on the terminal that it compared nothing.
#![cfg(target_os = "linux")]

mod common;

use std::io::{BufWriter, Write as _};
use std::process::{Command, Stdio};

use common::{LIMITS, NOW, compose, import, name, tiny};
use slm_runtime::runtime::Reference;
use slm_runtime::{Engine, Runtime};
use slm_store::faulty::{CrashStorage, Event, TRACED_CALLS, traced_steps};
use slm_store::{Access, FsStorage, NameKind, Storage, StorageFile as _, Store};

const FOLDER: &str = "SLM_RUNTIME_TEST_TRACED";
/// A file that is made between two operations, so that a trace can be cut into them.
const MARK: &str = "tmp/mark";

type Operation<S> = (&'static str, fn(&Runtime<S>));

fn text(composition: &str) -> Reference {
    Reference::Text(composition.to_owned())
}

fn operations<S: Storage>() -> Vec<Operation<S>> {
    vec![
        ("import", |runtime| {
            runtime.load_base(&tiny(), &name("tiny"), NOW, false).expect("an import");
        }),
        ("adapter import", |runtime| {
            import(runtime, "kjv", "tiny").expect("an import");
            import(runtime, "python", "tiny").expect("an import");
        }),
        ("compose", |runtime| {
            compose(runtime, "bare", &[]);
            compose(runtime, "kp", &[("kjv", 0.5), ("python", 1.0)]);
        }),
        ("activate", |runtime| {
            for composition in ["bare", "kp"] {
                let reference = text(composition);
                assert!(runtime.activate_composition(&reference, NOW).expect("active").changed);
            }
        }),
        ("activate again", |runtime| {
            assert!(!runtime.activate_composition(&text("kp"), NOW).expect("active").changed);
        }),
        ("rollback", |runtime| {
            runtime.rollback(NOW).expect("a parent");
            assert!(runtime.rollback(NOW).is_err());
        }),
        ("deactivate", |runtime| {
            runtime.activate_composition(&text("kp"), NOW).expect("active");
            runtime.deactivate_adapter("kjv", NOW).expect("a switch");
        }),
        ("refused", |runtime| {
            assert!(runtime.activate_composition(&text("nobody"), NOW).is_err());
        }),
        ("pack", |runtime| {
            let medium = runtime.store().storage();
            let file = medium.create("tmp/package").expect("a file");
            let mut out = BufWriter::with_capacity(1 << 16, file);
            runtime.pack(&text("kp"), &mut out).expect("a package");
            let file = out.into_inner().map_err(|error| error.into_error()).expect("written");
            file.seal(Access::ReadOnly).expect("sealed");
            medium.publish("tmp/package", "package.slm").expect("published");
            medium.sync_dir("").expect("synced");
        }),
        ("unpack", |runtime| {
            let package = runtime.store().storage().open("package.slm").expect("a file");
            let package = package.expect("packed");
            runtime.unpack(package.as_ref(), &name("shared"), false, NOW).expect("unpacked");
        }),
        ("remove a name", |runtime| {
            assert!(runtime.remove_name(NameKind::Composition, &name("kp"), NOW).expect("gone"));
        }),
        ("gc", |runtime| {
            runtime.activate_composition(&text("bare"), NOW).expect("active");
            assert!(!runtime.gc(1, NOW).expect("a collection").removed.is_empty());
        }),
    ]
}

fn run<S: Storage + Clone>(storage: &S) {
    let open = || {
        let store = Store::open(storage.clone()).expect("a store");
        Runtime::new(store, Engine::inline(), LIMITS)
    };
    for (_, operation) in operations() {
        // As another process would.
        operation(&open());
        drop(storage.create(MARK).expect("a mark"));
        storage.remove(MARK).expect("no mark");
    }
}

/// The traced process. On its own it has nothing to do.
#[test]
fn child_does_everything() {
    let Some(root) = std::env::var_os(FOLDER) else { return };
    run(&FsStorage::open(root));
}

#[test]
fn each_operation_takes_the_steps_of_the_medium_that_forgets() {
    if Command::new("strace").arg("-V").output().is_err() {
        // Past the test harness, which would keep it to itself.
        let notice = b"NOT COMPARED: there is no strace (apt-get install strace)\n";
        std::io::stderr().write_all(notice).expect("a terminal");
        return;
    }
    let model = CrashStorage::new();
    run(&model);
    let expected: Vec<String> = model.events().iter().map(Event::to_string).collect();

    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path().canonicalize().expect("a folder").join("store");
    let trace = dir.path().join("trace");
    let status = Command::new("strace")
        .args(["-f", "-y", "-qq", "-s", "0", "-e", TRACED_CALLS, "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "child_does_everything", "--nocapture"])
        .env(FOLDER, &root)
        .stdout(Stdio::null())
        .status()
        .expect("strace");
    assert!(status.success());
    let seen = traced_steps(&std::fs::read_to_string(&trace).expect("a trace"), &root);

    let (seen, expected) = (by_operation(&seen), by_operation(&expected));
    let operations = operations::<CrashStorage>();
    assert_eq!((seen.len(), expected.len()), (operations.len(), operations.len()));
    for (((what, _), seen), expected) in operations.iter().zip(&seen).zip(&expected) {
        let at = seen.iter().zip(expected.iter()).position(|(a, b)| a != b);
        let at = at.unwrap_or(seen.len().min(expected.len()));
        let around = |steps: &[String]| {
            steps[at.saturating_sub(3).min(steps.len())..(at + 4).min(steps.len())].to_vec()
        };
        assert!(
            seen == expected,
            "{what}, step {at}: the system saw {:#?}, the medium took {:#?}",
            around(seen),
            around(expected)
        );
        println!("{what}: {} steps, one for one", seen.len());
        assert!(!seen.is_empty() || *what == "activate again");
    }
}

/// The steps between the marks.
fn by_operation(steps: &[String]) -> Vec<Vec<String>> {
    let made = format!("create {MARK}");
    let mut all = Vec::new();
    let mut current = Vec::new();
    for step in steps {
        if *step == made {
            all.push(std::mem::take(&mut current));
        } else if !step.contains(MARK) {
            current.push(step.clone());
        }
    }
    all
}
