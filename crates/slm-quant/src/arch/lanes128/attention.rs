//! One head over a run of cached positions: four dot products at once, and weighted sums that stay in registers.

use super::float::{dot16, dot16_f16};
use super::{Lanes, Value, chunk, chunk_mut};
use crate::arch::scalar;
use crate::queries::Queries;

/// As [`scalar::dots16`].
pub(crate) fn dots16<L: Lanes>(s: L, out: &mut [f32], q: &[f32], k: &[f32], stride: usize) {
    dots(s, out, q, k, stride, dot16);
}

/// As [`scalar::dots16_f16`].
pub(crate) fn dots16_f16<L: Lanes>(s: L, out: &mut [f32], q: &[f32], k: &[u16], stride: usize) {
    dots(s, out, q, k, stride, dot16_f16);
}

/// As [`scalar::weighted_sum`].
pub(crate) fn weighted_sum<L: Lanes>(s: L, out: &mut [f32], e: &[f32], v: &[f32], stride: usize) {
    let whole = out.len() / 4 * 4;
    sums(s, &mut out[..whole], e, v, stride);
    scalar::weighted_sum(&mut out[whole..], e, rest(v, whole), stride);
}

/// As [`scalar::weighted_sum_f16`].
pub(crate) fn weighted_sum_f16<L: Lanes>(
    s: L,
    out: &mut [f32],
    e: &[f32],
    v: &[u16],
    stride: usize,
) {
    let whole = out.len() / 4 * 4;
    sums(s, &mut out[..whole], e, v, stride);
    scalar::weighted_sum_f16(&mut out[whole..], e, rest(v, whole), stride);
}

/// The channels from `first` on; none where there are no positions.
#[inline(always)]
fn rest<V>(v: &[V], first: usize) -> &[V] {
    &v[first.min(v.len())..]
}

fn dots<L: Lanes, V: Value>(
    s: L,
    out: &mut [f32],
    q: &[f32],
    k: &[V],
    stride: usize,
    one: fn(L, &[f32], &[V]) -> f32,
) {
    let whole = if q.len().is_multiple_of(16) { out.len() / 4 * 4 } else { 0 };
    let (fours, _) = out[..whole].as_chunks_mut::<4>();
    for (i, y) in fours.iter_mut().enumerate() {
        let row = |r: usize| &k[(4 * i + r) * stride..][..q.len()];
        s.store(y, four_dots(s, q, [row(0), row(1), row(2), row(3)]));
    }
    for (i, y) in out.iter_mut().enumerate().skip(whole) {
        *y = one(s, q, &k[i * stride..][..q.len()]);
    }
}

/// Whole rounds of the 16 lanes.
#[inline(always)]
fn four_dots<L: Lanes, V: Value>(s: L, q: &[f32], rows: [&[V]; 4]) -> L::F {
    let mut lanes = [[s.splat(0.0); 4]; 4];
    for at in (0..q.len()).step_by(16) {
        for h in 0..4 {
            let q = s.load(chunk(q, at + 4 * h));
            for r in 0..4 {
                let k = V::load4(s, chunk(rows[r], at + 4 * h));
                lanes[r][h] = s.add(lanes[r][h], s.mul(q, k));
            }
        }
    }
    // The pairs of the contract, for all rows at once: lanes l and l+8, l+4, l+2, l+1.
    let four = lanes.map(
        #[inline(always)]
        |[a, b, c, d]| s.add(s.add(a, c), s.add(b, d)),
    );
    let [a, b, c, d] = s.transpose(four);
    s.add(s.add(a, c), s.add(b, d))
}

fn sums<L: Lanes, V: Value>(s: L, out: &mut [f32], e: &[f32], v: &[V], stride: usize) {
    let wide = out.len() / 32 * 32;
    for at in (0..wide).step_by(32) {
        sum_piece::<L, V, 8>(s, &mut out[at..], e, v, stride, at);
    }
    for at in (wide..out.len()).step_by(4) {
        sum_piece::<L, V, 1>(s, &mut out[at..], e, v, stride, at);
    }
}

/// `4 * N` channels from `at` on.
#[inline(always)]
fn sum_piece<L: Lanes, V: Value, const N: usize>(
    s: L,
    out: &mut [f32],
    e: &[f32],
    v: &[V],
    stride: usize,
    at: usize,
) {
    let mut acc = [s.splat(0.0); N];
    for n in 0..N {
        acc[n] = s.load(chunk(out, 4 * n));
    }
    for (i, &e) in e.iter().enumerate() {
        let (e, row) = (s.splat(e), &v[i * stride + at..][..4 * N]);
        for n in 0..N {
            acc[n] = s.add(acc[n], s.mul(e, V::load4(s, chunk(row, 4 * n))));
        }
    }
    for n in 0..N {
        s.store(chunk_mut(out, 4 * n), acc[n]);
    }
}

/// As [`scalar::query_dots`].
pub(crate) fn query_dots<L: Lanes>(s: L, out: &mut [f32], q: &[f32], k: &[f32], shape: Queries) {
    shape.each(|t, score, n| {
        dots16(s, &mut out[score..][..n], &q[t..][..shape.head_dim], k, shape.kv_stride);
    });
}

/// As [`scalar::query_dots_f16`].
pub(crate) fn query_dots_f16<L: Lanes>(
    s: L,
    out: &mut [f32],
    q: &[f32],
    k: &[u16],
    shape: Queries,
) {
    shape.each(|t, score, n| {
        dots16_f16(s, &mut out[score..][..n], &q[t..][..shape.head_dim], k, shape.kv_stride);
    });
}

/// As [`scalar::query_sums`].
pub(crate) fn query_sums<L: Lanes>(s: L, out: &mut [f32], e: &[f32], v: &[f32], shape: Queries) {
    shape.each(|t, score, n| {
        weighted_sum(s, &mut out[t..][..shape.head_dim], &e[score..][..n], v, shape.kv_stride);
    });
}

/// As [`scalar::query_sums_f16`].
pub(crate) fn query_sums_f16<L: Lanes>(
    s: L,
    out: &mut [f32],
    e: &[f32],
    v: &[u16],
    shape: Queries,
) {
    shape.each(|t, score, n| {
        weighted_sum_f16(s, &mut out[t..][..shape.head_dim], &e[score..][..n], v, shape.kv_stride);
    });
}
