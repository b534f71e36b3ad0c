//! GGUF metadata to a model configuration. Every key of the architecture is applied, known to change nothing, or refused by name.

use std::borrow::Cow;

use slm_format::Limits;
use slm_format::gguf::{self, Gguf, Metadata, RawMetadata, Value};
use slm_manifest::ModelConfig;
use slm_manifest::config::{Architecture, ConfigError, RawModelConfig};
use slm_quant::Layout;

use crate::error::{ModelError, RuntimeError};
use crate::load::source::range_in;
use crate::load::{Base, SourceModel, SourceTensor, TokenizerSource};
use crate::tokenizer::TokenizerSpec;

/// Keys under `<architecture>.` that this reader applies or compares.
const APPLIED: [&str; 17] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "vocab_size",
];

/// Keys under `<architecture>.` that describe training or history and change no bit.
const DESCRIPTIVE: [&str; 2] = ["rope.scaling.original_context_length", "rope.scaling.finetuned"];

/// The base of sliding-window layers where the file does not give it (Gemma 3).
const GEMMA3_LOCAL_THETA: f32 = 10_000.0;
/// Gemma 3 27B, which scales its queries by another number than its head width and says so in no key.
const GEMMA3_27B_LAYERS: u32 = 62;
/// Every sixth layer of Gemma 3 is global where the file does not say otherwise.
const GEMMA3_PATTERN: u32 = 6;

/// Reads a GGUF model.
pub(crate) fn read(file: &[u8], limits: &Limits) -> Result<SourceModel, RuntimeError> {
    let gguf = Gguf::parse(file, limits)?;
    let metadata = gguf.metadata();
    if let Some(kind) = metadata.str("general.type")?
        && kind != "model"
    {
        return Err(ModelError::NotAModel { found: kind.to_owned() }.into());
    }
    let name = metadata.require_str("general.architecture")?;
    let architecture = Architecture::from_name(name)
        .ok_or_else(|| ModelError::Architecture { found: name.chars().take(64).collect() })?;
    let tied_embeddings = !gguf.tensors().iter().any(|tensor| tensor.name == "output.weight");
    let config = config(metadata, architecture, tied_embeddings)?;
    let tokenizer = TokenizerSpec::from_gguf(metadata, limits)?;
    let tensors = gguf
        .tensors()
        .iter()
        .map(|tensor| SourceTensor {
            name: tensor.name.to_owned(),
            encoding: tensor.encoding,
            shape: tensor.shape.clone(),
            layout: Layout::RowMajor,
            bytes: range_in(file, tensor.data),
        })
        .collect();
    Ok(SourceModel {
        config,
        tokenizer: TokenizerSource::Read(tokenizer),
        name: metadata.str("general.name")?.unwrap_or_default().to_owned(),
        chat_template: metadata.str("tokenizer.chat_template")?.map(str::to_owned),
        gguf_metadata: Some(gguf.raw_metadata().to_bytes()),
        tensors,
    })
}

/// Writes a base with the metadata it came with.
pub(crate) fn write(base: &Base, out: &mut dyn std::io::Write) -> Result<(), RuntimeError> {
    let metadata = base.gguf_metadata().ok_or(ModelError::NotFromGguf)?;
    let (metadata, _) = RawMetadata::from_bytes(metadata, &Limits::STANDARD)?;
    let bytes: Vec<Cow<'_, [u8]>> =
        (0..base.tensors().len()).map(|at| base.tensor_bytes(at)).collect();
    let tensors: Vec<gguf::TensorSource<'_>> = base
        .tensors()
        .iter()
        .zip(&bytes)
        .map(|(tensor, data)| gguf::TensorSource {
            name: tensor.name(),
            shape: tensor.shape(),
            encoding: tensor.encoding(),
            data,
        })
        .collect();
    gguf::write_raw(out, &metadata, &tensors)?;
    Ok(())
}

fn config(
    metadata: &Metadata<'_>,
    architecture: Architecture,
    tied_embeddings: bool,
) -> Result<ModelConfig, RuntimeError> {
    refuse_unknown_keys(metadata, architecture)?;
    let key = |part: &str| format!("{}.{part}", architecture.name());
    let number = |part: &str| metadata.require_u32(&key(part));
    let n_embd = number("embedding_length")?;
    let n_heads = number("attention.head_count")?;
    let head_dim = match metadata.u32(&key("attention.key_length"))? {
        Some(key_length) => key_length,
        None if n_heads == 0 || !n_embd.is_multiple_of(n_heads) => {
            return Err(ConfigError::NotDivisible {
                field: "embedding_length",
                value: n_embd,
                divisor_field: "head_count",
                divisor: n_heads,
            }
            .into());
        }
        None => n_embd / n_heads,
    };
    if architecture == Architecture::Gemma3 && number("block_count")? == GEMMA3_27B_LAYERS {
        return Err(unsupported(&key("block_count"), GEMMA3_27B_LAYERS));
    }
    let rope_theta = metadata.f32(&key("rope.freq_base"))?.unwrap_or(10_000.0);
    let (sliding_window, pattern, local) = match architecture {
        Architecture::Gemma3 => (
            Some(number("attention.sliding_window")?),
            Some(metadata.u32(&key("attention.sliding_window_pattern"))?.unwrap_or(GEMMA3_PATTERN)),
            metadata.f32(&key("rope.freq_base_swa"))?.unwrap_or(GEMMA3_LOCAL_THETA),
        ),
        _ => {
            for part in ["attention.sliding_window", "attention.sliding_window_pattern"] {
                match metadata.u32(&key(part))? {
                    Some(found) if found != 0 => return Err(unsupported(&key(part), found)),
                    _ => {}
                }
            }
            (None, None, rope_theta)
        }
    };
    let vocabulary = metadata.str_array("tokenizer.ggml.tokens")?.map_or(0, <[&str]>::len) as u32;
    let config = ModelConfig::check(RawModelConfig {
        architecture,
        n_layers: number("block_count")?,
        n_embd,
        n_ff: number("feed_forward_length")?,
        n_heads,
        n_kv_heads: metadata.u32(&key("attention.head_count_kv"))?.unwrap_or(n_heads),
        head_dim,
        vocab_size: metadata.u32(&key("vocab_size"))?.unwrap_or(vocabulary),
        context_length: number("context_length")?,
        rms_norm_eps: metadata.require_f32(&key("attention.layer_norm_rms_epsilon"))?,
        rope_theta,
        rope_linear_factor: linear_factor(
            metadata,
            &key("rope.scaling.type"),
            &key("rope.scaling.factor"),
        )?,
        rope_theta_local: local,
        sliding_window,
        sliding_window_pattern: pattern,
        tied_embeddings,
    })?;
    // Keys that may be left out, but must say what the graph does where they are there.
    for part in ["attention.value_length", "rope.dimension_count"] {
        match metadata.u32(&key(part))? {
            Some(found) if found != config.head_dim => return Err(unsupported(&key(part), found)),
            _ => {}
        }
    }
    Ok(config)
}

fn linear_factor(
    metadata: &Metadata<'_>,
    type_key: &str,
    factor_key: &str,
) -> Result<f32, RuntimeError> {
    let kind = metadata.str(type_key)?.unwrap_or("none");
    let factor = metadata.f32(factor_key)?;
    match (kind, factor) {
        ("none", None | Some(1.0)) => Ok(1.0),
        ("linear", Some(factor)) => Ok(factor),
        ("none", Some(factor)) => Err(unsupported(factor_key, factor)),
        _ => Err(unsupported(type_key, kind)),
    }
}

fn refuse_unknown_keys(
    metadata: &Metadata<'_>,
    architecture: Architecture,
) -> Result<(), RuntimeError> {
    let prefix = format!("{}.", architecture.name());
    for (key, value) in metadata.iter() {
        let Some(part) = key.strip_prefix(prefix.as_str()) else { continue };
        if APPLIED.contains(&part) || DESCRIPTIVE.contains(&part) || changes_nothing(value) {
            continue;
        }
        return Err(unsupported(key, format!("{value:?}")));
    }
    Ok(())
}

/// Zero, false, an empty text or list: how writers say that a feature is off.
fn changes_nothing(value: &Value<'_>) -> bool {
    match value {
        Value::Bool(value) => !value,
        Value::F32(value) => *value == 0.0,
        Value::F64(value) => *value == 0.0,
        Value::Str(value) => value.is_empty(),
        Value::Array(value) => value.is_empty(),
        other => other.as_integer() == Some(0),
    }
}

fn unsupported(key: &str, value: impl ToString) -> RuntimeError {
    ModelError::ConfigKey {
        key: key.to_owned(),
        value: value.to_string().chars().take(80).collect(),
    }
    .into()
}
