//! One adapter's part in one tensor's product, whatever its kind.

use std::ops::Range;
use std::sync::Arc;

use slm_quant::{Executor, Kernels};

use crate::bind::Form;
use crate::kind::{
    DenseTerm, DoraTerm, LohaTerm, LokrTerm, LoraTerm, Pair, SparseTerm, VeraTerm, ia3_factors,
};
use crate::{BoundAdapter, Delta, Module, OverlayError, Side};

/// One adapter's part.
#[derive(Debug)]
pub(super) struct Term {
    pub(super) part: Part,
    /// For an adapter that waits for its invocation: its place in the stack.
    pub(super) gate: Option<usize>,
}

/// A part by its kind.
#[derive(Debug)]
pub(super) enum Part {
    Lora(LoraTerm),
    Dora(DoraTerm),
    /// What each input is multiplied by.
    Input(Vec<f32>),
    /// What each output is multiplied by.
    Output(Vec<f32>),
    Sparse(SparseTerm),
    Dense(DenseTerm),
    Loha(LohaTerm),
    Lokr(LokrTerm),
    Vera(VeraTerm),
}

impl Term {
    pub(super) fn new(
        bound: &Arc<BoundAdapter>,
        index: usize,
        weight: f32,
        at: usize,
    ) -> Result<Term, OverlayError> {
        let module: &Module = bound.module(index);
        let s = weight * module.scale();
        let pair = || Pair::new(bound, index);
        let part = match (&module.delta, bound.form(index)) {
            (Delta::Lora(lora), _) => {
                let bias = lora.bias.iter().flat_map(|bias| bias.values());
                Part::Lora(LoraTerm { pair: pair(), s, bias: bias.map(|bias| s * bias).collect() })
            }
            (Delta::Dora(dora), Form::Dora(sums)) => {
                let gain = DoraTerm::gains(dora, sums, s).map_err(|(row, gain)| {
                    let (tensor, row) = (module.target.clone(), row as u64);
                    OverlayError::Gain { tensor, row, gain }
                })?;
                Part::Dora(DoraTerm { pair: pair(), s, gain })
            }
            (Delta::Ia3(ia3), _) => {
                let factors = ia3_factors(&ia3.l, weight);
                if let Some(row) = factors.iter().position(|factor| !factor.is_finite()) {
                    let (tensor, gain) = (module.target.clone(), factors[row]);
                    return Err(OverlayError::Gain { tensor, row: row as u64, gain });
                }
                match ia3.side {
                    Side::Input => Part::Input(factors),
                    Side::Output => Part::Output(factors),
                }
            }
            (Delta::Vera(vera), _) => Part::Vera(VeraTerm {
                pair: pair(),
                s,
                d: vera.lambda_d.values().collect(),
                b: vera.lambda_b.values().collect(),
            }),
            (_, Form::Sparse(csr)) => Part::Sparse(SparseTerm { csr: Arc::clone(csr), s }),
            (_, Form::Dense(delta)) => Part::Dense(DenseTerm { delta: Arc::clone(delta), s }),
            (_, Form::Loha(materials)) => {
                Part::Loha(LohaTerm { materials: Arc::clone(materials), s })
            }
            (_, Form::Lokr(kron)) => Part::Lokr(LokrTerm { kron: Arc::clone(kron), s }),
            _ => unreachable!("BUG: a module without its form"),
        };
        let gate = (!bound.adapter().invocation().is_empty()).then_some(at);
        Ok(Term { part, gate })
    }

    /// Values per token between the two halves.
    pub(super) fn width(&self) -> usize {
        match &self.part {
            Part::Lora(term) => term.pair.rank(),
            Part::Dora(term) => term.pair.rank(),
            Part::Vera(term) => term.d.len(),
            Part::Input(_) | Part::Output(_) => 0,
            Part::Sparse(term) => term.width(),
            Part::Dense(term) => term.width(),
            Part::Loha(term) => term.width(),
            Part::Lokr(term) => term.width(),
        }
    }

    pub(super) fn down(
        &self,
        kernels: &Kernels,
        exec: &dyn Executor,
        z: &mut [f32],
        x: &[f32],
        n_tokens: usize,
    ) {
        match &self.part {
            Part::Lora(term) => term.pair.down(kernels, exec, z, x),
            Part::Dora(term) => term.pair.down(kernels, exec, z, x),
            Part::Vera(term) => term.down(kernels, exec, z, x),
            Part::Input(_) | Part::Output(_) => {}
            Part::Sparse(term) => term.down(z, x, n_tokens),
            Part::Dense(term) => term.down(kernels, exec, z, x),
            Part::Loha(term) => term.down(kernels, exec, z, x, n_tokens),
            Part::Lokr(term) => term.down(kernels, z, x, n_tokens),
        }
    }

    /// The second half for `tokens`; `z` is what the first made of all of them, `y` the piece's outputs of just these.
    pub(super) fn up(
        &self,
        kernels: &Kernels,
        y: &mut [f32],
        first_row: usize,
        z: &[f32],
        n_tokens: usize,
        tokens: Range<usize>,
    ) {
        let n = tokens.len();
        let width = z.len() / n_tokens;
        let these = || &z[tokens.start * width..tokens.end * width];
        match &self.part {
            Part::Lora(term) => {
                term.up(kernels, y, &term.pair.up_matrix(), first_row, these(), n);
            }
            Part::Dora(term) => term.up(kernels, y, first_row, these(), n),
            Part::Vera(term) => term.up(kernels, y, first_row, these(), n),
            Part::Input(_) => {}
            Part::Output(factors) => {
                let n_rows = y.len() / n;
                let factors = &factors[first_row..first_row + n_rows];
                for y in y.chunks_exact_mut(n_rows) {
                    y.iter_mut().zip(factors).for_each(|(y, factor)| *y *= factor);
                }
            }
            Part::Sparse(term) => term.up(y, first_row, these(), n),
            Part::Dense(term) => term.up(kernels, y, first_row, these(), n),
            Part::Loha(term) => term.up(y, first_row, z, tokens.start, n),
            Part::Lokr(term) => term.up(y, first_row, these(), n),
        }
    }

    /// A's matrix, where the first half is a product with it and nothing more.
    pub(super) fn lora(&self) -> Option<&LoraTerm> {
        match &self.part {
            Part::Lora(term) => Some(term),
            _ => None,
        }
    }
}
