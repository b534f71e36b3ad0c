//! aarch64 with NEON, which every such CPU has; int8 products use the dot-product instructions of ARMv8.2 where the CPU has them.

/// An intrinsic of NEON, which is a safe call only in functions that name the feature; methods of traits cannot.
macro_rules! neon {
    ($call:expr) => {
        // SAFETY: this module is compiled only where the target has NEON, and a pointer that is passed is that of an array as large as
        // the access; no alignment is asked for.
        unsafe { $call }
    };
}

mod dots;

use core::arch::aarch64::*;

use dots::{DotProduct, Widening};

use super::lanes128::{self, Lanes};
pub(crate) use super::lanes128::{
    add, axpy, axpy_f16, decode_row, div, dot16, dot16_f16, dots16, dots16_f16, exp_sub,
    float_strip, gelu_mul, int8_strip, is_finite, low_rank_down, low_rank_up, max, quantize_row,
    query_dots, query_dots_f16, query_sums, query_sums_f16, rms_norm, rope_half, rope_interleaved,
    scale, silu_mul, sum16, to_f16, weighted_sum, weighted_sum_f16,
};
use crate::matmul::Part;
use crate::{QMatrix, QuantizedRows};

/// The tier, with what was found out about the CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon {
    dotprod: Option<DotProduct>,
}

impl Neon {
    pub(crate) fn detect() -> Neon {
        Neon { dotprod: DotProduct::detect() }
    }

    pub(crate) fn has_dotprod(self) -> bool {
        self.dotprod.is_some()
    }
}

/// As [`super::scalar::int8_interleaved`].
pub(crate) fn int8_interleaved(
    s: Neon,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
    xq: &QuantizedRows,
) {
    match s.dotprod {
        Some(dot) => lanes128::int8_interleaved(dot, out, w, part, xq),
        None => lanes128::int8_interleaved(Widening, out, w, part, xq),
    }
}

#[expect(unsafe_code, reason = "intrinsics of NEON")]
impl Lanes for Neon {
    type F = float32x4_t;
    type I = int32x4_t;

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        neon!(vdupq_n_f32(x))
    }

    #[inline(always)]
    fn load(self, x: &[f32; 4]) -> float32x4_t {
        neon!(vld1q_f32(x.as_ptr()))
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; 4], x: float32x4_t) {
        neon!(vst1q_f32(to.as_mut_ptr(), x))
    }

    #[inline(always)]
    fn widen_f16(self, x: u64) -> float32x4_t {
        neon!(vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(x))))
    }

    #[inline(always)]
    fn narrow_f16(self, x: float32x4_t) -> [u16; 4] {
        neon!({
            let x = vreinterpret_u16_f16(vcvt_f16_f32(x));
            [
                vget_lane_u16::<0>(x),
                vget_lane_u16::<1>(x),
                vget_lane_u16::<2>(x),
                vget_lane_u16::<3>(x),
            ]
        })
    }

    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        neon!(vaddq_f32(a, b))
    }

    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        neon!(vsubq_f32(a, b))
    }

    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        neon!(vmulq_f32(a, b))
    }

    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        neon!(vdivq_f32(a, b))
    }

    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        neon!(vminq_f32(a, b))
    }

    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        neon!(vmaxq_f32(a, b))
    }

    #[inline(always)]
    fn abs(self, x: float32x4_t) -> float32x4_t {
        neon!(vabsq_f32(x))
    }

    #[inline(always)]
    fn neg(self, x: float32x4_t) -> float32x4_t {
        neon!(vnegq_f32(x))
    }

    #[inline(always)]
    fn round(self, x: float32x4_t) -> float32x4_t {
        neon!(vrndnq_f32(x))
    }

    #[inline(always)]
    fn less(self, a: float32x4_t, b: float32x4_t) -> int32x4_t {
        neon!(vreinterpretq_s32_u32(vcltq_f32(a, b)))
    }

    #[inline(always)]
    fn all(self, x: int32x4_t) -> bool {
        neon!(vminvq_u32(vreinterpretq_u32_s32(x)) == u32::MAX)
    }

    #[inline(always)]
    fn zip(self, a: float32x4_t, b: float32x4_t) -> [float32x4_t; 2] {
        neon!([vzip1q_f32(a, b), vzip2q_f32(a, b)])
    }

    #[inline(always)]
    fn unzip(self, a: float32x4_t, b: float32x4_t) -> [float32x4_t; 2] {
        neon!([vuzp1q_f32(a, b), vuzp2q_f32(a, b)])
    }

    #[inline(always)]
    fn transpose(self, [a, b, c, d]: [float32x4_t; 4]) -> [float32x4_t; 4] {
        neon!({
            // a0 c0 a1 c1, b0 d0 b1 d1, and the upper halves.
            let (ac, bd) = (vzip1q_f32(a, c), vzip1q_f32(b, d));
            let (ac_up, bd_up) = (vzip2q_f32(a, c), vzip2q_f32(b, d));
            [
                vzip1q_f32(ac, bd),
                vzip2q_f32(ac, bd),
                vzip1q_f32(ac_up, bd_up),
                vzip2q_f32(ac_up, bd_up),
            ]
        })
    }

    #[inline(always)]
    fn to_i32(self, x: float32x4_t) -> int32x4_t {
        neon!(vcvtq_s32_f32(x))
    }

    #[inline(always)]
    fn to_f32(self, x: int32x4_t) -> float32x4_t {
        neon!(vcvtq_f32_s32(x))
    }

    #[inline(always)]
    fn bits(self, x: float32x4_t) -> int32x4_t {
        neon!(vreinterpretq_s32_f32(x))
    }

    #[inline(always)]
    fn floats(self, x: int32x4_t) -> float32x4_t {
        neon!(vreinterpretq_f32_s32(x))
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> int32x4_t {
        neon!(vdupq_n_s32(x))
    }

    #[inline(always)]
    fn splat_u8(self, x: u8) -> int32x4_t {
        neon!(vreinterpretq_s32_u8(vdupq_n_u8(x)))
    }

    #[inline(always)]
    fn load_bytes(self, x: &[u8; 16]) -> int32x4_t {
        neon!(vreinterpretq_s32_u8(vld1q_u8(x.as_ptr())))
    }

    #[inline(always)]
    fn store_bytes(self, to: &mut [i8; 16], x: int32x4_t) {
        neon!(vst1q_s8(to.as_mut_ptr(), vreinterpretq_s8_s32(x)))
    }

    #[inline(always)]
    fn widen_u16(self, x: u64) -> int32x4_t {
        neon!(vreinterpretq_s32_u32(vmovl_u16(vcreate_u16(x))))
    }

    #[inline(always)]
    fn and(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        neon!(vandq_s32(a, b))
    }

    #[inline(always)]
    fn or(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        neon!(vorrq_s32(a, b))
    }

    #[inline(always)]
    fn without(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        neon!(vbicq_s32(a, b))
    }

    #[inline(always)]
    fn add_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        neon!(vaddq_s32(a, b))
    }

    #[inline(always)]
    fn mul_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        neon!(vmulq_s32(a, b))
    }

    #[inline(always)]
    fn shl(self, x: int32x4_t, by: u32) -> int32x4_t {
        neon!(vshlq_s32(x, vdupq_n_s32(by as i32)))
    }

    // A shift by a negative number goes to the right.
    #[inline(always)]
    fn shr(self, x: int32x4_t, by: u32) -> int32x4_t {
        neon!(vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x), vdupq_n_s32(-(by as i32)))))
    }

    #[inline(always)]
    fn sar(self, x: int32x4_t, by: u32) -> int32x4_t {
        neon!(vshlq_s32(x, vdupq_n_s32(-(by as i32))))
    }

    #[inline(always)]
    fn high_nibbles(self, x: int32x4_t) -> int32x4_t {
        neon!(vreinterpretq_s32_u8(vshrq_n_u8::<4>(vreinterpretq_u8_s32(x))))
    }

    #[inline(always)]
    fn tested(self, x: int32x4_t, bits: int32x4_t) -> int32x4_t {
        neon!(vreinterpretq_s32_u8(vtstq_u8(vreinterpretq_u8_s32(x), vreinterpretq_u8_s32(bits))))
    }

    #[inline(always)]
    fn spread<const K: usize>(self, x: int32x4_t) -> int32x4_t {
        neon!({
            // The byte to the lowest place, then times 0x01010101.
            let low = vandq_s32(self.shr(x, 8 * K as u32), vdupq_n_s32(0xff));
            vmulq_s32(low, vdupq_n_s32(0x0101_0101))
        })
    }

    #[inline(always)]
    fn narrow(self, [a, b, c, d]: [int32x4_t; 4]) -> int32x4_t {
        neon!({
            let low = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
            let high = vcombine_s16(vmovn_s32(c), vmovn_s32(d));
            vreinterpretq_s32_s8(vcombine_s8(vmovn_s16(low), vmovn_s16(high)))
        })
    }

    #[inline(always)]
    fn sum_i8(self, x: int32x4_t) -> i32 {
        neon!(i32::from(vaddlvq_s8(vreinterpretq_s8_s32(x))))
    }
}
