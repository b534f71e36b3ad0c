//! The driver of products: lengths, strips, and the split over an executor.

use std::cell::Cell;

use crate::arch::is_integer_coded;
use crate::kernels::tier_call;
use crate::layout::{Layout, STRIP_ROWS};
use crate::{Executor, Inline, Kernels, QMatrix, QuantizedRows};

/// Weight bytes (times tokens) below which a piece of work is not worth handing to a worker: reading them takes about as long.
const MIN_JOB_BYTES: usize = 24 * 1024;
/// The same for rows of plain floats given f32 rows.
const MIN_FLOAT_JOB_BYTES: usize = 32 * 1024;
/// Rows of plain floats that a kernel likes to take together.
const FLOAT_ROWS: usize = 4;
/// Pieces per worker of a large product, so that one slow worker does not hold the others up.
const JOBS_PER_WORKER: usize = 2;
/// Weight bytes (times tokens) for each worker up to which it takes them as one piece: beginning a second costs more than an uneven end.
const ONE_JOB_BYTES: usize = 1 << 20;
/// Tokens that a kernel likes to take together.
const TILE: usize = 8;

/// A finished piece of a product: rows `first_row ..` of matrix `product` for tokens `first_token ..`. Its values lie together,
/// `[n_tokens, n_rows]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Which of the products made together.
    pub product: usize,
    /// First row of the matrix: first output element of each token.
    pub first_row: usize,
    /// Rows.
    pub n_rows: usize,
    /// First token.
    pub first_token: usize,
    /// Tokens.
    pub n_tokens: usize,
}

/// What is done with each piece as soon as it is computed, on the thread that computed it.
pub type Then<'a> = &'a (dyn Fn(Piece, &mut [f32]) + Sync);
/// [`Then`] for two products in step.
pub type ThenPair<'a> = &'a (dyn Fn(Piece, &mut [f32], &mut [f32]) + Sync);

/// Called before each piece of a lone token's product, on the thread that computes it. Gives what is read right after the piece: that is asked
/// for a line at a time while the piece is computed, so that it is near by then, which changes nothing but time.
pub type Ahead<'a> = &'a (dyn Fn(Piece) -> &'a [u8] + Sync);

/// A rectangle of a product. Element (token `t`, row `r`), counted within it, goes to `out[t * stride + r]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) first_row: usize,
    pub(crate) n_rows: usize,
    pub(crate) first_token: usize,
    pub(crate) n_tokens: usize,
    pub(crate) stride: usize,
    /// Read after it; to be asked for meanwhile.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "asked for with x86 only"))]
    pub(crate) ahead: &'a [u8],
}

/// The activations of a product: f32 rows, and the same rows in 8 bits where there are such.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) xq: Option<&'a QuantizedRows>,
}

pub(crate) fn matmul(
    kernels: Kernels,
    exec: &dyn Executor,
    out: &mut [f32],
    w: &QMatrix,
    rows: Rows<'_>,
) {
    let (outs, ws) = ([out, &mut [][..], &mut []], [Some(w), None, None]);
    matmul_each(kernels, exec, outs, ws, rows, None, &|_, _| {});
}

/// Up to three products of the same rows, handed out together.
pub(crate) fn matmul_each(
    kernels: Kernels,
    exec: &dyn Executor,
    outs: [&mut [f32]; 3],
    ws: [Option<&QMatrix>; 3],
    rows: Rows<'_>,
    ahead: Option<Ahead<'_>>,
    then: Then<'_>,
) {
    let mut n_tokens = 0;
    for (out, w) in outs.iter().zip(ws) {
        let Some(w) = w else {
            assert!(out.is_empty(), "an output without a matrix");
            continue;
        };
        n_tokens = rows.n_tokens(w);
        assert_eq!(out.len(), n_tokens * w.rows(), "output of the product");
    }
    if n_tokens == 0 {
        return;
    }
    let ahead = ahead.filter(|_| n_tokens == 1);
    let compute = |piece: Piece, stride: usize, out: &mut [f32]| {
        let w = ws[piece.product].expect("BUG: a piece without a matrix");
        part(kernels, out, w, piece, stride, rows, ahead.map_or(&[], |ahead| ahead(piece)));
    };
    let n_rows = |n: usize| ws[n].map_or(1, QMatrix::rows);
    let bytes = |n: usize| ws[n].map_or(0, |w| w.data().len());
    let whole = |product: usize, first_token: usize, n_tokens: usize| Piece {
        product,
        first_row: 0,
        n_rows: n_rows(product),
        first_token,
        n_tokens,
    };
    if n_tokens >= TILE * exec.n_workers().max(2) {
        // Whole rows of the output for a worker: nothing to bring in order afterwards.
        let all_bytes = bytes(0) + bytes(1) + bytes(2);
        let tokens = job_units(exec, n_tokens, all_bytes, TILE);
        run_three(exec, outs, [0, 1, 2].map(|n| tokens * n_rows(n)), &|product, job, out| {
            let piece = whole(product, job * tokens, out.len() / n_rows(product));
            compute(piece, piece.n_rows, out);
            then(piece, out);
        });
        return;
    }
    let all_rows: usize = (0..3).filter(|&n| ws[n].is_some()).map(n_rows).sum();
    let row_bytes = (bytes(0) + bytes(1) + bytes(2)) / all_rows;
    let unit_bytes = row_bytes.saturating_mul(n_tokens);
    let split = match rows.xq {
        Some(_) => job_units(exec, all_rows, unit_bytes, STRIP_ROWS),
        None => float_units(exec, all_rows, unit_bytes),
    };
    let rows_piece = |product: usize, job: usize, len: usize| Piece {
        product,
        first_row: job * split,
        n_rows: len / n_tokens,
        first_token: 0,
        n_tokens,
    };
    let lens = [split * n_tokens; 3];
    let finish = |product: usize, job: usize, out: &mut [f32]| {
        let piece = rows_piece(product, job, out.len());
        compute(piece, piece.n_rows, out);
        then(piece, out);
    };
    if n_tokens == 1 || split >= all_rows {
        let lens = [0, 1, 2].map(|n| if split >= all_rows { outs[n].len() } else { lens[n] });
        return run_three(exec, outs, lens, &finish);
    }
    // A few tokens, and rows split: each job's rows lie together, then go to their places.
    with_staging(outs.iter().map(|out| out.len()).sum(), |staged| {
        let (a, rest) = staged.split_at_mut(outs[0].len());
        let (b, c) = rest.split_at_mut(outs[1].len());
        exec.for_each_chunk_of([&mut *a, &mut *b, &mut *c], lens, &finish);
        for ((out, staged), n) in outs.into_iter().zip([&*a, &*b, &*c]).zip(0..3) {
            for (job, staged) in staged.chunks(split * n_tokens).enumerate() {
                let len = staged.len() / n_tokens;
                for (t, staged) in staged.chunks_exact(len).enumerate() {
                    out[t * n_rows(n) + job * split..][..len].copy_from_slice(staged);
                }
            }
        }
    });
}

/// Two products of one shape and the same rows, in step: a piece of both is computed before `then` sees it.
pub(crate) fn matmul_pair(
    kernels: Kernels,
    exec: &dyn Executor,
    outs: [&mut [f32]; 2],
    ws: [&QMatrix; 2],
    rows: Rows<'_>,
    ahead: Option<Ahead<'_>>,
    then: ThenPair<'_>,
) {
    let n_tokens = rows.n_tokens(ws[0]);
    let n_rows = ws[0].rows();
    assert_eq!((ws[1].rows(), ws[1].cols()), (n_rows, ws[0].cols()), "shapes of a pair");
    let [a, b] = outs;
    assert_eq!(a.len(), n_tokens * n_rows, "output of the product");
    assert_eq!(b.len(), a.len(), "outputs of a pair");
    if n_tokens == 0 {
        return;
    }
    let ahead = ahead.filter(|_| n_tokens == 1);
    let finish = |piece: Piece, a: &mut [f32], b: &mut [f32]| {
        for (product, out) in [&mut *a, &mut *b].into_iter().enumerate() {
            let piece = Piece { product, ..piece };
            let ahead = ahead.map_or(&[][..], |ahead| ahead(piece));
            part(kernels, out, ws[product], piece, piece.n_rows, rows, ahead);
        }
        then(piece, a, b);
    };
    let row_bytes = (ws[0].data().len() + ws[1].data().len()) / n_rows;
    if n_tokens >= TILE * exec.n_workers().max(2) {
        let tokens = job_units(exec, n_tokens, row_bytes.saturating_mul(n_rows), TILE);
        let len = tokens * n_rows;
        return exec.for_each_chunk_pair(a, len, b, len, &|job, a, b| {
            let (first_token, n_tokens) = (job * tokens, a.len() / n_rows);
            finish(Piece { product: 0, first_row: 0, n_rows, first_token, n_tokens }, a, b);
        });
    }
    let split = job_units(exec, n_rows, row_bytes.saturating_mul(n_tokens), STRIP_ROWS);
    let by_rows = |job: usize, a: &mut [f32], b: &mut [f32]| {
        let n_rows = a.len() / n_tokens;
        let piece = Piece { product: 0, first_row: job * split, n_rows, first_token: 0, n_tokens };
        finish(piece, a, b);
    };
    let len = split * n_tokens;
    if n_tokens == 1 || split >= n_rows {
        return exec.for_each_chunk_pair(a, len, b, len, &by_rows);
    }
    with_staging(2 * a.len(), |staged| {
        let (staged_a, staged_b) = staged.split_at_mut(a.len());
        exec.for_each_chunk_pair(staged_a, len, staged_b, len, &by_rows);
        for (out, staged) in [(a, &*staged_a), (b, &*staged_b)] {
            for (job, staged) in staged.chunks(len).enumerate() {
                let len = staged.len() / n_tokens;
                for (t, staged) in staged.chunks_exact(len).enumerate() {
                    out[t * n_rows + job * split..][..len].copy_from_slice(staged);
                }
            }
        }
    });
}

impl Rows<'_> {
    /// How many rows a product with `w` has.
    fn n_tokens(&self, w: &QMatrix) -> usize {
        match self.xq.filter(|_| is_integer_coded(w.encoding())) {
            Some(xq) => {
                assert_eq!(xq.cols(), w.cols(), "columns of the quantized rows");
                xq.n_rows()
            }
            None => {
                assert!(self.x.len().is_multiple_of(w.cols()), "columns of the activations");
                self.x.len() / w.cols()
            }
        }
    }
}

/// A piece, in 8 bits where both sides are such.
fn part(
    kernels: Kernels,
    out: &mut [f32],
    w: &QMatrix,
    piece: Piece,
    stride: usize,
    rows: Rows<'_>,
    ahead: &[u8],
) {
    let Piece { first_row, n_rows, first_token, n_tokens, .. } = piece;
    let part = Part { first_row, n_rows, first_token, n_tokens, stride, ahead };
    match rows.xq.filter(|_| is_integer_coded(w.encoding())) {
        Some(xq) => int8_part(kernels, out, w, part, xq),
        None => tier_call!(kernels, float_strip(out, w, part, rows.x)),
    }
}

/// Strips by the interleaved kernels, rows that stand by themselves by the row-major ones.
fn int8_part(kernels: Kernels, out: &mut [f32], w: &QMatrix, part: Part<'_>, xq: &QuantizedRows) {
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

/// [`job_units`] for rows that are decoded one by one or are plain floats; whole strips all the same where these are many.
pub(crate) fn float_units(exec: &dyn Executor, n: usize, unit_bytes: usize) -> usize {
    let multiple = if n >= 4 * STRIP_ROWS { STRIP_ROWS } else { FLOAT_ROWS };
    let workers = exec.n_workers();
    if workers <= 1 {
        return n;
    }
    let worthwhile = MIN_FLOAT_JOB_BYTES.div_ceil(unit_bytes.max(1));
    n.div_ceil(workers).max(worthwhile).next_multiple_of(multiple).min(n)
}

/// How many of `n` units (of `unit_bytes` each) one piece of work takes: a multiple of `multiple`, worth its hand-over.
fn job_units(exec: &dyn Executor, n: usize, unit_bytes: usize, multiple: usize) -> usize {
    let workers = exec.n_workers();
    if workers <= 1 {
        return n;
    }
    let worthwhile = MIN_JOB_BYTES.div_ceil(unit_bytes.max(1));
    let jobs = match n.div_ceil(workers).saturating_mul(unit_bytes) {
        ..=ONE_JOB_BYTES => workers,
        _ => workers * JOBS_PER_WORKER,
    };
    n.div_ceil(jobs).max(worthwhile).next_multiple_of(multiple).min(n)
}

/// Pieces that are one per buffer stay on the calling thread.
fn run_three(
    exec: &dyn Executor,
    outs: [&mut [f32]; 3],
    lens: [usize; 3],
    f: &(dyn Fn(usize, usize, &mut [f32]) + Sync),
) {
    if outs.iter().zip(lens).all(|(out, len)| out.len() <= len) {
        Inline.for_each_chunk_of(outs, lens, f);
    } else {
        exec.for_each_chunk_of(outs, lens, f);
    }
}

/// A buffer of the thread's own that keeps its size, so that a loop of products allocates only once.
fn with_staging(len: usize, f: impl FnOnce(&mut [f32])) {
    thread_local!(static STAGING: Cell<Vec<f32>> = const { Cell::new(Vec::new()) });
    // Taken, not borrowed: while this thread waits for its pieces it may run another product.
    let mut buffer = STAGING.take();
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    f(&mut buffer[..len]);
    STAGING.set(buffer);
}
