//! A HF folder (config.json, *.safetensors, tokenizer.json) to the normal form.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value};
use slm_format::safetensors::SafeTensors;
use slm_format::{Encoding, Limits};
use slm_manifest::ModelConfig;
use slm_manifest::config::{Architecture, RawModelConfig};
use slm_quant::Layout;

use crate::error::{ModelError, RuntimeError};
use crate::load::{SourceModel, SourceTensor, TensorBytes, TokenizerSource};
use crate::tokenizer::TokenizerSpec;

/// The files of a HF folder, as bytes.
#[derive(Debug, Clone)]
pub struct HfFiles<'a> {
    /// `config.json`.
    pub config: &'a [u8],
    /// `tokenizer.json`.
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`, if there.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `generation_config.json`, if there.
    pub generation_config: Option<&'a [u8]>,
    /// `chat_template.jinja`, if there; goes before the one in `tokenizer_config.json`.
    pub chat_template: Option<&'a str>,
    /// Every `*.safetensors`, sorted by name.
    pub weights: Vec<&'a [u8]>,
}

/// Keys of `config.json` that change nothing here: bookkeeping, training, or token ids that the tokenizer files give.
const DESCRIPTIVE: [&str; 17] = [
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "is_llama_config",
    "model_type",
    "pad_token_id",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "use_cache",
];

/// Reads a folder's files.
pub(crate) fn read(files: &HfFiles<'_>, limits: &Limits) -> Result<SourceModel, RuntimeError> {
    let document: Map<String, Value> = serde_json::from_slice(files.config)
        .map_err(|error| ModelError::ConfigJson { reason: error.to_string() })?;
    let config = config(&document)?;
    let tokenizer = TokenizerSpec::from_hf(
        files.tokenizer,
        files.tokenizer_config,
        files.generation_config,
        limits,
    )?;
    let mut tensors: Vec<SourceTensor> = Vec::new();
    let mut seen = HashSet::new();
    for &file in &files.weights {
        let parsed = SafeTensors::parse(file, limits)?;
        for tensor in parsed.tensors() {
            let name = canonical_name(&tensor.name).ok_or_else(|| ModelError::TensorUnknown {
                name: tensor.name.to_string(),
                architecture: "llama",
            })?;
            if !seen.insert(name.clone()) {
                return Err(ModelError::TensorUnknown {
                    name: tensor.name.to_string(),
                    architecture: "llama",
                }
                .into());
            }
            let encoding = tensor.dtype.encoding().ok_or_else(|| ModelError::TensorDtype {
                name: tensor.name.to_string(),
                found: tensor.dtype.name().to_owned(),
            })?;
            let shape: Vec<u64> = tensor.shape.iter().rev().copied().collect();
            let bytes = normal_rows(&name, &config, encoding, &shape, tensor.data);
            tensors.push(SourceTensor {
                name,
                encoding,
                shape,
                layout: Layout::RowMajor,
                bytes: TensorBytes::Owned(bytes),
            });
        }
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(SourceModel {
        config,
        tokenizer: TokenizerSource::Read(tokenizer),
        // The folder's own name is a path: it must not reach the stored file.
        name: document.get("_name_or_path").and_then(Value::as_str).unwrap_or_default().to_owned(),
        chat_template: chat_template(files)?,
        gguf_metadata: None,
        tensors,
    })
}

fn chat_template(files: &HfFiles<'_>) -> Result<Option<String>, RuntimeError> {
    if let Some(template) = files.chat_template {
        return Ok(Some(template.to_owned()));
    }
    let Some(bytes) = files.tokenizer_config else { return Ok(None) };
    let document: Map<String, Value> = serde_json::from_slice(bytes)
        .map_err(|error| ModelError::ConfigJson { reason: error.to_string() })?;
    match document.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(template)) => Ok(Some(template.clone())),
        Some(value) => Err(unsupported("chat_template", value)),
    }
}

fn config(document: &Map<String, Value>) -> Result<ModelConfig, RuntimeError> {
    let model_type = document.get("model_type").and_then(Value::as_str).unwrap_or_default();
    if model_type != "llama" {
        return Err(
            ModelError::Architecture { found: model_type.chars().take(64).collect() }.into()
        );
    }
    let mut applied: HashSet<&str> = HashSet::new();
    let mut number = |key: &'static str| -> Result<Option<u32>, RuntimeError> {
        applied.insert(key);
        match document.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value
                .as_u64()
                .and_then(|found| u32::try_from(found).ok())
                .map(Some)
                .ok_or_else(|| unsupported(key, value)),
        }
    };
    let n_embd = require("hidden_size", number("hidden_size")?)?;
    let n_heads = require("num_attention_heads", number("num_attention_heads")?)?;
    let n_layers = require("num_hidden_layers", number("num_hidden_layers")?)?;
    let n_ff = require("intermediate_size", number("intermediate_size")?)?;
    let vocab_size = require("vocab_size", number("vocab_size")?)?;
    let context_length = require("max_position_embeddings", number("max_position_embeddings")?)?;
    let n_kv_heads = number("num_key_value_heads")?.unwrap_or(n_heads);
    let head_dim = match number("head_dim")? {
        Some(head_dim) => head_dim,
        None if n_heads == 0 || !n_embd.is_multiple_of(n_heads) => {
            return Err(slm_manifest::config::ConfigError::NotDivisible {
                field: "hidden_size",
                value: n_embd,
                divisor_field: "num_attention_heads",
                divisor: n_heads,
            }
            .into());
        }
        None => n_embd / n_heads,
    };
    let rms_norm_eps =
        require("rms_norm_eps", float("rms_norm_eps", document.get("rms_norm_eps"))?)?;
    let tied_embeddings = match document.get("tie_word_embeddings") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(tied)) => *tied,
        Some(value) => return Err(unsupported("tie_word_embeddings", value)),
    };
    applied.extend(["rms_norm_eps", "tie_word_embeddings"]);
    let rope_theta = rope_theta(document)?;
    for (key, expected) in [("hidden_act", Value::from("silu")), ("pretraining_tp", Value::from(1))]
    {
        applied.insert(key);
        match document.get(key) {
            None | Some(Value::Null) => {}
            Some(value) if *value == expected => {}
            Some(value) => return Err(unsupported(key, value)),
        }
    }
    for (key, value) in document {
        if !applied.contains(key.as_str())
            && !DESCRIPTIVE.contains(&key.as_str())
            && !is_empty(value)
        {
            return Err(unsupported(key, value));
        }
    }
    Ok(ModelConfig::check(RawModelConfig {
        architecture: Architecture::Llama,
        n_layers,
        n_embd,
        n_ff,
        n_heads,
        n_kv_heads,
        head_dim,
        vocab_size,
        context_length,
        rms_norm_eps,
        rope_theta,
        rope_linear_factor: 1.0,
        rope_theta_local: rope_theta,
        sliding_window: None,
        sliding_window_pattern: None,
        tied_embeddings,
    })?)
}

/// `rope_theta` stands at the top (older files) or in `rope_parameters`; any scaling but the default is refused by name.
fn rope_theta(document: &Map<String, Value>) -> Result<f32, RuntimeError> {
    let mut theta = float("rope_theta", document.get("rope_theta"))?;
    for block in ["rope_parameters", "rope_scaling"] {
        let Some(value) = document.get(block) else { continue };
        if is_empty(value) {
            continue;
        }
        let entries = value.as_object().ok_or_else(|| unsupported(block, value))?;
        for (key, value) in entries {
            match key.as_str() {
                "rope_theta" => theta = float("rope_theta", Some(value))?,
                "rope_type" | "type" if value == "default" => {}
                _ if is_empty(value) => {}
                _ => return Err(unsupported(&format!("{block}.{key}"), value)),
            }
        }
    }
    Ok(theta.unwrap_or(10_000.0))
}

/// A number, or none where the key is missing or null; anything else is refused by name.
fn float(key: &str, value: Option<&Value>) -> Result<Option<f32>, RuntimeError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(found) => Ok(Some(found as f32)),
            None => Err(unsupported(key, value)),
        },
    }
}

/// GGUF's name for a tensor of a llama-type HF file.
fn canonical_name(name: &str) -> Option<String> {
    match name {
        "model.embed_tokens.weight" => return Some("token_embd.weight".to_owned()),
        "model.norm.weight" => return Some("output_norm.weight".to_owned()),
        "lm_head.weight" => return Some("output.weight".to_owned()),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let part = match part {
        "input_layernorm.weight" => "attn_norm",
        "self_attn.q_proj.weight" => "attn_q",
        "self_attn.k_proj.weight" => "attn_k",
        "self_attn.v_proj.weight" => "attn_v",
        "self_attn.o_proj.weight" => "attn_output",
        "post_attention_layernorm.weight" => "ffn_norm",
        "mlp.gate_proj.weight" => "ffn_gate",
        "mlp.up_proj.weight" => "ffn_up",
        "mlp.down_proj.weight" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{part}.weight"))
}

/// Brings q and k rows into GGUF's order: HF's row `h*d + i*(d/2) + j` becomes row `h*d + 2*j + i`. Other tensors are copied.
fn normal_rows(
    name: &str,
    config: &ModelConfig,
    encoding: Encoding,
    shape: &[u64],
    data: &[u8],
) -> Arc<[u8]> {
    let is_q_or_k = name.ends_with(".attn_q.weight") || name.ends_with(".attn_k.weight");
    let head_dim = config.head_dim as usize;
    let rows = shape.get(1).copied().unwrap_or(0) as usize;
    let row_bytes = shape.first().and_then(|&cols| encoding.row_bytes(cols as usize)).unwrap_or(0);
    if !is_q_or_k || !rows.is_multiple_of(head_dim) || rows * row_bytes != data.len() {
        return data.into();
    }
    let half = head_dim / 2;
    let mut normal = Vec::with_capacity(data.len());
    for row in 0..rows {
        let (head, within) = (row / head_dim, row % head_dim);
        let source = head * head_dim + (within % 2) * half + within / 2;
        normal.extend_from_slice(&data[source * row_bytes..(source + 1) * row_bytes]);
    }
    normal.into()
}

fn require<T>(key: &str, value: Option<T>) -> Result<T, RuntimeError> {
    value.ok_or_else(|| ModelError::ConfigMissing { key: key.to_owned() }.into())
}

fn unsupported(key: &str, value: &Value) -> RuntimeError {
    ModelError::ConfigKey {
        key: key.to_owned(),
        value: value.to_string().chars().take(80).collect(),
    }
    .into()
}

/// Null, false, an empty string, list or object.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(_) => false,
        Value::String(value) => value.is_empty(),
        Value::Array(value) => value.is_empty(),
        Value::Object(value) => value.is_empty(),
    }
}
