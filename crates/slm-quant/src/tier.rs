//! The tiers.

use crate::Kernels;

/// A set of CPU instructions that has its own kernels. Results have the same bits on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Tier {
    /// Plain loops: the specification. Everywhere.
    Scalar,
    /// x86-64 with AVX2 and F16C.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, DQ, VL) and VNNI.
    Avx512,
    /// aarch64 with NEON; the dot-product instructions where the CPU has them.
    Neon,
    /// wasm32 compiled with simd128.
    Simd128,
}

impl Tier {
    pub(crate) const ALL: [Tier; 5] =
        [Tier::Scalar, Tier::Avx2, Tier::Avx512, Tier::Neon, Tier::Simd128];

    /// The name on the command line: `scalar`, `avx2`, `avx512`, `neon`, `simd128`.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Scalar => "scalar",
            Tier::Avx2 => "avx2",
            Tier::Avx512 => "avx512",
            Tier::Neon => "neon",
            Tier::Simd128 => "simd128",
        }
    }

    /// The tier with this name.
    pub fn from_name(name: &str) -> Option<Tier> {
        Tier::ALL.into_iter().find(|tier| tier.name() == name)
    }

    /// The tiers this CPU can run, slowest first; never empty.
    pub fn available() -> Vec<Tier> {
        Tier::ALL.into_iter().filter(|&tier| Kernels::with_tier(tier).is_some()).collect()
    }

    /// The fastest tier this CPU can run.
    pub fn detect() -> Tier {
        Kernels::detect().tier()
    }
}
