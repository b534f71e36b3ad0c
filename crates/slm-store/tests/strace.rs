//! The medium that forgets takes the very steps that the system sees a folder take.
//!
//! Where there is no `strace`, the test says on the terminal that it compared nothing; with the feature `root-tests` it fails then.
#![cfg(all(feature = "fs", target_os = "linux"))]

mod common;

use std::io::Write as _;
use std::path::Path;
use std::process::Command as Process;

use common::{NOW, activate, import, intent, manifest, nothing_more, rollback};
use slm_store::faulty::{CrashStorage, Event};
use slm_store::{Change, FsStorage, GcOptions, NameKind, Operation, Storage, Store, StoreError};

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
    let traced = "trace=write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,sync_file_range,msync,rename,renameat,\
        renameat2,unlink,unlinkat,link,linkat,symlink,symlinkat,rmdir,truncate,ftruncate,fallocate,copy_file_range,\
        sendfile,mkdir,mkdirat,open,openat,creat";
    let status = Process::new("strace")
        .args(["-f", "-y", "-qq", "-s", "0", "-e", traced, "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_does_everything", "--nocapture"])
        .env(FOLDER, &root)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let text = std::fs::read_to_string(&trace).unwrap();
    let seen: Vec<String> = text.lines().filter_map(|line| step(line, &root)).collect();
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

/// What a line of the trace does to the store, as [`Event`] says it; nothing where it does nothing there or failed.
fn step(line: &str, root: &Path) -> Option<String> {
    // `PID call(arguments) = result`
    let call = line.split_once(' ')?.1.trim_start();
    let (name, rest) = call.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let arguments = arguments.trim_end().strip_suffix(')')?;
    if result.starts_with('-') {
        return None;
    }
    let paths: Vec<String> = paths(arguments)
        .into_iter()
        .filter_map(|path| Path::new(&path).strip_prefix(root).ok().map(Path::to_owned))
        .map(|path| path.to_str().unwrap().to_owned())
        .collect();
    let path = paths.first()?;
    // The root itself is made before there is a store.
    let is_dir = |path: &str| root.join(path).is_dir();
    match name {
        "write" => Some(format!("write {path} {}", result.split(' ').next()?)),
        "fsync" if is_dir(path) => Some(format!("sync-dir {path}")),
        "fsync" => Some(format!("sync {path}")),
        "ftruncate" => Some(format!("truncate {path} {}", arguments.rsplit(", ").next()?)),
        "rename" => Some(format!("rename {path} {}", paths[1])),
        "unlink" => Some(format!("remove {path}")),
        "mkdir" if path.is_empty() => None,
        "mkdir" => Some(format!("mkdir {path}")),
        "openat" if !arguments.contains("O_CREAT") => None,
        // The lock's file is made once and opened again.
        "openat" if path == "lock" && result_is_old(line) => None,
        "openat" => Some(format!("create {path}")),
        other => panic!("a call that nobody expects: {other}: {line}"),
    }
}

/// Whether this line opens the lock's file a second time: the child opens it twice, and the first one makes it.
fn result_is_old(line: &str) -> bool {
    use std::sync::atomic::{AtomicBool, Ordering};
    static MADE: AtomicBool = AtomicBool::new(false);
    assert!(line.contains("O_CREAT"));
    MADE.swap(true, Ordering::Relaxed)
}

/// The paths in the arguments: quoted, or behind a descriptor in angle brackets.
fn paths(arguments: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = arguments;
    while let Some(at) = rest.find(['"', '<']) {
        let close = if rest.as_bytes()[at] == b'"' { '"' } else { '>' };
        let inner = &rest[at + 1..];
        let Some(end) = inner.find(close) else { break };
        found.push(inner[..end].to_owned());
        rest = &inner[end + 1..];
    }
    found
}
