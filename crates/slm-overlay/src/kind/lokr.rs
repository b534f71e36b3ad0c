//! A Kronecker product: `scale * kron(w1, w2)`, each of the two whole or of low rank. Its product with a row is two small products.

use std::sync::Arc;

use super::{AdapterKind, Kind, expect_rank, expect_scale, is_zero};
use crate::{Factor, OverlayError};
use slm_quant::Kernels;

/// One side of the product.
#[derive(Debug, Clone, PartialEq)]
pub enum LokrFactor {
    /// The matrix.
    Full(Factor),
    /// Two factors whose product is the matrix.
    Low(Factor, Factor),
}

/// In which order the product's rows stand. Rows of a Kronecker product cannot be put in another order within its factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// In the base's.
    Base,
    /// In the framework's, whose row `h * d + i * d/2 + j` is row `h * d + 2j + i` of the base, `d` being the width of a head.
    Heads {
        /// Width of a head.
        head_dim: u32,
    },
}

/// What a LoKr adapter adds to one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Lokr {
    /// What the delta is multiplied by.
    pub scale: f32,
    /// The left matrix.
    pub w1: LokrFactor,
    /// The right matrix.
    pub w2: LokrFactor,
    /// The order of rows.
    pub rows: RowOrder,
}

impl Lokr {
    /// Outputs.
    pub(crate) fn rows(&self) -> u32 {
        // Bounded by the base's rows wherever it was resolved.
        u32::try_from(self.w1.shape().0 * self.w2.shape().0).unwrap_or(u32::MAX)
    }

    /// Rows and columns of the left and of the right matrix; each fits in 32 bits.
    pub(crate) fn shapes(&self) -> ((u64, u64), (u64, u64)) {
        (self.w1.shape(), self.w2.shape())
    }

    /// The ranks of the left and of the right matrix, where they are not whole.
    pub(crate) fn low_rank(&self) -> (Option<u32>, Option<u32>) {
        let rank = |w: &LokrFactor| match w {
            LokrFactor::Full(_) => None,
            LokrFactor::Low(_, b) => Some(b.rows()),
        };
        (rank(&self.w1), rank(&self.w2))
    }
}

impl LokrFactor {
    fn shape(&self) -> (u64, u64) {
        match self {
            LokrFactor::Full(w) => (w.rows().into(), w.cols().into()),
            LokrFactor::Low(a, b) => (a.rows().into(), b.cols().into()),
        }
    }

    fn factors(&self, names: [&'static str; 3]) -> Vec<(&'static str, &Factor)> {
        match self {
            LokrFactor::Full(w) => vec![(names[0], w)],
            LokrFactor::Low(a, b) => vec![(names[1], a), (names[2], b)],
        }
    }

    fn is_zero(&self) -> bool {
        match self {
            LokrFactor::Full(w) => is_zero(w),
            LokrFactor::Low(a, b) => is_zero(a) || is_zero(b),
        }
    }

    /// The matrix in f32; a product is a sum from +0.0 over the rank, ascending.
    fn values(&self) -> Vec<f32> {
        let (a, b) = match self {
            LokrFactor::Full(w) => return w.values().collect(),
            LokrFactor::Low(a, b) => (a, b),
        };
        let (rank, cols) = (b.rows() as usize, b.cols() as usize);
        let (a, b): (Vec<f32>, Vec<f32>) = (a.values().collect(), b.values().collect());
        let mut out = vec![0.0; a.len() / rank * cols];
        for (out, a) in out.chunks_exact_mut(cols).zip(a.chunks_exact(rank)) {
            for (a, b) in a.iter().zip(b.chunks_exact(cols)) {
                out.iter_mut().zip(b).for_each(|(out, b)| *out += a * b);
            }
        }
        out
    }
}

impl Kind for Lokr {
    const KIND: AdapterKind = AdapterKind::Lokr;

    /// Scale; which sides are of low rank; the head's width where rows stand in the framework's order.
    fn numbers(&self) -> Vec<u32> {
        let low = |w: &LokrFactor| u32::from(matches!(w, LokrFactor::Low(..)));
        let head_dim = match self.rows {
            RowOrder::Base => 0,
            RowOrder::Heads { head_dim } => head_dim,
        };
        vec![self.scale.to_bits(), low(&self.w1), low(&self.w2), head_dim]
    }

    fn factors(&self) -> Vec<(&'static str, &Factor)> {
        let mut factors = self.w1.factors(["lokr_w1", "lokr_w1_a", "lokr_w1_b"]);
        factors.extend(self.w2.factors(["lokr_w2", "lokr_w2_a", "lokr_w2_b"]));
        factors
    }

    fn from_parts(numbers: &[u32], indices: Vec<u64>, factors: Vec<Factor>) -> Option<Lokr> {
        let (&[scale, low1, low2, head_dim], []) = (numbers, &indices[..]) else { return None };
        let mut factors = factors.into_iter();
        let mut side = |low: u32| match low {
            0 => Some(LokrFactor::Full(factors.next()?)),
            1 => Some(LokrFactor::Low(factors.next()?, factors.next()?)),
            _ => None,
        };
        let (w1, w2) = (side(low1)?, side(low2)?);
        let rows = if head_dim == 0 { RowOrder::Base } else { RowOrder::Heads { head_dim } };
        let lokr = Lokr { scale: f32::from_bits(scale), w1, w2, rows };
        factors.next().is_none().then_some(lokr)
    }

    fn check(&self, target: &str) -> Result<(), OverlayError> {
        for (name, w) in [("lokr_w1_a", &self.w1), ("lokr_w2_a", &self.w2)] {
            if let LokrFactor::Low(a, b) = w {
                expect_rank(target, name, a, b)?;
            }
        }
        if let RowOrder::Heads { head_dim } = self.rows {
            let rows = self.w1.shape().0 * self.w2.shape().0;
            if head_dim % 2 != 0 || !rows.is_multiple_of(u64::from(head_dim)) {
                let (tensor, found) = (target.into(), vec![rows, u64::from(head_dim)]);
                return Err(OverlayError::Shape { tensor, found, expected: Vec::new() });
            }
        }
        expect_scale(target, self.scale, self.rank())
    }

    fn fits(&self, target: &str, rows: u64, cols: u64) -> Result<(), OverlayError> {
        let ((o1, i1), (o2, i2)) = (self.w1.shape(), self.w2.shape());
        let found = vec![o1.saturating_mul(o2), i1.saturating_mul(i2)];
        match found == [rows, cols] {
            true => Ok(()),
            false => {
                let (tensor, expected) = (format!("{target}.lokr"), vec![rows, cols]);
                Err(OverlayError::Shape { tensor, found, expected })
            }
        }
    }

    fn is_nothing(&self) -> bool {
        self.scale == 0.0 || self.w1.is_zero() || self.w2.is_zero()
    }

    fn macs(&self) -> u64 {
        let ((o1, i1), (o2, i2)) = (self.w1.shape(), self.w2.shape());
        i1 * o2 * (i2 + o1)
    }

    /// The rank of the side that has one; of both whole, 0.
    fn rank(&self) -> u32 {
        let rank = |w: &LokrFactor| match w {
            LokrFactor::Full(_) => 0,
            LokrFactor::Low(_, b) => b.rows(),
        };
        rank(&self.w1).max(rank(&self.w2))
    }

    fn scratch_values(&self) -> u64 {
        let ((o1, i1), (o2, _)) = (self.w1.shape(), self.w2.shape());
        (o1 + i1).saturating_mul(o2)
    }

    fn scale(&self) -> f32 {
        self.scale
    }
}

/// Both matrices in f32.
#[derive(Debug)]
pub(crate) struct Kron {
    /// `[o1, i1]` and `[o2, i2]`, with their columns.
    w1: (Vec<f32>, usize),
    w2: (Vec<f32>, usize),
    rows: RowOrder,
}

impl Kron {
    pub(crate) fn new(lokr: &Lokr) -> Kron {
        // Both are columns of a factor, which fit in u32.
        let cols = |w: &LokrFactor| w.shape().1 as usize;
        Kron {
            w1: (lokr.w1.values(), cols(&lokr.w1)),
            w2: (lokr.w2.values(), cols(&lokr.w2)),
            rows: lokr.rows,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        4 * (self.w1.0.len() + self.w2.0.len()) as u64
    }

    /// The product's row that stands at row `row` of the base.
    fn source(&self, row: usize) -> usize {
        match self.rows {
            RowOrder::Base => row,
            RowOrder::Heads { head_dim } => {
                let d = head_dim as usize;
                let (head, within) = (row / d, row % d);
                head * d + within % 2 * (d / 2) + within / 2
            }
        }
    }
}

/// One adapter's part in a product.
#[derive(Debug)]
pub(crate) struct LokrTerm {
    pub(crate) kron: Arc<Kron>,
    /// `weight * scale`.
    pub(crate) s: f32,
}

impl LokrTerm {
    /// Values per token: the products, and behind them `t`, so that no pass allocates.
    pub(crate) fn width(&self) -> usize {
        let Kron { w1: (_, i1), w2: (w2, i2), .. } = &*self.kron;
        self.products() + i1 * (w2.len() / i2)
    }

    /// Products per token.
    fn products(&self) -> usize {
        let Kron { w1, w2, .. } = &*self.kron;
        w1.0.len() / w1.1 * (w2.0.len() / w2.1)
    }

    /// `t[i1, o2] = dot16(w2[o2], x[i1])`, then `u[o1, o2] = Σ w1[o1, i1] * t[i1, o2]` from +0.0, `i1` ascending. Allocates nothing.
    pub(crate) fn down(&self, kernels: &Kernels, z: &mut [f32], x: &[f32], n_tokens: usize) {
        let Kron { w1: (w1, i1), w2: (w2, i2), .. } = &*self.kron;
        let o2 = w2.len() / i2;
        let products = self.products();
        for (z, x) in z.chunks_exact_mut(self.width()).zip(x.chunks_exact(x.len() / n_tokens)) {
            let (z, t) = z.split_at_mut(products);
            for (t, x) in t.chunks_exact_mut(o2).zip(x.chunks_exact(*i2)) {
                for (t, w2) in t.iter_mut().zip(w2.chunks_exact(*i2)) {
                    *t = kernels.dot16(w2, x);
                }
            }
            z.fill(0.0);
            for (z, w1) in z.chunks_exact_mut(o2).zip(w1.chunks_exact(*i1)) {
                for (&w1, t) in w1.iter().zip(t.chunks_exact(o2)) {
                    kernels.axpy(z, w1, t);
                }
            }
        }
    }

    /// `z` is `[n_tokens, out]` of just these tokens.
    pub(crate) fn up(&self, y: &mut [f32], first_row: usize, z: &[f32], n_tokens: usize) {
        let n_rows = y.len() / n_tokens;
        for (y, z) in y.chunks_exact_mut(n_rows).zip(z.chunks_exact(self.width())) {
            for (o, y) in y.iter_mut().enumerate() {
                *y += self.s * z[self.kron.source(first_row + o)];
            }
        }
    }
}
