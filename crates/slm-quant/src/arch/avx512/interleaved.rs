//! Int8 products of interleaved strips: sixteen rows are the sixteen lanes, each adding its blocks' terms in order.

use slm_format::Encoding;

use super::strips::{self, Form, Strip, Weights};
use super::{Avx512, F, chunk};
use crate::arch::avx2::unrolled;
use crate::arch::scalar;
use crate::layout::STRIP_ROWS;
use crate::matmul::Part;
use crate::rows::{BLOCK, BlockSums, Tile, tile_rows};
use crate::{QMatrix, QuantizedRows};

/// Whole strips, from a strip's first row on.
pub(crate) fn int8_interleaved(
    s: Avx512,
    out: &mut [f32],
    w: &QMatrix,
    part: Part,
    xq: &QuantizedRows,
) {
    match w.encoding() {
        Encoding::Q4_0 => product::<strips::Q4_0>(s, out, w, part, xq),
        Encoding::Q4_1 => product::<strips::Q4_1>(s, out, w, part, xq),
        Encoding::Q5_0 => product::<strips::Q5_0>(s, out, w, part, xq),
        Encoding::Q5_1 => product::<strips::Q5_1>(s, out, w, part, xq),
        Encoding::Q8_0 => product::<strips::Q8_0>(s, out, w, part, xq),
        Encoding::Q4_K => product::<strips::Q4K>(s, out, w, part, xq),
        Encoding::Q5_K => product::<strips::Q5K>(s, out, w, part, xq),
        Encoding::Q6_K => product::<strips::Q6K>(s, out, w, part, xq),
        _ => scalar::int8_interleaved(out, w, part, xq),
    }
}

fn product<K: Strip>(s: Avx512, out: &mut [f32], w: &QMatrix, part: Part, xq: &QuantizedRows) {
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
            match n {
                8 => tile::<K, 8>(s, out, part.stride, strip, &xq.tile(from)),
                4 => tile::<K, 4>(s, out, part.stride, strip, &xq.tile(from)),
                2 => tile::<K, 2>(s, out, part.stride, strip, &xq.tile(from)),
                _ => tile::<K, 1>(s, out, part.stride, strip, &xq.tile(from)),
            }
            token += n;
        }
    }
}

/// A strip with `T` tokens.
fn tile<K: Strip, const T: usize>(
    s: Avx512,
    out: &mut [f32],
    stride: usize,
    strip: &[u8],
    x: &Tile<T>,
) {
    s.run(
        #[inline(always)]
        move || {
            let units = strip.chunks_exact(STRIP_ROWS * K::UNIT);
            let codes = x.codes.chunks_exact(K::BLOCKS);
            let sums = x.sums.chunks_exact(K::BLOCKS);
            let mut acc = [s.set1(0.0); T];
            for (unit, (codes, sums)) in units.zip(codes.zip(sums)) {
                unrolled!(B in 0 1 2 3 4 5 6 7; if B < K::BLOCKS, {
                    let w = K::unpack::<B>(s, unit);
                    let (codes, sums) = (&codes[B], &sums[B]);
                    unrolled!(N in 0 1 2 3 4 5 6 7; if N < T, {
                        acc[N] = s.add(acc[N], term::<K>(s, &w, &codes[N], &sums[N]));
                    });
                });
            }
            for t in 0..T {
                let lanes: [f32; STRIP_ROWS] = pulp::cast(acc[t]);
                out[t * stride..][..STRIP_ROWS].copy_from_slice(&lanes);
            }
        },
    );
}

/// The terms of one block of sixteen rows, by the contract's formula.
#[inline(always)]
fn term<K: Strip>(s: Avx512, w: &Weights, q: &[i8; BLOCK], sums: &BlockSums) -> F {
    let dot = |half: usize| {
        let mut sum = s.i32s1(0);
        for k in 4 * half..4 * half + 4 {
            let quad = i32::from_le_bytes(chunk::<i8, 4>(q, 4 * k).map(|q| q as u8));
            sum = s.dot4(sum, w.w[k], s.i32s1(quad));
        }
        sum
    };
    let add = |a, b| s.avx512f._mm512_add_epi32(a, b);
    let mul = |a, b| s.avx512f._mm512_mullo_epi32(a, b);
    // Takes OFFSET times the sum of the activations.
    let centred = |x, sum: i32| {
        let sum = s.i32s1(sum);
        let sum = match K::OFFSET {
            0 => return x,
            8 => s.avx512f._mm512_slli_epi32::<3>(sum),
            16 => s.avx512f._mm512_slli_epi32::<4>(sum),
            32 => s.avx512f._mm512_slli_epi32::<5>(sum),
            _ => s.avx512f._mm512_slli_epi32::<7>(sum),
        };
        s.avx512f._mm512_sub_epi32(x, sum)
    };
    let total = if K::HALVES {
        let low = mul(centred(dot(0), sums.half), w.sc[0]);
        add(low, mul(centred(dot(1), sums.xsum - sums.half), w.sc[1]))
    } else {
        let total = centred(add(dot(0), dot(1)), sums.xsum);
        if K::SCALED { mul(total, w.sc[0]) } else { total }
    };
    let dx = s.set1(sums.d);
    let scaled = s.mul(s.mul(w.d, dx), s.to_f32(total));
    match K::FORM {
        Form::Scale => scaled,
        Form::ScaleMin => s.add(scaled, s.mul(w.m, s.set1(sums.sx))),
        Form::ScaleMinK => {
            let minima = s.to_f32(mul(w.mn, s.i32s1(sums.xsum)));
            s.sub(scaled, s.mul(s.mul(w.m, dx), minima))
        }
    }
}
