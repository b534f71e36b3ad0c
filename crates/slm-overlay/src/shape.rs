//! What an adapter needs to know of a base: names, shapes and the order of q and k rows.

use std::collections::BTreeMap;

use slm_format::Encoding;
use slm_manifest::config::Architecture;

/// Canonical name of the embedding table: what adapters on the input side touch.
pub const EMBEDDING: &str = "token_embd.weight";
/// Canonical name of the head: what adapters on the output side touch, also where the base has no such tensor because it is tied.
pub const HEAD: &str = "output.weight";

/// The dequantized rows of a base, for what depends on them: the norms of DoRA, copies of base weights.
pub trait BaseWeights {
    /// Writes row `row` of a tensor (canonical name) to `out`, which has as many elements as the tensor has columns.
    ///
    /// # Panics
    /// When the base has no such tensor or row.
    fn row(&self, tensor: &str, row: usize, out: &mut [f32]);

    /// How a tensor is stored.
    fn encoding(&self, tensor: &str) -> Option<Encoding>;
}

/// Names and shapes of a base, and where to read its weights if they are needed.
#[derive(Clone)]
pub struct BaseShape<'a> {
    /// Model family.
    pub architecture: Architecture,
    /// Query heads.
    pub n_heads: u32,
    /// Key and value heads.
    pub n_kv_heads: u32,
    /// Width of one head.
    pub head_dim: u32,
    /// Transformer blocks.
    pub n_layers: u32,
    /// The head is the embedding table.
    pub tied_embeddings: bool,
    /// Canonical (GGUF) name of every tensor, for example `blk.0.attn_q.weight`, with its rows (outputs) and columns (inputs).
    pub tensors: BTreeMap<String, (u64, u64)>,
    /// The weights; without them, adapters that depend on them are refused.
    pub weights: Option<&'a dyn BaseWeights>,
}

impl std::fmt::Debug for BaseShape<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BaseShape")
            .field("architecture", &self.architecture)
            .field("n_layers", &self.n_layers)
            .field("tensors", &self.tensors.len())
            .field("weights", &self.weights.is_some())
            .finish_non_exhaustive()
    }
}

/// A linear module of a transformer block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Linear {
    /// Its path within the layer, as the checkpoint's framework names it.
    pub(crate) path: &'static str,
    /// The middle of its canonical name.
    pub(crate) canonical: &'static str,
    rows: Rows,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    Plain,
    QueryHeads,
    KeyHeads,
}

/// The linear modules of a block, in the order of the forward pass.
pub(crate) const LINEARS: [Linear; 7] = [
    Linear { path: "self_attn.q_proj", canonical: "attn_q", rows: Rows::QueryHeads },
    Linear { path: "self_attn.k_proj", canonical: "attn_k", rows: Rows::KeyHeads },
    Linear { path: "self_attn.v_proj", canonical: "attn_v", rows: Rows::Plain },
    Linear { path: "self_attn.o_proj", canonical: "attn_output", rows: Rows::Plain },
    Linear { path: "mlp.gate_proj", canonical: "ffn_gate", rows: Rows::Plain },
    Linear { path: "mlp.up_proj", canonical: "ffn_up", rows: Rows::Plain },
    Linear { path: "mlp.down_proj", canonical: "ffn_down", rows: Rows::Plain },
];

impl BaseShape<'_> {
    /// Rows and columns of a tensor.
    pub fn tensor(&self, name: &str) -> Option<(u64, u64)> {
        self.tensors.get(name).copied()
    }

    /// Rows and columns of a linear module of a block: what an adapter may touch. `None` for every other tensor.
    pub(crate) fn linear(&self, name: &str) -> Option<(u64, u64)> {
        let middle = name.strip_prefix("blk.")?.strip_suffix(".weight")?;
        let (layer, canonical) = middle.split_once('.')?;
        let in_graph =
            layer.parse::<u32>().is_ok_and(|n| n < self.n_layers && n.to_string() == layer);
        let known = LINEARS.iter().any(|linear| linear.canonical == canonical);
        if in_graph && known { self.tensor(name) } else { None }
    }

    /// The framework's row that stands at row `row` of a tensor: another one in q and k of an architecture with interleaved RoPE.
    pub(crate) fn row_source(&self, tensor: &str, row: usize) -> usize {
        let middle = tensor.strip_suffix(".weight").and_then(|name| name.rsplit('.').next());
        match LINEARS.iter().find(|linear| Some(linear.canonical) == middle) {
            Some(linear) => self.framework_row(linear, row),
            None => row,
        }
    }

    /// Rows and columns of what an adapter may touch: a linear module of a block, the embedding table, the head.
    pub(crate) fn target(&self, name: &str) -> Option<(u64, u64)> {
        match name {
            EMBEDDING => self.tensor(EMBEDDING),
            HEAD if self.tied_embeddings => self.tensor(EMBEDDING),
            HEAD => self.tensor(HEAD),
            _ => self.linear(name),
        }
    }

    /// The tensor whose rows an adapter on `target` adds to.
    pub(crate) fn weight_of<'t>(&self, target: &'t str) -> &'t str {
        match target {
            HEAD if self.tied_embeddings => EMBEDDING,
            _ => target,
        }
    }

    /// Heads whose rows the base stores in another order than the framework: query or key heads of an architecture with interleaved RoPE.
    fn permuted_heads(&self, linear: &Linear) -> Option<u32> {
        match linear.rows {
            _ if !self.architecture.rope_interleaved() => None,
            Rows::Plain => None,
            Rows::QueryHeads => Some(self.n_heads),
            Rows::KeyHeads => Some(self.n_kv_heads),
        }
    }

    /// For a module whose rows are permuted: the rows it must have.
    pub(crate) fn permuted_rows(&self, linear: &Linear) -> Option<u64> {
        self.permuted_heads(linear).map(|heads| u64::from(heads) * u64::from(self.head_dim))
    }

    /// The framework's row that stands at row `row` of the base. Within a head of width d, the framework's row `i * d/2 + j` stands at `2j + i`.
    pub(crate) fn framework_row(&self, linear: &Linear, row: usize) -> usize {
        if self.permuted_heads(linear).is_none() {
            return row;
        }
        let d = self.head_dim as usize;
        let (head, within) = (row / d, row % d);
        head * d + within % 2 * (d / 2) + within / 2
    }
}
