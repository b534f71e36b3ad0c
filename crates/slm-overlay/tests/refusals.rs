//! Every refusal by its code, each beside a twin that differs in that one thing and is accepted.

mod common;

use std::collections::BTreeMap;

use common::{Tensor, config, f32_bytes, file, pair, qv_tensors, resolve, weights, with};
use slm_format::safetensors::{Dtype, TensorSource, write};
use slm_format::{Coded, ErrorClass, Limits};
use slm_overlay::OverlayError;
use slm_overlay::peft::PeftAdapter;

fn refused(config: &str, weights: &[u8], code: &str) -> OverlayError {
    let error =
        resolve(config, weights).err().unwrap_or_else(|| panic!("accepted, expected {code}"));
    assert_eq!((error.code(), error.class()), (code, ErrorClass::Refused), "{error}");
    error
}

#[test]
fn each_reference_refusal_has_its_code_and_its_twin() {
    let good = weights("lora-qv");
    for (name, code, field, value) in [
        ("refuse-bias-all", "adapter-bias", "bias", r#""none""#),
        ("refuse-modules-to-save", "adapter-modules-to-save", "modules_to_save", "null"),
        ("refuse-no-target", "adapter-no-target", "target_modules", r#"["q_proj", "v_proj"]"#),
        ("refuse-pissa", "adapter-init", "init_lora_weights", "true"),
        ("refuse-rank-zero", "adapter-rank-zero", "r", "8"),
    ] {
        refused(&config(name), &good, code);
        resolve(&with(&config(name), field, value), &good).unwrap();
    }
    let unknown = config("refuse-unknown-key");
    let error = refused(&unknown, &good, "adapter-unknown-field");
    let OverlayError::UnknownField { field, .. } = error else { panic!("{error}") };
    for value in ["null", "false", "[]", "{}", "\"\""] {
        resolve(&with(&unknown, &field, value), &good).unwrap();
    }
    let error =
        refused(&config("refuse-missing-b"), &weights("refuse-missing-b"), "adapter-missing-b");
    assert!(error.to_string().starts_with("model.layers.0.self_attn.q_proj "), "{error}");
    let error = refused(&config("refuse-nan"), &weights("refuse-nan"), "adapter-non-finite");
    assert!(
        error.to_string().contains("lora_") && error.to_string().ends_with("is NaN"),
        "{error}"
    );
    resolve(&config("refuse-missing-b"), &good).unwrap();
    resolve(&config("refuse-nan"), &good).unwrap();
}

#[test]
fn other_kinds_are_refused_by_name() {
    for kind in ["\"LORA2\"", "\"PROMPT_TUNING\"", "\"OFT\""] {
        refused(
            &with(&config("lora-qv"), "peft_type", kind),
            &weights("lora-qv"),
            "adapter-kind-unsupported",
        );
    }
    refused(&with(&config("lora-qv"), "peft_type", "null"), &weights("lora-qv"), "adapter-field");
    resolve(&config("lora-qv"), &weights("lora-qv")).unwrap();
}

#[test]
fn files_of_another_kind_than_the_configuration_are_refused() {
    for (name, code) in [
        ("ia3", "adapter-unused-tensor"),
        ("loha", "adapter-unused-tensor"),
        ("lokr", "adapter-unused-tensor"),
        ("vera", "adapter-unused-tensor"),
        ("dora", "adapter-missing-factor"),
        ("lora-bias-term", "adapter-missing-factor"),
    ] {
        refused(&config(name), &weights("lora-qv"), code);
    }
}

#[test]
fn every_field_that_changes_the_arithmetic_is_refused_when_set() {
    let (plain, good) = (config("lora-qv"), weights("lora-qv"));
    for (field, set, unset, code) in [
        ("bias", "\"lora_only\"", "\"none\"", "adapter-bias"),
        ("modules_to_save", "[\"lm_head\"]", "[]", "adapter-modules-to-save"),
        ("fan_in_fan_out", "true", "false", "adapter-fan-in-fan-out"),
        ("init_lora_weights", "\"pissa_niter_4\"", "\"gaussian\"", "adapter-init"),
        ("init_lora_weights", "\"olora\"", "\"eva\"", "adapter-init"),
        ("init_lora_weights", "\"corda\"", "\"orthogonal\"", "adapter-init"),
        ("init_lora_weights", "\"lora_ga\"", "\"mica\"", "adapter-init"),
        ("init_lora_weights", "\"loftq\"", "false", "adapter-init"),
        ("init_lora_weights", "\"some new way\"", "null", "adapter-init"),
        ("kasa_config", "{\"a\": 1}", "null", "adapter-kasa"),
        ("layer_replication", "[[0, 2]]", "null", "adapter-layer-replication"),
        ("trainable_token_indices", "[1]", "null", "adapter-trainable-tokens"),
        ("target_parameters", "[\"x\"]", "null", "adapter-target-parameters"),
        ("use_qalora", "true", "false", "adapter-qalora"),
        ("use_bdlora", "{\"n\": 2}", "null", "adapter-bdlora"),
        ("arrow_config", "{\"top_k\": 3}", "null", "adapter-arrow"),
        ("monteclora_config", "{\"n\": 3}", "null", "adapter-monteclora"),
        ("megatron_config", "{\"x\": 3}", "{}", "adapter-megatron"),
        ("use_dora", "true", "false", "adapter-missing-factor"),
        ("lora_bias", "true", "false", "adapter-missing-factor"),
        ("alora_invocation_tokens", "[1, -2]", "[1, 2]", "adapter-invocation"),
        ("alora_invocation_tokens", "\"x\"", "null", "adapter-invocation"),
        ("alpha", "8", "null", "adapter-unknown-field"),
        ("feedforward_modules", "[\"q_proj\"]", "[]", "adapter-unknown-field"),
        ("a_field_of_tomorrow", "0", "false", "adapter-unknown-field"),
    ] {
        refused(&with(&plain, field, set), &good, code);
        resolve(&with(&plain, field, unset), &good)
            .unwrap_or_else(|error| panic!("{field} {unset}: {error}"));
    }
}

#[test]
fn training_only_fields_change_nothing() {
    let (plain, good) = (config("lora-qv"), weights("lora-qv"));
    let id = resolve(&plain, &good).unwrap().0.id();
    for (field, value) in [
        ("auto_mapping", "{\"x\": 1}"),
        ("base_model_name_or_path", "\"another/name\""),
        ("corda_config", "{\"x\": 1}"),
        ("eva_config", "{\"rho\": 2.0}"),
        ("inference_mode", "false"),
        ("loftq_config", "{\"loftq_bits\": 4}"),
        ("lora_dropout", "0.1"),
        ("megatron_core", "\"x\""),
        ("peft_version", "\"9.9\""),
        ("qalora_group_size", "32"),
        ("revision", "\"main\""),
        ("runtime_config", "{\"ephemeral_gpu_offload\": true}"),
        ("task_type", "\"CAUSAL_LM\""),
        ("velora_config", "{\"x\": 1}"),
    ] {
        let (adapter, _) = resolve(&with(&plain, field, value), &good).unwrap();
        assert_eq!(adapter.id(), id, "{field}");
    }
}

#[test]
fn values_of_another_type_or_range_are_refused() {
    let (plain, good) = (config("lora-qv"), weights("lora-qv"));
    for (field, bad, twin, code) in [
        ("r", "8.0", "8", "adapter-field"),
        ("r", "true", "8", "adapter-field"),
        ("r", "null", "8", "adapter-field"),
        ("r", "-8", "8", "adapter-rank-zero"),
        ("r", "8589934592", "8", "adapter-field"),
        ("r", "4", "8", "adapter-rank"),
        ("lora_alpha", "\"16\"", "16.5", "adapter-field"),
        ("lora_alpha", "1e300", "1e30", "adapter-scale"),
        ("lora_alpha", "0", "1e-20", "adapter-no-target"),
        ("lora_alpha", "NaN", "16", "adapter-config-json"),
        ("lora_alpha", "Infinity", "16", "adapter-config-json"),
        ("use_rslora", "1", "null", "adapter-field"),
        ("rank_pattern", "{\"q_proj\": 0}", "{\"q_proj\": 8}", "adapter-rank-zero"),
        ("rank_pattern", "{\"q_proj\": 4}", "{\"q_proj\": 8, \"q_pro.\": 4}", "adapter-rank"),
        (
            "rank_pattern",
            "{\"q_pro.\": 4, \"q_proj\": 8}",
            "{\"q_proj\": 8, \"q_pro.\": 4}",
            "adapter-rank",
        ),
        ("rank_pattern", "[8]", "null", "adapter-field"),
        ("rank_pattern", "{\"(\": 8}", "{\"()\": 8}", "adapter-pattern"),
        ("alpha_pattern", "{\"q_proj\": \"1\"}", "{\"q_proj\": 1}", "adapter-field"),
        ("target_modules", "[1]", "[\"q_proj\", \"v_proj\"]", "adapter-field"),
        ("target_modules", "false", "[\"q_proj\", \"v_proj\"]", "adapter-field"),
        ("target_modules", "[]", "[\"q_proj\", \"v_proj\"]", "adapter-no-target"),
        ("target_modules", "null", "[\"q_proj\", \"v_proj\"]", "adapter-no-target"),
        ("target_modules", "\"(?=x)\"", "\".*[qv]_proj\"", "adapter-pattern"),
        ("target_modules", "[\"q_proj\"]", "[\"q_proj\", \"v_proj\"]", "adapter-untargeted-tensor"),
        ("target_modules", "\"[qv]_proj\"", "\".*[qv]_proj\"", "adapter-no-target"),
        ("exclude_modules", "[\"v_proj\"]", "[\"k_proj\"]", "adapter-untargeted-tensor"),
        ("layers_to_transform", "[0, 1, 2]", "[0, 1, 2, 3]", "adapter-untargeted-tensor"),
        ("layers_to_transform", "[\"0\"]", "[0, 1, 2, 3]", "adapter-field"),
        ("layers_pattern", "\"layers\"", "null", "adapter-field"),
    ] {
        refused(&with(&plain, field, bad), &good, code);
        resolve(&with(&plain, field, twin), &good)
            .unwrap_or_else(|error| panic!("{field} {twin}: {error}"));
    }
    let by_regex = with(&plain, "target_modules", "\".*[qv]_proj\"");
    refused(&with(&by_regex, "layers_to_transform", "[0, 1, 2, 3]"), &good, "adapter-field");
}

#[test]
fn configurations_that_are_no_objects_are_refused() {
    let good = weights("lora-qv");
    for (text, code) in [
        ("", "adapter-config-json"),
        ("[]", "adapter-field"),
        ("{}", "adapter-field"),
        ("{\"peft_type\": \"LORA\", \"r\": 8, \"r\": 8}", "adapter-config-duplicate-key"),
        (
            "{\"peft_type\": \"LORA\", \"rank_pattern\": {\"x\": 8, \"x\": 4}}",
            "adapter-config-duplicate-key",
        ),
    ] {
        refused(text, &good, code);
    }
    let long = format!("{{\"peft_type\": \"LORA\", \"task_type\": \"{}\"}}", "x".repeat(5 << 20));
    refused(&long, &good, "adapter-limit");
    resolve(r#"{"peft_type": "LORA", "target_modules": ["q_proj", "v_proj"]}"#, &good).unwrap();
}

/// Changes one tensor of the q/v adapter and expects a code; the unchanged file is every case's twin.
fn changed(change: impl Fn(&mut Vec<Tensor>), code: &str) -> String {
    let mut tensors = qv_tensors();
    resolve(&config("lora-qv"), &file(&tensors)).unwrap();
    change(&mut tensors);
    refused(&config("lora-qv"), &file(&tensors), code).to_string()
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let q0 = "base_model.model.model.layers.0.self_attn.q_proj";
    changed(|tensors| drop(tensors.remove(1)), "adapter-missing-b");
    changed(|tensors| drop(tensors.remove(0)), "adapter-missing-a");
    changed(Vec::clear, "adapter-no-target");

    let message = changed(
        |tensors| tensors[1].3[4 * 9..4 * 10].copy_from_slice(&f32::NAN.to_le_bytes()),
        "adapter-non-finite",
    );
    assert_eq!(message, format!("{q0}.lora_B.weight: element 9 is NaN"));
    changed(
        |tensors| tensors[0].3[..4].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes()),
        "adapter-non-finite",
    );

    let transposed = |tensors: &mut Vec<Tensor>| tensors[0].2 = vec![256, 8];
    changed(transposed, "adapter-rank");
    let message = changed(
        |tensors| tensors[1] = pair("model.layers.0.self_attn.q_proj", 8, (128, 256))[1].clone(),
        "adapter-shape",
    );
    assert_eq!(message, format!("{q0}.lora_B.weight: shape [128, 8], expected [256, 8]"));
    let message = changed(
        |tensors| tensors[0] = pair("model.layers.0.self_attn.q_proj", 8, (256, 128))[0].clone(),
        "adapter-shape",
    );
    assert_eq!(message, format!("{q0}.lora_A.weight: shape [8, 128], expected [8, 256]"));
    changed(|tensors| tensors[0].2 = vec![2048], "adapter-shape");
    changed(|tensors| tensors[0].2 = vec![8, 16, 16], "adapter-shape");
    changed(
        |tensors| tensors[0] = (tensors[0].0.clone(), Dtype::F32, vec![0, 256], vec![]),
        "adapter-shape",
    );
    let rank_4 = |tensors: &mut Vec<Tensor>| {
        tensors.splice(0..2, pair("model.layers.0.self_attn.q_proj", 4, (256, 256)));
    };
    let message = changed(rank_4, "adapter-rank");
    assert_eq!(message, format!("{q0}.lora_A.weight: rank 4 by its shape, 8 by the configuration"));

    for dtype in [Dtype::F64, Dtype::I64, Dtype::U8] {
        let other = |tensors: &mut Vec<Tensor>| {
            let bytes = dtype.size() as usize * 8 * 256;
            tensors[0] = (tensors[0].0.clone(), dtype, vec![8, 256], vec![0; bytes]);
        };
        changed(other, "adapter-dtype");
    }
}

#[test]
fn tensors_that_belong_nowhere_are_refused_by_name() {
    let add = |name: &str, code: &str| {
        let tensor = (name.to_owned(), Dtype::F32, vec![2, 2], f32_bytes(&[0.0; 4]));
        let message = changed(|tensors| tensors.push(tensor.clone()), code);
        assert!(message.contains(name), "{message}");
    };
    let layer = "base_model.model.model.layers.0";
    add(&format!("{layer}.self_attn.q_proj.lora_magnitude_vector"), "adapter-shape");
    add(&format!("{layer}.self_attn.q_proj.lora_B.bias"), "adapter-shape");
    add(&format!("{layer}.self_attn.q_proj.base_layer.weight"), "adapter-base-copy");
    add(&format!("{layer}.self_attn.q_proj.lora_A.default.weight"), "adapter-unused-tensor");
    add(&format!("{layer}.input_layernorm.weight"), "adapter-unused-tensor");
    add("model.layers.0.self_attn.q_proj.lora_A.weight", "adapter-unused-tensor");
    add("base_model.model.lm_head.weight", "adapter-unused-tensor");

    for (path, code) in [
        ("model.layers.4.self_attn.q_proj", "adapter-unknown-layer"),
        ("model.layers.99999999999.self_attn.q_proj", "adapter-unknown-layer"),
        ("model.layers.0.self_attn.w_proj", "adapter-unknown-tensor"),
        ("model.layers.00.self_attn.q_proj", "adapter-unknown-tensor"),
        ("layers.0.self_attn.q_proj", "adapter-unknown-tensor"),
        ("model.layers.0.mlp.up_proj", "adapter-untargeted-tensor"),
    ] {
        changed(|tensors| tensors.extend(pair(path, 8, (256, 256))), code);
    }

    for (name, message) in [("lora_magnitude_vector", "nothing asks"), ("lora_B.bias", "for it")] {
        let vector = (
            format!("{layer}.self_attn.q_proj.{name}"),
            Dtype::F32,
            vec![256],
            f32_bytes(&[1.0; 256]),
        );
        let found = changed(|tensors| tensors.push(vector.clone()), "adapter-unused-tensor");
        assert!(found.contains(name), "{found}, {message}");
    }
    for path in ["model.embed_tokens.lora_embedding", "lm_head.lora"] {
        let half =
            (format!("base_model.model.{path}_A"), Dtype::F32, vec![2, 2], f32_bytes(&[0.0; 4]));
        let code =
            if path.starts_with("lm") { "adapter-unused-tensor" } else { "adapter-missing-b" };
        changed(|tensors| tensors.push(half.clone()), code);
    }
}

#[test]
fn metadata_of_the_weights_that_are_not_read_are_told() {
    let tensors = qv_tensors();
    let sources: Vec<TensorSource<'_>> = tensors
        .iter()
        .map(|(name, dtype, shape, data)| TensorSource { name, dtype: *dtype, shape, data })
        .collect();
    let warnings = |key: &str| {
        let mut file = Vec::new();
        let metadata = BTreeMap::from([(key.to_owned(), "pt".to_owned())]);
        write(&mut file, &sources, &metadata).unwrap();
        resolve(&config("lora-qv"), &file).unwrap().1.warnings
    };
    assert_eq!(warnings("format"), Vec::<String>::new());
    let expected = ["the entry \"ss_network_alpha\" of the weights' metadata is not read"];
    assert_eq!(warnings("ss_network_alpha"), expected);
}

#[test]
fn a_targeted_module_without_factors_stays_as_it_is_unless_it_would_be_random() {
    let tensors = &qv_tensors()[2..];
    let (adapter, report) = resolve(&config("lora-qv"), &file(tensors)).unwrap();
    assert_eq!((adapter.modules().len(), report.warnings.len()), (7, 1));
    let random = with(&config("lora-qv"), "init_lora_weights", "false");
    refused(&random, &file(tensors), "adapter-missing-module");
    resolve(&random, &file(&qv_tensors())).unwrap();
}

#[test]
fn damaged_files_are_refused_and_never_panic() {
    let (config, good) = (config("lora-qv"), weights("lora-qv"));
    assert_eq!(resolve(&config, &good[..good.len() - 1]).unwrap_err().class(), ErrorClass::Refused);
    assert_eq!(resolve(&config, b"").unwrap_err().class(), ErrorClass::Refused);
    let text = config.into_bytes();
    for at in 0..text.len() {
        for value in [0, b'"', b'{', b'9', text[at] ^ 1] {
            let mut bytes = text.clone();
            bytes[at] = value;
            let _ =
                slm_overlay::peft::PeftLora::parse(&bytes, &good, &slm_format::Limits::STANDARD);
        }
    }
}

/// The prefix of a model with a second tower, which made other programs apply nothing and say nothing.
#[test]
fn a_prefix_that_no_base_has_is_named_with_and_without_a_base() {
    let prefixed = |prefix: &str| {
        let mut tensors = qv_tensors();
        for tensor in &mut tensors {
            tensor.0 =
                tensor.0.replace("model.model.layers", &format!("model.{prefix}model.layers"));
        }
        let weights = file(&tensors);
        let parsed =
            PeftAdapter::parse(config("lora-qv").as_bytes(), &weights, &Limits::STANDARD).unwrap();
        [parsed.resolve_alone().map(drop), parsed.resolve(&common::tiny()).map(drop)]
    };
    for outcome in prefixed("language_model.") {
        let error = outcome.unwrap_err();
        assert_eq!(error.code(), "adapter-unknown-tensor");
        assert!(error.to_string().contains("language_model.model.layers.0"), "{error}");
    }
    for outcome in prefixed("") {
        outcome.unwrap();
    }
}
