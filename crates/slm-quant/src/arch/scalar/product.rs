//! Products: int8 (numerics 2 and 3), decoded (numerics 4), and the up-projection of adapters (numerics 7).

use slm_format::Encoding;

use super::blocks::{Block, Form, block, decode_row};
use super::float::Lanes;
use crate::layout::BLOCK_BYTES;
use crate::matmul::Part;
use crate::rows::BLOCK;
use crate::{QMatrix, QuantizedRows};

/// One finite row to 8 bits: `q` like `x`; `d`, `xsum` and `half` (the sum of the first sixteen) one per 32.
pub(crate) fn quantize_row(
    x: &[f32],
    q: &mut [i8],
    d: &mut [f32],
    xsum: &mut [i32],
    half: &mut [i32],
) {
    for (b, x) in x.chunks_exact(BLOCK).enumerate() {
        let q = &mut q[b * BLOCK..][..BLOCK];
        let amax = x.iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
        let id = 127.0 / amax;
        if amax == 0.0 || !id.is_finite() {
            (d[b], xsum[b], half[b]) = (0.0, 0, 0);
            q.fill(0);
            continue;
        }
        d[b] = amax / 127.0;
        for (q, x) in q.iter_mut().zip(x) {
            *q = (x * id).round_ties_even() as i8;
        }
        half[b] = q[..BLOCK / 2].iter().map(|&q| i32::from(q)).sum();
        xsum[b] = half[b] + q[BLOCK / 2..].iter().map(|&q| i32::from(q)).sum::<i32>();
    }
}

/// The int8 products of a part of `w`, in either layout, with rows of `xq`.
pub(crate) fn int8_strip(out: &mut [f32], w: &QMatrix, part: Part<'_>, xq: &QuantizedRows) {
    let per_unit = w.encoding().block_elements() / BLOCK;
    let mut buffer = [0u8; BLOCK_BYTES];
    for r in 0..part.n_rows {
        for t in 0..part.n_tokens {
            out[t * part.stride + r] = 0.0;
        }
        for b in 0..w.cols() / BLOCK {
            let bytes = w.blocks(part.first_row + r, b / per_unit, 1, &mut buffer);
            let block = block(w.encoding(), bytes, b % per_unit);
            for t in 0..part.n_tokens {
                let (q, d, xsum) = xq.padded(part.first_token + t);
                let term = term(&block, &q[b * BLOCK..][..BLOCK], d[b], xsum[b]);
                out[t * part.stride + r] += term;
            }
        }
    }
}

/// As [`int8_strip`], for whole strips.
pub(crate) fn int8_interleaved(out: &mut [f32], w: &QMatrix, part: Part<'_>, xq: &QuantizedRows) {
    int8_strip(out, w, part, xq);
}

/// The term of one block: `dx` and `xsum` are the activation block's.
#[inline(always)]
fn term(block: &Block, q: &[i8], dx: f32, xsum: i32) -> f32 {
    let dot = |h: usize| -> i32 {
        (16 * h..16 * h + 16).map(|i| i32::from(block.w[i]) * i32::from(q[i])).sum()
    };
    let i = block.sc[0] * dot(0) + block.sc[1] * dot(1);
    let scaled = (block.d * dx) * i as f32;
    match block.form {
        Form::Scale => scaled,
        Form::ScaleMin => scaled + block.m * (dx * xsum as f32),
        Form::ScaleMinK => {
            let sum = |h: usize| -> i32 { q[16 * h..][..16].iter().map(|&q| i32::from(q)).sum() };
            let m = block.mn[0] * sum(0) + block.mn[1] * sum(1);
            scaled - (block.m * dx) * m as f32
        }
    }
}

/// The decoded products of a part of `w`, in either layout, with rows of `x` (`[.., cols]`).
pub(crate) fn float_strip(out: &mut [f32], w: &QMatrix, part: Part<'_>, x: &[f32]) {
    /// Decoded at a time: whole blocks of every encoding, and whole rounds of the 16 lanes.
    const PIECE: usize = 256;
    /// Tokens that share one decoding.
    const TILE: usize = 8;
    let (encoding, cols) = (w.encoding(), w.cols());
    let mut decoded = [0.0f32; PIECE];
    let mut buffer = [0u8; BLOCK_BYTES];
    for r in 0..part.n_rows {
        for t0 in (0..part.n_tokens).step_by(TILE) {
            let n_tokens = TILE.min(part.n_tokens - t0);
            let x = &x[(part.first_token + t0) * cols..][..n_tokens * cols];
            let mut lanes = [Lanes::ZERO; TILE];
            for at in (0..cols).step_by(PIECE) {
                let n = PIECE.min(cols - at);
                let unit = encoding.block_elements();
                let bytes = w.blocks(part.first_row + r, at / unit, n / unit, &mut buffer);
                decode_row(encoding, &mut decoded[..n], bytes);
                for (lanes, x) in lanes.iter_mut().zip(x.chunks_exact(cols)) {
                    lanes.dot(&decoded[..n], &x[at..][..n]);
                }
            }
            for (t, lanes) in lanes[..n_tokens].iter().enumerate() {
                out[(t0 + t) * part.stride + r] = lanes.sum();
            }
        }
    }
}

/// The greatest |I| and |M| that numerics 3 can meet for an encoding, with every code, scale and activation at its extreme.
///
/// A sum is exact in f32 when both stay below 2^24.
pub(crate) fn integer_bounds(encoding: Encoding) -> (i64, i64) {
    let (w, sc, mn) = match encoding {
        Encoding::Q4_0 => (8, 1, 0),
        Encoding::Q4_1 => (15, 1, 1),
        Encoding::Q5_0 => (16, 1, 0),
        Encoding::Q5_1 => (31, 1, 1),
        Encoding::Q8_0 => (128, 1, 0),
        Encoding::IQ4_NL => (127, 1, 0),
        Encoding::Q2_K => (3, 15, 15),
        Encoding::Q3_K => (4, 32, 0),
        Encoding::Q4_K => (15, 63, 63),
        Encoding::Q5_K => (31, 63, 63),
        Encoding::Q6_K => (32, 128, 0),
        Encoding::IQ4_XS => (127, 32, 0),
        _ => (0, 0, 0),
    };
    (32 * w * 127 * sc, 32 * 127 * mn)
}
