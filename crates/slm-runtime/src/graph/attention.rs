//! Grouped-query attention over the spans that the cache hands out. `docs/numerics.md` §5.

use slm_kv::{KvError, KvRows};
use slm_quant::{Executor, Kernels, Queries};

use crate::graph::forward::Lane;
use crate::graph::scratch::{Blocks, Pool, sized};

/// Queries that go through the cache together at most: a block's tokens of one head, or at one position the heads that share their keys.
const QUERIES: usize = Blocks::LEN;

/// The shape of one layer's attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionShape {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Positions a token sees, itself included.
    pub(crate) window: Option<usize>,
}

/// Attention of all tokens of a pass; their keys and values are in the caches already.
///
/// `heads` and `qkv` are laid out as [`crate::graph::Scratch`] says. A piece of work is a block's tokens of one or more heads that share their
/// keys; each query is computed as if alone, so the split changes no bit.
pub(crate) fn attend(
    heads: &mut [f32],
    pool: &Pool,
    qkv: &[f32],
    blocks: Blocks,
    lanes: &[Lane<'_>],
    layer: usize,
    shape: AttentionShape,
    kernels: Kernels,
    exec: &dyn Executor,
) -> Result<(), KvError> {
    let AttentionShape { n_heads, n_kv_heads, head_dim, .. } = shape;
    let q_width = n_heads * head_dim;
    let row_width = q_width + 2 * n_kv_heads * head_dim;
    let group = n_heads / n_kv_heads;
    let mut n_positions = 0;
    for lane in lanes {
        // Refused here, once: inside the loop the same ranges cannot fail.
        let end = lane.first_position + lane.tokens.len();
        lane.cache.spans(layer, 0..end as u32)?;
        n_positions = n_positions.max(end);
    }
    let heads_per_job = heads_per_job(group, n_kv_heads * blocks.count(), exec.n_workers());
    let jobs_per_block = n_heads / heads_per_job;
    let scores_len = scores_len(blocks, n_heads, n_positions);
    let job_len = heads_per_job * blocks.len * head_dim;
    let work = |job: usize, out: &mut [f32], scores: &mut [f32]| {
        let (block, head) = (job / jobs_per_block, job % jobs_per_block * heads_per_job);
        let rows = blocks.rows(block);
        let q = &qkv[rows.start * row_width..];
        for lane in lanes {
            let (mut row, end) = (lane.first_row.max(rows.start), lane.end_row().min(rows.end));
            while row < end {
                let at = row - rows.start;
                let first_position = lane.first_position + row - lane.first_row;
                let n = QUERIES.min(end - row);
                let run = |n_tokens| Run {
                    lane,
                    layer,
                    first_position,
                    n_tokens,
                    kv_at: head / group * head_dim,
                    kv_width: n_kv_heads * head_dim,
                    shape,
                };
                if n == 1 {
                    let q = &q[at * q_width + head * head_dim..];
                    let out = &mut out[at * head_dim..];
                    let strides = (head_dim, blocks.len * head_dim);
                    run(1).attend(out, scores, q, heads_per_job, strides, kernels);
                } else {
                    for h in 0..heads_per_job {
                        let q = &q[at * q_width + (head + h) * head_dim..];
                        let out = &mut out[(h * blocks.len + at) * head_dim..];
                        run(n).attend(out, scores, q, n, (q_width, head_dim), kernels);
                    }
                }
                row += n;
            }
        }
    };
    exec.for_each_chunk(heads, job_len, &|job, out| {
        pool.with(|scratch| work(job, out, sized(&mut scratch.scores, scores_len)));
    });
    Ok(())
}

/// Scores that one piece of work needs room for; in whole pages of 64 positions, so that it grows seldom.
pub(crate) fn scores_len(blocks: Blocks, n_heads: usize, n_positions: usize) -> usize {
    blocks.len.max(n_heads.min(QUERIES)) * n_positions.next_multiple_of(64)
}

/// How many of the `group` heads that share keys one piece of work takes, when `others` groups are computed beside it: few pieces read the
/// keys less often, many keep all workers busy.
fn heads_per_job(group: usize, others: usize, n_workers: usize) -> usize {
    let fitting = (1..=group.min(QUERIES)).filter(|heads| group.is_multiple_of(*heads));
    let cost = |heads: usize| (group / heads * others).div_ceil(n_workers) * (1 + heads);
    fitting.rev().min_by_key(|&heads| cost(heads)).unwrap_or(1)
}

/// Queries of one sequence: `n_tokens` tokens of one head, or one token of several heads.
struct Run<'a> {
    lane: &'a Lane<'a>,
    layer: usize,
    first_position: usize,
    n_tokens: usize,
    /// First value of the heads' keys in a position's row.
    kv_at: usize,
    /// Values per position.
    kv_width: usize,
    shape: AttentionShape,
}

impl Run<'_> {
    /// Scores, softmax, weighted sum of values, all by position, ascending. `strides` are those of `q` and of `out` from query to query.
    fn attend(
        &self,
        out: &mut [f32],
        scores: &mut [f32],
        q: &[f32],
        n_queries: usize,
        strides: (usize, usize),
        kernels: Kernels,
    ) {
        let head_dim = self.shape.head_dim;
        let first_seen = self.first_seen(0);
        let n_positions = self.first_position + self.n_tokens - first_seen;
        let spans = self
            .lane
            .cache
            .spans(self.layer, first_seen as u32..(first_seen + n_positions) as u32)
            .expect("BUG: a range within a checked range was refused");
        let queries = |query_stride: usize, span_len: u32| Queries {
            n_queries,
            n_positions: span_len as usize,
            head_dim,
            query_stride,
            score_stride: n_positions,
            kv_stride: self.kv_width,
        };
        // A lone token meets each cached row once, and 128 bytes of every row are no stream that memory foresees: a span is asked for while the
        // one before it is computed.
        let lone = self.n_tokens == 1;
        let mut ahead = spans.clone().map(|span| span.k).chain(spans.clone().map(|span| span.v));
        let mut ask = || {
            if let Some(rows) = ahead.next().filter(|_| lone) {
                self.prefetch(rows, kernels);
            }
        };
        ask();
        for span in spans.clone() {
            ask();
            let scores = &mut scores[span.first_position as usize - first_seen..];
            let queries = queries(strides.0, span.n);
            match span.k {
                KvRows::F16(k) => kernels.query_dots_f16(scores, q, &k[self.kv_at..], queries),
                KvRows::F32(k) => kernels.query_dots(scores, q, &k[self.kv_at..], queries),
            }
        }
        let scale = 1.0 / (head_dim as f32).sqrt();
        let mut totals = [0.0f32; QUERIES];
        for (n, total) in totals[..n_queries].iter_mut().enumerate() {
            // What a token does not see weighs nothing: adding +0.0 times a finite value changes no bit of a sum that began at +0.0.
            let token = if self.n_tokens == 1 { 0 } else { n };
            let scores = &mut scores[n * n_positions..][..n_positions];
            let seen =
                self.first_seen(token) - first_seen..self.first_position + token + 1 - first_seen;
            scores[..seen.start].fill(0.0);
            scores[seen.end..].fill(0.0);
            let scores = &mut scores[seen];
            kernels.scale(scores, scale);
            let max = kernels.max(scores);
            kernels.exp_sub(scores, max);
            *total = kernels.sum16(scores);
            out[n * strides.1..][..head_dim].fill(0.0);
        }
        for span in spans {
            ask();
            let scores = &scores[span.first_position as usize - first_seen..];
            let queries = queries(strides.1, span.n);
            match span.v {
                KvRows::F16(v) => kernels.query_sums_f16(out, scores, &v[self.kv_at..], queries),
                KvRows::F32(v) => kernels.query_sums(out, scores, &v[self.kv_at..], queries),
            }
        }
        for (n, &total) in totals[..n_queries].iter().enumerate() {
            kernels.div(&mut out[n * strides.1..][..head_dim], total);
        }
    }

    /// Asks for this run's part of every row.
    fn prefetch(&self, rows: KvRows<'_>, kernels: Kernels) {
        let part = self.kv_at..self.kv_at + self.shape.head_dim;
        match rows {
            KvRows::F16(rows) => {
                rows.chunks(self.kv_width).for_each(|row| kernels.prefetch(&row[part.clone()]));
            }
            KvRows::F32(rows) => {
                rows.chunks(self.kv_width).for_each(|row| kernels.prefetch(&row[part.clone()]));
            }
        }
    }

    /// The first position that token `token` of the run sees.
    fn first_seen(&self, token: usize) -> usize {
        let seen = self.first_position + token + 1;
        self.shape.window.map_or(0, |window| seen.saturating_sub(window))
    }
}
