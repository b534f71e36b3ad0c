//! The driver of products: lengths, strips, and the split over an executor.

use slm_format::Encoding;

use crate::arch::is_integer_coded;
use crate::kernels::tier_call;
use crate::{Executor, Inline, Kernels, QMatrix, QuantizedRows};

/// Rows that a kernel likes to take together; strips are multiples of it.
pub(crate) const ROWS: usize = 8;

/// Weight bytes (times tokens) below which a piece of work is not worth handing to a worker.
const MIN_JOB_BYTES: usize = 64 * 1024;
/// Pieces per worker, so that one slow worker does not hold the others up.
const JOBS_PER_WORKER: usize = 4;

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
    assert_eq!(out.len(), n_tokens * w.rows(), "output of the product");
    if out.is_empty() {
        return;
    }

    let strip = |first_row: usize, out: &mut [f32]| match xq {
        Some(xq) => tier_call!(kernels, int8_strip(out, w, first_row, xq)),
        None => tier_call!(kernels, float_strip(out, w, first_row, x, n_tokens)),
    };
    let row_bytes = w.data().len() / w.rows();
    let rows = job_units(exec, w.rows(), row_bytes.saturating_mul(n_tokens), ROWS);
    if n_tokens == 1 {
        run(exec, out, rows, &|job, out| strip(job * rows, out));
        return;
    }
    // Strips are contiguous only when a row's tokens lie together: computed transposed, then turned.
    let mut turned = vec![0.0f32; out.len()];
    run(exec, &mut turned, rows * n_tokens, &|job, out| strip(job * rows, out));
    transpose(exec, out, &turned, w.rows(), n_tokens);
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

/// `out` (`[n_tokens, rows]`) from `turned` (`[rows, n_tokens]`).
fn transpose(exec: &dyn Executor, out: &mut [f32], turned: &[f32], rows: usize, n_tokens: usize) {
    /// A square of this side stays in the first cache.
    const SIDE: usize = 16;
    let tokens = job_units(exec, n_tokens, rows * 4, SIDE);
    run(exec, out, tokens * rows, &|job, out| {
        let first = job * tokens;
        let n = out.len() / rows;
        for t0 in (0..n).step_by(SIDE) {
            for r0 in (0..rows).step_by(SIDE) {
                for t in t0..n.min(t0 + SIDE) {
                    let r1 = rows.min(r0 + SIDE);
                    for (r, y) in (r0..r1).zip(&mut out[t * rows + r0..t * rows + r1]) {
                        *y = turned[r * n_tokens + first + t];
                    }
                }
            }
        }
    });
}
