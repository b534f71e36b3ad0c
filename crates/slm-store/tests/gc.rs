//! What gc keeps, what it removes, and what verify says of both.

mod common;

use common::{
    NOW, activate, assert_clean, base_id, import, intent, manifest, nothing_more, rollback,
};
use slm_format::{Coded as _, ContentHash, Digest, ErrorClass};
use slm_manifest::Manifest;
use slm_store::{
    Change, GcOptions, MemStorage, NameKind, Operation, Place, SlotProblem, Stage, Storage as _,
    Store, StoreError, WriteLock,
};

/// A store with one base, and `count` generations of one adapter each, none of them named.
fn generations(count: u8) -> (MemStorage, Store<MemStorage>, Vec<Digest>) {
    let storage = MemStorage::new();
    let store = Store::open(storage.clone()).unwrap();
    let mut lock = store.lock_at(NOW).unwrap();
    import(&store, &mut lock, NameKind::Base, "base", b"base").unwrap();
    let mut digests = Vec::new();
    for number in 0..count {
        let adapter = [number; 100];
        store.put_bytes(&lock, &adapter).unwrap();
        digests.push(activate(&store, &mut lock, &manifest(b"base", &[&adapter])).unwrap());
    }
    drop(lock);
    (storage, store, digests)
}

fn gc(store: &Store<MemStorage>, keep: usize) -> slm_store::GcReport {
    let mut lock = store.lock_at(NOW).unwrap();
    let options = GcOptions { keep_generations: keep, ..GcOptions::new(NOW) };
    store.gc(&mut lock, &options, &mut nothing_more).unwrap()
}

fn is_stored(store: &Store<MemStorage>, bytes: &[u8]) -> bool {
    store.has_blob(Digest::of(bytes)).unwrap()
}

#[test]
fn the_last_generations_stay_with_all_they_need() {
    for keep in [0, 1, 2, 5, 10, 11, 12, 100] {
        let (_, store, digests) = generations(12);
        assert_eq!(store.blobs().unwrap().count(), 1 + 3 * 12);
        let report = gc(&store, keep);
        // The generation before the active one is in the other slot, and stays with it.
        let kept = keep.clamp(2, 12);
        assert_eq!(report.kept, 1 + 3 * kept, "keep {keep}");
        assert_eq!(report.removed.len(), 3 * (12 - kept));
        assert_eq!(report.leased, []);
        assert_eq!(store.blobs().unwrap().count(), report.kept);
        for (number, digest) in digests.iter().enumerate() {
            let stays = number >= 12 - kept;
            assert_eq!(is_stored(&store, &[number as u8; 100]), stays, "keep {keep}: {number}");
            assert_eq!(store.has_blob(*digest).unwrap(), stays);
        }
        assert_eq!(store.history(100).unwrap().len(), kept);
        assert_eq!(assert_clean(&store, "after gc").unneeded, []);
        // Rolling back as far as was kept works.
        let mut lock = store.lock_at(NOW).unwrap();
        for _ in 1..kept {
            rollback(&store, &mut lock).unwrap();
        }
        drop(lock);
        assert_eq!(store.active().unwrap().unwrap().generation, digests[12 - kept]);
        // Then nothing but the oldest and the one that was left last is needed.
        assert_eq!(gc(&store, keep).kept, 1 + 3 * 2);
        assert_clean(&store, "after rolling back");
    }
}

#[test]
fn a_second_run_changes_nothing_and_says_so() {
    let (storage, store, _) = generations(4);
    let report = gc(&store, 2);
    assert_eq!(report.removed.len(), 6);
    assert_eq!(report.bytes, {
        let (_, whole, _) = generations(4);
        report
            .removed
            .iter()
            .map(|digest| (*whole.blob(*digest).unwrap()).len() as u64)
            .sum::<u64>()
    });
    let before: Vec<String> = storage.paths();
    assert_eq!(gc(&store, 2).removed, []);
    assert_eq!(storage.paths(), before);
    let stages: Vec<Stage> = store.audit().unwrap().records.iter().map(|r| r.stage).collect();
    assert_eq!(
        stages[stages.len() - 5..],
        [Stage::Validating, Stage::Staged, Stage::Committed, Stage::Validating, Stage::Unchanged]
    );
}

#[test]
fn names_roots_and_needs_keep_what_they_name() {
    let storage = MemStorage::new();
    let store = Store::open(storage).unwrap();
    let mut lock = store.lock_at(NOW).unwrap();
    for bytes in [&b"adapter"[..], b"loose", b"root", b"unnamed base", b"evaluation"] {
        store.put_bytes(&lock, bytes).unwrap();
    }
    import(&store, &mut lock, NameKind::Adapter, "named", b"named adapter").unwrap();
    let made = manifest(b"unnamed base", &[b"adapter"]);
    let raw = slm_manifest::RawManifest {
        evaluation: Some(Digest::of(b"evaluation")),
        ..(*made).clone()
    };
    let made = Manifest::check(raw).unwrap();
    import(&store, &mut lock, NameKind::Composition, "c", &made.to_canonical_json()).unwrap();
    // Nobody names the base: only `needs` knows its blob.
    let mut needs = |asked: &Manifest| {
        assert_eq!(asked.base_model_hash, base_id(b"unnamed base"));
        Ok(vec![Digest::of(b"unnamed base")])
    };
    let report = store.verify(true, &mut needs);
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(report.unneeded.len(), 2);
    let options = GcOptions { roots: vec![Digest::of(b"root")], ..GcOptions::new(NOW) };
    let report = store.gc(&mut lock, &options, &mut needs).unwrap();
    assert_eq!((report.removed, report.kept), (vec![Digest::of(b"loose")], 6));
    // The twin: without it, verify says so, and gc takes it.
    let findings = store.verify(false, &mut nothing_more).findings;
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].place, Place::Manifest(made.digest()));
    assert_eq!(findings[0].error, StoreError::BaseMissing { base: base_id(b"unnamed base") });
    assert_eq!(findings[0].error.code(), "blob-missing");
    let report = store.gc(&mut lock, &GcOptions::new(NOW), &mut nothing_more).unwrap();
    assert_eq!(report.removed.len(), 2);
    // A name that is taken away keeps nothing any more.
    let pending = store.begin(&mut lock, intent(Operation::RemoveName)).unwrap();
    let change = Change::RemoveName { kind: NameKind::Composition, name: "c".parse().unwrap() };
    assert!(pending.stage(change.clone()).unwrap().commit().unwrap().changed);
    let pending = store.begin(&mut lock, intent(Operation::RemoveName)).unwrap();
    assert!(!pending.stage(change).unwrap().commit().unwrap().changed);
    let report = store.gc(&mut lock, &GcOptions::new(NOW), &mut nothing_more).unwrap();
    assert_eq!((report.removed.len(), report.kept), (3, 1));
}

#[test]
fn leased_blobs_stay_until_the_lease_ends() {
    let (_, store, digests) = generations(5);
    let reader = Store::open(store.storage().clone()).unwrap();
    let old = store.generation(digests[0]).unwrap();
    let lease = reader.lease(&[old.manifest, Digest::of(&[0; 100])]).unwrap();
    let second = reader.lease(&[Digest::of(&[0; 100])]).unwrap();
    let report = gc(&store, 1);
    assert_eq!(report.leased.len(), 2);
    assert!(is_stored(&store, &[0; 100]) && store.has_blob(old.manifest).unwrap());
    assert!(!is_stored(&store, &[1; 100]));
    assert_clean(&store, "with a lease");
    drop(lease);
    assert_eq!(gc(&store, 1).leased, [Digest::of(&[0; 100])]);
    assert!(!store.has_blob(old.manifest).unwrap());
    drop(second);
    assert_eq!(gc(&store, 1).removed, [Digest::of(&[0; 100])]);
    let absent = reader.lease(&[Digest::of(&[4; 100]), Digest::of(&[0; 100])]).unwrap_err();
    assert_eq!(absent, StoreError::NotFound { digest: Digest::of(&[0; 100]) });
}

#[test]
fn gc_refuses_where_it_cannot_know_what_is_needed() {
    let (storage, store, digests) = generations(4);
    let active = store.active().unwrap().unwrap();
    let path = |digest: Digest| format!("blobs/sha256/{}", digest.hex());
    for (harmed, bytes) in [
        (path(active.generation), Some(&b"{}"[..])),
        (path(active.generation), None),
        (path(active.record.manifest), Some(b"{}")),
        (path(digests[2]), Some(b"")),
        ("names/base/base".to_owned(), Some(b"{}")),
        ("active.a".to_owned(), Some(b"x")),
    ] {
        let both_slots = harmed == "active.a";
        let good = storage.open(&harmed).unwrap().unwrap();
        let other = storage.open("active.b").unwrap().unwrap();
        match bytes {
            Some(bytes) => storage.insert(&harmed, bytes),
            None => storage.remove(&harmed).unwrap(),
        }
        if both_slots {
            storage.insert("active.b", b"y");
        }
        let blobs = store.blobs().unwrap().count();
        let mut lock = store.lock_at(NOW).unwrap();
        let error = store.gc(&mut lock, &GcOptions::new(NOW), &mut nothing_more).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Damaged, "{harmed}: {error}");
        assert_eq!(store.blobs().unwrap().count(), blobs);
        let last = store.audit().unwrap().records.pop().unwrap();
        assert_eq!((last.stage, last.code.as_deref()), (Stage::Refused, Some(error.code())));
        // And verify names it.
        assert!(!store.verify(true, &mut nothing_more).is_clean());
        storage.insert(&harmed, &good);
        storage.insert("active.b", &other);
        assert_clean(&store, &harmed);
    }
    let mut lock = store.lock_at(NOW).unwrap();
    store.gc(&mut lock, &GcOptions::new(NOW), &mut nothing_more).unwrap();
}

#[test]
fn verify_names_everything_that_is_broken_and_stops_at_nothing() {
    let (storage, store, digests) = generations(6);
    let mut lock = store.lock_at(NOW).unwrap();
    let good = manifest(b"base", &[&[3; 100]]);
    let other = manifest(b"base", &[&[4; 100]]);
    import(&store, &mut lock, NameKind::Composition, "good", &good.to_canonical_json()).unwrap();
    import(&store, &mut lock, NameKind::Composition, "other", &other.to_canonical_json()).unwrap();
    drop(lock);
    assert_clean(&store, "before");
    let path = |digest: Digest| format!("blobs/sha256/{}", digest.hex());
    let third = store.generation(digests[2]).unwrap();
    let large = vec![1; 2 << 20];
    let large_digest = store.put_bytes(&store.lock().unwrap(), &large).unwrap();

    storage.insert(&path(other.digest()), b"not a manifest");
    storage.remove(&path(Digest::of(&[0; 100]))).unwrap();
    storage.remove(&path(third.manifest)).unwrap();
    storage.insert(&path(digests[0]), b"");
    storage.insert("names/adapter/odd", b"?");
    storage.insert("active.a", b"torn");
    storage.insert(&path(large_digest), &vec![2; 2 << 20]);
    let mut log = storage.open("audit.log").unwrap().unwrap().to_vec();
    log[40] ^= 1;
    storage.insert("audit.log", &log);

    let found = |deep| {
        let findings = store.verify(deep, &mut nothing_more).findings;
        findings.into_iter().map(|f| (f.place, f.error.code())).collect::<Vec<_>>()
    };
    let first = store.generation(digests[1]).unwrap();
    let expected = [
        (Place::Blob(other.digest()), "blob-damaged"),
        (Place::Blob(digests[0]), "blob-damaged"),
        (Place::Generation(digests[2]), "blob-missing"),
        (Place::Name(NameKind::Adapter, "odd".parse().unwrap()), "name-damaged"),
        (Place::Active, "slot-damaged"),
        (Place::Log, "log-damaged"),
    ];
    let shallow = found(false);
    for finding in &expected {
        assert!(shallow.contains(finding), "{finding:?} not in {shallow:?}");
    }
    assert_eq!(shallow.len(), expected.len(), "{shallow:?}");
    assert!(store.has_blob(first.manifest).unwrap());
    let deep = found(true);
    assert!(deep.contains(&(Place::Blob(large_digest), "blob-damaged")), "{deep:?}");
    assert_eq!(deep.len(), shallow.len() + 1);
    // One bad composition harms no other, and no list.
    assert_eq!(store.names(NameKind::Composition).unwrap().len(), 2);
    store.verified_blob(good.digest()).unwrap();
    assert_eq!(store.active().unwrap().unwrap().generation, digests[5]);
}

#[test]
fn verify_compares_names_manifests_generations_and_the_log() {
    let (storage, store, _) = generations(3);
    let mut lock: WriteLock = store.lock_at(NOW).unwrap();
    let made = manifest(b"base", &[&[0; 100]]);
    import(&store, &mut lock, NameKind::Composition, "c", &made.to_canonical_json()).unwrap();
    drop(lock);
    // A name that says its manifest is another composition.
    let path = "names/composition/c";
    let good = String::from_utf8(storage.open(path).unwrap().unwrap().to_vec()).unwrap();
    let other = manifest(b"base", &[&[1; 100]]).composition_id();
    storage.insert(
        path,
        good.replace(&made.composition_id().to_string(), &other.to_string()).as_bytes(),
    );
    let findings = store.verify(false, &mut nothing_more).findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(matches!(
        findings[0].error,
        StoreError::ManifestContradicts { found, expected, .. }
            if found == made.composition_id() && expected == other
    ));
    storage.insert(path, good.as_bytes());
    assert_clean(&store, "the twin");
    // The newest slot lost at rest: the older is in force, and the log knows better.
    let newest =
        if store.active().unwrap().unwrap().sequence % 2 == 1 { "active.a" } else { "active.b" };
    let slot = storage.open(newest).unwrap().unwrap();
    storage.insert(newest, b"");
    let codes: Vec<_> = store
        .verify(false, &mut nothing_more)
        .findings
        .iter()
        .map(|f| (f.place.clone(), f.error.code()))
        .collect();
    assert_eq!(codes, [(Place::Active, "slot-damaged"), (Place::Log, "log-damaged")]);
    storage.insert(newest, &slot);
    // A log whose end was cut off at a line.
    let log = storage.open("audit.log").unwrap().unwrap();
    let lines: Vec<&[u8]> = log.split_inclusive(|byte| *byte == b'\n').collect();
    storage.insert("audit.log", &lines[..9].concat());
    let findings = store.verify(false, &mut nothing_more).findings;
    assert!(matches!(findings[0].error, StoreError::LogContradicts { .. }), "{findings:?}");
    assert_eq!(findings.len(), 1);
    storage.insert("audit.log", &log);
    assert_clean(&store, "the twin");
}

#[test]
fn slots_that_are_lost_are_told_of_and_gc_removes_nothing() {
    let (storage, store, _) = generations(3);
    let slots = ["active.a", "active.b"].map(|slot| storage.open(slot).unwrap().unwrap().to_vec());
    let mut never = [&b"slmslot1"[..], &[0; 104]].concat();
    never.extend(ContentHash::of(&never).to_bytes());
    for (a, b) in [
        (None, None),
        (Some(&never[..]), None),
        (None, Some(&never[..])),
        (Some(&never[..]), Some(&never[..])),
    ] {
        for (slot, bytes) in ["active.a", "active.b"].into_iter().zip([a, b]) {
            match bytes {
                Some(bytes) => storage.insert(slot, bytes),
                None => storage.remove(slot).unwrap(),
            }
        }
        assert_eq!(store.active().unwrap(), None);
        let findings = store.verify(true, &mut nothing_more).findings;
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(
            (&findings[0].place, findings[0].error.code()),
            (&Place::Active, "slot-damaged")
        );
        let problem = |slot: Option<_>| slot.map_or(SlotProblem::Absent, |_| SlotProblem::Nothing);
        assert!(
            matches!(&findings[0].error, StoreError::SlotDamaged { first, second }
                if first.problem == problem(a) && second.problem == problem(b)),
            "{findings:?}"
        );
        let blobs = store.blobs().unwrap().count();
        let mut lock = store.lock_at(NOW).unwrap();
        let error = store.gc(&mut lock, &GcOptions::new(NOW), &mut nothing_more).unwrap_err();
        assert_eq!(error, findings[0].error);
        assert_eq!(store.blobs().unwrap().count(), blobs);
    }
    // The twins: the slots as they were, and a store in which nothing was ever active.
    for (slot, bytes) in ["active.a", "active.b"].into_iter().zip(&slots) {
        storage.insert(slot, bytes);
    }
    assert_clean(&store, "the slots as they were");
    assert_eq!(gc(&store, 3).removed, []);
    let (_, store, _) = generations(0);
    assert_clean(&store, "nothing was ever active");
    assert_eq!(gc(&store, 3).removed, []);
}

#[test]
fn a_log_that_is_lost_is_told_of() {
    let (storage, store, digests) = generations(2);
    let log = storage.open("audit.log").unwrap().unwrap().to_vec();
    for lost in [None, Some(&b""[..])] {
        match lost {
            Some(bytes) => storage.insert("audit.log", bytes),
            None => storage.remove("audit.log").unwrap(),
        }
        let findings = store.verify(false, &mut nothing_more).findings;
        assert_eq!(findings.len(), 1, "{findings:?}");
        let (found, recorded) = (digests[1], "nothing".to_owned());
        assert_eq!(findings[0].place, Place::Log);
        assert_eq!(findings[0].error, StoreError::LogContradicts { found, recorded });
    }
    storage.insert("audit.log", &log);
    assert_clean(&store, "the twin");
}
