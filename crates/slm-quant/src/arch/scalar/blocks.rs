//! Blocks of 32 as integers and scales, and the decoders built on them.

use half::{bf16, f16};
use slm_format::Encoding;

use crate::arch::{IQ4_VALUES, MXFP4_VALUES, NF4_VALUES, e8m0_half, is_integer_coded};

/// 32 weights of an integer-coded type. An element of half `h` is `(d*sc[h])*w - dmin*mn[h]`, or `d*w + m`, by [`Form`].
pub(super) struct Block {
    pub(super) form: Form,
    pub(super) d: f32,
    /// `m` of Q4_1 and Q5_1, `dmin` of the K types with minima, else 0.
    pub(super) m: f32,
    pub(super) w: [i8; 32],
    /// Integer scales of the two halves of 16; 1 for types that have none.
    pub(super) sc: [i32; 2],
    /// Integer minima of the two halves of 16; 0 for types that have none.
    pub(super) mn: [i32; 2],
}

/// Which of the contract's three formulas a type follows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `t = (d·dx)·f32(I)`.
    Scale,
    /// `t = (d·dx)·f32(I)`, then `t + m·(dx·f32(xsum))`.
    ScaleMin,
    /// `t = (d·dx)·f32(I) − (dmin·dx)·f32(M)`.
    ScaleMinK,
}

/// Block `b` (of 32) of a row.
///
/// # Panics
/// When the encoding is not integer-coded or the row is too short.
#[inline(always)]
pub(super) fn block(encoding: Encoding, row: &[u8], b: usize) -> Block {
    let (form, w, m) = (Form::Scale, [0; 32], 0.0);
    let plain = Block { form, d: 0.0, m, w, sc: [1, 1], mn: [0, 0] };
    let unit = encoding.block_bytes();
    if encoding.block_elements() == 256 {
        let bytes = &row[b / 8 * unit..][..unit];
        return super_block(encoding, bytes, b % 8, plain);
    }
    let bytes = &row[b * unit..][..unit];
    let d = f16_at(bytes, 0);
    match encoding {
        Encoding::Q4_0 => Block { d, w: nibbles(&bytes[2..], |q| q as i8 - 8), ..plain },
        Encoding::Q4_1 => {
            let w = nibbles(&bytes[4..], |q| q as i8);
            Block { form: Form::ScaleMin, d, m: f16_at(bytes, 2), w, ..plain }
        }
        Encoding::Q5_0 => {
            let w = five_bits(&bytes[2..6], &bytes[6..]).map(|q| q - 16);
            Block { d, w, ..plain }
        }
        Encoding::Q5_1 => {
            let w = five_bits(&bytes[4..8], &bytes[8..]);
            Block { form: Form::ScaleMin, d, m: f16_at(bytes, 2), w, ..plain }
        }
        Encoding::Q8_0 => Block { d, w: core::array::from_fn(|i| bytes[2 + i] as i8), ..plain },
        Encoding::IQ4_NL => {
            Block { d, w: nibbles(&bytes[2..], |q| IQ4_VALUES[usize::from(q)]), ..plain }
        }
        _ => unreachable!("BUG: {encoding} is not integer-coded"),
    }
}

/// Block `b` (0 ..= 7) of a super-block of 256.
#[inline(always)]
fn super_block(encoding: Encoding, bytes: &[u8], b: usize, plain: Block) -> Block {
    // The 2-bit and 6-bit types keep 128 elements at a time: half n, and the j-th 32 of it.
    let (n, j) = (b / 4, b % 4);
    match encoding {
        Encoding::Q2_K => {
            let (scales, qs) = (&bytes[2 * b..2 * b + 2], &bytes[16 + 32 * n..]);
            Block {
                form: Form::ScaleMinK,
                d: f16_at(bytes, 80),
                m: f16_at(bytes, 82),
                w: core::array::from_fn(|l| (qs[l] >> (2 * j) & 3) as i8),
                sc: [i32::from(scales[0] & 15), i32::from(scales[1] & 15)],
                mn: [i32::from(scales[0] >> 4), i32::from(scales[1] >> 4)],
            }
        }
        Encoding::Q3_K => {
            let (hmask, qs) = (&bytes[..32], &bytes[32 + 32 * n..]);
            let scales = k3_scales(&bytes[96..108]);
            let w =
                |l: usize| ((qs[l] >> (2 * j) & 3) as i8 | ((hmask[l] >> b & 1) << 2) as i8) - 4;
            let sc = [i32::from(scales[2 * b]), i32::from(scales[2 * b + 1])];
            Block { d: f16_at(bytes, 108), w: core::array::from_fn(w), sc, ..plain }
        }
        Encoding::Q4_K | Encoding::Q5_K => {
            let ScaleMin { sc, mn } = k4_scale_min(&bytes[4..16], b);
            let five = encoding == Encoding::Q5_K;
            let qs = &bytes[if five { 48 } else { 16 } + 32 * (b / 2)..];
            let w = |l: usize| {
                let high = if five { (bytes[16 + l] >> b & 1) << 4 } else { 0 };
                (qs[l] >> (4 * (b % 2)) & 15 | high) as i8
            };
            Block {
                form: Form::ScaleMinK,
                d: f16_at(bytes, 0),
                m: f16_at(bytes, 2),
                w: core::array::from_fn(w),
                sc: [i32::from(sc); 2],
                mn: [i32::from(mn); 2],
            }
        }
        Encoding::Q6_K => {
            let (ql, qh) = (&bytes[64 * n + 32 * (j % 2)..], &bytes[128 + 32 * n..]);
            let w =
                |l: usize| (ql[l] >> (4 * (j / 2)) & 15 | (qh[l] >> (2 * j) & 3) << 4) as i8 - 32;
            let sc = |h: usize| i32::from(bytes[192 + 2 * b + h] as i8);
            Block { d: f16_at(bytes, 208), w: core::array::from_fn(w), sc: [sc(0), sc(1)], ..plain }
        }
        Encoding::IQ4_XS => {
            let high = u16::from_le_bytes([bytes[2], bytes[3]]) >> (2 * b) & 3;
            let low = bytes[4 + b / 2] >> (4 * (b % 2)) & 15;
            let sc = i32::from(low) + i32::from(high << 4) - 32;
            let w = nibbles(&bytes[8 + 16 * b..], |q| IQ4_VALUES[usize::from(q)]);
            Block { d: f16_at(bytes, 0), w, sc: [sc; 2], ..plain }
        }
        _ => unreachable!("BUG: {encoding} is not integer-coded"),
    }
}

/// Decodes a row of any encoding, bit for bit as its own definition says.
///
/// # Panics
/// When `row` is not the bytes of `out.len()` elements.
pub(crate) fn decode_row(encoding: Encoding, out: &mut [f32], row: &[u8]) {
    assert_eq!(encoding.row_bytes(out.len()), Some(row.len()), "bytes of the row");
    match encoding {
        Encoding::F32 => {
            for (y, w) in out.iter_mut().zip(row.chunks_exact(4)) {
                *y = f32::from_le_bytes([w[0], w[1], w[2], w[3]]);
            }
        }
        Encoding::F16 => {
            for (y, w) in out.iter_mut().zip(row.chunks_exact(2)) {
                *y = f16::from_le_bytes([w[0], w[1]]).to_f32_const();
            }
        }
        Encoding::BF16 => {
            for (y, w) in out.iter_mut().zip(row.chunks_exact(2)) {
                *y = bf16::from_le_bytes([w[0], w[1]]).to_f32_const();
            }
        }
        Encoding::NF4 => {
            for (y, block) in out.chunks_exact_mut(64).zip(row.chunks_exact(36)) {
                let absmax = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
                for (pair, &codes) in y.chunks_exact_mut(2).zip(&block[4..]) {
                    pair[0] = NF4_VALUES[usize::from(codes >> 4)] * absmax;
                    pair[1] = NF4_VALUES[usize::from(codes & 15)] * absmax;
                }
            }
        }
        Encoding::MXFP4 => {
            for (y, block) in out.chunks_exact_mut(32).zip(row.chunks_exact(17)) {
                let d = e8m0_half(block[0]);
                let w = nibbles(&block[1..], |q| MXFP4_VALUES[usize::from(q)]);
                for (y, w) in y.iter_mut().zip(w) {
                    *y = f32::from(w) * d;
                }
            }
        }
        _ => {
            assert!(is_integer_coded(encoding), "BUG: {encoding} has no decoder");
            for (b, y) in out.chunks_exact_mut(32).enumerate() {
                decode_block(&block(encoding, row, b), y);
            }
        }
    }
}

fn decode_block(block: &Block, out: &mut [f32]) {
    for (i, (y, &w)) in out.iter_mut().zip(&block.w).enumerate() {
        let (sc, mn) = (block.sc[i / 16] as f32, block.mn[i / 16] as f32);
        let scaled = (block.d * sc) * f32::from(w);
        *y = match block.form {
            Form::Scale => scaled,
            Form::ScaleMin => scaled + block.m,
            Form::ScaleMinK => scaled - block.m * mn,
        };
    }
}

#[inline(always)]
fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32_const()
}

/// 32 codes from 16 bytes: low nibbles first, then high nibbles.
#[inline(always)]
fn nibbles(bytes: &[u8], value: impl Fn(u8) -> i8) -> [i8; 32] {
    core::array::from_fn(|i| value(bytes[i % 16] >> (4 * (i / 16)) & 15))
}

/// 32 five-bit codes: nibbles with the fifth bits in a little-endian u32.
#[inline(always)]
fn five_bits(high: &[u8], low: &[u8]) -> [i8; 32] {
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    let low = nibbles(low, |q| q as i8);
    core::array::from_fn(|i| low[i] | ((high >> i & 1) << 4) as i8)
}

/// A 6-bit scale and minimum of Q4_K and Q5_K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScaleMin {
    pub(crate) sc: u8,
    pub(crate) mn: u8,
}

/// Scale and minimum of block `b` from the 12 packed bytes.
#[inline(always)]
pub(crate) fn k4_scale_min(packed: &[u8], b: usize) -> ScaleMin {
    if b < 4 {
        ScaleMin { sc: packed[b] & 63, mn: packed[b + 4] & 63 }
    } else {
        ScaleMin {
            sc: packed[b + 4] & 15 | packed[b - 4] >> 6 << 4,
            mn: packed[b + 4] >> 4 | packed[b] >> 6 << 4,
        }
    }
}

/// The 16 signed scales of Q3_K (6 bits less 32) from the 12 packed bytes.
#[inline(always)]
fn k3_scales(packed: &[u8]) -> [i8; 16] {
    core::array::from_fn(|i| {
        let low = packed[i % 8] >> (4 * (i / 8)) & 15;
        let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}
