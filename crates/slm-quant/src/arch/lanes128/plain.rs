//! Products in f32 and decoders: the sixteen lanes of a row are four vectors.

use slm_format::Encoding;

use super::float::{dot_more, sum_lanes};
use super::{Lanes, chunk};
use crate::QMatrix;
use crate::arch::scalar;
use crate::layout::BLOCK_BYTES;
use crate::matmul::Part;

/// As [`scalar::decode_row`]; quantized types are decoded by it.
pub(crate) fn decode_row<L: Lanes>(s: L, encoding: Encoding, out: &mut [f32], row: &[u8]) {
    assert_eq!(encoding.row_bytes(out.len()), Some(row.len()), "bytes of the row");
    decode_piece(s, encoding, out, row);
}

/// Whole blocks; `bytes` are those of `out`.
#[inline(always)]
fn decode_piece<L: Lanes>(s: L, encoding: Encoding, out: &mut [f32], bytes: &[u8]) {
    match encoding {
        Encoding::F32 => widen::<L, 0>(s, out, bytes),
        Encoding::F16 => widen::<L, 1>(s, out, bytes),
        Encoding::BF16 => widen::<L, 2>(s, out, bytes),
        _ => scalar::decode_row(encoding, out, bytes),
    }
}

/// Plain floats: F32 (0), F16 (1), BF16 (2).
#[inline(always)]
fn widen<L: Lanes, const TYPE: usize>(s: L, out: &mut [f32], bytes: &[u8]) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let (head, tail) = out.as_chunks_mut::<4>();
    for (i, y) in head.iter_mut().enumerate() {
        s.store(y, widen4::<L, TYPE>(s, bytes, 4 * unit * i));
    }
    if !tail.is_empty() {
        let encoding = [Encoding::F32, Encoding::F16, Encoding::BF16][TYPE];
        scalar::decode_row(encoding, tail, &bytes[4 * unit * head.len()..]);
    }
}

/// Four of them from byte `at`.
#[inline(always)]
pub(super) fn widen4<L: Lanes, const TYPE: usize>(s: L, bytes: &[u8], at: usize) -> L::F {
    match TYPE {
        0 => s.floats(s.load_bytes(chunk(bytes, at))),
        1 => s.widen_f16(u64::from_le_bytes(*chunk(bytes, at))),
        _ => s.floats(s.shl(s.widen_u16(u64::from_le_bytes(*chunk(bytes, at))), 16)),
    }
}

/// As [`scalar::float_strip`].
pub(crate) fn float_strip<L: Lanes>(s: L, out: &mut [f32], w: &QMatrix, part: Part<'_>, x: &[f32]) {
    let x = &x[part.first_token * w.cols()..];
    for r in 0..part.n_rows {
        let mut token = 0;
        while token + 4 <= part.n_tokens {
            float_row::<L, 4>(s, out, w, part, r, token, x);
            token += 4;
        }
        while token < part.n_tokens {
            float_row::<L, 1>(s, out, w, part, r, token, x);
            token += 1;
        }
    }
}

/// One row with `T` tokens.
#[inline(always)]
fn float_row<L: Lanes, const T: usize>(
    s: L,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
    r: usize,
    token: usize,
    x: &[f32],
) {
    /// Decoded at a time: whole blocks of every encoding, and whole rounds of the 16 lanes.
    const PIECE: usize = 256;
    let (encoding, cols) = (w.encoding(), w.cols());
    let unit = encoding.block_elements();
    let mut decoded = [0.0f32; PIECE];
    let mut buffer = [0u8; BLOCK_BYTES];
    let mut lanes = [[s.splat(0.0); 4]; T];
    let mut at = 0;
    while at < cols {
        let n = PIECE.min(cols - at);
        let bytes = w.blocks(part.first_row + r, at / unit, n / unit, &mut buffer);
        let decoded = &mut decoded[..n];
        decode_piece(s, encoding, decoded, bytes);
        for t in 0..T {
            dot_more(s, &mut lanes[t], decoded, &x[(token + t) * cols + at..][..n]);
        }
        at += n;
    }
    for t in 0..T {
        out[(token + t) * part.stride + r] = sum_lanes(s, lanes[t]);
    }
}
