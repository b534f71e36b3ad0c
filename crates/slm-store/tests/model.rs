//! Random sequences of operations against a plain model, on a medium that works and on one that fails now and then.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{NOW, activate, assert_clean, import, intent, manifest, nothing_more, rollback};
use proptest::prelude::*;
use slm_format::{Coded as _, Digest, ErrorClass};
use slm_manifest::{CompositionId, Manifest};
use slm_store::faulty::{FailingStorage, Failure};
use slm_store::{
    Change, GcOptions, Generation, MemStorage, NameKind, Operation, Storage, Store, StoreError,
};

#[derive(Debug, Clone)]
enum Step {
    Put(u8),
    NameAdapter(u8, u8),
    NameComposition(u8, Vec<u8>),
    RemoveName(u8),
    Activate(Vec<u8>),
    Rollback,
    Refuse,
    Forget,
    Gc(usize),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let stack = || prop::collection::btree_set(0u8..4, 0..3).prop_map(Vec::from_iter);
    prop_oneof![
        2 => (0u8..4).prop_map(Step::Put),
        2 => (0u8..3, 0u8..4).prop_map(|(name, adapter)| Step::NameAdapter(name, adapter)),
        2 => (0u8..2, stack()).prop_map(|(name, stack)| Step::NameComposition(name, stack)),
        1 => (0u8..3).prop_map(Step::RemoveName),
        6 => stack().prop_map(Step::Activate),
        3 => Just(Step::Rollback),
        1 => Just(Step::Refuse),
        1 => Just(Step::Forget),
        2 => (1usize..4).prop_map(Step::Gc),
        1 => Just(Step::Reopen),
    ]
}

const BASE: &[u8] = b"base";

fn adapter(number: u8) -> Vec<u8> {
    vec![number; 50]
}

fn composition(stack: &[u8]) -> Manifest {
    let bytes: Vec<Vec<u8>> = stack.iter().map(|number| adapter(*number)).collect();
    manifest(BASE, &bytes.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// What a store should hold, in plain collections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Model {
    blobs: BTreeSet<Digest>,
    adapters: BTreeMap<String, Digest>,
    compositions: BTreeMap<String, Vec<u8>>,
    /// Every generation ever made, by digest, with its parent and its stack.
    generations: BTreeMap<Digest, (Option<Digest>, Vec<u8>)>,
    active: Option<Digest>,
    /// What the other slot names.
    other: Option<Digest>,
    commits: u64,
}

impl Model {
    fn set_active(&mut self, digest: Digest) {
        if self.active != Some(digest) {
            self.other = self.active.replace(digest);
            self.commits += 1;
        }
    }

    fn parent(&self) -> Option<Digest> {
        let (parent, _) = &self.generations[&self.active?];
        parent.filter(|parent| self.blobs.contains(parent))
    }

    fn needed_by(&self, stack: &[u8]) -> impl Iterator<Item = Digest> {
        let adapters: Vec<Digest> =
            stack.iter().map(|number| Digest::of(&adapter(*number))).collect();
        adapters.into_iter().chain([composition(stack).digest()])
    }

    /// What gc should leave.
    fn needed(&self, keep: usize) -> BTreeSet<Digest> {
        let mut needed = BTreeSet::from([Digest::of(BASE)]);
        needed.extend(self.adapters.values());
        for stack in self.compositions.values() {
            needed.extend(self.needed_by(stack));
        }
        for (mut next, depth) in [(self.active, keep), (self.other, 1)] {
            for _ in 0..depth {
                let Some(digest) = next.filter(|digest| self.blobs.contains(digest)) else { break };
                let (parent, stack) = &self.generations[&digest];
                needed.insert(digest);
                needed.extend(self.needed_by(stack));
                next = *parent;
            }
        }
        needed
    }

    /// The model after `step`, and what makes it so on a store.
    fn after(&self, step: &Step) -> Model {
        let mut model = self.clone();
        match step {
            Step::Put(number) => {
                model.blobs.insert(Digest::of(&adapter(*number)));
            }
            Step::NameAdapter(name, number) => {
                model.blobs.insert(Digest::of(&adapter(*number)));
                model.adapters.insert(format!("a{name}"), Digest::of(&adapter(*number)));
            }
            Step::NameComposition(name, stack) => {
                model.blobs.extend(self.needed_by(stack));
                model.compositions.insert(format!("c{name}"), stack.clone());
            }
            Step::RemoveName(name) => {
                model.adapters.remove(&format!("a{name}"));
            }
            Step::Activate(stack) => {
                model.blobs.extend(self.needed_by(stack));
                let made = composition(stack);
                let generation = Generation {
                    number: self.commits + 1,
                    composition: made.composition_id(),
                    manifest: made.digest(),
                    parent: self.active,
                    time: NOW.to_owned(),
                };
                let digest = Digest::of(&serde_json::to_vec(&generation).unwrap());
                model.blobs.insert(digest);
                model.generations.insert(digest, (self.active, stack.clone()));
                model.set_active(digest);
            }
            Step::Rollback => {
                if let Some(parent) = self.parent() {
                    model.set_active(parent);
                }
            }
            Step::Gc(keep) => model.blobs = self.needed(*keep),
            Step::Refuse | Step::Forget | Step::Reopen => {}
        }
        model
    }

    fn run<S: Storage>(&self, store: &Store<S>, step: &Step) -> Result<(), StoreError> {
        let lock = &mut store.lock_at(NOW)?;
        let put_all = |stack: &[u8]| -> Result<(), StoreError> {
            stack.iter().try_for_each(|number| store.put_bytes(lock, &adapter(*number)).map(|_| ()))
        };
        match step {
            Step::Put(number) => store.put_bytes(lock, &adapter(*number)).map(|_| ()),
            Step::NameAdapter(name, number) => {
                import(store, lock, NameKind::Adapter, &format!("a{name}"), &adapter(*number))
                    .map(|_| ())
            }
            Step::NameComposition(name, stack) => {
                put_all(stack)?;
                let bytes = composition(stack).to_canonical_json();
                import(store, lock, NameKind::Composition, &format!("c{name}"), &bytes).map(|_| ())
            }
            Step::RemoveName(name) => {
                let name = format!("a{name}").parse().unwrap();
                let change = Change::RemoveName { kind: NameKind::Adapter, name };
                store
                    .begin(lock, intent(Operation::RemoveName))?
                    .stage(change)?
                    .commit()
                    .map(|_| ())
            }
            Step::Activate(stack) => {
                put_all(stack)?;
                activate(store, lock, &composition(stack)).map(|_| ())
            }
            Step::Rollback if self.parent().is_none() => Ok(()),
            Step::Rollback => rollback(store, lock).map(|_| ()),
            Step::Refuse => store.begin(lock, intent(Operation::Sign))?.refuse(&StoreError::Busy),
            Step::Forget => store.begin(lock, intent(Operation::Sign)).map(drop),
            Step::Gc(keep) => {
                let options = GcOptions { keep_generations: *keep, ..GcOptions::new(NOW) };
                store.gc(lock, &options, &mut nothing_more).map(|_| ())
            }
            Step::Reopen => Ok(()),
        }
    }

    /// Whether what can be seen of a store is this, blobs aside.
    fn shows<S: Storage>(&self, store: &Store<S>) -> bool {
        let names = |kind| {
            let names = store.names(kind).unwrap().into_iter();
            names.map(|(name, record)| (name.to_string(), record.unwrap())).collect::<Vec<_>>()
        };
        let adapters =
            names(NameKind::Adapter).into_iter().map(|(name, record)| (name, record.blob));
        let compositions = names(NameKind::Composition)
            .into_iter()
            .map(|(name, record)| (name, CompositionId::from_digest(record.id)));
        let expected = self
            .compositions
            .iter()
            .map(|(name, stack)| (name.clone(), composition(stack).composition_id()));
        adapters.eq(self.adapters.iter().map(|(name, blob)| (name.clone(), *blob)))
            && compositions.eq(expected)
            && store.active().unwrap().map(|active| active.generation) == self.active
    }
}

fn begin<S: Storage>(store: &Store<S>) -> Model {
    import(store, &mut store.lock_at(NOW).unwrap(), NameKind::Base, "base", BASE).unwrap();
    Model { blobs: BTreeSet::from([Digest::of(BASE)]), ..Model::default() }
}

fn blobs<S: Storage>(store: &Store<S>) -> BTreeSet<Digest> {
    store.blobs().unwrap().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn a_store_does_what_the_model_does(steps in prop::collection::vec(step(), 1..40)) {
        let storage = MemStorage::new();
        let mut store = Store::open(storage.clone()).unwrap();
        let mut model = begin(&store);
        for step in &steps {
            if let Step::Reopen = step {
                store = Store::open(storage.clone()).unwrap();
            }
            model.run(&store, step).unwrap();
            model = model.after(step);
            prop_assert!(model.shows(&store), "{step:?}");
            prop_assert_eq!(&blobs(&store), &model.blobs);
        }
        let report = assert_clean(&store, "at last");
        prop_assert_eq!(report.torn_tail, 0);
    }

    #[test]
    fn a_failing_medium_gives_the_old_or_the_new(
        steps in prop::collection::vec((step(), prop::option::of((0u64..40, any::<bool>(), any::<bool>()))), 1..25),
    ) {
        let storage = FailingStorage::new(MemStorage::new());
        let store = Store::open(storage.clone()).unwrap();
        let mut model = begin(&store);
        for (step, failure) in &steps {
            let failure = failure.map(|(at, lasting, after_effect)| Failure {
                lasting,
                after_effect,
                ..Failure::once(storage.operations() + at)
            });
            storage.fail(failure);
            let said = model.run(&store, step);
            storage.fail(None);
            let new = model.after(step);
            match said {
                Ok(()) => prop_assert!(new.shows(&store), "{step:?} said it was done"),
                Err(error) => {
                    prop_assert_eq!(error.class(), ErrorClass::Io, "{}", error.code());
                    prop_assert!(model.shows(&store) || new.shows(&store), "{step:?} {error:?}");
                }
            }
            if new.shows(&store) {
                model.set_generations(&new);
            }
            // Blobs that nothing needs may be there or not; what is needed is there.
            model.blobs = blobs(&store);
            assert_clean(&store, "after a failure");
            // A lock completes the log.
            drop(store.lock_at(NOW).unwrap());
            let last = store.audit().unwrap().records.pop();
            prop_assert!(last.is_none_or(|record| !record.is_open()));
        }
        let mut lock = store.lock_at(NOW).unwrap();
        store.gc(&mut lock, &GcOptions::new(NOW), &mut nothing_more).unwrap();
        prop_assert_eq!(assert_clean(&store, "at last").unneeded, vec![]);
    }
}

impl Model {
    fn set_generations(&mut self, new: &Model) {
        *self = Model { blobs: BTreeSet::new(), ..new.clone() };
    }
}

/// A change to the bytes of a log.
#[derive(Debug, Clone)]
enum Edit {
    Flip(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Remove(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Repeat(prop::sample::Index, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), 1u8..).prop_map(|(at, bits)| Edit::Flip(at, bits)),
        at().prop_map(Edit::Cut),
        (at(), 1usize..600).prop_map(|(at, len)| Edit::Remove(at, len)),
        (at(), prop::collection::vec(any::<u8>(), 1..40))
            .prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (at(), 1usize..600).prop_map(|(at, len)| Edit::Repeat(at, len)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_edit_of_the_log_makes_a_record(edits in prop::collection::vec(edit(), 1..4)) {
        let storage = MemStorage::new();
        let store = Store::open(storage.clone()).unwrap();
        let mut model = begin(&store);
        for number in 0..5 {
            let step = Step::Activate(vec![number % 4]);
            model.run(&store, &step).unwrap();
            model = model.after(&step);
        }
        let original = store.audit().unwrap().records;
        let mut log = storage.open("audit.log").unwrap().unwrap().to_vec();
        for edit in &edits {
            if log.is_empty() {
                break;
            }
            match edit {
                Edit::Flip(at, bits) => *at.get_mut(&mut log) ^= bits,
                Edit::Cut(at) => log.truncate(at.index(log.len())),
                Edit::Remove(at, len) => {
                    let at = at.index(log.len());
                    log.drain(at..(at + len).min(log.len()));
                }
                Edit::Insert(at, bytes) => {
                    let at = at.index(log.len());
                    log.splice(at..at, bytes.iter().copied());
                }
                Edit::Repeat(at, len) => {
                    let at = at.index(log.len());
                    let again = log[at..(at + len).min(log.len())].to_vec();
                    log.splice(at..at, again);
                }
            }
        }
        storage.insert("audit.log", &log);
        let mut seen = Vec::new();
        let said = store.audit_each(&mut |record| seen.push(record));
        prop_assert!(original.starts_with(&seen), "a record that was never written");
        if let Err(error) = &said {
            prop_assert_eq!(error.code(), "log-damaged");
        }
        // Whatever it is, the next operation works on it or refuses.
        let mut lock = store.lock_at(NOW).unwrap();
        match store.begin(&mut lock, intent(Operation::Sign)).and_then(|pending| pending.unchanged()) {
            Ok(()) => {}
            Err(error) => prop_assert_eq!(error.code(), "log-damaged"),
        }
        prop_assert_eq!(store.active().unwrap().map(|active| active.generation), model.active);
    }
}
