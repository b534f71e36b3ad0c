//! The encoder of Q6_K: its own search of scales by least squares, then integer scales, then codes.

use super::encode::put_f16;
use super::encode_q4_k::rounded;

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
    let off = |&x: &f32| x - scale * signed_code(x, scale, top);
    x.iter().map(off).map(|off| off * off).sum()
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
