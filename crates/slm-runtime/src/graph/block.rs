//! What is computed row by row, before and after attention, for one block of tokens. A block's intermediate values stay in one core's cache;
//! where there are too few tokens for blocks, the products inside are split instead.

use std::ops::Range;

use slm_manifest::Activations;
use slm_manifest::config::Architecture;
use slm_overlay::{LoneDowns, TensorStack};
use slm_quant::{Executor, Kernels, Piece, QMatrix, QuantError, QuantizedRows};

use crate::error::RuntimeError;
use crate::graph::forward::Lane;
use crate::graph::overlays::LayerOverlays;
use crate::graph::scratch::{Angles, BlockScratch, DownScratch, sized};
use crate::load::{Base, Layer, MatrixRef};

/// One layer for one block of tokens.
pub(super) struct Block<'a> {
    pub(super) base: &'a Base,
    pub(super) layer: &'a Layer,
    /// Which layer it is.
    pub(super) n: usize,
    pub(super) lanes: &'a [Lane<'a>],
    /// The rows of the pass that the block has.
    pub(super) rows: Range<usize>,
    pub(super) activations: Activations,
    pub(super) kernels: Kernels,
    /// Who splits the products.
    pub(super) exec: &'a dyn Executor,
}

/// The down-projections of one product's stacks.
enum Downs<'a> {
    /// Of every token: sequence after sequence, matrix after matrix.
    Made(&'a [f32]),
    Lone(LoneDowns<'a>),
}

/// The stacks of matrices that read the same rows.
pub(super) type Pick<const N: usize> = fn(&LayerOverlays) -> &[TensorStack; N];

impl<'a> Block<'a> {
    /// Normed rows of `x` to queries, keys and values: `[B, q]`, `[B, k]` and `[B, v]`, one after the other in `qkv`.
    pub(super) fn before_attention(
        &self,
        qkv: &mut [f32],
        x: &[f32],
        angles: &Angles,
        s: &mut BlockScratch,
    ) -> Result<(), RuntimeError> {
        let (config, layer) = (self.base.config(), self.layer);
        let head_dim = config.head_dim as usize;
        let (n_heads, n_kv_heads) = (config.n_heads as usize, config.n_kv_heads as usize);
        let h = sized(&mut s.h, x.len());
        self.norm_rows(h, x, &layer.attn_norm);
        let (q, kv) = qkv.split_at_mut(self.rows.len() * n_heads * head_dim);
        let (k, v) = kv.split_at_mut(self.rows.len() * n_kv_heads * head_dim);
        let matrices = [layer.attn_q, layer.attn_k, layer.attn_v];
        let outs = [&mut *q, &mut *k, v];
        let stacks: Pick<3> = |overlays| &overlays.qkv;
        self.ask_for(self.lone().into_iter().flat_map(|lone| &lone.attn_output));
        self.project(outs, matrices, stacks, h, &mut s.rows, &mut s.z)?;
        for (x, norm) in [(&mut *q, &layer.attn_q_norm), (&mut *k, &layer.attn_k_norm)] {
            if let Some(norm) = norm {
                self.norm_in_place(x, norm, sized(&mut s.head, head_dim));
            }
        }
        self.rotate(q, n_heads, head_dim, angles);
        self.rotate(k, n_kv_heads, head_dim, angles);
        Ok(())
    }

    /// Attention output `[n_heads, block_len, head_dim]` through its projection into the residual stream `x`, then the feed-forward part.
    pub(super) fn after_attention(
        &self,
        x: &mut [f32],
        heads: &[f32],
        s: &mut BlockScratch,
    ) -> Result<(), RuntimeError> {
        let (config, layer) = (self.base.config(), self.layer);
        let n_tokens = self.rows.len();
        let q_width = config.n_heads as usize * config.head_dim as usize;
        let attended = sized(&mut s.h, n_tokens * q_width);
        by_token(attended, heads, config.n_heads as usize, config.head_dim as usize);
        let y = sized(&mut s.y, x.len());
        let stacks: Pick<1> = |overlays| &overlays.attn_output;
        let lone = self.lone().into_iter();
        self.ask_for(lone.flat_map(|lone| lone.gate_up.iter().chain(&lone.ffn_down)));
        self.project([y], [layer.attn_output], stacks, attended, &mut s.rows, &mut s.z)?;
        let h = sized(&mut s.h, x.len());
        let y = sized(&mut s.y, x.len());
        self.add_to_residual(x, y, layer.post_attention_norm.as_deref(), h);

        self.norm_rows(h, x, &layer.ffn_norm);
        let gate = sized(&mut s.gate, n_tokens * config.n_ff as usize);
        let up = sized(&mut s.up, n_tokens * config.n_ff as usize);
        let matrices = [layer.ffn_gate, layer.ffn_up];
        let stacks: Pick<2> = |overlays| &overlays.gate_up;
        let act_mul = match config.architecture {
            Architecture::Gemma3 => Kernels::gelu_mul,
            _ => Kernels::silu_mul,
        };
        if self.scales_input(stacks) {
            let outs = [&mut *gate, &mut *up];
            self.project_scaled(outs, matrices, stacks, h, &mut s.rows, &mut s.z.any)?;
            act_mul(&self.kernels, gate, up);
        } else {
            self.ask_for_downs(stacks);
            let xq = self.quantize(&mut s.rows, h, &matrices)?;
            let downs = self.downs(stacks, h, &mut s.z);
            let [gate_w, up_w] = matrices.map(|matrix| self.matrix(matrix));
            let then = |piece: Piece, gate: &mut [f32], up: &mut [f32]| {
                self.up(stacks, &downs, piece, gate);
                self.up(stacks, &downs, Piece { product: 1, ..piece }, up);
                act_mul(&self.kernels, gate, up);
            };
            let ahead = |piece: Piece| self.before(stacks, &downs, piece);
            let (outs, ws) = ([&mut *gate, up], [&gate_w, &up_w]);
            self.kernels.matmul_pair(self.exec, outs, ws, h, xq, Some(&ahead), &then);
        }

        let stacks: Pick<1> = |overlays| &overlays.ffn_down;
        let next_layer = |_| self.lanes[0].overlays.layers.get(self.n + 1);
        self.ask_for(self.lone().and_then(next_layer).into_iter().flat_map(|next| &next.qkv));
        self.project([&mut *y], [layer.ffn_down], stacks, gate, &mut s.rows, &mut s.z)?;
        self.add_to_residual(x, y, layer.post_ffw_norm.as_deref(), h);
        Ok(())
    }

    /// `out = W · x` for matrices that read the same rows, each with its stack's share added piece by piece.
    fn project<const N: usize>(
        &self,
        outs: [&mut [f32]; N],
        matrices: [MatrixRef; N],
        stacks: Pick<N>,
        x: &[f32],
        rows: &mut QuantizedRows,
        z: &mut DownScratch,
    ) -> Result<(), RuntimeError> {
        if self.scales_input(stacks) {
            return self.project_scaled(outs, matrices, stacks, x, rows, &mut z.any);
        }
        self.ask_for_downs(stacks);
        let xq = self.quantize(rows, x, &matrices)?;
        let downs = self.downs(stacks, x, z);
        let ws = matrices.map(|matrix| self.matrix(matrix));
        let ahead = |piece: Piece| self.before(stacks, &downs, piece);
        let then = |piece: Piece, out: &mut [f32]| self.up(stacks, &downs, piece, out);
        self.kernels.matmul_each(self.exec, outs, ws.each_ref(), x, xq, Some(&ahead), &then);
        Ok(())
    }

    /// The first halves of the stacks' shares: made now, or, for a lone token, by the threads that make the product.
    fn downs<'z, const N: usize>(
        &'z self,
        stacks: Pick<N>,
        x: &'z [f32],
        z: &'z mut DownScratch,
    ) -> Downs<'z> {
        if let Some(overlays) = self.lone()
            && let Some(lone) =
                LoneDowns::new(stacks(overlays), x, &mut z.lone, self.exec.n_workers())
        {
            return Downs::Lone(if self.reads_once() { lone.read_once() } else { lone });
        }
        Downs::Made(self.down(stacks, x, &mut z.any))
    }

    /// A matrix of the base.
    pub(super) fn matrix(&self, matrix: MatrixRef) -> QMatrix<'a> {
        let w = self.base.matrix(matrix);
        if self.reads_once() { w.read_once() } else { w }
    }

    /// Whether no cache will still have what the block reads when that is read again: in a pass of one token. The last block of a longer pass may
    /// have no more, but reads what those before it have just read.
    fn reads_once(&self) -> bool {
        self.base.outgrows_caches() && matches!(self.lanes, [lane] if lane.tokens.len() == 1)
    }

    /// What adapters add for a token that is alone in its block.
    fn lone(&self) -> Option<&'a LayerOverlays> {
        match self.lanes {
            [lane] if self.rows.len() == 1 => Some(&lane.overlays.layers[self.n]),
            _ => None,
        }
    }

    /// The down-projections of every sequence's stacks: sequence after sequence, matrix after matrix.
    fn down<'z, const N: usize>(
        &self,
        stacks: Pick<N>,
        x: &[f32],
        z: &'z mut Vec<f32>,
    ) -> &'z [f32] {
        let needed = |(lane, tokens): (&Lane<'_>, Range<usize>)| -> usize {
            let stacks = stacks(&lane.overlays.layers[self.n]);
            stacks.iter().map(|stack| stack.scratch_len(tokens.len())).sum()
        };
        let z = sized(z, self.parts().map(needed).sum());
        let width = x.len() / self.rows.len();
        let mut rest = &mut *z;
        for (lane, tokens) in self.parts() {
            let x = &x[tokens.start * width..tokens.end * width];
            let stacks = stacks(&lane.overlays.layers[self.n]);
            let len = stacks.iter().map(|stack| stack.scratch_len(tokens.len())).sum();
            let (z, later) = rest.split_at_mut(len);
            rest = later;
            TensorStack::down_each(stacks, &self.kernels, self.exec, z, x, tokens.len());
        }
        z
    }

    /// Before a piece of a lone token's product. Gives what is read right after it, to be asked for meanwhile.
    fn before<const N: usize>(&self, stacks: Pick<N>, downs: &Downs<'_>, piece: Piece) -> &'a [u8] {
        if let Downs::Lone(lone) = downs
            && self.exec.n_workers() > 1
        {
            // A thread that is alone makes them after its first piece: they and the up-projection are one run of addresses.
            lone.begin(&self.kernels, (piece.product, piece.first_row) == (0, 0));
        }
        let stack = self.lone().map(|overlays| &stacks(overlays)[piece.product]);
        stack.map_or(&[], |stack| stack.up_begins(piece.first_row))
    }

    /// Asks for the records of stacks that a lone token comes to after the next product, which takes the time to bring them.
    fn ask_for<'s>(&self, stacks: impl Iterator<Item = &'s TensorStack>) {
        stacks.for_each(|stack| stack.ask(&self.kernels));
    }

    /// Asks for what a lone token's down-projections read first.
    fn ask_for_downs<const N: usize>(&self, stacks: Pick<N>) {
        if let Some(overlays) = self.lone() {
            self.kernels.prefetch(stacks(overlays)[0].downs_begin());
        }
    }

    /// The stacks' shares of one piece.
    fn up<const N: usize>(
        &self,
        stacks: Pick<N>,
        downs: &Downs<'_>,
        piece: Piece,
        out: &mut [f32],
    ) {
        let mut rest = match downs {
            Downs::Made(z) => *z,
            Downs::Lone(lone) => {
                let gates = self.gates(&self.lanes[0], 0);
                return lone.up(&self.kernels, out, piece.product, piece.first_row, gates);
            }
        };
        for (lane, tokens) in self.parts() {
            for (n, stack) in stacks(&lane.overlays.layers[self.n]).iter().enumerate() {
                let (z, later) = rest.split_at(stack.scratch_len(tokens.len()));
                rest = later;
                let from = tokens.start.max(piece.first_token);
                let to = tokens.end.min(piece.first_token + piece.n_tokens);
                if n != piece.product || stack.is_empty() || from >= to {
                    continue;
                }
                let first = (from - piece.first_token) * piece.n_rows;
                let out = &mut out[first..][..(to - from) * piece.n_rows];
                let these = from - tokens.start..to - tokens.start;
                let gates = self.gates(lane, tokens.start);
                stack.up(&self.kernels, out, piece.first_row, z, tokens.len(), these, gates);
            }
        }
    }

    /// The sequences that have tokens in the block, and which of its tokens.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&Lane<'_>, Range<usize>)> {
        self.lanes.iter().filter_map(|lane| {
            let from = lane.first_row.max(self.rows.start);
            let to = lane.end_row().min(self.rows.end);
            (from < to).then(|| (lane, from - self.rows.start..to - self.rows.start))
        })
    }

    /// The 8-bit form of `x` where the profile asks for it and one of `readers` is integer-coded.
    pub(super) fn quantize<'r>(
        &self,
        rows: &'r mut QuantizedRows,
        x: &[f32],
        readers: &[MatrixRef],
    ) -> Result<Option<&'r QuantizedRows>, RuntimeError> {
        let wanted = self.activations == Activations::Int8
            && readers.iter().any(|&matrix| self.base.matrix_encoding(matrix).is_integer_coded());
        if !wanted {
            return Ok(None);
        }
        let cols = self.base.matrix(readers[0]).cols();
        rows.quantize(self.kernels, x, cols).map_err(|error| match error {
            // Told of the pass, not of the block.
            QuantError::NonFinite { row, index } => {
                QuantError::NonFinite { row: self.rows.start + row, index }
            }
            other => other,
        })?;
        Ok(Some(rows))
    }

    fn norm_rows(&self, out: &mut [f32], x: &[f32], weight: &[f32]) {
        let eps = self.base.config().rms_norm_eps;
        for (out, x) in out.chunks_exact_mut(weight.len()).zip(x.chunks_exact(weight.len())) {
            self.kernels.rms_norm(out, x, weight, eps);
        }
    }

    fn norm_in_place(&self, x: &mut [f32], weight: &[f32], spare: &mut [f32]) {
        let eps = self.base.config().rms_norm_eps;
        for x in x.chunks_exact_mut(weight.len()) {
            self.kernels.rms_norm(spare, x, weight, eps);
            x.copy_from_slice(spare);
        }
    }

    fn add_to_residual(&self, x: &mut [f32], y: &[f32], norm: Option<&[f32]>, spare: &mut [f32]) {
        match norm {
            Some(weight) => {
                self.norm_rows(spare, y, weight);
                self.kernels.add(x, spare);
            }
            None => self.kernels.add(x, y),
        }
    }

    fn rotate(&self, x: &mut [f32], n_heads: usize, head_dim: usize, angles: &Angles) {
        let half = head_dim / 2;
        let rope = match self.base.config().architecture.rope_interleaved() {
            true => Kernels::rope_interleaved,
            false => Kernels::rope_half,
        };
        for (t, row) in x.chunks_exact_mut(n_heads * head_dim).enumerate() {
            let at = (self.rows.start + t) * half;
            let (cos, sin) = (&angles.cos[at..][..half], &angles.sin[at..][..half]);
            for head in row.chunks_exact_mut(head_dim) {
                rope(&self.kernels, head, cos, sin);
            }
        }
    }
}

/// `[n_heads, block_len, head_dim]`, of which only the first tokens may be used, to `[n_tokens, n_heads * head_dim]`.
fn by_token(out: &mut [f32], heads: &[f32], n_heads: usize, head_dim: usize) {
    let block_len = heads.len() / (n_heads * head_dim);
    for (t, row) in out.chunks_exact_mut(n_heads * head_dim).enumerate() {
        for (head, part) in row.chunks_exact_mut(head_dim).enumerate() {
            part.copy_from_slice(&heads[(head * block_len + t) * head_dim..][..head_dim]);
        }
    }
}
