//! Int8 products of interleaved strips: sixteen rows are the sixteen lanes, each adding its blocks' terms in order.

use slm_format::Encoding;

use super::source::{Passing, Source};
use super::strips::{self, Form, Strip, Weights};
use super::{Avx512, F, I, chunk};
use crate::arch::avx2::unrolled;
use crate::arch::{scalar, x86_cpu};
use crate::layout::STRIP_ROWS;
use crate::matmul::Part;
use crate::rows::{BLOCK, BlockSums, Tile, tile_rows};
use crate::{QMatrix, QuantizedRows};

/// Bytes that come from memory together.
const LINE: usize = 64;

/// Whole strips, from a strip's first row on.
pub(crate) fn int8_interleaved(
    s: Avx512,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
    xq: &QuantizedRows,
) {
    by_encoding::<false>(s, out, w, part, xq);
}

/// The same sums with fused multiply-adds, which the contract forbids: what exactness costs is measured against this.
#[cfg(feature = "free-order")]
pub(crate) fn int8_free_order(
    s: Avx512,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
    xq: &QuantizedRows,
) {
    by_encoding::<true>(s, out, w, part, xq);
}

fn by_encoding<const FUSED: bool>(
    s: Avx512,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
    xq: &QuantizedRows,
) {
    match w.encoding() {
        Encoding::Q4_0 => product::<strips::Q4_0, FUSED>(s, out, w, part, xq),
        Encoding::Q4_1 => product::<strips::Q4_1, FUSED>(s, out, w, part, xq),
        Encoding::Q5_0 => product::<strips::Q5_0, FUSED>(s, out, w, part, xq),
        Encoding::Q5_1 => product::<strips::Q5_1, FUSED>(s, out, w, part, xq),
        Encoding::Q8_0 => product::<strips::Q8_0, FUSED>(s, out, w, part, xq),
        Encoding::Q4_K => product::<strips::Q4K, FUSED>(s, out, w, part, xq),
        Encoding::Q5_K => product::<strips::Q5K, FUSED>(s, out, w, part, xq),
        Encoding::Q6_K => product::<strips::Q6K, FUSED>(s, out, w, part, xq),
        _ => scalar::int8_interleaved(out, w, part, xq),
    }
}

fn product<K: Strip, const FUSED: bool>(
    s: Avx512,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
    xq: &QuantizedRows,
) {
    let first = part.first_row / STRIP_ROWS;
    let n_strips = part.n_rows / STRIP_ROWS;
    let lone = xq.n_rows() == 1 && w.is_read_once();
    // A super-block's bytes are loaded for each of its blocks, and such loads are not merged: that costs more than it gains.
    let read_once = lone && K::BLOCKS == 1;
    let ask = lone && x86_cpu::runs_are_asked_for();
    let mut ahead = AheadOf::new(part.ahead, n_strips, w.cols() / (BLOCK * K::BLOCKS));
    for i in 0..n_strips {
        let strip = w.strip_bytes(first + i, 1);
        let near = ahead.next_strip(s);
        let passing = if read_once { Passing::of(strip) } else { None };
        let next = if i + 1 < n_strips { w.strip_bytes(first + i + 1, 1) } else { &[] };
        let out = &mut out[i * STRIP_ROWS..];
        // All tokens before the next strip: this one stays in the first cache.
        let mut token = 0;
        while token < part.n_tokens {
            let (out, stride) = (&mut out[token * part.stride..], part.stride);
            let from = part.first_token + token;
            let left = part.n_tokens - token;
            // The first tokens ask for the next strip: those after them hit the first cache alone, and the processor loses the stream.
            let next = if token == 0 && left > 8 { next } else { &[] };
            if K::DOUBLE && left >= 16 {
                double::<K, FUSED>(
                    s,
                    out,
                    stride,
                    strip,
                    [&xq.tile(from), &xq.tile(from + 8)],
                    next,
                );
                token += 16;
                continue;
            }
            let n = tile_rows(left);
            match n {
                8 => tile::<K, 8, FUSED, _>(s, out, stride, strip, &xq.tile(from), next, false),
                4 => tile::<K, 4, FUSED, _>(s, out, stride, strip, &xq.tile(from), &[], false),
                2 => tile::<K, 2, FUSED, _>(s, out, stride, strip, &xq.tile(from), &[], false),
                _ => match (passing, &xq.tile(from)) {
                    (Some(strip), x) => tile::<K, 1, FUSED, _>(s, out, stride, strip, x, near, ask),
                    (None, x) => tile::<K, 1, FUSED, _>(s, out, stride, strip, x, near, ask),
                },
            }
            token += n;
        }
    }
}

/// The lines to be asked for during a part: the last ones during its last unit, because what comes first would be pushed out meanwhile.
struct AheadOf<'a> {
    rest: &'a [u8],
    /// Units of the part that have none.
    wait: usize,
    units_of_strip: usize,
    /// Bytes more than the units can ask for, for each strip.
    surplus: usize,
}

impl<'a> AheadOf<'a> {
    fn new(ahead: &'a [u8], n_strips: usize, units_of_strip: usize) -> AheadOf<'a> {
        let (lines, units) = (ahead.len().div_ceil(LINE), n_strips * units_of_strip);
        let surplus = lines.saturating_sub(units).div_ceil(n_strips.max(1)) * LINE;
        AheadOf { rest: ahead, wait: units.saturating_sub(lines), units_of_strip, surplus }
    }

    /// What the units of the next strip ask for, a line each.
    fn next_strip(&mut self, s: Avx512) -> &'a [u8] {
        if self.rest.is_empty() || self.wait >= self.units_of_strip {
            self.wait = self.wait.saturating_sub(self.units_of_strip);
            return &[];
        }
        let (surplus, rest) = self.rest.split_at(self.surplus.min(self.rest.len()));
        s.prefetch(surplus);
        let n = (self.units_of_strip - self.wait) * LINE;
        let (near, rest) = rest.split_at(n.min(rest.len()));
        (self.rest, self.wait) = (rest, 0);
        near
    }
}

/// A strip with `T` tokens. Each unit asks for a line of `near`, of many tokens for a unit of it; of a lone one with `ask` also for weights.
fn tile<K: Strip, const T: usize, const FUSED: bool, U: Source>(
    s: Avx512,
    out: &mut [f32],
    stride: usize,
    strip: &[U],
    x: &Tile<T>,
    near: &[u8],
    ask: bool,
) {
    s.run(
        #[inline(always)]
        move || {
            let units = strip.chunks_exact(STRIP_ROWS * K::UNIT / U::BYTES);
            let codes = x.codes.chunks_exact(K::BLOCKS);
            let sums = x.sums.chunks_exact(K::BLOCKS);
            let mut near = near.chunks(if T == 1 { LINE } else { STRIP_ROWS * K::UNIT });
            let mut acc = [s.set1(0.0); T];
            for (unit, (codes, sums)) in units.zip(codes.zip(sums)) {
                if T == 1 && ask {
                    // Past the strip's end as well: the next one lies there, and behind the last the next matrix.
                    s.avx2().prefetch_passing_after(unit, x86_cpu::WEIGHTS_AHEAD);
                }
                if (T == 1 || T == 8)
                    && let Some(near) = near.next()
                {
                    s.prefetch(near);
                }
                unrolled!(B in 0 1 2 3 4 5 6 7; if B < K::BLOCKS, {
                    let w = K::unpack::<B, _>(s, unit);
                    let (codes, sums) = (&codes[B], &sums[B]);
                    unrolled!(N in 0 1 2 3 4 5 6 7; if N < T, {
                        acc[N] = accumulate::<K, FUSED, T>(s, acc[N], &w, &codes[N], &sums[N]);
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

/// A strip with two tiles of eight tokens: what is unpacked serves twice as many. Each unit asks for one of `near`.
fn double<K: Strip, const FUSED: bool>(
    s: Avx512,
    out: &mut [f32],
    stride: usize,
    strip: &[u8],
    x: [&Tile<8>; 2],
    near: &[u8],
) {
    s.run(
        #[inline(always)]
        move || {
            let units = strip.chunks_exact(STRIP_ROWS * K::UNIT);
            let [codes, more_codes] = x.map(|x| x.codes.chunks_exact(K::BLOCKS));
            let [sums, more_sums] = x.map(|x| x.sums.chunks_exact(K::BLOCKS));
            let mut acc = [s.set1(0.0); 8];
            let mut more = [s.set1(0.0); 8];
            let tiles = codes.zip(sums).zip(more_codes.zip(more_sums));
            let mut near = near.chunks(STRIP_ROWS * K::UNIT);
            for (unit, ((codes, sums), (more_codes, more_sums))) in units.zip(tiles) {
                if let Some(near) = near.next() {
                    s.prefetch(near);
                }
                unrolled!(B in 0 1 2 3 4 5 6 7; if B < K::BLOCKS, {
                    let w = K::unpack::<B, _>(s, unit);
                    let (codes, sums) = (&codes[B], &sums[B]);
                    let (more_codes, more_sums) = (&more_codes[B], &more_sums[B]);
                    unrolled!(N in 0 1 2 3 4 5 6 7; if true, {
                        acc[N] = accumulate::<K, FUSED, 16>(s, acc[N], &w, &codes[N], &sums[N]);
                    });
                    unrolled!(N in 0 1 2 3 4 5 6 7; if true, {
                        more[N] =
                            accumulate::<K, FUSED, 16>(s, more[N], &w, &more_codes[N], &more_sums[N]);
                    });
                });
            }
            for (t, lanes) in acc.into_iter().chain(more).enumerate() {
                let lanes: [f32; STRIP_ROWS] = pulp::cast(lanes);
                out[t * stride..][..STRIP_ROWS].copy_from_slice(&lanes);
            }
        },
    );
}

/// Adds the terms of one block of sixteen rows, by the contract's formula; fused where the contract does not matter. `T` tokens are computed
/// side by side.
#[inline(always)]
fn accumulate<K: Strip, const FUSED: bool, const T: usize>(
    s: Avx512,
    acc: F,
    w: &Weights,
    q: &[i8; BLOCK],
    sums: &BlockSums,
) -> F {
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
        let low = mul(centred(dot::<0, 4>(s, w, q), sums.half), w.sc[0]);
        add(low, mul(centred(dot::<4, 8>(s, w, q), sums.xsum - sums.half), w.sc[1]))
    } else {
        // One token waits for its sums, many keep the units busy meanwhile.
        let total = match T {
            1 => add(dot::<0, 4>(s, w, q), dot::<4, 8>(s, w, q)),
            _ => dot::<0, 8>(s, w, q),
        };
        let total = centred(total, sums.xsum);
        if K::SCALED { mul(total, w.sc[0]) } else { total }
    };
    let dx = s.set1(sums.d);
    if FUSED {
        let fused = |a, b, c| s.avx512f._mm512_fmadd_ps(a, b, c);
        let acc = fused(s.mul(w.d, dx), s.to_f32(total), acc);
        return match K::FORM {
            Form::Scale => acc,
            Form::ScaleMin => fused(w.m, s.set1(sums.sx), acc),
            Form::ScaleMinK => {
                let minima = s.to_f32(mul(w.mn, s.i32s1(sums.xsum)));
                s.avx512f._mm512_fnmadd_ps(s.mul(w.m, dx), minima, acc)
            }
        };
    }
    let scaled = s.mul(s.mul(w.d, dx), s.to_f32(total));
    let term = match K::FORM {
        Form::Scale => scaled,
        Form::ScaleMin => s.add(scaled, s.mul(w.m, s.set1(sums.sx))),
        Form::ScaleMinK => {
            let minima = s.to_f32(mul(w.mn, s.i32s1(sums.xsum)));
            s.sub(scaled, s.mul(s.mul(w.m, dx), minima))
        }
    };
    s.add(acc, term)
}

/// The products of the quads `FROM .. TO` of sixteen rows and one token.
#[inline(always)]
fn dot<const FROM: usize, const TO: usize>(s: Avx512, w: &Weights, q: &[i8; BLOCK]) -> I {
    let mut sum = s.i32s1(0);
    unrolled!(N in 0 1 2 3 4 5 6 7; if (FROM..TO).contains(&N), {
        let quad = i32::from_le_bytes(chunk::<i8, 4>(q, 4 * N).map(|q| q as u8));
        sum = s.dot4(sum, w.w[N], s.i32s1(quad));
    });
    sum
}
