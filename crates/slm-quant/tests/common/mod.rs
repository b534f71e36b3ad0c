//! Reference tensors from safetensors files, and a small generator of numbers.
#![allow(dead_code, reason = "each test binary uses a part")]

use safetensors::SafeTensors;
use slm_format::Encoding;
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

/// How the weights and activations of a case are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Random,
    /// Every byte of codes and scales 0x80 (for Q8_0: -128), activations ± their greatest.
    Lowest,
    /// Every byte 0x7f.
    Highest,
    /// Every byte 0xff.
    Ones,
    Zero,
    /// Subnormal scales on both sides.
    Tiny,
}

pub(crate) const KINDS: [Kind; 6] =
    [Kind::Random, Kind::Lowest, Kind::Highest, Kind::Ones, Kind::Zero, Kind::Tiny];

/// Where the f16 scales of a block stand.
pub(crate) fn f16_offsets(encoding: Encoding) -> &'static [usize] {
    match encoding {
        Encoding::Q4_0 | Encoding::Q5_0 | Encoding::Q8_0 | Encoding::IQ4_NL | Encoding::IQ4_XS => {
            &[0]
        }
        Encoding::Q4_1 | Encoding::Q5_1 | Encoding::Q4_K | Encoding::Q5_K => &[0, 2],
        Encoding::Q2_K => &[80, 82],
        Encoding::Q3_K => &[108],
        Encoding::Q6_K => &[208],
        _ => &[],
    }
}

pub(crate) fn weights(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    kind: Kind,
    random: &mut Random,
) -> Vec<u8> {
    let len = encoding.row_bytes(cols).unwrap() * rows;
    let mut bytes: Vec<u8> = (0..len)
        .map(|_| match kind {
            Kind::Random | Kind::Tiny => random.next() as u8,
            Kind::Lowest => 0x80,
            Kind::Highest => 0x7f,
            Kind::Ones => 0xff,
            Kind::Zero => 0,
        })
        .collect();
    for block in bytes.chunks_exact_mut(encoding.block_bytes()) {
        let value = match kind {
            Kind::Random => random.unit(),
            Kind::Tiny => random.unit() * 1e-6,
            Kind::Zero => 0.0,
            _ => 65504.0,
        };
        match encoding {
            Encoding::F32 | Encoding::NF4 => {
                let value = if kind == Kind::Tiny { value * 1e-34 } else { value };
                block[..4].copy_from_slice(&value.to_le_bytes());
            }
            Encoding::F16 => block.copy_from_slice(&half(value)),
            Encoding::BF16 => {
                let value = if kind == Kind::Tiny { value * 1e-34 } else { value };
                block.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes());
            }
            Encoding::MXFP4 => {
                block[0] = match kind {
                    Kind::Random => 120 + (random.next() % 16) as u8,
                    Kind::Tiny => (random.next() % 4) as u8,
                    Kind::Zero => 0,
                    _ => 140,
                }
            }
            _ => {
                for &at in f16_offsets(encoding) {
                    block[at..at + 2].copy_from_slice(&half(value));
                }
            }
        }
    }
    bytes
}

fn half(value: f32) -> [u8; 2] {
    half::f16::from_f32(value).to_le_bytes()
}

pub(crate) fn activations(n: usize, kind: Kind, random: &mut Random) -> Vec<f32> {
    let scale = match kind {
        Kind::Tiny => 1e-37,
        Kind::Lowest | Kind::Highest | Kind::Ones => 3e4,
        _ => 1.0,
    };
    match kind {
        Kind::Random | Kind::Tiny => random.floats(n, scale),
        Kind::Zero => (0..n).map(|i| if i % 2 == 0 { 0.0 } else { -0.0 }).collect(),
        // Whole blocks of one sign, so that the sums reach their extremes.
        _ => (0..n).map(|i| if i / 32 % 2 == 0 { scale } else { -scale }).collect(),
    }
}

/// Column counts at, below and above the boundaries of blocks, groups of eight blocks and runs of 64.
pub(crate) fn columns(encoding: Encoding) -> Vec<usize> {
    match encoding.block_elements() {
        1 => vec![1, 15, 16, 17, 31, 255, 256, 257, 300],
        32 => vec![32, 64, 96, 128, 160, 192, 224, 256, 288, 576, 2048, 2080],
        64 => vec![64, 192, 256, 320],
        _ => vec![256, 512, 2048, 2304],
    }
}
