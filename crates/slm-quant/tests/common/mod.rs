//! Reference tensors from safetensors files, and a small generator of numbers.
#![allow(dead_code, reason = "each test binary uses a part")]

use safetensors::SafeTensors;

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

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1 .. 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.unit() * scale).collect()
    }
}
