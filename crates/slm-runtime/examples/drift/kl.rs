//! Logits, and how far others are from them.

use std::sync::Arc;

use slm_manifest::ExecutionProfile;
use slm_runtime::{Composition, Engine, Session};

use crate::Outcome;

/// What was meant.
pub(crate) struct Oracle {
    pub(crate) logits: Vec<f32>,
    n_vocab: usize,
}

impl Oracle {
    pub(crate) fn new(logits: Vec<f32>, n_vocab: u32) -> Oracle {
        Oracle { logits, n_vocab: n_vocab as usize }
    }

    /// `KL(oracle || other)` in nats, the mean over positions.
    pub(crate) fn kl(&self, other: &[f32]) -> f64 {
        assert_eq!(other.len(), self.logits.len(), "logits of other positions");
        let rows = self.logits.chunks_exact(self.n_vocab).zip(other.chunks_exact(self.n_vocab));
        let n = (other.len() / self.n_vocab) as f64;
        let of = |(p, q): (&[f32], &[f32])| {
            let (lp, lq) = (log_sum_exp(p), log_sum_exp(q));
            let term = |(&p, &q): (&f32, &f32)| {
                let (p, q) = (f64::from(p) - lp, f64::from(q) - lq);
                p.exp() * (p - q)
            };
            p.iter().zip(q).map(term).sum::<f64>()
        };
        // Rounding may leave a mean of nothing below zero.
        (rows.map(of).sum::<f64>() / n).max(0.0)
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let top = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - f64::from(top)).exp()).sum();
    f64::from(top) + sum.ln()
}

/// The logits of every position, with f32 activations and cache.
pub(crate) fn logits(
    composition: Arc<Composition>,
    engine: &Engine,
    tokens: &[u32],
) -> Outcome<Vec<f32>> {
    let mut session = Session::new(composition, ExecutionProfile::ORACLE, engine.clone())?;
    let mut all = Vec::new();
    session.advance_all(tokens, tokens.len(), &mut |_, logits| all.extend_from_slice(logits))?;
    Ok(all)
}
