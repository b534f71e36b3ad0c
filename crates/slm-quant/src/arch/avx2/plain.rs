//! Products in f32: decoded rows with 16 lanes.

use super::Avx2;
use super::decode::decode_piece;
use super::float::dot_more;
use crate::QMatrix;
use crate::layout::BLOCK_BYTES;
use crate::matmul::Part;

/// As [`scalar::float_strip`].
pub(crate) fn float_strip(s: Avx2, out: &mut [f32], w: &QMatrix, part: Part<'_>, x: &[f32]) {
    s.run(
        #[inline(always)]
        move || {
            let x = &x[part.first_token * w.cols()..];
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

/// One row with `T` tokens.
#[inline(always)]
fn float_row<const T: usize>(
    s: Avx2,
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
    let mut lanes = [[s.set1(0.0); 2]; T];
    let mut at = 0;
    while at < cols {
        let n = PIECE.min(cols - at);
        let bytes = w.blocks(part.first_row + r, at / unit, n / unit, &mut buffer);
        decode_piece(s, encoding, &mut decoded[..n], bytes);
        for t in 0..T {
            dot_more(s, &mut lanes[t], &decoded[..n], &x[(token + t) * cols + at..][..n]);
        }
        at += n;
    }
    for t in 0..T {
        out[(token + t) * part.stride + r] = s.sum_lanes(lanes[t][0], lanes[t][1]);
    }
}
