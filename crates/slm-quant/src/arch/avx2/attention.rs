//! One head over a run of cached positions: eight dot products at once, and weighted sums that stay in registers.

use super::float::{dot16, dot16_f16};
use super::{Avx2, F, chunk};
use crate::arch::scalar;
use crate::queries::Queries;

/// As [`scalar::dots16`].
pub(crate) fn dots16(s: Avx2, out: &mut [f32], q: &[f32], k: &[f32], stride: usize) {
    dots(s, out, q, k, stride, dot16);
}

/// As [`scalar::dots16_f16`].
pub(crate) fn dots16_f16(s: Avx2, out: &mut [f32], q: &[f32], k: &[u16], stride: usize) {
    dots(s, out, q, k, stride, dot16_f16);
}

/// As [`scalar::weighted_sum`].
pub(crate) fn weighted_sum(s: Avx2, out: &mut [f32], e: &[f32], v: &[f32], stride: usize) {
    let whole = out.len() / 8 * 8;
    sums(s, &mut out[..whole], e, v, stride);
    scalar::weighted_sum(&mut out[whole..], e, rest(v, whole), stride);
}

/// As [`scalar::weighted_sum_f16`].
pub(crate) fn weighted_sum_f16(s: Avx2, out: &mut [f32], e: &[f32], v: &[u16], stride: usize) {
    let whole = out.len() / 8 * 8;
    sums(s, &mut out[..whole], e, v, stride);
    scalar::weighted_sum_f16(&mut out[whole..], e, rest(v, whole), stride);
}

/// The channels from `first` on; none where there are no positions.
#[inline(always)]
pub(in crate::arch) fn rest<V>(v: &[V], first: usize) -> &[V] {
    &v[first.min(v.len())..]
}

/// A cached number.
trait Value: Copy {
    /// Eight of them widened.
    fn load8(s: Avx2, x: &[Self; 8]) -> F;
}

impl Value for f32 {
    #[inline(always)]
    fn load8(s: Avx2, x: &[f32; 8]) -> F {
        s.load(x)
    }
}

impl Value for u16 {
    #[inline(always)]
    fn load8(s: Avx2, x: &[u16; 8]) -> F {
        s.widen_f16(pulp::cast(*x))
    }
}

fn dots<V: Value>(
    s: Avx2,
    out: &mut [f32],
    q: &[f32],
    k: &[V],
    stride: usize,
    one: fn(Avx2, &[f32], &[V]) -> f32,
) {
    let whole = if q.len().is_multiple_of(16) { out.len() / 8 * 8 } else { 0 };
    s.run(
        #[inline(always)]
        || {
            let (eights, _) = out[..whole].as_chunks_mut::<8>();
            for (i, y) in eights.iter_mut().enumerate() {
                let mut rows: [&[V]; 8] = [&[]; 8];
                for r in 0..8 {
                    rows[r] = &k[(8 * i + r) * stride..][..q.len()];
                }
                s.store(y, eight_dots(s, q, &rows));
            }
        },
    );
    for (i, y) in out.iter_mut().enumerate().skip(whole) {
        *y = one(s, q, &k[i * stride..][..q.len()]);
    }
}

/// Whole rounds of the 16 lanes.
#[inline(always)]
fn eight_dots<V: Value>(s: Avx2, q: &[f32], rows: &[&[V]; 8]) -> F {
    let mut low = [s.set1(0.0); 8];
    let mut high = low;
    for at in (0..q.len()).step_by(16) {
        let (q0, q1) = (s.load(&chunk(q, at)), s.load(&chunk(q, at + 8)));
        for r in 0..8 {
            let (k0, k1) = (V::load8(s, &chunk(rows[r], at)), V::load8(s, &chunk(rows[r], at + 8)));
            low[r] = s.add(low[r], s.mul(q0, k0));
            high[r] = s.add(high[r], s.mul(q1, k1));
        }
    }
    // The pairs of the contract, for all rows at once: lanes l and l+8, l+4, l+2, l+1.
    let avx = s.avx;
    let mut eight = low;
    for r in 0..8 {
        eight[r] = s.add(low[r], high[r]);
    }
    let mut four = [s.set1(0.0); 4];
    for i in 0..4 {
        let (a, b) = (eight[2 * i], eight[2 * i + 1]);
        let upper = avx._mm256_permute2f128_ps::<0x31>(a, b);
        four[i] = s.add(avx._mm256_permute2f128_ps::<0x20>(a, b), upper);
    }
    let two = |a: F, b: F| {
        let upper = avx._mm256_shuffle_ps::<0xee>(a, b);
        s.add(avx._mm256_shuffle_ps::<0x44>(a, b), upper)
    };
    let (a, b) = (two(four[0], four[1]), two(four[2], four[3]));
    let sums = s.add(avx._mm256_shuffle_ps::<0x88>(a, b), avx._mm256_shuffle_ps::<0xdd>(a, b));
    // Rows 0 2 4 6 | 1 3 5 7 back in order.
    s.avx2._mm256_permutevar8x32_ps(sums, s.i32s([0, 4, 1, 5, 2, 6, 3, 7]))
}

fn sums<V: Value>(s: Avx2, out: &mut [f32], e: &[f32], v: &[V], stride: usize) {
    s.run(
        #[inline(always)]
        || {
            let wide = out.len() / 64 * 64;
            for at in (0..wide).step_by(64) {
                sum_piece::<V, 8>(s, &mut out[at..], e, v, stride, at);
            }
            for at in (wide..out.len()).step_by(8) {
                sum_piece::<V, 1>(s, &mut out[at..], e, v, stride, at);
            }
        },
    );
}

/// `8 * N` channels from `at` on.
#[inline(always)]
fn sum_piece<V: Value, const N: usize>(
    s: Avx2,
    out: &mut [f32],
    e: &[f32],
    v: &[V],
    stride: usize,
    at: usize,
) {
    let mut acc = [s.set1(0.0); N];
    for n in 0..N {
        acc[n] = s.load(&chunk(out, 8 * n));
    }
    for (i, &e) in e.iter().enumerate() {
        let (e, row) = (s.set1(e), &v[i * stride + at..][..8 * N]);
        for n in 0..N {
            acc[n] = s.add(acc[n], s.mul(e, V::load8(s, &chunk(row, 8 * n))));
        }
    }
    for n in 0..N {
        s.store(out[8 * n..].first_chunk_mut().expect("BUG: whole vectors"), acc[n]);
    }
}

/// As [`scalar::query_dots`].
pub(crate) fn query_dots(s: Avx2, out: &mut [f32], q: &[f32], k: &[f32], shape: Queries) {
    shape.each(|t, score, n| {
        dots16(s, &mut out[score..][..n], &q[t..][..shape.head_dim], k, shape.kv_stride);
    });
}

/// As [`scalar::query_dots_f16`].
pub(crate) fn query_dots_f16(s: Avx2, out: &mut [f32], q: &[f32], k: &[u16], shape: Queries) {
    shape.each(|t, score, n| {
        dots16_f16(s, &mut out[score..][..n], &q[t..][..shape.head_dim], k, shape.kv_stride);
    });
}

/// As [`scalar::query_sums`].
pub(crate) fn query_sums(s: Avx2, out: &mut [f32], e: &[f32], v: &[f32], shape: Queries) {
    shape.each(|t, score, n| {
        weighted_sum(s, &mut out[t..][..shape.head_dim], &e[score..][..n], v, shape.kv_stride);
    });
}

/// As [`scalar::query_sums_f16`].
pub(crate) fn query_sums_f16(s: Avx2, out: &mut [f32], e: &[f32], v: &[u16], shape: Queries) {
    shape.each(|t, score, n| {
        weighted_sum_f16(s, &mut out[t..][..shape.head_dim], &e[score..][..n], v, shape.kv_stride);
    });
}
