//! Options of `export`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

/// Export formats.
#[derive(Debug, Subcommand)]
pub(crate) enum ExportCommand {
    /// A base as the GGUF file it came from: the same tensor bytes and metadata
    Gguf {
        /// The base, by name or id
        base: String,
        /// The file to write
        file: PathBuf,
    },
    /// An adapter of the store in another format
    Adapter {
        /// The adapter, by name or id
        adapter: String,
        /// The file or, for peft, the folder to write
        path: PathBuf,
        /// The format
        #[arg(long, value_enum)]
        format: AdapterExport,
    },
    /// A composition with everything it needs as an OCI image layout, which registries take
    Oci {
        /// Name, composition id, manifest digest or manifest file
        what: String,
        /// The folder to make
        folder: PathBuf,
        /// What the image is called
        #[arg(long, default_value = "latest")]
        tag: String,
    },
}

/// Formats an adapter can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AdapterExport {
    /// A folder as PEFT saves it
    Peft,
    /// A GGUF adapter; LoRA only, scales folded into the numbers
    Gguf,
    /// A Plan 008 file, with its layout beside it as FILE.layout.json; LoRA only, scales and ranks folded into the numbers
    Plan008,
}
