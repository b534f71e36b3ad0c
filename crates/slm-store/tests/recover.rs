//! Neither slot tells what is active: the log does, if it is whole.

mod common;

use common::{NOW, activate, assert_clean, intent, manifest, nothing_more, rollback};
use slm_format::{Coded as _, Digest, ErrorClass};
use slm_store::{
    Change, Generation, MemStorage, Operation, Outcome, Stage, Storage as _, Store, StoreError,
};

/// Three generations, and back to the second; their digests.
fn store() -> (MemStorage, Store<MemStorage>, Vec<Digest>) {
    let storage = MemStorage::new();
    let store = Store::open(storage.clone()).unwrap();
    let mut lock = store.lock_at(NOW).unwrap();
    store.put_bytes(&lock, b"base").unwrap();
    common::import(&store, &mut lock, slm_store::NameKind::Base, "base", b"base").unwrap();
    let mut digests = Vec::new();
    for number in 1..4 {
        store.put_bytes(&lock, &[number; 100]).unwrap();
        digests.push(activate(&store, &mut lock, &manifest(b"base", &[&[number; 100]])).unwrap());
    }
    assert_eq!(rollback(&store, &mut lock).unwrap(), digests[1]);
    drop(lock);
    (storage, store, digests)
}

fn damage(storage: &MemStorage) {
    storage.insert("active.a", b"damaged");
    storage.insert("active.b", &[0; 144]);
}

fn recover(store: &Store<MemStorage>, generation: Generation) -> Result<bool, StoreError> {
    let mut lock = store.lock_at(NOW)?;
    let pending = store.begin(&mut lock, intent(Operation::Recover))?;
    Ok(pending.stage(Change::Recover(generation))?.commit()?.changed)
}

#[test]
fn what_was_made_active_last_is_active_again() {
    let lose = |storage: &MemStorage, a: Option<&[u8]>, b: Option<&[u8]>| {
        for (slot, bytes) in [("active.a", a), ("active.b", b)] {
            match bytes {
                Some(bytes) => storage.insert(slot, bytes),
                None => storage.remove(slot).unwrap(),
            }
        }
    };
    for (a, b) in [
        (Some(&b"damaged"[..]), Some(&[0; 144][..])),
        (None, None),
        (None, Some(b"")),
        (Some(b""), None),
    ] {
        let (storage, store, digests) = store();
        let before = store.active().unwrap().unwrap();
        assert_eq!(store.recorded_generation().unwrap(), None, "a slot tells");
        assert!(!recover(&store, before.record.clone()).unwrap());
        lose(&storage, a, b);
        let recorded = store.recorded_generation().unwrap().unwrap();
        assert_eq!((recorded.generation, recorded.unsure), (digests[1], None));
        assert_eq!(recorded.record, before.record);
        // Not another one than the log's.
        let other = store.generation(digests[2]).unwrap();
        assert_eq!(recover(&store, other).unwrap_err().code(), "log-damaged");
        assert!(recover(&store, recorded.record).unwrap());
        let active = store.active().unwrap().unwrap();
        assert_eq!((active.generation, active.fault), (digests[1], None));
        assert!(active.sequence > before.sequence, "above whatever was in the slots");
        assert_clean(&store, "recovered");
        let log = store.audit().unwrap().records;
        let last = log.last().unwrap();
        assert_eq!((last.operation, last.stage), (Operation::Recover, Stage::Committed));
        assert_eq!(last.generation, Some(digests[1]));
        // And it goes on: the next generation, back, a collection.
        let mut lock = store.lock_at(NOW).unwrap();
        activate(&store, &mut lock, &manifest(b"base", &[&[3; 100]])).unwrap();
        assert_eq!(rollback(&store, &mut lock).unwrap(), digests[1]);
        let options = slm_store::GcOptions::new(NOW);
        store.gc(&mut lock, &options, &mut nothing_more).unwrap();
        drop(lock);
        assert_clean(&store, "gone on");
    }
}

#[test]
fn two_slots_that_contradict_each_other_are_both_replaced() {
    let (storage, store, digests) = store();
    let mut slot = storage.open("active.a").unwrap().unwrap().to_vec();
    let other = storage.open("active.b").unwrap().unwrap().to_vec();
    slot[8..16].copy_from_slice(&other[8..16]);
    // A number that no count of the log reaches.
    let mut pair = [slot, other];
    for bytes in &mut pair {
        bytes[8..16].copy_from_slice(&1000_u64.to_le_bytes());
        let checksum = slm_format::ContentHash::of(&bytes[..112]).to_bytes();
        bytes[112..].copy_from_slice(&checksum);
    }
    storage.insert("active.a", &pair[0]);
    storage.insert("active.b", &pair[1]);
    assert_eq!(store.active().unwrap_err().code(), "slot-damaged");
    let recorded = store.recorded_generation().unwrap().unwrap();
    assert!(recover(&store, recorded.record).unwrap());
    let active = store.active().unwrap().unwrap();
    assert_eq!((active.sequence, active.generation), (1001, digests[1]));
}

#[test]
fn a_log_that_does_not_tell_is_no_way_back() {
    let (storage, store, digests) = store();
    let record = store.active().unwrap().unwrap().record;
    damage(&storage);
    let log = storage.open("audit.log").unwrap().unwrap().to_vec();
    let blob = |digest: Digest| format!("blobs/sha256/{}", digest.hex());
    let check = |code: &str, class: ErrorClass| {
        let error = store.recorded_generation().unwrap_err();
        assert_eq!((error.code(), error.class()), (code, class));
        assert_eq!(recover(&store, record.clone()).unwrap_err().code(), code);
        assert_eq!(store.active().unwrap_err().code(), "slot-damaged");
    };
    let mut bent = log.clone();
    bent[100] ^= 1;
    storage.insert("audit.log", &bent);
    check("log-damaged", ErrorClass::Damaged);
    storage.remove("audit.log").unwrap();
    check("nothing-recorded", ErrorClass::NotFound);
    storage.insert("audit.log", &log);
    for digest in [digests[1], record.manifest] {
        let bytes = storage.open(&blob(digest)).unwrap().unwrap().to_vec();
        storage.remove(&blob(digest)).unwrap();
        if digest == digests[1] {
            check("blob-missing", ErrorClass::Damaged);
            storage.insert(&blob(digest), &bytes[1..]);
            check("blob-damaged", ErrorClass::Damaged);
        } else {
            assert_eq!(recover(&store, record.clone()).unwrap_err().code(), "blob-missing");
        }
        storage.insert(&blob(digest), &bytes);
    }
    // The twin: everything is there.
    assert!(recover(&store, record).unwrap());
}

/// A switch that nobody knows the outcome of is not taken, but told of.
#[test]
fn a_switch_without_an_outcome_is_told_of() {
    let (storage, store, digests) = store();
    let mut lock = store.lock_at(NOW).unwrap();
    let generation = store.generation(digests[2]).unwrap();
    let pending = store.begin(&mut lock, intent(Operation::Activate)).unwrap();
    drop(pending.stage(Change::Activate(generation)).unwrap());
    drop(lock);
    damage(&storage);
    let recorded = store.recorded_generation().unwrap().unwrap();
    assert_eq!((recorded.generation, recorded.unsure), (digests[1], Some(digests[2])));
    // The next lock completes the log, and knows no more.
    drop(store.lock_at(NOW).unwrap());
    let last = store.audit().unwrap().records.pop().unwrap();
    assert_eq!(last.outcome, Some(Outcome::Unknown));
    assert_eq!(store.recorded_generation().unwrap(), Some(recorded.clone()));
    assert!(recover(&store, recorded.record).unwrap());
    assert_clean(&store, "recovered");
}
