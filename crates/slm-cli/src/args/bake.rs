//! Options of `bake`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use slm_runtime::bake::BakeEncoding;

use super::ModelArgs;

/// `bake`.
#[derive(Debug, Args)]
pub(crate) struct BakeArgs {
    /// The GGUF file or, for safetensors, the folder to write
    pub(crate) path: PathBuf,
    /// What to write
    #[arg(long, value_enum, default_value_t = BakeFormat::Gguf)]
    pub(crate) format: BakeFormat,
    /// How tensors are stored [default: keep for gguf, f32 for safetensors]
    #[arg(long, value_enum)]
    pub(crate) encoding: Option<EncodingArg>,
    /// Give a base whose head is its embedding table a head of its own, where the stack changes one of the two
    #[arg(long)]
    pub(crate) untie: bool,
    /// Take the place of a file that is there
    #[arg(long)]
    pub(crate) replace: bool,
    /// Threads [default: all cores]; changes no bit
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Which composition
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// Formats that a composition can be baked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BakeFormat {
    /// A file with the metadata and the tokenizer of the base's own; what the stack leaves alone keeps its bytes
    Gguf,
    /// A HF folder: config.json, model.safetensors, tokenizer.json
    Safetensors,
}

/// How tensors are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EncodingArg {
    /// As in the base; what the stack changes is quantized again
    Keep,
    /// binary16: in GGUF what the stack changes, in a folder all matrices
    F16,
    /// binary32: in GGUF what the stack changes, in a folder everything
    F32,
}

impl BakeArgs {
    /// The encoding asked for, or the format's own.
    pub(crate) fn encoding(&self) -> BakeEncoding {
        match (self.encoding, self.format) {
            (Some(EncodingArg::Keep), _) | (None, BakeFormat::Gguf) => BakeEncoding::Keep,
            (Some(EncodingArg::F16), _) => BakeEncoding::F16,
            (Some(EncodingArg::F32), _) | (None, BakeFormat::Safetensors) => BakeEncoding::F32,
        }
    }
}
