//! Runtimes with something to switch between.

use slm_manifest::policy::{BudgetPolicy, DuringGeneration, LocalPolicy, RawLocalPolicy};
use slm_runtime::generate::GenerateOptions;
use slm_runtime::runtime::{Activation, Reference, Request};
use slm_runtime::sample::Sampling;
use slm_runtime::{Engine, Runtime, RuntimeError};
use slm_store::{MemStorage, Storage, Store};

use super::{LIMITS, NOW, compose};

pub const UNLIMITED: BudgetPolicy =
    BudgetPolicy { base: None, adapters: None, kv: None, scratch: None, total: None };

pub const STACKS: [(&str, &[(&str, f32)]); 4] = [
    ("bare", &[]),
    ("k", &[("kjv", 1.0)]),
    ("p", &[("python", 1.0)]),
    ("kp", &[("kjv", 0.5), ("python", 1.0)]),
];

pub fn runtime_with(
    storage: MemStorage,
    budget: BudgetPolicy,
    policy: DuringGeneration,
) -> Runtime<MemStorage> {
    let mut raw = RawLocalPolicy { budget, ..RawLocalPolicy::default() };
    raw.switch.during_generation = policy;
    let policy = LocalPolicy::check(raw).expect("a policy");
    let store = Store::open(storage).expect("a store");
    Runtime::with_policy(store, Engine::inline(), LIMITS, policy)
}

/// Everything imported, all of [`STACKS`] composed, `bare` active.
pub fn ready(policy: DuringGeneration) -> Runtime<MemStorage> {
    let storage = MemStorage::new();
    let (first, _) = super::stocked(storage.clone());
    for (name, stack) in &STACKS[1..] {
        compose(&first, name, stack);
    }
    drop(first);
    let runtime = runtime_with(storage, UNLIMITED, policy);
    activate(&runtime, "bare").expect("active");
    runtime
}

pub fn request(composition: &str) -> Request {
    Request::Activate(Reference::Text(composition.to_owned()))
}

pub fn activate<S: Storage>(
    runtime: &Runtime<S>,
    composition: &str,
) -> Result<Activation, RuntimeError> {
    runtime.activate_composition(&Reference::Text(composition.to_owned()), NOW)
}

pub fn options(max_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens, sampling: Sampling::GREEDY, stop_ids: Vec::new(), chunk: 64 }
}

pub fn no_op() {}
