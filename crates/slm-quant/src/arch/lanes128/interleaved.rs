//! Int8 products of interleaved strips: four rows are the four lanes, each adding its blocks' terms in order.

use slm_format::Encoding;

use super::strips::{self, Form, Strip, Weights};
use super::{Dots, FloatsOf, Lanes, chunk, chunk_mut, unrolled};
use crate::arch::scalar;
use crate::layout::STRIP_ROWS;
use crate::matmul::Part;
use crate::rows::{BLOCK, BlockSums, Tile, tile_rows};
use crate::{QMatrix, QuantizedRows};

/// As [`scalar::int8_interleaved`].
pub(crate) fn int8_interleaved<D: Dots>(
    d: D,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
    xq: &QuantizedRows,
) {
    match w.encoding() {
        Encoding::Q4_0 => product::<D, strips::Q4_0>(d, out, w, part, xq),
        Encoding::Q4_1 => product::<D, strips::Q4_1>(d, out, w, part, xq),
        Encoding::Q5_0 => product::<D, strips::Q5_0>(d, out, w, part, xq),
        Encoding::Q5_1 => product::<D, strips::Q5_1>(d, out, w, part, xq),
        Encoding::Q8_0 => product::<D, strips::Q8_0>(d, out, w, part, xq),
        Encoding::Q4_K => product::<D, strips::Q4K>(d, out, w, part, xq),
        Encoding::Q5_K => product::<D, strips::Q5K>(d, out, w, part, xq),
        Encoding::Q6_K => product::<D, strips::Q6K>(d, out, w, part, xq),
        _ => scalar::int8_interleaved(out, w, part, xq),
    }
}

fn product<D: Dots, K: Strip>(
    d: D,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
    xq: &QuantizedRows,
) {
    let first = part.first_row / STRIP_ROWS;
    for i in 0..part.n_rows / STRIP_ROWS {
        let strip = w.strip_bytes(first + i, 1);
        let out = &mut out[i * STRIP_ROWS..];
        // All tokens before the next strip: this one stays in the first cache.
        let mut token = 0;
        while token < part.n_tokens {
            let out = &mut out[token * part.stride..];
            let from = part.first_token + token;
            let n = tile_rows(part.n_tokens - token);
            // Up to eight sums at a time: weights and sums share 32 registers. One token reads the strip once.
            match n {
                8 => tile::<D, K, 8, 1>(d, out, part.stride, strip, &xq.tile(from)),
                4 => tile::<D, K, 4, 2>(d, out, part.stride, strip, &xq.tile(from)),
                2 => tile::<D, K, 2, 4>(d, out, part.stride, strip, &xq.tile(from)),
                _ => tile::<D, K, 1, 4>(d, out, part.stride, strip, &xq.tile(from)),
            }
            token += n;
        }
    }
}

/// A strip with `T` tokens, `G` groups of four rows at a time.
fn tile<D: Dots, K: Strip, const T: usize, const G: usize>(
    d: D,
    out: &mut [f32],
    stride: usize,
    strip: &[u8],
    x: &Tile<T>,
) {
    for group in (0..STRIP_ROWS / 4).step_by(G) {
        d.run(
            #[inline(always)]
            || groups::<D, K, T, G>(d, &mut out[4 * group..], stride, strip, x, group),
        );
    }
}

#[inline(always)]
fn groups<D: Dots, K: Strip, const T: usize, const G: usize>(
    d: D,
    out: &mut [f32],
    stride: usize,
    strip: &[u8],
    x: &Tile<T>,
    group: usize,
) {
    // It never is greater; said here, the bounds of every load fold.
    let group = group.min(STRIP_ROWS / 4 - G);
    let s = d.lanes();
    let units = strip.chunks_exact(STRIP_ROWS * K::UNIT);
    let codes = x.codes.chunks_exact(K::BLOCKS);
    let sums = x.sums.chunks_exact(K::BLOCKS);
    let mut acc = [[s.splat(0.0); G]; T];
    for (unit, (codes, sums)) in units.zip(codes.zip(sums)) {
        unrolled!(B in 0 1 2 3 4 5 6 7; if B < K::BLOCKS, {
            let (codes, sums) = (&codes[B], &sums[B]);
            unrolled!(J in 0 1 2 3; if J < G, {
                let w = K::unpack::<D, B>(d, unit, group + J);
                unrolled!(I in 0 1 2 3 4 5 6 7; if I < T, {
                    acc[I][J] = s.add(acc[I][J], term::<D, K>(d, &w, &codes[I], &sums[I]));
                });
            });
        });
    }
    unrolled!(I in 0 1 2 3 4 5 6 7; if I < T, {
        unrolled!(J in 0 1 2 3; if J < G, {
            s.store(chunk_mut(out, I * stride + 4 * J), acc[I][J]);
        });
    });
}

/// The terms of one block of four rows, by the contract's formula.
#[inline(always)]
fn term<D: Dots, K: Strip>(d: D, w: &Weights<D>, q: &[i8; BLOCK], sums: &BlockSums) -> FloatsOf<D> {
    let s = d.lanes();
    let dot = |sums, h: usize| match K::FIT {
        4 => d.dot::<4>(sums, &w.w[h], &d.quads(chunk(q, 16 * h))),
        _ => d.dot::<2>(sums, &w.w[h], &d.quads(chunk(q, 16 * h))),
    };
    let total = if K::HALVES {
        let centred = |h| s.add_i32(d.total(dot(d.none(), h)), s.splat_i32(sums.less_32[h]));
        s.add_i32(s.mul_i32(centred(0), w.sc[0]), s.mul_i32(centred(1), w.sc[1]))
    } else {
        let total = d.total(dot(dot(d.none(), 0), 1));
        let total = match K::OFFSET {
            0 => total,
            offset => s.add_i32(total, s.splat_i32(sums.less(offset))),
        };
        if K::SCALED { s.mul_i32(total, w.sc[0]) } else { total }
    };
    let dx = s.splat(sums.d);
    let scaled = s.mul(s.mul(w.d, dx), s.to_f32(total));
    match K::FORM {
        Form::Scale => scaled,
        Form::ScaleMin => s.add(scaled, s.mul(w.m, s.splat(sums.sx))),
        Form::ScaleMinK => {
            let minima = s.mul(w.mn, s.splat(sums.xsum));
            s.sub(scaled, s.mul(s.mul(w.m, dx), minima))
        }
    }
}
