//! The audit log: order, chain, torn ends, damage, recovery.

mod common;

use common::{NOW, generation, intent};
use slm_format::{Coded as _, Digest, ErrorClass};
use slm_manifest::CompositionId;
use slm_store::faulty::{CrashStorage, Event, FailingStorage, Failure};
use slm_store::{
    AuditRecord, Change, Intent, LogProblem, MemStorage, NameKind, NameRecord, Operation, Outcome,
    Stage, Storage, Store, StoreError, WriteLock,
};

/// Activates generation `number` through the log.
fn activate<S: Storage>(store: &Store<S>, lock: &mut WriteLock, number: u64) -> Digest {
    let parent = store.active().unwrap().map(|active| active.generation);
    let next = generation(store, lock, number, parent);
    let pending = store.begin(lock, intent(Operation::Activate)).unwrap();
    let staged = pending.stage(Change::Activate(next)).unwrap();
    let committed = staged.commit().unwrap();
    assert!(committed.changed && committed.unrecorded.is_none());
    committed.generation.unwrap()
}

fn stages(records: &[AuditRecord]) -> Vec<(u64, Stage)> {
    records.iter().map(|record| (record.sequence, record.stage)).collect()
}

fn log(storage: &MemStorage) -> Vec<u8> {
    storage.open("audit.log").unwrap().unwrap().to_vec()
}

/// A store whose log tells of two activations.
fn two() -> (MemStorage, Store<MemStorage>) {
    let storage = MemStorage::new();
    let store = Store::open(storage.clone()).unwrap();
    let mut lock = store.lock_at(NOW).unwrap();
    activate(&store, &mut lock, 1);
    activate(&store, &mut lock, 2);
    drop(lock);
    (storage, store)
}

#[test]
fn every_step_is_told_in_order_and_chained() {
    let (storage, store) = two();
    let report = store.audit().unwrap();
    assert_eq!(report.torn_tail, 0);
    assert_eq!(
        stages(&report.records),
        [
            (1, Stage::Validating),
            (2, Stage::Staged),
            (3, Stage::Committed),
            (4, Stage::Validating),
            (5, Stage::Staged),
            (6, Stage::Committed),
        ]
    );
    let active = store.active().unwrap().unwrap();
    let last = &report.records[5];
    assert_eq!(last.generation, Some(active.generation));
    assert_eq!(last.manifest, Some(active.record.manifest));
    assert_eq!(last.composition, Some(active.record.composition));
    assert_eq!(report.records[0].before, None);
    for pair in report.records.windows(2) {
        assert_eq!(pair[1].before, Some(pair[0].digest));
    }
    // A line is a line of JSON whose digest anybody can compute.
    let text = String::from_utf8(log(&storage)).unwrap();
    for (line, record) in text.lines().zip(&report.records) {
        let field = format!("\"digest\":\"{}\",", record.digest);
        assert_eq!(Digest::of(line.replace(&field, "").as_bytes()), record.digest);
    }
}

/// The digest was computed by Python 3: `hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode())`, the
/// record without its digest.
#[test]
fn the_first_record_is_the_one_that_python_computes() {
    let storage = MemStorage::new();
    let store = Store::open(storage.clone()).unwrap();
    let mut lock = store.lock_at(NOW).unwrap();
    let record = Intent {
        actor: Some("alice@host".parse().unwrap()),
        composition: Some(CompositionId::from_digest(Digest::of(b"composition"))),
        manifest: Some(Digest::of(b"manifest")),
        ..intent(Operation::AdapterImport)
    };
    store.begin(&mut lock, record).unwrap().unchanged().unwrap();
    let text = String::from_utf8(log(&storage)).unwrap();
    let line = text.lines().next().unwrap();
    assert_eq!(
        line,
        r#"{"actor":"alice@host","composition":"sha256:@C","digest":"sha256:@D","manifest":"sha256:@M","operation":"adapter-import","sequence":1,"stage":"validating","time":"2026-07-21T00:00:00Z"}"#
            .replace("@C", &Digest::of(b"composition").hex())
            .replace("@M", &Digest::of(b"manifest").hex())
            .replace("@D", "e43235a75c94b7f2badea425a3bc21d19907718ba226fef23ade99c914dc564d")
    );
}

#[test]
fn refusals_name_their_code() {
    let storage = MemStorage::new();
    let store = Store::open(storage).unwrap();
    let mut lock = store.lock_at(NOW).unwrap();
    let blob = store.put_bytes(&lock, b"x").unwrap();
    let name = "a".parse().unwrap();
    let set = |blob: Digest, replace| Change::SetName {
        kind: NameKind::Base,
        name: "a".parse().unwrap(),
        record: NameRecord::new(blob, blob),
        replace,
    };
    // By the caller, before and after staging.
    let busy = StoreError::Busy;
    store.begin(&mut lock, intent(Operation::Import)).unwrap().refuse(&busy).unwrap();
    let pending = store.begin(&mut lock, intent(Operation::Import)).unwrap();
    pending.stage(set(blob, false)).unwrap().refuse(&busy).unwrap();
    assert_eq!(store.name(NameKind::Base, &name).unwrap(), None);
    // By the store.
    let absent = Digest::of(b"absent");
    let pending = store.begin(&mut lock, intent(Operation::Import)).unwrap();
    assert_eq!(
        pending.stage(set(absent, false)).unwrap_err(),
        StoreError::NotFound { digest: absent }
    );
    // The twin, twice: the second changes nothing.
    for changed in [true, false] {
        let pending = store.begin(&mut lock, intent(Operation::Import)).unwrap();
        let committed = pending.stage(set(blob, false)).unwrap().commit().unwrap();
        assert_eq!(committed.changed, changed);
    }
    let records = store.audit().unwrap().records;
    let outcomes: Vec<_> = records
        .iter()
        .filter(|record| !record.is_open())
        .map(|record| (record.stage, record.code.as_deref()))
        .collect();
    assert_eq!(
        outcomes,
        [
            (Stage::Refused, Some("store-busy")),
            (Stage::RolledBack, Some("store-busy")),
            (Stage::Refused, Some("not-found")),
            (Stage::Committed, None),
            (Stage::Unchanged, None),
        ]
    );
}

#[test]
fn times_may_go_back_and_must_be_times() {
    let (_, store) = two();
    let mut lock = store.lock_at(NOW).unwrap();
    let earlier = Intent { time: "1999-01-01T00:00:00Z".to_owned(), ..intent(Operation::Compose) };
    let mut pending = store.begin(&mut lock, earlier.clone()).unwrap();
    assert_eq!(pending.at("soon").unwrap_err().code(), "bad-timestamp");
    pending.at("1998-01-01T00:00:00Z").unwrap();
    pending.stage(Change::Nothing).unwrap().commit().unwrap();
    let records = store.audit().unwrap().records;
    assert_eq!(records[6].time, "1999-01-01T00:00:00Z");
    assert_eq!(records[8].time, "1998-01-01T00:00:00Z");
    let error = store.begin(&mut lock, Intent { time: "now".to_owned(), ..earlier }).unwrap_err();
    assert_eq!(error.code(), "bad-timestamp");
    assert_eq!(store.lock_at("now").unwrap_err().code(), "bad-timestamp");
    assert_eq!(store.audit().unwrap().records.len(), 9);
}

#[test]
fn a_torn_end_is_told_by_readers_and_cut_by_the_next_lock() {
    let (storage, store) = two();
    let whole = log(&storage);
    let ends: Vec<usize> = whole
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| at + 1)
        .collect();
    let before = ends[ends.len() - 2];
    let mut torn: Vec<Vec<u8>> =
        (before + 1..whole.len()).map(|len| whole[..len].to_vec()).collect();
    // The length arrived and the bytes not, or a part of them.
    for kept in [0, 1, 100, whole.len() - before - 1] {
        let mut bytes = whole[..before + kept].to_vec();
        bytes.resize(whole.len(), 0);
        torn.push(bytes);
        let mut bytes = whole.clone();
        bytes[before..before + kept.max(1)].fill(0);
        torn.push(bytes);
    }
    for bytes in torn {
        storage.insert("audit.log", &bytes);
        let report = store.audit().unwrap();
        assert_eq!(report.records.len(), 5);
        assert_eq!(report.torn_tail, (bytes.len() - before) as u64);
        let lock = store.lock_at(NOW).unwrap();
        // What was torn is the outcome of an activation, and the slot is already the new one.
        let records = store.audit().unwrap().records;
        assert_eq!((records.len(), records[5].stage), (6, Stage::Recovered));
        assert_eq!(records[5].outcome, Some(Outcome::New));
        assert!(records[5].why.as_deref().unwrap().contains("names the new generation"));
        drop(lock);
    }
    // The twin: nothing torn, nothing told.
    storage.insert("audit.log", &whole);
    drop(store.lock_at(NOW).unwrap());
    assert_eq!(log(&storage), whole);
}

#[test]
fn damage_before_the_end_is_an_error_with_its_place() {
    let (storage, store) = two();
    let whole = log(&storage);
    let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    let join =
        |order: &[usize]| order.iter().flat_map(|at| lines[*at]).copied().collect::<Vec<u8>>();
    let mut flipped = whole.clone();
    let at = lines[0].len() + 20;
    flipped[at] ^= 1;
    let forged = String::from_utf8(whole.clone()).unwrap().replacen("activate", "rollback", 1);
    let mut huge = whole.clone();
    huge.extend_from_slice(&vec![b'x'; 5000]);
    for (bytes, after, problem) in [
        (flipped, 1, LogProblem::Digest),
        (forged.into_bytes(), 0, LogProblem::Digest),
        (join(&[0, 2, 3, 4, 5]), 1, LogProblem::Sequence),
        (join(&[0, 2, 1, 3, 4, 5]), 1, LogProblem::Sequence),
        (join(&[0, 1, 1, 2, 3]), 2, LogProblem::Sequence),
        (join(&[1, 2, 3]), 0, LogProblem::Sequence),
        (huge, 6, LogProblem::Length),
    ] {
        storage.insert("audit.log", &bytes);
        let error = store.audit().unwrap_err();
        let StoreError::LogDamaged { after: found, problem: what, .. } = error.clone() else {
            panic!("{error:?}")
        };
        assert_eq!((found, what), (after, problem));
        assert_eq!((error.code(), error.class()), ("log-damaged", ErrorClass::Damaged));
        // The lock is given: what is damaged can be mended with it. Nothing is written where the end cannot be told; behind a whole last
        // record it is, and the damage stays for the audit to find.
        let mut lock = store.lock_at(NOW).unwrap();
        match store.begin(&mut lock, intent(Operation::Gc)).map(drop) {
            Ok(()) => assert_ne!(problem, LogProblem::Length),
            Err(refused) => assert_eq!((refused, problem), (error.clone(), LogProblem::Length)),
        }
        assert!(log(&storage).starts_with(&bytes));
        assert_eq!(store.audit().unwrap_err(), error);
        let mut seen = 0;
        store.audit_each(&mut |_| seen += 1).unwrap_err();
        assert_eq!(seen, after);
    }
    // A record from another log: it has the right number and the wrong ancestor.
    let (other, _) = two();
    let other_store = Store::open(other.clone()).unwrap();
    let mut lock = other_store.lock_at("2000-01-01T00:00:00Z").unwrap();
    let late = Intent { time: "2000-01-01T00:00:00Z".to_owned(), ..intent(Operation::Sign) };
    other_store.begin(&mut lock, late).unwrap().unchanged().unwrap();
    let foreign = log(&other);
    let last = foreign.split_inclusive(|byte| *byte == b'\n').next_back().unwrap();
    storage.insert("audit.log", &whole);
    let mut lock = store.lock_at(NOW).unwrap();
    store.begin(&mut lock, intent(Operation::Sign)).unwrap().unchanged().unwrap();
    let mut spliced = log(&storage)[..log(&storage).len() - last.len()].to_vec();
    spliced.extend_from_slice(last);
    storage.insert("audit.log", &spliced);
    let error = store.audit().unwrap_err();
    assert!(
        matches!(error, StoreError::LogDamaged { after: 7, problem: LogProblem::Chain, .. }),
        "{error:?}"
    );
}

#[test]
fn a_long_log_is_read_at_its_end_alone() {
    let (storage, store) = two();
    for _ in 0..250 {
        let mut lock = store.lock_at(NOW).unwrap();
        store.begin(&mut lock, intent(Operation::Sign)).unwrap().refuse(&StoreError::Busy).unwrap();
    }
    let whole = log(&storage);
    assert!(whole.len() > 100_000, "{} bytes", whole.len());
    // Damage far from the end does not hinder an operation, and is found by the audit.
    let mut bytes = whole.clone();
    bytes[30] ^= 1;
    storage.insert("audit.log", &bytes);
    let mut lock = store.lock_at(NOW).unwrap();
    store.begin(&mut lock, intent(Operation::Sign)).unwrap().unchanged().unwrap();
    assert!(log(&storage).starts_with(&bytes));
    assert_eq!(store.audit().unwrap_err().code(), "log-damaged");
    drop(lock);
    storage.insert("audit.log", &whole);
    let report = store.audit().unwrap();
    assert_eq!((report.records.len(), report.torn_tail), (506, 0));
}

#[test]
fn a_dropped_operation_is_told_by_the_next() {
    let (_, store) = two();
    let mut lock = store.lock_at(NOW).unwrap();
    drop(store.begin(&mut lock, intent(Operation::Activate)).unwrap());
    let parent = store.active().unwrap().map(|active| active.generation);
    let third = generation(&store, &lock, 3, parent);
    let pending = store.begin(&mut lock, intent(Operation::Activate)).unwrap();
    drop(pending.stage(Change::Activate(third)).unwrap());
    drop(lock);
    // Without a time the lock has none to tell; `begin` has.
    drop(store.lock().unwrap());
    assert!(store.audit().unwrap().records.last().unwrap().is_open());
    drop(store.lock_at(NOW).unwrap());
    let records = store.audit().unwrap().records;
    let told: Vec<_> = records[6..]
        .iter()
        .map(|record| (record.stage, record.outcome, record.why.as_deref().unwrap_or("")))
        .collect();
    assert_eq!(
        told,
        [
            (Stage::Validating, None, ""),
            (Stage::Recovered, Some(Outcome::Old), "nothing was staged"),
            (Stage::Validating, None, ""),
            (Stage::Staged, None, ""),
            (Stage::Recovered, Some(Outcome::Old), "the active record names the old generation"),
        ]
    );
}

#[test]
fn an_outcome_that_could_not_be_written_is_told_later() {
    let storage = FailingStorage::new(MemStorage::new());
    let store = Store::open(storage.clone()).unwrap();
    let mut lock = store.lock_at(NOW).unwrap();
    activate(&store, &mut lock, 1);
    let parent = store.active().unwrap().map(|active| active.generation);
    let next = generation(&store, &lock, 2, parent);
    let mut outcomes = [0; 3];
    for after_effect in [false, true] {
        for nth in 0.. {
            let before = store.active().unwrap().unwrap().generation;
            let pending = store.begin(&mut lock, intent(Operation::Activate)).unwrap();
            let staged = pending.stage(Change::Activate(next.clone())).unwrap();
            let failure = Failure::once(storage.operations() + nth);
            storage.fail(Some(Failure { after_effect, ..failure }));
            let failed = storage.failed();
            let committed = staged.commit();
            storage.fail(None);
            let failed = storage.failed() > failed;
            let active = store.active().unwrap().unwrap().generation;
            // What is said is what is.
            match committed {
                Ok(committed) => {
                    assert_eq!(committed.generation, Some(active));
                    outcomes[usize::from(committed.unrecorded.is_some())] += 1;
                }
                Err(error) => {
                    assert_eq!(error.class(), ErrorClass::Io);
                    outcomes[2] += 1;
                }
            }
            let changed = active != before;
            let pending = store.begin(&mut lock, intent(Operation::Sign)).unwrap();
            pending.unchanged().unwrap();
            let records = store.audit().unwrap().records;
            let told = records.iter().rev().filter(|record| record.sequence > 0).nth(2).unwrap();
            let says_new = match told.stage {
                Stage::Committed => true,
                Stage::Recovered => told.outcome == Some(Outcome::New),
                Stage::RolledBack => false,
                stage => panic!("{stage}"),
            };
            assert_eq!(says_new, changed, "operation {nth}, {after_effect}");
            // Back to where it was.
            if changed {
                let first = store.generation(before).unwrap();
                let pending = store.begin(&mut lock, intent(Operation::Rollback)).unwrap();
                pending.stage(Change::Activate(first)).unwrap().commit().unwrap();
            }
            if !failed {
                break;
            }
        }
    }
    assert!(outcomes[0] >= 2 && outcomes[1] >= 1 && outcomes[2] >= 2, "{outcomes:?}");
}

#[test]
fn a_killed_writer_is_told_of() {
    // What the killed process had written is seen by the next one, synced or not.
    let whole = CrashStorage::new();
    let store = Store::open(whole.clone()).unwrap();
    activate(&store, &mut store.lock_at(NOW).unwrap(), 1);
    let first = whole.steps();
    activate(&store, &mut store.lock_at(NOW).unwrap(), 2);
    let mut seen = Vec::new();
    for at in first..whole.steps() {
        let storage = CrashStorage::new();
        let store = Store::open(storage.clone()).unwrap();
        activate(&store, &mut store.lock_at(NOW).unwrap(), 1);
        storage.stop_at(at);
        let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            activate(&store, &mut store.lock_at(NOW).unwrap(), 2);
        }));
        assert!(stopped.is_err());
        storage.restart();
        let store = Store::open(storage.clone()).unwrap();
        drop(store.lock_at(NOW).unwrap());
        let records = store.audit().unwrap().records;
        let number = store.active().unwrap().unwrap().record.number;
        let last = records.last().unwrap();
        assert!(!last.is_open());
        if last.sequence > 3 {
            let new = last.stage == Stage::Committed || last.outcome == Some(Outcome::New);
            assert_eq!(new, number == 2, "stopped before step {at}");
        }
        seen.push((last.stage, number));
    }
    for state in
        [(Stage::Committed, 1), (Stage::Recovered, 1), (Stage::Recovered, 2), (Stage::Committed, 2)]
    {
        assert!(seen.contains(&state), "{state:?} not in {seen:?}");
    }
}

#[test]
fn what_an_activation_costs() {
    let storage = CrashStorage::new();
    let store = Store::open(storage.clone()).unwrap();
    activate(&store, &mut store.lock_at(NOW).unwrap(), 1);
    let before = storage.events().len();
    let mut lock = store.lock_at(NOW).unwrap();
    activate(&store, &mut lock, 2);
    let first = storage.events().split_off(before);
    let before = storage.events().len();
    activate(&store, &mut lock, 3);
    let second = storage.events().split_off(before);
    let syncs = |events: &[Event]| {
        let is_sync = |event: &&Event| matches!(event, Event::Sync(_) | Event::SyncDir(_));
        events.iter().filter(is_sync).count()
    };
    // Three records, the slot, and a file and a folder each for the manifest and the generation; once per lock both slots and their folder,
    // which somebody may have left unsynced.
    assert_eq!((syncs(&first), syncs(&second)), (11, 8), "{first:#?}");
}

/// Records that are well formed, carry the right digest, and were never written by a store.
#[test]
fn a_forged_record_breaks_nothing() {
    let forge = |fields: &str| {
        let line = format!("{{{fields}}}");
        let digest = Digest::of(line.as_bytes());
        line.replacen("\"operation\"", &format!("\"digest\":\"{digest}\",\"operation\""), 1) + "\n"
    };
    let fields = |code: &str, sequence: u64, time: &str, why: &str| {
        forge(&format!(
            r#"{code}"operation":"sign","sequence":{sequence},"stage":"validating","time":"{time}"{why}"#
        ))
    };
    let long = format!(r#","why":"{}""#, "x".repeat(1800));
    for (line, accepted) in [
        (fields("", 1, NOW, ""), true),
        (fields("", 1, NOW, &long), true),
        (fields(r#""code":"a-b","#, 1, NOW, ""), true),
        (fields("", 1, NOW, &format!(r#","why":"{}""#, "x".repeat(3000))), false),
        (fields("", 1, "never", ""), false),
        (fields("", 0, NOW, ""), false),
        (fields("", u64::MAX, NOW, ""), false),
        (fields("", (1 << 53) - 1, NOW, ""), false),
        (fields(r#""code":"A B","#, 1, NOW, ""), false),
        (fields("", 1, NOW, ",\"why\":\"\\u001b[2J\""), false),
    ] {
        // Behind it more than a torn end can be, so that it is damage if it is no record.
        let storage = MemStorage::new();
        let store = Store::open(storage.clone()).unwrap();
        drop(store.lock().unwrap());
        storage.insert("audit.log", (line.clone() + &line + &"x".repeat(4000)).as_bytes());
        let mut seen = 0;
        let error = store.audit_each(&mut |_| seen += 1).unwrap_err();
        assert_eq!((error.code(), seen), ("log-damaged", usize::from(accepted)), "{line}");
        storage.insert("audit.log", line.as_bytes());
        let mut lock = store.lock_at(NOW).unwrap();
        let next = store.begin(&mut lock, intent(Operation::Sign)).map(drop);
        assert!(next.is_ok() || !accepted, "{line}: {next:?}");
    }
    // The last number there is ends the log.
    let storage = MemStorage::new();
    let store = Store::open(storage.clone()).unwrap();
    drop(store.lock().unwrap());
    let last = fields("", (1 << 53) - 1, NOW, "");
    storage.insert("audit.log", (fields("", 1, NOW, "") + &last).as_bytes());
    let error = store.lock_at(NOW).unwrap_err();
    assert!(
        matches!(error, StoreError::LogDamaged { problem: LogProblem::Sequence, .. }),
        "{error:?}"
    );
}
