//! The element-wise product of two low-rank matrices. It is of no low rank itself, so each row is put together when it is needed, used for every token
//! of the pass, and forgotten.

use std::sync::Arc;

use super::{AdapterKind, Kind, expect_rank, expect_scale, expect_shape, is_zero};
use crate::{Factor, OverlayError};
use slm_quant::{Executor, Kernels};

/// What a LoHa adapter adds to one tensor: `scale * (w1_a w1_b) ⊙ (w2_a w2_b)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Loha {
    /// What the delta is multiplied by.
    pub scale: f32,
    /// `[out, rank]`, rows in the base's order.
    pub w1_a: Factor,
    /// `[rank, in]`.
    pub w1_b: Factor,
    /// `[out, rank]`, rows in the base's order.
    pub w2_a: Factor,
    /// `[rank, in]`.
    pub w2_b: Factor,
}

impl Kind for Loha {
    const KIND: AdapterKind = AdapterKind::Loha;

    fn numbers(&self) -> Vec<u32> {
        vec![self.scale.to_bits()]
    }

    fn factors(&self) -> Vec<(&'static str, &Factor)> {
        vec![
            ("hada_w1_a", &self.w1_a),
            ("hada_w1_b", &self.w1_b),
            ("hada_w2_a", &self.w2_a),
            ("hada_w2_b", &self.w2_b),
        ]
    }

    fn from_parts(numbers: &[u32], indices: Vec<u64>, factors: Vec<Factor>) -> Option<Loha> {
        let (&[scale], []) = (numbers, &indices[..]) else { return None };
        let [w1_a, w1_b, w2_a, w2_b] = <[Factor; 4]>::try_from(factors).ok()?;
        Some(Loha { scale: f32::from_bits(scale), w1_a, w1_b, w2_a, w2_b })
    }

    fn check(&self, target: &str) -> Result<(), OverlayError> {
        expect_rank(target, "hada_w1_a", &self.w1_a, &self.w1_b)?;
        expect_rank(target, "hada_w2_a", &self.w2_a, &self.w2_b)?;
        expect_scale(target, self.scale, self.rank())
    }

    fn fits(&self, target: &str, rows: u64, cols: u64) -> Result<(), OverlayError> {
        for (name, left) in [("hada_w1_a", &self.w1_a), ("hada_w2_a", &self.w2_a)] {
            expect_shape(target, name, left, rows, left.cols().into())?;
        }
        for (name, right) in [("hada_w1_b", &self.w1_b), ("hada_w2_b", &self.w2_b)] {
            expect_shape(target, name, right, right.rows().into(), cols)?;
        }
        Ok(())
    }

    fn is_nothing(&self) -> bool {
        self.scale == 0.0 || self.factors().iter().any(|(_, factor)| is_zero(factor))
    }

    /// Both low-rank rows, their product, and its product with the input, for every output.
    fn macs(&self) -> u64 {
        let (rows, cols) = (u64::from(self.w1_a.rows()), u64::from(self.w1_b.cols()));
        let ranks = u64::from(self.w1_b.rows()) + u64::from(self.w2_b.rows());
        rows * cols * (ranks + 2)
    }

    fn rank(&self) -> u32 {
        self.w1_b.rows()
    }

    fn scratch_values(&self) -> u64 {
        u64::from(self.w1_a.rows())
    }

    fn scale(&self) -> f32 {
        self.scale
    }
}

/// Longest rows that are put together on the stack: 32 KB for both.
const ON_STACK: usize = 4096;

/// The factors in f32.
#[derive(Debug)]
pub(crate) struct Materials {
    rows: usize,
    cols: usize,
    /// `[out, rank]` and `[rank, in]` of both products.
    products: [(Vec<f32>, Vec<f32>); 2],
}

impl Materials {
    pub(crate) fn new(loha: &Loha) -> Materials {
        let values = |factor: &Factor| factor.values().collect::<Vec<f32>>();
        Materials {
            rows: loha.w1_a.rows() as usize,
            cols: loha.w1_b.cols() as usize,
            products: [
                (values(&loha.w1_a), values(&loha.w1_b)),
                (values(&loha.w2_a), values(&loha.w2_b)),
            ],
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.products.iter().map(|(a, b)| 4 * (a.len() + b.len()) as u64).sum()
    }

    /// Row `row` of the delta before its scale: each low-rank row is a sum from +0.0 over the rank, ascending.
    fn row(&self, kernels: &Kernels, row: usize, out: &mut [f32], spare: &mut [f32]) {
        for (to, (a, b)) in [&mut *out, &mut *spare].into_iter().zip(&self.products) {
            let rank = a.len() / self.rows;
            to.fill(0.0);
            for (&a, b) in a[row * rank..][..rank].iter().zip(b.chunks_exact(self.cols)) {
                kernels.axpy(to, a, b);
            }
        }
        out.iter_mut().zip(spare).for_each(|(out, other)| *out *= *other);
    }
}

/// One adapter's part in a product.
#[derive(Debug)]
pub(crate) struct LohaTerm {
    pub(crate) materials: Arc<Materials>,
    /// `weight * scale`.
    pub(crate) s: f32,
}

impl LohaTerm {
    /// Products per token.
    pub(crate) fn width(&self) -> usize {
        self.materials.rows
    }

    /// `z` becomes `[out, n_tokens]`. Each piece of work has room for two rows, on its stack for rows of up to [`ON_STACK`] inputs: then nothing is
    /// allocated.
    pub(crate) fn down(
        &self,
        kernels: &Kernels,
        exec: &dyn Executor,
        z: &mut [f32],
        x: &[f32],
        n_tokens: usize,
    ) {
        const ROWS: usize = 32;
        let materials = &*self.materials;
        exec.for_each_chunk(z, ROWS * n_tokens, &|chunk, z| {
            let (mut few, mut many) = ([0.0; 2 * ON_STACK], Vec::new());
            let buffers = match few.get_mut(..2 * materials.cols) {
                Some(buffers) => buffers,
                None => {
                    many.resize(2 * materials.cols, 0.0);
                    &mut many[..]
                }
            };
            let (row, spare) = buffers.split_at_mut(materials.cols);
            for (at, z) in z.chunks_exact_mut(n_tokens).enumerate() {
                materials.row(kernels, chunk * ROWS + at, row, spare);
                for (z, x) in z.iter_mut().zip(x.chunks_exact(materials.cols)) {
                    *z = kernels.dot16(row, x);
                }
            }
        });
    }

    /// `z` is what [`LohaTerm::down`] made of all tokens; `first_token` is the first of these.
    pub(crate) fn up(
        &self,
        y: &mut [f32],
        first_row: usize,
        z: &[f32],
        first_token: usize,
        n_tokens: usize,
    ) {
        let n_rows = y.len() / n_tokens;
        let all_tokens = z.len() / self.width();
        for (t, y) in y.chunks_exact_mut(n_rows).enumerate() {
            for (o, y) in y.iter_mut().enumerate() {
                *y += self.s * z[(first_row + o) * all_tokens + first_token + t];
            }
        }
    }
}
