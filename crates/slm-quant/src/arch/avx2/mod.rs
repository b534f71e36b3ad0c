//! x86-64 with AVX2 and F16C, through pulp's tokens. No FMA: the token does not even enable it.
//!
//! Everything below a public function is `#[inline(always)]`: the CPU features hold only inside [`Avx2::run`], and an intrinsic in
//! a function left out of line becomes a call.

mod attention;
mod decode;
mod float;
mod group;
mod interleaved;
mod low_rank;
mod plain;
mod product;
mod quantize;
pub(super) mod source;
mod strips;

use core::arch::x86_64::{__m128, __m128i, __m256, __m256i};

pub(super) use attention::rest;
pub(crate) use attention::{
    dots16, dots16_f16, query_dots, query_dots_f16, query_sums, query_sums_f16, weighted_sum,
    weighted_sum_f16,
};
pub(super) use decode::decode_piece;
pub(crate) use decode::decode_row;
pub(crate) use float::*;
pub(crate) use interleaved::int8_interleaved;
pub(super) use low_rank::Asking;
pub(crate) use low_rank::{low_rank_down, low_rank_up};
pub(crate) use plain::float_strip;
pub(crate) use product::int8_strip;
pub(crate) use quantize::quantize_row;

pulp::simd_type!({
    /// Proof that the CPU has these features.
    pub(crate) struct Avx2 {
        pub(crate) sse: f!("sse"),
        pub(crate) sse2: f!("sse2"),
        pub(crate) sse3: f!("sse3"),
        pub(crate) ssse3: f!("ssse3"),
        pub(crate) sse4_1: f!("sse4.1"),
        pub(crate) avx: f!("avx"),
        pub(crate) avx2: f!("avx2"),
        pub(crate) f16c: f!("f16c"),
    }
});

/// Eight f32.
type F = __m256;
/// 256 bits of integers.
type I = __m256i;

/// A closure to run with the token's features.
///
/// pulp takes `FnOnce`, and a closure that could be called twice reaches it through a shim that is not inlined: every intrinsic would be
/// a call (measured: 80 times slower). Called as `FnMut` it is the closure itself.
pub(super) struct Run<C>(pub(super) C);

impl<R, C: FnMut() -> R> pulp::NullaryFnOnce for Run<C> {
    type Output = R;

    #[inline(always)]
    fn call(mut self) -> R {
        (self.0)()
    }
}

/// The helpers shared by the modules; the rest is pulp's.
impl Avx2 {
    /// Asks for every cache line of `values`.
    #[inline(always)]
    pub(crate) fn prefetch<T>(self, values: &[T]) {
        self.prefetch_after(values, 0);
    }

    /// Asks for as many cache lines as `values` are in, `distance` bytes further on, whatever is there.
    #[inline(always)]
    pub(crate) fn prefetch_after<T>(self, values: &[T], distance: usize) {
        self.ask::<T, { core::arch::x86_64::_MM_HINT_T1 }>(values, distance);
    }

    /// [`Avx2::prefetch_after`] of what need not be in a cache once it is used.
    #[inline(always)]
    pub(crate) fn prefetch_passing_after<T>(self, values: &[T], distance: usize) {
        self.ask::<T, { core::arch::x86_64::_MM_HINT_NTA }>(values, distance);
    }

    #[expect(unsafe_code, reason = "pulp has no prefetch")]
    #[inline(always)]
    fn ask<T, const HINT: i32>(self, values: &[T], distance: usize) {
        let first = values.as_ptr().cast::<i8>().wrapping_add(distance);
        for at in (0..size_of_val(values)).step_by(64) {
            // SAFETY: a prefetch is a hint that never faults, and the token proves SSE.
            unsafe { core::arch::x86_64::_mm_prefetch::<HINT>(first.wrapping_add(at)) }
        }
    }

    /// Runs `f`, which must be `#[inline(always)]`, with the features on.
    #[inline(always)]
    fn run<R>(self, f: impl FnMut() -> R) -> R {
        self.vectorize(Run(f))
    }

    #[inline(always)]
    fn load(self, x: &[f32; 8]) -> F {
        pulp::cast(*x)
    }

    #[inline(always)]
    fn store(self, x: &mut [f32; 8], value: F) {
        *x = pulp::cast(value);
    }

    #[inline(always)]
    fn set1(self, x: f32) -> F {
        self.avx._mm256_set1_ps(x)
    }

    #[inline(always)]
    fn bytes1(self, x: u8) -> I {
        self.avx._mm256_set1_epi8(x as i8)
    }

    #[inline(always)]
    fn i32s(self, x: [i32; 8]) -> I {
        pulp::cast(x)
    }

    /// 32 bytes from `at`.
    #[inline(always)]
    fn load32(self, bytes: &[u8], at: usize) -> I {
        pulp::cast(chunk::<u8, 32>(bytes, at))
    }

    /// 16 bytes from `at`.
    #[inline(always)]
    fn load16(self, bytes: &[u8], at: usize) -> __m128i {
        pulp::cast(chunk::<u8, 16>(bytes, at))
    }

    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        self.avx._mm256_mul_ps(a, b)
    }

    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        self.avx._mm256_add_ps(a, b)
    }

    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        self.avx._mm256_sub_ps(a, b)
    }

    #[inline(always)]
    fn and(self, a: I, b: I) -> I {
        self.avx2._mm256_and_si256(a, b)
    }

    #[inline(always)]
    fn or(self, a: I, b: I) -> I {
        self.avx2._mm256_or_si256(a, b)
    }

    /// Exact for magnitudes up to 2^24.
    #[inline(always)]
    fn to_f32(self, x: I) -> F {
        self.avx._mm256_cvtepi32_ps(x)
    }

    /// Eight f16 widened, subnormals included, whatever the denormal flags say.
    #[inline(always)]
    #[expect(unsafe_code, reason = "pulp's F16C token has no methods")]
    fn widen_f16(self, x: __m128i) -> F {
        // SAFETY: the token proves F16C.
        unsafe { core::arch::x86_64::_mm256_cvtph_ps(x) }
    }

    /// Eight f32 rounded to f16, to nearest even.
    #[inline(always)]
    #[expect(unsafe_code, reason = "pulp's F16C token has no methods")]
    fn narrow_f16(self, x: F) -> __m128i {
        // SAFETY: the token proves F16C.
        unsafe { core::arch::x86_64::_mm256_cvtps_ph::<0>(x) }
    }

    /// Eight bf16 widened.
    #[inline(always)]
    fn widen_bf16(self, x: __m128i) -> F {
        let wide = self.avx2._mm256_cvtepu16_epi32(x);
        pulp::cast(self.avx2._mm256_slli_epi32::<16>(wide))
    }

    /// The sixteen lanes of a reduction, added in pairs (l, l+8), (l, l+4), (l, l+2), (l, l+1).
    #[inline(always)]
    pub(super) fn sum_lanes(self, low: F, high: F) -> f32 {
        let eight = self.add(low, high);
        let upper = self.avx._mm256_extractf128_ps::<1>(eight);
        let four = self.sse._mm_add_ps(self.avx._mm256_castps256_ps128(eight), upper);
        let two: __m128 = self.sse._mm_add_ps(four, self.sse._mm_movehl_ps(four, four));
        let two: [f32; 4] = pulp::cast(two);
        two[0] + two[1]
    }
}

/// A body once for each number below a constant bound: what is indexed by it stays in registers, which a loop does not promise.
macro_rules! unrolled {
    ($name:ident in $($n:literal)*; if $condition:expr, $body:block) => {
        $({
            const $name: usize = $n;
            if $condition $body
        })*
    };
}
pub(super) use unrolled;

/// `N` elements from `at`; the length check folds where both are constants.
#[inline(always)]
pub(super) fn chunk<T: Copy, const N: usize>(x: &[T], at: usize) -> [T; N] {
    *first_of(x, at)
}

/// [`chunk`] where it stands.
#[inline(always)]
pub(super) fn first_of<T, const N: usize>(x: &[T], at: usize) -> &[T; N] {
    x[at..].first_chunk().expect("BUG: a chunk past the end")
}
