//! Models that are refused, each by the code that names its fault, beside a twin that differs in that one thing and is accepted.

mod common;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::bend::{Bend, BentTensor};
use common::{HfFolder, code, composition, open, session};
use serde_json::{Value as Json, json};
use slm_format::gguf::Value;
use slm_format::{Coded, Encoding, ErrorClass};
use slm_golden::TINY_Q8_0;
use slm_manifest::ExecutionProfile;
use slm_runtime::load::Base;

/// A whole llama model of one layer in 41 kB; the hostile files differ from it in one thing each.
const VALID: &[u8] = include_bytes!("../../slm-format/tests/data/hostile/gguf/valid.gguf");

fn hostile() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../slm-format/tests/data/hostile/gguf"))
}

/// (file, code); what is wrong is in the file's name.
const HOSTILE: [(&str, &str); 25] = [
    ("align_i32.gguf", "gguf-alignment"),
    ("align_zero.gguf", "gguf-alignment"),
    ("big_endian.gguf", "gguf-big-endian"),
    ("block_count_huge.gguf", "config-n-layers"),
    ("bool_array_huge.gguf", "gguf-array-length"),
    ("dim_umax.gguf", "gguf-dims-overflow"),
    ("dims_product_wrap.gguf", "gguf-dims-overflow"),
    ("dup_tensor.gguf", "gguf-duplicate-tensor"),
    ("empty_key.gguf", "gguf-key-empty"),
    ("eos_out_of_range.gguf", "tokenizer-special-out-of-range"),
    ("header_only_23.gguf", "gguf-truncated-header"),
    ("key_len_u64max.gguf", "gguf-key-length"),
    ("lfs_pointer.gguf", "gguf-lfs-pointer"),
    ("n_dims_huge.gguf", "gguf-n-dims"),
    ("n_kv_u64max.gguf", "gguf-kv-count"),
    ("n_tensors_i32max.gguf", "gguf-tensor-count"),
    ("offset_unaligned.gguf", "gguf-offset-unaligned"),
    ("padded_sum_wrap.gguf", "gguf-tensor-out-of-bounds"),
    ("rope_zero.gguf", "config-rope"),
    ("shape_vs_config.gguf", "config-heads"),
    ("tail_cut.gguf", "gguf-tensor-out-of-bounds"),
    ("token_len_huge.gguf", "gguf-string-length"),
    ("unknown_kv_type.gguf", "gguf-value-type"),
    ("unknown_pre.gguf", "tokenizer-unknown-pre"),
    ("version_0.gguf", "gguf-version"),
];

fn runs(base: Base) {
    let base = Arc::new(base);
    let logits = session(&composition(&base, &[]), ExecutionProfile::DEFAULT)
        .advance(&[0, 1, 2], 2)
        .expect("a pass");
    assert_eq!(logits.len(), base.config().vocab_size as usize);
    assert!(logits.iter().all(|logit| logit.is_finite()));
}

#[test]
fn every_hostile_file_has_its_code() {
    let mut files: Vec<String> = std::fs::read_dir(hostile())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .filter(|file| file != "valid.gguf")
        .collect();
    files.sort();
    assert_eq!(files, HOSTILE.map(|case| case.0), "every file has a case");
    for (file, expected) in HOSTILE {
        let bytes = std::fs::read(hostile().join(file)).expect("a file");
        let start = Instant::now();
        let error = open(&bytes).err().unwrap_or_else(|| panic!("{file} is accepted"));
        assert!(start.elapsed() < Duration::from_secs(5), "{file} took {:?}", start.elapsed());
        assert_eq!(error.code(), expected, "{file}: {error}");
        assert_eq!(error.class(), ErrorClass::Refused, "{file}: {error}");
    }
    runs(open(VALID).expect("the file that the others are twins of"));
}

/// A byte changed anywhere before the weights is refused or gives a model that runs or refuses: nothing panics.
#[test]
fn no_changed_byte_is_a_panic() {
    let data = VALID.len() - 36_224;
    let mut n_accepted = 0;
    for at in 0..data {
        let mut bent = VALID.to_vec();
        bent[at] ^= [0x01, 0x80, 0xff][at % 3];
        let Ok(base) = open(&bent) else { continue };
        n_accepted += 1;
        let composition = composition(&Arc::new(base), &[]);
        let session = slm_runtime::Session::new(
            composition,
            ExecutionProfile::DEFAULT,
            slm_runtime::Engine::inline(),
        );
        if let Ok(mut session) = session {
            let _ = session.advance(&[0, 1], 2);
        }
    }
    assert!(n_accepted > 100, "the names in the vocabulary may be anything: {n_accepted}");
}

/// Opens the bent file for its code, and the unbent twin to see that nothing else is wrong.
fn refused(good: &Bend<'_>, bent: &Bend<'_>, expected: &str) {
    let error = open(&bent.to_bytes()).err().unwrap_or_else(|| panic!("accepted: {expected}"));
    assert_eq!(error.code(), expected, "{error}");
    assert_eq!(error.class(), ErrorClass::Refused, "{error}");
    runs(open(&good.to_bytes()).expect("the twin"));
}

#[test]
fn tensors_are_all_there_and_nothing_else() {
    let good = Bend::of(VALID);
    for name in ["token_embd.weight", "blk.0.attn_k.weight", "blk.0.ffn_norm.weight"] {
        let mut bent = good.clone();
        bent.tensors.retain(|tensor| tensor.name != name);
        refused(&good, &bent, "tensor-missing");
    }
    for name in ["blk.1.attn_q.weight", "blk.0.attn_q.bias", "rope_freqs.weight", "x"] {
        let mut bent = good.clone();
        bent.tensors.push(BentTensor {
            name: name.to_owned(),
            shape: vec![32],
            encoding: Encoding::F32,
            data: Cow::Owned(vec![0; 128]),
        });
        refused(&good, &bent, "tensor-unknown");
    }
    // A second block that the configuration says is not there, and one that it says is.
    let bent = good.clone().set("llama.block_count", Value::U32(2));
    refused(&good, &bent, "tensor-missing");
}

#[test]
fn shapes_are_what_the_configuration_says() {
    let good = Bend::of(VALID);
    // As many elements in another shape, and a transposed matrix.
    for (name, shape) in [
        ("blk.0.attn_q.weight", vec![16, 64]),
        ("blk.0.ffn_up.weight", vec![64, 32]),
        ("output_norm.weight", vec![16, 2]),
    ] {
        let mut bent = good.clone();
        bent.tensor(name).shape = shape;
        refused(&good, &bent, "tensor-shape");
    }
    let bent = good.clone().set("llama.feed_forward_length", Value::U32(96));
    refused(&good, &bent, "tensor-shape");
    // A trailing dimension of one is the same shape.
    let mut same = good.clone();
    same.tensor("blk.0.attn_q.weight").shape.push(1);
    runs(open(&same.to_bytes()).expect("a matrix of one layer"));
}

#[test]
fn norms_are_plain_floats() {
    let good = Bend::of(VALID);
    let mut bent = good.clone();
    let norm = bent.tensor("blk.0.attn_norm.weight");
    norm.encoding = Encoding::Q8_0;
    norm.data = Cow::Owned(vec![0; 34]);
    refused(&good, &bent, "tensor-encoding");
    let mut half = good.clone();
    let norm = half.tensor("blk.0.attn_norm.weight");
    norm.encoding = Encoding::F16;
    norm.data = Cow::Owned([0x00, 0x3c].repeat(32));
    runs(open(&half.to_bytes()).expect("f16 norms"));
}

#[test]
fn scales_and_weights_are_finite() {
    let good = Bend::of(TINY_Q8_0);
    // The f16 scale of the third block of a Q8_0 matrix; infinity and NaN.
    for (name, block) in [("token_embd.weight", 2), ("blk.3.ffn_down.weight", 1000)] {
        for scale in [[0x00, 0x7c], [0x01, 0xfe]] {
            let mut bent = good.clone();
            bent.tensor(name).data.to_mut()[34 * block..][..2].copy_from_slice(&scale);
            assert_eq!(code(open(&bent.to_bytes())), "non-finite-scale", "{name}");
        }
    }
    runs(open(&good.to_bytes()).expect("the twin"));
    let good = Bend::of(VALID);
    let mut bent = good.clone();
    bent.tensor("output_norm.weight").data.to_mut()[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
    refused(&good, &bent, "non-finite-scale");
    let mut bent = good.clone();
    bent.tensor("blk.0.attn_v.weight").data.to_mut()[6..8].copy_from_slice(&[0x00, 0xfc]);
    refused(&good, &bent, "non-finite-scale");
}

#[test]
fn metadata_that_would_change_the_model_is_refused_by_name() {
    let good = Bend::of(VALID);
    for (key, value, expected) in [
        ("llama.attention.key_of_tomorrow", Value::U32(1), "config-unsupported"),
        ("llama.expert_count", Value::U32(8), "config-unsupported"),
        ("llama.logit_scale", Value::F32(0.5), "config-unsupported"),
        ("llama.rope.scaling.type", Value::Str("yarn"), "config-unsupported"),
        ("llama.rope.dimension_count", Value::U32(8), "config-unsupported"),
        ("llama.attention.value_length", Value::U32(8), "config-unsupported"),
        ("llama.attention.sliding_window", Value::U32(64), "config-unsupported"),
        ("general.architecture", Value::Str("mamba"), "architecture-unsupported"),
        ("general.type", Value::Str("adapter"), "not-a-model"),
        ("llama.embedding_length", Value::U32(0), "config-n-embd"),
        ("llama.attention.head_count", Value::U32(0), "config-heads"),
        ("llama.attention.head_count_kv", Value::U32(0), "config-n-kv-heads"),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(0.0), "config-rms-norm-eps"),
        ("llama.context_length", Value::U32(0), "config-context-length"),
        ("llama.context_length", Value::Str("128"), "gguf-metadata-type"),
        ("llama.rope.freq_base", Value::F32(f32::NAN), "config-rope"),
        ("llama.vocab_size", Value::U32(271), "tensor-shape"),
    ] {
        let bent = good.clone().set(key, value.clone());
        let error = open(&bent.to_bytes()).err().unwrap_or_else(|| panic!("{key} is accepted"));
        assert_eq!(error.code(), expected, "{key} = {value:?}: {error}");
    }
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.attention.layer_norm_rms_epsilon",
    ] {
        let bent = good.clone().unset(key);
        assert_eq!(code(open(&bent.to_bytes())), "gguf-metadata-missing", "{key}");
    }
    // Values that say a feature is off, keys of others, and defaults spelt out are accepted and change no identity.
    let id = open(VALID).expect("the twin").id();
    for (key, value) in [
        ("llama.attention.key_of_tomorrow", Value::U32(0)),
        ("llama.expert_count", Value::U32(0)),
        ("llama.rope.scaling.type", Value::Str("none")),
        ("llama.rope.dimension_count", Value::U32(16)),
        ("llama.attention.value_length", Value::U32(16)),
        ("llama.attention.sliding_window", Value::U32(0)),
        ("mamba.expert_count", Value::U32(8)),
        ("general.type", Value::Str("model")),
        ("general.description", Value::Str("anything")),
    ] {
        let same = good.clone().set(key, value.clone());
        let base = open(&same.to_bytes()).unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_eq!(base.id(), id, "{key} = {value:?}");
    }
}

#[test]
fn the_vocabulary_is_as_large_as_the_embedding_table() {
    let good = Bend::of(VALID);
    let cut = |bend: &Bend<'_>, key: &str| match bend
        .metadata
        .iter()
        .find(|entry| entry.0 == key)
        .map(|entry| entry.1.clone())
    {
        Some(Value::Array(slm_format::gguf::Array::Str(mut tokens))) => {
            tokens.pop();
            tokens.into_iter().map(str::to_owned).collect::<Vec<String>>()
        }
        other => panic!("{key}: {other:?}"),
    };
    let tokens = cut(&good, "tokenizer.ggml.tokens");
    let types = vec![1i32; tokens.len()];
    let bent = good
        .clone()
        .set("tokenizer.ggml.tokens", Value::str_array(tokens.iter().map(String::as_str).collect()))
        .set("tokenizer.ggml.token_type", Value::i32_array(&types))
        .set("tokenizer.ggml.merges", Value::str_array(Vec::new()))
        .to_bytes();
    assert_eq!(code(open(&bent)), "vocabulary-mismatch");
    let good = good.set("tokenizer.ggml.merges", Value::str_array(Vec::new())).to_bytes();
    runs(open(&good).expect("the twin"));
}

#[test]
fn bytes_of_no_format_are_refused() {
    for bytes in [&b""[..], b"PK\x03\x04 a zip file", b"{\"a\": 1}", &[0u8; 64], b"GGU"] {
        assert_eq!(code(open(bytes)), "unknown-format", "{bytes:?}");
    }
}

/// The tiny folder with its `config.json` changed in one key; `None` takes the key out.
fn with_config(key: &str, value: Option<Json>) -> HfFolder {
    let mut folder = HfFolder::tiny();
    let mut config: serde_json::Map<String, Json> =
        serde_json::from_slice(&folder.config).expect("JSON");
    match value {
        Some(value) => config.insert(key.to_owned(), value),
        None => config.remove(key),
    };
    folder.config = serde_json::to_vec(&config).expect("JSON");
    folder
}

#[test]
fn hf_configurations_that_would_change_the_model_are_refused_by_name() {
    for (key, value, expected) in [
        ("key_of_tomorrow", json!(1), "config-unsupported"),
        ("key_of_tomorrow", json!("on"), "config-unsupported"),
        ("attention_bias", json!(true), "config-unsupported"),
        ("mlp_bias", json!(true), "config-unsupported"),
        ("hidden_act", json!("gelu"), "config-unsupported"),
        ("pretraining_tp", json!(2), "config-unsupported"),
        ("rope_scaling", json!({"type": "linear", "factor": 2.0}), "config-unsupported"),
        (
            "rope_parameters",
            json!({"rope_theta": 10000.0, "rope_type": "llama3"}),
            "config-unsupported",
        ),
        ("rope_parameters", json!({"rope_theta": 0.0, "rope_type": "default"}), "config-rope"),
        ("model_type", json!("mamba"), "architecture-unsupported"),
        ("hidden_size", json!("256"), "config-unsupported"),
        ("hidden_size", json!(512), "tensor-shape"),
        ("num_hidden_layers", json!(5), "tensor-missing"),
        ("num_hidden_layers", json!(3), "tensor-unknown"),
        ("num_key_value_heads", json!(3), "config-heads"),
        ("tie_word_embeddings", json!(false), "tensor-missing"),
    ] {
        let error = with_config(key, Some(value.clone()))
            .open()
            .err()
            .unwrap_or_else(|| panic!("{key} = {value} is accepted"));
        assert_eq!(error.code(), expected, "{key} = {value}: {error}");
    }
    for key in [
        "hidden_size",
        "num_attention_heads",
        "num_hidden_layers",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
    ] {
        assert_eq!(code(with_config(key, None).open()), "config-missing", "{key}");
    }
    let id = HfFolder::tiny().open().expect("the twin").id();
    for (key, value) in [
        ("key_of_tomorrow", Some(json!(false))),
        ("key_of_tomorrow", Some(json!(null))),
        ("attention_bias", Some(json!(false))),
        ("rope_scaling", Some(json!(null))),
        ("rope_parameters", Some(json!({"rope_theta": 10000.0, "rope_type": "default"}))),
        ("pretraining_tp", None),
        ("head_dim", None),
        ("transformers_version", None),
    ] {
        let base = with_config(key, value.clone())
            .open()
            .unwrap_or_else(|error| panic!("{key} = {value:?}: {error}"));
        assert_eq!(base.id(), id, "{key} = {value:?}");
    }
}

#[test]
fn a_hidden_size_that_heads_do_not_divide_is_refused() {
    let mut folder = with_config("head_dim", None);
    folder.open().expect("the twin: 256 by 8 heads");
    let text = String::from_utf8(folder.config).expect("UTF-8");
    folder.config = text.replace("\"hidden_size\":256", "\"hidden_size\":257").into_bytes();
    assert_eq!(code(folder.open()), "config-heads");
    folder.config = b"{\"model_type\": ".to_vec();
    assert_eq!(code(folder.open()), "config-json");
}
