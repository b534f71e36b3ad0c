//! Reference tensors from safetensors files, and guard zones.
#![allow(dead_code, reason = "each test binary uses a part")]

use safetensors::SafeTensors;
#[allow(unused_imports, reason = "each test binary uses a part")]
pub(crate) use slm_kernel_checks::{Kind, Random, columns, f16_offsets, weights};
use slm_quant::{Kernels, Tier};

/// A file under tests/data.
pub(crate) fn file(path: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn bytes(file: &[u8], name: &str) -> Vec<u8> {
    SafeTensors::deserialize(file).unwrap().tensor(name).unwrap().data().to_vec()
}

pub(crate) fn floats(file: &[u8], name: &str) -> Vec<f32> {
    bytes(file, name).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

pub(crate) fn shape(file: &[u8], name: &str) -> Vec<usize> {
    SafeTensors::deserialize(file).unwrap().tensor(name).unwrap().shape().to_vec()
}

/// Bits, so that a failure shows more than equal-looking decimals.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// What a guard zone holds: a NaN that no kernel produces.
pub(crate) const GUARD: f32 = f32::from_bits(0x7fa5_a5a5);
pub(crate) const GUARDS: usize = 16;

/// Runs `f` on a copy of `out` between guard zones and gives the bits of the result.
pub(crate) fn guarded(out: &[f32], f: impl FnOnce(&mut [f32])) -> Vec<u32> {
    let mut all = vec![GUARD; out.len() + 2 * GUARDS];
    all[GUARDS..][..out.len()].copy_from_slice(out);
    f(&mut all[GUARDS..][..out.len()]);
    for guard in all[..GUARDS].iter().chain(&all[GUARDS + out.len()..]) {
        assert_eq!(guard.to_bits(), GUARD.to_bits(), "written outside the output");
    }
    bits(&all[GUARDS..][..out.len()])
}

pub(crate) fn scalar() -> Kernels {
    Kernels::with_tier(Tier::Scalar).unwrap()
}

pub(crate) fn others() -> impl Iterator<Item = Kernels> {
    Tier::available().into_iter().map(|tier| Kernels::with_tier(tier).unwrap())
}
