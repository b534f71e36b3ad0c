//! Reductions and functions of f32 rows: the sixteen lanes of the contract are one vector.
#![allow(
    clippy::excessive_precision,
    clippy::approx_constant,
    reason = "the digits are the contract's"
)]

use core::arch::x86_64::_CMP_LT_OQ;

use super::attention::Value;
use super::{Avx512, F, I};
use crate::arch::scalar;

/// Goes on with `a[i]*b[i]` in the 16 lanes; what came before was a multiple of 16 long.
///
/// A tail is padded with zeros: a lane starts at +0.0 and so is never -0.0, and adding +0.0 to it changes nothing.
#[inline(always)]
pub(super) fn dot_more<V: Value>(s: Avx512, lanes: F, a: &[f32], b: &[V]) -> F {
    let (a16, a_tail) = a.as_chunks::<16>();
    let (b16, b_tail) = b.as_chunks::<16>();
    let mut lanes = lanes;
    for (a, b) in a16.iter().zip(b16) {
        lanes = s.add(lanes, s.mul(pulp::cast(*a), V::load16(s, b)));
    }
    if !a_tail.is_empty() {
        let (a, b): ([f32; 16], [V; 16]) = (padded(a_tail), padded(b_tail));
        lanes = s.add(lanes, s.mul(pulp::cast(a), V::load16(s, &b)));
    }
    lanes
}

/// A copy of `x` followed by zeros.
#[inline(always)]
fn padded<T: Copy + Default>(x: &[T]) -> [T; 16] {
    let mut all = [T::default(); 16];
    all[..x.len()].copy_from_slice(x);
    all
}

#[inline(always)]
fn dot<V: Value>(s: Avx512, a: &[f32], b: &[V]) -> f32 {
    s.sum_lanes(dot_more(s, s.set1(0.0), a, b))
}

pub(crate) fn dot16(s: Avx512, a: &[f32], b: &[f32]) -> f32 {
    s.run(
        #[inline(always)]
        move || dot(s, a, b),
    )
}

pub(crate) fn dot16_f16(s: Avx512, a: &[f32], b: &[u16]) -> f32 {
    s.run(
        #[inline(always)]
        move || dot(s, a, b),
    )
}

pub(crate) fn sum16(s: Avx512, a: &[f32]) -> f32 {
    s.run(
        #[inline(always)]
        move || {
            let (a16, tail) = a.as_chunks::<16>();
            let mut lanes = s.set1(0.0);
            for a in a16 {
                lanes = s.add(lanes, pulp::cast(*a));
            }
            s.sum_lanes(s.add(lanes, pulp::cast(padded(tail))))
        },
    )
}

/// `y_i = f(y_i)`; a tail runs padded.
#[inline(always)]
fn map(y: &mut [f32], f: impl Fn(F) -> F) {
    let (head, tail) = y.as_chunks_mut::<16>();
    for y in head {
        *y = pulp::cast(f(pulp::cast(*y)));
    }
    if !tail.is_empty() {
        let all: [f32; 16] = pulp::cast(f(pulp::cast(padded(tail))));
        tail.copy_from_slice(&all[..tail.len()]);
    }
}

/// `y_i = f(y_i, x_i)`; a tail runs padded.
#[inline(always)]
fn zip<V: Value>(s: Avx512, y: &mut [f32], x: &[V], f: impl Fn(F, F) -> F) {
    let (head, tail) = y.as_chunks_mut::<16>();
    let (x16, x_tail) = x.as_chunks::<16>();
    for (y, x) in head.iter_mut().zip(x16) {
        *y = pulp::cast(f(pulp::cast(*y), V::load16(s, x)));
    }
    if !tail.is_empty() {
        let x: [V; 16] = padded(x_tail);
        let all: [f32; 16] = pulp::cast(f(pulp::cast(padded(tail)), V::load16(s, &x)));
        tail.copy_from_slice(&all[..tail.len()]);
    }
}

/// A function of rows whose body is one expression of vectors.
macro_rules! elementwise {
    ($($name:ident($s:ident, $y:ident $(, $x:ident: $ty:ty)*) => $run:expr;)*) => {
        $(pub(crate) fn $name($s: Avx512, $y: &mut [f32] $(, $x: $ty)*) {
            $s.run(#[inline(always)] move || $run)
        })*
    };
}

elementwise! {
    add(s, y, x: &[f32]) => zip(s, y, x, #[inline(always)] |y, x| s.add(y, x));
    axpy(s, y, f: f32, x: &[f32]) => {
        zip(s, y, x, #[inline(always)] |y, x| s.add(y, s.mul(s.set1(f), x)))
    };
    axpy_f16(s, y, f: f32, x: &[u16]) => {
        zip(s, y, x, #[inline(always)] |y, x| s.add(y, s.mul(s.set1(f), x)))
    };
    scale(s, y, f: f32) => map(y, #[inline(always)] |y| s.mul(y, s.set1(f)));
    div(s, y, f: f32) => map(y, #[inline(always)] |y| s.avx512f._mm512_div_ps(y, s.set1(f)));
    exp_sub(s, y, m: f32) => map(y, #[inline(always)] |y| exp(s, s.sub(y, s.set1(m))));
    silu_mul(s, y, x: &[f32]) => zip(s, y, x, #[inline(always)] |y, x| {
        let negative: F = pulp::cast(s.avx512f._mm512_xor_si512(pulp::cast(y), sign(s)));
        s.mul(logistic(s, y, negative), x)
    });
    gelu_mul(s, y, x: &[f32]) => zip(s, y, x, #[inline(always)] |y, x| s.mul(gelu(s, y), x));
}

#[inline(always)]
fn sign(s: Avx512) -> I {
    s.i32s1(i32::MIN)
}

/// `exp`, sixteen at a time; each step as in [`scalar::exp`].
#[inline(always)]
fn exp(s: Avx512, x: F) -> F {
    let f = s.avx512f;
    let under = f._mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, s.set1(-87.33654));
    // The second operand where the first is not less: x itself when it is no greater.
    let x = f._mm512_min_ps(s.set1(88.37626), x);
    let n = f._mm512_roundscale_ps::<8>(s.mul(x, s.set1(1.442_695_04)));
    let r = s.sub(x, s.mul(n, s.set1(0.693_359_375)));
    let r = s.sub(r, s.mul(n, s.set1(-2.121_944_4e-4)));
    let mut p = s.set1(1.987_569_15e-4);
    for c in [1.398_199_950_7e-3, 8.333_451_907_3e-3, 4.166_579_589_4e-2, 1.666_666_545_9e-1] {
        p = s.add(s.mul(p, r), s.set1(c));
    }
    p = s.add(s.mul(p, r), s.set1(5.000_000_120_1e-1));
    let y = s.add(s.add(s.mul(p, s.mul(r, r)), r), s.set1(1.0));
    let biased = f._mm512_add_epi32(f._mm512_cvtps_epi32(n), s.i32s1(127));
    let power: F = pulp::cast(f._mm512_slli_epi32::<23>(biased));
    f._mm512_maskz_mov_ps(!under, s.mul(y, power))
}

/// `x / (1 + exp(e))`.
#[inline(always)]
fn logistic(s: Avx512, x: F, e: F) -> F {
    s.avx512f._mm512_div_ps(x, s.add(s.set1(1.0), exp(s, e)))
}

#[inline(always)]
fn gelu(s: Avx512, x: F) -> F {
    let cube = s.mul(s.mul(s.mul(s.set1(0.044715), x), x), x);
    let u = s.mul(s.set1(0.797_884_560_8), s.add(x, cube));
    logistic(s, x, s.mul(s.set1(-2.0), u))
}

pub(crate) fn max(s: Avx512, x: &[f32]) -> f32 {
    s.run(
        #[inline(always)]
        move || {
            let (head, tail) = x.as_chunks::<16>();
            let mut most = s.set1(f32::NEG_INFINITY);
            for x in head {
                most = s.avx512f._mm512_max_ps(most, pulp::cast(*x));
            }
            let most: [f32; 16] = pulp::cast(most);
            // The scalar form turns -0 into +0, which hides the order.
            let (a, b) = (scalar::max(&most), scalar::max(tail));
            if a > b { a } else { b }
        },
    )
}

pub(crate) fn is_finite(s: Avx512, x: &[f32]) -> bool {
    s.run(
        #[inline(always)]
        move || {
            let (head, tail) = x.as_chunks::<16>();
            let infinity = s.i32s1(0x7f80_0000);
            let mut finite = u16::MAX;
            for x in head {
                let exponent = s.and(pulp::cast(*x), infinity);
                finite &= s.avx512f._mm512_cmpneq_epi32_mask(exponent, infinity);
            }
            finite == u16::MAX && scalar::is_finite(tail)
        },
    )
}

pub(crate) fn rms_norm(s: Avx512, out: &mut [f32], x: &[f32], w: &[f32], eps: f32) {
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

pub(crate) fn to_f16(s: Avx512, out: &mut [u16], x: &[f32]) {
    s.run(
        #[inline(always)]
        move || {
            let (head, tail) = out.as_chunks_mut::<16>();
            let (x16, x_tail) = x.as_chunks::<16>();
            for (y, x) in head.iter_mut().zip(x16) {
                *y = pulp::cast(s.avx512f._mm512_cvtps_ph::<0>(pulp::cast(*x)));
            }
            scalar::to_f16(tail, x_tail);
        },
    );
}
