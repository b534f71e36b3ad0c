//! No way of switches leaves a trace: random ways against a plain model, and detours.

mod common;

use std::sync::OnceLock;

use common::{Bits, NOW, active_bits, bits_of, code, compose, composition, runtime, stocked, tiny};
use proptest::prelude::*;
use slm_manifest::CompositionId;
use slm_quant::Inline;
use slm_runtime::runtime::{Activation, Reference};
use slm_runtime::{Runtime, RuntimeError};
use slm_store::{MemStorage, Storage as _};

type Layers = &'static [(&'static str, f32)];

const STACKS: [(&str, Layers); 6] = [
    ("bare", &[]),
    ("k", &[("kjv", 1.0)]),
    ("k-half", &[("kjv", 0.5)]),
    ("p", &[("python", 1.0)]),
    ("kp", &[("kjv", 0.5), ("python", 1.0)]),
    ("pk", &[("python", 1.0), ("kjv", 0.5)]),
];

/// Each stack's identity and bits, by compositions that never were in a store.
fn expected() -> &'static [(CompositionId, Bits)] {
    static EXPECTED: OnceLock<Vec<(CompositionId, Bits)>> = OnceLock::new();
    EXPECTED.get_or_init(|| {
        STACKS
            .iter()
            .map(|(_, stack)| {
                let composition = composition(&tiny(), stack);
                (composition.id(), bits_of(&composition))
            })
            .collect()
    })
}

/// A store with everything composed, made once and copied.
fn store() -> MemStorage {
    static STORE: OnceLock<MemStorage> = OnceLock::new();
    let full = STORE.get_or_init(|| {
        let storage = MemStorage::new();
        let (runtime, _) = stocked(storage.clone());
        for (name, stack) in &STACKS[1..] {
            compose(&runtime, name, stack);
        }
        storage
    });
    let copy = MemStorage::new();
    for path in full.paths() {
        copy.insert(&path, &full.read(&path, usize::MAX).expect("memory").expect("a file"));
    }
    copy
}

#[derive(Debug, Clone)]
enum Step {
    Activate(usize),
    Rollback,
    Deactivate(&'static str),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..STACKS.len()).prop_map(Step::Activate),
        3 => Just(Step::Rollback),
        2 => prop_oneof![Just("kjv"), Just("python"), Just("nobody")].prop_map(Step::Deactivate),
        1 => Just(Step::Restart),
    ]
}

/// Generations that know their parent, and which one is active: all there is to a store's history.
#[derive(Default)]
struct Model {
    generations: Vec<(usize, Option<usize>)>,
    active: Option<usize>,
}

impl Model {
    fn stack(&self) -> Option<usize> {
        self.active.map(|active| self.generations[active].0)
    }

    fn switch(&mut self, stack: usize) -> bool {
        if self.stack() == Some(stack) {
            return false;
        }
        self.generations.push((stack, self.active));
        self.active = Some(self.generations.len() - 1);
        true
    }
}

/// The stack of the list that is left without an adapter.
fn without(stack: usize, adapter: &str) -> usize {
    let left: Vec<_> = STACKS[stack].1.iter().filter(|entry| entry.0 != adapter).collect();
    STACKS.iter().position(|(_, stack)| stack.iter().collect::<Vec<_>>() == left).expect("a stack")
}

/// What came out, and what the model says: whether anything changed, or the code of the refusal.
type Taken = (Result<Activation, RuntimeError>, Result<bool, &'static str>);

fn take(runtime: &Runtime<MemStorage>, model: &mut Model, step: &Step) -> Option<Taken> {
    Some(match step {
        Step::Activate(stack) => {
            let reference = Reference::Text(STACKS[*stack].0.to_owned());
            (runtime.activate_composition(&reference, NOW), Ok(model.switch(*stack)))
        }
        Step::Rollback => {
            let outcome = match model.active {
                None => Err("none-active"),
                Some(active) => match model.generations[active].1 {
                    None => Err("no-parent"),
                    parent => {
                        model.active = parent;
                        Ok(true)
                    }
                },
            };
            (runtime.rollback(NOW), outcome)
        }
        Step::Deactivate(adapter) => {
            let outcome = match model.stack() {
                None => Err("none-active"),
                Some(stack) => Ok(model.switch(without(stack, adapter))),
            };
            (runtime.deactivate_adapter(adapter, NOW), outcome)
        }
        Step::Restart => return None,
    })
}

proptest! {
    // A thousand ways, most of them short; the bits are compared at the end of each.
    #![proptest_config(ProptestConfig { cases: if cfg!(debug_assertions) { 100 } else { 1_000 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_way_ends_where_the_model_says(steps in prop::collection::vec(step(), 1..12)) {
        let storage = store();
        let mut current = runtime(storage.clone());
        let mut model = Model::default();
        for step in &steps {
            let Some((found, expected_outcome)) = take(&current, &mut model, step) else {
                current = runtime(storage.clone());
                continue;
            };
            match (found, expected_outcome) {
                (Ok(activation), Ok(changed)) => {
                    let stack = model.stack().expect("active");
                    prop_assert_eq!(activation.changed, changed);
                    prop_assert_eq!(activation.composition, expected()[stack].0);
                }
                (Err(error), Err(expected)) => prop_assert_eq!(slm_format::Coded::code(&error), expected),
                (found, expected) => prop_assert!(false, "{:?}, {:?}", found, expected),
            }
        }
        match model.stack() {
            None => prop_assert_eq!(code(current.status()), "none-active"),
            Some(stack) => {
                let status = current.status().expect("active");
                prop_assert_eq!(status.composition, expected()[stack].0);
                prop_assert_eq!(&active_bits(&current), &expected()[stack].1);
                let base = current.active_composition().expect("active").base().clone();
                prop_assert_eq!(base.rehash(&Inline), tiny().id());
            }
        }
        prop_assert!(current.verify(false).is_clean());
    }
}

/// base → A → base → B is base → B: identity, logits, and the weights in memory.
#[test]
fn a_detour_leaves_no_trace() {
    let way = |names: &[&str]| {
        let runtime = runtime(store());
        let mut last = None;
        for name in names {
            let reference = Reference::Text((*name).to_owned());
            last = Some(runtime.activate_composition(&reference, NOW).expect("active").composition);
            active_bits(&runtime);
        }
        let base = runtime.active_composition().expect("active").base().clone();
        (last, active_bits(&runtime), base.rehash(&Inline))
    };
    let straight = way(&["bare", "p"]);
    assert_eq!(straight.0, Some(expected()[3].0));
    assert_eq!(straight.1, expected()[3].1);
    for detour in
        [&["bare", "k", "bare", "p"][..], &["k", "pk", "bare", "kp", "p"], &["p", "k", "p"]]
    {
        assert_eq!(way(detour), straight, "{detour:?}");
    }
}
