//! What only a folder of the file system has: links, modes, pipes. What needs another process is in `processes.rs`.
#![cfg(feature = "fs")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::commands::prepare;
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
        let record = NameRecord::new(blob, blob);
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

/// A folder among the files aside is nobody's of the store's: it stays, and no writer stumbles over it.
#[test]
fn folders_among_the_files_aside_hinder_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    prepare(&store);
    // Under the very names that writers take first.
    for name in ["0", "1", "2", "notes"] {
        fs::create_dir_all(dir.path().join("tmp").join(name).join("inside")).unwrap();
    }
    fs::write(dir.path().join("tmp/9"), b"left by a writer that died").unwrap();
    let store = Store::open(FsStorage::open(dir.path())).unwrap();
    let mut lock = store.lock_at(NOW).unwrap();
    assert!(!dir.path().join("tmp/9").exists());
    let blob = store.put_bytes(&lock, b"one more").unwrap();
    let report = store.gc(&mut lock, &GcOptions::new(NOW), &mut nothing_more).unwrap();
    assert!(report.removed.contains(&blob));
    drop(lock);
    assert!(dir.path().join("tmp/notes/inside").is_dir());
    assert_clean(&store, "beside folders");
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
