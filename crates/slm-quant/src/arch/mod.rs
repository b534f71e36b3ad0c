//! One module per tier. Only this directory may hold `unsafe`.
//!
//! Every tier has the same functions; [`scalar`] is the specification.

pub(crate) mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_cpu;

#[cfg(any(
    all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"),
    all(target_arch = "wasm32", target_feature = "simd128")
))]
mod lanes128;
#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
pub(crate) mod neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(crate) mod simd128;

use slm_format::Encoding;

/// Whether the type has an int8 product (numerics 3); the others are always multiplied in f32.
pub(crate) fn is_integer_coded(encoding: Encoding) -> bool {
    !matches!(
        encoding,
        Encoding::F32 | Encoding::F16 | Encoding::BF16 | Encoding::NF4 | Encoding::MXFP4
    )
}

/// The 16 integers of IQ4_NL and IQ4_XS.
pub(crate) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The E2M1 values of MXFP4, doubled to integers; the block's power of two is halved for it.
pub(crate) const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The 16 normal-float values of bitsandbytes.
pub(crate) const NF4_VALUES: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Half of the power of two that an MXFP4 exponent byte means, subnormals included.
#[inline(always)]
pub(crate) fn e8m0_half(e: u8) -> f32 {
    if e < 2 { f32::from_bits(0x0020_0000 << e) } else { f32::from_bits((u32::from(e) - 1) << 23) }
}
