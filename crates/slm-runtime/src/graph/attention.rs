//! Grouped-query attention over the spans that the cache hands out. `docs/numerics.md` §5.

use slm_kv::{KvCache, KvError, KvRows, KvSpans};
use slm_quant::{Executor, Kernels};

/// The shape of one layer's attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionShape {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Positions a token sees, itself included.
    pub(crate) window: Option<usize>,
}

/// Attention of `n_tokens` queries whose positions start at `first_position`; their keys and values are in the cache already.
///
/// `heads` is `[n_heads, n_tokens, head_dim]`, `scores` is `[n_heads, positions]`, `q` is `[n_tokens, n_heads * head_dim]`. Heads run in parallel;
/// each is computed alone, so the split changes no bit.
pub(crate) fn attend(
    heads: &mut [f32],
    scores: &mut [f32],
    q: &[f32],
    cache: &KvCache,
    layer: usize,
    first_position: usize,
    shape: AttentionShape,
    kernels: Kernels,
    exec: &dyn Executor,
) -> Result<(), KvError> {
    let AttentionShape { n_heads, n_kv_heads, head_dim, window } = shape;
    let q_width = n_heads * head_dim;
    let n_tokens = q.len() / q_width;
    let scores_len = scores.len() / n_heads;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let group = n_heads / n_kv_heads;
    let width = n_kv_heads * head_dim;
    // Refused here, once: inside the loop the same ranges cannot fail.
    cache.spans(layer, 0..(first_position + n_tokens) as u32)?;
    exec.for_each_chunk_pair(
        heads,
        n_tokens * head_dim,
        scores,
        scores_len,
        &|head, out, scores| {
            let kv_at = head / group * head_dim;
            for (t, out) in out.chunks_exact_mut(head_dim).enumerate() {
                let position = first_position + t;
                let first_seen = window.map_or(0, |window| (position + 1).saturating_sub(window));
                let q = &q[t * q_width + head * head_dim..][..head_dim];
                let scores = &mut scores[..position + 1 - first_seen];
                let seen = first_seen as u32..position as u32 + 1;
                let spans = cache
                    .spans(layer, seen)
                    .expect("BUG: a range within a checked range was refused");
                one_query(
                    out,
                    scores,
                    q,
                    spans,
                    KvPlace { first_seen, width, kv_at },
                    scale,
                    kernels,
                );
            }
        },
    );
    Ok(())
}

/// Where a head's rows are in the spans.
#[derive(Debug, Clone, Copy)]
struct KvPlace {
    /// First position of the spans.
    first_seen: usize,
    /// Values per position.
    width: usize,
    /// First value of this head in a position's row.
    kv_at: usize,
}

/// One query of one head: scores, softmax, weighted sum of values, all by position, ascending.
fn one_query(
    out: &mut [f32],
    scores: &mut [f32],
    q: &[f32],
    spans: KvSpans<'_>,
    place: KvPlace,
    scale: f32,
    kernels: Kernels,
) {
    let KvPlace { first_seen, width, kv_at } = place;
    for span in spans.clone() {
        let scores = &mut scores[span.first_position as usize - first_seen..][..span.n as usize];
        match span.k {
            KvRows::F16(k) => kernels.dots16_f16(scores, q, &k[kv_at..], width),
            KvRows::F32(k) => kernels.dots16(scores, q, &k[kv_at..], width),
        }
    }
    kernels.scale(scores, scale);
    let max = kernels.max(scores);
    kernels.exp_sub(scores, max);
    let total = kernels.sum16(scores);
    out.fill(0.0);
    for span in spans {
        let scores = &scores[span.first_position as usize - first_seen..][..span.n as usize];
        match span.v {
            KvRows::F16(v) => kernels.weighted_sum_f16(out, scores, &v[kv_at..], width),
            KvRows::F32(v) => kernels.weighted_sum(out, scores, &v[kv_at..], width),
        }
    }
    kernels.div(out, total);
}

/// `[n_heads, n_tokens, head_dim]` to `[n_tokens, n_heads * head_dim]`.
pub(crate) fn by_token(out: &mut [f32], heads: &[f32], n_heads: usize, head_dim: usize) {
    let q_width = n_heads * head_dim;
    let n_tokens = heads.len() / q_width;
    for (t, row) in out.chunks_exact_mut(q_width).enumerate() {
        for (head, part) in row.chunks_exact_mut(head_dim).enumerate() {
            part.copy_from_slice(&heads[(head * n_tokens + t) * head_dim..][..head_dim]);
        }
    }
}
