//! The commands of a program, as the store sees them, and what must hold after one was broken off.

use slm_format::Digest;
use slm_store::{
    Change, GcOptions, NameChange, NameKind, NameRecord, Operation, Outcome, Stage, Storage, Store,
    StoreError,
};

use super::{NOW, activate, assert_clean, import, intent, manifest, nothing_more, rollback};

/// A command: what one process does under one lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Put,
    Import,
    AdapterImport,
    ReplaceName,
    Compose,
    Activate,
    Rollback,
    Deactivate,
    RemoveName,
    Record,
    Gc,
    /// Three names at once, of which one is given anew.
    SetNames,
    SetPolicy,
}

pub const COMMANDS: [Command; 13] = [
    Command::Put,
    Command::Import,
    Command::AdapterImport,
    Command::ReplaceName,
    Command::Compose,
    Command::Activate,
    Command::Rollback,
    Command::Deactivate,
    Command::RemoveName,
    Command::Record,
    Command::Gc,
    Command::SetNames,
    Command::SetPolicy,
];

/// What a command is meant to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub active: Option<Digest>,
    pub names: Vec<(String, NameRecord)>,
    /// The blobs that something needs.
    pub needed: Vec<Digest>,
    /// The blob of [`Command::Put`], which nothing needs.
    pub put: bool,
    pub policy: Option<Vec<u8>>,
}

pub const OLD_POLICY: &[u8] = b"# the old policy\n";
pub const NEW_POLICY: &[u8] = b"# the new policy, which is longer\n";
pub const PUT: &[u8] = b"a blob that nothing names";

impl Command {
    pub fn run<S: Storage>(self, store: &Store<S>) -> Result<(), StoreError> {
        let lock = &mut store.lock_at(NOW)?;
        match self {
            Command::Put => store.put_bytes(lock, PUT).map(|_| ()),
            Command::Import => import(store, lock, NameKind::Base, "new", b"new base").map(|_| ()),
            Command::AdapterImport => {
                import(store, lock, NameKind::Adapter, "new", &[9; 3000]).map(|_| ())
            }
            Command::ReplaceName => {
                import(store, lock, NameKind::Adapter, "adapter", b"another").map(|_| ())
            }
            Command::Compose => {
                // Another process may have removed a name and collected since: what a manifest names is stored under the same lock.
                for bytes in [[0; 100], [1; 100]] {
                    store.put_bytes(lock, &bytes)?;
                }
                let bytes = manifest(b"base", &[&[0; 100], &[1; 100]]).to_canonical_json();
                import(store, lock, NameKind::Composition, "new", &bytes).map(|_| ())
            }
            Command::Activate => {
                for bytes in [[1; 100], [2; 100]] {
                    store.put_bytes(lock, &bytes)?;
                }
                activate(store, lock, &manifest(b"base", &[&[1; 100], &[2; 100]])).map(|_| ())
            }
            Command::Rollback => rollback(store, lock).map(|_| ()),
            Command::Deactivate => activate(store, lock, &manifest(b"base", &[])).map(|_| ()),
            Command::RemoveName => {
                let pending = store.begin(lock, intent(Operation::RemoveName))?;
                let (kind, name) = (NameKind::Composition, "composition".parse().unwrap());
                pending.stage(Change::RemoveName { kind, name })?.commit().map(|_| ())
            }
            Command::Record => {
                store.begin(lock, intent(Operation::Sign))?.refuse(&StoreError::Busy)
            }
            Command::Gc => {
                let options = GcOptions { keep_generations: 2, ..GcOptions::new(NOW) };
                store.gc(lock, &options, &mut nothing_more).map(|_| ())
            }
            Command::SetNames => {
                let mut changes = Vec::new();
                for (kind, name, bytes) in [
                    (NameKind::Adapter, "adapter", b"instead" as &[u8]),
                    (NameKind::Adapter, "second", b"second"),
                    (NameKind::Base, "third", b"third"),
                ] {
                    let blob = store.put_bytes(lock, bytes)?;
                    let (name, record) = (name.parse().unwrap(), NameRecord::new(blob, blob));
                    changes.push(NameChange { kind, name, record, replace: true });
                }
                let pending = store.begin(lock, intent(Operation::Unpack))?;
                pending.stage(Change::SetNames(changes))?.commit().map(|_| ())
            }
            Command::SetPolicy => {
                let pending = store.begin(lock, intent(Operation::Trust))?;
                pending.stage(Change::SetPolicy(NEW_POLICY.to_vec()))?.commit().map(|_| ())
            }
        }
    }
}

/// Three generations, one name of each kind, some blobs that nothing needs, and a file that a dead writer left aside.
pub fn prepare<S: Storage>(store: &Store<S>) {
    let lock = &mut store.lock_at(NOW).unwrap();
    import(store, lock, NameKind::Base, "base", b"base").unwrap();
    import(store, lock, NameKind::Adapter, "adapter", &[0; 100]).unwrap();
    for number in 1..4 {
        store.put_bytes(lock, &[number; 100]).unwrap();
        activate(store, lock, &manifest(b"base", &[&[number; 100]])).unwrap();
    }
    let bytes = manifest(b"base", &[&[0; 100]]).to_canonical_json();
    import(store, lock, NameKind::Composition, "composition", &bytes).unwrap();
    for garbage in [b"one", b"two"] {
        store.put_bytes(lock, garbage).unwrap();
    }
    assert!(store.set_policy(lock, OLD_POLICY).unwrap());
    assert!(!store.set_policy(lock, OLD_POLICY).unwrap());
    drop(store.storage().create("tmp/99").unwrap());
}

pub fn state<S: Storage>(store: &Store<S>, context: &str) -> State {
    let report = assert_clean(store, context);
    let mut names = Vec::new();
    for kind in [NameKind::Base, NameKind::Adapter, NameKind::Composition] {
        for (name, record) in store.names(kind).unwrap() {
            names.push((format!("{kind} {name}"), record.unwrap()));
        }
    }
    State {
        active: store.active().unwrap().map(|active| active.generation),
        names,
        needed: store.blobs().unwrap().filter(|blob| !report.unneeded.contains(blob)).collect(),
        put: store.has_blob(Digest::of(PUT)).unwrap(),
        policy: store.policy().unwrap(),
    }
}

/// What gc took away is needed by nothing that `verify` walks to: only the history behind is shorter.
pub fn is_one_of(found: &State, states: &[&State], command: Command) -> bool {
    states.iter().any(|state| match command {
        Command::Gc => found.active == state.active && found.names == state.names,
        // The blob may be there before the command says so; nothing needs it.
        Command::Put => State { put: state.put, ..found.clone() } == **state,
        _ => found == *state,
    })
}

/// Everything that must hold of what is found after a command was broken off.
pub fn check<S: Storage>(store: &Store<S>, command: Command, states: &[&State], context: &str) {
    drop(store.lock_at(NOW).expect(context));
    let found = state(store, context);
    assert!(is_one_of(&found, states, command), "{context}: {found:?} is none of {states:?}");
    let report = store.audit().expect(context);
    assert_eq!(report.torn_tail, 0, "{context}");
    assert!(report.records.last().is_none_or(|record| !record.is_open()), "{context}");
    let told = report.records.iter().rev().find(|record| record.stage == Stage::Recovered);
    // What a recovery says of the last change is what is found.
    if let Some(told) = told.filter(|told| Some(*told) == report.records.last()) {
        let is_new = match told.operation {
            Operation::Trust => Some(found.policy.as_deref() == Some(NEW_POLICY)),
            Operation::Unpack => Some(found.names.iter().any(|(name, _)| name == "base third")),
            _ => None,
        };
        let staged = told.policy.is_some() || told.name.is_some();
        if let Some(is_new) = is_new.filter(|_| staged) {
            let expected = if is_new { Outcome::New } else { Outcome::Old };
            assert_eq!(told.outcome, Some(expected), "{context}: {told:?}");
        }
    }
    assert_eq!(store.storage().list("tmp").unwrap(), Vec::<String>::new(), "{context}");
    // The next command works: the same, then another; and gc leaves nothing that nothing needs.
    if command != Command::Rollback {
        command.run(store).expect(context);
    }
    Command::Import.run(store).expect(context);
    Command::Activate.run(store).expect(context);
    Command::Gc.run(store).expect(context);
    assert_eq!(assert_clean(store, context).unneeded, [], "{context}");
}
