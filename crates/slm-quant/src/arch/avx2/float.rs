//! Reductions and functions of f32 rows.
#![allow(
    clippy::excessive_precision,
    clippy::approx_constant,
    reason = "the digits are the contract's"
)]

use core::arch::x86_64::_CMP_LT_OQ;

use super::{Avx2, F, chunk};
use crate::arch::scalar;

/// Goes on with `a[i]*b[i]` in the 16 lanes; what came before was a multiple of 16 long.
///
/// A tail is padded with zeros: a lane starts at +0.0 and so is never -0.0, and adding +0.0 to it changes nothing.
#[inline(always)]
pub(super) fn dot_more(s: Avx2, lanes: &mut [F; 2], a: &[f32], b: &[f32]) {
    let (a16, a_tail) = a.as_chunks::<16>();
    let (b16, b_tail) = b.as_chunks::<16>();
    for (a, b) in a16.iter().zip(b16) {
        dot_16(s, lanes, a, b);
    }
    if !a_tail.is_empty() {
        dot_16(s, lanes, &padded(a_tail), &padded(b_tail));
    }
}

#[inline(always)]
fn dot_16(s: Avx2, lanes: &mut [F; 2], a: &[f32; 16], b: &[f32; 16]) {
    for h in 0..2 {
        let (a, b) = (s.load(&chunk(a, 8 * h)), s.load(&chunk(b, 8 * h)));
        lanes[h] = s.add(lanes[h], s.mul(a, b));
    }
}

#[inline(always)]
fn padded<T: Copy + Default, const N: usize>(x: &[T]) -> [T; N] {
    let mut all = [T::default(); N];
    all[..x.len()].copy_from_slice(x);
    all
}

#[inline(always)]
fn dot(s: Avx2, a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [s.set1(0.0); 2];
    dot_more(s, &mut lanes, a, b);
    s.sum_lanes(lanes[0], lanes[1])
}

pub(crate) fn dot16(s: Avx2, a: &[f32], b: &[f32]) -> f32 {
    s.run(
        #[inline(always)]
        move || dot(s, a, b),
    )
}

pub(crate) fn dot16_f16(s: Avx2, a: &[f32], b: &[u16]) -> f32 {
    s.run(
        #[inline(always)]
        move || {
            let mut lanes = [s.set1(0.0); 2];
            let (a16, a_tail) = a.as_chunks::<16>();
            let (b16, b_tail) = b.as_chunks::<16>();
            for (a, b) in a16.iter().zip(b16) {
                dot_16_f16(s, &mut lanes, a, b);
            }
            if !a_tail.is_empty() {
                dot_16_f16(s, &mut lanes, &padded(a_tail), &padded(b_tail));
            }
            s.sum_lanes(lanes[0], lanes[1])
        },
    )
}

#[inline(always)]
fn dot_16_f16(s: Avx2, lanes: &mut [F; 2], a: &[f32; 16], b: &[u16; 16]) {
    for h in 0..2 {
        let b = s.widen_f16(pulp::cast(chunk::<u16, 8>(b, 8 * h)));
        lanes[h] = s.add(lanes[h], s.mul(s.load(&chunk(a, 8 * h)), b));
    }
}

pub(crate) fn sum16(s: Avx2, a: &[f32]) -> f32 {
    s.run(
        #[inline(always)]
        move || {
            let mut lanes = [s.set1(0.0); 2];
            let (a16, tail) = a.as_chunks::<16>();
            for a in a16 {
                for h in 0..2 {
                    lanes[h] = s.add(lanes[h], s.load(&chunk(a, 8 * h)));
                }
            }
            let tail: [f32; 16] = padded(tail);
            for h in 0..2 {
                lanes[h] = s.add(lanes[h], s.load(&chunk(&tail, 8 * h)));
            }
            s.sum_lanes(lanes[0], lanes[1])
        },
    )
}

/// `y_i = f(y_i)`; a tail runs padded.
#[inline(always)]
fn map(s: Avx2, y: &mut [f32], f: impl Fn(F) -> F) {
    let (head, tail) = y.as_chunks_mut::<8>();
    for y in head {
        s.store(y, f(s.load(y)));
    }
    if !tail.is_empty() {
        let mut all = padded(tail);
        let value = f(s.load(&all));
        s.store(&mut all, value);
        tail.copy_from_slice(&all[..tail.len()]);
    }
}

/// `y_i = f(y_i, x_i)`; a tail runs padded.
#[inline(always)]
fn zip(s: Avx2, y: &mut [f32], x: &[f32], f: impl Fn(F, F) -> F) {
    let (head, tail) = y.as_chunks_mut::<8>();
    let (x8, x_tail) = x.as_chunks::<8>();
    for (y, x) in head.iter_mut().zip(x8) {
        s.store(y, f(s.load(y), s.load(x)));
    }
    if !tail.is_empty() {
        let mut all = padded(tail);
        let value = f(s.load(&all), s.load(&padded(x_tail)));
        s.store(&mut all, value);
        tail.copy_from_slice(&all[..tail.len()]);
    }
}

/// A function of rows whose body is one expression of vectors.
macro_rules! elementwise {
    ($($name:ident($s:ident, $y:ident $(, $x:ident: $ty:ty)?) => $run:expr;)*) => {
        $(pub(crate) fn $name($s: Avx2, $y: &mut [f32] $(, $x: $ty)?) {
            $s.run(#[inline(always)] move || $run)
        })*
    };
}

elementwise! {
    add(s, y, x: &[f32]) => zip(s, y, x, #[inline(always)] |y, x| s.add(y, x));
    scale(s, y, f: f32) => map(s, y, #[inline(always)] |y| s.mul(y, s.set1(f)));
    div(s, y, f: f32) => map(s, y, #[inline(always)] |y| s.avx._mm256_div_ps(y, s.set1(f)));
    exp_sub(s, y, m: f32) => map(s, y, #[inline(always)] |y| exp(s, s.sub(y, s.set1(m))));
    silu_mul(s, y, x: &[f32]) => zip(s, y, x, #[inline(always)] |y, x| {
        s.mul(logistic(s, y, s.avx._mm256_xor_ps(y, s.set1(-0.0))), x)
    });
    gelu_mul(s, y, x: &[f32]) => zip(s, y, x, #[inline(always)] |y, x| s.mul(gelu(s, y), x));
}

pub(crate) fn axpy(s: Avx2, y: &mut [f32], f: f32, x: &[f32]) {
    s.run(
        #[inline(always)]
        move || {
            let f = s.set1(f);
            zip(
                s,
                y,
                x,
                #[inline(always)]
                |y, x| s.add(y, s.mul(f, x)),
            );
        },
    );
}

pub(crate) fn axpy_f16(s: Avx2, y: &mut [f32], f: f32, x: &[u16]) {
    s.run(
        #[inline(always)]
        move || {
            let (head, tail) = y.as_chunks_mut::<8>();
            let (x8, x_tail) = x.as_chunks::<8>();
            let wide = s.set1(f);
            for (y, x) in head.iter_mut().zip(x8) {
                let x = s.widen_f16(pulp::cast(*x));
                s.store(y, s.add(s.load(y), s.mul(wide, x)));
            }
            scalar::axpy_f16(tail, f, x_tail);
        },
    );
}

/// `exp`, eight at a time; each step as in [`scalar::exp`].
#[inline(always)]
fn exp(s: Avx2, x: F) -> F {
    let under = s.avx._mm256_cmp_ps::<_CMP_LT_OQ>(x, s.set1(-87.33654));
    // The second operand where the first is not less: x itself when it is no greater.
    let x = s.avx._mm256_min_ps(s.set1(88.37626), x);
    let n = s.avx._mm256_round_ps::<8>(s.mul(x, s.set1(1.442_695_04)));
    let r = s.sub(x, s.mul(n, s.set1(0.693_359_375)));
    let r = s.sub(r, s.mul(n, s.set1(-2.121_944_4e-4)));
    let mut p = s.set1(1.987_569_15e-4);
    for c in [1.398_199_950_7e-3, 8.333_451_907_3e-3, 4.166_579_589_4e-2, 1.666_666_545_9e-1] {
        p = s.add(s.mul(p, r), s.set1(c));
    }
    p = s.add(s.mul(p, r), s.set1(5.000_000_120_1e-1));
    let y = s.add(s.add(s.mul(p, s.mul(r, r)), r), s.set1(1.0));
    let biased = s.avx2._mm256_add_epi32(s.avx._mm256_cvtps_epi32(n), s.avx._mm256_set1_epi32(127));
    let power: F = pulp::cast(s.avx2._mm256_slli_epi32::<23>(biased));
    s.avx._mm256_andnot_ps(under, s.mul(y, power))
}

/// `x / (1 + exp(e))`.
#[inline(always)]
fn logistic(s: Avx2, x: F, e: F) -> F {
    s.avx._mm256_div_ps(x, s.add(s.set1(1.0), exp(s, e)))
}

#[inline(always)]
fn gelu(s: Avx2, x: F) -> F {
    let cube = s.mul(s.mul(s.mul(s.set1(0.044715), x), x), x);
    let u = s.mul(s.set1(0.797_884_560_8), s.add(x, cube));
    logistic(s, x, s.mul(s.set1(-2.0), u))
}

pub(crate) fn max(s: Avx2, x: &[f32]) -> f32 {
    s.run(
        #[inline(always)]
        move || {
            let (head, tail) = x.as_chunks::<8>();
            let mut most = s.set1(f32::NEG_INFINITY);
            for x in head {
                most = s.avx._mm256_max_ps(most, s.load(x));
            }
            let most: [f32; 8] = pulp::cast(most);
            // The scalar form turns -0 into +0, which hides the order.
            let (a, b) = (scalar::max(&most), scalar::max(tail));
            if a > b { a } else { b }
        },
    )
}

pub(crate) fn is_finite(s: Avx2, x: &[f32]) -> bool {
    s.run(
        #[inline(always)]
        move || {
            let (head, tail) = x.as_chunks::<8>();
            let (sign, infinity) = (s.set1(-0.0), s.set1(f32::INFINITY));
            let mut finite: F = pulp::cast([-1i32; 8]);
            for x in head {
                let magnitude = s.avx._mm256_andnot_ps(sign, s.load(x));
                let below = s.avx._mm256_cmp_ps::<_CMP_LT_OQ>(magnitude, infinity);
                finite = s.avx._mm256_and_ps(finite, below);
            }
            s.avx._mm256_movemask_ps(finite) == 0xff && scalar::is_finite(tail)
        },
    )
}

pub(crate) fn rms_norm(s: Avx2, out: &mut [f32], x: &[f32], w: &[f32], eps: f32) {
    s.run(
        #[inline(always)]
        move || {
            let m = dot(s, x, x) / x.len() as f32;
            let r = s.set1(1.0 / (m + eps).sqrt());
            out.copy_from_slice(x);
            zip(
                s,
                out,
                w,
                #[inline(always)]
                |x, w| s.mul(s.mul(x, r), w),
            );
        },
    );
}

pub(crate) fn rope_interleaved(s: Avx2, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    s.run(
        #[inline(always)]
        move || {
            let (head, tail) = x.as_chunks_mut::<8>();
            let (cos4, cos_tail) = cos.as_chunks::<4>();
            let (sin4, sin_tail) = sin.as_chunks::<4>();
            let twice = s.i32s([0, 0, 1, 1, 2, 2, 3, 3]);
            for (x, (c, n)) in head.iter_mut().zip(cos4.iter().zip(sin4)) {
                let c = s.load(&[c[0], c[1], c[2], c[3], 0.0, 0.0, 0.0, 0.0]);
                let n = s.load(&[n[0], n[1], n[2], n[3], 0.0, 0.0, 0.0, 0.0]);
                let c = s.avx2._mm256_permutevar8x32_ps(c, twice);
                let n = s.avx2._mm256_permutevar8x32_ps(n, twice);
                let ab = s.load(x);
                let ba = s.avx._mm256_permute_ps::<0b10_11_00_01>(ab);
                // Even lanes a*c - b*s, odd lanes b*c + a*s.
                s.store(x, s.avx._mm256_addsub_ps(s.mul(ab, c), s.mul(ba, n)));
            }
            scalar::rope_interleaved(tail, cos_tail, sin_tail);
        },
    );
}

pub(crate) fn rope_half(s: Avx2, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    s.run(
        #[inline(always)]
        move || {
            let (low, high) = x.split_at_mut(cos.len());
            let whole = cos.len() / 8 * 8;
            for at in (0..whole).step_by(8) {
                let (c, n) = (s.load(&chunk(cos, at)), s.load(&chunk(sin, at)));
                let (a, b) = (s.load(&chunk(low, at)), s.load(&chunk(high, at)));
                let first = s.sub(s.mul(a, c), s.mul(b, n));
                let second = s.add(s.mul(a, n), s.mul(b, c));
                s.store(low[at..].first_chunk_mut().expect("BUG: whole vectors"), first);
                s.store(high[at..].first_chunk_mut().expect("BUG: whole vectors"), second);
            }
            for j in whole..cos.len() {
                let (a, b) = (low[j], high[j]);
                low[j] = a * cos[j] - b * sin[j];
                high[j] = a * sin[j] + b * cos[j];
            }
        },
    );
}

pub(crate) fn to_f16(s: Avx2, out: &mut [u16], x: &[f32]) {
    s.run(
        #[inline(always)]
        move || {
            let (head, tail) = out.as_chunks_mut::<8>();
            let (x8, x_tail) = x.as_chunks::<8>();
            for (y, x) in head.iter_mut().zip(x8) {
                *y = pulp::cast(s.narrow_f16(s.load(x)));
            }
            scalar::to_f16(tail, x_tail);
        },
    );
}
