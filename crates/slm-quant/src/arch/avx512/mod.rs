//! x86-64 with AVX-512 (F, BW, DQ, VL) and VNNI. What gains nothing from 512 bits is the AVX2 tier's.
//!
//! The rule of [`super::avx2`] holds: everything below a public function is `#[inline(always)]`.

mod attention;
mod float;
mod interleaved;
mod low_rank;
mod plain;
mod source;
mod strips;
mod terms;
mod tiles;

use core::arch::x86_64::{__m512, __m512i};

use slm_format::Encoding;

use super::avx2::{self, Avx2, Run, chunk, first_of};
use crate::matmul::Part;
use crate::{QMatrix, QuantizedRows};

pub(crate) use attention::{
    dots16, dots16_f16, query_dots, query_dots_f16, query_sums, query_sums_f16, weighted_sum,
    weighted_sum_f16,
};
pub(crate) use float::{
    add, axpy, axpy_f16, div, dot16, dot16_f16, exp_sub, gelu_mul, is_finite, max, rms_norm, scale,
    silu_mul, sum16, to_f16,
};
#[cfg(feature = "free-order")]
pub(crate) use interleaved::int8_free_order;
pub(crate) use interleaved::int8_interleaved;
pub(crate) use low_rank::{low_rank_down, low_rank_up};
pub(crate) use plain::float_strip;

pulp::simd_type!({
    /// Proof that the CPU has these features.
    pub(crate) struct Avx512 {
        pub(crate) sse: f!("sse"),
        pub(crate) sse2: f!("sse2"),
        pub(crate) sse3: f!("sse3"),
        pub(crate) ssse3: f!("ssse3"),
        pub(crate) sse4_1: f!("sse4.1"),
        pub(crate) avx: f!("avx"),
        pub(crate) avx2: f!("avx2"),
        pub(crate) f16c: f!("f16c"),
        pub(crate) avx512f: f!("avx512f"),
        pub(crate) avx512bw: f!("avx512bw"),
        pub(crate) avx512dq: f!("avx512dq"),
        pub(crate) avx512vl: f!("avx512vl"),
        pub(crate) avx512vnni: f!("avx512vnni"),
    }
});

/// Sixteen f32.
type F = __m512;
/// 512 bits of integers.
type I = __m512i;

/// Functions that are the AVX2 tier's.
macro_rules! as_avx2 {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $result:ty)?;)*) => {
        $(pub(crate) fn $name(s: Avx512, $($arg: $ty),*) $(-> $result)? {
            avx2::$name(s.avx2(), $($arg),*)
        })*
    };
}

as_avx2! {
    int8_strip(out: &mut [f32], w: &QMatrix, part: Part<'_>, xq: &QuantizedRows);
    quantize_row(x: &[f32], q: &mut [i8], d: &mut [f32], xsum: &mut [i32], half: &mut [i32]);
    decode_row(encoding: Encoding, out: &mut [f32], row: &[u8]);
    rope_interleaved(x: &mut [f32], cos: &[f32], sin: &[f32]);
    rope_half(x: &mut [f32], cos: &[f32], sin: &[f32]);
}

/// The helpers shared by the modules; the rest is pulp's.
impl Avx512 {
    /// The features of the smaller tier are among these.
    #[inline(always)]
    fn avx2(self) -> Avx2 {
        let Avx512 { sse, sse2, sse3, ssse3, sse4_1, avx, avx2, f16c, .. } = self;
        Avx2 { sse, sse2, sse3, ssse3, sse4_1, avx, avx2, f16c }
    }

    /// As [`Avx2::prefetch`].
    #[inline(always)]
    pub(crate) fn prefetch<T>(self, values: &[T]) {
        self.avx2().prefetch(values);
    }

    /// Runs `f`, which must be `#[inline(always)]`, with the features on.
    #[inline(always)]
    fn run<R>(self, f: impl FnMut() -> R) -> R {
        self.vectorize(Run(f))
    }

    #[inline(always)]
    fn set1(self, x: f32) -> F {
        self.avx512f._mm512_set1_ps(x)
    }

    #[inline(always)]
    fn i32s1(self, x: i32) -> I {
        self.avx512f._mm512_set1_epi32(x)
    }

    #[inline(always)]
    fn bytes1(self, x: u8) -> I {
        self.avx512f._mm512_set1_epi8(x as i8)
    }

    /// 64 bytes from `at`.
    #[inline(always)]
    fn load64(self, bytes: &[u8], at: usize) -> I {
        pulp::cast(chunk::<u8, 64>(bytes, at))
    }

    /// Sixteen f16 from byte `at`, widened.
    #[inline(always)]
    fn load_f16(self, bytes: &[u8], at: usize) -> F {
        self.avx512f._mm512_cvtph_ps(pulp::cast(chunk::<u8, 32>(bytes, at)))
    }

    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        self.avx512f._mm512_mul_ps(a, b)
    }

    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        self.avx512f._mm512_add_ps(a, b)
    }

    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        self.avx512f._mm512_sub_ps(a, b)
    }

    #[inline(always)]
    fn and(self, a: I, b: I) -> I {
        self.avx512f._mm512_and_si512(a, b)
    }

    /// Exact for magnitudes up to 2^24.
    #[inline(always)]
    fn to_f32(self, x: I) -> F {
        self.avx512f._mm512_cvtepi32_ps(x)
    }

    /// The sixteen lanes of a reduction, added in pairs (l, l+8), (l, l+4), (l, l+2), (l, l+1).
    #[inline(always)]
    fn sum_lanes(self, lanes: F) -> f32 {
        let upper = self.avx512dq._mm512_extractf32x8_ps::<1>(lanes);
        self.avx2().sum_lanes(self.avx512f._mm512_castps512_ps256(lanes), upper)
    }

    /// In each i32 lane, `sum` plus the four products of unsigned bytes of `a` and signed bytes of `b`.
    #[inline(always)]
    #[expect(unsafe_code, reason = "pulp's VNNI token has no methods")]
    fn dot4(self, sum: I, a: I, b: I) -> I {
        // SAFETY: the token proves AVX512VNNI and AVX512F.
        unsafe { core::arch::x86_64::_mm512_dpbusd_epi32(sum, a, b) }
    }
}
