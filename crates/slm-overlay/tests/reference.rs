//! Adapters that PEFT wrote for the tiny model, and one that llama.cpp's converter made from one of them.

mod common;

use std::sync::Arc;

use common::{config, pair, read, resolve, tiny, tiny_as, weights, with};
use slm_format::gguf::Gguf;
use slm_format::safetensors::SafeTensors;
use slm_format::{Encoding, Limits};
use slm_manifest::BaseId;
use slm_manifest::config::Architecture;
use slm_overlay::peft::{PeftAdapter, PeftLora};
use slm_overlay::{Adapter, Delta, DenseDelta, Factor, Module, SparseDelta, Stack};

/// A budget is made from the modules, a session from the stack: both count the same buffers.
#[test]
fn a_module_says_what_its_stack_takes() {
    let id = BaseId::of_canonical(b"a base");
    let values = |n: u64| Factor::new("x", Encoding::F32, 1, n, vec![64; 4 * n as usize].into());
    let on = |delta| Adapter::new(vec![Module { target: "blk.0.attn_v.weight".into(), delta }]);
    let indices: Vec<u64> = vec![0, 5, 256, 257, 256 * 9, 256 * 128 - 1];
    let sparse = SparseDelta {
        scale: 1.0,
        rows: 128,
        cols: 256,
        values: values(indices.len() as u64).unwrap(),
        indices: indices.into(),
    };
    let matrix = Factor::new("x", Encoding::F32, 128, 256, vec![64; 4 * 128 * 256].into());
    let dense = DenseDelta { scale: 1.0, delta: matrix.unwrap() };
    let mut adapters = vec![
        ("sparse", on(Delta::Sparse(sparse)).unwrap(), 4),
        ("dense", on(Delta::Dense(dense)).unwrap(), 128),
    ];
    for (name, most) in [("lora-qv", 8), ("ia3", 0), ("loha", 256), ("lokr", 512), ("vera", 16)] {
        let parsed = PeftAdapter::parse(config(name).as_bytes(), &weights(name), &Limits::STANDARD);
        adapters.push((name, parsed.unwrap().resolve(&tiny()).unwrap().0, most));
    }
    for (name, adapter, most) in adapters {
        let adapter = Arc::new(adapter);
        let bound = Arc::new(Arc::clone(&adapter).bind(id, &tiny()).unwrap());
        let stack = Stack::new(id, vec![(bound, 1.0)]).unwrap();
        let mut largest = 0;
        for module in adapter.modules() {
            let taken = stack.for_tensor(&module.target).scratch_len(3) as u64;
            assert_eq!(taken, 3 * module.scratch_values(), "{name} {}", module.target);
            largest = largest.max(module.scratch_values());
        }
        assert!(largest <= most && (most == 0 || largest > 0), "{name}: {largest}");
    }
}

#[test]
fn every_plain_lora_resolves_to_its_targets() {
    for (name, n_targets, scale) in
        [("lora-qv", 8, 2.0), ("lora-all-linear", 28, 2.0), ("lora-layers", 4, 1.0)]
    {
        let (adapter, report) = resolve(&config(name), &weights(name)).unwrap();
        assert_eq!(
            (adapter.modules().len(), report.targets.len()),
            (n_targets, n_targets),
            "{name}"
        );
        assert!(report.targets.iter().all(|target| target.scale == scale), "{name}");
        assert!(report.targets.is_sorted_by(|a, b| a.tensor < b.tensor), "{name}");
        assert_eq!(report.warnings, Vec::<String>::new(), "{name}");
        assert!(adapter.nnz() > 0 && adapter.nnz() * 4 <= adapter.bytes(), "{name}");
    }
}

#[test]
fn a_report_counts_what_each_entry_targets() {
    let (_, report) = resolve(&config("lora-layers"), &weights("lora-layers")).unwrap();
    let patterns: Vec<_> =
        report.patterns.iter().map(|row| (row.pattern.as_str(), row.matched)).collect();
    assert_eq!(patterns, [("q_proj", 2), ("up_proj", 2)]);
    let tensors: Vec<_> = report.targets.iter().map(|target| target.tensor.as_str()).collect();
    assert_eq!(
        tensors,
        [
            "blk.1.attn_q.weight",
            "blk.1.ffn_up.weight",
            "blk.3.attn_q.weight",
            "blk.3.ffn_up.weight"
        ]
    );
}

#[test]
fn rank_and_alpha_patterns_resolve_each_on_its_own() {
    // r 8, alpha 16; rank_pattern {layers.1.mlp.down_proj: 2, q_proj: 4}; alpha_pattern {model.layers.0.self_attn.q_proj: 32}.
    let (_, report) = resolve(&config("lora-patterns"), &weights("lora-patterns")).unwrap();
    for (tensor, rank, scale) in [
        ("blk.0.attn_q.weight", 4, 8.0),
        ("blk.1.attn_q.weight", 4, 4.0),
        ("blk.1.ffn_down.weight", 2, 8.0),
        ("blk.0.ffn_down.weight", 8, 2.0),
        ("blk.0.attn_v.weight", 8, 2.0),
    ] {
        let target = report.targets.iter().find(|target| target.tensor == tensor).unwrap();
        assert_eq!((target.rank, target.scale), (rank, scale), "{tensor}");
    }
}

#[test]
fn rslora_divides_by_the_root() {
    // r 16, alpha 16, use_rslora: PEFT's factor is 4, not 1.
    let tensors: Vec<_> = (0..4)
        .flat_map(|layer| pair(&format!("model.layers.{layer}.self_attn.q_proj"), 16, (256, 256)))
        .collect();
    let rslora = with(&config("lora-rslora"), "target_modules", r#"["q_proj"]"#);
    let (_, report) = resolve(&rslora, &common::file(&tensors)).unwrap();
    assert!(report.targets.iter().all(|target| target.scale == 4.0));
    let (_, report) =
        resolve(&with(&rslora, "use_rslora", "false"), &common::file(&tensors)).unwrap();
    assert!(report.targets.iter().all(|target| target.scale == 1.0));
    // alpha 32 over the root of 16, as tiny-python has it.
    let python = with(&config("tiny-python"), "target_modules", r#"["q_proj"]"#);
    let (_, report) = resolve(&python, &common::file(&tensors)).unwrap();
    assert!(report.targets.iter().all(|target| target.scale == 8.0));
    // f64 first: 32 / sqrt(3) in f32 throughout differs in the last bit.
    let tensors = pair("model.layers.0.self_attn.q_proj", 3, (256, 256));
    let (_, report) = resolve(&with(&python, "r", "3"), &common::file(&tensors)).unwrap();
    assert_eq!(report.targets[0].scale, (32.0f64 / 3.0f64.sqrt()) as f32);
}

#[test]
fn factors_equal_those_of_the_gguf_twin() {
    // llama.cpp's converter permuted q and k rows on its own; alpha 8, rank 4.
    let file = read("lora-all-linear.gguf");
    let twin = Gguf::parse(&file, &Limits::STANDARD).unwrap();
    let (adapter, _) = resolve(&config("lora-all-linear"), &weights("lora-all-linear")).unwrap();
    assert_eq!(twin.tensors().len(), 2 * adapter.modules().len());
    for module in &adapter.plain_lora().unwrap() {
        for (suffix, factor) in [("lora_a", &module.a), ("lora_b", &module.b)] {
            let tensor = twin.tensor(&format!("{}.{suffix}", module.target)).unwrap();
            assert_eq!(tensor.encoding, Encoding::F32);
            assert_eq!(tensor.shape, [u64::from(factor.cols()), u64::from(factor.rows())]);
            assert!(tensor.data == factor.data(), "{}.{suffix} differs", module.target);
        }
        assert_eq!(module.scale, 8.0 / 4.0);
    }
}

#[test]
fn q_and_k_rows_move_as_the_formula_says_and_no_others() {
    let (config, weights) = (config("lora-all-linear"), weights("lora-all-linear"));
    let file = SafeTensors::parse(&weights, &Limits::STANDARD).unwrap();
    let parsed = PeftLora::parse(config.as_bytes(), &weights, &Limits::STANDARD).unwrap();
    let rows = |name: &str| {
        let tensor =
            file.get(&format!("base_model.model.model.layers.2.{name}.lora_B.weight")).unwrap();
        tensor.data.chunks_exact(4 * 4).collect::<Vec<_>>()
    };
    let (llama, _) = parsed.resolve(&tiny()).unwrap();
    let (gemma, _) = parsed.resolve(&tiny_as(Architecture::Gemma3)).unwrap();
    let module = |adapter: &slm_overlay::Adapter, name: &str| {
        let target = format!("blk.2.{name}.weight");
        adapter.plain_lora().unwrap().into_iter().find(|module| module.target == target).unwrap()
    };
    for (path, name, n_heads) in
        [("self_attn.q_proj", "attn_q", 8), ("self_attn.k_proj", "attn_k", 4)]
    {
        let source = rows(path);
        let mut expected = vec![&[][..]; source.len()];
        let d = 32;
        for head in 0..n_heads {
            for i in 0..2 {
                for j in 0..d / 2 {
                    expected[head * d + 2 * j + i] = source[head * d + i * (d / 2) + j];
                }
            }
        }
        assert_eq!(module(&llama, name).b.data(), expected.concat(), "{name}");
        assert_eq!(module(&gemma, name).b.data(), source.concat(), "{name}");
        assert_ne!(module(&llama, name).b.data(), source.concat(), "{name}");
    }
    assert_eq!(module(&llama, "attn_v").b.data(), rows("self_attn.v_proj").concat());
    assert_ne!(llama.id(), gemma.id());
}

#[test]
fn all_ways_of_naming_the_same_targets_are_one_adapter() {
    let (config, weights) = (config("lora-all-linear"), weights("lora-all-linear"));
    let (adapter, _) = resolve(&config, &weights).unwrap();
    for targets in [
        r#""all-linear""#,
        r#"".*\\.(self_attn|mlp)\\.[a-z]+_proj""#,
        r#"["down_proj","up_proj","o_proj","gate_proj","k_proj","v_proj","q_proj"]"#,
    ] {
        let (other, report) = resolve(&with(&config, "target_modules", targets), &weights).unwrap();
        assert_eq!(other.id(), adapter.id(), "{targets}");
        assert_eq!(report.patterns.iter().map(|row| row.matched).sum::<u32>(), 28, "{targets}");
    }
}

#[test]
fn layers_and_exclusions_narrow_a_list() {
    let (config, weights) = (config("lora-layers"), weights("lora-layers"));
    for (field, value) in [
        ("layers_pattern", r#""layers""#),
        ("layers_pattern", r#"["blocks", "layers"]"#),
        ("exclude_modules", r#"["o_proj"]"#),
        ("exclude_modules", r#"".*\\.0\\..*""#),
    ] {
        let (_, report) = resolve(&with(&config, field, value), &weights).unwrap();
        assert_eq!(report.targets.len(), 4, "{field} {value}");
    }
    // An exact path is targeted whatever layers_to_transform says.
    let exact = with(
        &config,
        "target_modules",
        r#"["q_proj", "up_proj", "model.layers.0.self_attn.q_proj"]"#,
    );
    let (_, report) = resolve(&exact, &weights).unwrap();
    assert!(
        report.warnings[0]
            .starts_with("model.layers.0.self_attn.q_proj is targeted but has no factors")
    );
}

#[test]
fn entries_that_match_nothing_are_told() {
    let config = with(&config("lora-qv"), "target_modules", r#"["q_proj", "v_proj", "c_attn"]"#);
    let config = with(&config, "rank_pattern", r#"{"w1": 3}"#);
    let (_, report) = resolve(&config, &weights("lora-qv")).unwrap();
    assert_eq!(report.patterns[2].matched, 0);
    assert_eq!(
        report.warnings,
        [
            "target_modules: \"c_attn\" matches no module of the base",
            "rank_pattern: \"w1\" matches no adapted module"
        ]
    );
}

#[test]
fn entries_that_narrow_nothing_are_told() {
    let plain = with(&config("lora-qv"), "layers_to_transform", "[0, 1, 2, 3]");
    let report = |field: &str, value: &str| {
        let parsed = PeftAdapter::parse(
            with(&plain, field, value).as_bytes(),
            &weights("lora-qv"),
            &Limits::STANDARD,
        );
        let parsed = parsed.unwrap();
        // Without a base nobody knows what else there would be.
        assert_eq!(parsed.resolve_alone().unwrap().warnings, Vec::<String>::new(), "{field}");
        parsed.resolve(&tiny()).unwrap().1.warnings
    };
    for (field, odd, twin, entry) in [
        ("exclude_modules", r#"["o_proj", "c_attn"]"#, r#"["o_proj", "up_proj"]"#, "c_attn"),
        ("exclude_modules", r#"".*\\.c_attn""#, r#"".*\\.o_proj""#, r".*\.c_attn"),
        ("layers_pattern", r#"["layers", "blocks"]"#, r#"["layers"]"#, "blocks"),
    ] {
        let expected = format!("{field}: {entry:?} matches no module of the base");
        assert_eq!(report(field, odd), [expected]);
        assert_eq!(report(field, twin), Vec::<String>::new(), "{field}");
    }
}
