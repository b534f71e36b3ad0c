//! Model configurations that cannot be. The twin of each is the configuration without the bend, which is accepted.

use slm_format::{Coded as _, ErrorClass};
use slm_manifest::ModelConfig;
use slm_manifest::config::{Architecture, ConfigError, RawModelConfig};

fn gemma() -> RawModelConfig {
    RawModelConfig {
        architecture: Architecture::Gemma3,
        n_layers: 18,
        n_embd: 640,
        n_ff: 2048,
        n_heads: 4,
        n_kv_heads: 1,
        head_dim: 256,
        vocab_size: 262_144,
        context_length: 32_768,
        rms_norm_eps: 1e-6,
        rope_theta: 1e6,
        rope_linear_factor: 1.0,
        rope_theta_local: 1e4,
        sliding_window: Some(512),
        sliding_window_pattern: Some(6),
        tied_embeddings: true,
    }
}

#[test]
fn every_field_has_a_range() {
    type Bend = fn(&mut RawModelConfig);
    let bends: [(&str, &str, Bend); 29] = [
        ("n_layers", "config-n-layers", |raw| raw.n_layers = 0),
        ("n_layers", "config-n-layers", |raw| raw.n_layers = u32::MAX),
        ("n_embd", "config-n-embd", |raw| raw.n_embd = 0),
        ("n_embd", "config-n-embd", |raw| raw.n_embd = u32::MAX),
        ("n_ff", "config-n-ff", |raw| raw.n_ff = 0),
        ("n_heads", "config-n-heads", |raw| raw.n_heads = 0),
        ("n_heads", "config-n-heads", |raw| raw.n_heads = u32::MAX),
        ("n_kv_heads", "config-n-kv-heads", |raw| raw.n_kv_heads = 0),
        ("head_dim", "config-head-dim", |raw| raw.head_dim = 0),
        ("vocab_size", "config-vocab-size", |raw| raw.vocab_size = 0),
        ("vocab_size", "config-vocab-size", |raw| raw.vocab_size = (1 << 24) + 1),
        ("context_length", "config-context-length", |raw| raw.context_length = 0),
        ("context_length", "config-context-length", |raw| raw.context_length = u32::MAX),
        ("sliding_window", "config-sliding-window", |raw| raw.sliding_window = Some(0)),
        ("sliding_window_pattern", "config-sliding-window", |raw| {
            raw.sliding_window_pattern = Some(0)
        }),
        ("sliding_window_pattern", "config-sliding-window", |raw| {
            raw.sliding_window_pattern = Some(u32::MAX)
        }),
        ("rms_norm_eps", "config-rms-norm-eps", |raw| raw.rms_norm_eps = 0.0),
        ("rms_norm_eps", "config-rms-norm-eps", |raw| raw.rms_norm_eps = -1e-6),
        ("rms_norm_eps", "config-rms-norm-eps", |raw| raw.rms_norm_eps = f32::NAN),
        ("rope_theta", "config-rope", |raw| raw.rope_theta = 0.0),
        ("rope_theta", "config-rope", |raw| raw.rope_theta = f32::NAN),
        ("rope_theta", "config-rope", |raw| raw.rope_theta = f32::INFINITY),
        ("rope_linear_factor", "config-rope", |raw| raw.rope_linear_factor = 0.0),
        ("rope_linear_factor", "config-rope", |raw| raw.rope_linear_factor = f32::INFINITY),
        ("rope_theta_local", "config-rope", |raw| raw.rope_theta_local = -1.0),
        ("rope_theta_local", "config-rope", |raw| raw.rope_theta_local = f32::NAN),
        ("n_heads", "config-heads", |raw| raw.n_kv_heads = 3),
        ("n_heads", "config-heads", |raw| raw.n_kv_heads = 8),
        ("head_dim", "config-heads", |raw| raw.head_dim = 255),
    ];
    for (field, code, bend) in bends {
        let mut raw = gemma();
        bend(&mut raw);
        let error = ModelConfig::check(raw).expect_err(field);
        assert_eq!((error.code(), error.class()), (code, ErrorClass::Refused), "{error}");
        assert!(error.to_string().contains(field), "{error}");
        ModelConfig::check(gemma()).expect("the twin is accepted");
    }
    let error = ModelConfig::check(RawModelConfig { n_kv_heads: 3, ..gemma() }).unwrap_err();
    let expected = ConfigError::NotDivisible {
        field: "n_heads",
        value: 4,
        divisor_field: "n_kv_heads",
        divisor: 3,
    };
    assert_eq!(error, expected);
}

#[test]
fn the_last_layer_of_each_pattern_is_global() {
    let config = ModelConfig::check(gemma()).unwrap();
    let global: Vec<u32> =
        (0..config.n_layers).filter(|&layer| !config.is_sliding(layer)).collect();
    assert_eq!(global, [5, 11, 17]);
    for raw in [
        RawModelConfig { sliding_window: None, ..gemma() },
        RawModelConfig { sliding_window_pattern: None, ..gemma() },
    ] {
        let config = ModelConfig::check(raw).unwrap();
        assert!((0..config.n_layers).all(|layer| !config.is_sliding(layer)));
    }
}

#[test]
fn the_canonical_form_is_sorted_and_leaves_out_what_does_not_apply() {
    let pairs = ModelConfig::check(gemma()).unwrap().canonical();
    assert!(pairs.is_sorted() && pairs.windows(2).all(|pair| pair[0].0 != pair[1].0));
    assert!(
        pairs.contains(&("architecture.gemma3", 1)) && pairs.contains(&("sliding_window", 512))
    );
    let plain = RawModelConfig {
        architecture: Architecture::Llama,
        sliding_window: None,
        sliding_window_pattern: None,
        tied_embeddings: false,
        ..gemma()
    };
    let names: Vec<&str> =
        ModelConfig::check(plain).unwrap().canonical().iter().map(|pair| pair.0).collect();
    for absent in [
        "sliding_window",
        "sliding_window_pattern",
        "rope_theta_local",
        "rope_linear_factor",
        "tied_embeddings",
    ] {
        assert!(!names.contains(&absent), "{absent}");
    }
}

#[test]
fn names_of_architectures_round_trip() {
    for architecture in [Architecture::Llama, Architecture::Gemma3] {
        assert_eq!(Architecture::from_name(architecture.name()), Some(architecture));
    }
    assert_eq!(Architecture::from_name("LLAMA"), None);
}

#[test]
fn the_canonical_form_is_read_back_and_no_other() {
    for raw in
        [gemma(), RawModelConfig { rope_linear_factor: 8.0, tied_embeddings: false, ..gemma() }]
    {
        let config = ModelConfig::check(raw).unwrap();
        let good: Vec<(String, u64)> =
            config.canonical().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(ModelConfig::from_canonical(&good).unwrap(), config);
        for at in 0..good.len() {
            let mut moved = good.clone();
            moved.rotate_left(1 + at % (good.len() - 1));
            let mut twice = good.clone();
            twice.insert(at, good[at].clone());
            let mut renamed = good.clone();
            renamed[at].0.push('x');
            let mut huge = good.clone();
            huge[at].1 = u64::MAX;
            for bad in [moved, twice, renamed, huge] {
                let error = ModelConfig::from_canonical(&bad).unwrap_err();
                assert_eq!(error.class(), ErrorClass::Refused);
                assert!(error.code().starts_with("config-"), "{error}");
            }
        }
        let mut more = good.clone();
        more.push(("zzz".to_owned(), 1));
        assert_eq!(ModelConfig::from_canonical(&more).unwrap_err().code(), "config-canonical");
    }
}
