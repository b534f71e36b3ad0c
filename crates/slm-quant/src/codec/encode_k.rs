//! Encoders of Q4_K and Q6_K: their own search of scales by least squares, then integer scales, then codes.

use super::encode::put_f16;
use crate::arch::scalar::{ScaleMin, k4_scale_min};

/// Super-block: 8 blocks of 32, `x ≈ (d*sc)*q - dmin*mn`, codes 0 ..= 15, `sc` and `mn` of 6 bits.
pub(super) fn q4_k(x: &[f32], out: &mut Vec<u8>) {
    let mut fits = [Fit { scale: 0.0, min: 0.0 }; 8];
    for (fit, x) in fits.iter_mut().zip(x.chunks_exact(32)) {
        *fit = fit_scale_min(x, 15);
    }
    let top = |of: fn(&Fit) -> f32| fits.iter().map(of).fold(0.0, f32::max);
    let (d, dmin) = (rounded(top(|f| f.scale) / 63.0), rounded(top(|f| f.min) / 63.0));
    let mut scales = [ScaleMin { sc: 0, mn: 0 }; 8];
    let mut codes = [0u8; 256];
    for (b, x) in x.chunks_exact(32).enumerate() {
        let codes = &mut codes[32 * b..][..32];
        scales[b] = refine(x, fits[b], d, dmin, codes);
    }
    put_f16(out, d);
    put_f16(out, dmin);
    out.extend(pack_scale_min(&scales));
    for pair in codes.chunks_exact(64) {
        out.extend((0..32).map(|l| pair[l] | pair[l + 32] << 4));
    }
}

/// Super-block: 16 blocks of 16, `x ≈ (d*sc)*(q - 32)`, codes 0 ..= 63, signed 8-bit `sc`.
pub(super) fn q6_k(x: &[f32], out: &mut Vec<u8>) {
    let mut scales = [0.0f32; 16];
    for (scale, x) in scales.iter_mut().zip(x.chunks_exact(16)) {
        *scale = fit_scale(x, 32);
    }
    let extreme =
        scales.iter().fold(0.0f32, |best, &s| if s.abs() > best.abs() { s } else { best });
    let d = rounded(extreme / -128.0);
    let mut sc = [0i8; 16];
    let mut codes = [0u8; 256];
    for (b, x) in x.chunks_exact(16).enumerate() {
        let codes = &mut codes[16 * b..][..16];
        sc[b] = refine_signed(x, scales[b], d, codes);
    }
    for half in codes.chunks_exact(128) {
        out.extend((0..64).map(|l| half[l] & 15 | (half[l + 64] & 15) << 4));
    }
    for half in codes.chunks_exact(128) {
        let high = |l: usize| (0..4).fold(0, |bits, j| bits | half[l + 32 * j] >> 4 << (2 * j));
        out.extend((0..32).map(high));
    }
    out.extend(sc.map(|sc| sc as u8));
    put_f16(out, d);
}

/// `x ≈ scale*q - min`, both non-negative.
#[derive(Clone, Copy)]
struct Fit {
    scale: f32,
    min: f32,
}

/// The best of a sweep of starting scales, each followed by the least-squares line through its codes.
fn fit_scale_min(x: &[f32], top: u8) -> Fit {
    let low = x.iter().copied().fold(0.0, f32::min);
    let high = x.iter().copied().fold(f32::MIN, f32::max);
    if high <= low {
        return Fit { scale: 0.0, min: -low };
    }
    let full = (high - low) / f32::from(top);
    let (mut best, mut least) = (Fit { scale: full, min: -low }, f32::INFINITY);
    for step in 0..=24 {
        let mut fit = Fit { scale: full * (0.7 + 0.02 * step as f32), min: -low };
        for _ in 0..3 {
            let error = line_error(x, fit, top);
            if error < least {
                (best, least) = (fit, error);
            }
            match least_squares(x, fit, top) {
                Some(better) => fit = better,
                None => break,
            }
        }
    }
    best
}

fn code(x: f32, fit: Fit, top: u8) -> f32 {
    if fit.scale <= 0.0 {
        return 0.0;
    }
    ((x + fit.min) / fit.scale).round_ties_even().clamp(0.0, f32::from(top))
}

fn line_error(x: &[f32], fit: Fit, top: u8) -> f32 {
    x.iter().map(|&x| (x - (fit.scale * code(x, fit, top) - fit.min)).powi(2)).sum()
}

/// The line through the codes that `fit` gives; `None` when they are all equal or its slope is not positive.
fn least_squares(x: &[f32], fit: Fit, top: u8) -> Option<Fit> {
    let (mut n, mut q1, mut q2, mut x1, mut xq) = (0.0f32, 0.0f32, 0.0f32, 0.0f32, 0.0f32);
    for &x in x {
        let q = code(x, fit, top);
        (n, q1, q2, x1, xq) = (n + 1.0, q1 + q, q2 + q * q, x1 + x, xq + x * q);
    }
    let det = n * q2 - q1 * q1;
    if det <= 0.0 {
        return None;
    }
    let (scale, min) = ((n * xq - q1 * x1) / det, -(q2 * x1 - q1 * xq) / det);
    // A minimum above zero cannot be stored: the line then goes through the origin.
    let fit = if min < 0.0 { Fit { scale: xq / q2, min: 0.0 } } else { Fit { scale, min } };
    (fit.scale > 0.0 && fit.scale.is_finite()).then_some(fit)
}

/// The integer scale and minimum near `fit` with the least error under `d` and `dmin`, and the codes under them.
fn refine(x: &[f32], fit: Fit, d: f32, dmin: f32, codes: &mut [u8]) -> ScaleMin {
    let near = |value: f32, unit: f32| if unit == 0.0 { 0.0 } else { (value / unit).round() };
    let (sc, mn) = (near(fit.scale, d), near(fit.min, dmin));
    let (mut best, mut least) = (ScaleMin { sc: 0, mn: 0 }, f32::INFINITY);
    for sc in [sc - 1.0, sc, sc + 1.0].map(|sc| sc.clamp(0.0, 63.0)) {
        for mn in [mn - 1.0, mn, mn + 1.0].map(|mn| mn.clamp(0.0, 63.0)) {
            let error = line_error(x, Fit { scale: d * sc, min: dmin * mn }, 15);
            if error < least {
                (best, least) = (ScaleMin { sc: sc as u8, mn: mn as u8 }, error);
            }
        }
    }
    let fit = Fit { scale: d * f32::from(best.sc), min: dmin * f32::from(best.mn) };
    for (q, &x) in codes.iter_mut().zip(x) {
        *q = code(x, fit, 15) as u8;
    }
    best
}

/// The signed scale `s` of the best `x ≈ s*q`, q in -top ..= top - 1.
fn fit_scale(x: &[f32], top: i8) -> f32 {
    let extreme = x.iter().fold(0.0f32, |best, &x| if x.abs() > best.abs() { x } else { best });
    let (mut best, mut least) = (0.0, f32::INFINITY);
    for step in -12..=12 {
        for side in [-1.0, 1.0] {
            let mut scale = side * extreme / (f32::from(top) + 0.1 * step as f32);
            for _ in 0..2 {
                let error = signed_error(x, scale, top);
                if error < least {
                    (best, least) = (scale, error);
                }
                let (xq, qq) = x.iter().fold((0.0f32, 0.0f32), |(xq, qq), &x| {
                    let q = signed_code(x, scale, top);
                    (xq + x * q, qq + q * q)
                });
                if qq > 0.0 {
                    scale = xq / qq;
                }
            }
        }
    }
    best
}

fn signed_code(x: f32, scale: f32, top: i8) -> f32 {
    if scale == 0.0 {
        return 0.0;
    }
    (x / scale).round_ties_even().clamp(-f32::from(top), f32::from(top) - 1.0)
}

fn signed_error(x: &[f32], scale: f32, top: i8) -> f32 {
    x.iter().map(|&x| (x - scale * signed_code(x, scale, top)).powi(2)).sum()
}

fn refine_signed(x: &[f32], scale: f32, d: f32, codes: &mut [u8]) -> i8 {
    let near = if d == 0.0 { 0.0 } else { (scale / d).round() };
    let (mut best, mut least) = (0.0, f32::INFINITY);
    for sc in [near - 1.0, near, near + 1.0].map(|sc| sc.clamp(-128.0, 127.0)) {
        let error = signed_error(x, d * sc, 32);
        if error < least {
            (best, least) = (sc, error);
        }
    }
    for (q, &x) in codes.iter_mut().zip(x) {
        *q = (signed_code(x, d * best, 32) as i8 + 32) as u8;
    }
    best as i8
}

/// Rounded to f16 first, so that codes are fitted to the scale that is stored.
fn rounded(value: f32) -> f32 {
    half::f16::from_f32_const(value).to_f32_const()
}

/// The 12 bytes that [`k4_scale_min`] reads.
fn pack_scale_min(scales: &[ScaleMin; 8]) -> [u8; 12] {
    let mut packed = [0u8; 12];
    for b in 0..4 {
        let (low, high) = (scales[b], scales[b + 4]);
        packed[b] = low.sc | high.sc >> 4 << 6;
        packed[b + 4] = low.mn | high.mn >> 4 << 6;
        packed[b + 8] = high.sc & 15 | high.mn << 4;
    }
    debug_assert!((0..8).all(|b| k4_scale_min(&packed, b) == scales[b]), "BUG: packing");
    packed
}
