//! Bases in TinyRustLM's container.
//!
//! The graph is llama's: RMS norm before attention and before the feed-forward part, RoPE over neighbours, SwiGLU with `w1` as the gate
//! (mirust.com, forward pass and rotary embedding). Its quantized types have f32 scales, per row or per block, which no encoding of ours holds. So weights are decoded
//! when the file is read: `f32(q) * scale`, one multiplication in f32, which is what the format says a weight is, and loses nothing. They then take 4 bytes each.

use std::collections::HashMap;

use slm_format::slm1::{Slm1, Slm1Dtype, Slm1Tensor, name_hash};
use slm_format::{Encoding, Limits};
use slm_manifest::ModelConfig;
use slm_manifest::config::{Architecture, RawModelConfig};
use slm_overlay::{EMBEDDING, HEAD};
use slm_quant::Layout;

use crate::error::{ModelError, RuntimeError};
use crate::load::{SourceModel, SourceTensor, TensorBytes, TokenizerSource};
use crate::tokenizer::TokenizerSpec;

/// Names of a layer's tensors, and ours.
const LAYER: [(&str, &str); 9] = [
    ("attn_norm", "attn_norm"),
    ("ffn_norm", "ffn_norm"),
    ("wq", "attn_q"),
    ("wk", "attn_k"),
    ("wv", "attn_v"),
    ("wo", "attn_output"),
    ("w1", "ffn_gate"),
    ("w2", "ffn_down"),
    ("w3", "ffn_up"),
];

/// Reads an SLM1 model.
pub(crate) fn read(file: &[u8], limits: &Limits) -> Result<SourceModel, RuntimeError> {
    let slm1 = Slm1::parse(file, limits)?;
    let h = slm1.header();
    let config = ModelConfig::check(RawModelConfig {
        architecture: Architecture::Llama,
        n_layers: h.layer_count,
        n_embd: h.hidden_size,
        n_ff: h.ffn_size,
        n_heads: h.head_count,
        n_kv_heads: h.kv_head_count,
        head_dim: h.head_dim,
        vocab_size: h.vocab_size,
        context_length: h.max_context,
        rms_norm_eps: h.rms_norm_epsilon,
        rope_theta: h.rope_theta,
        rope_linear_factor: 1.0,
        rope_theta_local: h.rope_theta,
        sliding_window: None,
        sliding_window_pattern: None,
        tied_embeddings: h.is_tied(),
    })?;
    let names = names(&config);
    let mut tensors = Vec::with_capacity(slm1.tensors().len());
    for tensor in slm1.tensors() {
        let name = names.get(&tensor.name_hash).ok_or_else(|| ModelError::TensorUnknown {
            name: format!("with the name hash {:#018x}", tensor.name_hash),
            architecture: "SLM1",
        })?;
        tensors.push(decode(tensor, name)?);
    }
    let embedding = tensors.iter().find(|tensor| tensor.name == EMBEDDING);
    let rows = embedding.and_then(|tensor| tensor.shape.get(1)).copied();
    let rows = rows.ok_or_else(|| ModelError::TensorMissing { name: EMBEDDING.to_owned() })?;
    let tokenizer = TokenizerSpec::from_slm1(slm1.tokenizer(), rows, limits)?;
    Ok(SourceModel {
        config,
        tokenizer: TokenizerSource::Read(tokenizer),
        // The format has none.
        name: "SLM1".to_owned(),
        chat_template: None,
        gguf_metadata: None,
        tensors,
    })
}

/// Our names by the hashes of the format's.
fn names(config: &ModelConfig) -> HashMap<u64, String> {
    let mut names = HashMap::new();
    let mut insert = |theirs: String, ours: String| {
        let other = names.insert(name_hash(&theirs), ours);
        assert_eq!(other, None, "BUG: two of the format's names have one hash");
    };
    insert("tok_embeddings.weight".to_owned(), EMBEDDING.to_owned());
    insert("norm.weight".to_owned(), "output_norm.weight".to_owned());
    if !config.tied_embeddings {
        insert("output.weight".to_owned(), HEAD.to_owned());
    }
    for n in 0..config.n_layers {
        for (theirs, ours) in LAYER {
            insert(format!("layers.{n}.{theirs}.weight"), format!("blk.{n}.{ours}.weight"));
        }
    }
    names
}

/// A tensor in f32.
fn decode(tensor: &Slm1Tensor<'_>, name: &str) -> Result<SourceTensor, ModelError> {
    let bytes: Vec<u8> = match tensor.dtype {
        Slm1Dtype::F32 => tensor.values.to_vec(),
        Slm1Dtype::Q8_0 => scaled(
            tensor.values.iter().map(|&q| q as i8),
            tensor.scales,
            tensor.block_size as usize,
        ),
        Slm1Dtype::Q4_0 => {
            let nibbles = tensor.values.iter().flat_map(|&pair| [pair & 15, pair >> 4]);
            // Two's complement: 8 to 15 stand for -8 to -1.
            let signed = nibbles.map(|nibble| ((nibble << 4) as i8) >> 4);
            scaled(signed, tensor.scales, tensor.block_size as usize)
        }
    };
    let word = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    if let Some(at) = bytes.chunks_exact(4).position(|value| !word(value).is_finite()) {
        let value = word(&bytes[at * 4..at * 4 + 4]);
        return Err(ModelError::TensorValue { name: name.to_owned(), at: at as u64, value });
    }
    Ok(SourceTensor {
        name: name.to_owned(),
        encoding: Encoding::F32,
        shape: tensor.shape().iter().rev().map(|&dim| u64::from(dim)).collect(),
        layout: Layout::RowMajor,
        bytes: TensorBytes::Owned(bytes.into()),
    })
}

/// Every code times the scale of its block.
fn scaled(codes: impl Iterator<Item = i8>, scales: &[u8], block: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, code) in codes.enumerate() {
        let scale = &scales[at / block * 4..];
        let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
        bytes.extend((f32::from(code) * scale).to_le_bytes());
    }
    bytes
}
