//! Options that say which model runs, and how.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Which model a command runs: a composition of the store, or files.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Which model")]
pub(crate) struct ModelArgs {
    /// A composition of the store [default: the active one]
    #[arg(long, value_name = "X", conflicts_with_all = ["model", "adapter"])]
    pub(crate) composition: Option<String>,
    /// A model file or folder; needs no store
    #[arg(long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,
    /// An adapter file or folder with its weight, on --model; bottom of the stack first
    #[arg(long, value_name = "PATH[=W]")]
    pub(crate) adapter: Vec<String>,
}

/// How a model runs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "How it runs")]
pub(crate) struct EngineArgs {
    /// Threads [default: all cores]; changes no bit
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Kernel tier [default: the best of this machine]; changes no bit
    #[arg(long, value_name = "TIER")]
    pub(crate) kernel: Option<String>,
    /// int8 blocks, or f32: the oracle mode, slow, with another execution id
    #[arg(long, value_enum, default_value_t = ActivationsArg::Int8)]
    pub(crate) activations: ActivationsArg,
    /// Precision of the KV cache [default: f16; f32 with --activations f32]
    #[arg(long, value_enum)]
    pub(crate) kv: Option<KvArg>,
    /// Tokens per prefill pass; changes no bit
    #[arg(long, value_name = "N", value_parser = chunk, default_value_t = slm_runtime::generate::DEFAULT_CHUNK)]
    pub(crate) chunk: usize,
}

/// Precision of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ActivationsArg {
    /// Signed 8-bit blocks
    Int8,
    /// Single precision
    F32,
}

/// Precision of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvArg {
    /// binary16
    F16,
    /// binary32
    F32,
}

/// A number of tokens, at least one.
fn chunk(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(0) => Err("expected 1 or more".to_owned()),
        Ok(chunk) => Ok(chunk),
        Err(error) => Err(error.to_string()),
    }
}
