//! What only a folder of the file system has: links, modes, other processes.
#![cfg(feature = "fs")]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::commands::{COMMANDS, Command as StoreCommand, check, prepare, state};
use common::{NOW, activate, assert_clean, import, manifest, nothing_more};
use slm_format::{Coded as _, Digest, ErrorClass};
use slm_store::{
    Access, Finding, FsStorage, GcOptions, NameKind, NameRecord, Storage as _, StorageFile as _,
    Store, StoreError,
};

#[test]
fn reading_makes_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("deep/store");
    let store = Store::open(FsStorage::open(&root)).unwrap();
    assert_eq!(store.active().unwrap(), None);
    assert!(!dir.path().join("deep").exists());
    drop(store.lock().unwrap());
    assert!(root.join("lock").exists());
}

#[test]
fn a_mapped_blob_outlives_its_replacement() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    let lock = store.lock().unwrap();
    let digest = store.put_bytes(&lock, &[7; 100_000]).unwrap();
    let blob = store.blob(digest).unwrap();
    fs::remove_file(dir.path().join("blobs/sha256").join(digest.hex())).unwrap();
    store.put_bytes(&lock, &[7; 100_000]).unwrap();
    assert_eq!(Digest::of((*blob).as_ref()), digest);
}

#[test]
fn no_call_changes_a_mapped_blob() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    let lock = store.lock().unwrap();
    let digest = store.put_bytes(&lock, b"weights").unwrap();
    let path = format!("blobs/sha256/{}", digest.hex());
    let storage = store.storage();
    let file = storage.create("tmp/x").unwrap();
    for result in [
        storage.overwrite(&path, b"weightz"),
        storage.overwrite(&format!("./{path}"), b"weightz"),
        storage.overwrite(&format!("/{path}"), b"weightz"),
        storage.create("blobs/x").map(|_| ()),
        storage.create("tmp/../blobs/x").map(|_| ()),
        storage.publish("tmp/x", "blobs/x"),
        storage.publish("tmp/x", "../x"),
        storage.open("../x").map(|_| ()),
    ] {
        let error = result.unwrap_err();
        assert!(
            matches!(error, StoreError::Io { kind: std::io::ErrorKind::InvalidInput, .. }),
            "{error:?}"
        );
    }
    store.verify_blob(digest).unwrap();
    // The twin: the same file, sealed.
    file.seal(Access::ReadOnly).unwrap();
    storage.publish("tmp/x", "blobs/x").unwrap();
}

#[test]
fn a_file_outside_a_store_can_be_mapped() {
    let dir = tempfile::tempdir().unwrap();
    for bytes in [&b""[..], b"model"] {
        fs::write(dir.path().join("model.gguf"), bytes).unwrap();
        assert_eq!(slm_store::map_file(&dir.path().join("model.gguf")).unwrap().as_ref(), bytes);
    }
    let error = slm_store::map_file(&dir.path().join("absent")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[cfg(unix)]
#[test]
fn blobs_are_read_only_files() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    let lock = store.lock().unwrap();
    let digest = store.put_bytes(&lock, b"x").unwrap();
    let path = dir.path().join("blobs/sha256").join(digest.hex());
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o444);
}

#[cfg(unix)]
#[test]
fn symbolic_links_are_refused_wherever_they_stand() {
    use std::os::unix::fs::symlink;
    for link in [
        "blobs",
        "blobs/sha256",
        "blobs/sha256/X",
        "names",
        "names/base",
        "names/base/n",
        "active.a",
        "audit.log",
        "lock",
        "tmp",
        "version",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let store = Store::open(FsStorage::open(&root)).unwrap();
        let lock = store.lock().unwrap();
        let blob = store.put_bytes(&lock, b"x").unwrap();
        let name = "n".parse().unwrap();
        let record = NameRecord { id: blob, blob };
        store.set_name(&lock, NameKind::Base, &name, &record, false).unwrap();
        let mut lock = lock;
        activate(&store, &mut lock, &manifest(b"x", &[])).unwrap();
        drop(lock);

        // The same file or folder, reached through a link.
        let path = root.join(link.replace('X', &blob.hex()));
        let moved = dir.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        let use_it = || -> Result<(), StoreError> {
            let store = Store::open(FsStorage::open(&root))?;
            let lock = store.lock()?;
            store.put_bytes(&lock, b"y")?;
            store.verify_blob(blob)?;
            store.name(NameKind::Base, &name)?;
            store.names(NameKind::Base)?;
            store.active()?;
            store.audit()?;
            Ok(())
        };
        symlink(&moved, &path).unwrap();
        let error = use_it().unwrap_err();
        assert!(matches!(error, StoreError::Symlink { .. }), "{link}: {error:?}");
        let findings = store.verify(false, &mut nothing_more).findings;
        let linked = |f: &Finding| matches!(f.error, StoreError::Symlink { .. });
        assert!(link == "lock" || findings.iter().any(linked), "{link}: {findings:?}");
        assert_eq!((error.code(), error.class()), ("store-symlink", ErrorClass::Damaged));
        // A link that leads nowhere is no way to make a file elsewhere either.
        fs::remove_file(&path).unwrap();
        symlink(dir.path().join("nowhere"), &path).unwrap();
        assert!(matches!(use_it().unwrap_err(), StoreError::Symlink { .. }), "{link}");
        assert!(!dir.path().join("nowhere").exists());
        // The twin: the thing itself in its place.
        fs::remove_file(&path).unwrap();
        fs::rename(&moved, &path).unwrap();
        use_it().unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_and_keeps_nobody_waiting() {
    for pipe in ["blobs/sha256/X", "names/base/n", "active.a", "audit.log", "lock", "version"] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let store = Store::open(FsStorage::open(&root)).unwrap();
        let mut lock = store.lock().unwrap();
        let blob = import(&store, &mut lock, NameKind::Base, "n", b"x").unwrap().blob;
        activate(&store, &mut lock, &manifest(b"x", &[])).unwrap();
        drop(lock);
        let path = root.join(pipe.replace('X', &blob.hex()));
        let moved = root.join("moved");
        let use_it = move |root: &Path| -> Result<usize, StoreError> {
            let store = Store::open(FsStorage::open(root))?;
            let findings = store.verify(true, &mut nothing_more).findings.len();
            drop(store.lock()?);
            store.verify_blob(blob)?;
            store.name(NameKind::Base, &"n".parse().unwrap())?;
            store.active()?;
            store.audit()?;
            Ok(findings)
        };
        fs::rename(&path, &moved).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        // In a thread, so that a wait without end is a failure.
        let (send, receive) = std::sync::mpsc::channel();
        let at = root.clone();
        std::thread::spawn(move || {
            let findings = Store::open(FsStorage::open(&at))
                .map(|store| store.verify(true, &mut nothing_more).findings.len());
            send.send((findings, use_it(&at))).expect("somebody waits");
        });
        let (findings, used) = receive.recv_timeout(Duration::from_secs(60)).expect(pipe);
        // Nothing is read from the lock, and a version that cannot be read opens no store.
        assert!(pipe == "lock" || !matches!(findings, Ok(0)), "{pipe}");
        let error = used.unwrap_err();
        let StoreError::Io { kind, message, .. } = &error else { panic!("{pipe}: {error:?}") };
        assert_eq!(*kind, std::io::ErrorKind::InvalidInput, "{pipe}");
        assert_eq!(message, "it is not a regular file");
        // The twin: the file itself in its place.
        fs::remove_file(&path).unwrap();
        fs::rename(&moved, &path).unwrap();
        assert_eq!(use_it(&root), Ok(0), "{pipe}");
    }
}

#[cfg(unix)]
#[test]
fn the_root_may_be_reached_through_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().join("real");
    fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, dir.path().join("link")).unwrap();
    let store = Store::open(FsStorage::open(dir.path().join("link"))).unwrap();
    let lock = store.lock().unwrap();
    store.put_bytes(&lock, b"x").unwrap();
    assert!(real.join("blobs").exists());
}

#[test]
fn an_input_output_failure_names_the_path_inside_the_store() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("blobs")).unwrap();
    fs::write(dir.path().join("blobs/sha256"), b"a file where a folder belongs").unwrap();
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    let error = store.blobs().err().unwrap();
    let StoreError::Io { path, .. } = &error else { panic!("{error:?}") };
    assert_eq!(
        (path.as_str(), error.code(), error.class()),
        ("blobs/sha256", "io", ErrorClass::Io)
    );
    fs::remove_file(dir.path().join("blobs/sha256")).unwrap();
    assert_eq!(store.blobs().unwrap().count(), 0);
}

#[test]
fn a_reader_is_never_blocked_and_keeps_what_it_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    prepare(&store);
    let mut lock = store.lock_at(NOW).unwrap();
    let loose = store.put_bytes(&lock, &[5; 100_000]).unwrap();
    // Somebody else reads everything while the lock is held.
    let reader = Store::open(FsStorage::open(dir.path())).unwrap();
    assert_eq!(reader.lock().unwrap_err(), StoreError::Busy);
    let active = reader.active().unwrap().unwrap();
    assert_eq!(reader.history(9).unwrap().len(), 3);
    assert!(reader.audit().unwrap().records.len() > 10);
    assert_clean(&reader, "while the lock is held");
    let lease = reader.lease(&[active.record.manifest]).unwrap();
    let mapped = reader.blob(loose).unwrap();
    let report = store.gc(&mut lock, &GcOptions::new(NOW), &mut nothing_more).unwrap();
    assert!(report.removed.contains(&loose));
    assert_eq!(Digest::of((*mapped).as_ref()), loose, "the name is gone, the bytes are not");
    drop(lease);
}

#[test]
fn a_blob_that_was_changed_in_place_is_named() {
    use std::io::{Seek as _, SeekFrom, Write as _};
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    prepare(&store);
    let active = store.active().unwrap().unwrap();
    let path = dir.path().join("blobs/sha256").join(active.record.manifest.hex());
    let good = fs::read(&path).unwrap();
    let harm = |change: &dyn Fn(&mut fs::File)| {
        fs::remove_file(&path).unwrap();
        fs::write(&path, &good).unwrap();
        change(&mut fs::OpenOptions::new().write(true).open(&path).unwrap());
    };
    let flip = |file: &mut fs::File| {
        file.seek(SeekFrom::Start(10)).unwrap();
        file.write_all(&[good[10] ^ 0x10]).unwrap();
    };
    let len = good.len() as u64;
    let cut = |file: &mut fs::File| file.set_len(len - 1).unwrap();
    let empty = |file: &mut fs::File| file.set_len(0).unwrap();
    let grow = |file: &mut fs::File| file.set_len(len + 1).unwrap();
    let changes: [&dyn Fn(&mut fs::File); 4] = [&flip, &cut, &empty, &grow];
    for change in changes {
        harm(change);
        let error = store.verify_blob(active.record.manifest).unwrap_err();
        assert_eq!((error.code(), error.class()), ("blob-damaged", ErrorClass::Damaged));
        let findings = store.verify(false, &mut nothing_more).findings;
        assert_eq!(findings.iter().filter(|f| f.error == error).count(), 1, "{findings:?}");
        let mut lock = store.lock_at(NOW).unwrap();
        let refused = store.gc(&mut lock, &GcOptions::new(NOW), &mut nothing_more).unwrap_err();
        let hidden =
            matches!(&refused, StoreError::Hidden { error: inner, .. } if **inner == error);
        assert!(hidden, "{refused:?}");
        assert_eq!((refused.code(), refused.class()), (error.code(), error.class()));
        assert_eq!(store.active().unwrap().unwrap(), active);
    }
    harm(&|_| {});
    assert_clean(&store, "the twin");
}

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
