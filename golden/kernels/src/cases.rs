//! Weights and activations: random ones, and those at which sums and scales reach their extremes.

use slm_format::Encoding;

use crate::Random;

/// How the weights and activations of a case are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any codes, scales and activations in -1 .. 1.
    Random,
    /// Every byte of codes and scales 0x80 (for Q8_0: -128), activations ± their greatest.
    Lowest,
    /// Every byte 0x7f.
    Highest,
    /// Every byte 0xff.
    Ones,
    /// Nothing but zeros of either sign.
    Zero,
    /// Subnormal scales on both sides.
    Tiny,
}

/// All of them.
pub const KINDS: [Kind; 6] =
    [Kind::Random, Kind::Lowest, Kind::Highest, Kind::Ones, Kind::Zero, Kind::Tiny];

/// Where the f16 scales of a block stand.
pub fn f16_offsets(encoding: Encoding) -> &'static [usize] {
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

/// The bytes of a matrix in row-major order; every scale is finite.
///
/// # Panics
/// When a row is not whole blocks.
pub fn weights(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    kind: Kind,
    random: &mut Random,
) -> Vec<u8> {
    let len = encoding.row_bytes(cols).expect("whole blocks") * rows;
    let mut bytes: Vec<u8> = (0..len)
        .map(|_| match kind {
            Kind::Random | Kind::Tiny => random.bits() as u8,
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
                    Kind::Random => 120 + (random.bits() % 16) as u8,
                    Kind::Tiny => (random.bits() % 4) as u8,
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

/// `n` activations.
pub fn activations(n: usize, kind: Kind, random: &mut Random) -> Vec<f32> {
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
pub fn columns(encoding: Encoding) -> Vec<usize> {
    match encoding.block_elements() {
        1 => vec![1, 15, 16, 17, 31, 255, 256, 257, 300],
        32 => vec![32, 64, 96, 128, 160, 192, 224, 256, 288, 576, 2048, 2080],
        64 => vec![64, 192, 256, 320],
        _ => vec![256, 512, 2048, 2304],
    }
}
