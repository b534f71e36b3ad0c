//! One block of eight of sixteen interleaved rows unpacked: lane or byte quad `r` of every vector is row `8h + r`'s.

use super::group::Form;
use super::source::Source;
use super::{Avx2, F, I};

/// A block of 32 elements of eight rows. A field that a type does not need is never computed.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    /// Elements `4k ..= 4k+3`: unsigned, less [`Strip::OFFSET`]; or signed where [`Strip::SIGNED`].
    pub(super) w: [I; 8],
    pub(super) d: F,
    /// `m` or `dmin`.
    pub(super) m: F,
    /// i32 scales of the two halves.
    pub(super) sc: [I; 2],
    /// Minima of the block, integers.
    pub(super) mn: F,
}

/// One interleaved type.
pub(super) trait Strip {
    const FORM: Form = Form::Scale;
    /// Codes are signed bytes.
    const SIGNED: bool = false;
    /// Pairs of products that fit i16 together: 1, 2, 4 or 8.
    const PAIRS: usize;
    /// To be taken from the codes: a power of two, or 0.
    const OFFSET: i32 = 0;
    /// The type has integer scales.
    const SCALED: bool = false;
    /// ... and they differ between the halves of a block.
    const HALVES: bool = false;
    /// Bytes of a row's block or super-block.
    const UNIT: usize;
    /// Blocks of 32 in it: 1 or 8.
    const BLOCKS: usize = if Self::UNIT > 34 { 8 } else { 1 };

    /// Block `B` of the rows of half `h`; `unit` has `16 * UNIT` bytes.
    fn unpack<const B: usize, U: Source>(s: Avx2, unit: &[U], h: usize) -> Weights;
}

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Q8_0;
pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Q6K;

impl Strip for Q4_0 {
    const PAIRS: usize = 8;
    const OFFSET: i32 = 8;
    const UNIT: usize = 18;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx2, unit: &[U], h: usize) -> Weights {
        Weights { w: nibbles(s, unit, 32, h), d: f16s(s, unit, 0, h), ..plain(s) }
    }
}

impl Strip for Q4_1 {
    const FORM: Form = Form::ScaleMin;
    const PAIRS: usize = 8;
    const UNIT: usize = 20;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx2, unit: &[U], h: usize) -> Weights {
        let (d, m) = (f16s(s, unit, 0, h), f16s(s, unit, 32, h));
        Weights { w: nibbles(s, unit, 64, h), d, m, ..plain(s) }
    }
}

impl Strip for Q5_0 {
    const PAIRS: usize = 4;
    const OFFSET: i32 = 16;
    const UNIT: usize = 22;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx2, unit: &[U], h: usize) -> Weights {
        let w = fifth_bits(s, quads(s, unit, 32, h), nibbles(s, unit, 96, h));
        Weights { w, d: f16s(s, unit, 0, h), ..plain(s) }
    }
}

impl Strip for Q5_1 {
    const FORM: Form = Form::ScaleMin;
    const PAIRS: usize = 4;
    const UNIT: usize = 24;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx2, unit: &[U], h: usize) -> Weights {
        let w = fifth_bits(s, quads(s, unit, 64, h), nibbles(s, unit, 128, h));
        Weights { w, d: f16s(s, unit, 0, h), m: f16s(s, unit, 32, h), ..plain(s) }
    }
}

impl Strip for Q8_0 {
    const SIGNED: bool = true;
    const PAIRS: usize = 1;
    const UNIT: usize = 34;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx2, unit: &[U], h: usize) -> Weights {
        let mut w = plain(s);
        for k in 0..8 {
            w.w[k] = quads(s, unit, 32 + 64 * k, h);
        }
        w.d = f16s(s, unit, 0, h);
        w
    }
}

impl Strip for Q4K {
    const FORM: Form = Form::ScaleMinK;
    const PAIRS: usize = 8;
    const SCALED: bool = true;
    const UNIT: usize = 144;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx2, unit: &[U], h: usize) -> Weights {
        let mut w = k4::<B, U>(s, unit, h);
        for k in 0..8 {
            w.w[k] = nibble::<B>(s, quads(s, unit, 256 + 64 * (8 * (B / 2) + k), h));
        }
        w
    }
}

impl Strip for Q5K {
    const FORM: Form = Form::ScaleMinK;
    const PAIRS: usize = 4;
    const SCALED: bool = true;
    const UNIT: usize = 176;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx2, unit: &[U], h: usize) -> Weights {
        let mut w = k4::<B, U>(s, unit, h);
        for k in 0..8 {
            let low = nibble::<B>(s, quads(s, unit, 768 + 64 * (8 * (B / 2) + k), h));
            let high = quads(s, unit, 256 + 64 * k, h);
            w.w[k] = s.or(low, sixteen_where(s, high, s.bytes1(1 << B)));
        }
        w
    }
}

impl Strip for Q6K {
    const PAIRS: usize = 2;
    const OFFSET: i32 = 32;
    const SCALED: bool = true;
    const HALVES: bool = true;
    const UNIT: usize = 210;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx2, unit: &[U], h: usize) -> Weights {
        // 128 elements at a time: half n, and the j-th 32 of it.
        let (n, j) = (B / 4, B % 4);
        let mut w = plain(s);
        for k in 0..8 {
            let low = quads(s, unit, 288 + 64 * (16 * n + 8 * (j % 2) + k), h);
            let low = if j < 2 { s.and(low, s.bytes1(15)) } else { high_nibble(s, low) };
            let high = quads(s, unit, 2336 + 64 * (8 * n + k), h);
            let high = match j {
                0 => s.avx2._mm256_slli_epi32::<4>(high),
                1 => s.avx2._mm256_slli_epi32::<2>(high),
                2 => high,
                _ => s.avx2._mm256_srli_epi32::<2>(high),
            };
            w.w[k] = s.or(low, s.and(high, s.bytes1(0x30)));
        }
        let quad = quads(s, unit, 32 + 64 * (B / 2), h);
        let signed = |x| s.avx2._mm256_srai_epi32::<24>(x);
        w.sc = if B.is_multiple_of(2) {
            [
                signed(s.avx2._mm256_slli_epi32::<24>(quad)),
                signed(s.avx2._mm256_slli_epi32::<16>(quad)),
            ]
        } else {
            [signed(s.avx2._mm256_slli_epi32::<8>(quad)), signed(quad)]
        };
        w.d = f16s(s, unit, 0, h);
        w
    }
}

#[inline(always)]
fn plain(s: Avx2) -> Weights {
    let (zero, f) = (s.bytes1(0), s.set1(0.0));
    Weights { w: [zero; 8], d: f, m: f, sc: [zero; 2], mn: f }
}

/// The pieces of 4 bytes of eight rows, of those of sixteen rows from `at`.
#[inline(always)]
fn quads<U: Source>(s: Avx2, unit: &[U], at: usize, h: usize) -> I {
    U::load32(s, unit, at + 32 * h)
}

/// The f16 of eight rows, of those of sixteen rows from `at`, widened.
#[inline(always)]
fn f16s<U: Source>(s: Avx2, unit: &[U], at: usize, h: usize) -> F {
    s.widen_f16(U::load16(s, unit, at, h))
}

/// Four vectors of nibbles: low ones are the first half of the block.
#[inline(always)]
fn nibbles<U: Source>(s: Avx2, unit: &[U], at: usize, h: usize) -> [I; 8] {
    let mut w = [s.bytes1(0); 8];
    for k in 0..4 {
        let both = quads(s, unit, at + 64 * k, h);
        w[k] = s.and(both, s.bytes1(15));
        w[4 + k] = high_nibble(s, both);
    }
    w
}

#[inline(always)]
fn high_nibble(s: Avx2, x: I) -> I {
    s.and(s.avx2._mm256_srli_epi16::<4>(x), s.bytes1(15))
}

/// The nibbles of even blocks are the low ones.
#[inline(always)]
fn nibble<const B: usize>(s: Avx2, x: I) -> I {
    if B.is_multiple_of(2) { s.and(x, s.bytes1(15)) } else { high_nibble(s, x) }
}

/// Adds 16 to element `i` of a row whose bit `i` of the row's u32 is set.
#[inline(always)]
fn fifth_bits(s: Avx2, bits: I, mut w: [I; 8]) -> [I; 8] {
    // Bits 4k ..= 4k+3 are in byte k/2 of the row's four: brought to all four bytes, one is tested in each.
    const LOW: [u8; 16] = [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12];
    let low = s.avx2._mm256_broadcastsi128_si256(pulp::cast(LOW));
    for k in 0..8 {
        let index = s.avx2._mm256_add_epi8(low, s.bytes1((k / 2) as u8));
        let spread = s.avx2._mm256_shuffle_epi8(bits, index);
        let tested = if k % 2 == 0 { 0x0804_0201 } else { 0x8040_2010u32 as i32 };
        w[k] = s.or(w[k], sixteen_where(s, spread, s.avx._mm256_set1_epi32(tested)));
    }
    w
}

/// 16 in every byte of `x` that has the bit of `tested` set, else 0.
#[inline(always)]
fn sixteen_where(s: Avx2, x: I, tested: I) -> I {
    s.and(s.avx2._mm256_cmpeq_epi8(s.and(x, tested), tested), s.bytes1(16))
}

/// The scales of block `B` of Q4_K and Q5_K: 6 bits each in 12 bytes.
#[inline(always)]
fn k4<const B: usize, U: Source>(s: Avx2, unit: &[U], h: usize) -> Weights {
    let (a, b) = (quads(s, unit, 64, h), quads(s, unit, 128, h));
    let ones = |x| s.avx._mm256_set1_epi32(x);
    let mut w = plain(s);
    let shift = |x, by: usize| s.avx2._mm256_srlv_epi32(x, ones(by as i32));
    if B < 4 {
        w.sc = [s.and(shift(a, 8 * B), ones(63)); 2];
        w.mn = s.to_f32(s.and(shift(b, 8 * B), ones(63)));
    } else {
        let at = 8 * (B - 4);
        let c = quads(s, unit, 192, h);
        let join = |low, high| s.or(s.and(low, ones(15)), s.and(high, ones(0x30)));
        // Two bits from bit at+6 on go to bit 4.
        w.sc = [join(shift(c, at), shift(a, at + 2)); 2];
        w.mn = s.to_f32(join(shift(c, at + 4), shift(b, at + 2)));
    }
    w.d = f16s(s, unit, 0, h);
    w.m = f16s(s, unit, 32, h);
    w
}
