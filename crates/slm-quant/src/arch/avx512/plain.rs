//! Products in f32: the sixteen lanes of a row are one vector.

use slm_format::Encoding;

use super::float::dot_more;
use super::{Avx512, F, chunk};
use crate::QMatrix;
use crate::arch::{avx2, scalar};
use crate::layout::BLOCK_BYTES;
use crate::matmul::Part;

/// As [`scalar::float_strip`].
pub(crate) fn float_strip(s: Avx512, out: &mut [f32], w: &QMatrix, part: Part<'_>, x: &[f32]) {
    let x = &x[part.first_token * w.cols()..];
    if w.cols().is_multiple_of(16) {
        match w.encoding() {
            Encoding::F32 => return plain_strip::<0>(s, out, w, part, x),
            Encoding::F16 => return plain_strip::<1>(s, out, w, part, x),
            Encoding::BF16 => return plain_strip::<2>(s, out, w, part, x),
            _ => {}
        }
    }
    s.run(
        #[inline(always)]
        move || {
            for r in 0..part.n_rows {
                let mut token = 0;
                while token + 4 <= part.n_tokens {
                    float_row::<4>(s, out, w, part, r, token, x);
                    token += 4;
                }
                while token < part.n_tokens {
                    float_row::<1>(s, out, w, part, r, token, x);
                    token += 1;
                }
            }
        },
    );
}

/// Rows of plain floats whose length is whole rounds of the 16 lanes, straight from where they stand.
fn plain_strip<const TYPE: usize>(
    s: Avx512,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
    x: &[f32],
) {
    s.run(
        #[inline(always)]
        move || {
            // A few tokens stay in the first cache while all rows pass.
            let mut token = 0;
            while token < part.n_tokens {
                let n = if token + 4 <= part.n_tokens { 4 } else { 1 };
                let step = if n == 4 { 2 } else { 4 };
                let whole = part.n_rows / step * step;
                for r in (0..whole).step_by(step) {
                    match n {
                        4 => plain_tile::<TYPE, 2, 4>(s, out, w, part, r, token, x),
                        _ => plain_tile::<TYPE, 4, 1>(s, out, w, part, r, token, x),
                    }
                }
                for r in whole..part.n_rows {
                    match n {
                        4 => plain_tile::<TYPE, 1, 4>(s, out, w, part, r, token, x),
                        _ => plain_tile::<TYPE, 1, 1>(s, out, w, part, r, token, x),
                    }
                }
                token += n;
            }
        },
    );
}

/// `R` rows with `T` tokens.
#[inline(always)]
fn plain_tile<const TYPE: usize, const R: usize, const T: usize>(
    s: Avx512,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
    r: usize,
    token: usize,
    x: &[f32],
) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let n_rounds = w.cols() / 16;
    let mut rows: [&[u8]; R] = [&[]; R];
    for n in 0..R {
        rows[n] = &w.row_bytes(part.first_row + r + n)[..16 * unit * n_rounds];
    }
    let mut tokens: [&[[f32; 16]]; T] = [&[]; T];
    for t in 0..T {
        tokens[t] = &x[(token + t) * w.cols()..].as_chunks().0[..n_rounds];
    }
    let mut lanes = [[s.set1(0.0); T]; R];
    for at in 0..n_rounds {
        for n in 0..R {
            let w = widen16::<TYPE>(s, rows[n], 16 * unit * at);
            for t in 0..T {
                lanes[n][t] = s.add(lanes[n][t], s.mul(w, pulp::cast(tokens[t][at])));
            }
        }
    }
    for n in 0..R {
        for t in 0..T {
            out[(token + t) * part.stride + r + n] = s.sum_lanes(lanes[n][t]);
        }
    }
}

/// One row with `T` tokens.
#[inline(always)]
fn float_row<const T: usize>(
    s: Avx512,
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
    let mut lanes = [s.set1(0.0); T];
    let mut at = 0;
    while at < cols {
        let n = PIECE.min(cols - at);
        let bytes = w.blocks(part.first_row + r, at / unit, n / unit, &mut buffer);
        let decoded = &mut decoded[..n];
        match encoding {
            Encoding::F32 => widen::<0>(s, decoded, bytes),
            Encoding::F16 => widen::<1>(s, decoded, bytes),
            Encoding::BF16 => widen::<2>(s, decoded, bytes),
            _ => avx2::decode_piece(s.avx2(), encoding, decoded, bytes),
        }
        for t in 0..T {
            lanes[t] = dot_more(s, lanes[t], decoded, &x[(token + t) * cols + at..][..n]);
        }
        at += n;
    }
    for t in 0..T {
        out[(token + t) * part.stride + r] = s.sum_lanes(lanes[t]);
    }
}

/// Plain floats: F32 (0), F16 (1), BF16 (2).
#[inline(always)]
fn widen<const TYPE: usize>(s: Avx512, out: &mut [f32], bytes: &[u8]) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let (head, tail) = out.as_chunks_mut::<16>();
    for (i, y) in head.iter_mut().enumerate() {
        *y = pulp::cast(widen16::<TYPE>(s, bytes, 16 * unit * i));
    }
    if !tail.is_empty() {
        let encoding = [Encoding::F32, Encoding::F16, Encoding::BF16][TYPE];
        scalar::decode_row(encoding, tail, &bytes[16 * unit * head.len()..]);
    }
}

#[inline(always)]
pub(super) fn widen16<const TYPE: usize>(s: Avx512, bytes: &[u8], at: usize) -> F {
    match TYPE {
        0 => pulp::cast(chunk::<u8, 64>(bytes, at)),
        1 => s.load_f16(bytes, at),
        _ => {
            let wide = s.avx512f._mm512_cvtepu16_epi32(pulp::cast(chunk::<u8, 32>(bytes, at)));
            pulp::cast(s.avx512f._mm512_slli_epi32::<16>(wide))
        }
    }
}
