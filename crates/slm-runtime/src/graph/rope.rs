//! Rotary position tables, from the pure-Rust `libm`, so that every target has the same bits.

use slm_manifest::ModelConfig;

/// Inverse frequencies of one kind of layer.
#[derive(Debug, Clone)]
pub(crate) struct Rope {
    /// `[head_dim / 2]`
    inv_freq: Vec<f32>,
}

impl Rope {
    /// Tables of global layers.
    pub(crate) fn global(config: &ModelConfig, theta: f32) -> Rope {
        Rope::new(config.head_dim, theta, config.rope_linear_factor)
    }

    /// Tables of sliding-window layers, which are never scaled.
    pub(crate) fn local(config: &ModelConfig) -> Rope {
        Rope::new(config.head_dim, config.rope_theta_local, 1.0)
    }

    fn new(head_dim: u32, theta: f32, linear_factor: f32) -> Rope {
        let half = head_dim / 2;
        let inv_freq = (0..half)
            .map(|j| {
                let exponent = f64::from(2 * j) / f64::from(head_dim);
                let inv_freq = (1.0 / libm::pow(f64::from(theta), exponent)) as f32;
                if linear_factor == 1.0 { inv_freq } else { inv_freq / linear_factor }
            })
            .collect();
        Rope { inv_freq }
    }

    /// Writes cosines and sines of `n` positions from `first`: `[n, head_dim / 2]` each.
    pub(crate) fn fill(&self, cos: &mut [f32], sin: &mut [f32], first: usize, n: usize) {
        let half = self.inv_freq.len();
        for t in 0..n {
            let position = (first + t) as f32;
            for (j, &inv_freq) in self.inv_freq.iter().enumerate() {
                let angle = f64::from(position * inv_freq);
                cos[t * half + j] = libm::cos(angle) as f32;
                sin[t * half + j] = libm::sin(angle) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slm_manifest::config::{Architecture, RawModelConfig};

    #[test]
    fn position_zero_turns_nothing_and_the_first_pair_turns_by_the_position() {
        let config = ModelConfig::check(RawModelConfig {
            architecture: Architecture::Llama,
            n_layers: 1,
            n_embd: 8,
            n_ff: 8,
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 4,
            vocab_size: 4,
            context_length: 4,
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.0,
            rope_linear_factor: 1.0,
            rope_theta_local: 10_000.0,
            sliding_window: None,
            sliding_window_pattern: None,
            tied_embeddings: true,
        })
        .unwrap();
        let rope = Rope::global(&config, 10_000.0);
        let (mut cos, mut sin) = (vec![0.0; 4], vec![0.0; 4]);
        rope.fill(&mut cos, &mut sin, 0, 2);
        assert_eq!((cos[0], sin[0], cos[1], sin[1]), (1.0, 0.0, 1.0, 0.0));
        // cos(1), sin(1), and pair 1 at 1/100, by hand.
        assert!((cos[2] - 0.540_302_3).abs() < 1e-7 && (sin[2] - 0.841_471).abs() < 1e-7);
        assert!((cos[3] - 0.999_95).abs() < 1e-7 && (sin[3] - 0.009_999_833).abs() < 1e-8);
    }
}
