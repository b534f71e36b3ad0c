//! The two matrices of a low-rank module in the form the kernels read.

use std::sync::Arc;

use slm_quant::QMatrix;

use crate::BoundAdapter;

/// A module's down-projection and its transposed up-projection.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    pub(crate) bound: Arc<BoundAdapter>,
    /// Index of the module.
    pub(crate) module: usize,
}

impl Pair {
    /// A, `[rank, in]`.
    pub(crate) fn a(&self) -> QMatrix<'_> {
        self.bound.a(self.module)
    }

    /// B transposed, `[rank, out]`.
    pub(crate) fn b_transposed(&self) -> QMatrix<'_> {
        self.bound.b_transposed(self.module)
    }

    /// Row `row` of B, `[rank]`.
    pub(crate) fn b_row(&self, row: usize, out: &mut [f32]) {
        self.bound.b_row(self.module, row, out);
    }
}
