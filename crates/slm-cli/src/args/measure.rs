//! Options of `eval`, `plan` and `bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{EngineArgs, ModelArgs};

/// Quality measures.
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Perplexity of a text
    Ppl {
        /// The text
        file: PathBuf,
        /// Ids per window
        #[arg(long, value_name = "N", default_value_t = 512)]
        ctx: usize,
        /// Use the first IDS ids only
        #[arg(long, value_name = "IDS")]
        limit: Option<usize>,
        /// Store an evaluation record of the composition
        #[arg(long)]
        record: bool,
        /// Which model
        #[command(flatten)]
        model: ModelArgs,
        /// How it runs
        #[command(flatten)]
        engine: EngineArgs,
    },
}

/// `plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Positions of the cache [default: the model's context]
    #[arg(long, value_name = "N")]
    pub(crate) positions: Option<u32>,
    /// Which model
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// How it runs
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Tokens that are in the context before, not timed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) depth: usize,
    /// Prompt tokens
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) prompt: usize,
    /// Tokens to generate
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) generate: usize,
    /// Runs; the medians are reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) runs: usize,
    /// Which model
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// How it runs
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}
