//! The medium that forgets takes the very steps that the system sees a folder take.
//!
//! Where there is no `strace`, the test says on the terminal that it compared nothing; with the feature `root-tests` it fails then.
#![cfg(all(feature = "fs", target_os = "linux"))]

mod common;

use std::io::Write as _;
use std::process::Command as Process;

use common::{NOW, activate, import, intent, manifest, nothing_more, rollback};
use slm_store::faulty::{CrashStorage, Event, TRACED_CALLS, traced_steps};
use slm_store::{
    Change, FsStorage, GcOptions, NameChange, NameKind, NameRecord, Operation, Storage, Store,
    StoreError,
};

const FOLDER: &str = "SLM_STORE_TEST_TRACED";

/// Everything a store does, from nothing.
fn run<S: Storage>(store: &Store<S>) {
    let lock = &mut store.lock_at(NOW).unwrap();
    import(store, lock, NameKind::Base, "base", &vec![7; 200_000]).unwrap();
    import(store, lock, NameKind::Adapter, "adapter", b"adapter").unwrap();
    import(store, lock, NameKind::Adapter, "adapter", b"other").unwrap();
    let base = vec![7; 200_000];
    let made = manifest(&base, &[b"adapter"]).to_canonical_json();
    import(store, lock, NameKind::Composition, "composition", &made).unwrap();
    store.put_bytes(lock, b"adapter").unwrap();
    for stack in [&[b"adapter" as &[u8]][..], &[], &[b"other"]] {
        activate(store, lock, &manifest(&base, stack)).unwrap();
    }
    rollback(store, lock).unwrap();
    store.begin(lock, intent(Operation::Sign)).unwrap().refuse(&StoreError::Busy).unwrap();
    let pending = store.begin(lock, intent(Operation::RemoveName)).unwrap();
    let name = "composition".parse().unwrap();
    let change = Change::RemoveName { kind: NameKind::Composition, name };
    pending.stage(change).unwrap().commit().unwrap();
    let changes = ["one", "two"].map(|name| {
        let blob = store.put_bytes(lock, name.as_bytes()).unwrap();
        let (name, record) = (name.parse().unwrap(), NameRecord::new(blob, blob));
        NameChange { kind: NameKind::Adapter, name, record, replace: false }
    });
    let pending = store.begin(lock, intent(Operation::Unpack)).unwrap();
    pending.stage(Change::SetNames(changes.to_vec())).unwrap().commit().unwrap();
    for policy in [b"# old" as &[u8], b"# new"] {
        let pending = store.begin(lock, intent(Operation::Trust)).unwrap();
        pending.stage(Change::SetPolicy(policy.to_vec())).unwrap().commit().unwrap();
    }
    let options = GcOptions { keep_generations: 1, ..GcOptions::new(NOW) };
    assert!(!store.gc(lock, &options, &mut nothing_more).unwrap().removed.is_empty());
    // An operation without an outcome, and a torn end of the log, for the next lock.
    drop(store.begin(lock, intent(Operation::Sign)).unwrap());
}

/// The second process: mends and completes the log, clears what was left aside.
fn run_again<S: Storage>(store: &Store<S>) {
    let lock = &mut store.lock_at(NOW).unwrap();
    store.put_bytes(lock, b"last").unwrap();
}

/// What a crash leaves for [`run_again`].
fn tear<S: Storage>(storage: &S) {
    let (log, len) = storage.read_at("audit.log", 0, usize::MAX).unwrap().unwrap();
    assert_eq!(log.len() as u64, len);
    storage.truncate("audit.log", len - 5).unwrap();
    drop(storage.create("tmp/9").unwrap());
}

/// The traced process. On its own it has nothing to do.
#[test]
fn child_does_everything() {
    let Some(root) = std::env::var_os(FOLDER) else { return };
    let storage = FsStorage::open(root);
    run(&Store::open(storage.clone()).unwrap());
    tear(&storage);
    run_again(&Store::open(storage).unwrap());
}

#[test]
fn a_folder_takes_the_steps_of_the_medium_that_forgets() {
    if Process::new("strace").arg("-V").output().is_err() {
        if cfg!(feature = "root-tests") {
            panic!("this test needs strace: apt-get install strace");
        }
        // Past the test harness, which would keep it to itself.
        let notice = b"NOT COMPARED: there is no strace (apt-get install strace)\n";
        std::io::stderr().write_all(notice).unwrap();
        return;
    }
    let model = CrashStorage::new();
    run(&Store::open(model.clone()).unwrap());
    tear(&model);
    run_again(&Store::open(model.clone()).unwrap());

    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap().join("store");
    let trace = dir.path().join("trace");
    let status = Process::new("strace")
        .args(["-f", "-y", "-qq", "-s", "0", "-e", TRACED_CALLS, "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_does_everything", "--nocapture"])
        .env(FOLDER, &root)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let text = std::fs::read_to_string(&trace).unwrap();
    let seen = traced_steps(&text, &root);
    let expected: Vec<String> = model.events().iter().map(Event::to_string).collect();
    let differs = seen.iter().zip(&expected).position(|(a, b)| a != b);
    if differs.is_some() || seen.len() != expected.len() {
        let at = differs.unwrap_or(seen.len().min(expected.len()));
        let around = at.saturating_sub(3)..at + 4;
        let cut = |steps: &[String]| steps[around.start..around.end.min(steps.len())].to_vec();
        panic!(
            "step {at}: the system saw {:#?}, the medium took {:#?}",
            cut(&seen),
            cut(&expected)
        );
    }
    println!("{} steps, one for one", seen.len());
    assert!(seen.len() >= 200, "{} steps", seen.len());
    for word in ["mkdir", "create", "write", "truncate", "sync", "rename", "remove", "sync-dir"] {
        assert!(seen.iter().any(|step| step.split(' ').next() == Some(word)), "no {word}");
    }
}
