//! Options of `adapter`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

/// Adapter commands.
#[derive(Debug, Subcommand)]
pub(crate) enum AdapterCommand {
    /// Parse, bind and store an adapter
    Import {
        /// A PEFT folder, a typed delta, or a GGUF, Plan 008, compact or .slm file
        path: PathBuf,
        /// Name in the store
        #[arg(long)]
        name: Option<String>,
        /// The base it is for, by name or id
        #[arg(long)]
        base: Option<String>,
        /// What the path holds
        #[arg(long, value_enum, default_value_t = AdapterFormat::Auto)]
        format: AdapterFormat,
        /// For plan008: which tensors its positions mean, a JSON array of canonical names
        #[arg(long, value_name = "FILE")]
        layout: Option<PathBuf>,
        /// Keep the factors' precision, or round them to f16 (another adapter, with another id)
        #[arg(long, value_enum, default_value_t = Factors::Keep)]
        factors: Factors,
        /// Let the name point to other content than before
        #[arg(long)]
        replace: bool,
    },
    /// What an adapter does to each tensor
    Inspect {
        /// A name or id of the store, or a path
        what: String,
        /// For files that name no base: the base, by name or id
        #[arg(long)]
        base: Option<String>,
        /// For plan008 files
        #[arg(long, value_name = "FILE")]
        layout: Option<PathBuf>,
    },
    /// What two adapters do differently
    Diff {
        /// A name or id of the store, or a path
        a: String,
        /// Another
        b: String,
        /// For files that name no base: the base, by name or id
        #[arg(long)]
        base: Option<String>,
    },
}

/// Adapter formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AdapterFormat {
    /// Find out
    Auto,
    /// A PEFT folder
    Peft,
    /// A GGUF adapter
    Gguf,
    /// A Plan 008 file; needs --layout
    Plan008,
    /// A compact binary LoRA file
    Compact,
    /// Our container
    Slm,
}

/// Precision of adapter factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Factors {
    /// As in the file
    Keep,
    /// Rounded to f16
    F16,
}
