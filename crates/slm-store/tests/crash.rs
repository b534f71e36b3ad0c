//! A power cut at every operation, and a full disk.

mod common;

use std::io;

use common::{NOW, generation, nothing_more};
use slm_format::{Coded as _, Digest, ErrorClass};
use slm_manifest::Name;
use slm_store::faulty::{CrashStorage, FailingStorage, Failure};
use slm_store::{GcOptions, MemStorage, NameKind, NameRecord, Storage, Store, StoreError};

/// What a run was told had been done.
#[derive(Default)]
struct Acknowledged {
    blobs: Vec<Digest>,
    names: Vec<(Name, NameRecord)>,
    committed: u64,
}

/// Three times: a blob, a name for it (the third replaces the second), a commit.
fn run<S: Storage>(store: &Store<S>, done: &mut Acknowledged) -> Result<(), StoreError> {
    let lock = store.lock()?;
    let mut parent = None;
    for (number, text) in [(1u64, "a"), (2, "b"), (3, "b")] {
        let blob = store.put_bytes(&lock, &vec![number as u8; 100_000])?;
        done.blobs.push(blob);
        let record = NameRecord::new(Digest::of_domain("test", text.as_bytes()), blob);
        let name: Name = text.parse().expect("a name");
        store.set_name(&lock, NameKind::Adapter, &name, &record, true)?;
        done.names.retain(|(earlier, _)| *earlier != name);
        done.names.push((name, record));
        let manifest = store.put_bytes(&lock, format!("manifest {number}").as_bytes())?;
        let generation = slm_store::Generation {
            number,
            composition: slm_manifest::CompositionId::of_canonical(&[number as u8]),
            manifest,
            parent,
            time: "2026-07-21T00:00:00Z".to_owned(),
        };
        parent = Some(store.commit(&lock, generation)?);
        done.committed = number;
    }
    Ok(())
}

#[test]
fn a_power_cut_anywhere_gives_the_old_state_or_the_new() {
    let whole = CrashStorage::new();
    run(&Store::open(whole.clone()).unwrap(), &mut Acknowledged::default()).unwrap();
    let steps = whole.steps();
    assert!(steps > 60, "the run has only {steps} steps");
    let mut seen = [[false; 4]; 2];
    let mut images = 0;
    for at in 0..steps {
        let storage = CrashStorage::new();
        let store = Store::open(storage.clone()).unwrap();
        storage.stop_at(at);
        let mut done = Acknowledged::default();
        assert!(run(&store, &mut done).is_err());
        for image in storage.images(20) {
            let context = format!("power cut at step {at}, {}", image.what);
            let active = check_image(&image.files, &done, &context);
            seen[usize::from(active > done.committed)][active as usize] = true;
            // And the store works on.
            run(&Store::open(image.files.clone()).unwrap(), &mut Acknowledged::default())
                .expect(&context);
            let store = Store::open(image.files).unwrap();
            assert_eq!(store.slot_fault().unwrap(), None, "{context}");
            assert_eq!(store.history(9).unwrap().len(), 3, "{context}");
            images += 1;
        }
    }
    assert!(images > 10 * steps, "only {images} images of {steps} power cuts");
    // The runs reach every state, as the acknowledged one and (but for none) as one more than that.
    assert_eq!(seen, [[true, true, true, false], [false, true, true, true]]);
}

/// The number of the active generation, after checking that everything acknowledged is there and nothing is half there.
fn check_image(image: &MemStorage, done: &Acknowledged, context: &str) -> u64 {
    let store = Store::open(image.clone()).expect(context);
    for &blob in &done.blobs {
        store.verify_blob(blob).expect(context);
    }
    for digest in store.blobs().expect(context) {
        store.verify_blob(digest).expect(context);
    }
    for (name, record) in store.names(NameKind::Adapter).expect(context) {
        store
            .verify_blob(record.expect(context).blob)
            .unwrap_or_else(|error| panic!("{context}: {name}: {error}"));
    }
    for (name, record) in &done.names {
        let found = store.name(NameKind::Adapter, name).expect(context).expect(context);
        // The name that was replaced when the power went may already be the new one.
        assert!(found == *record || name.as_str() == "b", "{context}");
    }
    let number = store.active().expect(context).map_or(0, |active| active.record.number);
    assert!(
        number == done.committed || number == done.committed + 1,
        "{context}: {number} is active"
    );
    assert_eq!(store.history(9).expect(context).len() as u64, number, "{context}");
    number
}

#[test]
fn a_full_disk_changes_nothing_and_leaves_nothing() {
    let storage = FailingStorage::new(MemStorage::new());
    let store = Store::open(storage.clone()).unwrap();
    let lock = store.lock().unwrap();
    let first = store.commit(&lock, generation(&store, &lock, 1, None)).unwrap();
    let next = generation(&store, &lock, 2, Some(first));
    let record = NameRecord::new(first, first);
    let name: Name = "a".parse().unwrap();
    let before = storage.inner().paths();

    let kind = io::ErrorKind::StorageFull;
    storage.fail(Some(Failure { writes_only: true, kind, ..Failure::lasting(0) }));
    let results = [
        store.put_bytes(&lock, b"small").map(|_| ()),
        store.put_bytes(&lock, &[1; 200_000]).map(|_| ()),
        store.set_name(&lock, NameKind::Base, &name, &record, false).map(|_| ()),
        store.commit(&lock, next.clone()).map(|_| ()),
    ];
    for result in results {
        let error = result.unwrap_err();
        assert_eq!((error.code(), error.class()), ("io", ErrorClass::Io));
        let StoreError::Io { path, kind, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*kind, io::ErrorKind::StorageFull);
        assert!(path.starts_with("tmp/"), "{path}");
        assert!(error.hint().is_some());
    }
    assert_eq!(storage.inner().paths(), before);
    assert_eq!(store.active().unwrap().unwrap().generation, first);

    storage.fail(None);
    store.put_bytes(&lock, b"small").unwrap();
    assert!(store.set_name(&lock, NameKind::Base, &name, &record, false).unwrap());
    let second = store.commit(&lock, next).unwrap();
    assert_eq!(store.active().unwrap().unwrap().generation, second);
}

#[test]
fn a_commit_that_fails_leaves_the_store_usable() {
    let storage = FailingStorage::new(MemStorage::new());
    let store = Store::open(storage.clone()).unwrap();
    let lock = store.lock().unwrap();
    let first = store.commit(&lock, generation(&store, &lock, 1, None)).unwrap();
    let next = generation(&store, &lock, 2, Some(first));
    let before = storage.operations();
    let mut at = before;
    loop {
        storage.fail(Some(Failure::once(at)));
        match store.commit(&lock, next.clone()) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.code(), "io"),
        }
        assert_eq!(store.active().unwrap().unwrap().generation, first);
        at = storage.operations() + (at - before) + 1;
    }
    assert!(at > before + 10);
}

/// A name that a killed writer gave past the log, and gc after it: the power cut must not bring back a name whose blob is gone.
#[test]
fn gc_builds_on_nothing_that_a_power_cut_takes_back() {
    let prepared_until = |stop: usize| {
        let storage = CrashStorage::new();
        let store = Store::open(storage.clone()).unwrap();
        storage.stop_at(stop);
        let lock = store.lock().unwrap();
        let [one, two] = [b"one", b"two"].map(|bytes| store.put_bytes(&lock, bytes).unwrap());
        let name: Name = "a".parse().unwrap();
        let set = |blob| {
            let record = NameRecord::new(blob, blob);
            store.set_name(&lock, NameKind::Adapter, &name, &record, true)
        };
        set(one).unwrap();
        let before = storage.steps();
        (storage.clone(), before, set(two).map(|_| storage.steps()))
    };
    let (_, before, after) = prepared_until(usize::MAX);
    let after = after.unwrap();
    let mut images = 0;
    for at in before..after {
        let (storage, ..) = prepared_until(at);
        storage.restart();
        let store = Store::open(storage.clone()).unwrap();
        let mut lock = store.lock_at(NOW).unwrap();
        store.gc(&mut lock, &GcOptions::new(NOW), &mut nothing_more).unwrap();
        for image in storage.images(64) {
            let report = Store::open(image.files).unwrap().verify(true, &mut nothing_more);
            assert!(report.is_clean(), "stopped at {at}: {}: {:?}", image.what, report.findings);
            images += 1;
        }
    }
    assert!(images > 10);
    // Nor is what was so already taken for durable.
    for at in before..after {
        let (storage, ..) = prepared_until(at);
        storage.restart();
        let store = Store::open(storage.clone()).unwrap();
        let (name, two): (Name, Digest) = ("a".parse().unwrap(), Digest::of(b"two"));
        let record = NameRecord::new(two, two);
        let lock = store.lock().unwrap();
        store.set_name(&lock, NameKind::Adapter, &name, &record, true).unwrap();
        for image in storage.images(64) {
            let found = Store::open(image.files).unwrap().name(NameKind::Adapter, &name).unwrap();
            assert_eq!(found, Some(record), "stopped at {at}: {}", image.what);
        }
    }
}
