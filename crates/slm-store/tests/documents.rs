//! The policy and the journal of names, as documents of a store.

mod common;

use common::{NOW, assert_clean, intent};
use slm_format::{Coded as _, Digest, ErrorClass};
use slm_store::{
    Change, MAX_POLICY, MemStorage, NameChange, NameKind, NameRecord, Operation, Outcome, Stage,
    Storage as _, Store,
};

fn store() -> (MemStorage, Store<MemStorage>) {
    let storage = MemStorage::new();
    (storage.clone(), Store::open(storage).unwrap())
}

/// Where a thing came from is kept with its name, alone or among several, and decides nothing.
#[test]
fn names_keep_where_a_thing_came_from() {
    let store = Store::open(MemStorage::new()).unwrap();
    let lock = store.lock().unwrap();
    let blob = store.put_bytes(&lock, b"base").unwrap();
    let sources = [Digest::of(b"a"), Digest::of(b"b")].map(Some);
    let record = |source| NameRecord { source, ..NameRecord::new(blob, blob) };
    let kind = NameKind::Base;
    let (one, two) = ("one".parse().unwrap(), "two".parse().unwrap());
    assert!(store.set_name(&lock, kind, &one, &record(sources[0]), false).unwrap());
    assert_eq!(store.name(kind, &one).unwrap(), Some(record(sources[0])));
    // The same thing from elsewhere: the name stays as it is.
    for replace in [false, true] {
        assert!(!store.set_name(&lock, kind, &one, &record(sources[1]), replace).unwrap());
    }
    assert_eq!(store.name(kind, &one).unwrap(), Some(record(sources[0])));
    let change = |name: &slm_manifest::Name, source| NameChange {
        kind,
        name: name.clone(),
        record: record(source),
        replace: false,
    };
    let changes = [change(&one, sources[1]), change(&two, sources[1])];
    assert!(store.set_names(&lock, &changes).unwrap());
    assert_eq!(store.name(kind, &one).unwrap(), Some(record(sources[0])));
    assert_eq!(store.name(kind, &two).unwrap(), Some(record(sources[1])));
    // As stores had it before.
    let before = format!("{{\"name\":\"three\",\"id\":\"{blob}\",\"blob\":\"{blob}\"}}\n");
    store.storage().insert("names/base/three", before.as_bytes());
    assert_eq!(store.name(kind, &"three".parse().unwrap()).unwrap(), Some(record(None)));
}

#[test]
fn a_change_of_the_policy_is_named_in_the_log_before_it_is_made() {
    let (storage, store) = store();
    let document = b"[trust]\nrule = \"signed\"\n".to_vec();
    assert_eq!(store.policy().unwrap(), None);
    let mut lock = store.lock_at(NOW).unwrap();
    let staged = store.begin(&mut lock, intent(Operation::Trust)).unwrap();
    let staged = staged.stage(Change::SetPolicy(document.clone())).unwrap();
    let last = store.audit().unwrap().records.pop().unwrap();
    assert_eq!((last.stage, last.policy), (Stage::Staged, Some(Digest::of(&document))));
    assert_eq!(store.policy().unwrap(), None, "not before it is told");
    assert!(staged.commit().unwrap().changed);
    assert_eq!(store.policy().unwrap(), Some(document.clone()));
    // The same once more.
    let pending = store.begin(&mut lock, intent(Operation::Trust)).unwrap();
    let again = pending.stage(Change::SetPolicy(document.clone())).unwrap();
    assert!(!again.commit().unwrap().changed);
    // Staged, and then nobody: what is in force is told as it is, the old or the new.
    for (written, outcome) in [(&document[..], Outcome::Old), (b"# new", Outcome::New)] {
        let pending = store.begin(&mut lock, intent(Operation::Trust)).unwrap();
        drop(pending.stage(Change::SetPolicy(b"# new".to_vec())).unwrap());
        drop(lock);
        storage.insert("policy.toml", written);
        lock = store.lock_at(NOW).unwrap();
        let told = store.audit().unwrap().records.pop().unwrap();
        assert_eq!((told.stage, told.outcome), (Stage::Recovered, Some(outcome)));
    }
    let longest = vec![b'#'; MAX_POLICY];
    assert!(store.set_policy(&lock, &longest).unwrap());
    let longer = vec![b'#'; MAX_POLICY + 1];
    let error = store.set_policy(&lock, &longer).unwrap_err();
    assert_eq!((error.code(), error.class()), ("limit-exceeded", ErrorClass::Refused));
    let pending = store.begin(&mut lock, intent(Operation::Trust)).unwrap();
    assert_eq!(pending.stage(Change::SetPolicy(longer)).unwrap_err().code(), "limit-exceeded");
    assert_eq!(store.policy().unwrap(), Some(longest));
    assert_clean(&store, "after it all");
}

fn changes(store: &Store<MemStorage>, replace: bool) -> Vec<NameChange> {
    let lock = store.lock().unwrap();
    [(NameKind::Base, "b"), (NameKind::Adapter, "a"), (NameKind::Adapter, "x")]
        .map(|(kind, name)| {
            let blob = store.put_bytes(&lock, name.as_bytes()).unwrap();
            let (name, record) = (name.parse().unwrap(), NameRecord::new(blob, blob));
            NameChange { kind, name, record, replace }
        })
        .to_vec()
}

#[test]
fn names_are_given_together_or_not_at_all() {
    let (storage, store) = store();
    let changes = changes(&store, false);
    let lock = store.lock().unwrap();
    // One of them is taken: none is given.
    let taken = NameRecord::new(changes[0].record.id, changes[0].record.blob);
    let x = &changes[2].name;
    assert!(store.set_name(&lock, NameKind::Adapter, x, &taken, false).unwrap());
    let before = storage.paths();
    assert_eq!(store.set_names(&lock, &changes).unwrap_err().code(), "name-taken");
    let absent = Digest::of(b"nowhere");
    let mut lacking = changes.clone();
    lacking[1].record.blob = absent;
    assert_eq!(store.set_names(&lock, &lacking[..2]).unwrap_err().code(), "not-found");
    assert_eq!(storage.paths(), before);
    assert!(store.remove_name(&lock, NameKind::Adapter, x).unwrap());
    // The twin.
    assert!(store.set_names(&lock, &changes).unwrap());
    assert!(!store.set_names(&lock, &changes).unwrap());
    assert!(!store.set_names(&lock, &[]).unwrap());
    for change in &changes {
        assert_eq!(store.name(change.kind, &change.name).unwrap(), Some(change.record));
    }
    drop(lock);
    assert_clean(&store, "given");
}

/// What a journal says is in force for whoever looks, and the next holder of the lock brings it into the names' own files.
#[test]
fn a_journal_is_in_force_from_the_moment_it_is_there() {
    let (storage, store) = store();
    let changes = changes(&store, false);
    let lock = store.lock().unwrap();
    let other = NameRecord::new(changes[1].record.id, changes[1].record.blob);
    assert!(store.set_name(&lock, NameKind::Base, &changes[0].name, &other, false).unwrap());
    drop(lock);
    let entries: Vec<String> = changes
        .iter()
        .map(|NameChange { kind, name, record, .. }| {
            format!(
                r#"{{"kind":"{kind}","name":"{name}","id":"{}","blob":"{}"}}"#,
                record.id, record.blob
            )
        })
        .collect();
    storage.insert("names.journal", format!("[{}]", entries.join(",")).as_bytes());
    let all_are_given = || {
        for change in &changes {
            assert_eq!(store.name(change.kind, &change.name).unwrap(), Some(change.record));
            let all = store.names(change.kind).unwrap();
            assert!(all.contains(&(change.name.clone(), Ok(change.record))), "{all:?}");
        }
        assert_clean(&store, "in force");
    };
    all_are_given();
    assert!(storage.read("names/adapter/a", 1).unwrap().is_none());
    drop(store.lock().unwrap());
    assert!(storage.read("names.journal", 1).unwrap().is_none());
    assert!(storage.read("names/adapter/a", 1).unwrap().is_some());
    all_are_given();
    // Damaged, it hides what the names are: told as damage, and taking it away is the way out.
    for bad in [&b"[{"[..], b"{}", b"[{\"kind\":\"base\"}]", &[b' '; (1 << 20) + 1]] {
        storage.insert("names.journal", bad);
        for error in [
            store.name(NameKind::Base, &changes[0].name).unwrap_err(),
            store.names(NameKind::Adapter).unwrap_err(),
            store.lock().unwrap_err(),
        ] {
            assert_eq!((error.code(), error.class()), ("name-damaged", ErrorClass::Damaged));
            assert!(error.hint().unwrap().contains("names.journal"), "{error}");
        }
        assert!(!store.verify(false, &mut common::nothing_more).is_clean());
        storage.remove("names.journal").unwrap();
    }
    all_are_given();
}
