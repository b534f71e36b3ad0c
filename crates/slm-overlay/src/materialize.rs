//! What a stack makes of a tensor's weights, row by row: for whoever gives up the overlay and writes a new base.
//!
//! Nothing that runs a model calls this. A row is worked out in f64, in stack order, from the base's row: each adapter's delta is summed from
//! +0.0 over its rank, ascending, times its scale (`weight * scale` in f32, as at run time), and added; DoRA's gains and IA³'s factors, in f32
//! as at run time, then multiply what stands so far. The caller rounds once, at the end.

use slm_format::{Coded, ErrorClass};
use slm_manifest::AdapterId;

use crate::bind::Form;
use crate::kind::{Csr, DoraTerm, ia3_factors};
use crate::{
    BoundAdapter, Delta, Factor, Loha, Lokr, LokrFactor, OverlayError, RowOrder, Side, Stack, Vera,
};
use std::sync::Arc;

/// A part of a stack that is no change of weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MaterializeError {
    /// An adapter that acts from its invocation onward: weights act on every position.
    #[error("{adapter} acts from its invocation onward, and weights act on every position")]
    Waits {
        /// The adapter.
        adapter: AdapterId,
    },
    /// A bias on a tensor that has none.
    #[error("{adapter} adds a bias to {tensor}, and the base's layers have none")]
    Bias {
        /// The adapter.
        adapter: AdapterId,
        /// The tensor.
        tensor: String,
    },
    /// What making the stack would have refused. In a box, so that errors that hold this one stay small.
    #[error(transparent)]
    Overlay(Box<OverlayError>),
}

impl From<OverlayError> for MaterializeError {
    fn from(error: OverlayError) -> MaterializeError {
        MaterializeError::Overlay(Box::new(error))
    }
}

impl Coded for MaterializeError {
    fn code(&self) -> &'static str {
        match self {
            MaterializeError::Waits { .. } => "bake-waits",
            MaterializeError::Bias { .. } => "bake-bias",
            MaterializeError::Overlay(error) => error.code(),
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            MaterializeError::Overlay(error) => error.class(),
            _ => ErrorClass::Refused,
        }
    }
}

/// What a stack makes of the rows of one tensor.
#[derive(Debug, Clone, Default)]
pub struct Materialized {
    steps: Vec<Step>,
}

/// One adapter's part.
#[derive(Debug, Clone)]
enum Step {
    /// `w = w + s * (B A)`, then `w = gain * w` where there are gains.
    Low {
        s: f64,
        a: Vec<f64>,
        b: Factor,
        gain: Option<Vec<f32>>,
    },
    /// Each input's factor.
    Columns(Vec<f32>),
    /// Each output's factor.
    Rows(Vec<f32>),
    Sparse {
        s: f64,
        csr: Arc<Csr>,
    },
    Dense {
        s: f64,
        delta: Factor,
    },
    /// `w = w + s * (w1_a w1_b) ⊙ (w2_a w2_b)`.
    Loha {
        s: f64,
        products: [(Factor, Vec<f64>); 2],
    },
    Lokr {
        s: f64,
        w1: Matrix,
        w2: Matrix,
        rows: RowOrder,
    },
    /// `w = w + s * b_o * Σ_r B[o, r] * (d_r * A[r])`.
    Vera {
        s: f64,
        b: Factor,
        scaled_a: Vec<f64>,
        lambda_b: Vec<f32>,
    },
}

#[derive(Debug, Clone)]
struct Matrix {
    values: Vec<f64>,
    rows: usize,
    cols: usize,
}

impl Stack {
    /// What the stack makes of `tensor` (canonical name; of a tied base, the embedding table and the head are two). Adapters of weight zero are
    /// left out.
    ///
    /// # Errors
    /// [`MaterializeError`] for what is no change of weights: an adapter that waits for its invocation, a bias that is not zero.
    pub fn materialize(&self, tensor: &str) -> Result<Materialized, MaterializeError> {
        let mut steps = Vec::new();
        for (bound, weight) in self.entries().iter().filter(|(_, weight)| *weight != 0.0) {
            if !bound.adapter().invocation().is_empty() {
                return Err(MaterializeError::Waits { adapter: bound.id() });
            }
            if let Some(index) = bound.position(tensor) {
                steps.push(step(bound, index, *weight)?);
            }
        }
        Ok(Materialized { steps })
    }
}

impl Materialized {
    /// Whether the stack leaves the tensor as it is.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Turns the base's row `row`, in `w`, into the stack's. Rows are independent: in whatever order and on whatever thread, the same bits.
    ///
    /// # Panics
    /// When the tensor has no such row, or `w` another length.
    pub fn row(&self, row: usize, w: &mut [f64]) {
        for step in &self.steps {
            step.row(row, w);
        }
    }
}

impl Step {
    fn row(&self, row: usize, w: &mut [f64]) {
        match self {
            Step::Low { s, a, b, gain } => {
                add(w, *s, &product(&factor_row(b, row), a, w.len()));
                if let Some(gain) = gain {
                    let gain = f64::from(gain[row]);
                    w.iter_mut().for_each(|w| *w *= gain);
                }
            }
            Step::Columns(factors) => {
                w.iter_mut().zip(factors).for_each(|(w, factor)| *w *= f64::from(*factor));
            }
            Step::Rows(factors) => {
                let factor = f64::from(factors[row]);
                w.iter_mut().for_each(|w| *w *= factor);
            }
            Step::Sparse { s, csr } => {
                let mut delta = vec![0.0f32; w.len()];
                csr.fill(row, &mut delta);
                add_f32(w, *s, &delta);
            }
            Step::Dense { s, delta } => add_f32(w, *s, &factor_row(delta, row)),
            Step::Loha { s, products } => {
                let [mut delta, other] =
                    products.each_ref().map(|(a, b)| product(&factor_row(a, row), b, w.len()));
                delta.iter_mut().zip(other).for_each(|(delta, other)| *delta *= other);
                add(w, *s, &delta);
            }
            Step::Lokr { s, w1, w2, rows } => {
                let row = match *rows {
                    RowOrder::Base => row,
                    RowOrder::Heads { head_dim } => {
                        let d = head_dim as usize;
                        let (head, within) = (row / d, row % d);
                        head * d + within % 2 * (d / 2) + within / 2
                    }
                };
                let (left, right) = (w1.row(row / w2.rows), w2.row(row % w2.rows));
                for (w, left) in w.chunks_exact_mut(w2.cols).zip(left) {
                    w.iter_mut().zip(right).for_each(|(w, right)| *w += s * (left * right));
                }
            }
            Step::Vera { s, b, scaled_a, lambda_b } => {
                let delta = product(&factor_row(b, row), scaled_a, w.len());
                add(w, s * f64::from(lambda_b[row]), &delta);
            }
        }
    }
}

impl Matrix {
    fn of(factor: &LokrFactor) -> Matrix {
        match factor {
            LokrFactor::Full(w) => {
                let (rows, cols) = (w.rows() as usize, w.cols() as usize);
                Matrix { values: wide(w), rows, cols }
            }
            LokrFactor::Low(a, b) => {
                let (rows, cols) = (a.rows() as usize, b.cols() as usize);
                let right = wide(b);
                let row = |row| product(&factor_row(a, row), &right, cols);
                Matrix { values: (0..rows).flat_map(row).collect(), rows, cols }
            }
        }
    }

    fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.cols..][..self.cols]
    }
}

fn step(bound: &Arc<BoundAdapter>, index: usize, weight: f32) -> Result<Step, MaterializeError> {
    let module = bound.module(index);
    // As at run time: in f32.
    let scale = weight * module.scale();
    let s = f64::from(scale);
    Ok(match (&module.delta, bound.form(index)) {
        (Delta::Lora(lora), _) => {
            if lora.bias.iter().flat_map(|bias| bias.values()).any(|bias| scale * bias != 0.0) {
                let (adapter, tensor) = (bound.id(), module.target.clone());
                return Err(MaterializeError::Bias { adapter, tensor });
            }
            Step::Low { s, a: wide(&lora.a), b: lora.b.clone(), gain: None }
        }
        (Delta::Dora(dora), Form::Dora(sums)) => {
            let gain = DoraTerm::gains(dora, sums, scale).map_err(|(row, gain)| {
                let (tensor, row) = (module.target.clone(), row as u64);
                OverlayError::Gain { tensor, row, gain }
            })?;
            Step::Low { s, a: wide(&dora.a), b: dora.b.clone(), gain: Some(gain) }
        }
        (Delta::Ia3(ia3), _) => {
            let factors = ia3_factors(&ia3.l, weight);
            match ia3.side {
                Side::Input => Step::Columns(factors),
                Side::Output => Step::Rows(factors),
            }
        }
        (Delta::Vera(Vera { lambda_b, lambda_d, a, b }), _) => {
            let cols = a.cols() as usize;
            let mut scaled_a = wide(a);
            for (a, d) in scaled_a.chunks_exact_mut(cols).zip(lambda_d.values()) {
                a.iter_mut().for_each(|a| *a *= f64::from(d));
            }
            Step::Vera { s, b: b.clone(), scaled_a, lambda_b: lambda_b.values().collect() }
        }
        (Delta::Loha(Loha { w1_a, w1_b, w2_a, w2_b, .. }), _) => {
            let products = [(w1_a.clone(), wide(w1_b)), (w2_a.clone(), wide(w2_b))];
            Step::Loha { s, products }
        }
        (Delta::Lokr(Lokr { w1, w2, rows, .. }), _) => {
            Step::Lokr { s, w1: Matrix::of(w1), w2: Matrix::of(w2), rows: *rows }
        }
        (_, Form::Sparse(csr)) => Step::Sparse { s, csr: Arc::clone(csr) },
        (_, Form::Dense(delta)) => Step::Dense { s, delta: Factor::clone(delta) },
        _ => unreachable!("BUG: a module without its form"),
    })
}

/// `Σ_r left[r] * right[r]`, from +0.0, ascending; `right` is `[rank, cols]`.
fn product(left: &[f32], right: &[f64], cols: usize) -> Vec<f64> {
    let mut out = vec![0.0; cols];
    for (&left, right) in left.iter().zip(right.chunks_exact(cols)) {
        add(&mut out, f64::from(left), right);
    }
    out
}

fn add(to: &mut [f64], s: f64, delta: &[f64]) {
    to.iter_mut().zip(delta).for_each(|(to, delta)| *to += s * delta);
}

fn add_f32(to: &mut [f64], s: f64, delta: &[f32]) {
    to.iter_mut().zip(delta).for_each(|(to, delta)| *to += s * f64::from(*delta));
}

fn wide(factor: &Factor) -> Vec<f64> {
    factor.values().map(f64::from).collect()
}

fn factor_row(factor: &Factor, row: usize) -> Vec<f32> {
    let mut out = vec![0.0; factor.cols() as usize];
    factor.row_into(row, &mut out);
    out
}
