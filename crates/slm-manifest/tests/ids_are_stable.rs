//! Identities that must never change. Every digest here was computed apart from slm, by a script in Python that writes the postcard
//! encoding by hand (varints, length prefixes, raw 32-byte digests) and hashes it, after the domain tag's length and the tag, with hashlib.

use slm_format::{ContentHash, Digest, Encoding};
use slm_manifest::config::{Architecture, RawModelConfig};
use slm_manifest::{
    Activations, AdapterId, BaseId, CompositionParts, ExecutionProfile, KvType, ModelConfig,
    PlanId, TensorIdentity, TokenizerId,
};

fn digest(byte: u8) -> Digest {
    Digest::from_bytes([byte; 32])
}

fn raw_config() -> RawModelConfig {
    RawModelConfig {
        architecture: Architecture::Llama,
        n_layers: 30,
        n_embd: 576,
        n_ff: 1536,
        n_heads: 9,
        n_kv_heads: 3,
        head_dim: 64,
        vocab_size: 49152,
        context_length: 2048,
        rms_norm_eps: 1e-5,
        rope_theta: 10000.0,
        rope_linear_factor: 1.0,
        rope_theta_local: 10000.0,
        sliding_window: None,
        sliding_window_pattern: None,
        tied_embeddings: true,
    }
}

fn tensors() -> Vec<TensorIdentity> {
    [
        ("token_embd.weight", Encoding::Q8_0, vec![576, 49152], 0xbb),
        ("output_norm.weight", Encoding::F32, vec![576], 0xaa),
    ]
    .map(|(name, encoding, shape, byte)| TensorIdentity {
        name: name.to_owned(),
        encoding,
        shape,
        content: ContentHash::from_bytes([byte; 32]),
    })
    .to_vec()
}

fn parts() -> CompositionParts {
    CompositionParts {
        base: BaseId::from_digest(digest(0x11)),
        tokenizer: TokenizerId::from_digest(digest(0x22)),
        stack: Vec::new(),
        plan: None,
    }
}

#[test]
fn base() {
    let config = ModelConfig::check(raw_config()).unwrap();
    let id = BaseId::compute(&config, &tensors());
    assert_eq!(
        id.to_string(),
        "sha256:1412bb2929dfd7fde7e6ecf30bfc3c541a0740504980fa61b39b6d938af958eb"
    );
    let mut reversed = tensors();
    reversed.reverse();
    assert_eq!(
        BaseId::compute(&config, &reversed),
        id,
        "the order of tensors is no part of a base"
    );
}

#[test]
fn a_base_covers_every_field_of_its_configuration_and_its_tensors() {
    let id_of = |raw: RawModelConfig, tensors: &[TensorIdentity]| {
        BaseId::compute(&ModelConfig::check(raw).unwrap(), tensors)
    };
    let mut ids = vec![id_of(raw_config(), &tensors())];
    let bends: [fn(&mut RawModelConfig); 16] = [
        |raw| raw.architecture = Architecture::Gemma3,
        |raw| raw.n_layers += 1,
        |raw| raw.n_embd += 1,
        |raw| raw.n_ff += 1,
        |raw| raw.n_heads = 12,
        |raw| raw.n_kv_heads = 9,
        |raw| raw.head_dim = 32,
        |raw| raw.vocab_size += 1,
        |raw| raw.context_length += 1,
        |raw| raw.rms_norm_eps = 1e-6,
        |raw| raw.rope_theta = 1e6,
        |raw| raw.rope_linear_factor = 8.0,
        |raw| raw.tied_embeddings = false,
        |raw| raw.sliding_window = Some(512),
        |raw| (raw.sliding_window, raw.rope_theta_local) = (Some(512), 1e4 + 1.0),
        |raw| (raw.sliding_window, raw.sliding_window_pattern) = (Some(512), Some(6)),
    ];
    for bend in bends {
        let mut raw = raw_config();
        bend(&mut raw);
        ids.push(id_of(raw, &tensors()));
    }
    let tensor_bends: [fn(&mut Vec<TensorIdentity>); 5] = [
        |tensors| tensors[0].name.push('x'),
        |tensors| tensors[0].encoding = Encoding::Q4_0,
        |tensors| tensors[0].shape.reverse(),
        |tensors| tensors[0].content = ContentHash::of(b""),
        |tensors| drop(tensors.pop()),
    ];
    for bend in tensor_bends {
        let mut tensors = tensors();
        bend(&mut tensors);
        ids.push(id_of(raw_config(), &tensors));
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "two different bases share an identity");
}

#[test]
fn composition() {
    let (one, two) = (
        (AdapterId::from_digest(digest(0x33)), 0.7f32),
        (AdapterId::from_digest(digest(0x55)), 0.5f32),
    );
    assert_eq!(
        parts().id().to_string(),
        "sha256:8cb5f42e33a2d94ea5e3ccb2b1fff712d6452fb346d648b7369c8ec27c0a86d2"
    );
    let stacked = CompositionParts { stack: vec![one, two], ..parts() };
    assert_eq!(
        stacked.id().to_string(),
        "sha256:ce4071255a9161636ce45ca9ba2bd6dd2ff48461074f906557defb1bfa4e707b"
    );
    let plan = Some(PlanId::from_digest(digest(0x66)));
    let planned = CompositionParts { stack: vec![two, one], plan, ..parts() };
    assert_eq!(
        planned.id().to_string(),
        "sha256:a6fea59156afcb6cd8d3be9208e38edda2cd64d19eb5254d9fb02660abc97356"
    );
    assert_ne!(parts().id_under(2), parts().id());
    let heavier = CompositionParts {
        stack: vec![one, (two.0, f32::from_bits(0.5f32.to_bits() + 1))],
        ..parts()
    };
    assert_ne!(heavier.id(), stacked.id(), "one bit of a weight is another composition");
}

#[test]
fn execution() {
    let composition = parts().id();
    for (profile, expected) in [
        (
            ExecutionProfile::DEFAULT,
            "sha256:ef30bfd76f872655f8df2e6b383d9828637bad702d6551c10054dd830907c338",
        ),
        (
            ExecutionProfile::ORACLE,
            "sha256:ab191766f58ddf5d4c0e77fc4321178db082502ff270ec478406fa587ba1b92d",
        ),
        (
            ExecutionProfile {
                activations: Activations::Int8,
                kv: KvType::F16,
                rope_theta_bits: Some(1e6f32.to_bits()),
                context_length: Some(4096),
            },
            "sha256:bbfa61fa79f636dc9a34a580bf5f060f4348970296662709e97646ec79f8f755",
        ),
    ] {
        assert_eq!(profile.execution_id(composition).to_string(), expected);
    }
}

#[test]
fn equal_bytes_of_different_kinds_have_different_identities() {
    let ids = [
        BaseId::of_canonical(b"x").digest(),
        AdapterId::of_canonical(b"x").digest(),
        TokenizerId::of_canonical(b"x").digest(),
    ];
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
}
