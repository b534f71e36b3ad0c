//! Options of `run`, `chat` and `logits`.

use std::path::PathBuf;

use clap::Args;

use super::{EngineArgs, ModelArgs};

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "How tokens are chosen")]
pub(crate) struct SamplingArgs {
    /// Most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) max_tokens: usize,
    /// Go on after an end-of-text token
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// 0 takes the most likely token
    #[arg(long, value_name = "X", allow_negative_numbers = true, default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Candidates kept; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) top_k: usize,
    /// Probability mass kept
    #[arg(long, value_name = "X", allow_negative_numbers = true, default_value_t = 1.0)]
    pub(crate) top_p: f32,
    /// Smallest probability kept, relative to the largest
    #[arg(long, value_name = "X", allow_negative_numbers = true, default_value_t = 0.0)]
    pub(crate) min_p: f32,
    /// Above 1: turns away from the last 64 tokens
    #[arg(long, value_name = "X", allow_negative_numbers = true, default_value_t = 1.0)]
    pub(crate) repeat_penalty: f32,
    /// The random number of a position is a function of the seed and the position
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

/// `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The prompt [default: standard input]
    pub(crate) prompt: Option<String>,
    /// Put the prompt into the model's chat template
    #[arg(long)]
    pub(crate) chat: bool,
    /// System message for --chat
    #[arg(long)]
    pub(crate) system: Option<String>,
    /// Print speed to stderr
    #[arg(long)]
    pub(crate) stats: bool,
    /// How tokens are chosen
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Which model
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// How it runs
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// `chat`.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// System message
    #[arg(long)]
    pub(crate) system: Option<String>,
    /// How tokens are chosen
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Which model
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// How it runs
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// `logits`.
#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    /// Text; special tokens stay text, BOS is added where the model wants one
    #[arg(long, conflicts_with = "tokens")]
    pub(crate) text: Option<String>,
    /// Ids, taken verbatim
    #[arg(long, value_delimiter = ',')]
    pub(crate) tokens: Option<Vec<u32>>,
    /// Best ids to show
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) top: usize,
    /// Write all logits as safetensors: `logits`, F32 [positions, vocabulary]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Which model
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// How it runs
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}
