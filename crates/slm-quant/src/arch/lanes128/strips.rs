//! One block of four of sixteen interleaved rows unpacked: lane or byte quad `r` of every vector is row `4g + r`'s.

use super::{Dots, FloatsOf, IntsOf, Lanes, chunk};

/// Which of the contract's formulas.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Scale,
    ScaleMin,
    ScaleMinK,
}

/// A block of 32 elements of four rows. A field that a type does not need is never computed.
#[derive(Clone, Copy)]
pub(super) struct Weights<D: Dots> {
    /// The two halves of the block, less [`Strip::OFFSET`].
    pub(super) w: [D::Codes; 2],
    pub(super) d: FloatsOf<D>,
    /// `m` or `dmin`.
    pub(super) m: FloatsOf<D>,
    /// i32 scales of the two halves.
    pub(super) sc: [IntsOf<D>; 2],
    /// Minima of the block, integers.
    pub(super) mn: FloatsOf<D>,
}

/// One interleaved type.
pub(super) trait Strip {
    const FORM: Form = Form::Scale;
    /// Products of a code and an activation that fit i16 together: 4 for up to six bits, 2 for eight.
    const FIT: usize = 4;
    /// To be taken from the codes.
    const OFFSET: i32 = 0;
    /// The type has integer scales.
    const SCALED: bool = false;
    /// ... and they differ between the halves of a block.
    const HALVES: bool = false;
    /// Bytes of a row's block or super-block.
    const UNIT: usize;
    /// Blocks of 32 in it: 1 or 8.
    const BLOCKS: usize = if Self::UNIT > 34 { 8 } else { 1 };

    /// Block `B` of the rows of group `g`; `unit` is `16 * UNIT` bytes.
    fn unpack<D: Dots, const B: usize>(d: D, unit: &[u8], g: usize) -> Weights<D>;
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
    fn unpack<D: Dots, const B: usize>(d: D, unit: &[u8], g: usize) -> Weights<D> {
        let s = d.lanes();
        Weights { d: f16s(s, unit, 0, g), ..plain(d, nibbles(s, unit, 32, g)) }
    }
}

impl Strip for Q4_1 {
    const FORM: Form = Form::ScaleMin;
    const UNIT: usize = 20;

    #[inline(always)]
    fn unpack<D: Dots, const B: usize>(d: D, unit: &[u8], g: usize) -> Weights<D> {
        let s = d.lanes();
        let w = plain(d, nibbles(s, unit, 64, g));
        Weights { d: f16s(s, unit, 0, g), m: f16s(s, unit, 32, g), ..w }
    }
}

impl Strip for Q5_0 {
    const OFFSET: i32 = 16;
    const UNIT: usize = 22;

    #[inline(always)]
    fn unpack<D: Dots, const B: usize>(d: D, unit: &[u8], g: usize) -> Weights<D> {
        let s = d.lanes();
        let w = fifth_bits(s, quads(s, unit, 32, g), nibbles(s, unit, 96, g));
        Weights { d: f16s(s, unit, 0, g), ..plain(d, w) }
    }
}

impl Strip for Q5_1 {
    const FORM: Form = Form::ScaleMin;
    const UNIT: usize = 24;

    #[inline(always)]
    fn unpack<D: Dots, const B: usize>(d: D, unit: &[u8], g: usize) -> Weights<D> {
        let s = d.lanes();
        let w = fifth_bits(s, quads(s, unit, 64, g), nibbles(s, unit, 128, g));
        Weights { d: f16s(s, unit, 0, g), m: f16s(s, unit, 32, g), ..plain(d, w) }
    }
}

impl Strip for Q8_0 {
    const FIT: usize = 2;
    const UNIT: usize = 34;

    #[inline(always)]
    fn unpack<D: Dots, const B: usize>(d: D, unit: &[u8], g: usize) -> Weights<D> {
        let s = d.lanes();
        let mut w = none(s);
        for k in 0..8 {
            w[k] = quads(s, unit, 32 + 64 * k, g);
        }
        Weights { d: f16s(s, unit, 0, g), ..plain(d, w) }
    }
}

impl Strip for Q4K {
    const FORM: Form = Form::ScaleMinK;
    const SCALED: bool = true;
    const UNIT: usize = 144;

    #[inline(always)]
    fn unpack<D: Dots, const B: usize>(d: D, unit: &[u8], g: usize) -> Weights<D> {
        let s = d.lanes();
        let mut w = none(s);
        for k in 0..8 {
            w[k] = nibble::<_, B>(s, quads(s, unit, 256 + 64 * (8 * (B / 2) + k), g));
        }
        k4::<D, B>(d, unit, g, w)
    }
}

impl Strip for Q5K {
    const FORM: Form = Form::ScaleMinK;
    const SCALED: bool = true;
    const UNIT: usize = 176;

    #[inline(always)]
    fn unpack<D: Dots, const B: usize>(d: D, unit: &[u8], g: usize) -> Weights<D> {
        let s = d.lanes();
        let mut w = none(s);
        for k in 0..8 {
            let low = nibble::<_, B>(s, quads(s, unit, 768 + 64 * (8 * (B / 2) + k), g));
            let high = quads(s, unit, 256 + 64 * k, g);
            w[k] = s.or(low, sixteen_where(s, high, s.splat_u8(1 << B)));
        }
        k4::<D, B>(d, unit, g, w)
    }
}

impl Strip for Q6K {
    const OFFSET: i32 = 32;
    const SCALED: bool = true;
    const HALVES: bool = true;
    const UNIT: usize = 210;

    #[inline(always)]
    fn unpack<D: Dots, const B: usize>(d: D, unit: &[u8], g: usize) -> Weights<D> {
        // 128 elements at a time: half n, and the j-th 32 of it.
        let (n, j) = (B / 4, B % 4);
        let s = d.lanes();
        let mut w = none(s);
        for k in 0..8 {
            let low = quads(s, unit, 288 + 64 * (16 * n + 8 * (j % 2) + k), g);
            let low = if j < 2 { s.and(low, s.splat_u8(15)) } else { s.high_nibbles(low) };
            let high = quads(s, unit, 2336 + 64 * (8 * n + k), g);
            let high = match j {
                0 => s.shl(high, 4),
                1 => s.shl(high, 2),
                2 => high,
                _ => s.shr(high, 2),
            };
            w[k] = s.or(low, s.and(high, s.splat_u8(0x30)));
        }
        let quad = quads(s, unit, 32 + 64 * (B / 2), g);
        let signed = |x| s.sar(x, 24);
        let sc = if B.is_multiple_of(2) {
            [signed(s.shl(quad, 24)), signed(s.shl(quad, 16))]
        } else {
            [signed(s.shl(quad, 8)), signed(quad)]
        };
        Weights { d: f16s(s, unit, 0, g), sc, ..plain(d, w) }
    }
}

/// Elements `4k ..= 4k+3` in `w[k]`, and zeros for the rest.
#[inline(always)]
fn plain<D: Dots>(d: D, w: [IntsOf<D>; 8]) -> Weights<D> {
    let s = d.lanes();
    let (zero, f) = (s.splat_i32(0), s.splat(0.0));
    let [a, b, c, e, f4, g, h, i] = w;
    let w = [d.codes([a, b, c, e]), d.codes([f4, g, h, i])];
    Weights { w, d: f, m: f, sc: [zero; 2], mn: f }
}

#[inline(always)]
fn none<L: Lanes>(s: L) -> [L::I; 8] {
    [s.splat_i32(0); 8]
}

/// The pieces of 4 bytes of four rows, of those of sixteen rows from `at`.
#[inline(always)]
fn quads<L: Lanes>(s: L, unit: &[u8], at: usize, g: usize) -> L::I {
    s.load_bytes(chunk(unit, at + 16 * g))
}

/// The f16 of four rows, of those of sixteen rows from `at`, widened.
#[inline(always)]
fn f16s<L: Lanes>(s: L, unit: &[u8], at: usize, g: usize) -> L::F {
    s.widen_f16(u64::from_le_bytes(*chunk(unit, at + 8 * g)))
}

/// Four vectors of nibbles: low ones are the first half of the block.
#[inline(always)]
fn nibbles<L: Lanes>(s: L, unit: &[u8], at: usize, g: usize) -> [L::I; 8] {
    let mut w = none(s);
    for k in 0..4 {
        let both = quads(s, unit, at + 64 * k, g);
        w[k] = s.and(both, s.splat_u8(15));
        w[4 + k] = s.high_nibbles(both);
    }
    w
}

/// The nibbles of even blocks are the low ones.
#[inline(always)]
fn nibble<L: Lanes, const B: usize>(s: L, x: L::I) -> L::I {
    if B.is_multiple_of(2) { s.and(x, s.splat_u8(15)) } else { s.high_nibbles(x) }
}

/// Adds 16 to element `i` of a row whose bit `i` of the row's u32 is set.
#[inline(always)]
fn fifth_bits<L: Lanes>(s: L, bits: L::I, mut w: [L::I; 8]) -> [L::I; 8] {
    // Bits 4k ..= 4k+3 are in byte k/2 of the row's four: brought to all four bytes, one is tested in each.
    let spread =
        [s.spread::<0>(bits), s.spread::<1>(bits), s.spread::<2>(bits), s.spread::<3>(bits)];
    let tested = [s.splat_i32(0x0804_0201), s.splat_i32(0x8040_2010u32 as i32)];
    for k in 0..8 {
        w[k] = s.or(w[k], sixteen_where(s, spread[k / 2], tested[k % 2]));
    }
    w
}

/// 16 in every byte of `x` that has the bit of `tested` set, else 0.
#[inline(always)]
fn sixteen_where<L: Lanes>(s: L, x: L::I, tested: L::I) -> L::I {
    s.and(s.tested(x, tested), s.splat_u8(16))
}

/// The scales of block `B` of Q4_K and Q5_K: 6 bits each in 12 bytes.
#[inline(always)]
fn k4<D: Dots, const B: usize>(d: D, unit: &[u8], g: usize, w: [IntsOf<D>; 8]) -> Weights<D> {
    let s = d.lanes();
    let (a, b) = (quads(s, unit, 64, g), quads(s, unit, 128, g));
    let masked = |x, mask| s.and(x, s.splat_i32(mask));
    let (sc, mn) = if B < 4 {
        let by = 8 * B as u32;
        (masked(s.shr(a, by), 63), masked(s.shr(b, by), 63))
    } else {
        let at = 8 * (B as u32 - 4);
        let c = quads(s, unit, 192, g);
        let join = |low, high| s.or(masked(low, 15), masked(high, 0x30));
        // Two bits from bit at+6 on go to bit 4.
        (join(s.shr(c, at), s.shr(a, at + 2)), join(s.shr(c, at + 4), s.shr(b, at + 2)))
    };
    let (d16, m) = (f16s(s, unit, 0, g), f16s(s, unit, 32, g));
    Weights { d: d16, m, sc: [sc; 2], mn: s.to_f32(mn), ..plain(d, w) }
}
