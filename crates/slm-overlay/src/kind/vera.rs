//! Fixed projections that all modules share, scaled by trained vectors: `y_o = y_o + weight * b_o * Σ_r B[o, r] * (d_r * (A x)_r)`.

use super::{AdapterKind, Kind, Pair, expect_rank, expect_shape, is_zero, len};
use crate::{Factor, OverlayError};
use slm_quant::{Executor, Kernels};

/// What a VeRA adapter adds to one tensor. Modules of equal shape share `a` and `b`.
#[derive(Debug, Clone, PartialEq)]
pub struct Vera {
    /// Scales of the outputs, `[1, out]`, in the base's order.
    pub lambda_b: Factor,
    /// Scales of the ranks, `[1, rank]`.
    pub lambda_d: Factor,
    /// The part of the shared down-projection that this module reads, `[rank, in]`.
    pub a: Factor,
    /// The part of the shared up-projection, `[out, rank]`, rows in the base's order.
    pub b: Factor,
}

impl Kind for Vera {
    const KIND: AdapterKind = AdapterKind::Vera;

    fn numbers(&self) -> Vec<u32> {
        Vec::new()
    }

    fn factors(&self) -> Vec<(&'static str, &Factor)> {
        vec![
            ("vera_lambda_b", &self.lambda_b),
            ("vera_lambda_d", &self.lambda_d),
            ("vera_a", &self.a),
            ("vera_b", &self.b),
        ]
    }

    fn from_parts(numbers: &[u32], indices: Vec<u64>, factors: Vec<Factor>) -> Option<Vera> {
        let ([], []) = (numbers, &indices[..]) else { return None };
        let [lambda_b, lambda_d, a, b] = <[Factor; 4]>::try_from(factors).ok()?;
        Some(Vera { lambda_b, lambda_d, a, b })
    }

    fn check(&self, target: &str) -> Result<(), OverlayError> {
        expect_rank(target, "vera_b", &self.b, &self.a)?;
        expect_shape(target, "vera_lambda_b", &self.lambda_b, 1, self.b.rows().into())?;
        expect_shape(target, "vera_lambda_d", &self.lambda_d, 1, self.a.rows().into())
    }

    fn fits(&self, target: &str, rows: u64, cols: u64) -> Result<(), OverlayError> {
        expect_shape(target, "vera_a", &self.a, self.a.rows().into(), cols)?;
        expect_shape(target, "vera_b", &self.b, rows, self.b.cols().into())
    }

    fn is_nothing(&self) -> bool {
        self.factors().iter().any(|(_, factor)| is_zero(factor))
    }

    fn macs(&self) -> u64 {
        self.factors().iter().map(|(_, factor)| len(factor)).sum()
    }

    fn rank(&self) -> u32 {
        self.a.rows()
    }
}

/// One adapter's part in a product.
#[derive(Debug)]
pub(crate) struct VeraTerm {
    pub(crate) pair: Pair,
    /// The adapter's weight.
    pub(crate) s: f32,
    /// Scales of the ranks.
    pub(crate) d: Vec<f32>,
    /// Scales of the outputs.
    pub(crate) b: Vec<f32>,
}

impl VeraTerm {
    pub(crate) fn down(&self, kernels: &Kernels, exec: &dyn Executor, z: &mut [f32], x: &[f32]) {
        self.pair.down(kernels, exec, z, x);
        for z in z.chunks_exact_mut(self.d.len()) {
            z.iter_mut().zip(&self.d).for_each(|(z, d)| *z *= d);
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
        const ROWS: usize = 64;
        let n_rows = y.len() / n_tokens;
        for (y, z) in y.chunks_exact_mut(n_rows).zip(z.chunks_exact(self.d.len())) {
            for (chunk, y) in y.chunks_mut(ROWS).enumerate() {
                let first = first_row + chunk * ROWS;
                let mut u = [0.0; ROWS];
                let u = &mut u[..y.len()];
                // From +0.0, and times one: the sum itself.
                self.pair.up(kernels, u, 1.0, first, z, 1);
                for ((y, &u), b) in y.iter_mut().zip(&*u).zip(&self.b[first..]) {
                    *y += self.s * (b * u);
                }
            }
        }
    }
}
