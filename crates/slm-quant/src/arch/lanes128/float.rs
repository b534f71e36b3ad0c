//! Reductions and functions of f32 rows.
#![allow(
    clippy::excessive_precision,
    clippy::approx_constant,
    reason = "the digits are the contract's"
)]

use super::{Lanes, Value, chunk, chunk_mut};
use crate::arch::scalar;

/// Goes on with `a[i]*b[i]` in the 16 lanes; what came before was a multiple of 16 long.
///
/// A tail is padded with zeros: a lane starts at +0.0 and so is never -0.0, and adding +0.0 to it changes nothing.
#[inline(always)]
pub(super) fn dot_more<L: Lanes, V: Value>(s: L, lanes: &mut [L::F; 4], a: &[f32], b: &[V]) {
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
fn dot_16<L: Lanes, V: Value>(s: L, lanes: &mut [L::F; 4], a: &[f32; 16], b: &[V; 16]) {
    for h in 0..4 {
        let (a, b) = (s.load(chunk(a, 4 * h)), V::load4(s, chunk(b, 4 * h)));
        lanes[h] = s.add(lanes[h], s.mul(a, b));
    }
}

/// The sixteen lanes of a reduction, added in pairs (l, l+8), (l, l+4), (l, l+2), (l, l+1).
#[inline(always)]
pub(super) fn sum_lanes<L: Lanes>(s: L, lanes: [L::F; 4]) -> f32 {
    let [a, b, c, d] = lanes;
    let mut four = [0.0; 4];
    s.store(&mut four, s.add(s.add(a, c), s.add(b, d)));
    (four[0] + four[2]) + (four[1] + four[3])
}

#[inline(always)]
fn padded<T: Copy + Default, const N: usize>(x: &[T]) -> [T; N] {
    let mut all = [T::default(); N];
    all[..x.len()].copy_from_slice(x);
    all
}

#[inline(always)]
fn dot<L: Lanes, V: Value>(s: L, a: &[f32], b: &[V]) -> f32 {
    let mut lanes = [s.splat(0.0); 4];
    dot_more(s, &mut lanes, a, b);
    sum_lanes(s, lanes)
}

pub(crate) fn dot16<L: Lanes>(s: L, a: &[f32], b: &[f32]) -> f32 {
    dot(s, a, b)
}

pub(crate) fn dot16_f16<L: Lanes>(s: L, a: &[f32], b: &[u16]) -> f32 {
    dot(s, a, b)
}

pub(crate) fn sum16<L: Lanes>(s: L, a: &[f32]) -> f32 {
    let (a16, tail) = a.as_chunks::<16>();
    let mut lanes = [s.splat(0.0); 4];
    for a in a16.iter().chain([&padded(tail)]) {
        for h in 0..4 {
            lanes[h] = s.add(lanes[h], s.load(chunk(a, 4 * h)));
        }
    }
    sum_lanes(s, lanes)
}

/// `y_i = f(y_i)`; a tail runs padded.
#[inline(always)]
fn map<L: Lanes>(s: L, y: &mut [f32], f: impl Fn(L::F) -> L::F) {
    let (head, tail) = y.as_chunks_mut::<4>();
    for y in head {
        s.store(y, f(s.load(y)));
    }
    if !tail.is_empty() {
        let mut all = padded(tail);
        s.store(&mut all, f(s.load(&padded(tail))));
        tail.copy_from_slice(&all[..tail.len()]);
    }
}

/// `y_i = f(y_i, x_i)`; a tail runs padded.
#[inline(always)]
fn zip<L: Lanes, V: Value>(s: L, y: &mut [f32], x: &[V], f: impl Fn(L::F, L::F) -> L::F) {
    let (head, tail) = y.as_chunks_mut::<4>();
    let (x4, x_tail) = x.as_chunks::<4>();
    for (y, x) in head.iter_mut().zip(x4) {
        s.store(y, f(s.load(y), V::load4(s, x)));
    }
    if !tail.is_empty() {
        let mut all = padded(tail);
        s.store(&mut all, f(s.load(&padded(tail)), V::load4(s, &padded(x_tail))));
        tail.copy_from_slice(&all[..tail.len()]);
    }
}

pub(crate) fn axpy<L: Lanes>(s: L, y: &mut [f32], f: f32, x: &[f32]) {
    let f = s.splat(f);
    zip(s, y, x, |y, x| s.add(y, s.mul(f, x)));
}

pub(crate) fn axpy_f16<L: Lanes>(s: L, y: &mut [f32], f: f32, x: &[u16]) {
    let f = s.splat(f);
    zip(s, y, x, |y, x| s.add(y, s.mul(f, x)));
}

pub(crate) fn add<L: Lanes>(s: L, y: &mut [f32], x: &[f32]) {
    zip(s, y, x, |y, x| s.add(y, x));
}

pub(crate) fn scale<L: Lanes>(s: L, y: &mut [f32], f: f32) {
    let f = s.splat(f);
    map(s, y, |y| s.mul(y, f));
}

pub(crate) fn div<L: Lanes>(s: L, y: &mut [f32], f: f32) {
    let f = s.splat(f);
    map(s, y, |y| s.div(y, f));
}

pub(crate) fn exp_sub<L: Lanes>(s: L, x: &mut [f32], m: f32) {
    let m = s.splat(m);
    map(s, x, |x| exp(s, s.sub(x, m)));
}

pub(crate) fn silu_mul<L: Lanes>(s: L, gate: &mut [f32], up: &[f32]) {
    zip(s, gate, up, |g, up| s.mul(logistic(s, g, s.neg(g)), up));
}

pub(crate) fn gelu_mul<L: Lanes>(s: L, gate: &mut [f32], up: &[f32]) {
    zip(s, gate, up, |g, up| s.mul(gelu(s, g), up));
}

/// `exp`, four at a time; each step as in [`scalar::exp`].
#[inline(always)]
fn exp<L: Lanes>(s: L, x: L::F) -> L::F {
    let under = s.less(x, s.splat(-87.33654));
    let x = s.min(x, s.splat(88.37626));
    let n = s.round(s.mul(x, s.splat(1.442_695_04)));
    let r = s.sub(x, s.mul(n, s.splat(0.693_359_375)));
    let r = s.sub(r, s.mul(n, s.splat(-2.121_944_4e-4)));
    let mut p = s.splat(1.987_569_15e-4);
    for c in [1.398_199_950_7e-3, 8.333_451_907_3e-3, 4.166_579_589_4e-2, 1.666_666_545_9e-1] {
        p = s.add(s.mul(p, r), s.splat(c));
    }
    p = s.add(s.mul(p, r), s.splat(5.000_000_120_1e-1));
    let y = s.add(s.add(s.mul(p, s.mul(r, r)), r), s.splat(1.0));
    let power = s.floats(s.shl(s.add_i32(s.to_i32(n), s.splat_i32(127)), 23));
    s.floats(s.without(s.bits(s.mul(y, power)), under))
}

/// `x / (1 + exp(e))`.
#[inline(always)]
fn logistic<L: Lanes>(s: L, x: L::F, e: L::F) -> L::F {
    s.div(x, s.add(s.splat(1.0), exp(s, e)))
}

#[inline(always)]
fn gelu<L: Lanes>(s: L, x: L::F) -> L::F {
    let cube = s.mul(s.mul(s.mul(s.splat(0.044715), x), x), x);
    let u = s.mul(s.splat(0.797_884_560_8), s.add(x, cube));
    logistic(s, x, s.mul(s.splat(-2.0), u))
}

pub(crate) fn max<L: Lanes>(s: L, x: &[f32]) -> f32 {
    let (head, tail) = x.as_chunks::<4>();
    let mut most = s.splat(f32::NEG_INFINITY);
    for x in head {
        most = s.max(most, s.load(x));
    }
    let mut lanes = [0.0; 4];
    s.store(&mut lanes, most);
    // The scalar form turns -0 into +0, which hides the order.
    let (a, b) = (scalar::max(&lanes), scalar::max(tail));
    if a > b { a } else { b }
}

pub(crate) fn is_finite<L: Lanes>(s: L, x: &[f32]) -> bool {
    let (head, tail) = x.as_chunks::<4>();
    let mut finite = s.splat_i32(-1);
    for x in head {
        finite = s.and(finite, s.less(s.abs(s.load(x)), s.splat(f32::INFINITY)));
    }
    s.all(finite) && scalar::is_finite(tail)
}

pub(crate) fn rms_norm<L: Lanes>(s: L, out: &mut [f32], x: &[f32], w: &[f32], eps: f32) {
    let m = dot(s, x, x) / x.len() as f32;
    let r = s.splat(1.0 / (m + eps).sqrt());
    out.copy_from_slice(x);
    zip(s, out, w, |x, w| s.mul(s.mul(x, r), w));
}

pub(crate) fn rope_interleaved<L: Lanes>(s: L, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (head, tail) = x.as_chunks_mut::<8>();
    let (cos4, cos_tail) = cos.as_chunks::<4>();
    let (sin4, sin_tail) = sin.as_chunks::<4>();
    for (x, (c, n)) in head.iter_mut().zip(cos4.iter().zip(sin4)) {
        let [a, b] = s.unzip(s.load(chunk(x, 0)), s.load(chunk(x, 4)));
        let [low, high] = {
            let [a, b] = turned(s, a, b, s.load(c), s.load(n));
            s.zip(a, b)
        };
        s.store(chunk_mut(x, 0), low);
        s.store(chunk_mut(x, 4), high);
    }
    scalar::rope_interleaved(tail, cos_tail, sin_tail);
}

pub(crate) fn rope_half<L: Lanes>(s: L, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = x.split_at_mut(cos.len());
    let whole = cos.len() / 4 * 4;
    for at in (0..whole).step_by(4) {
        let (c, n) = (s.load(chunk(cos, at)), s.load(chunk(sin, at)));
        let [a, b] = turned(s, s.load(chunk(low, at)), s.load(chunk(high, at)), c, n);
        s.store(chunk_mut(low, at), a);
        s.store(chunk_mut(high, at), b);
    }
    for j in whole..cos.len() {
        let (a, b) = (low[j], high[j]);
        low[j] = a * cos[j] - b * sin[j];
        high[j] = a * sin[j] + b * cos[j];
    }
}

/// The pairs `(a, b)` turned by the angles of cosines `c` and sines `n`.
#[inline(always)]
fn turned<L: Lanes>(s: L, a: L::F, b: L::F, c: L::F, n: L::F) -> [L::F; 2] {
    [s.sub(s.mul(a, c), s.mul(b, n)), s.add(s.mul(a, n), s.mul(b, c))]
}

pub(crate) fn to_f16<L: Lanes>(s: L, out: &mut [u16], x: &[f32]) {
    let (head, tail) = out.as_chunks_mut::<4>();
    let (x4, x_tail) = x.as_chunks::<4>();
    for (y, x) in head.iter_mut().zip(x4) {
        *y = s.narrow_f16(s.load(x));
    }
    scalar::to_f16(tail, x_tail);
}
