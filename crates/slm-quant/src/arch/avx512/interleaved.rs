//! Int8 products of interleaved strips: sixteen rows are the sixteen lanes, each adding its blocks' terms in order.

use slm_format::Encoding;

use super::source::{Passing, Source};
use super::strips::{self, Strip};
use super::terms::{Begun, add_terms};
use super::{Avx512, first_of};
use crate::arch::avx2::unrolled;
use crate::arch::{scalar, x86_cpu};
use crate::layout::STRIP_ROWS;
use crate::matmul::Part;
use crate::rows::{BLOCK, Tile, tile_rows};
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
            let n = tile_rows(left);
            match n {
                8 if K::HALVES => {
                    // Two sums for each of eight, what they are added to and eight vectors of weights would be all registers.
                    let x = xq.tile::<8>(from);
                    tile::<K, 8, 4, FUSED, _>(s, out, stride, strip, &x, 0, next, false);
                    tile::<K, 8, 4, FUSED, _>(s, out, stride, strip, &x, 4, &[], false);
                }
                8 if K::HEAVY => {
                    tile::<K, 8, 8, FUSED, _>(s, out, stride, strip, &xq.tile(from), 0, next, false)
                }
                8 => eight::<K, FUSED>(s, out, stride, strip, &xq.tile(from), next),
                4 => {
                    tile::<K, 4, 4, FUSED, _>(s, out, stride, strip, &xq.tile(from), 0, &[], false)
                }
                2 => {
                    tile::<K, 2, 2, FUSED, _>(s, out, stride, strip, &xq.tile(from), 0, &[], false)
                }
                _ => {
                    let x = xq.tile(from);
                    match passing {
                        Some(strip) => {
                            tile::<K, 1, 1, FUSED, _>(s, out, stride, strip, &x, 0, near, ask);
                        }
                        None => tile::<K, 1, 1, FUSED, _>(s, out, stride, strip, &x, 0, near, ask),
                    }
                }
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

/// A strip with `N` of a tile's `T` tokens, from `first` on. Each unit asks for a line of `near`, of many tokens for a unit of it; of a lone one
/// with `ask` also for weights.
fn tile<K: Strip, const T: usize, const N: usize, const FUSED: bool, U: Source>(
    s: Avx512,
    out: &mut [f32],
    stride: usize,
    strip: &[U],
    x: &Tile<T>,
    first: usize,
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
            // Where all are meant, the tile's bounds fold.
            let first = if T == N { 0 } else { first };
            let mut acc = [s.set1(0.0); N];
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
                    let (codes, sums) = (first_of(&codes[B], first), first_of(&sums[B], first));
                    add_terms::<K, FUSED, N>(s, &mut acc, &w, codes, sums);
                });
            }
            for t in 0..N {
                let lanes: [f32; STRIP_ROWS] = pulp::cast(acc[t]);
                out[(first + t) * stride..][..STRIP_ROWS].copy_from_slice(&lanes);
            }
        },
    );
}

/// A strip with eight tokens, of a type that is neither heavy nor in halves. Each unit asks for one of `near`.
fn eight<K: Strip, const FUSED: bool>(
    s: Avx512,
    out: &mut [f32],
    stride: usize,
    strip: &[u8],
    x: &Tile<8>,
    near: &[u8],
) {
    debug_assert!(!K::HALVES, "one scale for both halves of a block");
    s.run(
        #[inline(always)]
        move || {
            let units = strip.chunks_exact(STRIP_ROWS * K::UNIT);
            let codes = x.codes.chunks_exact(K::BLOCKS);
            let sums = x.sums.chunks_exact(K::BLOCKS);
            let mut near = near.chunks(STRIP_ROWS * K::UNIT);
            let mut acc = [s.set1(0.0); 8];
            let mut begun = Begun::nothing(s);
            for (unit, (codes, sums)) in units.zip(codes.zip(sums)) {
                if let Some(near) = near.next() {
                    s.prefetch(near);
                }
                unrolled!(B in 0 1 2 3 4 5 6 7; if B < K::BLOCKS, {
                    let w = K::unpack::<B, _>(s, unit);
                    begun = begun.next::<K, FUSED>(s, &mut acc, w, &codes[B], &sums[B]);
                });
            }
            begun.end::<K, FUSED>(s, &mut acc);
            for t in 0..8 {
                let lanes: [f32; STRIP_ROWS] = pulp::cast(acc[t]);
                out[t * stride..][..STRIP_ROWS].copy_from_slice(&lanes);
            }
        },
    );
}
