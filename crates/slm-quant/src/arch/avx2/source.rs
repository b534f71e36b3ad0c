//! How the bytes of an interleaved strip are loaded: like any others, or past the caches.

use core::arch::x86_64::{__m128i, __m256i};

use super::{Avx2, chunk};

/// What a strip is a slice of. `at` counts bytes.
pub(in crate::arch) trait Source: Copy + 'static {
    /// Bytes of one.
    const BYTES: usize;

    /// Half `h` of the 32 bytes from `at`, a multiple of 32.
    fn load16(s: Avx2, unit: &[Self], at: usize, h: usize) -> __m128i;

    /// 32 bytes from `at`, a multiple of 32.
    fn load32(s: Avx2, unit: &[Self], at: usize) -> __m256i;
}

impl Source for u8 {
    const BYTES: usize = 1;

    #[inline(always)]
    fn load16(_: Avx2, unit: &[u8], at: usize, h: usize) -> __m128i {
        pulp::cast(chunk::<u8, 16>(unit, at + 16 * h))
    }

    #[inline(always)]
    fn load32(_: Avx2, unit: &[u8], at: usize) -> __m256i {
        pulp::cast(chunk::<u8, 32>(unit, at))
    }
}

/// Bytes that no cache will still have when they are read again. They are loaded with the hint that says so: what lies in a cache stays
/// there.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(in crate::arch) struct Passing([u8; 32]);

#[expect(unsafe_code, reason = "the derive would need another dependency")]
// SAFETY: bytes and nothing else, as many as the alignment.
unsafe impl bytemuck::Zeroable for Passing {}
#[expect(unsafe_code, reason = "the derive would need another dependency")]
// SAFETY: as above.
unsafe impl bytemuck::Pod for Passing {}

impl Passing {
    /// The strip as such, where it is aligned.
    #[inline(always)]
    pub(in crate::arch) fn of(strip: &[u8]) -> Option<&[Passing]> {
        bytemuck::try_cast_slice(strip).ok()
    }
}

impl Source for Passing {
    const BYTES: usize = 32;

    /// By the wide load: the narrow one is an instruction of SSE, which does not mix well with AVX everywhere.
    #[inline(always)]
    fn load16(s: Avx2, unit: &[Passing], at: usize, h: usize) -> __m128i {
        let both = Passing::load32(s, unit, at);
        if h == 0 {
            s.avx._mm256_castsi256_si128(both)
        } else {
            s.avx2._mm256_extracti128_si256::<1>(both)
        }
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "pulp has no such loads")]
    fn load32(_: Avx2, unit: &[Passing], at: usize) -> __m256i {
        debug_assert!(at.is_multiple_of(32));
        // SAFETY: the token proves AVX2; the type has 32 bytes and stands at multiples of 32.
        unsafe {
            core::arch::x86_64::_mm256_stream_load_si256(core::ptr::from_ref(&unit[at / 32]).cast())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_is_taken_as_such_at_multiples_of_32_only() {
        let bytes = crate::layout::AlignedBytes::zeroed(128);
        for at in 0..=64 {
            let taken = Passing::of(&bytes[at..at + 64]);
            assert_eq!(taken.map(<[Passing]>::len), at.is_multiple_of(32).then_some(2), "{at}");
        }
    }
}
