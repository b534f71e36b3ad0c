//! Which tensors a graph has, with their shapes, and typed handles to them.

use slm_manifest::ModelConfig;
use slm_manifest::config::Architecture;

use crate::error::{ModelError, RuntimeError};
use crate::load::SourceTensor;

/// A matrix of the base, by its place in the tensor list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixRef(pub(crate) usize);

/// One transformer block. Norms are decoded to f32; matrices stay where they are.
#[derive(Debug, Clone)]
pub struct Layer {
    /// RMS norm before attention, `[n_embd]`.
    pub attn_norm: Vec<f32>,
    /// Query projection, `[n_heads * head_dim, n_embd]`.
    pub attn_q: MatrixRef,
    /// Key projection, `[n_kv_heads * head_dim, n_embd]`.
    pub attn_k: MatrixRef,
    /// Value projection, `[n_kv_heads * head_dim, n_embd]`.
    pub attn_v: MatrixRef,
    /// RMS norm of each query head, `[head_dim]`.
    pub attn_q_norm: Option<Vec<f32>>,
    /// RMS norm of each key head, `[head_dim]`.
    pub attn_k_norm: Option<Vec<f32>>,
    /// Output projection, `[n_embd, n_heads * head_dim]`.
    pub attn_output: MatrixRef,
    /// RMS norm after attention, `[n_embd]`.
    pub post_attention_norm: Option<Vec<f32>>,
    /// RMS norm before the feed-forward part, `[n_embd]`.
    pub ffn_norm: Vec<f32>,
    /// Gate projection, `[n_ff, n_embd]`.
    pub ffn_gate: MatrixRef,
    /// Up projection, `[n_ff, n_embd]`.
    pub ffn_up: MatrixRef,
    /// Down projection, `[n_embd, n_ff]`.
    pub ffn_down: MatrixRef,
    /// RMS norm after the feed-forward part, `[n_embd]`.
    pub post_ffw_norm: Option<Vec<f32>>,
}

/// The whole graph.
#[derive(Debug, Clone)]
pub struct Graph {
    /// Embedding table, `[vocab_size, n_embd]`.
    pub token_embd: MatrixRef,
    /// Blocks in order.
    pub layers: Vec<Layer>,
    /// Last RMS norm, `[n_embd]`.
    pub output_norm: Vec<f32>,
    /// Head, `[vocab_size, n_embd]`; the embedding table where tied.
    pub output: MatrixRef,
}

/// Finds tensors by name, checks their shapes, and remembers which were used.
struct Finder<'a> {
    tensors: &'a [SourceTensor],
    by_name: std::collections::HashMap<&'a str, usize>,
    used: Vec<bool>,
    decode: &'a dyn Fn(usize) -> Result<Vec<f32>, RuntimeError>,
}

impl Finder<'_> {
    fn find(&mut self, name: &str, shape: &[u64]) -> Result<usize, ModelError> {
        let &at = self
            .by_name
            .get(name)
            .ok_or_else(|| ModelError::TensorMissing { name: name.to_owned() })?;
        let tensor = &self.tensors[at];
        // GGUF may write a matrix with trailing dimensions of one.
        let found = trim(&tensor.shape);
        if found != trim(shape) {
            return Err(ModelError::TensorShape {
                name: name.to_owned(),
                found: tensor.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        self.used[at] = true;
        Ok(at)
    }

    fn matrix(&mut self, name: &str, rows: u32, cols: u32) -> Result<MatrixRef, ModelError> {
        self.find(name, &[u64::from(cols), u64::from(rows)]).map(MatrixRef)
    }

    fn norm(&mut self, name: &str, len: u32) -> Result<Vec<f32>, RuntimeError> {
        let at = self.find(name, &[u64::from(len)])?;
        (self.decode)(at)
    }
}

impl Graph {
    /// Joins the tensors to the graph of `config`.
    ///
    /// `decode` turns a plain-float tensor into f32.
    ///
    /// # Errors
    /// A tensor that is missing, has another shape, or would be ignored; what `decode` refuses.
    pub(crate) fn join(
        config: &ModelConfig,
        tensors: &[SourceTensor],
        decode: &dyn Fn(usize) -> Result<Vec<f32>, RuntimeError>,
    ) -> Result<Graph, RuntimeError> {
        let by_name =
            tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.as_str(), at)).collect();
        let mut finder = Finder { tensors, by_name, used: vec![false; tensors.len()], decode };
        let c = config;
        let q_width = width(c.n_heads, c.head_dim)?;
        let kv_width = width(c.n_kv_heads, c.head_dim)?;
        let gemma = c.architecture == Architecture::Gemma3;
        let token_embd = finder.matrix("token_embd.weight", c.vocab_size, c.n_embd)?;
        let mut layers = Vec::new();
        for n in 0..c.n_layers {
            let name = |part: &str| format!("blk.{n}.{part}.weight");
            let norm_if = |finder: &mut Finder<'_>, part: &str, len: u32| {
                if gemma { finder.norm(&name(part), len).map(Some) } else { Ok(None) }
            };
            layers.push(Layer {
                attn_norm: finder.norm(&name("attn_norm"), c.n_embd)?,
                attn_q: finder.matrix(&name("attn_q"), q_width, c.n_embd)?,
                attn_k: finder.matrix(&name("attn_k"), kv_width, c.n_embd)?,
                attn_v: finder.matrix(&name("attn_v"), kv_width, c.n_embd)?,
                attn_q_norm: norm_if(&mut finder, "attn_q_norm", c.head_dim)?,
                attn_k_norm: norm_if(&mut finder, "attn_k_norm", c.head_dim)?,
                attn_output: finder.matrix(&name("attn_output"), c.n_embd, q_width)?,
                post_attention_norm: norm_if(&mut finder, "post_attention_norm", c.n_embd)?,
                ffn_norm: finder.norm(&name("ffn_norm"), c.n_embd)?,
                ffn_gate: finder.matrix(&name("ffn_gate"), c.n_ff, c.n_embd)?,
                ffn_up: finder.matrix(&name("ffn_up"), c.n_ff, c.n_embd)?,
                ffn_down: finder.matrix(&name("ffn_down"), c.n_embd, c.n_ff)?,
                post_ffw_norm: norm_if(&mut finder, "post_ffw_norm", c.n_embd)?,
            });
        }
        let output_norm = finder.norm("output_norm.weight", c.n_embd)?;
        let output = if c.tied_embeddings {
            token_embd
        } else {
            finder.matrix("output.weight", c.vocab_size, c.n_embd)?
        };
        if let Some(at) = finder.used.iter().position(|used| !used) {
            let name = tensors[at].name.clone();
            return Err(
                ModelError::TensorUnknown { name, architecture: c.architecture.name() }.into()
            );
        }
        Ok(Graph { token_embd, layers, output_norm, output })
    }
}

fn width(heads: u32, head_dim: u32) -> Result<u32, ModelError> {
    heads.checked_mul(head_dim).ok_or_else(|| ModelError::ConfigKey {
        key: "head_count".to_owned(),
        value: format!("{heads} heads of {head_dim}"),
    })
}

fn trim(shape: &[u64]) -> &[u64] {
    let len = shape.iter().rposition(|&dim| dim != 1).map_or(1, |at| at + 1);
    &shape[..len.min(shape.len())]
}
