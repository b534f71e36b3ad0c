//! Int8 products of interleaved strips: eight rows are the eight lanes, each adding its blocks' terms in order.

use slm_format::Encoding;

use super::group::Form;
use super::source::{Passing, Source};
use super::strips::{self, Strip, Weights};
use super::{Avx2, F, I, chunk, first_of, unrolled};
use crate::arch::{scalar, x86_cpu};
use crate::layout::STRIP_ROWS;
use crate::matmul::Part;
use crate::rows::{BLOCK, BlockSums, Tile, tile_rows};
use crate::{QMatrix, QuantizedRows};

/// As [`scalar::int8_interleaved`].
pub(crate) fn int8_interleaved(
    s: Avx2,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
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

fn product<K: Strip>(s: Avx2, out: &mut [f32], w: &QMatrix, part: Part<'_>, xq: &QuantizedRows) {
    let first = part.first_row / STRIP_ROWS;
    let lone = xq.n_rows() == 1 && w.is_read_once();
    // A super-block's bytes are loaded for each of its blocks, and such loads are not merged: that costs more than it gains.
    let read_once = lone && K::BLOCKS == 1;
    let ask = lone && x86_cpu::runs_are_asked_for();
    for i in 0..part.n_rows / STRIP_ROWS {
        let strip = w.strip_bytes(first + i, 1);
        let passing = if read_once { Passing::of(strip) } else { None };
        let out = &mut out[i * STRIP_ROWS..];
        // All tokens before the next strip: this one stays in the first cache.
        let mut token = 0;
        while token < part.n_tokens {
            let out = &mut out[token * part.stride..];
            let from = part.first_token + token;
            let n = tile_rows(part.n_tokens - token);
            match n {
                8 => {
                    // As many sums as there are registers: four tokens at a time.
                    tile::<K, 8, 4, _>(s, out, part.stride, strip, &xq.tile(from), 0, false);
                    tile::<K, 8, 4, _>(s, out, part.stride, strip, &xq.tile(from), 4, false);
                }
                4 => tile::<K, 4, 4, _>(s, out, part.stride, strip, &xq.tile(from), 0, false),
                2 => tile::<K, 2, 2, _>(s, out, part.stride, strip, &xq.tile(from), 0, false),
                _ => match passing {
                    Some(strip) => {
                        tile::<K, 1, 1, _>(s, out, part.stride, strip, &xq.tile(from), 0, ask)
                    }
                    None => tile::<K, 1, 1, _>(s, out, part.stride, strip, &xq.tile(from), 0, ask),
                },
            }
            token += n;
        }
    }
}

/// A strip with `N` of a tile's `T` tokens, from `first` on; a lone one's with `ask` asks for weights.
fn tile<K: Strip, const T: usize, const N: usize, U: Source>(
    s: Avx2,
    out: &mut [f32],
    stride: usize,
    strip: &[U],
    x: &Tile<T>,
    first: usize,
    ask: bool,
) {
    s.run(
        #[inline(always)]
        move || {
            let units = strip.chunks_exact(STRIP_ROWS * K::UNIT / U::BYTES);
            let codes = x.codes.chunks_exact(K::BLOCKS);
            let sums = x.sums.chunks_exact(K::BLOCKS);
            let mut low = [s.set1(0.0); N];
            let mut high = low;
            for (unit, (codes, sums)) in units.zip(codes.zip(sums)) {
                if T == 1 && ask {
                    s.prefetch_passing_after(unit, x86_cpu::WEIGHTS_AHEAD);
                }
                unrolled!(B in 0 1 2 3 4 5 6 7; if B < K::BLOCKS, {
                    let codes: &[[i8; BLOCK]; N] = first_of(&codes[B], first);
                    let sums: &[BlockSums; N] = first_of(&sums[B], first);
                    let w = K::unpack::<B, _>(s, unit, 0);
                    unrolled!(I in 0 1 2 3; if I < N, {
                        low[I] = s.add(low[I], term::<K>(s, &w, &codes[I], &sums[I]));
                    });
                    let w = K::unpack::<B, _>(s, unit, 1);
                    unrolled!(I in 0 1 2 3; if I < N, {
                        high[I] = s.add(high[I], term::<K>(s, &w, &codes[I], &sums[I]));
                    });
                });
            }
            for t in 0..N {
                let lanes: [f32; STRIP_ROWS] = pulp::cast([low[t], high[t]]);
                out[(first + t) * stride..][..STRIP_ROWS].copy_from_slice(&lanes);
            }
        },
    );
}

/// The terms of one block of eight rows, by the contract's formula.
#[inline(always)]
fn term<K: Strip>(s: Avx2, w: &Weights, q: &[i8; BLOCK], sums: &BlockSums) -> F {
    let i32s = |x| s.avx._mm256_set1_epi32(x);
    let add = |a, b| s.avx2._mm256_add_epi32(a, b);
    let mul = |a, b| s.avx2._mm256_mullo_epi32(a, b);
    let total = if K::HALVES {
        let low = mul(dot::<K>(s, i32s(sums.less_32[0]), w, q, 0, 4), w.sc[0]);
        add(low, mul(dot::<K>(s, i32s(sums.less_32[1]), w, q, 4, 8), w.sc[1]))
    } else {
        let total = dot::<K>(s, i32s(sums.less(K::OFFSET)), w, q, 0, 8);
        if K::SCALED { mul(total, w.sc[0]) } else { total }
    };
    let dx = s.set1(sums.d);
    let scaled = s.mul(s.mul(w.d, dx), s.to_f32(total));
    match K::FORM {
        Form::Scale => scaled,
        Form::ScaleMin => s.add(scaled, s.mul(w.m, s.set1(sums.sx))),
        Form::ScaleMinK => {
            let minima = s.mul(w.mn, s.set1(sums.xsum));
            s.sub(scaled, s.mul(s.mul(w.m, dx), minima))
        }
    }
}

/// `total` and the products of the quads `from .. to`, summed in i16 as far as they fit, then in i32.
#[inline(always)]
fn dot<K: Strip>(s: Avx2, mut total: I, w: &Weights, q: &[i8; BLOCK], from: usize, to: usize) -> I {
    let (zero, ones) = (s.bytes1(0), s.avx._mm256_set1_epi16(1));
    let mut narrow = zero;
    for k in from..to {
        let quad = i32::from_le_bytes(chunk::<i8, 4>(q, 4 * k).map(|q| q as u8));
        let quad = s.avx._mm256_set1_epi32(quad);
        // |w| reaches 128 as an unsigned byte and |q| only 127, so a pair is at most 32512: no saturation.
        let pairs = if K::SIGNED {
            let magnitude = s.avx2._mm256_abs_epi8(w.w[k]);
            s.avx2._mm256_maddubs_epi16(magnitude, s.avx2._mm256_sign_epi8(quad, w.w[k]))
        } else {
            s.avx2._mm256_maddubs_epi16(w.w[k], quad)
        };
        narrow = s.avx2._mm256_add_epi16(narrow, pairs);
        if (k + 1) % K::PAIRS == 0 || k + 1 == to {
            total = s.avx2._mm256_add_epi32(total, s.avx2._mm256_madd_epi16(narrow, ones));
            narrow = zero;
        }
    }
    total
}
