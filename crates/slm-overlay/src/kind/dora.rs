//! Weight-decomposed low rank: `y_o = g_o * (y_o + s * (B A x)_o)`, `g_o = magnitude_o / |W_o + s (BA)_o|` over the dequantized base. What stands
//! below in the stack counts as the base's output, so the order of two of them matters.

use super::{AdapterKind, Kind, Pair, expect_rank, expect_scale, expect_shape, len};
use crate::{BaseWeights, Factor, OverlayError};
use slm_quant::Kernels;

/// What a DoRA adapter does to one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Dora {
    /// What the product of the factors is multiplied by.
    pub scale: f32,
    /// Down-projection, `[rank, in]`.
    pub a: Factor,
    /// Up-projection, `[out, rank]`, rows in the base's order.
    pub b: Factor,
    /// Length of each row, `[1, out]`, in the base's order.
    pub magnitude: Factor,
}

impl Kind for Dora {
    const KIND: AdapterKind = AdapterKind::Dora;

    fn numbers(&self) -> Vec<u32> {
        vec![self.scale.to_bits()]
    }

    fn factors(&self) -> Vec<(&'static str, &Factor)> {
        let magnitude = ("lora_magnitude_vector", &self.magnitude);
        vec![("lora_a", &self.a), ("lora_b", &self.b), magnitude]
    }

    fn from_parts(numbers: &[u32], indices: Vec<u64>, factors: Vec<Factor>) -> Option<Dora> {
        let (&[scale], []) = (numbers, &indices[..]) else { return None };
        let [a, b, magnitude] = <[Factor; 3]>::try_from(factors).ok()?;
        Some(Dora { scale: f32::from_bits(scale), a, b, magnitude })
    }

    fn check(&self, target: &str) -> Result<(), OverlayError> {
        expect_rank(target, "lora_b", &self.b, &self.a)?;
        let rows = self.b.rows().into();
        expect_shape(target, "lora_magnitude_vector", &self.magnitude, 1, rows)?;
        expect_scale(target, self.scale, self.rank())
    }

    fn fits(&self, target: &str, rows: u64, cols: u64) -> Result<(), OverlayError> {
        expect_shape(target, "lora_a", &self.a, self.rank().into(), cols)?;
        expect_shape(target, "lora_b", &self.b, rows, self.rank().into())
    }

    /// Whether it does, only the base's norms could tell.
    fn is_nothing(&self) -> bool {
        false
    }

    fn macs(&self) -> u64 {
        len(&self.a) + len(&self.b) + len(&self.magnitude)
    }

    fn rank(&self) -> u32 {
        self.a.rows()
    }

    fn scale(&self) -> f32 {
        self.scale
    }
}

/// For one row: the sums over `i` of `W_i * W_i`, `W_i * D_i` and `D_i * D_i`, `D = B A`. The norm at any scale follows from them, so the base
/// is read once per base and adapter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RowSums([f64; 3]);

impl RowSums {
    /// `|W + s D|`, never below zero for rounding.
    fn norm(self, s: f32) -> f32 {
        let ([ww, wd, dd], s) = (self.0, f64::from(s));
        (ww + 2.0 * s * wd + s * s * dd).max(0.0).sqrt() as f32
    }
}

/// The sums of every row, in f64, `i` ascending; `D_i` is a sum over the rank, ascending.
pub(crate) fn row_sums(dora: &Dora, target: &str, base: &dyn BaseWeights) -> Vec<RowSums> {
    let (rank, cols) = (dora.a.rows() as usize, dora.a.cols() as usize);
    let a: Vec<f64> = dora.a.values().map(f64::from).collect();
    let b: Vec<f64> = dora.b.values().map(f64::from).collect();
    let (mut w, mut d) = (vec![0f32; cols], vec![0f64; cols]);
    let row = |(row, b): (usize, &[f64])| {
        base.row(target, row, &mut w);
        d.fill(0.0);
        for (b, a) in b.iter().zip(a.chunks_exact(cols)) {
            d.iter_mut().zip(a).for_each(|(d, a)| *d += b * a);
        }
        let mut sums = [0f64; 3];
        for (&w, &d) in w.iter().zip(&d) {
            let w = f64::from(w);
            sums[0] += w * w;
            sums[1] += w * d;
            sums[2] += d * d;
        }
        RowSums(sums)
    };
    b.chunks_exact(rank).enumerate().map(row).collect()
}

/// One adapter's part in a product.
#[derive(Debug)]
pub(crate) struct DoraTerm {
    pub(crate) pair: Pair,
    /// `weight * scale`.
    pub(crate) s: f32,
    /// `magnitude / norm`, for every output.
    pub(crate) gain: Vec<f32>,
}

impl DoraTerm {
    /// # Errors
    /// The first row whose gain is not finite.
    pub(crate) fn gains(dora: &Dora, sums: &[RowSums], s: f32) -> Result<Vec<f32>, (usize, f32)> {
        let gains: Vec<f32> =
            dora.magnitude.values().zip(sums).map(|(m, sums)| m / sums.norm(s)).collect();
        match gains.iter().position(|gain| !gain.is_finite()) {
            None => Ok(gains),
            Some(row) => Err((row, gains[row])),
        }
    }

    /// `z` is `[n_tokens, rank]` of just these tokens.
    pub(crate) fn up(
        &self,
        kernels: &Kernels,
        y: &mut [f32],
        first_row: usize,
        z: &[f32],
        n_tokens: usize,
    ) {
        self.pair.up(kernels, y, self.s, first_row, z, n_tokens);
        let n_rows = y.len() / n_tokens;
        let gain = &self.gain[first_row..first_row + n_rows];
        for y in y.chunks_exact_mut(n_rows) {
            y.iter_mut().zip(gain).for_each(|(y, gain)| *y *= gain);
        }
    }
}
