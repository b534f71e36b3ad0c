//! Products of bytes: by SDOT, or by widening to i16.

use core::arch::aarch64::*;

use super::Neon;
use crate::arch::lanes128::Dots;

/// Proof that the CPU has SDOT.
#[derive(Debug, Clone, Copy)]
pub(super) struct DotProduct(());

impl DotProduct {
    pub(super) fn detect() -> Option<DotProduct> {
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(DotProduct(()))
    }

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
pub(super) struct Widening;

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
