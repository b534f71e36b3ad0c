//! Every buffer of a forward pass, with its shape. T is the number of tokens in the pass, B of those that one block holds.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use slm_manifest::ModelConfig;
use slm_overlay::LoneScratch;
use slm_quant::{Kernels, QuantizedRows};

use crate::graph::attention::scores_len;
use crate::graph::overlays::Overlays;

/// Rows of logits computed in one product, so that a large vocabulary does not need a large buffer.
pub(crate) const HEAD_BATCH: usize = 8;

/// How the tokens of a pass are cut in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// Tokens.
    pub(crate) n_tokens: usize,
    /// Tokens of a block; the last may have fewer.
    pub(crate) len: usize,
}

impl Blocks {
    /// Tokens of a block whose intermediate values stay in a core's own cache.
    pub(crate) const LEN: usize = 32;
    /// Tokens that are worth a block: fewer are multiplied together, and the rows of the matrices are split instead.
    const MIN: usize = 16;

    pub(crate) fn new(n_tokens: usize) -> Blocks {
        Blocks { n_tokens, len: if n_tokens < Self::MIN { n_tokens } else { Self::LEN } }
    }

    /// How many blocks there are.
    pub(crate) fn count(self) -> usize {
        self.n_tokens.div_ceil(self.len.max(1))
    }

    /// The rows of a block.
    pub(crate) fn rows(self, block: usize) -> Range<usize> {
        let first = block * self.len;
        first..(first + self.len).min(self.n_tokens)
    }

    /// Tokens when all blocks are whole.
    pub(crate) fn padded(self) -> usize {
        self.count() * self.len
    }
}

/// Buffers of a session.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) blocks: Blocks,
    /// Residual stream, `[T, n_embd]`.
    pub(crate) x: Vec<f32>,
    /// Queries, keys and values of the new positions, block after block, in each `[B, n_heads * head_dim]`, `[B, n_kv_heads * head_dim]` and
    /// again `[B, n_kv_heads * head_dim]`.
    pub(crate) qkv: Vec<f32>,
    /// Attention output, block after block, in each `[n_heads, B, head_dim]`; the last block as long as the others.
    pub(crate) heads: Vec<f32>,
    /// Cosines and sines of global layers, `[T, head_dim / 2]` each.
    pub(crate) angles: Angles,
    /// Those of sliding-window layers.
    pub(crate) angles_local: Angles,
    /// What blocks use while they are computed: as many as run at once.
    pub(crate) pool: Pool,
    /// Logits, `[HEAD_BATCH or fewer, vocab_size]`.
    pub(crate) logits: Vec<f32>,
}

/// Rotary angles of the tokens of a pass, `[T, head_dim / 2]` each.
#[derive(Debug, Default)]
pub(crate) struct Angles {
    pub(crate) cos: Vec<f32>,
    pub(crate) sin: Vec<f32>,
}

/// What one block uses while it is computed.
#[derive(Debug, Default)]
pub(crate) struct BlockScratch {
    /// Normed or gathered input of a product, `[B, …]`.
    pub(crate) h: Vec<f32>,
    /// Output of a block part, `[B, n_embd]`.
    pub(crate) y: Vec<f32>,
    /// Gate, then gate after activation times up, `[B, n_ff]`.
    pub(crate) gate: Vec<f32>,
    /// Up, `[B, n_ff]`.
    pub(crate) up: Vec<f32>,
    /// Attention scores of the queries that are computed together.
    pub(crate) scores: Vec<f32>,
    /// One normed head.
    pub(crate) head: Vec<f32>,
    /// The 8-bit rows of whatever is multiplied next.
    pub(crate) rows: QuantizedRows,
    /// Down-projections of adapters.
    pub(crate) z: DownScratch,
}

/// Down-projections: of any tokens, and of a lone one as threads make them together.
#[derive(Debug, Default)]
pub(crate) struct DownScratch {
    pub(crate) any: Vec<f32>,
    pub(crate) lone: LoneScratch,
}

/// Block scratches that are not in use. The one used last is given out first: its buffers are still in a cache.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<BlockScratch>>);

impl Pool {
    /// Runs `f` with a scratch; makes one only when more run at once than ever before.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut BlockScratch) -> T) -> T {
        let free = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = free().pop();
        let mut scratch = taken.unwrap_or_default();
        let result = f(&mut scratch);
        free().push(scratch);
        result
    }
}

impl Scratch {
    /// Makes room for single tokens up to `n_positions`, for `n_workers` at once, so that their passes allocate nothing.
    pub(crate) fn reserve(
        &mut self,
        config: &ModelConfig,
        overlays: &Overlays,
        kernels: Kernels,
        n_workers: usize,
        n_positions: usize,
    ) {
        self.prepare(config, 1);
        sized(&mut self.logits, config.vocab_size as usize);
        let n_heads = config.n_heads as usize;
        let q_width = n_heads * config.head_dim as usize;
        let scores = scores_len(Blocks::new(1), n_heads, n_positions);
        let widest = q_width.max(config.n_embd as usize).max(config.n_ff as usize);
        let widest_overlay = overlays.widest();
        // A stack that multiplies its input has a copy of the row behind its values.
        let copy = if overlays.scales_input() { widest } else { 0 };
        let mut free = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        while free.len() < n_workers {
            free.push(BlockScratch::default());
        }
        for scratch in free.iter_mut() {
            sized(&mut scratch.scores, scores);
            sized(&mut scratch.h, widest);
            sized(&mut scratch.y, config.n_embd as usize);
            sized(&mut scratch.gate, config.n_ff as usize);
            sized(&mut scratch.up, config.n_ff as usize);
            sized(&mut scratch.head, config.head_dim as usize);
            sized(&mut scratch.z.any, widest_overlay + copy);
            scratch.z.lone.reserve(widest_overlay);
            // A row of zeros needs as much room as any. What a refused pass left need not be finite.
            let row = &mut scratch.h[..widest / 32 * 32];
            row.fill(0.0);
            scratch.rows.quantize(kernels, row, row.len().max(32)).expect("BUG: zeros refused");
        }
    }

    /// Makes room for `n_tokens`; allocates only when that is more than ever before.
    pub(crate) fn prepare(&mut self, config: &ModelConfig, n_tokens: usize) {
        let n_embd = config.n_embd as usize;
        let head_dim = config.head_dim as usize;
        let q_width = config.n_heads as usize * head_dim;
        let kv_width = config.n_kv_heads as usize * head_dim;
        self.blocks = Blocks::new(n_tokens);
        for (buffer, len) in [
            (&mut self.x, n_tokens * n_embd),
            (&mut self.qkv, n_tokens * (q_width + 2 * kv_width)),
            (&mut self.heads, self.blocks.padded() * q_width),
            (&mut self.angles.cos, n_tokens * head_dim / 2),
            (&mut self.angles.sin, n_tokens * head_dim / 2),
            (&mut self.angles_local.cos, n_tokens * head_dim / 2),
            (&mut self.angles_local.sin, n_tokens * head_dim / 2),
        ] {
            buffer.resize(len, 0.0);
        }
    }
}

/// `buffer` with exactly `len` values, whatever they are; allocates only when that is more than ever before.
pub(crate) fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}
