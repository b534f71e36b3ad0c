//! One head over a run of cached positions: sixteen dot products at once, and weighted sums that stay in registers.

use super::float::{dot16, dot16_f16};
use super::{Avx512, F, chunk, tiles};
use crate::arch::avx2::rest;
use crate::arch::scalar;
use crate::queries::Queries;

/// As [`scalar::dots16`].
pub(crate) fn dots16(s: Avx512, out: &mut [f32], q: &[f32], k: &[f32], stride: usize) {
    dots(s, out, q, k, stride, dot16);
}

/// As [`scalar::dots16_f16`].
pub(crate) fn dots16_f16(s: Avx512, out: &mut [f32], q: &[f32], k: &[u16], stride: usize) {
    dots(s, out, q, k, stride, dot16_f16);
}

/// As [`scalar::weighted_sum`].
pub(crate) fn weighted_sum(s: Avx512, out: &mut [f32], e: &[f32], v: &[f32], stride: usize) {
    let whole = out.len() / 16 * 16;
    sums(s, &mut out[..whole], e, v, stride);
    scalar::weighted_sum(&mut out[whole..], e, rest(v, whole), stride);
}

/// As [`scalar::weighted_sum_f16`].
pub(crate) fn weighted_sum_f16(s: Avx512, out: &mut [f32], e: &[f32], v: &[u16], stride: usize) {
    let whole = out.len() / 16 * 16;
    sums(s, &mut out[..whole], e, v, stride);
    scalar::weighted_sum_f16(&mut out[whole..], e, rest(v, whole), stride);
}

/// A number in memory.
pub(super) trait Value: Copy + Default {
    /// Sixteen of them widened.
    fn load16(s: Avx512, x: &[Self; 16]) -> F;
}

impl Value for f32 {
    #[inline(always)]
    fn load16(_: Avx512, x: &[f32; 16]) -> F {
        pulp::cast(*x)
    }
}

impl Value for u16 {
    #[inline(always)]
    fn load16(s: Avx512, x: &[u16; 16]) -> F {
        s.avx512f._mm512_cvtph_ps(pulp::cast(*x))
    }
}

fn dots<V: Value>(
    s: Avx512,
    out: &mut [f32],
    q: &[f32],
    k: &[V],
    stride: usize,
    one: fn(Avx512, &[f32], &[V]) -> f32,
) {
    let whole = if q.len().is_multiple_of(16) { out.len() / 16 * 16 } else { 0 };
    s.run(
        #[inline(always)]
        || {
            let (sixteens, _) = out[..whole].as_chunks_mut::<16>();
            for (i, y) in sixteens.iter_mut().enumerate() {
                let mut rows: [&[V]; 16] = [&[]; 16];
                for r in 0..16 {
                    rows[r] = &k[(16 * i + r) * stride..][..q.len()];
                }
                *y = pulp::cast(sixteen_dots(s, q, &rows));
            }
        },
    );
    for (i, y) in out.iter_mut().enumerate().skip(whole) {
        *y = one(s, q, &k[i * stride..][..q.len()]);
    }
}

/// Whole rounds of the 16 lanes.
#[inline(always)]
fn sixteen_dots<V: Value>(s: Avx512, q: &[f32], rows: &[&[V]; 16]) -> F {
    let mut lanes = [s.set1(0.0); 16];
    for at in (0..q.len()).step_by(16) {
        let q: F = pulp::cast(chunk::<f32, 16>(q, at));
        for r in 0..16 {
            lanes[r] = s.add(lanes[r], s.mul(q, V::load16(s, &chunk(rows[r], at))));
        }
    }
    reduce(s, &lanes)
}

/// The lanes of sixteen reductions to one lane for each.
#[inline(always)]
fn reduce(s: Avx512, lanes: &[F; 16]) -> F {
    // The pairs of the contract, for all at once: lanes l and l+8, l+4, l+2, l+1.
    let f = s.avx512f;
    let mut eight = [s.set1(0.0); 8];
    for i in 0..8 {
        let (a, b) = (lanes[2 * i], lanes[2 * i + 1]);
        let upper = f._mm512_shuffle_f32x4::<0xee>(a, b);
        eight[i] = s.add(f._mm512_shuffle_f32x4::<0x44>(a, b), upper);
    }
    let mut four = [s.set1(0.0); 4];
    for i in 0..4 {
        let (a, b) = (eight[2 * i], eight[2 * i + 1]);
        let upper = f._mm512_shuffle_f32x4::<0xdd>(a, b);
        four[i] = s.add(f._mm512_shuffle_f32x4::<0x88>(a, b), upper);
    }
    let two = |a: F, b: F| {
        let upper = f._mm512_shuffle_ps::<0xee>(a, b);
        s.add(f._mm512_shuffle_ps::<0x44>(a, b), upper)
    };
    let (a, b) = (two(four[0], four[1]), two(four[2], four[3]));
    let sums = s.add(f._mm512_shuffle_ps::<0x88>(a, b), f._mm512_shuffle_ps::<0xdd>(a, b));
    // 0 4 8 12 | 1 5 9 13 | … back in order.
    const ORDER: [i32; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];
    f._mm512_permutexvar_ps(pulp::cast(ORDER), sums)
}

fn sums<V: Value>(s: Avx512, out: &mut [f32], e: &[f32], v: &[V], stride: usize) {
    s.run(
        #[inline(always)]
        || {
            let wide = out.len() / 64 * 64;
            for at in (0..wide).step_by(64) {
                sum_piece::<V, 4>(s, &mut out[at..], e, v, stride, at);
            }
            for at in (wide..out.len()).step_by(16) {
                sum_piece::<V, 1>(s, &mut out[at..], e, v, stride, at);
            }
        },
    );
}

/// `16 * N` channels from `at` on.
#[inline(always)]
fn sum_piece<V: Value, const N: usize>(
    s: Avx512,
    out: &mut [f32],
    e: &[f32],
    v: &[V],
    stride: usize,
    at: usize,
) {
    let mut acc = [s.set1(0.0); N];
    for n in 0..N {
        acc[n] = pulp::cast(chunk::<f32, 16>(out, 16 * n));
    }
    for (i, &e) in e.iter().enumerate() {
        let (e, row) = (s.set1(e), &v[i * stride + at..][..16 * N]);
        for n in 0..N {
            acc[n] = s.add(acc[n], s.mul(e, V::load16(s, &chunk(row, 16 * n))));
        }
    }
    for n in 0..N {
        let lanes: [f32; 16] = pulp::cast(acc[n]);
        out[16 * n..][..16].copy_from_slice(&lanes);
    }
}

/// As [`scalar::query_dots`].
pub(crate) fn query_dots(s: Avx512, out: &mut [f32], q: &[f32], k: &[f32], shape: Queries) {
    many_dots(s, out, q, k, shape, dot16);
}

/// As [`scalar::query_dots_f16`].
pub(crate) fn query_dots_f16(s: Avx512, out: &mut [f32], q: &[f32], k: &[u16], shape: Queries) {
    many_dots(s, out, q, k, shape, dot16_f16);
}

/// As [`scalar::query_sums`].
pub(crate) fn query_sums(s: Avx512, out: &mut [f32], e: &[f32], v: &[f32], shape: Queries) {
    many_sums(s, out, e, v, shape, weighted_sum);
}

/// As [`scalar::query_sums_f16`].
pub(crate) fn query_sums_f16(s: Avx512, out: &mut [f32], e: &[f32], v: &[u16], shape: Queries) {
    many_sums(s, out, e, v, shape, weighted_sum_f16);
}

/// Many queries against sixteen positions at a time, few against four; each number of the cache is loaded and widened once for all.
fn many_dots<V: Value>(
    s: Avx512,
    out: &mut [f32],
    q: &[f32],
    k: &[V],
    shape: Queries,
    one: fn(Avx512, &[f32], &[V]) -> f32,
) {
    let done = tiles::many_dots(s, out, q, k, shape);
    let from = done.min(out.len());
    let (out, k) = (&mut out[from..], rest(k, done * shape.kv_stride));
    let shape = Queries { n_positions: shape.n_positions - done, ..shape };
    let Queries { n_queries, n_positions, head_dim, query_stride, score_stride, kv_stride } = shape;
    let mut first = 0;
    while first < n_queries && n_positions > 0 {
        let (out, q) = (&mut out[first * score_stride..], &q[first * query_stride..]);
        let n = 4.min(n_queries - first);
        let whole = match n {
            _ if !head_dim.is_multiple_of(16) => 0,
            1 => 0,
            2 => dots_tile::<V, 2>(s, out, q, k, shape),
            3 => dots_tile::<V, 3>(s, out, q, k, shape),
            _ => dots_tile::<V, 4>(s, out, q, k, shape),
        };
        for t in 0..n {
            let (q, k) = (&q[t * query_stride..][..head_dim], rest(k, whole * kv_stride));
            let out = &mut out[t * score_stride..][whole..n_positions];
            dots(s, out, q, k, kv_stride, one);
        }
        first += n;
    }
}

/// `N` queries; gives how many positions it did, a multiple of 4.
fn dots_tile<V: Value, const N: usize>(
    s: Avx512,
    out: &mut [f32],
    q: &[f32],
    k: &[V],
    shape: Queries,
) -> usize {
    let whole = shape.n_positions / 4 * 4;
    s.run(
        #[inline(always)]
        || {
            let n_rounds = shape.head_dim / 16;
            let mut queries: [&[[f32; 16]]; N] = [&[]; N];
            for t in 0..N {
                queries[t] = rounds(&q[t * shape.query_stride..], n_rounds);
            }
            for i in (0..whole).step_by(4) {
                let mut rows: [&[[V; 16]]; 4] = [&[]; 4];
                for r in 0..4 {
                    rows[r] = rounds(&k[(i + r) * shape.kv_stride..], n_rounds);
                }
                let mut lanes = [s.set1(0.0); 16];
                for at in 0..n_rounds {
                    let mut k = [s.set1(0.0); 4];
                    for r in 0..4 {
                        k[r] = V::load16(s, &rows[r][at]);
                    }
                    for t in 0..N {
                        let q: F = pulp::cast(queries[t][at]);
                        for r in 0..4 {
                            lanes[4 * t + r] = s.add(lanes[4 * t + r], s.mul(q, k[r]));
                        }
                    }
                }
                let dots: [f32; 16] = pulp::cast(reduce(s, &lanes));
                for t in 0..N {
                    out[t * shape.score_stride + i..][..4].copy_from_slice(&dots[4 * t..][..4]);
                }
            }
        },
    );
    whole
}

/// The first `n` rounds of the 16 lanes.
#[inline(always)]
pub(super) fn rounds<V>(x: &[V], n: usize) -> &[[V; 16]] {
    &x.as_chunks().0[..n]
}

/// Few queries over all positions: each number of the cache is loaded and widened once for all.
fn many_sums<V: Value>(
    s: Avx512,
    out: &mut [f32],
    e: &[f32],
    v: &[V],
    shape: Queries,
    one: fn(Avx512, &mut [f32], &[f32], &[V], usize),
) {
    let Queries { n_queries, n_positions, head_dim, query_stride, score_stride, kv_stride } = shape;
    let mut first = tiles::many_sums(s, out, e, v, shape);
    while first < n_queries {
        let (out, e) = (&mut out[first * query_stride..], &e[first * score_stride..]);
        let n = 4.min(n_queries - first);
        let whole = match n {
            1 => 0,
            2 => sums_tile::<V, 2>(s, out, e, v, shape),
            3 => sums_tile::<V, 3>(s, out, e, v, shape),
            _ => sums_tile::<V, 4>(s, out, e, v, shape),
        };
        for t in 0..n {
            let out = &mut out[t * query_stride..][whole..head_dim];
            one(s, out, &e[t * score_stride..][..n_positions], rest(v, whole), kv_stride);
        }
        first += n;
    }
}

/// `N` queries, 64 channels at a time; gives how many channels it did.
fn sums_tile<V: Value, const N: usize>(
    s: Avx512,
    out: &mut [f32],
    e: &[f32],
    v: &[V],
    shape: Queries,
) -> usize {
    let whole = shape.head_dim / 64 * 64;
    s.run(
        #[inline(always)]
        || {
            let mut weights: [&[f32]; N] = [&[]; N];
            for t in 0..N {
                weights[t] = &e[t * shape.score_stride..][..shape.n_positions];
            }
            for at in (0..whole).step_by(64) {
                let mut acc = [[s.set1(0.0); 4]; N];
                for t in 0..N {
                    for c in 0..4 {
                        let from = t * shape.query_stride + at + 16 * c;
                        acc[t][c] = pulp::cast(chunk::<f32, 16>(out, from));
                    }
                }
                for i in 0..shape.n_positions {
                    let row = rounds(&v[i * shape.kv_stride + at..], 4);
                    let mut x = [s.set1(0.0); 4];
                    for c in 0..4 {
                        x[c] = V::load16(s, &row[c]);
                    }
                    for t in 0..N {
                        let e = s.set1(weights[t][i]);
                        for c in 0..4 {
                            acc[t][c] = s.add(acc[t][c], s.mul(e, x[c]));
                        }
                    }
                }
                for t in 0..N {
                    let lanes: [f32; 64] = pulp::cast(acc[t]);
                    out[t * shape.query_stride + at..][..64].copy_from_slice(&lanes);
                }
            }
        },
    );
    whole
}
