//! What only a folder of the file system has: links, modes, other processes.
#![cfg(feature = "fs")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use slm_format::{Coded as _, Digest, ErrorClass};
use slm_store::{
    Access, FsStorage, NameKind, NameRecord, Storage as _, StorageFile as _, Store, StoreError,
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
        let manifest = store.put_bytes(&lock, b"manifest").unwrap();
        let generation = slm_store::Generation {
            number: 1,
            composition: slm_manifest::CompositionId::of_canonical(b""),
            manifest,
            parent: None,
            time: "2026-07-21T00:00:00Z".to_owned(),
        };
        store.commit(&lock, generation).unwrap();
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
            Ok(())
        };
        symlink(&moved, &path).unwrap();
        let error = use_it().unwrap_err();
        assert!(matches!(error, StoreError::Symlink { .. }), "{link}: {error:?}");
        assert_eq!((error.code(), error.class()), ("store-symlink", ErrorClass::Refused));
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

const CHILD_STORE: &str = "SLM_STORE_TEST_CHILD";

/// The other process of the test below: takes the lock, says so, and waits to be killed. On its own it has nothing to do.
#[test]
fn child_holds_the_lock() {
    let Some(root) = std::env::var_os(CHILD_STORE) else { return };
    let store = Store::open(FsStorage::open(root)).unwrap();
    let _lock = store.lock().unwrap();
    println!("locked");
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn the_lock_holds_between_processes_and_dies_with_its_holder() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_holds_the_lock", "--nocapture"])
        .env(CHILD_STORE, dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let said = output.lines().map(Result::unwrap).find(|line| line.ends_with("locked"));
    assert!(said.is_some(), "the child did not take the lock");
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    let busy = store.lock().err();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(busy, Some(StoreError::Busy));
    store.lock().unwrap();
}
