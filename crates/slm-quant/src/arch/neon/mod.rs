//! aarch64 with NEON, which every such CPU has; int8 products use the dot-product instructions of ARMv8.2 where the CPU has them.

use core::arch::aarch64::*;

use super::lanes128::{self, Dots, Lanes};
pub(crate) use super::lanes128::{
    add, axpy, axpy_f16, decode_row, div, dot16, dot16_f16, dots16, dots16_f16, exp_sub,
    float_strip, gelu_mul, int8_strip, is_finite, lora_strip, max, quantize_row, query_dots,
    query_dots_f16, query_sums, query_sums_f16, rms_norm, rope_half, rope_interleaved, scale,
    silu_mul, sum16, to_f16, weighted_sum, weighted_sum_f16,
};
use crate::matmul::Part;
use crate::{QMatrix, QuantizedRows};

/// An intrinsic of NEON, which is a safe call only in functions that name the feature; methods of traits cannot.
macro_rules! neon {
    ($call:expr) => {
        // SAFETY: this module is compiled only where the target has NEON, and a pointer that is passed is that of an array as large as
        // the access; no alignment is asked for.
        unsafe { $call }
    };
}

/// The tier, with what was found out about the CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon {
    dotprod: Option<DotProduct>,
}

impl Neon {
    pub(crate) fn detect() -> Neon {
        let has_dotprod = std::arch::is_aarch64_feature_detected!("dotprod");
        Neon { dotprod: has_dotprod.then_some(DotProduct(())) }
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
    part: Part,
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
    fn sub_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        neon!(vsubq_s32(a, b))
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

/// Proof that the CPU has SDOT.
#[derive(Debug, Clone, Copy)]
struct DotProduct(());

impl DotProduct {
    /// `sum` plus, in each lane, the four products of the bytes of `w` and those of lane `LANE` of `q`.
    ///
    /// Only within [`Dots::run`]. An instruction by its name: the intrinsic is not stable.
    #[inline(always)]
    #[expect(unsafe_code, reason = "one instruction")]
    fn sdot<const LANE: usize>(self, sum: int32x4_t, w: int32x4_t, q: int32x4_t) -> int32x4_t {
        let mut sum = sum;
        // SAFETY: the token proves that the CPU has the instruction; it reads and writes the named registers only.
        unsafe {
            core::arch::asm!(
                "sdot {sum:v}.4s, {w:v}.16b, {q:v}.4b[{lane}]",
                sum = inout(vreg) sum,
                w = in(vreg) w,
                q = in(vreg) q,
                lane = const LANE,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }
}

#[expect(unsafe_code, reason = "intrinsics of NEON")]
impl Dots for DotProduct {
    type Lanes = Neon;
    type Codes = [int32x4_t; 4];
    type Quads = int32x4_t;
    type Sums = int32x4_t;

    #[inline(always)]
    fn lanes(self) -> Neon {
        Neon { dotprod: Some(self) }
    }

    #[inline(always)]
    fn run<R>(self, f: impl FnMut() -> R) -> R {
        #[target_feature(enable = "dotprod")]
        fn with_dotprod<R>(mut f: impl FnMut() -> R) -> R {
            f()
        }
        // SAFETY: the token proves that the CPU has the feature.
        unsafe { with_dotprod(f) }
    }

    #[inline(always)]
    fn codes(self, w: [int32x4_t; 4]) -> [int32x4_t; 4] {
        w
    }

    #[inline(always)]
    fn quads(self, q: &[i8; 16]) -> int32x4_t {
        neon!(vreinterpretq_s32_s8(vld1q_s8(q.as_ptr())))
    }

    #[inline(always)]
    fn none(self) -> int32x4_t {
        neon!(vdupq_n_s32(0))
    }

    #[inline(always)]
    fn dot<const FIT: usize>(self, sum: int32x4_t, w: &[int32x4_t; 4], q: &int32x4_t) -> int32x4_t {
        let sum = self.sdot::<0>(sum, w[0], *q);
        let sum = self.sdot::<1>(sum, w[1], *q);
        let sum = self.sdot::<2>(sum, w[2], *q);
        self.sdot::<3>(sum, w[3], *q)
    }

    #[inline(always)]
    fn total(self, sum: int32x4_t) -> int32x4_t {
        sum
    }
}

/// Products by SMULL and SMLAL, as every CPU has them: i16, pairs of which go to i32.
#[derive(Debug, Clone, Copy)]
struct Widening;

#[expect(unsafe_code, reason = "intrinsics of NEON")]
impl Dots for Widening {
    type Lanes = Neon;
    type Codes = [int8x16_t; 4];
    type Quads = [int8x16_t; 4];
    /// Of rows 0 and 1, two each; of rows 2 and 3.
    type Sums = [int32x4_t; 2];

    #[inline(always)]
    fn lanes(self) -> Neon {
        Neon { dotprod: None }
    }

    #[inline(always)]
    fn run<R>(self, mut f: impl FnMut() -> R) -> R {
        f()
    }

    #[inline(always)]
    fn codes(self, w: [int32x4_t; 4]) -> [int8x16_t; 4] {
        neon!({
            w.map(
                #[inline(always)]
                |w| vreinterpretq_s8_s32(w),
            )
        })
    }

    #[inline(always)]
    fn quads(self, q: &[i8; 16]) -> [int8x16_t; 4] {
        neon!({
            let quad = |k: usize| {
                let bytes = [q[4 * k], q[4 * k + 1], q[4 * k + 2], q[4 * k + 3]];
                let quad = i32::from_le_bytes(bytes.map(|q| q as u8));
                vreinterpretq_s8_s32(vdupq_n_s32(quad))
            };
            [quad(0), quad(1), quad(2), quad(3)]
        })
    }

    #[inline(always)]
    fn none(self) -> [int32x4_t; 2] {
        neon!([vdupq_n_s32(0); 2])
    }

    #[inline(always)]
    fn dot<const FIT: usize>(
        self,
        [low, high]: [int32x4_t; 2],
        w: &[int8x16_t; 4],
        q: &[int8x16_t; 4],
    ) -> [int32x4_t; 2] {
        neon!({
            // |w| reaches 128 and |q| only 127, so two products are at most 32512: no overflow.
            let first = |k: usize| {
                let low = vmull_s8(vget_low_s8(w[k]), vget_low_s8(q[k]));
                (low, vmull_high_s8(w[k], q[k]))
            };
            let more = |(low, high), k: usize| {
                let low = vmlal_s8(low, vget_low_s8(w[k]), vget_low_s8(q[k]));
                (low, vmlal_high_s8(high, w[k], q[k]))
            };
            let two = more(first(0), 1);
            if FIT == 4 {
                let four = more(more(two, 2), 3);
                return [vpadalq_s16(low, four.0), vpadalq_s16(high, four.1)];
            }
            let next = more(first(2), 3);
            let (low, high) = (vpadalq_s16(low, two.0), vpadalq_s16(high, two.1));
            [vpadalq_s16(low, next.0), vpadalq_s16(high, next.1)]
        })
    }

    #[inline(always)]
    fn total(self, [low, high]: [int32x4_t; 2]) -> int32x4_t {
        neon!(vpaddq_s32(low, high))
    }
}
