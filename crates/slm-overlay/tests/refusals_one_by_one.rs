//! Every refusal that adapters were promised, one by one: what is refused, its code, and a twin that is equal but for the one bad field, is
//! accepted and bound.
//!
//! No two promises share a code. Some can only be broken where a store or a folder is: a quantization profile or numerics unlike the base's
//! (`adapter-quantization`, `adapter-numerics`) and an adapter imported for another base (`adapter-base-mismatch`) are in slm-runtime's
//! `refusals_adapter.rs`, two adapters of one name (`manifest-duplicate-name`) in its `refusals_manifest.rs`, a pickle (`adapter-pickle`) and a
//! tokenizer unlike the base's (`tokenizer-mismatch`) among slm-cli's transcripts.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{
    Tensor, Weights, config, f32_bytes, file, on, pair, qv_tensors, ramp, read, tiny, weights, with,
};
use slm_format::gguf::{self, Value};
use slm_format::safetensors::{Dtype, SafeTensors, TensorSource, write};
use slm_format::{Coded, ContentHash, Encoding, ErrorClass, Limits};
use slm_manifest::{BaseId, NUMERICS_VERSION, TokenizerId};
use slm_overlay::binary::{Compact, Layout, LoraAdapter};
use slm_overlay::delta::{BaseMatrices, DeltaFile, DeltaIdentity, to_delta};
use slm_overlay::gguf::GgufAdapter;
use slm_overlay::peft::PeftAdapter;
use slm_overlay::{Adapter, BaseShape, BoundAdapter, OverlayError, Stack};

const LIMITS: Limits = Limits::STANDARD;

type Outcome = Result<(), OverlayError>;

fn base_id() -> BaseId {
    BaseId::of_canonical(b"a base")
}

/// Bound to a base, as whatever is accepted must be.
fn bound(adapter: Adapter, base: &BaseShape<'_>) -> Result<Arc<BoundAdapter>, OverlayError> {
    Ok(Arc::new(Arc::new(adapter).bind(base_id(), base)?))
}

fn peft_on(base: &BaseShape<'_>, config: &str, weights: &[u8]) -> Outcome {
    let (adapter, _) = PeftAdapter::parse(config.as_bytes(), weights, &LIMITS)?.resolve(base)?;
    bound(adapter, base).map(drop)
}

fn peft(config: &str, weights: &[u8]) -> Outcome {
    peft_on(&tiny(), config, weights)
}

/// Asserts the refusal and the twin; gives the code back, for the list of all.
fn pair_of(promise: &str, code: &'static str, bad: Outcome, good: Outcome) -> &'static str {
    let error = bad.err().unwrap_or_else(|| panic!("{promise}: accepted, expected {code}"));
    assert_eq!((error.code(), error.class()), (code, ErrorClass::Refused), "{promise}: {error}");
    good.unwrap_or_else(|error| panic!("the twin of {promise}: {error}"));
    code
}

/// One field of a configuration set to what is refused, and to what is not.
fn fields(name: &str, rows: &[(&str, &'static str, &str, &str, &str)]) -> Vec<&'static str> {
    let (plain, weights) = (config(name), weights(name));
    let one = |&(promise, code, field, bad, good): &(&str, &'static str, &str, &str, &str)| {
        let set = |value| peft(&with(&plain, field, value), &weights);
        pair_of(promise, code, set(bad), set(good))
    };
    rows.iter().map(one).collect()
}

#[test]
fn fields_of_a_configuration() {
    let distinct = fields(
        "lora-qv",
        &[
            ("unknown config key", "adapter-unknown-field", "of_tomorrow", "1", "null"),
            ("bias", "adapter-bias", "bias", "\"all\"", "\"none\""),
            ("modules_to_save", "adapter-modules-to-save", "modules_to_save", "[\"x\"]", "[]"),
            ("KaSA", "adapter-kasa", "kasa_config", "{\"a\": 1}", "null"),
            ("replication", "adapter-layer-replication", "layer_replication", "[[0, 2]]", "null"),
            ("NaN or inf scale", "adapter-scale", "lora_alpha", "1e300", "1e30"),
            ("rank 0", "adapter-rank-zero", "r", "0", "8"),
            ("zero modules", "adapter-no-target", "target_modules", "[\"c\"]", "\".*[qv]_proj\""),
            ("PiSSA", "adapter-init", "init_lora_weights", "\"pissa\"", "true"),
            ("peft_type", "adapter-kind-unsupported", "peft_type", "\"OFT\"", "\"LORA\""),
            ("fan_in_fan_out", "adapter-fan-in-fan-out", "fan_in_fan_out", "true", "false"),
            ("tokens", "adapter-trainable-tokens", "trainable_token_indices", "[1]", "null"),
            ("parameters", "adapter-target-parameters", "target_parameters", "[\"x\"]", "null"),
            ("QALoRA", "adapter-qalora", "use_qalora", "true", "false"),
            ("BD-LoRA", "adapter-bdlora", "use_bdlora", "{\"n\": 2}", "null"),
            ("Arrow", "adapter-arrow", "arrow_config", "{\"top_k\": 3}", "null"),
            ("MonteCLoRA", "adapter-monteclora", "monteclora_config", "{\"n\": 3}", "null"),
            ("Megatron", "adapter-megatron", "megatron_config", "{\"x\": 3}", "{}"),
            ("DoRA without magnitudes", "adapter-missing-factor", "use_dora", "true", "false"),
            ("a value's type", "adapter-field", "use_rslora", "1", "false"),
            ("the factors' rank", "adapter-rank", "r", "4", "8"),
            ("a pattern", "adapter-pattern", "rank_pattern", "{\"(\": 8}", "{\"()\": 8}"),
            (
                "not targeted",
                "adapter-untargeted-tensor",
                "target_modules",
                "[\"q_proj\"]",
                "[\"q_proj\", \"v_proj\"]",
            ),
        ],
    );
    let mut once = distinct.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), distinct.len(), "two promises share a code");
    // One code for all that change the base before training; what leaves it alone is the twin.
    let inits = ["pissa_niter_4", "olora", "corda", "lora_ga", "loftq"];
    for (bad, good) in inits.iter().zip(["gaussian", "eva", "orthogonal", "mica", "gaussian"]) {
        let (bad, good) = (format!("\"{bad}\""), format!("\"{good}\""));
        fields("lora-qv", &[("unconverted", "adapter-init", "init_lora_weights", &bad, &good)]);
    }
    fields("lora-qv", &[("bias", "adapter-bias", "bias", "\"lora_only\"", "\"none\"")]);
    fields("vera", &[("", "adapter-unsaved-projection", "save_projection", "false", "true")]);
    for (kind, end) in [("loha", "hada_t1"), ("lokr", "lokr_t2")] {
        let mut tensors = tensors_of(kind);
        let module = tensors[0].0.rsplit_once('.').unwrap().0;
        let more = (format!("{module}.{end}"), Dtype::F32, vec![2, 2], f32_bytes(&[0.0; 4]));
        let good = peft(&config(kind), &file(&tensors));
        tensors.push(more);
        let bad = peft(&config(kind), &file(&tensors));
        pair_of("a convolution", "adapter-convolution", bad, good);
    }
    let twice = config("lora-qv").replacen("\"r\": 8", "\"r\": 8, \"r\": 8", 1);
    let good = peft(&config("lora-qv"), &weights("lora-qv"));
    let bad = peft(&twice, &weights("lora-qv"));
    pair_of("a key twice", "adapter-config-duplicate-key", bad, good);
}

fn tensors_of(name: &str) -> Vec<Tensor> {
    let bytes = weights(name);
    let parsed = SafeTensors::parse(&bytes, &LIMITS).unwrap();
    let own = parsed.tensors().iter();
    own.map(|t| (t.name.clone(), t.dtype, t.shape.clone(), t.data.to_vec())).collect()
}

#[test]
fn tensors_of_a_folder() {
    let plain = config("lora-qv");
    let changed = |change: &dyn Fn(&mut Vec<Tensor>)| {
        let mut tensors = qv_tensors();
        change(&mut tensors);
        peft(&plain, &file(&tensors))
    };
    let renamed = |from: &'static str, to: &'static str| {
        changed(&|tensors| {
            for tensor in tensors.iter_mut() {
                tensor.0 = tensor.0.replace(from, to);
            }
        })
    };
    let good = || changed(&|_| {});
    let element =
        |value: f32| changed(&|tensors| tensors[0].3[..4].copy_from_slice(&value.to_le_bytes()));
    for (promise, code, bad) in [
        ("unknown layer", "adapter-unknown-layer", renamed("layers.3.", "layers.4.")),
        ("unknown module", "adapter-unknown-tensor", renamed("layers.3.", "blocks.3.")),
        (
            "shape",
            "adapter-shape",
            changed(&|t| t[1] = pair("model.layers.0.self_attn.q_proj", 8, (128, 256))[1].clone()),
        ),
        ("NaN", "adapter-non-finite", element(f32::NAN)),
        ("inf", "adapter-non-finite", element(f32::INFINITY)),
        ("A alone", "adapter-missing-b", changed(&|t| drop(t.remove(1)))),
        ("B alone", "adapter-missing-a", changed(&|t| drop(t.remove(0)))),
        ("no factors", "adapter-no-target", changed(&Vec::clear)),
        ("unread", "adapter-unused-tensor", renamed("0.self_attn.q_proj.lora_A.weight", "x")),
        ("type", "adapter-dtype", changed(&|t| (t[0].1, t[0].2) = (Dtype::I32, vec![8, 256]))),
    ] {
        pair_of(promise, code, bad, good());
    }
    element(1.0).unwrap();

    // One side of tied weights, claimed to stay tied or not; and a copy of the table, the base's or another.
    let own = Weights::new();
    let other = Weights(own.0.iter().map(|value| value + 1.0).collect());
    let embed = |claim: &str, weights_of: &Weights| {
        let config = with(&config("lora-embed"), "ensure_weight_tying", claim);
        peft_on(&on(weights_of), &config, &weights("lora-embed"))
    };
    let good = || embed("false", &own);
    pair_of("tied half-match", "adapter-tied-half", embed("true", &own), good());
    pair_of("another table", "adapter-base-copy", embed("false", &other), good());
    let waits = with(&config("lora-embed"), "alora_invocation_tokens", "[5]");
    let waits = peft_on(&on(&own), &waits, &weights("lora-embed"));
    pair_of("waits on the table", "embedding-adapter-unsupported", waits, good());
}

#[test]
fn stacks() {
    let adapter = |name: &str| {
        let parsed = PeftAdapter::parse(config(name).as_bytes(), &weights(name), &LIMITS).unwrap();
        bound(parsed.resolve(&tiny()).unwrap().0, &tiny()).unwrap()
    };
    let (one, two) = (adapter("lora-qv"), adapter("lora-layers"));
    let stack = |base, second: &Arc<BoundAdapter>, weight| {
        let entries = vec![(Arc::clone(&one), 1.0), (Arc::clone(second), weight)];
        Stack::new(base, entries).map(drop)
    };
    let good = || stack(base_id(), &two, 1.0);
    let other = BaseId::of_canonical(b"another base");
    for (promise, code, bad) in [
        ("duplicate adapter", "duplicate-adapter", stack(base_id(), &one, 1.0)),
        ("wrong base", "base-mismatch", stack(other, &two, 1.0)),
        ("NaN weight", "adapter-weight", stack(base_id(), &two, f32::NAN)),
        ("inf weight", "adapter-weight", stack(base_id(), &two, f32::INFINITY)),
    ] {
        pair_of(promise, code, bad, good());
    }
}

/// A tensor's name and shape, innermost first.
type Named = (String, [u64; 2]);

/// A GGUF adapter of one module, with one entry set or one tensor changed.
fn gguf_file(entry: Option<(&str, Value<'_>)>, change: &dyn Fn(&mut Vec<Named>)) -> Vec<u8> {
    let mut metadata = vec![
        ("general.type", Value::Str("adapter")),
        ("general.architecture", Value::Str("llama")),
        ("adapter.type", Value::Str("lora")),
    ];
    if let Some((key, value)) = entry {
        metadata.retain(|(known, _)| *known != key);
        metadata.push((key, value));
    }
    let mut tensors = vec![
        ("blk.0.attn_v.weight.lora_a".to_owned(), [256, 2]),
        ("blk.0.attn_v.weight.lora_b".to_owned(), [2, 128]),
    ];
    change(&mut tensors);
    let data: Vec<Vec<u8>> =
        tensors.iter().map(|(_, shape)| f32_bytes(&ramp(shape[0] * shape[1], 1))).collect();
    let encoding = Encoding::F32;
    let sources = tensors.iter().zip(&data);
    let sources: Vec<gguf::TensorSource<'_>> = sources
        .map(|((name, shape), data)| gguf::TensorSource { name, shape, encoding, data })
        .collect();
    let mut out = Vec::new();
    gguf::write(&mut out, &metadata, &sources).unwrap();
    out
}

#[test]
fn gguf_adapters() {
    let read = |bytes: &[u8]| {
        let (adapter, _) = GgufAdapter::parse(bytes, &LIMITS)?.resolve(&tiny())?;
        bound(adapter, &tiny()).map(drop)
    };
    let set = |key, value| read(&gguf_file(Some((key, value)), &|_| {}));
    let tokens = "adapter.alora.invocation_tokens";
    let alpha = |value| set("adapter.lora.alpha", Value::F32(value));
    let text = |key, value| set(key, Value::Str(value));
    let mut signed_twin = Some(set(tokens, Value::u32_array(&[5, 6])));
    for (promise, code, bad, good) in [
        (
            "type",
            "adapter-file-type",
            text("general.type", "model"),
            text("general.type", "adapter"),
        ),
        (
            "architecture",
            "adapter-architecture",
            text("general.architecture", "gemma3"),
            text("general.architecture", "llama"),
        ),
        (
            "kind",
            "adapter-kind-unsupported",
            text("adapter.type", "control_vector"),
            text("adapter.type", "lora"),
        ),
        ("NaN scale", "adapter-scale", alpha(f32::NAN), alpha(8.0)),
        ("inf scale", "adapter-scale", alpha(f32::INFINITY), alpha(0.0)),
        (
            "signed tokens",
            "adapter-invocation",
            set(tokens, Value::i32_array(&[5, 6])),
            signed_twin.take().unwrap(),
        ),
        (
            "unknown entry",
            "adapter-unknown-field",
            set("adapter.lora.rank_stabilized", Value::Bool(true)),
            set("adapter.lora.task_name", Value::Str("x")),
        ),
    ] {
        pair_of(promise, code, bad, good);
    }
    let changed = |change: &dyn Fn(&mut Vec<Named>)| read(&gguf_file(None, change));
    let renamed = |to: &'static str| {
        changed(&|tensors| {
            tensors[0].0 = format!("{to}.lora_a");
            tensors[1].0 = format!("{to}.lora_b");
        })
    };
    for (promise, code, bad) in [
        ("unpaired", "adapter-missing-b", changed(&|t| drop(t.pop()))),
        ("unknown tensor", "adapter-unknown-tensor", renamed("blk.9.attn_v.weight")),
        ("shape", "adapter-shape", changed(&|t| t[1].1 = [2, 256])),
        ("a norm", "adapter-unused-tensor", changed(&|t| t.push(("a_norm.weight".into(), [8, 1])))),
        ("zero modules", "adapter-no-target", changed(&Vec::clear)),
    ] {
        pair_of(promise, code, bad, renamed("blk.1.attn_v.weight"));
    }
    // Bytes 4 to 8 are the version, lowest byte first.
    let headed = |version: [u8; 4]| {
        let mut bytes = gguf_file(None, &|_| {});
        bytes[4..8].copy_from_slice(&version);
        read(&bytes)
    };
    let good = || headed([3, 0, 0, 0]);
    pair_of("endianness", "gguf-big-endian", headed([0, 0, 0, 3]), good());
    pair_of("version skew", "gguf-version", headed([9, 0, 0, 0]), good());
}

/// Both formats, in files that fit the tiny model. What their twins do to its logits is in slm-runtime's `refusals_binary.rs`.
#[test]
fn binary_files() {
    let layout = Layout::parse(&read("lora-binary/plan008.layout.json")).unwrap();
    let plan008 = |at: usize, bytes: &[u8]| {
        let mut file = read("lora-binary/plan008.lora");
        file[at..at + bytes.len()].copy_from_slice(bytes);
        let hash = ContentHash::of(&file[40..]).to_bytes();
        file[8..40].copy_from_slice(&hash);
        let pairs = LoraAdapter::load(&file, &LIMITS)?;
        bound(layout.to_adapter(&pairs, &tiny())?, &tiny()).map(drop)
    };
    let good = || plan008(4, &[1, 0, 0, 0]);
    for (promise, code, bad) in [
        ("endianness", "lora-binary-big-endian", plan008(4, &[0, 0, 0, 1])),
        ("version skew", "lora-binary-version", plan008(4, &[2, 0, 0, 0])),
        ("rank 0", "lora-binary-rank-zero", plan008(44, &[0; 4])),
        ("NaN scale", "lora-binary-alpha", plan008(48, &f32::NAN.to_le_bytes())),
        ("zero modules", "lora-binary-empty", plan008(40, &[0; 4])),
        ("NaN", "lora-binary-non-finite", plan008(60, &f32::NAN.to_le_bytes())),
        ("zero dimension", "lora-binary-zero-dimension", plan008(52, &[0; 4])),
    ] {
        pair_of(promise, code, bad, good());
    }
    let compact = |at: usize, bytes: &[u8]| {
        let mut file = read("lora-binary/compact.lora");
        let end = file.len() - 32;
        file[at..at + bytes.len()].copy_from_slice(bytes);
        let hash = ContentHash::of(&file[..end]).to_bytes();
        file[end..].copy_from_slice(&hash);
        let loaded = Compact::load(&file, &LIMITS)?;
        bound(loaded.to_adapter(&tiny())?, &tiny()).map(drop)
    };
    let good = || compact(4, &[1]);
    pair_of("version skew", "lora-binary-version", compact(4, &[2]), good());
    pair_of("rank 0", "lora-binary-rank-zero", compact(5, &[0, 0]), good());
}

#[test]
fn files_of_our_own() {
    let parsed = PeftAdapter::parse(config("lora-qv").as_bytes(), &weights("lora-qv"), &LIMITS);
    let adapter = parsed.unwrap().resolve(&tiny()).unwrap().0;
    let section = |version: u8| {
        let mut bytes = adapter.to_section();
        // Behind the header's length, a u64, its first byte is the version.
        bytes[8] = version;
        bound(Adapter::from_section(&bytes, &LIMITS)?, &tiny()).map(drop)
    };
    pair_of("version skew", "adapter-section-version", section(2), section(0));

    let identity = DeltaIdentity {
        matrices: BaseMatrices::of(&tiny()),
        tokenizer: TokenizerId::of_canonical(b"a tokenizer"),
        base: base_id(),
        quantization: vec![(Encoding::Q8_0, 29)],
        numerics: NUMERICS_VERSION,
    };
    let mut modules = adapter.modules().to_vec();
    modules.iter_mut().for_each(|module| {
        let slm_overlay::Delta::Lora(lora) = &mut module.delta else { unreachable!() };
        lora.scale = 1.0;
    });
    let sources =
        vec![slm_overlay::SourceDigest { name: "a".into(), digest: slm_format::Digest::of(b"a") }];
    let low_rank = Adapter::new(modules).unwrap().with_sources(sources);
    let delta = |key: &str, value: &str| {
        let bytes = to_delta(&low_rank, &identity)?;
        let file = SafeTensors::parse(&bytes, &LIMITS)?;
        let mut metadata: BTreeMap<String, String> = file.metadata().clone().into_iter().collect();
        metadata.insert(key.to_owned(), value.to_owned());
        let own = file.tensors().iter();
        let sources: Vec<TensorSource<'_>> = own
            .map(|t| TensorSource { name: &t.name, dtype: t.dtype, shape: &t.shape, data: t.data })
            .collect();
        let mut bytes = Vec::new();
        write(&mut bytes, &sources, &metadata).unwrap();
        let (adapter, _) = DeltaFile::parse(&bytes, &LIMITS)?.resolve(&tiny())?;
        bound(adapter, &tiny()).map(drop)
    };
    for (promise, code, key, bad, good) in [
        ("version skew", "adapter-delta-version", "slm_delta", "2", "1"),
        ("wrong base", "adapter-delta-identity", "tensor_count", "28", "29"),
        ("tied", "adapter-delta-identity", "flags", "untied", "tied"),
        ("kind", "adapter-kind-unsupported", "kind", "diagonal", "low-rank"),
    ] {
        pair_of(promise, code, delta(key, bad), delta(key, good));
    }
    let unknown = delta("of_tomorrow", "1");
    pair_of("unknown entry", "adapter-unknown-field", unknown, delta("source_name", "b"));
}
