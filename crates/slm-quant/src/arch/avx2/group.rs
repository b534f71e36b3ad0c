//! Eight blocks of 32 unpacked to bytes, with their scales in one vector each.

use super::{Avx2, F, I, chunk};
use crate::arch::IQ4_VALUES;

/// 256 weights of an integer-coded type. A field that a type does not need is never computed.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    /// Codes of each block: unsigned, less [`Group::OFFSET`]; or signed where [`Group::SIGNED`].
    pub(super) w: [I; 8],
    /// `d` of each block.
    pub(super) d: F,
    /// `m` or `dmin` of each block.
    pub(super) m: F,
    /// i32 scales of each block's two halves (the same twice where [`Group::HALVES`] is not set).
    pub(super) sc: [I; 2],
    /// i32 minima, likewise.
    pub(super) mn: [I; 2],
}

/// Which of the contract's formulas.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Scale,
    ScaleMin,
    ScaleMinK,
}

/// One integer-coded type.
pub(super) trait Group {
    const FORM: Form = Form::Scale;
    /// Codes are signed; else `maddubs` takes them as they are, at most 63: no pair saturates.
    const SIGNED: bool = false;
    /// Four products fit i16 (codes of magnitude 64 and less), so two blocks can be added before they widen to i32.
    const FOUR_FIT: bool = true;
    /// To be taken from unsigned codes.
    const OFFSET: i32 = 0;
    /// The type has integer scales.
    const SCALED: bool = false;
    /// ... and they differ between the halves of a block.
    const HALVES: bool = false;

    /// Bytes of a block (or super-block).
    const UNIT: usize;
    /// Bytes of 256 weights.
    const BYTES: usize = if matches!(Self::UNIT, 0..=34) { 8 * Self::UNIT } else { Self::UNIT };

    /// The eight blocks in `bytes`.
    fn unpack(s: Avx2, bytes: &[u8]) -> Weights;
}

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Q8_0;
pub(super) struct Iq4Nl;
pub(super) struct Q2K;
pub(super) struct Q3K;
pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Q6K;
pub(super) struct Iq4Xs;

impl Group for Q4_0 {
    const OFFSET: i32 = 8;
    const UNIT: usize = 18;

    #[inline(always)]
    fn unpack(s: Avx2, bytes: &[u8]) -> Weights {
        let mut w = plain(s);
        for i in 0..8 {
            w.w[i] = nibbles(s, bytes, 18 * i + 2);
        }
        w.d = scales::<18>(s, bytes);
        w
    }
}

impl Group for Q4_1 {
    const FORM: Form = Form::ScaleMin;
    const UNIT: usize = 20;

    #[inline(always)]
    fn unpack(s: Avx2, bytes: &[u8]) -> Weights {
        let mut w = plain(s);
        for i in 0..8 {
            w.w[i] = nibbles(s, bytes, 20 * i + 4);
        }
        (w.d, w.m) = scale_pairs::<20>(s, bytes);
        w
    }
}

impl Group for Q5_0 {
    const OFFSET: i32 = 16;
    const UNIT: usize = 22;

    #[inline(always)]
    fn unpack(s: Avx2, bytes: &[u8]) -> Weights {
        let mut w = plain(s);
        for i in 0..8 {
            w.w[i] = s.or(nibbles(s, bytes, 22 * i + 6), fifth_bits(s, bytes, 22 * i + 2));
        }
        w.d = scales::<22>(s, bytes);
        w
    }
}

impl Group for Q5_1 {
    const FORM: Form = Form::ScaleMin;
    const UNIT: usize = 24;

    #[inline(always)]
    fn unpack(s: Avx2, bytes: &[u8]) -> Weights {
        let mut w = plain(s);
        for i in 0..8 {
            w.w[i] = s.or(nibbles(s, bytes, 24 * i + 8), fifth_bits(s, bytes, 24 * i + 4));
        }
        (w.d, w.m) = scale_pairs::<24>(s, bytes);
        w
    }
}

impl Group for Q8_0 {
    const SIGNED: bool = true;
    const FOUR_FIT: bool = false;
    const UNIT: usize = 34;

    #[inline(always)]
    fn unpack(s: Avx2, bytes: &[u8]) -> Weights {
        let mut w = plain(s);
        for i in 0..8 {
            w.w[i] = s.load32(bytes, 34 * i + 2);
        }
        w.d = scales::<34>(s, bytes);
        w
    }
}

impl Group for Iq4Nl {
    const SIGNED: bool = true;
    const FOUR_FIT: bool = false;
    const UNIT: usize = 18;

    #[inline(always)]
    fn unpack(s: Avx2, bytes: &[u8]) -> Weights {
        let mut w = plain(s);
        for i in 0..8 {
            w.w[i] = table(s, &IQ4_VALUES, nibbles(s, bytes, 18 * i + 2));
        }
        w.d = scales::<18>(s, bytes);
        w
    }
}

impl Group for Q2K {
    const FORM: Form = Form::ScaleMinK;
    const SCALED: bool = true;
    const HALVES: bool = true;
    const UNIT: usize = 84;

    #[inline(always)]
    fn unpack(s: Avx2, bytes: &[u8]) -> Weights {
        let mut w = plain(s);
        for n in 0..2 {
            let q = two_bits(s, s.load32(bytes, 16 + 32 * n));
            for j in 0..4 {
                w.w[4 * n + j] = q[j];
            }
        }
        let packed: u128 = pulp::cast(chunk::<u8, 16>(bytes, 0));
        const LOW: u128 = 0x0f0f_0f0f_0f0f_0f0f_0f0f_0f0f_0f0f_0f0f;
        w.sc = halves(s, packed & LOW);
        w.mn = halves(s, packed >> 4 & LOW);
        w.d = s.set1(f16_at(s, bytes, 80));
        w.m = s.set1(f16_at(s, bytes, 82));
        w
    }
}

impl Group for Q3K {
    const SIGNED: bool = true;
    const SCALED: bool = true;
    const HALVES: bool = true;
    const UNIT: usize = 110;

    #[inline(always)]
    fn unpack(s: Avx2, bytes: &[u8]) -> Weights {
        let mut w = plain(s);
        let hmask = s.load32(bytes, 0);
        let four = s.bytes1(4);
        for n in 0..2 {
            let q = two_bits(s, s.load32(bytes, 32 + 32 * n));
            for j in 0..4 {
                let high = bit(s, hmask, 4 * n + j, 4);
                w.w[4 * n + j] = s.avx2._mm256_sub_epi8(s.or(q[j], high), four);
            }
        }
        let [a, b, c]: [u32; 3] = pulp::cast(chunk::<u8, 12>(bytes, 96));
        const LOW: u32 = 0x0f0f_0f0f;
        const TWO: u32 = 0x0303_0303;
        let scales: u128 = pulp::cast([
            a & LOW | (c & TWO) << 4,
            b & LOW | (c >> 2 & TWO) << 4,
            a >> 4 & LOW | (c >> 4 & TWO) << 4,
            b >> 4 & LOW | (c >> 6 & TWO) << 4,
        ]);
        let [low, high] = halves(s, scales);
        let bias = s.avx._mm256_set1_epi32(32);
        w.sc = [s.avx2._mm256_sub_epi32(low, bias), s.avx2._mm256_sub_epi32(high, bias)];
        w.d = s.set1(f16_at(s, bytes, 108));
        w
    }
}

impl Group for Q4K {
    const FORM: Form = Form::ScaleMinK;
    const SCALED: bool = true;
    const UNIT: usize = 144;

    #[inline(always)]
    fn unpack(s: Avx2, bytes: &[u8]) -> Weights {
        let mut w = plain(s);
        for i in 0..4 {
            (w.w[2 * i], w.w[2 * i + 1]) = nibbles32(s, s.load32(bytes, 16 + 32 * i));
        }
        k4_scales(s, bytes, &mut w);
        w
    }
}

impl Group for Q5K {
    const FORM: Form = Form::ScaleMinK;
    const SCALED: bool = true;
    const UNIT: usize = 176;

    #[inline(always)]
    fn unpack(s: Avx2, bytes: &[u8]) -> Weights {
        let mut w = plain(s);
        let high = s.load32(bytes, 16);
        for i in 0..4 {
            let (even, odd) = nibbles32(s, s.load32(bytes, 48 + 32 * i));
            w.w[2 * i] = s.or(even, bit(s, high, 2 * i, 16));
            w.w[2 * i + 1] = s.or(odd, bit(s, high, 2 * i + 1, 16));
        }
        k4_scales(s, bytes, &mut w);
        w
    }
}

impl Group for Q6K {
    const SIGNED: bool = true;
    const SCALED: bool = true;
    const HALVES: bool = true;
    const UNIT: usize = 210;

    #[inline(always)]
    fn unpack(s: Avx2, bytes: &[u8]) -> Weights {
        let mut w = plain(s);
        let bias = s.bytes1(32);
        for n in 0..2 {
            let (l0, l2) = nibbles32(s, s.load32(bytes, 64 * n));
            let (l1, l3) = nibbles32(s, s.load32(bytes, 64 * n + 32));
            let high = two_bits(s, s.load32(bytes, 128 + 32 * n));
            let low = [l0, l1, l2, l3];
            for j in 0..4 {
                let q = s.or(low[j], s.avx2._mm256_slli_epi16::<4>(high[j]));
                w.w[4 * n + j] = s.avx2._mm256_sub_epi8(q, bias);
            }
        }
        w.sc = halves(s, pulp::cast(chunk::<u8, 16>(bytes, 192)));
        w.d = s.set1(f16_at(s, bytes, 208));
        w
    }
}

impl Group for Iq4Xs {
    const SIGNED: bool = true;
    const FOUR_FIT: bool = false;
    const SCALED: bool = true;
    const UNIT: usize = 136;

    #[inline(always)]
    fn unpack(s: Avx2, bytes: &[u8]) -> Weights {
        let mut w = plain(s);
        for i in 0..8 {
            w.w[i] = table(s, &IQ4_VALUES, nibbles(s, bytes, 8 + 16 * i));
        }
        let high = u16::from_le_bytes(chunk(bytes, 2));
        let low = u32::from_le_bytes(chunk(bytes, 4));
        let spread = |x: i32, by: i32, mask: i32| {
            let shifts = s.i32s([0, by, 2 * by, 3 * by, 4 * by, 5 * by, 6 * by, 7 * by]);
            let x = s.avx2._mm256_srlv_epi32(s.avx._mm256_set1_epi32(x), shifts);
            s.and(x, s.avx._mm256_set1_epi32(mask))
        };
        let (low, high) = (spread(low as i32, 4, 15), spread(i32::from(high), 2, 3));
        let six = s.or(low, s.avx2._mm256_slli_epi32::<4>(high));
        w.sc = [s.avx2._mm256_sub_epi32(six, s.avx._mm256_set1_epi32(32)); 2];
        w.d = s.set1(f16_at(s, bytes, 0));
        w
    }
}

#[inline(always)]
fn plain(s: Avx2) -> Weights {
    let (zero, one) = (s.bytes1(0), s.avx._mm256_set1_epi32(1));
    let f = s.set1(0.0);
    Weights { w: [zero; 8], d: f, m: f, sc: [one; 2], mn: [zero; 2] }
}

/// 16 bytes to 32 nibbles: low ones first.
#[inline(always)]
pub(super) fn nibbles(s: Avx2, bytes: &[u8], at: usize) -> I {
    let x = s.load16(bytes, at);
    let both = s.avx._mm256_set_m128i(s.sse2._mm_srli_epi16::<4>(x), x);
    s.and(both, s.bytes1(15))
}

/// The low and the high nibbles of 32 bytes.
#[inline(always)]
fn nibbles32(s: Avx2, x: I) -> (I, I) {
    let mask = s.bytes1(15);
    (s.and(x, mask), s.and(s.avx2._mm256_srli_epi16::<4>(x), mask))
}

/// The four pairs of bits of 32 bytes, lowest first.
#[inline(always)]
fn two_bits(s: Avx2, x: I) -> [I; 4] {
    let mask = s.bytes1(3);
    [
        s.and(x, mask),
        s.and(s.avx2._mm256_srli_epi16::<2>(x), mask),
        s.and(s.avx2._mm256_srli_epi16::<4>(x), mask),
        s.and(s.avx2._mm256_srli_epi16::<6>(x), mask),
    ]
}

/// `value` in every byte of `x` that has bit `n` set, else 0.
#[inline(always)]
fn bit(s: Avx2, x: I, n: usize, value: u8) -> I {
    let mask = s.bytes1(1 << n);
    s.and(s.avx2._mm256_cmpeq_epi8(s.and(x, mask), mask), s.bytes1(value))
}

/// 16 in every byte whose bit of the u32 at `at` is set.
#[inline(always)]
fn fifth_bits(s: Avx2, bytes: &[u8], at: usize) -> I {
    let bits = s.avx._mm256_set1_epi32(i32::from_le_bytes(chunk(bytes, at)));
    let index: [u8; 32] = core::array::from_fn(index_of_bit_byte);
    let spread = s.avx2._mm256_shuffle_epi8(bits, pulp::cast(index));
    let mask = s.avx._mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
    s.and(s.avx2._mm256_cmpeq_epi8(s.and(spread, mask), mask), s.bytes1(16))
}

#[inline(always)]
fn index_of_bit_byte(i: usize) -> u8 {
    (i / 8) as u8
}

/// 32 codes looked up in a table of 16 signed bytes.
#[inline(always)]
pub(super) fn table(s: Avx2, values: &[i8; 16], codes: I) -> I {
    let values = s.avx2._mm256_broadcastsi128_si256(pulp::cast(*values));
    s.avx2._mm256_shuffle_epi8(values, codes)
}

/// The f16 at the start of each of eight blocks, widened.
#[inline(always)]
fn scales<const UNIT: usize>(s: Avx2, bytes: &[u8]) -> F {
    let mut d = [0u16; 8];
    for i in 0..8 {
        d[i] = u16::from_le_bytes(chunk(bytes, UNIT * i));
    }
    let [a, b, c, d, e, f, g, h] = d.map(|d| d as i16);
    s.widen_f16(s.sse2._mm_setr_epi16(a, b, c, d, e, f, g, h))
}

/// The two f16 at the start of each of eight blocks, widened.
#[inline(always)]
fn scale_pairs<const UNIT: usize>(s: Avx2, bytes: &[u8]) -> (F, F) {
    let mut pairs = [0i32; 8];
    for i in 0..8 {
        pairs[i] = i32::from_le_bytes(chunk(bytes, UNIT * i));
    }
    let [a, b, c, d, e, f, g, h] = pairs;
    let pairs = s.avx._mm256_setr_epi32(a, b, c, d, e, f, g, h);
    // In each half: the four first, then the four second.
    const SPLIT: [u8; 16] = [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15];
    let split = s.avx2._mm256_broadcastsi128_si256(pulp::cast(SPLIT));
    let sorted = s.avx2._mm256_shuffle_epi8(pairs, split);
    let sorted = s.avx2._mm256_permute4x64_epi64::<0b11_01_10_00>(sorted);
    (
        s.widen_f16(s.avx._mm256_castsi256_si128(sorted)),
        s.widen_f16(s.avx2._mm256_extracti128_si256::<1>(sorted)),
    )
}

#[inline(always)]
fn f16_at(s: Avx2, bytes: &[u8], at: usize) -> f32 {
    let half = u16::from_le_bytes(chunk(bytes, at));
    let wide: [f32; 8] = pulp::cast(s.widen_f16(s.sse2._mm_cvtsi32_si128(i32::from(half))));
    wide[0]
}

/// 16 signed bytes (two per block) to the i32 scales of the first and of the second halves.
#[inline(always)]
fn halves(s: Avx2, scales: u128) -> [I; 2] {
    const SPLIT: [u8; 16] = [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15];
    let sorted = s.ssse3._mm_shuffle_epi8(pulp::cast(scales), pulp::cast(SPLIT));
    [
        s.avx2._mm256_cvtepi8_epi32(sorted),
        s.avx2._mm256_cvtepi8_epi32(s.sse2._mm_srli_si128::<8>(sorted)),
    ]
}

/// Scales and minima of Q4_K and Q5_K: 6 bits each in 12 bytes.
#[inline(always)]
fn k4_scales(s: Avx2, bytes: &[u8], w: &mut Weights) {
    let [a, b, c]: [u32; 3] = pulp::cast(chunk::<u8, 12>(bytes, 4));
    const SIX: u32 = 0x3f3f_3f3f;
    const LOW: u32 = 0x0f0f_0f0f;
    const TWO: u32 = 0x0303_0303;
    let sc = [a & SIX, c & LOW | (a >> 6 & TWO) << 4, 0, 0];
    let mn = [b & SIX, c >> 4 & LOW | (b >> 6 & TWO) << 4, 0, 0];
    w.sc = [s.avx2._mm256_cvtepu8_epi32(pulp::cast(sc)); 2];
    w.mn = [s.avx2._mm256_cvtepu8_epi32(pulp::cast(mn)); 2];
    w.d = s.set1(f16_at(s, bytes, 0));
    w.m = s.set1(f16_at(s, bytes, 2));
}
