//! Reductions (numerics 1) and functions (numerics 5).
#![allow(
    clippy::excessive_precision,
    clippy::approx_constant,
    reason = "the digits are the contract's"
)]

use half::f16;

/// The sixteen accumulators of a reduction.
#[derive(Clone, Copy)]
pub(crate) struct Lanes([f32; 16]);

impl Lanes {
    pub(crate) const ZERO: Lanes = Lanes([0.0; 16]);

    /// Goes on with `a[i]*b[i]`; what came before was a multiple of 16 long.
    #[inline(always)]
    pub(crate) fn dot(&mut self, a: &[f32], b: &[f32]) {
        for (a, b) in a.chunks(16).zip(b.chunks(16)) {
            for (lane, (a, b)) in self.0.iter_mut().zip(a.iter().zip(b)) {
                *lane += a * b;
            }
        }
    }

    /// The lanes added in pairs: (l, l+8), (l, l+4), (l, l+2), (l, l+1).
    #[inline(always)]
    pub(crate) fn sum(&self) -> f32 {
        let mut lanes = self.0;
        for width in [8, 4, 2, 1] {
            for l in 0..width {
                lanes[l] += lanes[l + width];
            }
        }
        lanes[0]
    }
}

pub(crate) fn dot16(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = Lanes::ZERO;
    lanes.dot(a, b);
    lanes.sum()
}

pub(crate) fn dot16_f16(a: &[f32], b: &[u16]) -> f32 {
    let mut lanes = Lanes::ZERO;
    for (a, b) in a.chunks(16).zip(b.chunks(16)) {
        let mut wide = [0.0; 16];
        for (wide, &b) in wide.iter_mut().zip(b) {
            *wide = f16::from_bits(b).to_f32_const();
        }
        lanes.dot(a, &wide[..b.len()]);
    }
    lanes.sum()
}

pub(crate) fn sum16(a: &[f32]) -> f32 {
    let mut lanes = Lanes::ZERO;
    for a in a.chunks(16) {
        for (lane, a) in lanes.0.iter_mut().zip(a) {
            *lane += a;
        }
    }
    lanes.sum()
}

pub(crate) fn axpy(y: &mut [f32], s: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += s * x;
    }
}

pub(crate) fn axpy_f16(y: &mut [f32], s: f32, x: &[u16]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y += s * f16::from_bits(x).to_f32_const();
    }
}

pub(crate) fn add(y: &mut [f32], x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

pub(crate) fn scale(y: &mut [f32], s: f32) {
    for y in y {
        *y *= s;
    }
}

pub(crate) fn div(y: &mut [f32], s: f32) {
    for y in y {
        *y /= s;
    }
}

pub(crate) fn max(x: &[f32]) -> f32 {
    let max = x.iter().fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max });
    // -0 becomes +0: which of two zeros was met first must not show.
    max + 0.0
}

pub(crate) fn is_finite(x: &[f32]) -> bool {
    x.iter().all(|x| x.is_finite())
}

/// `exp(x)` for finite x and -inf, by the contract's polynomial.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    if x < -87.33654 {
        return 0.0;
    }
    let x = if x > 88.37626 { 88.37626 } else { x };
    let n = (x * 1.442_695_04).round_ties_even();
    let r = (x - n * 0.693_359_375) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_15e-4;
    p = p * r + 1.398_199_950_7e-3;
    p = p * r + 8.333_451_907_3e-3;
    p = p * r + 4.166_579_589_4e-2;
    p = p * r + 1.666_666_545_9e-1;
    p = p * r + 5.000_000_120_1e-1;
    let y = (p * (r * r) + r) + 1.0;
    y * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

pub(crate) fn exp_sub(x: &mut [f32], m: f32) {
    for x in x {
        *x = exp(*x - m);
    }
}

pub(crate) fn silu_mul(gate: &mut [f32], up: &[f32]) {
    for (g, up) in gate.iter_mut().zip(up) {
        *g = (*g / (1.0 + exp(-*g))) * up;
    }
}

pub(crate) fn gelu_mul(gate: &mut [f32], up: &[f32]) {
    for (g, up) in gate.iter_mut().zip(up) {
        let x = *g;
        let u = 0.797_884_560_8 * (x + ((0.044715 * x) * x) * x);
        *g = (x / (1.0 + exp(-2.0 * u))) * up;
    }
}

pub(crate) fn rms_norm(out: &mut [f32], x: &[f32], w: &[f32], eps: f32) {
    let m = dot16(x, x) / x.len() as f32;
    let r = 1.0 / (m + eps).sqrt();
    for (y, (x, w)) in out.iter_mut().zip(x.iter().zip(w)) {
        *y = (x * r) * w;
    }
}

pub(crate) fn rope_interleaved(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    for (pair, (c, s)) in x.chunks_exact_mut(2).zip(cos.iter().zip(sin)) {
        let (a, b) = (pair[0], pair[1]);
        pair[0] = a * c - b * s;
        pair[1] = a * s + b * c;
    }
}

pub(crate) fn rope_half(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = x.split_at_mut(x.len() / 2);
    for ((a, b), (c, s)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
        (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
    }
}

pub(crate) fn to_f16(out: &mut [u16], x: &[f32]) {
    for (y, &x) in out.iter_mut().zip(x) {
        *y = f16::from_f32_const(x).to_bits();
    }
}
