//! Every kind from PEFT's files to its normal form, stored and read again, written as PEFT and as GGUF, and refused where it must be.

mod common;

use std::sync::Arc;

use common::{
    Tensor, Weights, config, f32_bytes, file, folder, on, product, ramp, resolve, tiny, weights,
    with,
};
use slm_format::container::Container;
use slm_format::safetensors::{Dtype, SafeTensors};
use slm_format::{Coded, Encoding, Limits};
use slm_manifest::BaseId;
use slm_overlay::peft::{PeftAdapter, to_peft};
use slm_overlay::{
    Adapter, AdapterKind, Delta, DenseDelta, Factor, Gates, Lora, Module, OverlayError, Side,
    SparseDelta, Stack,
};
use slm_quant::{Inline, Kernels};

const LIMITS: Limits = Limits::STANDARD;

/// Folders of the reference data, what each is, and how many tensors it touches.
const FOLDERS: [(&str, AdapterKind, usize); 9] = [
    ("lora-qv", AdapterKind::Lora, 8),
    ("lora-patterns", AdapterKind::Lora, 28),
    ("lora-bias-term", AdapterKind::Lora, 8),
    ("lora-embed", AdapterKind::Lora, 5),
    ("dora", AdapterKind::Dora, 12),
    ("ia3", AdapterKind::Ia3, 12),
    ("loha", AdapterKind::Loha, 8),
    ("lokr", AdapterKind::Lokr, 8),
    ("vera", AdapterKind::Vera, 4),
];

fn stored(adapter: &Adapter) -> Vec<u8> {
    let mut bytes = Vec::new();
    adapter.write_to(&mut bytes).unwrap();
    bytes
}

#[test]
fn every_kind_resolves_and_comes_back_from_its_section() {
    let weights = Weights::new();
    let base = on(&weights);
    let mut ids = Vec::new();
    for (name, kind, n) in FOLDERS {
        let adapter = folder(name, &base);
        assert_eq!((adapter.kind(), adapter.modules().len()), (kind, n), "{name}");
        let bytes = stored(&adapter);
        let again = Adapter::read(&Container::open(&bytes, &LIMITS).unwrap(), &LIMITS).unwrap();
        assert_eq!(again, adapter, "{name}");
        assert_eq!(stored(&again), bytes, "{name}");
        let half = adapter.with_factors_f16().unwrap();
        assert_ne!(half.id(), adapter.id(), "{name}");
        assert!(half.bytes() * 2 == adapter.bytes(), "{name}");
        ids.push(adapter.id());
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), FOLDERS.len(), "two of them have one id");
}

#[test]
fn every_kind_comes_back_from_peft_s_form_as_itself() {
    let weights = Weights::new();
    let base = on(&weights);
    for (name, ..) in FOLDERS {
        let adapter = folder(name, &base);
        let files = to_peft(&adapter, &base).unwrap();
        let parsed = PeftAdapter::parse(files.config.as_bytes(), &files.weights, &LIMITS).unwrap();
        let (again, report) = parsed.resolve(&base).unwrap();
        assert_eq!(again.id(), adapter.id(), "{name}");
        assert!(report.dropped.is_empty(), "{name}");
    }
}

/// Left and right matrix of q, v and down of the tiny model, whole (rank 0) or of a rank, as PEFT 0.11.1 made them of the options before them.
#[test]
fn kronecker_products_keep_the_options_that_peft_makes_them_of() {
    type Side = ([u64; 2], u64);
    type Case = (&'static str, [(Side, Side); 3], [&'static str; 3]);
    let cases: [Case; 5] = [
        (
            r#"{"r": 4, "decompose_both": false, "decompose_factor": 8}"#,
            [
                (([8, 8], 0), ([32, 32], 4)),
                (([8, 8], 0), ([16, 32], 4)),
                (([8, 8], 0), ([32, 96], 4)),
            ],
            ["4", "false", "8"],
        ),
        (
            r#"{"r": 2, "decompose_both": true, "decompose_factor": 8}"#,
            [
                (([8, 8], 2), ([32, 32], 2)),
                (([8, 8], 2), ([16, 32], 2)),
                (([8, 8], 2), ([32, 96], 2)),
            ],
            ["2", "true", "8"],
        ),
        // Of what is whole throughout, the rank is free: the least that keeps it whole, with the alpha that keeps the scale.
        (
            r#"{"r": 64, "decompose_both": false, "decompose_factor": -1}"#,
            [
                (([16, 16], 0), ([16, 16], 0)),
                (([8, 16], 0), ([16, 16], 0)),
                (([16, 24], 0), ([16, 32], 0)),
            ],
            ["8", "false", "-1"],
        ),
        (
            r#"{"r": 8, "decompose_both": false, "decompose_factor": -1}"#,
            [
                (([16, 16], 0), ([16, 16], 0)),
                (([8, 16], 0), ([16, 16], 0)),
                (([16, 24], 0), ([16, 32], 8)),
            ],
            ["8", "false", "-1"],
        ),
        (
            r#"{"r": 5, "decompose_both": true, "decompose_factor": 12}"#,
            [
                (([8, 8], 0), ([32, 32], 5)),
                (([8, 8], 0), ([16, 32], 5)),
                (([8, 12], 5), ([32, 64], 5)),
            ],
            ["5", "true", "12"],
        ),
    ];
    let paths = ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"];
    let export = |config: &str, modules: &[(Side, Side); 3]| {
        let mut tensors: Vec<Tensor> = Vec::new();
        for (path, (left, right)) in paths.iter().zip(modules) {
            for (side, ([rows, cols], rank)) in [("lokr_w1", left), ("lokr_w2", right)] {
                let mut add = |suffix: &str, shape: [u64; 2]| {
                    let name = format!("base_model.model.model.layers.0.{path}.{side}{suffix}");
                    let data = f32_bytes(&ramp(shape[0] * shape[1], 3));
                    tensors.push((name, Dtype::F32, shape.to_vec(), data));
                };
                match *rank {
                    0 => add("", [*rows, *cols]),
                    rank => {
                        add("_a", [*rows, rank]);
                        add("_b", [rank, *cols]);
                    }
                }
            }
        }
        let config = with(config, "peft_type", "\"LOKR\"");
        let config = with(&config, "target_modules", r#"["q_proj", "v_proj", "down_proj"]"#);
        let (adapter, _) = resolve(&config, &file(&tensors)).unwrap();
        (adapter.id(), to_peft(&adapter, &tiny()))
    };
    for (config, modules, expected) in &cases {
        let (id, files) = export(config, modules);
        let files = files.unwrap();
        let written: serde_json::Value = serde_json::from_str(&files.config).unwrap();
        let found = ["r", "decompose_both", "decompose_factor"].map(|key| written[key].to_string());
        assert_eq!(&found, expected, "{config}");
        let parsed = PeftAdapter::parse(files.config.as_bytes(), &files.weights, &LIMITS).unwrap();
        assert_eq!(parsed.resolve(&tiny()).unwrap().0.id(), id, "{config}");
    }
    // No options make a left matrix of 4 by 8 of one module and of 8 by 8 of another as wide and high; nor a whole right one beside one of rank 4 as large.
    let (config, modules, _) = &cases[0];
    let mut other = *modules;
    other[0] = (([4, 8], 0), ([64, 32], 4));
    assert_eq!(export(config, &other).1.unwrap_err().code(), "adapter-export");
    let mut other = *modules;
    other[0] = (([8, 8], 0), ([32, 32], 17));
    let config = with(config, "rank_pattern", r#"{"q_proj": 17}"#);
    assert_eq!(export(&config, &other).1.unwrap_err().code(), "adapter-export");
}

/// An older PEFT compares a pattern's key with the whole path, letter by letter, and stumbles over fields that it does not know.
#[test]
fn what_is_written_as_peft_is_for_older_ones_too() {
    let base = tiny();
    let adapter = resolve(&config("lora-patterns"), &weights("lora-patterns")).unwrap().0;
    let written: serde_json::Value =
        serde_json::from_str(&to_peft(&adapter, &base).unwrap().config).unwrap();
    assert_eq!(written["rank_pattern"]["model.layers.1.mlp.down_proj"], 2);
    assert_eq!(written["alpha_pattern"]["model.layers.0.self_attn.q_proj"], 32.0);
    assert_eq!(written.get("lora_bias"), None);
    let adapter = resolve(&config("lora-bias-term"), &weights("lora-bias-term")).unwrap().0;
    let written: serde_json::Value =
        serde_json::from_str(&to_peft(&adapter, &base).unwrap().config).unwrap();
    assert_eq!(written["lora_bias"], true);
}

#[test]
fn ia3_reads_its_side_from_feedforward_modules() {
    let sides = |config: &str| -> Result<Vec<Side>, OverlayError> {
        let (adapter, _) = resolve(config, &weights("ia3"))?;
        Ok(adapter
            .modules()
            .iter()
            .filter(|module| module.target.starts_with("blk.0."))
            .map(|module| match &module.delta {
                Delta::Ia3(ia3) => ia3.side,
                other => panic!("{other:?}"),
            })
            .collect())
    };
    let plain = config("ia3");
    let expected = [Side::Output, Side::Output, Side::Input];
    assert_eq!(sides(&plain).unwrap(), expected);
    let regex = with(&plain, "feedforward_modules", "\".*down_proj\"");
    assert_eq!(sides(&regex).unwrap(), expected);
    // Not feed-forward: the vector would have to be as long as the outputs.
    let none = with(&plain, "feedforward_modules", "[]");
    assert_eq!(sides(&none).unwrap_err().code(), "adapter-shape");
    let other = with(&plain, "feedforward_modules", "[\"up_proj\"]");
    assert_eq!(sides(&other).unwrap_err().code(), "adapter-field");
}

#[test]
fn a_copy_of_the_base_is_compared() {
    let mut changed = Weights::new();
    let unchanged = Weights::new();
    let parsed =
        PeftAdapter::parse(config("lora-embed").as_bytes(), &weights("lora-embed"), &LIMITS)
            .unwrap();
    let (_, report) = parsed.resolve(&on(&unchanged)).unwrap();
    assert_eq!(report.dropped, ["base_model.model.model.embed_tokens.base_layer.weight"]);
    assert!(report.warnings.iter().any(|warning| warning.starts_with("tied-split")));
    changed.0[5000] += 0.001;
    let error = parsed.resolve(&on(&changed)).unwrap_err();
    assert_eq!(error.code(), "adapter-base-copy");
    assert!(error.to_string().contains("row 19, column 136"), "{error}");
    assert_eq!(parsed.resolve(&tiny()).unwrap_err().code(), "adapter-base-copy");
    // Without a base nothing was compared, so nothing is said to be the base's own.
    let alone = parsed.resolve_alone().unwrap();
    assert!(alone.dropped.is_empty());
    assert!(alone.warnings.iter().any(|warning| {
        warning.contains(".base_layer.weight") && warning.contains("not compared")
    }));
}

#[test]
fn a_claim_of_tied_weights_needs_both_halves() {
    let weights = Weights::new();
    let base = on(&weights);
    let claim = with(&config("lora-embed"), "ensure_weight_tying", "true");
    let claim = with(&claim, "target_modules", "[\"q_proj\", \"embed_tokens\", \"lm_head\"]");
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut add = |name: &str, rows: u64, cols: u64| {
        let name = format!("base_model.model.{name}");
        tensors.push((name, Dtype::F32, vec![rows, cols], f32_bytes(&ramp(rows * cols, 2))));
    };
    add("model.embed_tokens.lora_embedding_A", 4, 1024);
    add("model.embed_tokens.lora_embedding_B", 256, 4);
    let half = file(&tensors);
    let resolve = |weights: &[u8], config: &str| {
        PeftAdapter::parse(config.as_bytes(), weights, &LIMITS)?.resolve(&base)
    };
    assert_eq!(resolve(&half, &claim).unwrap_err().code(), "adapter-tied-half");
    let (_, report) = resolve(&half, &with(&claim, "ensure_weight_tying", "false")).unwrap();
    assert!(report.warnings.iter().any(|warning| warning.starts_with("tied-split")));
    let mut add = |name: &str, rows: u64, cols: u64| {
        let name = format!("base_model.model.{name}");
        tensors.push((name, Dtype::F32, vec![rows, cols], f32_bytes(&ramp(rows * cols, 2))));
    };
    add("lm_head.lora_A.weight", 4, 256);
    add("lm_head.lora_B.weight", 1024, 4);
    let (adapter, report) = resolve(&file(&tensors), &claim).unwrap();
    assert_eq!(adapter.modules().len(), 2);
    assert!(!report.warnings.iter().any(|warning| warning.starts_with("tied-split")));
    // Untied: one side is all there is to claim.
    let mut untied = on(&weights);
    untied.tied_embeddings = false;
    untied.tensors.insert("output.weight".into(), (1024, 256));
    let parsed = PeftAdapter::parse(claim.as_bytes(), &half, &LIMITS).unwrap();
    parsed.resolve(&untied).unwrap();
}

#[test]
fn each_kind_refuses_what_it_cannot_apply() {
    for (name, field, set, unset, code) in [
        ("vera", "save_projection", "false", "true", "adapter-unsaved-projection"),
        ("vera", "bias", "\"all\"", "\"none\"", "adapter-bias"),
        ("vera", "r", "8", "16", "adapter-rank"),
        ("vera", "lora_alpha", "8", "null", "adapter-unknown-field"),
        ("loha", "r", "5", "4", "adapter-rank"),
        ("loha", "use_rslora", "true", "false", "adapter-unknown-field"),
        ("loha", "modules_to_save", "[\"lm_head\"]", "null", "adapter-modules-to-save"),
        ("lokr", "r", "5", "4", "adapter-rank"),
        ("lokr", "init_weights", "\"pissa\"", "\"lycoris\"", "adapter-init"),
        ("ia3", "r", "8", "null", "adapter-unknown-field"),
        ("ia3", "fan_in_fan_out", "true", "false", "adapter-fan-in-fan-out"),
        ("ia3", "modules_to_save", "[\"x\"]", "[]", "adapter-modules-to-save"),
        ("dora", "lora_bias", "true", "false", "adapter-field"),
        ("dora", "alora_invocation_tokens", "[1]", "null", "adapter-field"),
        ("dora", "use_dora", "false", "true", "adapter-unused-tensor"),
        ("lora-bias-term", "lora_bias", "false", "true", "adapter-unused-tensor"),
    ] {
        let plain = config(name);
        let error = resolve(&with(&plain, field, set), &weights(name)).expect_err(field);
        assert_eq!(error.code(), code, "{name} {field}: {error}");
        resolve(&with(&plain, field, unset), &weights(name))
            .unwrap_or_else(|error| panic!("{name} {field} {unset}: {error}"));
    }
}

/// Every tensor of a folder left out, bent to NaN, or of another shape.
#[test]
fn a_missing_or_damaged_factor_is_refused() {
    for name in ["dora", "ia3", "loha", "lokr", "vera", "lora-bias-term"] {
        let bytes = weights(name);
        let parsed = SafeTensors::parse(&bytes, &LIMITS).unwrap();
        let tensors: Vec<Tensor> = parsed
            .tensors()
            .iter()
            .map(|t| (t.name.clone(), t.dtype, t.shape.clone(), t.data.to_vec()))
            .collect();
        resolve(&config(name), &file(&tensors)).unwrap();
        for at in 0..tensors.len() {
            let mut bent = tensors.clone();
            bent[at].3[..4].copy_from_slice(&f32::NAN.to_le_bytes());
            let error = resolve(&config(name), &file(&bent)).unwrap_err();
            assert_eq!(error.code(), "adapter-non-finite", "{name} {}", tensors[at].0);
            let mut twice = tensors.clone();
            let len = twice[at].3.len();
            twice[at].2[0] *= 2;
            twice[at].3.resize(2 * len, 0);
            let error = resolve(&config(name), &file(&twice)).map(drop);
            let code = error.map_err(|error| error.code());
            // Wider than a module is well for what VeRA's modules share, as long as the ranks agree.
            let shared = name == "vera" && tensors[at].0.ends_with("vera_B");
            let expected = ["adapter-shape", "adapter-rank"];
            assert!(
                if shared {
                    code.is_ok()
                } else {
                    code.is_err_and(|code| expected.contains(&code))
                },
                "{name} {}: {code:?}",
                tensors[at].0
            );
            if name != "ia3" {
                let mut short = tensors.clone();
                short.remove(at);
                let error = resolve(&config(name), &file(&short)).unwrap_err();
                let expected = ["adapter-missing-factor", "adapter-missing-a", "adapter-missing-b"];
                assert!(expected.contains(&error.code()), "{name} {}: {error}", tensors[at].0);
            }
        }
    }
}

fn factor(rows: u64, cols: u64, values: &[f32]) -> Factor {
    Factor::new("x", Encoding::F32, rows, cols, f32_bytes(values).into()).unwrap()
}

#[test]
fn sparse_and_dense_deltas_are_one_matrix() {
    let base = tiny();
    let target = "blk.0.attn_v.weight";
    let indices: Vec<u64> = vec![0, 5, 256 * 7 + 255, 256 * 7 + 256, 256 * 128 - 1];
    let values = [1.5, -2.0, 0.25, 3.0, -0.5];
    let sparse = |indices: &[u64], rows: u32| Module {
        target: target.into(),
        delta: Delta::Sparse(SparseDelta {
            scale: 2.0,
            rows,
            cols: 256,
            indices: indices.into(),
            values: factor(1, indices.len() as u64, &values[..indices.len()]),
        }),
    };
    let adapter = Adapter::new(vec![sparse(&indices, 128)]).unwrap();
    let mut whole = vec![0.0; 256 * 128];
    indices.iter().zip(values).for_each(|(&at, value)| whole[at as usize] = value);
    let delta = Delta::Dense(DenseDelta { scale: 2.0, delta: factor(128, 256, &whole) });
    let dense = Adapter::new(vec![Module { target: target.into(), delta }]).unwrap();
    let x = ramp(256, 4);
    let found = product(&adapter, target, &base, 128, &x);
    assert_eq!(found, product(&dense, target, &base, 128, &x));
    assert_eq!(found[0], 2.0 * (1.5 * x[0] + -2.0 * x[5]));
    assert_eq!(found[1], 0.0);
    for adapter in [&adapter, &dense] {
        let bytes = stored(adapter);
        let again = Adapter::read(&Container::open(&bytes, &LIMITS).unwrap(), &LIMITS).unwrap();
        assert_eq!(&again, adapter);
    }
    assert_ne!(adapter.id(), dense.id());
    let other = Adapter::new(vec![sparse(&[0, 6, 2047, 2048, 32767], 128)]).unwrap();
    assert_ne!(adapter.id(), other.id(), "indices are part of the identity");

    let code = |module| Adapter::new(vec![module]).unwrap_err().code();
    assert_eq!(code(sparse(&[0, 5, 5], 128)), "adapter-sparse-index");
    assert_eq!(code(sparse(&[5, 0], 128)), "adapter-sparse-index");
    assert_eq!(code(sparse(&[0, 256 * 128], 128)), "adapter-sparse-index");
    let id = BaseId::of_canonical(b"a base");
    // With the base's weight, -1 at row 0, the sum must be finite.
    let weights = Weights::new();
    let huge = |value: f32| {
        let delta = SparseDelta {
            scale: 1.0,
            rows: 128,
            cols: 256,
            indices: vec![0].into(),
            values: factor(1, 1, &[value]),
        };
        let module = Module { target: target.into(), delta: Delta::Sparse(delta) };
        Arc::new(Adapter::new(vec![module]).unwrap()).bind(id, &on(&weights))
    };
    assert!(huge(f32::MAX).is_ok());
    assert!(huge(-f32::MAX).is_ok());
    let scaled =
        Delta::Dense(DenseDelta { scale: 1e30, delta: factor(128, 256, &[1e20; 256 * 128]) });
    let scaled = Adapter::new(vec![Module { target: target.into(), delta: scaled }]).unwrap();
    assert_eq!(Arc::new(scaled).bind(id, &on(&weights)).unwrap_err().code(), "adapter-fused");
    let tall = Arc::new(Adapter::new(vec![sparse(&indices, 129)]).unwrap());
    assert_eq!(tall.bind(id, &base).unwrap_err().code(), "adapter-shape");
}

#[test]
fn what_cannot_stand_together_is_refused() {
    let lora = |target: &str, bias: Option<Factor>| Module {
        target: target.into(),
        delta: Delta::Lora(Lora {
            scale: 1.0,
            a: factor(1, 256, &ramp(256, 1)),
            b: factor(128, 1, &ramp(128, 1)),
            bias,
        }),
    };
    let dense = Module {
        target: "blk.1.attn_v.weight".into(),
        delta: Delta::Dense(DenseDelta { scale: 1.0, delta: factor(1, 1, &[1.0]) }),
    };
    let error = Adapter::new(vec![lora("blk.0.attn_v.weight", None), dense]).unwrap_err();
    assert_eq!(error.code(), "adapter-mixed-kinds");
    let bias = |n: u64| Some(factor(1, n, &ramp(n, 1)));
    assert_eq!(
        Adapter::new(vec![lora("blk.0.attn_v.weight", bias(127))]).unwrap_err().code(),
        "adapter-shape"
    );
    let with_bias = Adapter::new(vec![lora("blk.0.attn_v.weight", bias(128))]).unwrap();
    let without = Adapter::new(vec![lora("blk.0.attn_v.weight", None)]).unwrap();
    let waiting =
        Adapter::with_invocation(vec![lora("blk.0.attn_v.weight", None)], vec![3]).unwrap();
    assert!(with_bias.id() != without.id() && waiting.id() != without.id());

    // DoRA needs the base's rows; a row without length has no gain.
    let id = BaseId::of_canonical(b"a base");
    let weights = Weights::new();
    let dora = Arc::new(folder("dora", &tiny()));
    assert_eq!(Arc::clone(&dora).bind(id, &tiny()).unwrap_err().code(), "adapter-base-weights");
    dora.bind(id, &on(&weights)).unwrap();
}

#[test]
fn adapters_act_from_their_invocation_on() {
    let module = Module {
        target: "blk.0.attn_v.weight".into(),
        delta: Delta::Lora(Lora {
            scale: 1.0,
            a: factor(1, 256, &[1.0; 256]),
            b: factor(128, 1, &[1.0; 128]),
            bias: None,
        }),
    };
    let adapter = Adapter::with_invocation(vec![module], vec![7, 8]).unwrap();
    let id = BaseId::of_canonical(b"a base");
    let bound = Arc::new(Arc::new(adapter).bind(id, &tiny()).unwrap());
    let stack = Stack::new(id, vec![(bound, 1.0)]).unwrap();
    let mut starts = vec![None; 3];
    let prompts =
        [(&[1, 7, 8, 2, 7, 8, 3][..], Some(4)), (&[7, 8], Some(0)), (&[8, 7], None), (&[], None)];
    for (prompt, start) in prompts {
        stack.starts(prompt, &mut starts);
        assert_eq!(starts, [start], "{prompt:?}");
    }
    // Where none waits, nothing of another stack is left.
    Stack::empty(id).starts(&[7, 8], &mut starts);
    assert!(starts.is_empty());
    let tensor = stack.for_tensor("blk.0.attn_v.weight");
    let touched = |starts: &[Option<usize>], first_position| {
        let mut y = vec![0.0; 4 * 128];
        let gates = Gates { first_position, starts };
        let x = vec![1.0; 4 * 256];
        tensor.apply(&Kernels::detect(), &Inline, &mut y, &x, &mut Vec::new(), 4, gates);
        y.chunks_exact(128).map(|y| y.iter().all(|&y| y == 256.0)).collect::<Vec<_>>()
    };
    assert_eq!(touched(&[Some(2)], 0), [false, false, true, true]);
    assert_eq!(touched(&[Some(2)], 1), [false, true, true, true]);
    assert_eq!(touched(&[Some(2)], 9), [true; 4]);
    assert_eq!(touched(&[Some(9)], 0), [false; 4]);
    assert_eq!(touched(&[None], 0), [false; 4]);
}
