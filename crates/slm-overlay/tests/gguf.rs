//! GGUF adapters: read by the converter's rules, written without loss, and refused where they must be.

mod common;

use common::{
    Weights, config, f32_bytes, folder, on, product, ramp, read, resolve, tiny, weights, with,
};
use slm_format::gguf::{Gguf, TensorSource, Value, write};
use slm_format::{Coded, Encoding, Limits};
use slm_overlay::gguf::{GgufAdapter, to_gguf};
use slm_overlay::{AdapterKind, Module};

const LIMITS: Limits = Limits::STANDARD;

#[test]
fn gguf_twins_are_their_peft_originals() {
    for name in ["lora-all-linear", "lora-layers", "lora-qv"] {
        let original = folder(name, &tiny());
        let twin = read(&format!("{name}.gguf"));
        assert!(GgufAdapter::is_adapter(&Gguf::parse(&twin, &LIMITS).unwrap()));
        let (twin, _) = GgufAdapter::parse(&twin, &LIMITS).unwrap().resolve(&tiny()).unwrap();
        assert_eq!(twin.id(), original.id(), "{name}");
        // One scale for all: nothing is folded, and our own file is the same adapter again.
        let ours = to_gguf(&original, "llama").unwrap();
        let (ours, _) = GgufAdapter::parse(&ours, &LIMITS).unwrap().resolve(&tiny()).unwrap();
        assert_eq!(ours.id(), original.id(), "{name}");
    }
}

#[test]
fn gguf_out_keeps_what_the_converter_loses() {
    let base = tiny();
    // rsLoRA, and rank and alpha patterns: scales that alpha over the rank is not.
    let adapter = folder("lora-patterns", &base);
    let scales: Vec<f32> = adapter.modules().iter().map(Module::scale).collect();
    assert!(scales.iter().any(|&scale| scale != scales[0]));
    let bytes = to_gguf(&adapter, "llama").unwrap();
    let (again, _) = GgufAdapter::parse(&bytes, &LIMITS).unwrap().resolve(&base).unwrap();
    for module in adapter.modules() {
        let (rows, cols) = base.tensor(&module.target).unwrap();
        let x = ramp(cols, 3);
        let (a, b) = (
            product(&adapter, &module.target, &base, rows as usize, &x),
            product(&again, &module.target, &base, rows as usize, &x),
        );
        let norm = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let difference: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        assert!(norm(&difference) <= 1e-6 * norm(&a), "{}", module.target);
    }
    // The table's factors are stored the other way round and come back.
    let weights = Weights::new();
    let base = on(&weights);
    let embed = folder("lora-embed", &base);
    let bytes = to_gguf(&embed, "llama").unwrap();
    let file = Gguf::parse(&bytes, &LIMITS).unwrap();
    assert_eq!(file.tensor("token_embd.weight.lora_a").unwrap().shape, [4, 1024]);
    assert_eq!(file.tensor("token_embd.weight.lora_b").unwrap().shape, [4, 256]);
    let (again, report) = GgufAdapter::parse(&bytes, &LIMITS).unwrap().resolve(&base).unwrap();
    assert_eq!(again.id(), embed.id());
    assert!(report.warnings.iter().any(|warning| warning.starts_with("tied-split")));
    for name in ["dora", "ia3", "loha", "lokr", "vera", "lora-bias-term"] {
        let error = to_gguf(&folder(name, &base), "llama").unwrap_err();
        assert_eq!(error.code(), "adapter-export", "{name}");
    }
}

/// A tensor's name and shape, innermost first.
type Named = (String, [u64; 2]);

/// A GGUF adapter of one module with some entries and tensors of its own.
fn gguf(entries: &[(&str, Value<'_>)], change: impl Fn(&mut Vec<Named>)) -> Vec<u8> {
    let mut metadata = vec![
        ("general.type", Value::Str("adapter")),
        ("general.architecture", Value::Str("llama")),
        ("adapter.type", Value::Str("lora")),
    ];
    for (key, value) in entries {
        metadata.retain(|(known, _)| known != key);
        metadata.push((key, value.clone()));
    }
    let mut tensors = vec![
        ("blk.0.attn_v.weight.lora_a".to_owned(), [256, 2]),
        ("blk.0.attn_v.weight.lora_b".to_owned(), [2, 128]),
    ];
    change(&mut tensors);
    let data: Vec<Vec<u8>> =
        tensors.iter().map(|(_, shape)| f32_bytes(&ramp(shape[0] * shape[1], 1))).collect();
    let sources: Vec<TensorSource<'_>> = tensors
        .iter()
        .zip(&data)
        .map(|((name, shape), data)| TensorSource { name, shape, encoding: Encoding::F32, data })
        .collect();
    let mut out = Vec::new();
    write(&mut out, &metadata, &sources).unwrap();
    out
}

/// An entry that slm does not heed stands in the report, those that other programs act on among them.
#[test]
fn entries_of_a_gguf_adapter_that_are_not_read_are_told() {
    let warnings = |entries: &[(&str, Value<'_>)]| {
        let file = gguf(entries, |_| {});
        GgufAdapter::parse(&file, &LIMITS).unwrap().resolve(&tiny()).unwrap().1.warnings
    };
    for key in [
        "adapter.lora.prompt_prefix",
        "adapter.lora.task_name",
        "general.base_model.0.name",
        "tokenizer.ggml.model",
    ] {
        let expected = [format!("the entry {key:?} is not read")];
        assert_eq!(warnings(&[(key, Value::Str("text"))]), expected);
    }
    for read in [("adapter.lora.alpha", Value::F32(8.0)), ("general.alignment", Value::U32(64))] {
        assert_eq!(warnings(&[read]), Vec::<String>::new());
    }
}

#[test]
fn gguf_rules() {
    let parse = |bytes: &[u8]| GgufAdapter::parse(bytes, &LIMITS)?.resolve(&tiny());
    let scale = |entries: &[(&str, Value<'_>)]| {
        parse(&gguf(entries, |_| {})).unwrap().0.modules()[0].scale()
    };
    // Without alpha, or with 0, the weight alone.
    assert_eq!(scale(&[]), 1.0);
    assert_eq!(scale(&[("adapter.lora.alpha", Value::F32(0.0))]), 1.0);
    assert_eq!(scale(&[("adapter.lora.alpha", Value::F32(8.0))]), 4.0);
    let tokens = Value::u32_array(&[5, 6]);
    let waiting = gguf(&[("adapter.alora.invocation_tokens", tokens)], |_| {});
    let (adapter, _) = parse(&waiting).unwrap();
    assert_eq!((adapter.kind(), adapter.invocation()), (AdapterKind::Alora, &[5, 6][..]));
    let again = to_gguf(&adapter, "llama").unwrap();
    assert_eq!(parse(&again).unwrap().0.id(), adapter.id());
    // What is resolved can be bound: ids that the base has not are refused here already.
    for (last, accepted) in [(1023, true), (1024, false)] {
        let tokens = Value::u32_array(&[5, last]);
        let found = parse(&gguf(&[("adapter.alora.invocation_tokens", tokens)], |_| {}));
        assert_eq!(
            found.map(drop).map_err(|error| error.code()).err(),
            (!accepted).then_some("adapter-invocation")
        );
        let config = with(&config("lora-qv"), "alora_invocation_tokens", &format!("[5, {last}]"));
        let found = resolve(&config, &weights("lora-qv"));
        assert_eq!(
            found.map(drop).map_err(|error| error.code()).err(),
            (!accepted).then_some("adapter-invocation")
        );
    }

    let code = |entries: &[(&str, Value<'_>)]| {
        parse(&gguf(entries, |_| {})).map(drop).map_err(|error| error.code()).unwrap_err()
    };
    assert_eq!(code(&[("general.type", Value::Str("model"))]), "adapter-file-type");
    assert_eq!(code(&[("adapter.type", Value::Str("control_vector"))]), "adapter-kind-unsupported");
    assert_eq!(code(&[("general.architecture", Value::Str("gemma3"))]), "adapter-architecture");
    assert_eq!(code(&[("adapter.lora.alpha", Value::F32(f32::NAN))]), "adapter-scale");
    assert_eq!(code(&[("adapter.lora.alpha", Value::U32(8))]), "gguf-metadata-type");
    assert_eq!(
        code(&[("adapter.lora.rank_stabilized", Value::Bool(true))]),
        "adapter-unknown-field"
    );
    let file = gguf(&[("adapter.lora.rank_stabilized", Value::Bool(true))], |_| {});
    let hint = parse(&file).unwrap_err().hint().unwrap_or_default();
    assert!(hint.contains("write the file again") && !hint.contains("PEFT"), "{hint}");
    let signed = Value::i32_array(&[5, 6]);
    assert_eq!(code(&[("adapter.alora.invocation_tokens", signed)]), "adapter-invocation");

    let changed = |change: &dyn Fn(&mut Vec<Named>)| {
        parse(&gguf(&[], change)).map(drop).map_err(|error| error.code()).unwrap_err()
    };
    assert_eq!(changed(&|tensors| drop(tensors.pop())), "adapter-missing-b");
    assert_eq!(changed(&|tensors| drop(tensors.remove(0))), "adapter-missing-a");
    assert_eq!(changed(&|tensors| tensors.clear()), "adapter-no-target");
    // Elsewhere norms are passed over without a word.
    let norm = |tensors: &mut Vec<Named>| {
        tensors.push(("blk.0.attn_norm.weight".into(), [256, 1]));
    };
    assert_eq!(changed(&norm), "adapter-unused-tensor");
    assert_eq!(changed(&|tensors| tensors[1].1 = [4, 128]), "adapter-rank");
    assert_eq!(changed(&|tensors| tensors[1].1 = [2, 256]), "adapter-shape");
    let rename = |to: &'static str| {
        move |tensors: &mut Vec<Named>| {
            tensors[0].0 = format!("{to}.lora_a");
            tensors[1].0 = format!("{to}.lora_b");
        }
    };
    assert_eq!(changed(&rename("blk.9.attn_v.weight")), "adapter-unknown-tensor");
    assert_eq!(changed(&rename("blk.0.attn_norm.weight")), "adapter-unknown-tensor");
}
