//! The documents of a HF folder, as `load/hf.rs` reads them.

use serde_json::{Value, json};
use slm_manifest::ModelConfig;
use slm_manifest::config::Architecture;

use crate::bake::{BakeError, tokenizer};
use crate::error::RuntimeError;
use crate::load::Base;

/// The files of a HF folder beside its weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HfDocuments {
    /// `config.json`.
    pub config: Vec<u8>,
    /// `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Vec<u8>,
    /// `generation_config.json`.
    pub generation_config: Vec<u8>,
    /// `chat_template.jinja`, if the model has one.
    pub chat_template: Option<String>,
}

/// Refuses a model that a folder cannot express, or that slm would not read from one.
pub(super) fn check(config: &ModelConfig) -> Result<(), RuntimeError> {
    let refuse = |what, found: String| Err(BakeError::Format { what, found }.into());
    if config.architecture != Architecture::Llama {
        return refuse("architecture", config.architecture.name().to_owned());
    }
    if config.rope_linear_factor != 1.0 {
        return refuse("linear RoPE factor", config.rope_linear_factor.to_string());
    }
    Ok(())
}

pub(super) fn documents(base: &Base, config: &ModelConfig) -> Result<HfDocuments, RuntimeError> {
    check(config)?;
    let tokenizer::Documents { tokenizer, tokenizer_config, generation_config } =
        tokenizer::documents(base.tokenizer_spec())?;
    Ok(HfDocuments {
        config: pretty(&config_json(base.name(), config)),
        tokenizer,
        tokenizer_config,
        generation_config,
        chat_template: base.chat_template_source().map(str::to_owned),
    })
}

fn config_json(name: &str, config: &ModelConfig) -> Value {
    json!({
        "_name_or_path": name,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_ff,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": shortest(config.rms_norm_eps),
        "rope_theta": shortest(config.rope_theta),
        "tie_word_embeddings": config.tied_embeddings,
    })
}

/// The decimal that a person wrote for an f32, where reading it gives the same f32.
fn shortest(value: f32) -> f64 {
    let read = value.to_string().parse::<f64>().ok();
    read.filter(|read| *read as f32 == value).unwrap_or(f64::from(value))
}

pub(super) fn pretty(value: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("BUG: a value is not JSON");
    text.push(b'\n');
    text
}

/// A llama-type folder's name for a tensor.
pub(super) fn name(canonical: &str) -> Option<String> {
    match canonical {
        "token_embd.weight" => return Some("model.embed_tokens.weight".to_owned()),
        "output_norm.weight" => return Some("model.norm.weight".to_owned()),
        "output.weight" => return Some("lm_head.weight".to_owned()),
        _ => {}
    }
    let (layer, part) = canonical.strip_prefix("blk.")?.strip_suffix(".weight")?.split_once('.')?;
    let part = match part {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    };
    Some(format!("model.layers.{layer}.{part}.weight"))
}
