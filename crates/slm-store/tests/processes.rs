//! What only other processes show: the lock and leases between them, writers that are killed, files that somebody else changes.
#![cfg(feature = "fs")]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::commands::{COMMANDS, Command as StoreCommand, check, prepare, state};
use common::{NOW, assert_clean, import, nothing_more};
use slm_format::{Coded as _, Digest};
use slm_store::{FsStorage, GcOptions, NameKind, Storage as _, Store, StoreError};

const CHILD_STORE: &str = "SLM_STORE_TEST_CHILD";

/// The other process of a test, this binary once more: runs the test of this name, prints what it has to say, and waits to be killed.
struct Child(std::process::Child, BufReader<std::process::ChildStdout>);

impl Child {
    fn start(test: &str, root: &Path) -> Child {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(CHILD_STORE, root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Child(child, output)
    }

    /// Waits for a line that ends with this word.
    fn says(&mut self, word: &str) {
        let said = self.1.by_ref().lines().map(Result::unwrap).any(|line| line.ends_with(word));
        assert!(said, "the child did not say {word}");
    }

    fn tell(&mut self) {
        use std::io::Write as _;
        self.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // One that has ended already cannot be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn child_store() -> Option<Store<FsStorage>> {
    std::env::var_os(CHILD_STORE).map(|root| Store::open(FsStorage::open(root)).unwrap())
}

fn wait() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn child_holds_the_lock() {
    let Some(store) = child_store() else { return };
    let _lock = store.lock().unwrap();
    println!("locked");
    wait();
}

#[test]
fn the_lock_holds_between_processes_and_dies_with_its_holder() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Child::start("child_holds_the_lock", dir.path());
    child.says("locked");
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    let began = Instant::now();
    let busy = store.lock().err();
    assert!(began.elapsed() < Duration::from_secs(5), "it waited");
    drop(child);
    assert_eq!(busy, Some(StoreError::Busy));
    store.lock().unwrap();
}

#[test]
fn child_leases_all_blobs() {
    let Some(store) = child_store() else { return };
    let blobs: Vec<Digest> = store.blobs().unwrap().collect();
    let _lease = store.lease(&blobs).unwrap();
    println!("leased");
    wait();
}

#[test]
fn a_lease_holds_between_processes_and_dies_with_its_holder() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    prepare(&store);
    let gc = || {
        let mut lock = store.lock_at(NOW).unwrap();
        store.gc(&mut lock, &GcOptions::new(NOW), &mut nothing_more).unwrap()
    };
    let mut child = Child::start("child_leases_all_blobs", dir.path());
    child.says("leased");
    let leased = gc();
    drop(child);
    assert_eq!((leased.removed.len(), leased.leased.len()), (0, 2));
    assert_clean(&store, "while it was leased");
    assert_eq!(gc().removed, leased.leased);
}

/// Goes through all commands again and again, until it is killed.
#[test]
fn child_works_until_it_is_killed() {
    let Some(store) = child_store() else { return };
    println!("working");
    for command in COMMANDS.iter().cycle() {
        if *command == StoreCommand::Rollback
            && store.active().unwrap().unwrap().record.parent.is_none()
        {
            continue;
        }
        match command.run(&store) {
            Ok(()) | Err(StoreError::Busy | StoreError::NotFound { .. }) => {}
            Err(error) => panic!("{command:?}: {error:?}"),
        }
    }
}

#[test]
fn a_killed_writer_leaves_a_whole_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    prepare(&store);
    let mut outcomes = [0; 2];
    for round in 0..60u64 {
        let mut child = Child::start("child_works_until_it_is_killed", dir.path());
        child.says("working");
        // From within the first command to some of them later.
        std::thread::sleep(Duration::from_micros(round * round * 37 % 40_000));
        drop(child);
        let before = store.audit().unwrap();
        let open = before.records.last().is_some_and(|record| record.is_open());
        outcomes[usize::from(open || before.torn_tail > 0)] += 1;
        drop(store.lock_at(NOW).unwrap());
        let found = state(&store, "after a kill");
        assert!(found.active.is_some());
        assert!(!store.audit().unwrap().records.last().unwrap().is_open());
        assert_eq!(store.storage().list("tmp").unwrap(), Vec::<String>::new());
    }
    let found = state(&store, "at last");
    check(&store, StoreCommand::Compose, &[&found], "at last");
    println!("60 kills: {} between commands, {} within one", outcomes[0], outcomes[1]);
    assert!(outcomes[1] > 5, "{outcomes:?}");
}

#[test]
fn two_processes_at_once_take_turns() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    prepare(&store);
    let children = [(); 2].map(|()| {
        let mut child = Child::start("child_works_until_it_is_killed", dir.path());
        child.says("working");
        child
    });
    // And one that reads meanwhile: what it sees is never half.
    let until = Instant::now() + Duration::from_millis(700);
    let mut looks = 0;
    while Instant::now() < until {
        assert!(store.active().unwrap().is_some());
        store.audit().unwrap();
        looks += 1;
    }
    drop(children);
    assert!(looks > 5);
    drop(store.lock_at(NOW).unwrap());
    assert_clean(&store, "after both");
    let records = store.audit().unwrap().records;
    println!("{} records by two writers, {looks} looks by a reader", records.len());
    assert!(records.len() > 40, "{}", records.len());
}

/// Maps a blob, and reads it again when told to.
#[test]
fn child_reads_a_mapped_blob_again() {
    let Some(store) = child_store() else { return };
    let digest = store.name(NameKind::Base, &"big".parse().unwrap()).unwrap().unwrap().blob;
    let blob = store.verified_blob(digest).unwrap();
    let copy = (*blob).as_ref().to_vec();
    println!("mapped");
    wait();
    let again = Digest::of((*blob).as_ref());
    println!("{}", if again == digest { "same" } else { "changed" });
    println!("{}", if Digest::of(&copy) == digest { "copy-same" } else { "copy-changed" });
}

/// What `docs/security.md` says of a live reader whose blob somebody else with the same rights changes in place.
#[cfg(target_os = "linux")]
#[test]
fn a_mapped_blob_that_is_changed_in_place() {
    use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
    use std::os::unix::process::ExitStatusExt as _;
    const SIGBUS: i32 = 7;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    let mut lock = store.lock_at(NOW).unwrap();
    let bytes = vec![3; 100_000];
    let big = import(&store, &mut lock, NameKind::Base, "big", &bytes).unwrap();
    drop(lock);
    let path = dir.path().join("blobs/sha256").join(big.blob.hex());
    let writable = || {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        fs::OpenOptions::new().write(true).open(&path).unwrap()
    };
    // Replaced or removed: the reader keeps what it mapped.
    let mut child = Child::start("child_reads_a_mapped_blob_again", dir.path());
    child.says("mapped");
    fs::remove_file(&path).unwrap();
    fs::write(&path, b"other").unwrap();
    child.tell();
    child.says("same");
    fs::remove_file(&path).unwrap();
    store.put_bytes(&store.lock().unwrap(), &bytes).unwrap();
    // Overwritten in place: the mapping shows it, a copy in memory does not.
    let mut child = Child::start("child_reads_a_mapped_blob_again", dir.path());
    child.says("mapped");
    writable().write_at(b"x", 50_000).unwrap();
    child.tell();
    child.says("changed");
    child.says("copy-same");
    assert_eq!(store.verify_blob(big.blob).unwrap_err().code(), "blob-damaged");
    writable().write_at(&[3], 50_000).unwrap();
    store.verify_blob(big.blob).unwrap();
    // Cut in place: reading behind the new end ends the process.
    let mut child = Child::start("child_reads_a_mapped_blob_again", dir.path());
    child.says("mapped");
    writable().set_len(10).unwrap();
    child.tell();
    let status = child.0.wait().unwrap();
    assert_eq!(status.signal(), Some(SIGBUS), "{status:?}");
    // The store heals with the next import of the same bytes.
    store.put_bytes(&store.lock().unwrap(), &bytes).unwrap();
    assert_clean(&store, "healed");
}
