//! The driver of products: lengths, strips, and the split over an executor.

use slm_format::Encoding;

use crate::arch::is_integer_coded;
use crate::kernels::tier_call;
use crate::layout::{Layout, STRIP_ROWS};
use crate::{Executor, Inline, Kernels, QMatrix, QuantizedRows};

/// Weight bytes (times tokens) below which a piece of work is not worth handing to a worker: that costs about 2 µs.
const MIN_JOB_BYTES: usize = 96 * 1024;
/// Pieces per worker, so that one slow worker does not hold the others up.
const JOBS_PER_WORKER: usize = 2;
/// Tokens that a kernel likes to take together.
const TILE: usize = 8;

/// A rectangle of a product. Element (token `t`, row `r`), counted within it, goes to `out[t * stride + r]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) first_row: usize,
    pub(crate) n_rows: usize,
    pub(crate) first_token: usize,
    pub(crate) n_tokens: usize,
    pub(crate) stride: usize,
}

pub(crate) fn matmul(
    kernels: Kernels,
    exec: &dyn Executor,
    out: &mut [f32],
    w: &QMatrix,
    x: &[f32],
    xq: Option<&QuantizedRows>,
) {
    let xq = xq.filter(|_| is_integer_coded(w.encoding()));
    let n_tokens = match xq {
        Some(xq) => {
            assert_eq!(xq.cols(), w.cols(), "columns of the quantized rows");
            xq.n_rows()
        }
        None => {
            assert!(x.len().is_multiple_of(w.cols()), "columns of the activations");
            x.len() / w.cols()
        }
    };
    let n_rows = w.rows();
    assert_eq!(out.len(), n_tokens * n_rows, "output of the product");
    if out.is_empty() {
        return;
    }

    let compute = |out: &mut [f32], part: Part| match xq {
        Some(xq) => int8_part(kernels, out, w, part, xq),
        None => tier_call!(kernels, float_strip(out, w, part, x)),
    };
    let all = Part { first_row: 0, n_rows, first_token: 0, n_tokens, stride: n_rows };
    let row_bytes = w.data().len() / n_rows;
    if n_tokens >= TILE * exec.n_workers().max(2) {
        // Whole rows of the output for a worker: nothing to bring in order afterwards.
        let tokens = job_units(exec, n_tokens, row_bytes.saturating_mul(n_rows), TILE);
        run(exec, out, tokens * n_rows, &|job, out| {
            let n_tokens = out.len() / n_rows;
            compute(out, Part { first_token: job * tokens, n_tokens, ..all });
        });
        return;
    }
    let rows = job_units(exec, n_rows, row_bytes.saturating_mul(n_tokens), STRIP_ROWS);
    if n_tokens == 1 {
        run(exec, out, rows, &|job, out| {
            compute(out, Part { first_row: job * rows, n_rows: out.len(), ..all });
        });
    } else if rows >= n_rows {
        compute(out, all);
    } else {
        // A few tokens, and rows split: each job's rows lie together, then go to their places.
        let mut staged = vec![0.0f32; out.len()];
        run(exec, &mut staged, rows * n_tokens, &|job, out| {
            let n_rows = out.len() / n_tokens;
            compute(out, Part { first_row: job * rows, n_rows, stride: n_rows, ..all });
        });
        for (job, staged) in staged.chunks(rows * n_tokens).enumerate() {
            let len = staged.len() / n_tokens;
            for (t, staged) in staged.chunks_exact(len).enumerate() {
                out[t * n_rows + job * rows..][..len].copy_from_slice(staged);
            }
        }
    }
}

/// Strips by the interleaved kernels, rows that stand by themselves by the row-major ones.
fn int8_part(kernels: Kernels, out: &mut [f32], w: &QMatrix, part: Part, xq: &QuantizedRows) {
    let strip_rows = match w.layout() {
        Layout::RowMajor => 0,
        Layout::Interleaved => {
            let whole = w.rows() / STRIP_ROWS * STRIP_ROWS;
            part.n_rows.min(whole.saturating_sub(part.first_row))
        }
    };
    if strip_rows > 0 {
        let part = Part { n_rows: strip_rows, ..part };
        tier_call!(kernels, int8_interleaved(out, w, part, xq));
    }
    if strip_rows < part.n_rows {
        let (first_row, n_rows) = (part.first_row + strip_rows, part.n_rows - strip_rows);
        let part = Part { first_row, n_rows, ..part };
        tier_call!(kernels, int8_strip(&mut out[strip_rows..], w, part, xq));
    }
}

pub(crate) fn lora_up(
    kernels: Kernels,
    exec: &dyn Executor,
    y: &mut [f32],
    s: f32,
    bt: &QMatrix,
    z: &[f32],
    n_tokens: usize,
) {
    assert!(
        matches!(bt.encoding(), Encoding::F32 | Encoding::F16 | Encoding::BF16),
        "encoding of the up-projection"
    );
    assert_eq!(y.len(), n_tokens * bt.cols(), "outputs of the up-projection");
    assert_eq!(z.len(), n_tokens * bt.rows(), "rank of the up-projection");
    if n_tokens == 0 {
        return;
    }
    let (rank, cols) = (bt.rows(), bt.cols());
    let column_bytes = rank.max(1) * bt.encoding().block_bytes();
    if n_tokens == 1 {
        let len = job_units(exec, cols, column_bytes, 64);
        run(exec, y, len, &|job, y| tier_call!(kernels, lora_strip(y, s, bt, z, job * len)));
        return;
    }
    let tokens = job_units(exec, n_tokens, column_bytes.saturating_mul(cols), 1);
    run(exec, y, tokens * cols, &|job, y| {
        for (t, y) in y.chunks_exact_mut(cols).enumerate() {
            let z = &z[(job * tokens + t) * rank..][..rank];
            tier_call!(kernels, lora_strip(y, s, bt, z, 0));
        }
    });
}

/// How many of `n` units (of `unit_bytes` each) one piece of work takes: a multiple of `multiple`, worth its hand-over.
fn job_units(exec: &dyn Executor, n: usize, unit_bytes: usize, multiple: usize) -> usize {
    let workers = exec.n_workers();
    if workers <= 1 {
        return n;
    }
    let worthwhile = MIN_JOB_BYTES.div_ceil(unit_bytes.max(1));
    n.div_ceil(workers * JOBS_PER_WORKER).max(worthwhile).next_multiple_of(multiple).min(n)
}

/// A single piece stays on the calling thread.
fn run(
    exec: &dyn Executor,
    out: &mut [f32],
    chunk_len: usize,
    f: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    if out.len() <= chunk_len {
        Inline.for_each_chunk(out, chunk_len, f);
    } else {
        exec.for_each_chunk(out, chunk_len, f);
    }
}
