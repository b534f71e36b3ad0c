//! Runs, guard zones, comparisons and the digest.

use core::fmt;

use slm_quant::{Kernels, Tier};

/// What a check has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Results of the tier that were compared with the scalar tier's.
    pub cases: u64,
    /// Numbers in them.
    pub values: u64,
    /// FNV-1a over every bit that the scalar tier gave.
    pub digest: u64,
}

/// The first result that was not the scalar tier's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch(String);

impl Mismatch {
    pub(crate) fn new(what: impl Into<String>) -> Mismatch {
        Mismatch(what.into())
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for Mismatch {}

/// What a guard zone, and an output before it is written, holds: a NaN that no kernel produces.
pub(crate) const GUARD: f32 = f32::from_bits(0x7fa5_a5a5);
const GUARDS: usize = 16;

/// Compares one tier with the scalar one.
pub(crate) struct Checker {
    pub(crate) scalar: Kernels,
    pub(crate) tier: Kernels,
    summary: Summary,
}

impl Checker {
    pub(crate) fn new(tier: Tier) -> Result<Checker, Mismatch> {
        let kernels = |tier: Tier| {
            Kernels::with_tier(tier)
                .ok_or_else(|| Mismatch(format!("this CPU cannot run {}", tier.name())))
        };
        let summary = Summary { cases: 0, values: 0, digest: 0xcbf2_9ce4_8422_2325 };
        Ok(Checker { scalar: kernels(Tier::Scalar)?, tier: kernels(tier)?, summary })
    }

    pub(crate) fn summary(&self) -> Summary {
        self.summary
    }

    /// The bits that the scalar tier makes of `out`; they go into the digest.
    pub(crate) fn reference(
        &mut self,
        out: &[f32],
        f: impl FnOnce(Kernels, &mut [f32]),
    ) -> Result<Vec<u32>, Mismatch> {
        let bits = guarded(self.scalar, out, f).map_err(|error| Mismatch(error.into()))?;
        self.digest(&bits);
        Ok(bits)
    }

    pub(crate) fn digest(&mut self, bits: &[u32]) {
        for byte in bits.iter().flat_map(|bits| bits.to_le_bytes()) {
            self.summary.digest =
                (self.summary.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Compares what the tier makes of `out` with `expected`.
    pub(crate) fn compare(
        &mut self,
        name: impl Fn() -> String,
        expected: &[u32],
        out: &[f32],
        f: impl FnOnce(Kernels, &mut [f32]),
    ) -> Result<(), Mismatch> {
        let found = guarded(self.tier, out, f)
            .map_err(|error| Mismatch(format!("{} on {:?}: {error}", name(), self.tier.tier())))?;
        self.compare_bits(name, expected, &found)
    }

    pub(crate) fn compare_bits(
        &mut self,
        name: impl Fn() -> String,
        expected: &[u32],
        found: &[u32],
    ) -> Result<(), Mismatch> {
        self.summary.cases += 1;
        self.summary.values += found.len() as u64;
        if expected == found {
            return Ok(());
        }
        let tier = self.tier.tier().name();
        let at = expected.iter().zip(found).position(|(a, b)| a != b);
        let Some(at) = at else {
            let (n, m) = (expected.len(), found.len());
            return Err(Mismatch(format!("{}: {n} numbers on scalar, {m} on {tier}", name())));
        };
        let (a, b) = (expected[at], found[at]);
        Err(Mismatch(format!("{}, number {at}: {a:08x} on scalar, {b:08x} on {tier}", name())))
    }

    /// [`Checker::reference`], then [`Checker::compare`] with it.
    pub(crate) fn both(
        &mut self,
        name: impl Fn() -> String,
        out: &[f32],
        f: impl Fn(Kernels, &mut [f32]),
    ) -> Result<(), Mismatch> {
        let expected = self.reference(out, &f)?;
        self.compare(name, &expected, out, &f)
    }

    /// As [`Checker::both`] for a function that gives its numbers.
    pub(crate) fn both_bits(
        &mut self,
        name: impl Fn() -> String,
        f: impl Fn(Kernels) -> Vec<u32>,
    ) -> Result<(), Mismatch> {
        let expected = f(self.scalar);
        self.digest(&expected);
        let found = f(self.tier);
        self.compare_bits(name, &expected, &found)
    }
}

/// Runs `f` on a copy of `out` between guard zones.
fn guarded(
    kernels: Kernels,
    out: &[f32],
    f: impl FnOnce(Kernels, &mut [f32]),
) -> Result<Vec<u32>, &'static str> {
    let mut all = vec![GUARD; out.len() + 2 * GUARDS];
    all[GUARDS..][..out.len()].copy_from_slice(out);
    f(kernels, &mut all[GUARDS..][..out.len()]);
    let mut guards = all[..GUARDS].iter().chain(&all[GUARDS + out.len()..]);
    if guards.any(|guard| guard.to_bits() != GUARD.to_bits()) {
        return Err("written outside the output");
    }
    Ok(bits(&all[GUARDS..][..out.len()]))
}

/// Bits, so that a mismatch shows more than equal-looking decimals.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}
