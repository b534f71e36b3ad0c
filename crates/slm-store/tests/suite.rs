//! One suite, every medium.

mod common;

use std::io::{self, Write as _};

use common::generation;
use slm_format::{Coded as _, Digest, ErrorClass};
use slm_manifest::Name;
use slm_store::{Generation, MemStorage, NameKind, NameRecord, Storage, Store, StoreError};

/// A medium that can be opened again and harmed.
trait Medium {
    type Storage: Storage;
    fn storage(&self) -> Self::Storage;
    fn read(&self, path: &str) -> Vec<u8>;
    fn harm(&self, path: &str, bytes: &[u8]);
    fn files_aside(&self) -> Vec<String> {
        self.storage().list("tmp").unwrap()
    }
}

macro_rules! suite {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[test] fn $test() { super::$test(&slm_store::MemStorage::new()); })*
        }
        #[cfg(feature = "fs")]
        mod folder {
            $(#[test] fn $test() { super::$test(&super::Folder(tempfile::tempdir().unwrap())); })*
        }
    };
}

suite!(
    an_empty_store_reads_as_empty,
    blobs_are_named_by_their_digest,
    large_blobs_are_streamed,
    a_failing_source_leaves_nothing,
    damage_to_a_blob_is_found_and_healed,
    names_are_given_once,
    one_bad_name_does_not_break_the_list,
    one_writer_at_a_time,
    generations_follow_each_other,
    what_is_committed_must_be_there,
    a_slot_must_agree_with_its_generation,
    leftovers_go_with_the_next_lock,
    other_versions_are_refused,
);

fn an_empty_store_reads_as_empty(medium: &impl Medium) {
    let store = Store::open(medium.storage()).unwrap();
    assert_eq!(store.blobs().unwrap().count(), 0);
    assert_eq!(store.names(NameKind::Base).unwrap(), []);
    assert_eq!(store.name(NameKind::Base, &name("a")).unwrap(), None);
    assert_eq!(store.active().unwrap(), None);
    assert_eq!(store.history(10).unwrap(), []);
    assert_eq!(store.resolve(NameKind::Base, Digest::of(b"")).unwrap(), None);
    assert_eq!(store.find_blob(&|_| true).unwrap(), None);
    let error = refused(store.blob(Digest::of(b"x")));
    assert_eq!(error, StoreError::NotFound { digest: Digest::of(b"x") });
    assert_eq!((error.code(), error.class()), ("not-found", ErrorClass::NotFound));
}

fn blobs_are_named_by_their_digest(medium: &impl Medium) {
    let store = Store::open(medium.storage()).unwrap();
    let lock = store.lock().unwrap();
    let mut digests: Vec<Digest> = [&b""[..], b"a", b"abc"]
        .iter()
        .map(|bytes| store.put_bytes(&lock, bytes).unwrap())
        .collect();
    // FIPS 180-4, appendix B.1.
    assert_eq!(
        digests[2].hex(),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
    assert_eq!(medium.read(&format!("blobs/sha256/{}", digests[2].hex())), b"abc");
    assert_eq!(
        store.put_bytes(&lock, b"abc").unwrap(),
        digests[2],
        "storing it again is no change"
    );
    drop(lock);

    let store = Store::open(medium.storage()).unwrap();
    digests.sort_unstable();
    assert_eq!(store.blobs().unwrap().collect::<Vec<_>>(), digests);
    for &digest in &digests {
        store.verify_blob(digest).unwrap();
        assert_eq!(Digest::of((*store.blob(digest).unwrap()).as_ref()), digest);
    }
    assert_eq!(
        store.find_blob(&|bytes| bytes.starts_with(b"ab")).unwrap(),
        Some(Digest::of(b"abc"))
    );
    assert_eq!(store.find_blob(&|bytes| bytes.starts_with(b"b")).unwrap(), None);
    assert_eq!(medium.files_aside(), Vec::<String>::new());
}

fn large_blobs_are_streamed(medium: &impl Medium) {
    let store = Store::open(medium.storage()).unwrap();
    let lock = store.lock().unwrap();
    let bytes: Vec<u8> = (0..300_001u32).map(|i| (i % 251) as u8).collect();
    for step in [1009, 65_536, 299_999] {
        let digest = store
            .put_blob(&lock, &mut |writer| {
                bytes.chunks(step).try_for_each(|chunk| writer.write_all(chunk))
            })
            .unwrap();
        assert_eq!(digest, Digest::of(&bytes));
        assert_eq!((*store.blob(digest).unwrap()).as_ref(), bytes);
    }
}

fn a_failing_source_leaves_nothing(medium: &impl Medium) {
    let store = Store::open(medium.storage()).unwrap();
    let lock = store.lock().unwrap();
    for (written, fails) in [(0, true), (10, true), (200_000, true), (200_000, false)] {
        let result = store.put_blob(&lock, &mut |writer| {
            writer.write_all(&vec![7; written])?;
            if fails { Err(io::Error::from(io::ErrorKind::UnexpectedEof)) } else { Ok(()) }
        });
        assert_eq!(medium.files_aside(), Vec::<String>::new());
        if fails {
            let error = result.unwrap_err();
            assert!(
                matches!(error, StoreError::Source { kind: io::ErrorKind::UnexpectedEof, .. }),
                "{error:?}"
            );
            assert_eq!(error.class(), ErrorClass::Io);
            assert_eq!(store.blobs().unwrap().count(), 0);
        } else {
            store.verify_blob(result.unwrap()).unwrap();
        }
    }
}

fn damage_to_a_blob_is_found_and_healed(medium: &impl Medium) {
    let store = Store::open(medium.storage()).unwrap();
    let lock = store.lock().unwrap();
    let digest = store.put_bytes(&lock, b"weights").unwrap();
    let path = format!("blobs/sha256/{}", digest.hex());
    for harmed in [&b"weightz"[..], b"weight", b""] {
        medium.harm(&path, harmed);
        let error = store.verify_blob(digest).unwrap_err();
        assert_eq!(error, StoreError::BlobDamaged { expected: digest, found: Digest::of(harmed) });
        assert_eq!((error.code(), error.class()), ("blob-damaged", ErrorClass::Damaged));
        store.put_bytes(&lock, b"weights").unwrap();
        store.verify_blob(digest).unwrap();
    }
}

fn names_are_given_once(medium: &impl Medium) {
    let store = Store::open(medium.storage()).unwrap();
    let lock = store.lock().unwrap();
    let [one, two] = [b"one", b"two"].map(|bytes| {
        let blob = store.put_bytes(&lock, bytes).unwrap();
        NameRecord::new(Digest::of_domain("test", bytes), blob)
    });
    let a = name("a");
    assert!(store.set_name(&lock, NameKind::Adapter, &a, &one, false).unwrap());
    assert!(!store.set_name(&lock, NameKind::Adapter, &a, &one, false).unwrap());
    assert!(!store.set_name(&lock, NameKind::Adapter, &a, &one, true).unwrap());
    let error = store.set_name(&lock, NameKind::Adapter, &a, &two, false).unwrap_err();
    assert_eq!((error.code(), error.class()), ("name-taken", ErrorClass::Refused));
    assert_eq!(
        error,
        StoreError::NameTaken { kind: NameKind::Adapter, name: a.clone(), current: one.id }
    );
    assert_eq!(store.name(NameKind::Adapter, &a).unwrap(), Some(one));
    // The twins: another kind, another name, and the same with leave to replace.
    assert!(store.set_name(&lock, NameKind::Base, &a, &two, false).unwrap());
    assert!(store.set_name(&lock, NameKind::Adapter, &name("b"), &two, false).unwrap());
    assert!(store.set_name(&lock, NameKind::Adapter, &a, &two, true).unwrap());
    drop(lock);

    let store = Store::open(medium.storage()).unwrap();
    assert_eq!(store.names(NameKind::Adapter).unwrap(), [(a, Ok(two)), (name("b"), Ok(two))]);
    assert_eq!(store.resolve(NameKind::Adapter, two.id).unwrap(), Some(two.blob));
    assert_eq!(store.resolve(NameKind::Adapter, one.id).unwrap(), None);
    assert_eq!(store.resolve(NameKind::Composition, two.id).unwrap(), None);

    let lock = store.lock().unwrap();
    let absent = NameRecord::new(one.id, Digest::of(b"absent"));
    let error = store.set_name(&lock, NameKind::Base, &name("c"), &absent, false).unwrap_err();
    assert_eq!(error, StoreError::NotFound { digest: absent.blob });
    assert_eq!(store.name(NameKind::Base, &name("c")).unwrap(), None);
}

fn one_bad_name_does_not_break_the_list(medium: &impl Medium) {
    let store = Store::open(medium.storage()).unwrap();
    let lock = store.lock().unwrap();
    let blob = store.put_bytes(&lock, b"x").unwrap();
    let record = NameRecord::new(blob, blob);
    for text in ["a", "b", "c"] {
        store.set_name(&lock, NameKind::Base, &name(text), &record, false).unwrap();
    }
    let good = medium.read("names/base/b");
    let text = String::from_utf8(good.clone()).unwrap();
    for bad in [
        String::new(),
        text[..text.len() - 3].to_owned(),
        text.replace("sha256:", "sha512:"),
        text.replace("\"name\":\"b\"", "\"name\":\"a\""),
        text.replace('}', ",\"more\":1}"),
        text.replace('}', &format!(",\"id\":\"{blob}\"}}")),
        " ".repeat(2000) + &text,
    ] {
        medium.harm("names/base/b", bad.as_bytes());
        let names = store.names(NameKind::Base).unwrap();
        assert_eq!(names.len(), 3);
        assert_eq!([&names[0].1, &names[2].1], [&Ok(record), &Ok(record)]);
        let error = names[1].1.clone().unwrap_err();
        assert_eq!((error.code(), error.class()), ("name-damaged", ErrorClass::Damaged), "{bad}");
        assert_eq!(
            store.set_name(&lock, NameKind::Base, &name("b"), &record, false).unwrap_err(),
            error
        );
        assert_eq!(store.resolve(NameKind::Base, blob).unwrap(), Some(blob));
        // The twin: the same record whole again.
        assert!(store.set_name(&lock, NameKind::Base, &name("b"), &record, true).unwrap());
        assert_eq!(medium.read("names/base/b"), good);
    }
    medium.harm("names/base/.hidden", b"not a name");
    assert_eq!(store.names(NameKind::Base).unwrap().len(), 3);
}

fn one_writer_at_a_time(medium: &impl Medium) {
    let (first, second) =
        (Store::open(medium.storage()).unwrap(), Store::open(medium.storage()).unwrap());
    let lock = first.lock().unwrap();
    for store in [&first, &second] {
        let error = store.lock().unwrap_err();
        assert_eq!((error.code(), error.class()), ("store-busy", ErrorClass::Busy));
    }
    // Reading needs no lock.
    let digest = first.put_bytes(&lock, b"x").unwrap();
    second.verify_blob(digest).unwrap();
    let foreign =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| second.put_bytes(&lock, b"y")));
    assert!(foreign.is_err(), "a lock is good for its own store only");
    drop(lock);
    let lock = second.lock().unwrap();
    second.put_bytes(&lock, b"y").unwrap();
    assert_eq!(first.lock().unwrap_err(), StoreError::Busy);
}

fn generations_follow_each_other(medium: &impl Medium) {
    let store = Store::open(medium.storage()).unwrap();
    let lock = store.lock().unwrap();
    let mut chain = Vec::new();
    for number in 1..=5 {
        let generation = generation(&store, &lock, number, chain.last().map(|(digest, _)| *digest));
        let digest = store.commit(&lock, generation.clone()).unwrap();
        assert_eq!(store.generation(digest).unwrap(), generation);
        let active = store.active().unwrap().unwrap();
        assert_eq!(
            (active.sequence, active.generation, &active.record),
            (number, digest, &generation)
        );
        assert_eq!(active.fault, None);
        chain.push((digest, generation));
    }
    let (last, record) = chain[4].clone();
    let before = [medium.read("active.a"), medium.read("active.b")];
    assert_eq!(store.commit(&lock, record).unwrap(), last);
    assert_eq!(
        [medium.read("active.a"), medium.read("active.b")],
        before,
        "committing the active one is no change"
    );
    drop(lock);

    let store = Store::open(medium.storage()).unwrap();
    chain.reverse();
    assert_eq!(store.history(100).unwrap(), chain);
    assert_eq!(store.history(2).unwrap(), chain[..2]);
    assert_eq!(store.history(0).unwrap(), []);
    // Back to the parent: the same blob, a higher sequence number.
    let lock = store.lock().unwrap();
    assert_eq!(store.commit(&lock, chain[1].1.clone()).unwrap(), chain[1].0);
    let active = store.active().unwrap().unwrap();
    assert_eq!((active.sequence, active.generation), (6, chain[1].0));
    assert_eq!(store.history(100).unwrap(), chain[1..]);
}

fn what_is_committed_must_be_there(medium: &impl Medium) {
    let store = Store::open(medium.storage()).unwrap();
    let lock = store.lock().unwrap();
    let good = generation(&store, &lock, 2, None);
    let parent = store.commit(&lock, Generation { number: 1, ..good.clone() }).unwrap();
    let good = Generation { parent: Some(parent), ..good };
    let absent = Digest::of(b"absent");
    for (bad, code) in [
        (Generation { manifest: absent, ..good.clone() }, "not-found"),
        (Generation { parent: Some(absent), ..good.clone() }, "not-found"),
        (Generation { parent: Some(good.manifest), ..good.clone() }, "not-a-generation"),
        (Generation { number: 1, ..good.clone() }, "generation-number"),
        (Generation { time: "yesterday".to_owned(), ..good.clone() }, "bad-timestamp"),
    ] {
        let blobs = store.blobs().unwrap().count();
        assert_eq!(store.commit(&lock, bad).unwrap_err().code(), code);
        assert_eq!(store.blobs().unwrap().count(), blobs);
        assert_eq!(store.active().unwrap().unwrap().generation, parent);
    }
    let digest = store.commit(&lock, good).unwrap();
    assert_eq!(store.active().unwrap().unwrap().generation, digest);
    // A generation whose blob was harmed is not passed over.
    let path = format!("blobs/sha256/{}", digest.hex());
    let bytes = medium.read(&path);
    medium.harm(&path, b"{}");
    assert_eq!(store.active().unwrap_err().code(), "blob-damaged");
    medium.harm(&path, &bytes);
    assert_eq!(store.history(9).unwrap().len(), 2);
}

fn a_slot_must_agree_with_its_generation(medium: &impl Medium) {
    let store = Store::open(medium.storage()).unwrap();
    let lock = store.lock().unwrap();
    let first = store.commit(&lock, generation(&store, &lock, 1, None)).unwrap();
    store.commit(&lock, generation(&store, &lock, 2, Some(first))).unwrap();
    // `active.b` holds the second. With the generation of the first and a checksum that fits, it contradicts itself.
    let good = medium.read("active.b");
    for (range, field) in [(16..48, "manifest"), (48..80, "manifest"), (80..112, "composition")] {
        let mut slot = good.clone();
        slot[range.clone()].copy_from_slice(&medium.read("active.a")[range]);
        let checksum = slm_format::ContentHash::of(&slot[..112]).to_bytes();
        slot[112..].copy_from_slice(&checksum);
        medium.harm("active.b", &slot);
        let error = store.active().unwrap_err();
        assert!(
            matches!(error, StoreError::SlotContradicts { field: found, .. } if found == field),
            "{error:?}"
        );
        assert_eq!((error.code(), error.class()), ("slot-damaged", ErrorClass::Damaged));
    }
    medium.harm("active.b", &good);
    assert_eq!(store.active().unwrap().unwrap().sequence, 2);
}

fn leftovers_go_with_the_next_lock(medium: &impl Medium) {
    let store = Store::open(medium.storage()).unwrap();
    drop(store.lock().unwrap());
    let mut file = medium.storage().create("tmp/0").unwrap();
    file.write_all(b"half a blob").unwrap();
    drop(file);
    assert_eq!(medium.files_aside(), ["0"]);
    let lock = store.lock().unwrap();
    assert_eq!(medium.files_aside(), Vec::<String>::new());
    store.put_bytes(&lock, b"x").unwrap();
}

fn other_versions_are_refused(medium: &impl Medium) {
    let store = Store::open(medium.storage()).unwrap();
    drop(store.lock().unwrap());
    assert_eq!(medium.read("version"), b"slm store 1\n");
    medium.harm("version", b"slm store 2\n");
    let error = refused(Store::open(medium.storage()));
    assert_eq!(
        error,
        StoreError::Version { found: "slm store 2".to_owned(), expected: "slm store 1" }
    );
    assert_eq!((error.code(), error.class()), ("store-version", ErrorClass::Refused));
    medium.harm("version", b"slm store 1\n");
    Store::open(medium.storage()).unwrap();
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn refused<T>(result: Result<T, StoreError>) -> StoreError {
    result.err().expect("it was not refused")
}

impl Medium for MemStorage {
    type Storage = MemStorage;

    fn storage(&self) -> MemStorage {
        self.clone()
    }

    fn read(&self, path: &str) -> Vec<u8> {
        self.open(path).unwrap().unwrap().to_vec()
    }

    fn harm(&self, path: &str, bytes: &[u8]) {
        self.insert(path, bytes);
    }
}

#[cfg(feature = "fs")]
struct Folder(tempfile::TempDir);

#[cfg(feature = "fs")]
impl Medium for Folder {
    type Storage = slm_store::FsStorage;

    fn storage(&self) -> slm_store::FsStorage {
        slm_store::FsStorage::open(self.0.path().join("store"))
    }

    fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.storage().root().join(path)).unwrap()
    }

    /// A new file in the old one's place, as a restored backup would be.
    fn harm(&self, path: &str, bytes: &[u8]) {
        let path = self.storage().root().join(path);
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, bytes).unwrap();
    }
}
