//! Adapters that are refused at import: the code, and a store that is byte for byte what it was.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::bend::Bend;
use common::{
    Medium, NOW, active_bits, adapter_files, code, compose, import, name, open, resolve, stocked,
    tiny,
};
use serde_json::{Map, Value as Json, json};
use slm_format::safetensors::{self, SafeTensors, TensorSource};
use slm_golden::TINY_Q8_0;
use slm_runtime::load::Base;
use slm_runtime::runtime::{Declared, ImportedAdapter, Reference, Requires, ResolvedAdapter};
use slm_runtime::{Runtime, RuntimeError};
use slm_store::Storage;

on_both_media!(
    an_adapter_that_does_not_fit_leaves_no_trace,
    an_adapter_of_another_base_is_refused,
    what_an_adapter_requires_is_compared_part_by_part,
    a_taken_name_leaves_no_trace,
    what_is_not_there_is_not_found,
);

/// The tiny model but for one bit of its last norm: the same shape, another base.
fn other_base() -> Arc<Base> {
    let mut bend = Bend::of(TINY_Q8_0);
    bend.tensor("output_norm.weight").data.to_mut()[0] ^= 1;
    Arc::new(open(&bend.to_bytes()).expect("a base"))
}

/// Runs a request that must be refused, and compares all files, what is active, and its bits.
fn untouched<S: Medium, T>(
    runtime: &Runtime<S>,
    expected: &str,
    request: &dyn Fn() -> Result<T, RuntimeError>,
) {
    let before = (
        runtime.store().storage().files(),
        runtime.status().expect("active"),
        active_bits(runtime),
    );
    assert_eq!(code(request()), expected);
    let after = (
        runtime.store().storage().files(),
        runtime.status().expect("active"),
        active_bits(runtime),
    );
    assert!(before == after, "{expected} changed the store or what is active");
}

fn config_with(key: &str, value: Json) -> Vec<u8> {
    let mut config: Map<String, Json> =
        serde_json::from_slice(adapter_files("kjv").0).expect("JSON");
    config.insert(key.to_owned(), value);
    serde_json::to_vec(&config).expect("JSON")
}

/// From a tensor's name and bytes, the bytes to write, or none to leave the tensor out.
type BendTensor<'a> = dyn Fn(&str, &[u8]) -> Option<Vec<u8>> + 'a;

/// The weights of kjv, a tensor at a time.
fn weights_with(bend: &BendTensor<'_>) -> Vec<u8> {
    let file = SafeTensors::parse(adapter_files("kjv").1, &common::LIMITS).expect("safetensors");
    let tensors: Vec<_> = file
        .tensors()
        .iter()
        .filter_map(|tensor| {
            let data = bend(&tensor.name, tensor.data)?;
            Some((tensor.name.clone(), tensor.dtype, tensor.shape.clone(), data))
        })
        .collect();
    let sources: Vec<TensorSource<'_>> = tensors
        .iter()
        .map(|(name, dtype, shape, data)| TensorSource { name, dtype: *dtype, shape, data })
        .collect();
    let mut bytes = Vec::new();
    safetensors::write(&mut bytes, &sources, &BTreeMap::new()).expect("a file");
    bytes
}

fn load<S: Storage>(
    runtime: &Runtime<S>,
    as_name: &str,
    config: &[u8],
    weights: &[u8],
) -> Result<ImportedAdapter, RuntimeError> {
    runtime.load_adapter(
        &|shape| resolve(config, weights, shape),
        "tiny",
        &name(as_name),
        NOW,
        false,
    )
}

fn an_adapter_that_does_not_fit_leaves_no_trace<S: Medium>(storage: S) {
    let (runtime, stock) = stocked(storage);
    compose(&runtime, "a", &[("python", 1.0)]);
    runtime.activate_composition(&Reference::Text("a".to_owned()), NOW).expect("active");
    let (good, good_weights) = adapter_files("kjv");
    let b_of = |name: &str| name.contains("layers.2.self_attn.q_proj.lora_B");
    let without_b = weights_with(&|name, data| (!b_of(name)).then(|| data.to_vec()));
    let with_nan = weights_with(&|name, data| {
        let mut data = data.to_vec();
        if b_of(name) {
            // NaN in whichever of F32, F16 and BF16 the file is.
            data[..4].fill(0xff);
        }
        Some(data)
    });
    for (config, weights, expected) in [
        (good.to_vec(), &without_b, "adapter-missing-b"),
        (good.to_vec(), &with_nan, "adapter-non-finite"),
        (
            config_with("field_of_tomorrow", json!(1)),
            &good_weights.to_vec(),
            "adapter-unknown-field",
        ),
        (
            config_with("target_modules", json!(["c_attn"])),
            &good_weights.to_vec(),
            "adapter-no-target",
        ),
        (config_with("use_dora", json!(true)), &good_weights.to_vec(), "adapter-missing-factor"),
        (config_with("r", json!(4)), &good_weights.to_vec(), "adapter-rank"),
        (
            config_with("peft_type", json!("OFT")),
            &good_weights.to_vec(),
            "adapter-kind-unsupported",
        ),
    ] {
        untouched(&runtime, expected, &|| load(&runtime, "new", &config, weights));
        // Not even over a name that is there, when asked to replace it.
        untouched(&runtime, expected, &|| {
            runtime.load_adapter(
                &|shape| resolve(&config, weights, shape),
                "tiny",
                &name("kjv"),
                NOW,
                true,
            )
        });
    }
    // The twins: the same ways to bend, with nothing bent.
    let same = weights_with(&|_, data| Some(data.to_vec()));
    let twin = load(&runtime, "twin", &config_with("field_of_tomorrow", json!(null)), &same)
        .expect("the twin");
    assert_eq!(twin.adapter, stock.kjv.adapter);
}

fn an_adapter_of_another_base_is_refused<S: Medium>(storage: S) {
    let (runtime, stock) = stocked(storage);
    runtime.activate_composition(&Reference::Text("bare".to_owned()), NOW).expect("active");
    let other = runtime.load_base(&other_base(), &name("other"), NOW, false).expect("an import");
    let (config, weights) = adapter_files("kjv");
    // The file says which base it was made for.
    let bound_to = |base| {
        move |shape: &slm_overlay::BaseShape| {
            let mut resolved = resolve(config, weights, shape)?;
            resolved.bound_to = Some(Requires::base(base));
            Ok(resolved)
        }
    };
    untouched(&runtime, "adapter-base-mismatch", &|| {
        runtime.load_adapter(&bound_to(other.base), "tiny", &name("new"), NOW, false)
    });
    runtime
        .load_adapter(&bound_to(stock.base.base), "tiny", &name("new"), NOW, false)
        .expect("the twin");
    // Imported for the other base, it stacks on that one alone.
    let there = runtime
        .load_adapter(&|shape| resolve(config, weights, shape), "other", &name("there"), NOW, false)
        .expect("an import");
    assert_eq!((there.adapter, there.base), (stock.kjv.adapter, other.base));
    untouched(&runtime, "adapter-base-mismatch", &|| {
        runtime.compose(&name("mixed"), "tiny", &[("there", 1.0)], NOW, false)
    });
    untouched(&runtime, "adapter-base-mismatch", &|| {
        runtime.compose(&name("mixed"), "other", &[("kjv", 1.0)], NOW, false)
    });
    runtime.compose(&name("mixed"), "other", &[("there", 1.0)], NOW, false).expect("the twin");
}

/// A twin for each part: everything else is as the base has it.
fn what_an_adapter_requires_is_compared_part_by_part<S: Medium>(storage: S) {
    let (runtime, _) = stocked(storage);
    runtime.activate_composition(&Reference::Text("bare".to_owned()), NOW).expect("active");
    let (config, weights) = adapter_files("python");
    let own = Requires::of(&tiny());
    let declared = own.declared.clone().expect("all of it");
    let load = |as_name: &str, declared: Declared| {
        let requires = Requires { declared: Some(declared), ..own.clone() };
        let read = |shape: &slm_overlay::BaseShape| {
            let resolved = resolve(config, weights, shape)?;
            Ok(ResolvedAdapter { bound_to: Some(requires.clone()), ..resolved })
        };
        runtime.load_adapter(&read, "tiny", &name(as_name), NOW, false)
    };
    let mut fewer = declared.clone();
    fewer.quantization[0].1 -= 1;
    let mut four_bits = declared.clone();
    four_bits.quantization[0].0 = "Q4_0".to_owned();
    let of_tomorrow = Declared { numerics: declared.numerics + 1, ..declared.clone() };
    let other_words = slm_manifest::TokenizerId::of_canonical(b"another");
    let of_other_words = Declared { tokenizer: other_words, ..declared.clone() };
    for (expected, bent) in [
        ("adapter-quantization", fewer),
        ("adapter-quantization", four_bits),
        ("adapter-numerics", of_tomorrow),
        ("tokenizer-mismatch", of_other_words),
    ] {
        untouched(&runtime, expected, &|| load("new", bent.clone()));
    }
    load("new", declared).expect("the twin");
}

fn a_taken_name_leaves_no_trace<S: Medium>(storage: S) {
    let (runtime, stock) = stocked(storage);
    runtime.activate_composition(&Reference::Text("bare".to_owned()), NOW).expect("active");
    let other = other_base();
    untouched(&runtime, "name-taken", &|| runtime.load_base(&other, &name("tiny"), NOW, false));
    let (config, weights) = adapter_files("python");
    untouched(&runtime, "name-taken", &|| load(&runtime, "kjv", config, weights));
    untouched(&runtime, "name-taken", &|| {
        runtime.compose(&name("bare"), "tiny", &[("kjv", 1.0)], NOW, false)
    });
    // The same adapter for another base, under the name that it has for this one.
    runtime.load_base(&other, &name("other"), NOW, false).expect("an import");
    untouched(&runtime, "name-taken", &|| import(&runtime, "kjv", "other"));
    // Asked for, each replaces.
    let replaced = runtime.load_base(&other, &name("tiny"), NOW, true).expect("an import");
    assert!(replaced.changed);
    assert_ne!(replaced.base, stock.base.base);
}

fn what_is_not_there_is_not_found<S: Medium>(storage: S) {
    let (runtime, _) = stocked(storage);
    runtime.activate_composition(&Reference::Text("bare".to_owned()), NOW).expect("active");
    let nobody = "sha256:1111111111111111111111111111111111111111111111111111111111111111";
    for reference in ["nobody", nobody, "", "../tiny", "a b"] {
        untouched(&runtime, "not-found", &|| import(&runtime, "kjv", reference));
        untouched(&runtime, "not-found", &|| {
            runtime.compose(&name("new"), reference, &[], NOW, false)
        });
        untouched(&runtime, "not-found", &|| {
            runtime.compose(&name("new"), "tiny", &[(reference, 1.0)], NOW, false)
        });
        untouched(&runtime, "not-found", &|| {
            runtime.activate_composition(&Reference::Text(reference.to_owned()), NOW)
        });
    }
    for weight in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        untouched(&runtime, "manifest-weight", &|| {
            runtime.compose(&name("new"), "tiny", &[("kjv", weight)], NOW, false)
        });
    }
    for now in ["", "yesterday", "2026-07-21 00:00:00", "2026-13-01T00:00:00Z"] {
        untouched(&runtime, "manifest-timestamp", &|| {
            runtime.compose(&name("new"), "tiny", &[("kjv", 1.0)], now, false)
        });
    }
    runtime.compose(&name("new"), "tiny", &[("kjv", 1.0)], NOW, false).expect("the twin");
}

#[test]
fn a_held_lock_is_said_and_not_waited_for() {
    let storage = slm_store::MemStorage::new();
    let (runtime, _) = stocked(storage.clone());
    compose(&runtime, "a", &[("kjv", 1.0)]);
    runtime.activate_composition(&Reference::Text("bare".to_owned()), NOW).expect("active");
    let files = storage.files();
    let second = common::runtime(storage.clone());
    let lock = second.store().lock().expect("the lock");
    let a = Reference::Text("a".to_owned());
    assert_eq!(code(runtime.activate_composition(&a, NOW)), "store-busy");
    assert_eq!(code(runtime.rollback(NOW)), "store-busy");
    assert_eq!(code(runtime.load_base(&tiny(), &name("tiny"), NOW, false)), "store-busy");
    assert_eq!(code(import(&runtime, "kjv", "tiny")), "store-busy");
    active_bits(&runtime);
    assert_eq!(storage.files(), files);
    drop(lock);
    assert!(runtime.activate_composition(&a, NOW).expect("active").changed);
}
