//! Typed deltas: written, read, and refused for every rule of the published identity and of the content, each beside a twin.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{f32_bytes, ramp, tiny};
use slm_format::safetensors::{Dtype, SafeTensors, TensorSource, write};
use slm_format::{Coded, Digest, Encoding, Limits};
use slm_manifest::{BaseId, NUMERICS_VERSION, TokenizerId};
use slm_overlay::delta::{BaseMatrices, DeltaFile, DeltaIdentity, mask_digest, to_delta};
use slm_overlay::{
    Adapter, Delta, DenseDelta, Factor, Lora, Module, OverlayError, SourceDigest, SparseDelta,
};

const LIMITS: Limits = Limits::STANDARD;
const TARGET: &str = "blk.0.attn_v.weight";

fn identity() -> DeltaIdentity {
    DeltaIdentity {
        matrices: BaseMatrices::of(&tiny()),
        tokenizer: TokenizerId::of_canonical(b"a tokenizer"),
        base: BaseId::of_canonical(b"a base"),
        quantization: vec![(Encoding::F32, 9), (Encoding::Q8_0, 29)],
        numerics: NUMERICS_VERSION,
    }
}

fn factor(rows: u64, cols: u64) -> Factor {
    let values = f32_bytes(&ramp(rows * cols, 3));
    Factor::new("x", Encoding::F32, rows, cols, values.into()).unwrap()
}

fn on(deltas: Vec<(&str, Delta)>) -> Adapter {
    let module = |(target, delta): (&str, Delta)| Module { target: target.into(), delta };
    Adapter::new(deltas.into_iter().map(module).collect()).unwrap()
}

fn dense() -> Adapter {
    on(vec![(TARGET, Delta::Dense(DenseDelta { scale: 1.0, delta: factor(128, 256) }))])
}

fn sparse() -> Adapter {
    let delta = |rows: u32, cols: u32, n: u64| {
        let indices = (0..n).map(|at| at * 300 + at % 7).collect();
        Delta::Sparse(SparseDelta { scale: 1.0, rows, cols, indices, values: factor(1, n) })
    };
    on(vec![(TARGET, delta(128, 256, 100)), ("blk.3.ffn_down.weight", delta(256, 768, 64))])
}

fn low_rank() -> Adapter {
    let lora = Lora { scale: 1.0, a: factor(4, 256), b: factor(128, 4), bias: None };
    let sources = vec![SourceDigest { name: "trained.bin".into(), digest: Digest::of(b"trained") }];
    on(vec![(TARGET, Delta::Lora(lora))]).with_sources(sources)
}

fn all() -> [(&'static str, Adapter); 3] {
    [("dense", dense()), ("sparse", sparse()), ("low-rank", low_rank())]
}

type Tensors = BTreeMap<String, (Dtype, Vec<u64>, Vec<u8>)>;

/// A file with its metadata and tensors changed.
fn with(file: &[u8], change: impl Fn(&mut BTreeMap<String, String>, &mut Tensors)) -> Vec<u8> {
    let parsed = SafeTensors::parse(file, &LIMITS).unwrap();
    let mut metadata = parsed.metadata().clone();
    let mut tensors: Tensors = parsed
        .tensors()
        .iter()
        .map(|t| (t.name.clone(), (t.dtype, t.shape.clone(), t.data.to_vec())))
        .collect();
    change(&mut metadata, &mut tensors);
    let sources: Vec<TensorSource<'_>> = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| TensorSource { name, dtype: *dtype, shape, data })
        .collect();
    let mut out = Vec::new();
    write(&mut out, &sources, &metadata).unwrap();
    out
}

fn code(file: &[u8]) -> &'static str {
    let resolved = DeltaFile::parse(file, &LIMITS).and_then(|file| file.resolve(&tiny()));
    resolved.map_or_else(|error| error.code(), |_| "accepted")
}

#[test]
fn every_kind_comes_back_as_itself() {
    for (kind, adapter) in all() {
        let file = to_delta(&adapter, &identity()).unwrap();
        assert!(DeltaFile::is_delta(&SafeTensors::parse(&file, &LIMITS).unwrap()));
        let read = DeltaFile::parse(&file, &LIMITS).unwrap();
        assert_eq!(read.identity(), &identity(), "{kind}");
        let (again, report) = read.resolve(&tiny()).unwrap();
        assert_eq!((again.id(), again.sources()), (adapter.id(), adapter.sources()), "{kind}");
        assert_eq!(report.targets.len(), adapter.modules().len());
        assert_eq!(report.warnings.len(), usize::from(kind != "dense"), "{:?}", report.warnings);
        assert_eq!(to_delta(&again, &identity()).unwrap(), file, "{kind}");
        Arc::new(again).bind(identity().base, &tiny()).unwrap();
    }
    // A plain adapter's file is none.
    let plain = common::weights("lora-qv");
    assert!(!DeltaFile::is_delta(&SafeTensors::parse(&plain, &LIMITS).unwrap()));
}

#[test]
fn the_published_identity_is_compared_part_by_part() {
    for (_, adapter) in all() {
        let good = to_delta(&adapter, &identity()).unwrap();
        assert_eq!(code(&good), "accepted");
        let other = Digest::of(b"another layout").to_string();
        for (key, value) in [
            ("tensor_count", "30"),
            ("flags", "untied"),
            ("parameter_count", "1"),
            ("tensor_layout", other.as_str()),
        ] {
            let bent = with(&good, |metadata, _| {
                metadata.insert(key.into(), value.into());
            });
            assert_eq!(code(&bent), "adapter-delta-identity", "{key}");
            let error = DeltaFile::parse(&bent, &LIMITS).unwrap().resolve(&tiny()).unwrap_err();
            let OverlayError::DeltaIdentity { part, stated, .. } = error else { panic!("{error}") };
            assert_eq!((part, stated.as_str()), (key, value));
        }
        // Of equal shapes, but another base: nothing here differs but the content's id, which is the caller's to compare.
        let elsewhere = DeltaIdentity { base: BaseId::of_canonical(b"another"), ..identity() };
        let file = to_delta(&adapter, &elsewhere).unwrap();
        assert_ne!(DeltaFile::parse(&file, &LIMITS).unwrap().identity().base, identity().base);
    }
}

#[test]
fn every_entry_of_the_metadata_must_be_there_and_be_one() {
    for (kind, adapter) in all() {
        let good = to_delta(&adapter, &identity()).unwrap();
        let keys: Vec<String> =
            SafeTensors::parse(&good, &LIMITS).unwrap().metadata().keys().cloned().collect();
        assert_eq!(keys.len(), if kind == "dense" { 10 } else { 12 });
        for key in &keys {
            let missing = with(&good, |metadata, _| drop(metadata.remove(key)));
            assert_eq!(code(&missing), "adapter-field", "{kind} without {key}");
            for value in ["", "-1", "1e3", "sha256:00", "\u{0}", &"9".repeat(4000)] {
                // Any text is a name.
                let bent = with(&good, |metadata, _| {
                    metadata.insert(key.clone(), value.into());
                });
                let name = key == "source_name" && (2..256).contains(&value.len());
                let expected = match key.as_str() {
                    _ if name => "accepted",
                    "slm_delta" => "adapter-delta-version",
                    "kind" => "adapter-kind-unsupported",
                    _ => "adapter-field",
                };
                assert_eq!(code(&bent), expected, "{kind} with {key} = {value:.20}");
            }
        }
        let more = with(&good, |metadata, _| {
            metadata.insert("epochs".into(), "3".into());
        });
        assert_eq!(code(&more), "adapter-unknown-field");
        // What is said is about this file: it has no configuration, and PEFT did not write it.
        let error = DeltaFile::parse(&more, &LIMITS).unwrap_err();
        let said = format!("{error}; {}", error.hint().unwrap_or_default());
        assert!(
            said.starts_with("metadata of the file: ") && said.contains("write the file again")
        );
        assert!(!said.contains("PEFT") && !said.contains("configuration"), "{said}");
        let foreign = with(&good, |metadata, _| {
            let key = if kind == "sparse" { "source" } else { "retention" };
            metadata.insert(key.into(), "0.5".into());
        });
        assert_eq!(code(&foreign), "adapter-unknown-field", "{kind}");
        let path = with(&good, |metadata, _| {
            metadata.insert("source_name".into(), "/etc/passwd".into());
        });
        assert_ne!(code(&path), "accepted");
    }
}

#[test]
fn what_a_sparse_delta_says_of_itself_is_counted() {
    let good = to_delta(&sparse(), &identity()).unwrap();
    let state = |key: &str, value: String| {
        code(&with(&good, |metadata, _| {
            metadata.insert(key.into(), value.clone());
        }))
    };
    let retention = 164.0 / (128.0 * 256.0 + 256.0 * 768.0);
    assert_eq!(state("retention", format!("{retention:.6}")), "accepted");
    assert_eq!(state("retention", format!("{:.6}", retention * 1.1)), "adapter-field");
    assert_eq!(state("retention", "NaN".into()), "adapter-field");
    assert_eq!(state("mask", mask_digest(&sparse()).to_string()), "accepted");
    assert_eq!(state("mask", mask_digest(&dense()).to_string()), "adapter-field");
}

#[test]
fn every_rule_of_a_tensor_has_its_code() {
    let bent = |adapter: &Adapter, change: &dyn Fn(&mut Tensors)| {
        let good = to_delta(adapter, &identity()).unwrap();
        code(&with(&good, |_, tensors| change(tensors)))
    };
    let rename = |tensors: &mut Tensors, from: &str, to: &str| {
        let tensor = tensors.remove(from).unwrap();
        tensors.insert(to.into(), tensor);
    };
    let [(_, dense), (_, sparse), (_, low_rank)] = all();
    let (delta, a) = (format!("{TARGET}.delta"), format!("{TARGET}.lora_a"));
    for adapter in [&dense, &sparse, &low_rank] {
        assert_eq!(bent(adapter, &|_| {}), "accepted");
        // Values: finite, F32, all there, nothing more, on a tensor that the base has.
        for name in [&delta, &a, &format!("{TARGET}.values")] {
            let nan = |tensors: &mut Tensors| {
                if let Some(tensor) = tensors.get_mut(name) {
                    tensor.2[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
                }
            };
            let half = |tensors: &mut Tensors| {
                if let Some(tensor) = tensors.get_mut(name) {
                    tensor.0 = Dtype::F16;
                    tensor.2.truncate(tensor.2.len() / 2);
                }
            };
            let has = {
                let file = to_delta(adapter, &identity()).unwrap();
                SafeTensors::parse(&file, &LIMITS).unwrap().get(name).is_some()
            };
            let expected = |code| if has { code } else { "accepted" };
            assert_eq!(bent(adapter, &nan), expected("adapter-non-finite"), "{name}");
            assert_eq!(bent(adapter, &half), expected("adapter-dtype"), "{name}");
        }
        let more = |tensors: &mut Tensors| {
            tensors.insert(format!("{TARGET}.bias"), (Dtype::F32, vec![1], vec![0; 4]));
        };
        assert_eq!(bent(adapter, &more), "adapter-unused-tensor");
        let none = bent(adapter, &BTreeMap::clear);
        // A mask of nothing is not the mask that is stated; otherwise no module is left.
        assert_eq!(none, "adapter-no-target");
    }
    let elsewhere = |tensors: &mut Tensors| rename(tensors, &delta, "blk.4.attn_v.weight.delta");
    assert_eq!(bent(&dense, &elsewhere), "adapter-unknown-tensor");
    let norm = |tensors: &mut Tensors| rename(tensors, &delta, "blk.0.attn_norm.weight.delta");
    assert_eq!(bent(&dense, &norm), "adapter-unknown-tensor");
    let turned = |tensors: &mut Tensors| tensors.get_mut(&delta).unwrap().1.reverse();
    assert_eq!(bent(&dense, &turned), "adapter-shape");
    let flat = |tensors: &mut Tensors| tensors.get_mut(&delta).unwrap().1 = vec![128 * 256];
    assert_eq!(bent(&dense, &flat), "adapter-shape");
    let narrow = |tensors: &mut Tensors| {
        let tensor = tensors.get_mut(&a).unwrap();
        tensor.1 = vec![8, 128];
    };
    assert_eq!(bent(&low_rank, &narrow), "adapter-rank");
    let half = |tensors: &mut Tensors| drop(tensors.remove(&format!("{TARGET}.lora_b")));
    assert_eq!(bent(&low_rank, &half), "adapter-missing-factor");

    let [shape, indices, values] =
        ["shape", "indices", "values"].map(|part| format!("{TARGET}.{part}"));
    for part in [&shape, &indices, &values] {
        assert_eq!(bent(&sparse, &|t| drop(t.remove(part))), "adapter-missing-factor");
        assert_eq!(
            bent(&sparse, &|t| {
                let tensor = t.get_mut(part).unwrap();
                tensor.1.insert(0, 1);
            }),
            "adapter-shape",
            "{part}"
        );
    }
    let put = |name: &str, at: usize, word: u64| {
        bent(&sparse, &|t: &mut Tensors| {
            t.get_mut(name).unwrap().2[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        })
    };
    // Indices: ascending, each once, inside; shape: the base's. The mask no longer fits either, but this is found first.
    assert_eq!(put(&indices, 99, u64::MAX), "adapter-sparse-index");
    assert_eq!(put(&indices, 99, 128 * 256), "adapter-sparse-index");
    assert_eq!(put(&indices, 1, 0), "adapter-sparse-index");
    assert_eq!(put(&indices, 99, 128 * 256 - 1), "adapter-field", "another mask than is stated");
    assert_eq!(put(&shape, 0, 0), "adapter-shape");
    assert_eq!(put(&shape, 0, 1 << 32), "adapter-shape");
    assert_eq!(put(&shape, 0, 1), "adapter-sparse-index");
    assert_eq!(put(&shape, 0, 256), "adapter-field", "another retention than is stated");
    let short = |t: &mut Tensors| {
        let tensor = t.get_mut(&values).unwrap();
        tensor.1[0] -= 1;
        tensor.2.truncate(99 * 4);
    };
    assert_eq!(bent(&sparse, &short), "adapter-shape");
    let signed = |t: &mut Tensors| t.get_mut(&indices).unwrap().0 = Dtype::I64;
    assert_eq!(bent(&sparse, &signed), "adapter-dtype");
}

#[test]
fn a_delta_that_changes_nothing_is_no_delta() {
    let zeroed = |file: &[u8], part: &str, keep: usize| {
        let file = with(file, |_, tensors| {
            for (name, (_, _, data)) in tensors.iter_mut() {
                if name.ends_with(part) {
                    data[keep..].fill(0);
                }
            }
        });
        code(&file)
    };
    for (adapter, part) in [
        (dense(), ".delta"),
        (sparse(), ".values"),
        (low_rank(), ".lora_a"),
        (low_rank(), ".lora_b"),
    ] {
        let good = to_delta(&adapter, &identity()).unwrap();
        assert_eq!(zeroed(&good, part, 0), "adapter-no-target", "{part}");
        // One element is something.
        assert_eq!(zeroed(&good, part, 4), "accepted", "{part}");
    }
}

#[test]
fn what_the_format_has_no_room_for_is_not_written() {
    let refused = |adapter: &Adapter| to_delta(adapter, &identity()).unwrap_err().code();
    let scaled =
        on(vec![(TARGET, Delta::Dense(DenseDelta { scale: 2.0, delta: factor(128, 256) }))]);
    assert_eq!(refused(&scaled), "adapter-export");
    assert_eq!(refused(&dense().with_factors_f16().unwrap()), "adapter-export");
    assert_eq!(refused(&low_rank().with_sources(Vec::new())), "adapter-export");
    let lora =
        Lora { scale: 1.0, a: factor(4, 256), b: factor(128, 4), bias: Some(factor(1, 128)) };
    let biased = on(vec![(TARGET, Delta::Lora(lora))]).with_sources(low_rank().sources().to_vec());
    assert_eq!(refused(&biased), "adapter-export");
    assert!(to_delta(&low_rank(), &identity()).is_ok());
}
