//! Torn and damaged slots.

mod common;

use common::generation;
use slm_format::{Coded as _, Digest, ErrorClass};
use slm_store::{MemStorage, SlotProblem, SlotRecord, Storage as _, Store, StoreError};

/// A store of `commits` commits; the digests of its generations.
fn committed(commits: u64) -> (MemStorage, Vec<Digest>) {
    let storage = MemStorage::new();
    let store = Store::open(storage.clone()).unwrap();
    let lock = store.lock().unwrap();
    let mut digests = Vec::new();
    for number in 1..=commits {
        let generation = generation(&store, &lock, number, digests.last().copied());
        digests.push(store.commit(&lock, generation).unwrap());
    }
    (storage, digests)
}

fn read(storage: &MemStorage, path: &str) -> Vec<u8> {
    storage.open(path).unwrap().unwrap().to_vec()
}

/// Every truncation and every flipped bit of `slot`, and some growth.
fn harms(slot: &[u8]) -> Vec<Vec<u8>> {
    let cuts = (0..slot.len()).map(|len| slot[..len].to_vec());
    let flips = (0..slot.len() * 8).map(|bit| {
        let mut bytes = slot.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    });
    let grown = [1, 1000].map(|more| [slot, &vec![0; more]].concat());
    cuts.chain(flips).chain(grown).collect()
}

#[test]
fn a_harmed_newer_slot_gives_the_older_and_says_so() {
    for (commits, newer, older) in
        [(2, "active.b", Some(0)), (3, "active.a", Some(1)), (1, "active.a", None)]
    {
        let (storage, digests) = committed(commits);
        let good = read(&storage, newer);
        assert_eq!(good.len(), SlotRecord::LEN);
        for harm in harms(&good) {
            storage.insert(newer, &harm);
            let store = Store::open(storage.clone()).unwrap();
            let fault = store.slot_fault().unwrap().expect("a harmed slot passed");
            assert_eq!(fault.slot, newer);
            let active = store.active().unwrap();
            assert_eq!(
                active.as_ref().map(|active| active.generation),
                older.map(|at: usize| digests[at])
            );
            if let Some(active) = active {
                assert_eq!((active.sequence, active.fault), (commits - 1, Some(fault)));
            }
        }
        // The twin: the same bytes unharmed.
        storage.insert(newer, &good);
        let store = Store::open(storage).unwrap();
        assert_eq!(store.slot_fault().unwrap(), None);
        assert_eq!(store.active().unwrap().unwrap().generation, *digests.last().unwrap());
    }
}

#[test]
fn a_harmed_older_slot_changes_nothing_and_is_reported() {
    let (storage, digests) = committed(2);
    for harm in harms(&read(&storage, "active.a")) {
        storage.insert("active.a", &harm);
        let active = Store::open(storage.clone()).unwrap().active().unwrap().unwrap();
        assert_eq!((active.sequence, active.generation), (2, digests[1]));
        assert_eq!(active.fault.unwrap().slot, "active.a");
    }
}

#[test]
fn the_next_commit_heals_a_torn_one() {
    for commits in 1..=3 {
        let (storage, digests) = committed(commits);
        let newer = if commits == 2 { "active.b" } else { "active.a" };
        let good = read(&storage, newer);
        storage.insert(newer, &good[..40]);
        let store = Store::open(storage.clone()).unwrap();
        let lock = store.lock().unwrap();
        let last = store.generation(*digests.last().unwrap()).unwrap();
        store.commit(&lock, last).unwrap();
        assert_eq!(read(&storage, newer), good, "the same commit gives the same slot");
        assert_eq!(store.active().unwrap().unwrap().fault, None);
    }
}

#[test]
fn two_harmed_slots_are_an_error() {
    let (storage, _) = committed(2);
    let good = [read(&storage, "active.a"), read(&storage, "active.b")];
    for (a, b, first, second) in [
        (Some(&good[0][..100]), Some(&b""[..]), SlotProblem::Length, SlotProblem::Length),
        (Some(&[0; 144]), Some(&[1; 144]), SlotProblem::Magic, SlotProblem::Magic),
        (None, Some(&good[1][..143]), SlotProblem::Absent, SlotProblem::Length),
        (
            Some(&[&good[0][..143], &[good[0][143] ^ 1]].concat()),
            None,
            SlotProblem::Checksum,
            SlotProblem::Absent,
        ),
    ] {
        for (path, bytes) in [("active.a", a), ("active.b", b)] {
            match bytes {
                Some(bytes) => storage.insert(path, bytes),
                None => storage.remove(path).unwrap(),
            }
        }
        let store = Store::open(storage.clone()).unwrap();
        let error = store.active().unwrap_err();
        assert_eq!((error.code(), error.class()), ("slot-damaged", ErrorClass::Damaged));
        let StoreError::SlotDamaged { first: a, second: b } = &error else { panic!("{error:?}") };
        assert_eq!((&a.problem, &b.problem), (&first, &second));
        let lock = store.lock().unwrap();
        let next = generation(&store, &lock, 9, None);
        assert_eq!(
            store.commit(&lock, next).unwrap_err(),
            error,
            "a commit does not paint over it"
        );
    }
    // The twin: either one whole.
    storage.insert("active.a", &good[0]);
    storage.insert("active.b", &[1; 144]);
    assert_eq!(Store::open(storage).unwrap().active().unwrap().unwrap().sequence, 1);
}

#[test]
fn an_absent_slot_is_reported_unless_it_never_was() {
    let (storage, digests) = committed(2);
    storage.remove("active.a").unwrap();
    let store = Store::open(storage.clone()).unwrap();
    let active = store.active().unwrap().unwrap();
    assert_eq!(active.generation, digests[1]);
    assert_eq!(active.fault.unwrap().problem, SlotProblem::Absent);
    let lock = store.lock().unwrap();
    let next = generation(&store, &lock, 3, Some(digests[1]));
    let digest = store.commit(&lock, next).unwrap();
    let active = store.active().unwrap().unwrap();
    assert_eq!((active.sequence, active.generation, active.fault), (3, digest, None));
}

#[test]
fn equal_numbers_must_be_equal_records() {
    let (storage, _) = committed(1);
    let (other, digests) = committed(3);
    // Another store's first commit, in the slot of the second.
    let mut slot = read(&other, "active.a");
    slot[8] = 1;
    let checksum = slm_format::ContentHash::of(&slot[..112]).to_bytes();
    slot[112..].copy_from_slice(&checksum);
    let twin = read(&storage, "active.a");
    storage.insert("active.b", &slot);
    let error = Store::open(storage.clone()).unwrap().active().unwrap_err();
    let StoreError::SlotDamaged { first, .. } = &error else { panic!("{error:?}") };
    assert_eq!(first.problem, SlotProblem::SameSequence(1));
    storage.insert("active.b", &twin);
    assert_ne!(Store::open(storage).unwrap().active().unwrap().unwrap().generation, digests[2]);
}

#[test]
fn the_last_sequence_number_is_refused() {
    let (storage, digests) = committed(2);
    for (number, refused) in [(u64::MAX, true), (u64::MAX - 1, false)] {
        let mut slot = read(&storage, "active.b");
        slot[8..16].copy_from_slice(&number.to_le_bytes());
        let checksum = slm_format::ContentHash::of(&slot[..112]).to_bytes();
        slot[112..].copy_from_slice(&checksum);
        storage.insert("active.b", &slot);
        let active = Store::open(storage.clone()).unwrap().active().unwrap().unwrap();
        let problem = active.fault.map(|fault| fault.problem);
        assert_eq!(problem, refused.then_some(SlotProblem::Sequence));
        assert_eq!(active.generation, digests[if refused { 0 } else { 1 }]);
    }
}
