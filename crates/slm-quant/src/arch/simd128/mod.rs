//! wasm32 with simd128, which a module either asks for or does not: the tier exists where the crate is compiled with the feature.
//!
//! Nothing of relaxed SIMD: its results may differ from engine to engine.

use core::arch::wasm32::*;

use super::lanes128::{Dots, Lanes};
pub(crate) use super::lanes128::{
    add, axpy, axpy_f16, decode_row, div, dot16, dot16_f16, dots16, dots16_f16, exp_sub,
    float_strip, gelu_mul, int8_interleaved, int8_strip, is_finite, low_rank_down, low_rank_up,
    max, quantize_row, query_dots, query_dots_f16, query_sums, query_sums_f16, rms_norm, rope_half,
    rope_interleaved, scale, silu_mul, sum16, to_f16, weighted_sum, weighted_sum_f16,
};

/// The tier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Simd128;

impl Lanes for Simd128 {
    type F = v128;
    type I = v128;

    #[inline(always)]
    fn splat(self, x: f32) -> v128 {
        f32x4_splat(x)
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "a load through a pointer")]
    fn load(self, x: &[f32; 4]) -> v128 {
        // SAFETY: `x` is 16 readable bytes; the instruction asks for no alignment.
        unsafe { v128_load(x.as_ptr().cast()) }
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "a store through a pointer")]
    fn store(self, to: &mut [f32; 4], x: v128) {
        // SAFETY: `to` is 16 writable bytes; the instruction asks for no alignment.
        unsafe { v128_store(to.as_mut_ptr().cast(), x) }
    }

    #[inline(always)]
    fn widen_f16(self, x: u64) -> v128 {
        let x = self.widen_u16(x);
        let sign = i32x4_shl(v128_and(x, i32x4_splat(0x8000)), 16);
        // Exponent and mantissa in their f32 places are the number times 2^-112: exact, subnormals included.
        let small = i32x4_shl(v128_and(x, i32x4_splat(0x7fff)), 13);
        let scaled = f32x4_mul(small, f32x4_splat(f32::from_bits(0x7780_0000)));
        let not_finite = i32x4_gt(small, i32x4_splat(0x7bff << 13));
        let exponent = v128_and(not_finite, i32x4_splat(0x7f80_0000));
        v128_or(v128_or(scaled, exponent), sign)
    }

    #[inline(always)]
    fn narrow_f16(self, x: v128) -> [u16; 4] {
        let sign = v128_and(x, i32x4_splat(i32::MIN));
        let magnitude = v128_xor(x, sign);
        // Below 2^-14: the addition puts the last place of the sum at 2^-24, and rounds there.
        let half = f32x4_splat(0.5);
        let subnormal = i32x4_sub(f32x4_add(magnitude, half), half);
        // Else: half a place less one, one more where the last place kept is odd; a carry goes to the exponent.
        let odd = v128_and(u32x4_shr(magnitude, 13), i32x4_splat(1));
        let rebiased = i32x4_add(magnitude, i32x4_splat(0xfff - (112 << 23)));
        let normal = u32x4_shr(i32x4_add(rebiased, odd), 13);
        let is_small = i32x4_lt(magnitude, i32x4_splat(113 << 23));
        let finite = v128_bitselect(subnormal, normal, is_small);
        // From 65520 on: infinity.
        let is_great = i32x4_ge(magnitude, i32x4_splat(0x477f_f000));
        let rounded = v128_bitselect(i32x4_splat(0x7c00), finite, is_great);
        let x = v128_or(rounded, u32x4_shr(sign, 16));
        [0, 1, 2, 3].map(
            #[inline(always)]
            |l| match l {
                0 => u16x8_extract_lane::<0>(x),
                1 => u16x8_extract_lane::<2>(x),
                2 => u16x8_extract_lane::<4>(x),
                _ => u16x8_extract_lane::<6>(x),
            },
        )
    }

    #[inline(always)]
    fn add(self, a: v128, b: v128) -> v128 {
        f32x4_add(a, b)
    }

    #[inline(always)]
    fn sub(self, a: v128, b: v128) -> v128 {
        f32x4_sub(a, b)
    }

    #[inline(always)]
    fn mul(self, a: v128, b: v128) -> v128 {
        f32x4_mul(a, b)
    }

    #[inline(always)]
    fn div(self, a: v128, b: v128) -> v128 {
        f32x4_div(a, b)
    }

    // One instruction of x86-64 each, which the forms that care for NaN and zeros are not.
    #[inline(always)]
    fn min(self, a: v128, b: v128) -> v128 {
        f32x4_pmin(a, b)
    }

    #[inline(always)]
    fn max(self, a: v128, b: v128) -> v128 {
        f32x4_pmax(a, b)
    }

    #[inline(always)]
    fn abs(self, x: v128) -> v128 {
        f32x4_abs(x)
    }

    #[inline(always)]
    fn neg(self, x: v128) -> v128 {
        f32x4_neg(x)
    }

    #[inline(always)]
    fn round(self, x: v128) -> v128 {
        f32x4_nearest(x)
    }

    #[inline(always)]
    fn less(self, a: v128, b: v128) -> v128 {
        f32x4_lt(a, b)
    }

    #[inline(always)]
    fn all(self, x: v128) -> bool {
        i32x4_all_true(x)
    }

    #[inline(always)]
    fn zip(self, a: v128, b: v128) -> [v128; 2] {
        [i32x4_shuffle::<0, 4, 1, 5>(a, b), i32x4_shuffle::<2, 6, 3, 7>(a, b)]
    }

    #[inline(always)]
    fn unzip(self, a: v128, b: v128) -> [v128; 2] {
        [i32x4_shuffle::<0, 2, 4, 6>(a, b), i32x4_shuffle::<1, 3, 5, 7>(a, b)]
    }

    #[inline(always)]
    fn transpose(self, [a, b, c, d]: [v128; 4]) -> [v128; 4] {
        // a0 c0 a1 c1, b0 d0 b1 d1, and the upper halves.
        let ([ac, ac_up], [bd, bd_up]) = (self.zip(a, c), self.zip(b, d));
        let ([x, y], [z, w]) = (self.zip(ac, bd), self.zip(ac_up, bd_up));
        [x, y, z, w]
    }

    #[inline(always)]
    fn to_i32(self, x: v128) -> v128 {
        i32x4_trunc_sat_f32x4(x)
    }

    #[inline(always)]
    fn to_f32(self, x: v128) -> v128 {
        f32x4_convert_i32x4(x)
    }

    #[inline(always)]
    fn bits(self, x: v128) -> v128 {
        x
    }

    #[inline(always)]
    fn floats(self, x: v128) -> v128 {
        x
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> v128 {
        i32x4_splat(x)
    }

    #[inline(always)]
    fn splat_u8(self, x: u8) -> v128 {
        u8x16_splat(x)
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "a load through a pointer")]
    fn load_bytes(self, x: &[u8; 16]) -> v128 {
        // SAFETY: `x` is 16 readable bytes; the instruction asks for no alignment.
        unsafe { v128_load(x.as_ptr().cast()) }
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "a store through a pointer")]
    fn store_bytes(self, to: &mut [i8; 16], x: v128) {
        // SAFETY: `to` is 16 writable bytes; the instruction asks for no alignment.
        unsafe { v128_store(to.as_mut_ptr().cast(), x) }
    }

    #[inline(always)]
    fn widen_u16(self, x: u64) -> v128 {
        u32x4_extend_low_u16x8(u64x2_splat(x))
    }

    #[inline(always)]
    fn and(self, a: v128, b: v128) -> v128 {
        v128_and(a, b)
    }

    #[inline(always)]
    fn or(self, a: v128, b: v128) -> v128 {
        v128_or(a, b)
    }

    #[inline(always)]
    fn without(self, a: v128, b: v128) -> v128 {
        v128_andnot(a, b)
    }

    #[inline(always)]
    fn add_i32(self, a: v128, b: v128) -> v128 {
        i32x4_add(a, b)
    }

    #[inline(always)]
    fn mul_i32(self, a: v128, b: v128) -> v128 {
        i32x4_mul(a, b)
    }

    #[inline(always)]
    fn shl(self, x: v128, by: u32) -> v128 {
        i32x4_shl(x, by)
    }

    #[inline(always)]
    fn shr(self, x: v128, by: u32) -> v128 {
        u32x4_shr(x, by)
    }

    #[inline(always)]
    fn sar(self, x: v128, by: u32) -> v128 {
        i32x4_shr(x, by)
    }

    #[inline(always)]
    fn high_nibbles(self, x: v128) -> v128 {
        u8x16_shr(x, 4)
    }

    #[inline(always)]
    fn tested(self, x: v128, bits: v128) -> v128 {
        i8x16_ne(v128_and(x, bits), i8x16_splat(0))
    }

    #[inline(always)]
    fn spread<const K: usize>(self, x: v128) -> v128 {
        match K {
            0 => i8x16_shuffle::<0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12>(x, x),
            1 => i8x16_shuffle::<1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13>(x, x),
            2 => i8x16_shuffle::<2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14, 14, 14>(x, x),
            _ => i8x16_shuffle::<3, 3, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 15, 15, 15, 15>(x, x),
        }
    }

    #[inline(always)]
    fn narrow(self, [a, b, c, d]: [v128; 4]) -> v128 {
        i8x16_narrow_i16x8(i16x8_narrow_i32x4(a, b), i16x8_narrow_i32x4(c, d))
    }

    #[inline(always)]
    fn sum_i8(self, x: v128) -> i32 {
        let four = i32x4_extadd_pairwise_i16x8(i16x8_extadd_pairwise_i8x16(x));
        let two = i32x4_add(four, i32x4_shuffle::<2, 3, 0, 1>(four, four));
        i32x4_extract_lane::<0>(two) + i32x4_extract_lane::<1>(two)
    }
}

/// Codes and activations widened to i16 once, then multiplied and added in pairs.
impl Dots for Simd128 {
    type Lanes = Simd128;
    /// For each four elements, rows 0 and 1, then rows 2 and 3.
    type Codes = [[v128; 2]; 4];
    type Quads = [v128; 4];
    /// Of rows 0 and 1, two each; of rows 2 and 3.
    type Sums = [v128; 2];

    #[inline(always)]
    fn lanes(self) -> Simd128 {
        self
    }

    #[inline(always)]
    fn run<R>(self, mut f: impl FnMut() -> R) -> R {
        f()
    }

    #[inline(always)]
    fn codes(self, w: [v128; 4]) -> [[v128; 2]; 4] {
        w.map(
            #[inline(always)]
            |w| [i16x8_extend_low_i8x16(w), i16x8_extend_high_i8x16(w)],
        )
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "a load through a pointer")]
    fn quads(self, q: &[i8; 16]) -> [v128; 4] {
        // SAFETY: `q` is 16 readable bytes; the instruction asks for no alignment.
        let q = unsafe { v128_load(q.as_ptr().cast()) };
        let (low, high) = (i16x8_extend_low_i8x16(q), i16x8_extend_high_i8x16(q));
        [
            i64x2_shuffle::<0, 0>(low, low),
            i64x2_shuffle::<1, 1>(low, low),
            i64x2_shuffle::<0, 0>(high, high),
            i64x2_shuffle::<1, 1>(high, high),
        ]
    }

    #[inline(always)]
    fn none(self) -> [v128; 2] {
        [i32x4_splat(0); 2]
    }

    #[inline(always)]
    fn dot<const FIT: usize>(
        self,
        [mut low, mut high]: [v128; 2],
        w: &[[v128; 2]; 4],
        q: &[v128; 4],
    ) -> [v128; 2] {
        for k in 0..4 {
            low = i32x4_add(low, i32x4_dot_i16x8(w[k][0], q[k]));
            high = i32x4_add(high, i32x4_dot_i16x8(w[k][1], q[k]));
        }
        [low, high]
    }

    #[inline(always)]
    fn total(self, [low, high]: [v128; 2]) -> v128 {
        let (even, odd) =
            (i32x4_shuffle::<0, 2, 4, 6>(low, high), i32x4_shuffle::<1, 3, 5, 7>(low, high));
        i32x4_add(even, odd)
    }
}
