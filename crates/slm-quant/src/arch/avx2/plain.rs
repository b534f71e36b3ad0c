//! Products in f32: decoded rows with 16 lanes, and the up-projection of adapters with one lane per output.

use slm_format::Encoding;

use super::Avx2;
use super::decode::{decode_piece, widen8};
use super::float::dot_more;
use crate::QMatrix;
use crate::arch::scalar;

/// As [`scalar::float_strip`].
pub(crate) fn float_strip(
    s: Avx2,
    out: &mut [f32],
    w: &QMatrix,
    first_row: usize,
    x: &[f32],
    n_tokens: usize,
) {
    s.run(
        #[inline(always)]
        move || {
            for (r, out) in out.chunks_exact_mut(n_tokens).enumerate() {
                let row = w.row_bytes(first_row + r);
                let cols = w.cols();
                let mut token = 0;
                while token + 4 <= n_tokens {
                    float_row::<4>(
                        s,
                        &mut out[token..],
                        w.encoding(),
                        row,
                        &x[token * cols..],
                        cols,
                    );
                    token += 4;
                }
                while token < n_tokens {
                    float_row::<1>(
                        s,
                        &mut out[token..],
                        w.encoding(),
                        row,
                        &x[token * cols..],
                        cols,
                    );
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
    encoding: Encoding,
    row: &[u8],
    x: &[f32],
    cols: usize,
) {
    /// Decoded at a time: whole blocks of every encoding, and whole rounds of the 16 lanes.
    const PIECE: usize = 256;
    let piece_bytes = PIECE / encoding.block_elements() * encoding.block_bytes();
    let mut decoded = [0.0f32; PIECE];
    let mut lanes = [[s.set1(0.0); 2]; T];
    for (p, bytes) in row.chunks(piece_bytes).enumerate() {
        let n = PIECE.min(cols - p * PIECE);
        decode_piece(s, encoding, &mut decoded[..n], bytes);
        for t in 0..T {
            dot_more(s, &mut lanes[t], &decoded[..n], &x[t * cols + p * PIECE..][..n]);
        }
    }
    for t in 0..T {
        out[t] = s.sum_lanes(lanes[t][0], lanes[t][1]);
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
