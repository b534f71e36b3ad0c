//! One pass of some tokens of one or more sequences through the graph.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use slm_kv::KvCache;
use slm_manifest::config::Architecture;
use slm_manifest::{Activations, ExecutionId};
use slm_overlay::Gates;
use slm_quant::{Executor, Inline, Kernels};

use crate::error::{RequestError, RuntimeError};
use crate::graph::attention::{AttentionShape, attend};
use crate::graph::block::Block;
use crate::graph::scratch::{Angles, BlockScratch, HEAD_BATCH, sized};
use crate::graph::{Overlays, Rope, Scratch};
use crate::load::{Base, Layer};

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

/// One sequence in a pass: tokens whose first position is the cache's length. Its rows are computed as if it were alone.
pub(crate) struct Lane<'a> {
    pub(crate) cache: &'a mut KvCache,
    pub(crate) overlays: &'a Overlays,
    pub(crate) rope: &'a Rope,
    pub(crate) rope_local: &'a Rope,
    pub(crate) execution: ExecutionId,
    pub(crate) tokens: &'a [u32],
    /// Where each adapter of its stack starts that waits for an invocation.
    pub(crate) starts: &'a [Option<usize>],
    pub(crate) wanted: Wanted,
    /// Row of the pass that its first token has.
    pub(crate) first_row: usize,
    /// Position of its first token.
    pub(crate) first_position: usize,
}

impl Lane<'_> {
    /// How many of its last positions get logits.
    fn n_wanted(&self) -> usize {
        match self.wanted {
            Wanted::None => 0,
            Wanted::Last => 1,
            Wanted::All => self.tokens.len(),
        }
    }
}

impl Lane<'_> {
    /// The row after its last one.
    pub(crate) fn end_row(&self) -> usize {
        self.first_row + self.tokens.len()
    }
}

/// What a pass reads. Nothing here changes while it runs.
pub(crate) struct Pass<'a> {
    pub(crate) base: &'a Base,
    pub(crate) activations: Activations,
    pub(crate) kernels: Kernels,
    pub(crate) exec: &'a dyn Executor,
}

/// Gets each wanted position: which sequence, its position, its logits `[vocab_size]`. Sequences in order, positions ascending.
pub(crate) type OnLogits<'a> = &'a mut (dyn FnMut(usize, usize, &[f32]) + Send);

impl Pass<'_> {
    /// Runs the tokens of all `lanes` and commits them to their caches. After an error nothing is committed.
    pub(crate) fn run(
        &self,
        lanes: &mut [Lane<'_>],
        scratch: &mut Scratch,
        on_logits: OnLogits<'_>,
    ) -> Result<(), RuntimeError> {
        let n_tokens = lanes.iter().map(|lane| lane.tokens.len()).sum();
        scratch.prepare(self.base.config(), n_tokens);
        self.embed(lanes, scratch);
        self.turn(lanes, scratch);
        for (n, layer) in self.base.graph().layers.iter().enumerate() {
            self.layer(lanes, scratch, n, layer)?;
        }
        self.head(lanes, scratch, on_logits)?;
        for lane in lanes {
            lane.cache.commit(lane.tokens.len() as u32)?;
        }
        Ok(())
    }

    fn embed(&self, lanes: &[Lane<'_>], s: &mut Scratch) {
        let config = self.base.config();
        let table = self.base.matrix(self.base.graph().token_embd);
        let tokens = lanes.iter().flat_map(|lane| lane.tokens);
        for (row, &token) in s.x.chunks_exact_mut(config.n_embd as usize).zip(tokens) {
            self.kernels.decode_row(row, &table, token as usize);
        }
        for lane in lanes.iter().filter(|lane| !lane.overlays.embedding.is_empty()) {
            let rows = s.x.chunks_exact_mut(config.n_embd as usize).skip(lane.first_row);
            for (row, &token) in rows.zip(lane.tokens) {
                lane.overlays.embedding.add_embedding(&self.kernels, row, token as usize);
            }
        }
        if config.architecture == Architecture::Gemma3 {
            self.kernels.scale(&mut s.x, (config.n_embd as f32).sqrt());
        }
    }

    /// The rotary angles of every token.
    fn turn(&self, lanes: &[Lane<'_>], s: &mut Scratch) {
        let half = self.base.config().head_dim as usize / 2;
        for lane in lanes {
            let (at, len) = (lane.first_row * half, lane.tokens.len() * half);
            let fill = |rope: &Rope, angles: &mut Angles| {
                let (cos, sin) = (&mut angles.cos[at..][..len], &mut angles.sin[at..][..len]);
                rope.fill(cos, sin, lane.first_position, lane.tokens.len());
            };
            fill(lane.rope, &mut s.angles);
            if self.base.config().sliding_window.is_some() {
                fill(lane.rope_local, &mut s.angles_local);
            }
        }
    }

    fn layer(
        &self,
        lanes: &mut [Lane<'_>],
        s: &mut Scratch,
        n: usize,
        layer: &Layer,
    ) -> Result<(), RuntimeError> {
        let config = self.base.config();
        let (n_heads, n_kv_heads) = (config.n_heads as usize, config.n_kv_heads as usize);
        let head_dim = config.head_dim as usize;
        let (n_embd, q_width, kv_width) =
            (config.n_embd as usize, n_heads * head_dim, n_kv_heads * head_dim);
        let sliding = config.is_sliding(n as u32);
        let Scratch { blocks, x, qkv, heads, angles, angles_local, pool, .. } = s;
        let angles = if sliding { angles_local } else { angles };
        let row_width = q_width + 2 * kv_width;
        // One block splits its products; several are split themselves.
        let (outer, inner): (&dyn Executor, &dyn Executor) =
            if blocks.count() == 1 { (&Inline, self.exec) } else { (self.exec, &Inline) };
        let failed = Failure::default();
        let shared: &[Lane<'_>] = lanes;
        outer.for_each_chunk(qkv, blocks.len * row_width, &|at, qkv| {
            let block = self.block(shared, n, layer, blocks.rows(at), inner);
            let x = &x[block.rows.start * n_embd..block.rows.end * n_embd];
            let outcome = pool.with(|scratch| block.before_attention(qkv, x, angles, scratch));
            failed.keep(at, outcome);
        });
        failed.outcome()?;

        for lane in lanes.iter_mut() {
            // Block after block: a block's keys lie together, and so do its values.
            let mut row = lane.first_row;
            while row < lane.end_row() {
                let rows = blocks.rows(row / blocks.len);
                let n_rows = rows.end.min(lane.end_row()) - row;
                let qkv = &qkv[rows.start * row_width..rows.end * row_width];
                let (k, v) = qkv[rows.len() * q_width..].split_at(rows.len() * kv_width);
                let these = (row - rows.start) * kv_width..(row - rows.start + n_rows) * kv_width;
                lane.cache.append(lane.execution, n, &k[these.clone()], &v[these])?;
                row += n_rows;
            }
        }
        let window =
            if sliding { config.sliding_window.map(|window| window as usize) } else { None };
        let shape = AttentionShape { n_heads, n_kv_heads, head_dim, window };
        let shared: &[Lane<'_>] = lanes;
        attend(heads, pool, qkv, *blocks, shared, n, shape, self.kernels, self.exec)?;

        let failed = Failure::default();
        let heads_len = blocks.len * q_width;
        outer.for_each_chunk(x, blocks.len * n_embd, &|at, x| {
            let heads = &heads[at * heads_len..][..heads_len];
            let block = self.block(shared, n, layer, blocks.rows(at), inner);
            let outcome = pool.with(|scratch| block.after_attention(x, heads, scratch));
            failed.keep(at, outcome);
        });
        failed.outcome()
    }

    fn block<'b>(
        &'b self,
        lanes: &'b [Lane<'b>],
        n: usize,
        layer: &'b Layer,
        rows: Range<usize>,
        exec: &'b dyn Executor,
    ) -> Block<'b> {
        let Pass { base, activations, kernels, .. } = *self;
        Block { base, layer, n, lanes, rows, activations, kernels, exec }
    }

    fn head(
        &self,
        lanes: &[Lane<'_>],
        s: &mut Scratch,
        on_logits: OnLogits<'_>,
    ) -> Result<(), RuntimeError> {
        let (config, graph) = (self.base.config(), self.base.graph());
        let (n_embd, vocab_size) = (config.n_embd as usize, config.vocab_size as usize);
        let output = self.base.matrix(graph.output);
        let n_wanted: usize = lanes.iter().map(Lane::n_wanted).sum();
        // One row reads it once; more come in batches.
        let read_once = n_wanted == 1 && self.base.outgrows_caches();
        let output = if read_once { output.read_once() } else { output };
        let int8 = self.activations == Activations::Int8 && output.encoding().is_integer_coded();
        let Scratch { x, pool, logits, .. } = s;
        let mut wanted = lanes.iter().enumerate().flat_map(|(at, lane)| {
            let n = lane.tokens.len();
            (n - lane.n_wanted()..n).map(move |t| (at, lane.first_row + t, lane.first_position + t))
        });
        loop {
            let mut batch = [(0, 0, 0); HEAD_BATCH];
            let mut n = 0;
            for row in wanted.by_ref().take(HEAD_BATCH) {
                batch[n] = row;
                n += 1;
            }
            let batch = &batch[..n];
            if batch.is_empty() {
                return Ok(());
            }
            pool.with(|scratch| -> Result<(), RuntimeError> {
                let BlockScratch { h, rows, z, .. } = scratch;
                let h = sized(h, n * n_embd);
                for (h, &(_, row, _)) in h.chunks_exact_mut(n_embd).zip(batch) {
                    let x = &x[row * n_embd..][..n_embd];
                    self.kernels.rms_norm(h, x, &graph.output_norm, config.rms_norm_eps);
                }
                if int8 {
                    rows.quantize(self.kernels, h, n_embd)?;
                }
                let xq = int8.then_some(&*rows);
                let logits = sized(logits, n * vocab_size);
                self.kernels.matmul(self.exec, logits, &output, h, xq);
                let rows = logits.chunks_exact_mut(vocab_size).zip(h.chunks_exact(n_embd));
                for ((logits, h), &(lane, _, first_position)) in rows.zip(batch) {
                    let Lane { overlays, starts, .. } = lanes[lane];
                    let gates = Gates { first_position, starts };
                    overlays.head.apply(&self.kernels, self.exec, logits, h, &mut z.any, 1, gates);
                }
                Ok(())
            })?;
            for (logits, &(lane, _, position)) in logits.chunks_exact(vocab_size).zip(batch) {
                if !self.kernels.is_finite(logits) {
                    let id = logits.iter().position(|logit| !logit.is_finite()).unwrap_or(0) as u32;
                    return Err(
                        RequestError::NonFiniteLogit { id, position: position as u64 }.into()
                    );
                }
                on_logits(lane, position, logits);
            }
        }
    }
}

/// The failure of the first block that failed, whichever thread was faster.
#[derive(Default)]
struct Failure(Mutex<Option<(usize, RuntimeError)>>);

impl Failure {
    fn keep(&self, block: usize, outcome: Result<(), RuntimeError>) {
        let Err(error) = outcome else { return };
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(|(at, _)| block < *at) {
            *first = Some((block, error));
        }
    }

    fn outcome(self) -> Result<(), RuntimeError> {
        let first = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        first.map_or(Ok(()), |(_, error)| Err(error))
    }
}
