//! Low rank: `y = y + s * B(A x)`, and `y = y + s * bias` where there is one.

use super::{AdapterKind, Kind, Pair, expect_rank, expect_scale, expect_shape, is_zero, len};
use crate::{Factor, OverlayError};
use slm_quant::{Kernels, UpMatrix};

/// What a LoRA adapter adds to one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    /// What the product of the factors is multiplied by.
    pub scale: f32,
    /// Down-projection, `[rank, in]`.
    pub a: Factor,
    /// Up-projection, `[out, rank]`, rows in the base's order.
    pub b: Factor,
    /// The up-projection's bias, `[1, out]`, multiplied by the scale too.
    pub bias: Option<Factor>,
}

/// A module of an adapter that is low rank and nothing else.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraModule {
    /// Canonical name of the base's tensor.
    pub target: String,
    /// What the product of the factors is multiplied by.
    pub scale: f32,
    /// Down-projection, `[rank, in]`.
    pub a: Factor,
    /// Up-projection, `[out, rank]`, rows in the base's order.
    pub b: Factor,
}

impl LoraModule {
    /// Rank of the delta.
    pub fn rank(&self) -> u32 {
        self.a.rows()
    }

    /// Rows (outputs) and columns (inputs) that the base's tensor must have.
    pub fn shape(&self) -> (u64, u64) {
        (u64::from(self.b.rows()), u64::from(self.a.cols()))
    }
}

impl Kind for Lora {
    const KIND: AdapterKind = AdapterKind::Lora;

    fn numbers(&self) -> Vec<u32> {
        vec![self.scale.to_bits()]
    }

    fn factors(&self) -> Vec<(&'static str, &Factor)> {
        let pair = [("lora_a", &self.a), ("lora_b", &self.b)];
        pair.into_iter().chain(self.bias.as_ref().map(|bias| ("lora_b.bias", bias))).collect()
    }

    fn from_parts(numbers: &[u32], indices: Vec<u64>, factors: Vec<Factor>) -> Option<Lora> {
        let (&[scale], []) = (numbers, &indices[..]) else { return None };
        let mut factors = factors.into_iter();
        let (a, b, bias) = (factors.next()?, factors.next()?, factors.next());
        let lora = Lora { scale: f32::from_bits(scale), a, b, bias };
        factors.next().is_none().then_some(lora)
    }

    fn check(&self, target: &str) -> Result<(), OverlayError> {
        expect_rank(target, "lora_b", &self.b, &self.a)?;
        if let Some(bias) = &self.bias {
            expect_shape(target, "lora_b.bias", bias, 1, self.b.rows().into())?;
        }
        expect_scale(target, self.scale, self.rank())
    }

    fn fits(&self, target: &str, rows: u64, cols: u64) -> Result<(), OverlayError> {
        expect_shape(target, "lora_a", &self.a, self.rank().into(), cols)?;
        expect_shape(target, "lora_b", &self.b, rows, self.rank().into())
    }

    fn is_nothing(&self) -> bool {
        let no_bias = self.bias.as_ref().is_none_or(is_zero);
        self.scale == 0.0 || no_bias && (is_zero(&self.a) || is_zero(&self.b))
    }

    fn macs(&self) -> u64 {
        len(&self.a) + len(&self.b)
    }

    fn rank(&self) -> u32 {
        self.a.rows()
    }

    fn scale(&self) -> f32 {
        self.scale
    }
}

/// One adapter's part in a product.
#[derive(Debug)]
pub(crate) struct LoraTerm {
    pub(crate) pair: Pair,
    /// `weight * scale`.
    pub(crate) s: f32,
    /// `s * bias`, for every output; empty where there is none.
    pub(crate) bias: Vec<f32>,
}

impl LoraTerm {
    /// `b` is the pair's up-projection, `z` is `[n_tokens, rank]` of just these tokens.
    pub(crate) fn up(
        &self,
        kernels: &Kernels,
        y: &mut [f32],
        b: &UpMatrix<'_>,
        first_row: usize,
        z: &[f32],
        n_tokens: usize,
    ) {
        kernels.low_rank_up(y, self.s, b, first_row, z, n_tokens);
        if !self.bias.is_empty() {
            let n_rows = y.len() / n_tokens;
            let bias = &self.bias[first_row..first_row + n_rows];
            y.chunks_exact_mut(n_rows).for_each(|y| kernels.add(y, bias));
        }
    }
}
