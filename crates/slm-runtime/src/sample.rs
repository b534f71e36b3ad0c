//! Logits to a token. The random number of a position is a function of the seed and the position. `docs/numerics.md` §8.

use slm_quant::Kernels;

use crate::error::RequestError;

/// How a token is chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 takes the largest logit; above, logits are divided by it.
    pub temperature: f32,
    /// Candidates kept; 0 keeps all.
    pub top_k: usize,
    /// Probability mass kept, in (0, 1].
    pub top_p: f32,
    /// Smallest probability kept, relative to the largest, in [0, 1).
    pub min_p: f32,
    /// Divides positive logits and multiplies negative ones of tokens among the last 64; 1 changes nothing.
    pub repeat_penalty: f32,
    /// The seed.
    pub seed: u64,
}

/// Tokens that [`Sampling::repeat_penalty`] looks back at.
const REPEAT_WINDOW: usize = 64;

impl Sampling {
    /// The largest logit, the lowest id among equals.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        seed: 0,
    };

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`RequestError::Sampling`] names the setting.
    pub fn check(&self) -> Result<(), RequestError> {
        let range = |setting, found: f32, ok: bool, expected| {
            if ok { Ok(()) } else { Err(RequestError::Sampling { setting, found, expected }) }
        };
        let finite = |value: f32| value.is_finite();
        range(
            "temperature",
            self.temperature,
            finite(self.temperature) && self.temperature >= 0.0,
            "0 or more",
        )?;
        range("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0, at most 1")?;
        range("min_p", self.min_p, (0.0..1.0).contains(&self.min_p), "0 or more, below 1")?;
        range(
            "repeat_penalty",
            self.repeat_penalty,
            (0.01..=100.0).contains(&self.repeat_penalty),
            "0.01 to 100",
        )
    }
}

/// The random number of `position` under `seed`, in [0, 1).
///
/// ```
/// let u = slm_runtime::sample::uniform(7, 3);
/// assert_eq!(u, slm_runtime::sample::uniform(7, 3));
/// assert!((0.0..1.0).contains(&u));
/// ```
pub fn uniform(seed: u64, position: u64) -> f32 {
    let mut message = [0u8; 28];
    message[..12].copy_from_slice(b"slm sample 1");
    message[12..20].copy_from_slice(&seed.to_le_bytes());
    message[20..].copy_from_slice(&position.to_le_bytes());
    let hash = slm_format::ContentHash::of(&message).to_bytes();
    let head = u64::from_le_bytes(hash[..8].try_into().expect("BUG: a hash is 32 bytes"));
    (head >> 40) as f32 * (1.0 / 16_777_216.0)
}

/// The largest logit's id, the lowest among equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// Chooses the token of `position`. `recent` are the tokens before it.
pub fn sample(
    logits: &[f32],
    sampling: &Sampling,
    position: u64,
    recent: &[u32],
    kernels: Kernels,
) -> u32 {
    let mut penalized;
    let mut logits = logits;
    if sampling.repeat_penalty != 1.0 {
        penalized = logits.to_vec();
        let mut window = recent[recent.len().saturating_sub(REPEAT_WINDOW)..].to_vec();
        window.sort_unstable();
        window.dedup();
        for id in window {
            let logit = &mut penalized[id as usize];
            *logit = if *logit > 0.0 {
                *logit / sampling.repeat_penalty
            } else {
                *logit * sampling.repeat_penalty
            };
        }
        logits = &penalized;
    }
    if sampling.temperature == 0.0 {
        return argmax(logits);
    }
    let candidates = candidates(logits, sampling.top_k);
    let mut e: Vec<f32> =
        candidates.iter().map(|c| (c.0 - candidates[0].0) / sampling.temperature).collect();
    kernels.exp_sub(&mut e, 0.0);
    cut_top_p(&mut e, sampling.top_p);
    // The largest is exp(0) = 1, so its share relative to the largest is the value itself.
    let kept = e.iter().position(|&e| e < sampling.min_p).unwrap_or(e.len()).max(1);
    e.truncate(kept);
    let total = running_sum(&e);
    let threshold = uniform(sampling.seed, position) * total;
    let mut sum = 0.0f32;
    for (at, &e) in e.iter().enumerate() {
        sum += e;
        if sum > threshold {
            return candidates[at].1;
        }
    }
    candidates[e.len() - 1].1
}

/// (logit, id), logit descending, id ascending, the first `top_k` of them.
fn candidates(logits: &[f32], top_k: usize) -> Vec<(f32, u32)> {
    let mut all: Vec<(f32, u32)> =
        logits.iter().enumerate().map(|(id, &logit)| (logit, id as u32)).collect();
    let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if top_k > 0 && top_k < all.len() {
        all.select_nth_unstable_by(top_k - 1, order);
        all.truncate(top_k);
    }
    all.sort_unstable_by(order);
    all
}

/// Keeps the shortest head whose running sum reaches `top_p` of the total.
fn cut_top_p(e: &mut Vec<f32>, top_p: f32) {
    if top_p >= 1.0 {
        return;
    }
    let limit = top_p * running_sum(e);
    let mut sum = 0.0f32;
    let kept = e.iter().position(|&e| {
        sum += e;
        sum >= limit
    });
    e.truncate(kept.map_or(e.len(), |at| at + 1));
}

fn running_sum(e: &[f32]) -> f32 {
    e.iter().fold(0.0, |sum, &e| sum + e)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels() -> Kernels {
        Kernels::detect()
    }

    #[test]
    fn greedy_takes_the_lowest_id_among_equals() {
        assert_eq!(sample(&[1.0, 3.0, 3.0], &Sampling::GREEDY, 0, &[], kernels()), 1);
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let sampling = Sampling { temperature: 1.0, seed: 11, ..Sampling::GREEDY };
        let logits = [0.0f32, 1.0, 2.0];
        let mut counts = [0f64; 3];
        for position in 0..20_000 {
            counts[sample(&logits, &sampling, position, &[], kernels()) as usize] += 1.0 / 20_000.0;
        }
        let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        for (count, &logit) in counts.iter().zip(&logits) {
            let expected = f64::from(logit).exp() / total;
            assert!((count - expected).abs() < 0.015, "{count} against {expected}");
        }
    }

    #[test]
    fn every_cut_leaves_the_best_and_removes_the_worst() {
        let logits = [0.0f32, 5.0, 4.9, -20.0];
        for sampling in [
            Sampling { temperature: 1.0, top_k: 2, ..Sampling::GREEDY },
            Sampling { temperature: 1.0, top_p: 0.9, ..Sampling::GREEDY },
            Sampling { temperature: 1.0, min_p: 0.5, ..Sampling::GREEDY },
        ] {
            let mut seen = [false; 4];
            for position in 0..2_000 {
                seen[sample(&logits, &sampling, position, &[], kernels()) as usize] = true;
            }
            assert_eq!(seen, [false, true, true, false], "{sampling:?}");
        }
    }

    #[test]
    fn repeat_penalty_turns_away_from_what_was_said() {
        let sampling = Sampling { repeat_penalty: 2.0, ..Sampling::GREEDY };
        assert_eq!(sample(&[3.0, 2.9], &sampling, 0, &[0], kernels()), 1);
        assert_eq!(sample(&[3.0, 2.9], &sampling, 0, &[], kernels()), 0);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        for (sampling, name) in [
            (Sampling { temperature: -1.0, ..Sampling::GREEDY }, "temperature"),
            (Sampling { temperature: f32::NAN, ..Sampling::GREEDY }, "temperature"),
            (Sampling { top_p: 0.0, ..Sampling::GREEDY }, "top_p"),
            (Sampling { min_p: 1.0, ..Sampling::GREEDY }, "min_p"),
            (Sampling { repeat_penalty: 0.0, ..Sampling::GREEDY }, "repeat_penalty"),
        ] {
            assert!(
                matches!(sampling.check(), Err(RequestError::Sampling { setting, .. }) if setting == name)
            );
        }
        assert_eq!(Sampling::GREEDY.check(), Ok(()));
    }
}
