//! GGUF files with one wrong byte, and models whose metadata or tensors are wrong.

use std::borrow::Cow;

use slm_format::Encoding;
use slm_format::gguf::Value;

use super::bend::{Bend, BentTensor};
use super::{Imports, VALID, find, with};
use crate::common::{Place, golden};

/// The model with two more entries before its metadata: `a`, a truth value at byte 37, and `b`, a list of one number.
fn with_entries() -> Vec<u8> {
    let mut good = Bend::of(VALID);
    good.metadata.insert(0, ("a".to_owned(), Value::Bool(true)));
    good.metadata.insert(1, ("b".to_owned(), Value::i32_array(&[7])));
    good.to_bytes()
}

#[test]
fn one_wrong_byte() {
    let place = Place::new();
    let mut imports = Imports::new(&place);
    let good = with_entries();
    imports.accepted("good.gguf", &good);
    let name = find(&good, b"token_embd.weight");
    let dim = name + 17 + 4;
    let encoding = dim + 16;
    let second = find(&good, b"output_norm.weight") + 18 + 4 + 8 + 4;
    let text = find(&good, b"general.name") + 12 + 4 + 8;
    for (file, at, bytes) in [
        ("bool-of-2.gguf", 37, &[2][..]),
        ("key-not-utf8.gguf", 32, &[0xff]),
        ("key-twice.gguf", 46, b"a"),
        ("array-of-arrays.gguf", 51, &9u32.to_le_bytes()),
        ("text-not-utf8.gguf", text, &[0xff]),
        ("name-not-utf8.gguf", name, &[0xff]),
        ("dimension-of-0.gguf", dim, &0u64.to_le_bytes()),
        ("type-24.gguf", encoding, &24u32.to_le_bytes()),
        ("row-of-no-block.gguf", encoding, &12u32.to_le_bytes()),
        ("overlap.gguf", second, &0u64.to_le_bytes()),
    ] {
        imports.refused(file, &with(&good, at, bytes));
    }
    imports.refused("cut.gguf", &good[..name + 30]);
    insta::assert_snapshot!(imports.finish());
}

#[test]
fn metadata() {
    let place = Place::new();
    let mut imports = Imports::new(&place);
    let good = Bend::of(VALID).set("llama.attention.key_length", Value::U32(16));
    imports.accepted("good.gguf", &good.to_bytes());
    for (file, key, value) in [
        ("context-as-text.gguf", "llama.context_length", Some(Value::Str("128"))),
        ("context-too-large.gguf", "llama.context_length", Some(Value::U64(1 << 40))),
        ("no-context.gguf", "llama.context_length", None),
        ("context-of-0.gguf", "llama.context_length", Some(Value::U32(0))),
        ("width-of-0.gguf", "llama.embedding_length", Some(Value::U32(0))),
        ("inner-width-of-0.gguf", "llama.feed_forward_length", Some(Value::U32(0))),
        ("heads-without-number.gguf", "llama.attention.head_count", Some(Value::U32(1 << 30))),
        ("kv-heads-of-0.gguf", "llama.attention.head_count_kv", Some(Value::U32(0))),
        ("head-of-0.gguf", "llama.attention.key_length", Some(Value::U32(0))),
        ("epsilon-of-0.gguf", "llama.attention.layer_norm_rms_epsilon", Some(Value::F32(0.0))),
        ("experts.gguf", "llama.expert_count", Some(Value::U32(8))),
        ("mamba.gguf", "general.architecture", Some(Value::Str("mamba"))),
        ("an-adapter.gguf", "general.type", Some(Value::Str("adapter"))),
    ] {
        let bent = match value {
            Some(value) => good.clone().set(key, value),
            None => good.clone().unset(key),
        };
        imports.refused(file, &bent.to_bytes());
    }
    insta::assert_snapshot!(imports.finish());
}

#[test]
fn tensors() {
    let place = Place::new();
    let mut imports = Imports::new(&place);
    let good = Bend::of(VALID);
    imports.accepted("good.gguf", &good.to_bytes());
    let changed = |change: &dyn Fn(&mut Bend<'_>)| {
        let mut bent = good.clone();
        change(&mut bent);
        bent.to_bytes()
    };
    imports.refused(
        "no-output-norm.gguf",
        &changed(&|bent| bent.tensors.retain(|tensor| tensor.name != "output_norm.weight")),
    );
    imports.refused(
        "a-bias.gguf",
        &changed(&|bent| {
            bent.tensors.push(BentTensor {
                name: "blk.0.attn_q.bias".to_owned(),
                shape: vec![32],
                encoding: Encoding::F32,
                data: Cow::Owned(vec![0; 128]),
            });
        }),
    );
    imports.refused(
        "another-shape.gguf",
        &changed(&|bent| bent.tensor("blk.0.attn_q.weight").shape = vec![16, 64]),
    );
    imports.refused(
        "a-quantized-norm.gguf",
        &changed(&|bent| {
            let norm = bent.tensor("blk.0.attn_norm.weight");
            norm.encoding = Encoding::Q8_0;
            norm.data = Cow::Owned(vec![0; 34]);
        }),
    );
    imports.refused(
        "a-nan.gguf",
        &changed(&|bent| {
            let norm = bent.tensor("output_norm.weight").data.to_mut();
            norm[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
        }),
    );
    insta::assert_snapshot!(imports.finish());
}

#[test]
fn another_format_than_was_asked_for() {
    let place = Place::with_tiny();
    let mut imports = Imports::new(&place);
    let kjv = golden("tiny-kjv/adapter_model.safetensors");
    let into = ["--name", "y", "--base", "tiny"];
    for (format, file) in [("gguf", &kjv), ("slm", &kjv), ("compact", &kjv), ("plan008", &kjv)] {
        let args = [&["adapter", "import", file, "--format", format], &into[..]].concat();
        imports.transcript.refused(3, &args);
    }
    imports.refused("a.zip", b"PK\x03\x04 an archive");
    imports.transcript.refused(3, &["inspect", &golden("tiny/config.json")]);
    imports.transcript.refused(3, &["adapter", "import", &kjv, "--name", "y", "--base", "tiny"]);
    let folder = golden("tiny-kjv");
    let good = [&["adapter", "import", &folder], &into[..]].concat();
    imports.transcript.accepted(&good);
    insta::assert_snapshot!(imports.finish());
}
