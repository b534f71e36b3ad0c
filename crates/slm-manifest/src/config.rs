//! The model configuration: read, then trusted.

use serde::{Deserialize, Serialize};
use slm_format::Coded;

/// A model family, which decides the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Architecture {
    /// Llama and models of its shape (SmolLM2).
    Llama,
    /// Gemma 3 text models.
    Gemma3,
}

impl Architecture {
    /// The name that GGUF's `general.architecture` and this project use.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Gemma3 => "gemma3",
        }
    }

    /// The architecture of that name.
    pub fn from_name(name: &str) -> Option<Architecture> {
        [Architecture::Llama, Architecture::Gemma3]
            .into_iter()
            .find(|architecture| architecture.name() == name)
    }

    /// Whether q and k rows are stored so that RoPE turns neighbours, `(2j, 2j+1)`; else it turns `(j, j + d/2)`.
    pub fn rope_interleaved(self) -> bool {
        match self {
            Architecture::Llama => true,
            Architecture::Gemma3 => false,
        }
    }
}

/// A configuration as a file states it, before [`ModelConfig::check`].
#[derive(Debug, Clone, PartialEq)]
pub struct RawModelConfig {
    /// Model family.
    pub architecture: Architecture,
    /// Transformer blocks.
    pub n_layers: u32,
    /// Width of the residual stream.
    pub n_embd: u32,
    /// Width of the feed-forward hidden layer.
    pub n_ff: u32,
    /// Query heads.
    pub n_heads: u32,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: u32,
    /// Width of one head.
    pub head_dim: u32,
    /// Tokens in the vocabulary.
    pub vocab_size: u32,
    /// Positions the model was made for.
    pub context_length: u32,
    /// Added to the mean square in RMS norms.
    pub rms_norm_eps: f32,
    /// RoPE base of global layers.
    pub rope_theta: f32,
    /// Linear RoPE factor of global layers; 1 for none.
    pub rope_linear_factor: f32,
    /// RoPE base of sliding-window layers; equal to `rope_theta` where there are none.
    pub rope_theta_local: f32,
    /// Positions a sliding-window layer sees, itself included.
    pub sliding_window: Option<u32>,
    /// With a sliding window: every n-th layer is global.
    pub sliding_window_pattern: Option<u32>,
    /// The head is the embedding table.
    pub tied_embeddings: bool,
}

/// A configuration whose fields agree with each other. Fields are read through [`core::ops::Deref`]; none can be changed.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig(RawModelConfig);

/// A configuration that cannot be.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field is outside its range.
    #[error("{field} is {found}, expected {expected}")]
    Range {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// One field does not divide another.
    #[error("{divisor_field} = {divisor} does not divide {field} = {value}")]
    NotDivisible {
        /// The field that must be a multiple.
        field: &'static str,
        /// Its value.
        value: u32,
        /// The field that must divide it.
        divisor_field: &'static str,
        /// Its value.
        divisor: u32,
    },
    /// A stored configuration is not in the one canonical form.
    #[error("the stored configuration is not canonical at {name:?}")]
    Canonical {
        /// The entry that is unknown, missing or out of place.
        name: String,
    },
}

impl Coded for ConfigError {
    fn code(&self) -> &'static str {
        match self {
            ConfigError::Range { field, .. } => match *field {
                "n_layers" => "config-n-layers",
                "n_embd" => "config-n-embd",
                "n_ff" => "config-n-ff",
                "n_heads" => "config-n-heads",
                "n_kv_heads" => "config-n-kv-heads",
                "head_dim" => "config-head-dim",
                "vocab_size" => "config-vocab-size",
                "context_length" => "config-context-length",
                "rms_norm_eps" => "config-rms-norm-eps",
                "sliding_window" | "sliding_window_pattern" => "config-sliding-window",
                _ => "config-rope",
            },
            ConfigError::NotDivisible { .. } => "config-heads",
            ConfigError::Canonical { .. } => "config-canonical",
        }
    }
}

impl ModelConfig {
    /// Checks `raw`: every dimension between 1 and a bound far above any model of this class, heads divisible, floats finite and positive.
    ///
    /// # Errors
    /// [`ConfigError`] names the first field that is wrong.
    pub fn check(raw: RawModelConfig) -> Result<ModelConfig, ConfigError> {
        for (field, found, max) in [
            ("n_layers", raw.n_layers, 1 << 12),
            ("n_embd", raw.n_embd, 1 << 20),
            ("n_ff", raw.n_ff, 1 << 22),
            ("n_heads", raw.n_heads, 1 << 14),
            ("n_kv_heads", raw.n_kv_heads, 1 << 14),
            ("head_dim", raw.head_dim, 1 << 14),
            ("vocab_size", raw.vocab_size, 1 << 24),
            ("context_length", raw.context_length, 1 << 28),
            ("sliding_window", raw.sliding_window.unwrap_or(1), 1 << 28),
            ("sliding_window_pattern", raw.sliding_window_pattern.unwrap_or(1), 1 << 12),
        ] {
            if found == 0 || found > max {
                return Err(ConfigError::Range {
                    field,
                    found: found.to_string(),
                    expected: "a positive number within bounds",
                });
            }
        }
        for (field, found) in [
            ("rms_norm_eps", raw.rms_norm_eps),
            ("rope_theta", raw.rope_theta),
            ("rope_linear_factor", raw.rope_linear_factor),
            ("rope_theta_local", raw.rope_theta_local),
        ] {
            if !(found.is_finite() && found > 0.0) {
                return Err(ConfigError::Range {
                    field,
                    found: found.to_string(),
                    expected: "a positive, finite number",
                });
            }
        }
        for (field, value, divisor_field, divisor) in [
            ("n_heads", raw.n_heads, "n_kv_heads", raw.n_kv_heads),
            ("head_dim", raw.head_dim, "two", 2),
        ] {
            if !value.is_multiple_of(divisor) {
                return Err(ConfigError::NotDivisible { field, value, divisor_field, divisor });
            }
        }
        Ok(ModelConfig(raw))
    }

    /// The configuration whose [`ModelConfig::canonical`] form is `pairs`.
    ///
    /// # Errors
    /// [`ConfigError::Canonical`] names an unknown, missing or misplaced entry; the errors of [`ModelConfig::check`] otherwise.
    pub fn from_canonical(pairs: &[(String, u64)]) -> Result<ModelConfig, ConfigError> {
        let canonical = |name: &str| ConfigError::Canonical { name: name.to_owned() };
        let find = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1);
        let number = |name: &str| -> Result<u32, ConfigError> {
            find(name).and_then(|value| u32::try_from(value).ok()).ok_or_else(|| canonical(name))
        };
        let optional = |name: &str| -> Result<Option<u32>, ConfigError> {
            find(name).map(|value| u32::try_from(value).map_err(|_| canonical(name))).transpose()
        };
        let architecture = pairs
            .iter()
            .find_map(|pair| pair.0.strip_prefix("architecture.").and_then(Architecture::from_name))
            .ok_or_else(|| canonical("architecture"))?;
        let rope_theta = f32::from_bits(number("rope_theta")?);
        let config = ModelConfig::check(RawModelConfig {
            architecture,
            n_layers: number("n_layers")?,
            n_embd: number("n_embd")?,
            n_ff: number("n_ff")?,
            n_heads: number("n_heads")?,
            n_kv_heads: number("n_kv_heads")?,
            head_dim: number("head_dim")?,
            vocab_size: number("vocab_size")?,
            context_length: number("context_length")?,
            rms_norm_eps: f32::from_bits(number("rms_norm_eps")?),
            rope_theta,
            rope_linear_factor: optional("rope_linear_factor")?.map_or(1.0, f32::from_bits),
            rope_theta_local: optional("rope_theta_local")?.map_or(rope_theta, f32::from_bits),
            sliding_window: optional("sliding_window")?,
            sliding_window_pattern: optional("sliding_window_pattern")?,
            tied_embeddings: find("tied_embeddings").is_some(),
        })?;
        let again = config.canonical();
        if again.len() != pairs.len() {
            return Err(canonical("(number of entries)"));
        }
        for (pair, expected) in pairs.iter().zip(&again) {
            if pair.0 != expected.0 || pair.1 != expected.1 {
                return Err(canonical(&pair.0));
            }
        }
        Ok(config)
    }

    /// Whether layer `layer` sees a sliding window only; the last layer of each `sliding_window_pattern` is global.
    pub fn is_sliding(&self, layer: u32) -> bool {
        match (self.sliding_window, self.sliding_window_pattern) {
            (Some(_), Some(pattern)) => !(layer + 1).is_multiple_of(pattern),
            _ => false,
        }
    }

    /// The encoding that a [`crate::BaseId`] covers: (name, value) pairs sorted by name, floats as their bits. A field that does not apply
    /// is left out, so that a later field leaves the identities of models without it as they are.
    pub fn canonical(&self) -> Vec<(&'static str, u64)> {
        let raw = &self.0;
        let mut pairs = vec![
            (
                match raw.architecture {
                    Architecture::Llama => "architecture.llama",
                    Architecture::Gemma3 => "architecture.gemma3",
                },
                1,
            ),
            ("context_length", u64::from(raw.context_length)),
            ("head_dim", u64::from(raw.head_dim)),
            ("n_embd", u64::from(raw.n_embd)),
            ("n_ff", u64::from(raw.n_ff)),
            ("n_heads", u64::from(raw.n_heads)),
            ("n_kv_heads", u64::from(raw.n_kv_heads)),
            ("n_layers", u64::from(raw.n_layers)),
            ("rms_norm_eps", u64::from(raw.rms_norm_eps.to_bits())),
            ("rope_theta", u64::from(raw.rope_theta.to_bits())),
            ("vocab_size", u64::from(raw.vocab_size)),
        ];
        if raw.rope_linear_factor != 1.0 {
            pairs.push(("rope_linear_factor", u64::from(raw.rope_linear_factor.to_bits())));
        }
        if let Some(window) = raw.sliding_window {
            pairs.push(("sliding_window", u64::from(window)));
            pairs.push(("rope_theta_local", u64::from(raw.rope_theta_local.to_bits())));
        }
        if let Some(pattern) = raw.sliding_window_pattern {
            pairs.push(("sliding_window_pattern", u64::from(pattern)));
        }
        if raw.tied_embeddings {
            pairs.push(("tied_embeddings", 1));
        }
        pairs.sort_unstable();
        pairs
    }
}

impl core::ops::Deref for ModelConfig {
    type Target = RawModelConfig;

    fn deref(&self) -> &RawModelConfig {
        &self.0
    }
}
