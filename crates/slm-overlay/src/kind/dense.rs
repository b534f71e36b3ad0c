//! A whole matrix: `y = y + s * D x`.

use std::sync::Arc;

use super::{AdapterKind, Kind, expect_scale, expect_shape, is_zero, len};
use crate::{Factor, OverlayError};
use slm_quant::{Executor, Kernels, QMatrix};

/// A matrix added to one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseDelta {
    /// What the matrix is multiplied by.
    pub scale: f32,
    /// `[out, in]`, rows in the base's order.
    pub delta: Factor,
}

impl Kind for DenseDelta {
    const KIND: AdapterKind = AdapterKind::Dense;

    fn numbers(&self) -> Vec<u32> {
        vec![self.scale.to_bits()]
    }

    fn factors(&self) -> Vec<(&'static str, &Factor)> {
        vec![("delta", &self.delta)]
    }

    fn from_parts(numbers: &[u32], indices: Vec<u64>, factors: Vec<Factor>) -> Option<DenseDelta> {
        let (&[scale], []) = (numbers, &indices[..]) else { return None };
        let [delta] = <[Factor; 1]>::try_from(factors).ok()?;
        Some(DenseDelta { scale: f32::from_bits(scale), delta })
    }

    fn check(&self, target: &str) -> Result<(), OverlayError> {
        expect_scale(target, self.scale, 0)
    }

    fn fits(&self, target: &str, rows: u64, cols: u64) -> Result<(), OverlayError> {
        expect_shape(target, "delta", &self.delta, rows, cols)
    }

    fn is_nothing(&self) -> bool {
        self.scale == 0.0 || is_zero(&self.delta)
    }

    fn macs(&self) -> u64 {
        len(&self.delta)
    }

    fn scratch_values(&self) -> u64 {
        u64::from(self.delta.rows())
    }

    fn scale(&self) -> f32 {
        self.scale
    }
}

/// One adapter's part in a product.
#[derive(Debug)]
pub(crate) struct DenseTerm {
    pub(crate) delta: Arc<Factor>,
    /// `weight * scale`.
    pub(crate) s: f32,
}

impl DenseTerm {
    /// Products per token.
    pub(crate) fn width(&self) -> usize {
        self.delta.rows() as usize
    }

    pub(crate) fn down(&self, kernels: &Kernels, exec: &dyn Executor, z: &mut [f32], x: &[f32]) {
        let (rows, cols) = (self.width(), self.delta.cols() as usize);
        let delta = QMatrix::new(self.delta.encoding(), rows, cols, self.delta.data())
            .expect("BUG: a factor of the wrong length");
        kernels.matmul(exec, z, &delta, x, None);
    }

    /// `z` is `[n_tokens, out]` of just these tokens.
    pub(crate) fn up(
        &self,
        kernels: &Kernels,
        y: &mut [f32],
        first_row: usize,
        z: &[f32],
        n_tokens: usize,
    ) {
        add_rows(kernels, y, self.s, first_row, z, self.width(), n_tokens);
    }
}

/// `y = y + s * z` for outputs `first_row ..` of `z`, `[n_tokens, width]`.
pub(super) fn add_rows(
    kernels: &Kernels,
    y: &mut [f32],
    s: f32,
    first_row: usize,
    z: &[f32],
    width: usize,
    n_tokens: usize,
) {
    let n_rows = y.len() / n_tokens;
    for (y, z) in y.chunks_exact_mut(n_rows).zip(z.chunks_exact(width)) {
        kernels.axpy(y, s, &z[first_row..first_row + n_rows]);
    }
}
