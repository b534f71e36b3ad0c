//! Products in f32: decoded rows with 16 lanes, and the up-projection of adapters with one lane per output.

use slm_format::Encoding;

use super::Avx2;
use super::decode::{decode_piece, widen8};
use super::float::dot_more;
use crate::QMatrix;
use crate::arch::scalar;
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

/// As [`scalar::lora_strip`].
pub(crate) fn lora_strip(s: Avx2, y: &mut [f32], f: f32, bt: &QMatrix, z: &[f32], first: usize) {
    let whole = y.len() / 8 * 8;
    let (head, tail) = y.split_at_mut(whole);
    match bt.encoding() {
        Encoding::F32 => lora_head::<0>(s, head, f, bt, z, first),
        Encoding::F16 => lora_head::<1>(s, head, f, bt, z, first),
        _ => lora_head::<2>(s, head, f, bt, z, first),
    }
    scalar::lora_strip(tail, f, bt, z, first + whole);
}

fn lora_head<const TYPE: usize>(
    s: Avx2,
    y: &mut [f32],
    f: f32,
    bt: &QMatrix,
    z: &[f32],
    first: usize,
) {
    s.run(
        #[inline(always)]
        move || {
            let wide = y.len() / 32 * 32;
            for at in (0..wide).step_by(32) {
                lora_piece::<TYPE, 4>(s, &mut y[at..], f, bt, z, first + at);
            }
            for at in (wide..y.len()).step_by(8) {
                lora_piece::<TYPE, 1>(s, &mut y[at..], f, bt, z, first + at);
            }
        },
    );
}

/// `8 * V` outputs.
#[inline(always)]
fn lora_piece<const TYPE: usize, const V: usize>(
    s: Avx2,
    y: &mut [f32],
    f: f32,
    bt: &QMatrix,
    z: &[f32],
    at: usize,
) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let mut u = [s.set1(0.0); V];
    for (r, &z) in z.iter().enumerate() {
        let row = &bt.row_bytes(r)[at * unit..][..8 * V * unit];
        let z = s.set1(z);
        for v in 0..V {
            u[v] = s.add(u[v], s.mul(z, widen8::<TYPE>(s, row, 8 * v * unit)));
        }
    }
    let f = s.set1(f);
    for v in 0..V {
        let y: &mut [f32; 8] = y[8 * v..].first_chunk_mut().expect("BUG: whole vectors");
        s.store(y, s.add(s.load(y), s.mul(f, u[v])));
    }
}
