//! Switching: exact bits before and after, over memory and over a folder.

mod common;

use std::collections::HashMap;

use common::{
    Bits, Choices, Medium, NOW, TOKENS, active_bits, bits, bits_of, code, compose, composition,
    import, name, runtime, stocked, tiny,
};
use slm_golden::load::gguf_model;
use slm_golden::reference::{self, Lora, Options};
use slm_golden::{TINY_Q8_0, TRIG, vectors};
use slm_manifest::{CompositionId, ExecutionProfile};
use slm_quant::Inline;
use slm_runtime::Runtime;
use slm_runtime::runtime::{Activation, Reference};
use slm_store::Storage;

on_both_media!(
    there_and_back,
    order_is_part_of_the_composition,
    weight_zero_adds_nothing,
    rollback_walks_the_parents,
    what_is_active_already_changes_nothing,
    deactivating_takes_one_adapter_out,
    a_session_keeps_what_it_started_with,
    the_same_adapter_twice_is_refused,
    a_restart_finds_what_was_active,
    random_steps_follow_the_model,
    a_clock_that_goes_backwards_breaks_nothing,
);

fn activate<S: Storage>(runtime: &Runtime<S>, name: &str) -> Activation {
    let reference = Reference::Text(name.to_owned());
    let activation = runtime.activate_composition(&reference, NOW).expect("an activation");
    base_is_untouched(runtime);
    activation
}

fn base_is_untouched<S: Storage>(runtime: &Runtime<S>) {
    let base = runtime.active_composition().expect("active").base().clone();
    assert_eq!(base.id(), tiny().id());
    assert_eq!(base.rehash(&Inline), tiny().id(), "the weights in memory changed");
}

/// The bits of [`TOKENS`] under a stack by the reference pass, which shares no code with what runs here.
fn reference_bits(stack: &[(&str, f32)]) -> Bits {
    let model = gguf_model(TINY_Q8_0);
    let loras: Vec<Lora> = stack
        .iter()
        .map(|entry| vectors::adapter(&format!("tiny-{}", entry.0), &model.config))
        .collect();
    let stack: Vec<(&Lora, f32)> =
        loras.iter().zip(stack).map(|(lora, entry)| (lora, entry.1)).collect();
    let options = Options { int8: true, kv_f16: true, trig: TRIG };
    let rows = reference::logits(&model, &stack, &TOKENS, options).expect("the reference pass");
    let mut hasher = blake3::Hasher::new();
    for logit in rows.iter().flatten() {
        hasher.update(&logit.to_le_bytes());
    }
    let last = common::to_bits(rows.last().expect("a row"));
    Bits { all_blake3: hasher.finalize().to_hex().to_string(), last }
}

fn there_and_back<S: Medium>(storage: S) {
    let (runtime, _) = stocked(storage);
    compose(&runtime, "a", &[("kjv", 1.0)]);
    compose(&runtime, "b", &[("python", 1.0)]);
    let mut seen: HashMap<&str, (CompositionId, Bits)> = HashMap::new();
    for name in ["bare", "a", "bare", "b", "bare", "a", "b", "a", "bare"] {
        let activation = activate(&runtime, name);
        assert!(activation.changed);
        let now = (activation.composition, active_bits(&runtime));
        let first = seen.entry(name).or_insert_with(|| now.clone());
        assert_eq!(*first, now, "{name} is not what it was");
    }
    assert_eq!(seen["bare"].1, reference_bits(&[]));
    assert_eq!(seen["a"].1, reference_bits(&[("kjv", 1.0)]));
    assert_eq!(seen["b"].1, reference_bits(&[("python", 1.0)]));
    assert_ne!(seen["a"].1.last, seen["b"].1.last);
    assert_ne!(seen["a"].1.last, seen["bare"].1.last);
}

fn order_is_part_of_the_composition<S: Medium>(storage: S) {
    let (runtime, _) = stocked(storage);
    let ab = [("kjv", 0.7), ("python", 0.3)];
    let ba = [("python", 0.3), ("kjv", 0.7)];
    let composed_ab = compose(&runtime, "ab", &ab);
    let composed_ba = compose(&runtime, "ba", &ba);
    assert_ne!(composed_ab.composition, composed_ba.composition);
    for _ in 0..2 {
        for (name, stack, composed) in [("ab", &ab, &composed_ab), ("ba", &ba, &composed_ba)] {
            let activation = activate(&runtime, name);
            assert_eq!(activation.composition, composed.composition);
            assert_eq!(active_bits(&runtime), reference_bits(stack), "{name}");
        }
    }
}

fn weight_zero_adds_nothing<S: Medium>(storage: S) {
    let (runtime, _) = stocked(storage);
    let bare = activate(&runtime, "bare");
    let bare_bits = active_bits(&runtime);
    compose(&runtime, "zero", &[("kjv", 0.0)]);
    let zero = activate(&runtime, "zero");
    assert_ne!(zero.composition, bare.composition);
    assert!(zero.changed);
    assert_eq!(active_bits(&runtime), bare_bits);
    // Negative zero is zero: not a third composition.
    let negative = compose(&runtime, "negative-zero", &[("kjv", -0.0)]);
    assert_eq!(negative.composition, zero.composition);
    // A zero between others is skipped, too.
    compose(&runtime, "with-zero", &[("kjv", 0.0), ("python", 1.0)]);
    activate(&runtime, "with-zero");
    assert_eq!(active_bits(&runtime), reference_bits(&[("python", 1.0)]));
}

#[test]
fn a_negative_weight_subtracts() {
    let bare = bits_of(&composition(&tiny(), &[]));
    let mut ids = vec![composition(&tiny(), &[]).id()];
    for weight in [1.0, -1.0, 0.5, -0.5] {
        let composition = composition(&tiny(), &[("kjv", weight)]);
        let found = bits_of(&composition);
        assert_eq!(found, reference_bits(&[("kjv", weight)]), "weight {weight}");
        assert_ne!(found, bare, "weight {weight}");
        assert!(!ids.contains(&composition.id()), "weight {weight}");
        ids.push(composition.id());
    }
}

fn rollback_walks_the_parents<S: Medium>(storage: S) {
    let (runtime, _) = stocked(storage);
    assert_eq!(code(runtime.rollback(NOW)), "none-active");
    compose(&runtime, "a", &[("kjv", 1.0)]);
    compose(&runtime, "b", &[("python", 1.0)]);
    let way: Vec<(Activation, Bits)> = ["bare", "a", "b"]
        .into_iter()
        .map(|name| (activate(&runtime, name), active_bits(&runtime)))
        .collect();
    for back in [1, 0] {
        let rolled = runtime.rollback(NOW).expect("a parent");
        base_is_untouched(&runtime);
        let (then, then_bits) = &way[back];
        assert!(rolled.changed);
        assert_eq!(rolled.composition, then.composition);
        assert_eq!(rolled.manifest, then.manifest);
        assert_eq!(rolled.generation, then.generation);
        assert_eq!(rolled.previous, Some(way[back + 1].0.composition));
        assert_eq!(&active_bits(&runtime), then_bits);
    }
    assert_eq!(code(runtime.rollback(NOW)), "no-parent");
    let status = runtime.status().expect("active");
    assert_eq!(status.composition, way[0].0.composition);
    assert_eq!(active_bits(&runtime), way[0].1);
    // A way taken from here has its own parents.
    let again = activate(&runtime, "b");
    assert_eq!(again.composition, way[2].0.composition);
    assert!(again.generation > way[2].0.generation);
    assert_eq!(runtime.rollback(NOW).expect("a parent").composition, way[0].0.composition);
}

fn a_clock_that_goes_backwards_breaks_nothing<S: Medium>(storage: S) {
    const YEARS: [&str; 4] = [
        "2026-07-21T00:00:00Z",
        "1999-12-31T23:59:59Z",
        "2038-01-19T03:14:08Z",
        "1970-01-01T00:00:00Z",
    ];
    let (runtime, _) = stocked(storage);
    compose(&runtime, "a", &[("kjv", 1.0)]);
    let mut generations = Vec::new();
    for (name, year) in ["bare", "a", "bare", "a"].into_iter().zip(YEARS) {
        let reference = Reference::Text(name.to_owned());
        let activation = runtime.activate_composition(&reference, year).expect("an activation");
        generations.push(activation.generation);
    }
    assert!(generations.is_sorted_by(|a, b| a < b), "{generations:?}");
    let history = runtime.history().expect("a history");
    let times: Vec<&str> = history.iter().map(|entry| entry.time.as_str()).collect();
    assert_eq!(times, [YEARS[3], YEARS[2], YEARS[1], YEARS[0]], "newest first, whatever it says");
    assert_eq!(runtime.rollback(YEARS[1]).expect("a parent").generation, generations[2]);
    let records = runtime.store().audit().expect("the chain holds").records;
    assert!(records.iter().map(|record| record.sequence).is_sorted_by(|a, b| a < b));
    assert!(runtime.verify(true).is_clean(), "{:?}", runtime.verify(true));
}

fn what_is_active_already_changes_nothing<S: Medium>(storage: S) {
    let (runtime, stock) = stocked(storage);
    compose(&runtime, "a", &[("kjv", 1.0)]);
    let bare = activate(&runtime, "bare");
    let a = activate(&runtime, "a");
    let files = runtime.store().storage().files();
    let history = runtime.history().expect("a history");
    let again = activate(&runtime, "a");
    assert_eq!((again.changed, again.generation), (false, a.generation));
    for absent in ["python", "never-imported", &stock.python.adapter.to_string()] {
        let same = runtime.deactivate_adapter(absent, NOW).expect("nothing to do");
        assert_eq!((same.changed, same.composition), (false, a.composition), "{absent}");
    }
    assert_eq!(runtime.store().storage().files(), files, "nothing was to be written");
    assert_eq!(runtime.history().expect("a history"), history);
    assert_eq!(runtime.rollback(NOW).expect("a parent").composition, bare.composition);
}

fn deactivating_takes_one_adapter_out<S: Medium>(storage: S) {
    let (runtime, stock) = stocked(storage);
    assert_eq!(code(runtime.deactivate_adapter("kjv", NOW)), "none-active");
    let both = compose(&runtime, "both", &[("kjv", 0.7), ("python", 0.3)]);
    activate(&runtime, "both");
    let python = runtime.deactivate_adapter("kjv", NOW).expect("a switch");
    base_is_untouched(&runtime);
    assert!(python.changed);
    assert_eq!(python.previous, Some(both.composition));
    assert_eq!(python.composition, composition(&tiny(), &[("python", 0.3)]).id());
    assert_eq!(active_bits(&runtime), reference_bits(&[("python", 0.3)]));
    let manifest = runtime.status().expect("active").manifest;
    assert_eq!((manifest.adapters.len(), manifest.adapters[0].load_order), (1, 1));
    // The other one by its id; what is left is the bare base.
    let id = stock.python.adapter.to_string();
    let bare = runtime.deactivate_adapter(&id, NOW).expect("a switch");
    assert_eq!(bare.composition, composition(&tiny(), &[]).id());
    assert_eq!(active_bits(&runtime), reference_bits(&[]));
    assert_eq!(runtime.rollback(NOW).expect("a parent").composition, python.composition);
    assert_eq!(runtime.rollback(NOW).expect("a parent").composition, both.composition);
}

fn a_session_keeps_what_it_started_with<S: Medium>(storage: S) {
    let (runtime, _) = stocked(storage);
    compose(&runtime, "a", &[("kjv", 1.0)]);
    compose(&runtime, "b", &[("python", 1.0)]);
    let (first, rest) = TOKENS.split_at(5);
    activate(&runtime, "a");
    let expected = active_bits(&runtime).last;
    let mut session = runtime.session(ExecutionProfile::DEFAULT).expect("a session");
    session.advance(first, 64).expect("a pass");
    let b = activate(&runtime, "b");
    assert_ne!(session.composition().id(), b.composition);
    let other = active_bits(&runtime).last;
    assert_eq!(bits(&mut session, rest, 64).last, expected);
    session.truncate(5);
    runtime.deactivate_adapter("python", NOW).expect("a switch");
    assert_eq!(bits(&mut session, rest, 64).last, expected);
    assert_ne!(other, expected);
    // The store may even lose the adapter: the session holds what it needs.
    drop(runtime);
    session.truncate(5);
    assert_eq!(bits(&mut session, rest, 64).last, expected);
}

fn the_same_adapter_twice_is_refused<S: Medium>(storage: S) {
    let (runtime, stock) = stocked(storage);
    // Under another name it is still the same adapter.
    let (config, weights) = common::adapter_files("kjv");
    runtime
        .load_adapter(
            &|shape| common::resolve(config, weights, shape),
            "tiny",
            &name("kjv-again"),
            NOW,
            false,
        )
        .expect("an import");
    import(&runtime, "kjv", "tiny").expect("an import that changes nothing");
    activate(&runtime, "bare");
    let files = runtime.store().storage().files();
    let id = stock.kjv.adapter.to_string();
    for second in ["kjv", "kjv-again", &id] {
        let refused = runtime.compose(
            &name("twice"),
            "tiny",
            &[("kjv", 0.5), ("python", 1.0), (second, 0.5)],
            NOW,
            false,
        );
        assert_eq!(code(refused), "duplicate-adapter", "{second}");
    }
    assert_eq!(runtime.store().storage().files(), files);
    compose(&runtime, "once", &[("kjv", 0.5), ("python", 1.0)]);
}

fn a_restart_finds_what_was_active<S: Medium>(storage: S) {
    let (first, _) = stocked(storage);
    compose(&first, "a", &[("kjv", 1.0)]);
    activate(&first, "bare");
    let a = activate(&first, "a");
    let expected = active_bits(&first);
    let second = runtime(first.store().storage().again());
    drop(first);
    assert_eq!(second.status().expect("active").composition, a.composition);
    assert_eq!(active_bits(&second), expected);
    assert_eq!(second.rollback(NOW).expect("a parent").composition, composition(&tiny(), &[]).id());
    assert_eq!(active_bits(&second), reference_bits(&[]));
}

type Layers = Vec<(&'static str, f32)>;

/// What the store's history is, in plain values: generations that know their parent, and which one is active.
#[derive(Default)]
struct Model {
    generations: Vec<(Layers, Option<usize>)>,
    active: Option<usize>,
}

impl Model {
    fn stack(&self) -> Layers {
        self.generations[self.active.expect("active")].0.clone()
    }

    /// Whether it changes anything.
    fn switch(&mut self, stack: Layers) -> bool {
        if self.active.is_some() && self.stack() == stack {
            return false;
        }
        self.generations.push((stack, self.active));
        self.active = Some(self.generations.len() - 1);
        true
    }

    fn rollback(&mut self) -> bool {
        let parent = self.active.and_then(|active| self.generations[active].1);
        if parent.is_some() {
            self.active = parent;
        }
        parent.is_some()
    }
}

fn random_steps_follow_the_model<S: Medium>(storage: S) {
    let (runtime, _) = stocked(storage);
    let stacks: [(&str, Layers); 7] = [
        ("bare", vec![]),
        ("k", vec![("kjv", 1.0)]),
        ("k-half", vec![("kjv", 0.5)]),
        ("k-zero", vec![("kjv", 0.0)]),
        ("p", vec![("python", 1.0)]),
        ("kp", vec![("kjv", 0.5), ("python", 1.0)]),
        ("pk", vec![("python", 1.0), ("kjv", 0.5)]),
    ];
    // Every stack that a deactivation can leave is in the list.
    let expected: Vec<(Layers, CompositionId, Bits)> = stacks
        .iter()
        .map(|(_, stack)| {
            let composition = composition(&tiny(), stack);
            (stack.clone(), composition.id(), bits_of(&composition))
        })
        .collect();
    for (name, stack) in &stacks[1..] {
        compose(&runtime, name, stack);
    }
    let mut model = Model::default();
    let mut choices = Choices(0x51a7);
    let (mut n_rollbacks, mut n_unchanged) = (0, 0);
    for step in 0..200 {
        let (activation, changed) = match choices.below(10) {
            0..3 if model.active.is_some() => {
                let rolled = runtime.rollback(NOW);
                if !model.rollback() {
                    assert_eq!(code(rolled), "no-parent", "step {step}");
                    continue;
                }
                n_rollbacks += 1;
                (rolled, true)
            }
            3..6 if model.active.is_some() => {
                let adapter = ["kjv", "python"][choices.below(2)];
                let mut stack = model.stack();
                stack.retain(|entry| entry.0 != adapter);
                (runtime.deactivate_adapter(adapter, NOW), model.switch(stack))
            }
            _ => {
                let (name, stack) = &stacks[choices.below(stacks.len())];
                let reference = Reference::Text((*name).to_owned());
                (runtime.activate_composition(&reference, NOW), model.switch(stack.clone()))
            }
        };
        let activation = activation.unwrap_or_else(|error| panic!("step {step}: {error}"));
        let stack = model.stack();
        let (_, id, bits) =
            expected.iter().find(|entry| entry.0 == stack).expect("a stack of the list");
        assert_eq!(activation.changed, changed, "step {step}");
        assert_eq!(activation.composition, *id, "step {step}");
        assert_eq!(runtime.status().expect("active").composition, *id, "step {step}");
        assert_eq!(&active_bits(&runtime), bits, "step {step}: {stack:?}");
        base_is_untouched(&runtime);
        n_unchanged += usize::from(!changed);
    }
    assert!(n_rollbacks > 20 && n_unchanged > 10, "{n_rollbacks}, {n_unchanged}");
}
