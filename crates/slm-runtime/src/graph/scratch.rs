//! Every buffer of a forward pass, with its shape. T is the number of tokens in the pass.

use slm_manifest::ModelConfig;
use slm_quant::QuantizedRows;

/// Rows of logits computed in one product, so that a large vocabulary does not need a large buffer.
pub(crate) const HEAD_BATCH: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Residual stream, `[T, n_embd]`.
    pub(crate) x: Vec<f32>,
    /// Normed input of a block part, `[T, n_embd]`.
    pub(crate) h: Vec<f32>,
    /// Queries, `[T, n_heads * head_dim]`.
    pub(crate) q: Vec<f32>,
    /// Keys of the new positions, `[T, n_kv_heads * head_dim]`.
    pub(crate) k: Vec<f32>,
    /// Values of the new positions, `[T, n_kv_heads * head_dim]`.
    pub(crate) v: Vec<f32>,
    /// Attention output by head, `[n_heads, T, head_dim]`.
    pub(crate) heads: Vec<f32>,
    /// Attention scores, one row per head, `[n_heads, positions]`.
    pub(crate) scores: Vec<f32>,
    /// Attention output by token, `[T, n_heads * head_dim]`.
    pub(crate) attended: Vec<f32>,
    /// Output of a block part, `[T, n_embd]`.
    pub(crate) y: Vec<f32>,
    /// Gate, then gate after activation times up, `[T, n_ff]`.
    pub(crate) gate: Vec<f32>,
    /// Up, `[T, n_ff]`.
    pub(crate) up: Vec<f32>,
    /// Cosines of global layers, `[T, head_dim / 2]`.
    pub(crate) cos: Vec<f32>,
    /// Sines of global layers, `[T, head_dim / 2]`.
    pub(crate) sin: Vec<f32>,
    /// Cosines of sliding-window layers, `[T, head_dim / 2]`.
    pub(crate) cos_local: Vec<f32>,
    /// Sines of sliding-window layers, `[T, head_dim / 2]`.
    pub(crate) sin_local: Vec<f32>,
    /// The 8-bit rows of whatever is multiplied next.
    pub(crate) rows: QuantizedRows,
    /// Intermediate values of adapters.
    pub(crate) overlay: Vec<f32>,
    /// Logits, `[HEAD_BATCH or fewer, vocab_size]`.
    pub(crate) logits: Vec<f32>,
}

impl Scratch {
    /// Makes room for `n_tokens` at `n_positions` positions; allocates only when that is more than ever before.
    pub(crate) fn prepare(&mut self, config: &ModelConfig, n_tokens: usize, n_positions: usize) {
        let n_embd = config.n_embd as usize;
        let n_ff = config.n_ff as usize;
        let head_dim = config.head_dim as usize;
        let q_width = config.n_heads as usize * head_dim;
        let kv_width = config.n_kv_heads as usize * head_dim;
        for (buffer, len) in [
            (&mut self.x, n_tokens * n_embd),
            (&mut self.h, n_tokens * n_embd),
            (&mut self.q, n_tokens * q_width),
            (&mut self.k, n_tokens * kv_width),
            (&mut self.v, n_tokens * kv_width),
            (&mut self.heads, n_tokens * q_width),
            (&mut self.scores, config.n_heads as usize * n_positions),
            (&mut self.attended, n_tokens * q_width),
            (&mut self.y, n_tokens * n_embd),
            (&mut self.gate, n_tokens * n_ff),
            (&mut self.up, n_tokens * n_ff),
            (&mut self.cos, n_tokens * head_dim / 2),
            (&mut self.sin, n_tokens * head_dim / 2),
            (&mut self.cos_local, n_tokens * head_dim / 2),
            (&mut self.sin_local, n_tokens * head_dim / 2),
        ] {
            buffer.resize(len, 0.0);
        }
    }
}
