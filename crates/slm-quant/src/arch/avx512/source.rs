//! The loads of [`super::avx2::source`] at the width of this tier.

use super::avx2::source;
use super::{Avx512, F, I};

pub(super) use source::Passing;

/// What a strip is a slice of. `at` counts bytes and is a multiple of 32.
pub(super) trait Source: source::Source {
    /// 64 bytes from `at`.
    fn load64(s: Avx512, unit: &[Self], at: usize) -> I;

    /// Sixteen f16 from byte `at`, widened.
    #[inline(always)]
    fn load_f16(s: Avx512, unit: &[Self], at: usize) -> F {
        s.avx512f._mm512_cvtph_ps(Self::load32(s.avx2(), unit, at))
    }
}

impl Source for u8 {
    #[inline(always)]
    fn load64(s: Avx512, unit: &[u8], at: usize) -> I {
        s.load64(unit, at)
    }
}

impl Source for Passing {
    /// In two halves: units of half of the types are no whole lines.
    #[inline(always)]
    fn load64(s: Avx512, unit: &[Passing], at: usize) -> I {
        let half = |at| <Passing as source::Source>::load32(s.avx2(), unit, at);
        s.avx512f._mm512_inserti64x4::<1>(s.avx512f._mm512_castsi256_si512(half(at)), half(at + 32))
    }
}
