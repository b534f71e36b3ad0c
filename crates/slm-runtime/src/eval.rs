//! Perplexity over non-overlapping windows.

use crate::budget::Workload;
use crate::error::{RequestError, RuntimeError};
use crate::session::Session;

/// A perplexity with its 95 % confidence interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Perplexity {
    /// exp of the mean negative log-likelihood.
    pub perplexity: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Tokens that were scored.
    pub tokens: u64,
}

/// What [`perplexity`] of so many ids asks of a session: one window at a time, and logits of every position.
pub fn workload(n_ids: usize, window: usize, bos: bool, chunk: usize) -> Workload {
    let tokens = n_ids.min(window) + usize::from(bos);
    let positions = u32::try_from(tokens).unwrap_or(u32::MAX);
    Workload { positions, chunk: chunk.min(tokens), all_logits: true }
}

/// Scores `ids` in windows of `window` ids: each starts from an empty cache, with `bos` before it where the model uses one (unscored), and every id but
/// the first of a window is scored.
///
/// `on_window` gets the number of windows done and of all.
///
/// # Errors
/// Fewer than two ids; as [`Session::advance`].
pub fn perplexity(
    session: &mut Session,
    ids: &[u32],
    window: usize,
    bos: Option<u32>,
    chunk: usize,
    on_window: &mut dyn FnMut(usize, usize),
) -> Result<Perplexity, RuntimeError> {
    if ids.len() < 2 || window < 2 {
        return Err(RequestError::TextTooShort { tokens: ids.len() as u64 }.into());
    }
    let mut losses: Vec<f64> = Vec::new();
    let n_windows = ids.len().div_ceil(window);
    for (n, part) in ids.chunks(window).enumerate() {
        session.truncate(0);
        let tokens: Vec<u32> = bos.into_iter().chain(part.iter().copied()).collect();
        let first_scored = usize::from(bos.is_some()) + 1;
        session.advance_all(&tokens, chunk, &mut |position, logits| {
            if position + 1 >= first_scored && position + 1 < tokens.len() {
                losses.push(negative_log_likelihood(logits, tokens[position + 1]));
            }
        })?;
        on_window(n + 1, n_windows);
    }
    session.truncate(0);
    let n = losses.len() as f64;
    let mean = losses.iter().sum::<f64>() / n;
    let variance =
        losses.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    let half_width = 1.96 * (variance / n).sqrt();
    Ok(Perplexity {
        perplexity: mean.exp(),
        low: (mean - half_width).exp(),
        high: (mean + half_width).exp(),
        tokens: losses.len() as u64,
    })
}

/// −ln of the softmax probability of `target`, in f64.
pub fn negative_log_likelihood(logits: &[f32], target: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    sum.ln() - f64::from(logits[target as usize] - max)
}
