//! What only root can set up: a full disk, a medium that is read-only, another user without rights. `cargo test -p slm-store --features
//! root-tests`, as root, on Linux.
#![cfg(all(feature = "root-tests", feature = "fs", target_os = "linux"))]

mod common;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use common::commands::{COMMANDS, State, check, prepare, state};
use common::{NOW, assert_clean, nothing_more};
use slm_format::{Coded as _, ErrorClass};
use slm_store::{FsStorage, NameKind, Store, StoreError};

/// A file system of its own, gone when this is.
struct Mount(PathBuf, tempfile::TempDir);

impl Mount {
    fn tmpfs(size: &str) -> Mount {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("mount");
        fs::create_dir(&at).unwrap();
        mount(&["-t", "tmpfs", "-o", &format!("size={size},mode=755"), "tmpfs"], &at);
        Mount(at, dir)
    }

    fn store(&self) -> Store<FsStorage> {
        Store::open(FsStorage::open(self.0.join("store"))).unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let done = Process::new("umount").arg("-l").arg(&self.0).status();
        assert!(done.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

fn mount(arguments: &[&str], at: &Path) {
    let status = Process::new("mount").args(arguments).arg(at).status().unwrap();
    assert!(status.success(), "mount needs root");
}

#[test]
fn a_full_disk_at_every_page_of_every_command() {
    let mut count = [0; 2];
    for command in COMMANDS {
        for free in 0.. {
            let mount = Mount::tmpfs("1m");
            let store = mount.store();
            prepare(&store);
            let old = state(&store, "before");
            let filler = mount.0.join("filler");
            fill(&filler, free);
            let said = command.run(&store);
            let context = format!("{command:?}, {free} pages free: {said:?}");
            let active = store.active().unwrap().map(|active| active.generation);
            match &said {
                Ok(()) => count[0] += 1,
                Err(error) => {
                    assert_eq!((error.code(), error.class()), ("io", ErrorClass::Io), "{context}");
                    let full =
                        matches!(error, StoreError::Io { kind: io::ErrorKind::StorageFull, .. });
                    assert!(full, "{context}");
                    assert_eq!(active, old.active, "{context}");
                    count[1] += 1;
                }
            }
            fs::remove_file(&filler).unwrap();
            let now = state(&store, &context);
            let states: &[&State] = if said.is_ok() { &[&now] } else { &[&old] };
            check(&store, command, states, &context);
            if said.is_ok() {
                break;
            }
        }
    }
    println!("{} full disks, then {} that sufficed", count[1], count[0]);
    assert!(count[0] == COMMANDS.len() && count[1] >= 12, "{count:?}");
}

/// Fills the medium but for `free` pages.
fn fill(path: &Path, free: u64) {
    let mut file = fs::File::create(path).unwrap();
    let page = [1; 4096];
    let mut pages = 0;
    loop {
        match io::Write::write_all(&mut file, &page) {
            Ok(()) => pages += 1,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                break;
            }
        }
    }
    file.set_len((pages - free.min(pages)) * 4096).unwrap();
}

#[test]
fn a_medium_that_is_read_only() {
    let mount_point = Mount::tmpfs("1m");
    let store = mount_point.store();
    prepare(&store);
    let old = state(&store, "before");
    mount(&["-o", "remount,ro"], &mount_point.0);
    let error = store.lock_at(NOW).unwrap_err();
    assert!(
        matches!(error, StoreError::Io { kind: io::ErrorKind::ReadOnlyFilesystem, .. }),
        "{error:?}"
    );
    assert_eq!(error.class(), ErrorClass::Io);
    // Everything can be read, and leased.
    assert_eq!(state(&store, "read-only"), old);
    assert!(!store.audit().unwrap().records.is_empty());
    let blobs: Vec<_> = store.blobs().unwrap().collect();
    drop(store.lease(&blobs).unwrap());
    mount(&["-o", "remount,rw"], &mount_point.0);
    check(&store, COMMANDS[1], &[&old], "writable again");
}

const CHILD_STORE: &str = "SLM_STORE_TEST_CHILD";

/// What a user without rights gets: one line a call. On its own it has nothing to do.
#[test]
fn child_without_rights() {
    let Some(root) = std::env::var_os(CHILD_STORE) else { return };
    let store = match Store::open(FsStorage::open(root)) {
        Ok(store) => store,
        Err(error) => return tell("open", Err(error)),
    };
    tell("lock", store.lock_at(NOW).map(|_| ()));
    tell("active", store.active().map(|_| ()));
    tell("names", store.names(NameKind::Base).map(|_| ()));
    tell("audit", store.audit().map(|_| ()));
    tell(
        "verify",
        match store.verify(true, &mut nothing_more).findings.into_iter().next() {
            Some(finding) => Err(finding.error),
            None => Ok(()),
        },
    );
    let blobs: Result<Vec<_>, _> = store.blobs().map(Iterator::collect);
    tell("lease", blobs.and_then(|blobs| store.lease(&blobs).map(|_| ())));
}

fn tell(call: &str, result: Result<(), StoreError>) {
    match result {
        Ok(()) => println!("told {call} ok"),
        Err(StoreError::Io { kind, .. }) => println!("told {call} {kind:?}"),
        Err(error) => println!("told {call} {}", error.code()),
    }
}

#[test]
fn a_user_without_rights() {
    let mount_point = Mount::tmpfs("1m");
    fs::set_permissions(mount_point.1.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let store = mount_point.store();
    prepare(&store);
    let old = state(&store, "before");
    let root = mount_point.0.join("store");
    // A test binary that nobody may run would prove nothing.
    let program = mount_point.1.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let told = || {
        let output = Process::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"])
            .arg(&program)
            .args(["--exact", "child_without_rights", "--nocapture"])
            .env(CHILD_STORE, &root)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines =
            text.lines().filter_map(|line| line.split_once("told ")).map(|line| line.1.to_owned());
        lines.collect::<Vec<_>>()
    };
    // May read, not write.
    assert_eq!(
        told(),
        ["lock PermissionDenied", "active ok", "names ok", "audit ok", "verify ok", "lease ok"]
    );
    // May not even read: a store that cannot be read is no empty store.
    for (path, denied) in [
        ("", &["open"][..]),
        ("blobs", &["active", "verify", "lease"]),
        ("names/base", &["names", "verify"]),
        ("audit.log", &["audit", "verify"]),
        ("active.a", &["active", "verify"]),
    ] {
        let full = root.join(path);
        let mode = fs::metadata(&full).unwrap().permissions();
        fs::set_permissions(&full, fs::Permissions::from_mode(0o000)).unwrap();
        let lines = told();
        for call in denied {
            assert!(
                lines.contains(&format!("{call} PermissionDenied")),
                "{path}: {call}: {lines:?}"
            );
        }
        fs::set_permissions(&full, mode).unwrap();
    }
    assert_eq!(state(&store, "after"), old);
    assert_clean(&store, "after");
}
