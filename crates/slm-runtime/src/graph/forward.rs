//! One pass of some tokens through the graph.

use slm_kv::KvCache;
use slm_manifest::config::Architecture;
use slm_manifest::{Activations, ExecutionId};
use slm_overlay::TensorStack;
use slm_quant::{Executor, Kernels, QuantizedRows};

use crate::error::{RequestError, RuntimeError};
use crate::graph::attention::{AttentionShape, attend, by_token};
use crate::graph::scratch::HEAD_BATCH;
use crate::graph::{Overlays, Rope, Scratch};
use crate::load::{Base, Layer, MatrixRef};

/// Which positions of a pass need logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// None: the pass only fills the cache.
    None,
    /// The last position only.
    Last,
    /// Every position.
    All,
}

/// What a pass reads. Nothing here changes while it runs.
pub(crate) struct Pass<'a> {
    pub(crate) base: &'a Base,
    pub(crate) overlays: &'a Overlays,
    pub(crate) rope: &'a Rope,
    pub(crate) rope_local: &'a Rope,
    pub(crate) execution: ExecutionId,
    pub(crate) activations: Activations,
    pub(crate) kernels: Kernels,
    pub(crate) exec: &'a dyn Executor,
}

impl Pass<'_> {
    /// Runs `tokens`, whose first position is the cache's length, and commits them to the cache.
    ///
    /// `on_logits` gets each wanted position, ascending, with its logits `[vocab_size]`.
    pub(crate) fn run(
        &self,
        cache: &mut KvCache,
        scratch: &mut Scratch,
        tokens: &[u32],
        wanted: Wanted,
        on_logits: &mut (dyn FnMut(usize, &[f32]) + Send),
    ) -> Result<(), RuntimeError> {
        let config = self.base.config();
        let first_position = cache.len() as usize;
        let n_positions = first_position + tokens.len();
        scratch.prepare(config, tokens.len(), n_positions);
        self.rope.fill(&mut scratch.cos, &mut scratch.sin, first_position, tokens.len());
        if config.sliding_window.is_some() {
            self.rope_local.fill(
                &mut scratch.cos_local,
                &mut scratch.sin_local,
                first_position,
                tokens.len(),
            );
        }
        self.embed(&mut scratch.x, tokens);
        for (n, layer) in self.base.graph().layers.iter().enumerate() {
            self.attention(cache, scratch, n, layer, first_position)?;
            self.feed_forward(scratch, n, layer)?;
        }
        self.head(scratch, first_position, tokens.len(), wanted, on_logits)?;
        cache.commit(tokens.len() as u32)?;
        Ok(())
    }

    fn embed(&self, x: &mut [f32], tokens: &[u32]) {
        let config = self.base.config();
        let n_embd = config.n_embd as usize;
        let table = self.base.matrix(self.base.graph().token_embd);
        for (row, &token) in x.chunks_exact_mut(n_embd).zip(tokens) {
            self.kernels.decode_row(row, &table, token as usize);
        }
        if config.architecture == Architecture::Gemma3 {
            self.kernels.scale(x, (n_embd as f32).sqrt());
        }
    }

    fn attention(
        &self,
        cache: &mut KvCache,
        s: &mut Scratch,
        n: usize,
        layer: &Layer,
        first_position: usize,
    ) -> Result<(), RuntimeError> {
        let config = self.base.config();
        let (n_heads, n_kv_heads) = (config.n_heads as usize, config.n_kv_heads as usize);
        let head_dim = config.head_dim as usize;
        let overlays = &self.overlays.layers[n];
        self.norm_rows(&mut s.h, &s.x, &layer.attn_norm);
        let rows = self.quantize(&mut s.rows, &s.h, &[layer.attn_q, layer.attn_k, layer.attn_v])?;
        self.project(&mut s.q, layer.attn_q, &overlays.attn_q, &s.h, rows, &mut s.overlay);
        self.project(&mut s.k, layer.attn_k, &overlays.attn_k, &s.h, rows, &mut s.overlay);
        self.project(&mut s.v, layer.attn_v, &overlays.attn_v, &s.h, rows, &mut s.overlay);
        if let Some(norm) = &layer.attn_q_norm {
            self.norm_in_place(&mut s.q, norm, &mut s.heads);
        }
        if let Some(norm) = &layer.attn_k_norm {
            self.norm_in_place(&mut s.k, norm, &mut s.heads);
        }
        let sliding = config.is_sliding(n as u32);
        let (cos, sin) = if sliding { (&s.cos_local, &s.sin_local) } else { (&s.cos, &s.sin) };
        self.rotate(&mut s.q, n_heads, head_dim, cos, sin);
        self.rotate(&mut s.k, n_kv_heads, head_dim, cos, sin);
        cache.append(self.execution, n, &s.k, &s.v)?;
        let window =
            if sliding { config.sliding_window.map(|window| window as usize) } else { None };
        let shape = AttentionShape { n_heads, n_kv_heads, head_dim, window };
        attend(
            &mut s.heads,
            &mut s.scores,
            &s.q,
            cache,
            n,
            first_position,
            shape,
            self.kernels,
            self.exec,
        )?;
        by_token(&mut s.attended, &s.heads, n_heads, head_dim);
        let rows = self.quantize(&mut s.rows, &s.attended, &[layer.attn_output])?;
        self.project(
            &mut s.y,
            layer.attn_output,
            &overlays.attn_output,
            &s.attended,
            rows,
            &mut s.overlay,
        );
        self.add_to_residual(&mut s.x, &mut s.y, layer.post_attention_norm.as_deref(), &mut s.h);
        Ok(())
    }

    fn feed_forward(&self, s: &mut Scratch, n: usize, layer: &Layer) -> Result<(), RuntimeError> {
        let overlays = &self.overlays.layers[n];
        self.norm_rows(&mut s.h, &s.x, &layer.ffn_norm);
        let rows = self.quantize(&mut s.rows, &s.h, &[layer.ffn_gate, layer.ffn_up])?;
        self.project(&mut s.gate, layer.ffn_gate, &overlays.ffn_gate, &s.h, rows, &mut s.overlay);
        self.project(&mut s.up, layer.ffn_up, &overlays.ffn_up, &s.h, rows, &mut s.overlay);
        match self.base.config().architecture {
            Architecture::Gemma3 => self.kernels.gelu_mul(&mut s.gate, &s.up),
            _ => self.kernels.silu_mul(&mut s.gate, &s.up),
        }
        let rows = self.quantize(&mut s.rows, &s.gate, &[layer.ffn_down])?;
        self.project(&mut s.y, layer.ffn_down, &overlays.ffn_down, &s.gate, rows, &mut s.overlay);
        self.add_to_residual(&mut s.x, &mut s.y, layer.post_ffw_norm.as_deref(), &mut s.h);
        Ok(())
    }

    fn head(
        &self,
        s: &mut Scratch,
        first_position: usize,
        n_tokens: usize,
        wanted: Wanted,
        on_logits: &mut (dyn FnMut(usize, &[f32]) + Send),
    ) -> Result<(), RuntimeError> {
        let config = self.base.config();
        let graph = self.base.graph();
        let (n_embd, vocab_size) = (config.n_embd as usize, config.vocab_size as usize);
        let mut next = match wanted {
            Wanted::None => return Ok(()),
            Wanted::Last => n_tokens - 1,
            Wanted::All => 0,
        };
        while next < n_tokens {
            let batch = HEAD_BATCH.min(n_tokens - next);
            let h = &mut s.h[..batch * n_embd];
            self.norm_rows(h, &s.x[next * n_embd..][..batch * n_embd], &graph.output_norm);
            let rows = self.quantize(&mut s.rows, h, &[graph.output])?;
            s.logits.resize(batch * vocab_size, 0.0);
            self.kernels.matmul(self.exec, &mut s.logits, &self.base.matrix(graph.output), h, rows);
            for (t, logits) in s.logits.chunks_exact(vocab_size).enumerate() {
                let position = first_position + next + t;
                if !self.kernels.is_finite(logits) {
                    let id = logits.iter().position(|logit| !logit.is_finite()).unwrap_or(0) as u32;
                    return Err(
                        RequestError::NonFiniteLogit { id, position: position as u64 }.into()
                    );
                }
                on_logits(position, logits);
            }
            next += batch;
        }
        Ok(())
    }

    /// `out = W · x`, then the stack's share, adapter after adapter.
    fn project(
        &self,
        out: &mut [f32],
        matrix: MatrixRef,
        overlay: &TensorStack,
        x: &[f32],
        rows: Option<&QuantizedRows>,
        scratch: &mut Vec<f32>,
    ) {
        self.kernels.matmul(self.exec, out, &self.base.matrix(matrix), x, rows);
        if !overlay.is_empty() {
            overlay.apply(&self.kernels, self.exec, out, x, scratch);
        }
    }

    /// The 8-bit form of `x` where the profile asks for it and one of `readers` is integer-coded.
    fn quantize<'r>(
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
        rows.quantize(self.kernels, x, self.base.matrix(readers[0]).cols())?;
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
        let spare = &mut spare[..weight.len()];
        for x in x.chunks_exact_mut(weight.len()) {
            self.kernels.rms_norm(spare, x, weight, eps);
            x.copy_from_slice(spare);
        }
    }

    fn add_to_residual(
        &self,
        x: &mut [f32],
        y: &mut [f32],
        norm: Option<&[f32]>,
        spare: &mut [f32],
    ) {
        match norm {
            Some(weight) => {
                self.norm_rows(spare, y, weight);
                self.kernels.add(x, spare);
            }
            None => self.kernels.add(x, y),
        }
    }

    fn rotate(&self, x: &mut [f32], n_heads: usize, head_dim: usize, cos: &[f32], sin: &[f32]) {
        let half = head_dim / 2;
        let interleaved = self.base.config().architecture.rope_interleaved();
        for (t, row) in x.chunks_exact_mut(n_heads * head_dim).enumerate() {
            let (cos, sin) = (&cos[t * half..][..half], &sin[t * half..][..half]);
            for head in row.chunks_exact_mut(head_dim) {
                if interleaved {
                    self.kernels.rope_interleaved(head, cos, sin);
                } else {
                    self.kernels.rope_half(head, cos, sin);
                }
            }
        }
    }
}
