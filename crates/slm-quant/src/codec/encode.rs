//! ggml's encoders of the blocks of 32, byte for byte: the scale comes from the extreme value, codes round half up.

use half::f16;

/// `d` so that the element of greatest magnitude (the first of equals) becomes the lowest code.
pub(super) fn q4_0(x: &[f32], out: &mut Vec<u8>) {
    let d = extreme(x) / -8.0;
    let id = inverse(d);
    put_f16(out, d);
    put_nibbles(out, &codes(x, |x| half_up(x * id + 8.5, 15)));
}

pub(super) fn q4_1(x: &[f32], out: &mut Vec<u8>) {
    let (min, max) = range(x);
    let d = (max - min) / 15.0;
    let id = inverse(d);
    put_f16(out, d);
    put_f16(out, min);
    put_nibbles(out, &codes(x, |x| half_up((x - min) * id + 0.5, 15)));
}

pub(super) fn q5_0(x: &[f32], out: &mut Vec<u8>) {
    let d = extreme(x) / -16.0;
    let id = inverse(d);
    put_f16(out, d);
    put_five_bits(out, &codes(x, |x| half_up(x * id + 16.5, 31)));
}

pub(super) fn q5_1(x: &[f32], out: &mut Vec<u8>) {
    let (min, max) = range(x);
    let d = (max - min) / 31.0;
    let id = inverse(d);
    put_f16(out, d);
    put_f16(out, min);
    put_five_bits(out, &codes(x, |x| half_up((x - min) * id + 0.5, 31)));
}

/// Here alone codes round half away from zero.
pub(super) fn q8_0(x: &[f32], out: &mut Vec<u8>) {
    let d = extreme(x).abs() / 127.0;
    let id = inverse(d);
    put_f16(out, d);
    out.extend(x.iter().map(|x| (x * id).round() as i8 as u8));
}

pub(super) fn put_f16(out: &mut Vec<u8>, value: f32) {
    out.extend(f16::from_f32_const(value).to_le_bytes());
}

fn codes(x: &[f32], code: impl Fn(f32) -> u8) -> [u8; 32] {
    core::array::from_fn(|i| code(x[i]))
}

/// The element of greatest magnitude, with its sign; the first of equals.
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |best, &x| if x.abs() > best.abs() { x } else { best })
}

fn range(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::MAX, f32::MIN), |(min, max), &x| {
        (if x < min { x } else { min }, if x > max { x } else { max })
    })
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// `shifted` already holds the half: cutting it rounds half up.
fn half_up(shifted: f32, top: u8) -> u8 {
    (shifted as u8).min(top)
}

fn put_nibbles(out: &mut Vec<u8>, codes: &[u8; 32]) {
    out.extend((0..16).map(|i| codes[i] & 15 | codes[i + 16] << 4));
}

fn put_five_bits(out: &mut Vec<u8>, codes: &[u8; 32]) {
    let high = codes.iter().rev().fold(0u32, |bits, &q| bits << 1 | u32::from(q >> 4));
    out.extend(high.to_le_bytes());
    put_nibbles(out, &codes.map(|q| q & 15));
}
