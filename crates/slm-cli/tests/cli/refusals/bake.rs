//! What cannot be baked into a base of its own.

use std::borrow::Cow;

use serde_json::json;
use slm_format::Encoding;
use slm_format::gguf::Value;
use slm_manifest::BaseId;
use slm_overlay::{Adapter, Delta, DenseDelta};
use slm_runtime::runtime::Requires;

use super::adapters::{Peft, factor, module, slm};
use super::bend::Bend;
use crate::common::{Place, golden, text};
use crate::transcript::Transcript;

/// Imports an adapter and composes it alone, both under this name.
fn alone(place: &Place, path: &str, name: &str, base: &str) {
    place.json(["adapter", "import", path, "--name", name, "--base", base]);
    place.json(["compose", name, "--base", base, "--adapter", name]);
}

#[test]
fn stacks_and_models() {
    let place = Place::with_tiny();
    for name in ["lora-qv", "lora-bias-term", "lora-embed"] {
        alone(&place, &Peft::of(name).write(&place, name), name, "tiny");
    }
    let mut waiting = Peft::of("lora-qv");
    waiting.config["alora_invocation_tokens"] = json!([5, 6]);
    alone(&place, &waiting.write(&place, "waiting"), "waiting", "tiny");
    // One number that no scale of eight bits reaches.
    let base: BaseId = text(&place.json(["inspect", "tiny"]), "base").parse().expect("an id");
    let delta = Delta::Dense(DenseDelta { scale: 1.0, delta: factor(128, 256, 1e8) });
    let large = Adapter::new(vec![module("blk.0.attn_v.weight", delta)]).expect("an adapter");
    let file = place.write("large.slm", slm(&large, &Requires::base(base)));
    alone(&place, &file, "large", "tiny");
    // A base with a tensor that is read and not written, and one whose vocabulary has a token that is never made.
    let tiny = std::fs::read(golden("tiny-q8_0.gguf")).expect("the model");
    let mut five_bits = Bend::of(&tiny);
    let tensor = five_bits.tensor("blk.0.attn_v.weight");
    (tensor.encoding, tensor.data) = (Encoding::Q5_K, Cow::Owned(vec![0; 128 * 176]));
    let file = place.write("five-bits.gguf", five_bits.to_bytes());
    place.json(["import", &file, "--name", "five-bits"]);
    alone(&place, &Peft::of("lora-qv").write(&place, "lora"), "on-five-bits", "five-bits");
    let mut types = vec![1; 1024];
    (types[0], types[1]) = (3, 5);
    let unused = Bend::of(&tiny).set("tokenizer.ggml.token_type", Value::i32_array(&types));
    let file = place.write("unused.gguf", unused.to_bytes());
    place.json(["import", &file, "--name", "unused"]);
    alone(&place, &Peft::of("lora-qv").write(&place, "qv"), "on-unused", "unused");

    let mut transcript = Transcript::new(&place);
    transcript.accepted(&["bake", "good.gguf", "--composition", "lora-qv"]);
    transcript.refused(3, &["bake", "good.gguf", "--composition", "lora-qv"]);
    for composition in ["lora-bias-term", "lora-embed", "waiting", "large", "on-five-bits"] {
        transcript.refused(3, &["bake", "out.gguf", "--composition", composition]);
    }
    let folder = ["bake", "folder", "--format", "safetensors", "--composition"];
    transcript.refused(3, &[&folder[..], &["lora-qv", "--encoding", "keep"]].concat());
    transcript.refused(3, &[&folder[..], &["on-unused"]].concat());
    transcript.accepted(&[&folder[..], &["lora-qv"]].concat());
    insta::assert_snapshot!(transcript.finish());
}
