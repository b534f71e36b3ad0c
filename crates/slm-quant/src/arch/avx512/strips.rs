//! One block of sixteen interleaved rows unpacked: lane or byte quad `r` of every vector is row `r`'s.

use super::source::Source;
use super::{Avx512, F, I};

/// Which of the contract's formulas.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Scale,
    ScaleMin,
    ScaleMinK,
}

/// A block of 32 elements of sixteen rows. A field that a type does not need is never computed.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    /// Elements `4k ..= 4k+3`, unsigned, less [`Strip::OFFSET`].
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
    /// To be taken from the codes: a power of two, or 0.
    const OFFSET: i32 = 0;
    /// The type has integer scales.
    const SCALED: bool = false;
    /// ... and they differ between the halves of a block.
    const HALVES: bool = false;
    /// Unpacking takes so many registers that none are left to end a block's terms during the next.
    const HEAVY: bool = false;
    /// Bytes of a row's block or super-block.
    const UNIT: usize;
    /// Blocks of 32 in it: 1 or 8.
    const BLOCKS: usize = if Self::UNIT > 34 { 8 } else { 1 };

    /// Block `B` of the unit; `unit` has `16 * UNIT` bytes.
    fn unpack<const B: usize, U: Source>(s: Avx512, unit: &[U]) -> Weights;
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
    const OFFSET: i32 = 8;
    const UNIT: usize = 18;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx512, unit: &[U]) -> Weights {
        Weights { w: nibbles(s, unit, 32), d: U::load_f16(s, unit, 0), ..plain(s) }
    }
}

impl Strip for Q4_1 {
    const FORM: Form = Form::ScaleMin;
    const UNIT: usize = 20;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx512, unit: &[U]) -> Weights {
        let (d, m) = (U::load_f16(s, unit, 0), U::load_f16(s, unit, 32));
        Weights { w: nibbles(s, unit, 64), d, m, ..plain(s) }
    }
}

impl Strip for Q5_0 {
    const HEAVY: bool = true;
    const OFFSET: i32 = 16;
    const UNIT: usize = 22;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx512, unit: &[U]) -> Weights {
        let w = fifth_bits(s, U::load64(s, unit, 32), nibbles(s, unit, 96));
        Weights { w, d: U::load_f16(s, unit, 0), ..plain(s) }
    }
}

impl Strip for Q5_1 {
    const HEAVY: bool = true;
    const FORM: Form = Form::ScaleMin;
    const UNIT: usize = 24;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx512, unit: &[U]) -> Weights {
        let w = fifth_bits(s, U::load64(s, unit, 64), nibbles(s, unit, 128));
        Weights { w, d: U::load_f16(s, unit, 0), m: U::load_f16(s, unit, 32), ..plain(s) }
    }
}

impl Strip for Q8_0 {
    // The sign bit turned makes -128 ..= 127 unsigned, 128 too great.
    const OFFSET: i32 = 128;
    const UNIT: usize = 34;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx512, unit: &[U]) -> Weights {
        let mut w = plain(s);
        for k in 0..8 {
            let codes = U::load64(s, unit, 32 + 64 * k);
            w.w[k] = s.avx512f._mm512_xor_si512(codes, s.bytes1(0x80));
        }
        w.d = U::load_f16(s, unit, 0);
        w
    }
}

impl Strip for Q4K {
    const FORM: Form = Form::ScaleMinK;
    const SCALED: bool = true;
    const UNIT: usize = 144;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx512, unit: &[U]) -> Weights {
        let mut w = k4::<B, U>(s, unit);
        for k in 0..8 {
            w.w[k] = nibble::<B>(s, U::load64(s, unit, 256 + 64 * (8 * (B / 2) + k)));
        }
        w
    }
}

impl Strip for Q5K {
    const FORM: Form = Form::ScaleMinK;
    const SCALED: bool = true;
    const UNIT: usize = 176;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx512, unit: &[U]) -> Weights {
        let mut w = k4::<B, U>(s, unit);
        for k in 0..8 {
            let low = nibble::<B>(s, U::load64(s, unit, 768 + 64 * (8 * (B / 2) + k)));
            let high = s
                .avx512bw
                ._mm512_test_epi8_mask(U::load64(s, unit, 256 + 64 * k), s.bytes1(1 << B));
            w.w[k] = s.avx512bw._mm512_mask_add_epi8(low, high, low, s.bytes1(16));
        }
        w
    }
}

impl Strip for Q6K {
    const OFFSET: i32 = 32;
    const SCALED: bool = true;
    const HALVES: bool = true;
    const UNIT: usize = 210;

    #[inline(always)]
    fn unpack<const B: usize, U: Source>(s: Avx512, unit: &[U]) -> Weights {
        // 128 elements at a time: half n, and the j-th 32 of it.
        let (n, j) = (B / 4, B % 4);
        let mut w = plain(s);
        for k in 0..8 {
            let low = U::load64(s, unit, 288 + 64 * (16 * n + 8 * (j % 2) + k));
            let low = if j < 2 { s.and(low, s.bytes1(15)) } else { high_nibble(s, low) };
            let high = U::load64(s, unit, 2336 + 64 * (8 * n + k));
            let high = match j {
                0 => s.avx512f._mm512_slli_epi32::<4>(high),
                1 => s.avx512f._mm512_slli_epi32::<2>(high),
                2 => high,
                _ => s.avx512f._mm512_srli_epi32::<2>(high),
            };
            let high = s.and(high, s.bytes1(0x30));
            w.w[k] = s.avx512f._mm512_or_si512(low, high);
        }
        let quad = U::load64(s, unit, 32 + 64 * (B / 2));
        let signed = |x| s.avx512f._mm512_srai_epi32::<24>(x);
        w.sc = if B.is_multiple_of(2) {
            [
                signed(s.avx512f._mm512_slli_epi32::<24>(quad)),
                signed(s.avx512f._mm512_slli_epi32::<16>(quad)),
            ]
        } else {
            [signed(s.avx512f._mm512_slli_epi32::<8>(quad)), signed(quad)]
        };
        w.d = U::load_f16(s, unit, 0);
        w
    }
}

/// All zero.
#[inline(always)]
pub(super) fn plain(s: Avx512) -> Weights {
    let (zero, f) = (s.i32s1(0), s.set1(0.0));
    Weights { w: [zero; 8], d: f, m: f, sc: [zero; 2], mn: f }
}

/// Four vectors of 16-byte nibbles from `at`: low ones are the first half of the block.
#[inline(always)]
fn nibbles<U: Source>(s: Avx512, unit: &[U], at: usize) -> [I; 8] {
    let mut w = [s.i32s1(0); 8];
    for k in 0..4 {
        let both = U::load64(s, unit, at + 64 * k);
        w[k] = s.and(both, s.bytes1(15));
        w[4 + k] = high_nibble(s, both);
    }
    w
}

#[inline(always)]
fn high_nibble(s: Avx512, x: I) -> I {
    s.and(s.avx512f._mm512_srli_epi32::<4>(x), s.bytes1(15))
}

/// The nibbles of even blocks are the low ones.
#[inline(always)]
fn nibble<const B: usize>(s: Avx512, x: I) -> I {
    if B.is_multiple_of(2) { s.and(x, s.bytes1(15)) } else { high_nibble(s, x) }
}

/// Adds 16 to element `i` of a row whose bit `i` of the row's u32 is set.
#[inline(always)]
fn fifth_bits(s: Avx512, bits: I, mut w: [I; 8]) -> [I; 8] {
    // Bits 4k ..= 4k+3 are in byte k/2 of the row's four: brought to all four bytes, one is tested in each.
    const LOW: [u8; 16] = [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12];
    let low = s.avx512f._mm512_broadcast_i32x4(pulp::cast(LOW));
    for k in 0..8 {
        let index = s.avx512bw._mm512_add_epi8(low, s.bytes1((k / 2) as u8));
        let spread = s.avx512bw._mm512_shuffle_epi8(bits, index);
        let tested = s.i32s1(if k % 2 == 0 { 0x0804_0201 } else { 0x8040_2010u32 as i32 });
        let set = s.avx512bw._mm512_test_epi8_mask(spread, tested);
        w[k] = s.avx512bw._mm512_mask_add_epi8(w[k], set, w[k], s.bytes1(16));
    }
    w
}

/// The scales of block `B` of Q4_K and Q5_K: 6 bits each in 12 bytes.
#[inline(always)]
fn k4<const B: usize, U: Source>(s: Avx512, unit: &[U]) -> Weights {
    let (a, b) = (U::load64(s, unit, 64), U::load64(s, unit, 128));
    let mut w = plain(s);
    let shift = |x, by: usize| s.avx512f._mm512_srlv_epi32(x, s.i32s1(by as i32));
    if B < 4 {
        let six = s.i32s1(63);
        w.sc = [s.and(shift(a, 8 * B), six); 2];
        w.mn = s.to_f32(s.and(shift(b, 8 * B), six));
    } else {
        let at = 8 * (B - 4);
        let (c, low, two) = (U::load64(s, unit, 192), s.i32s1(15), s.i32s1(0x30));
        let join = |low, high| s.avx512f._mm512_or_si512(low, s.and(high, two));
        // Two bits from bit at+6 on go to bit 4.
        w.sc = [join(s.and(shift(c, at), low), shift(a, at + 2)); 2];
        w.mn = s.to_f32(join(s.and(shift(c, at + 4), low), shift(b, at + 2)));
    }
    w.d = U::load_f16(s, unit, 0);
    w.m = U::load_f16(s, unit, 32);
    w
}
