//! The command line: the commands here, their options by families.

mod model;

mod adapter;
mod bake;
mod generate;
mod measure;
mod share;
mod trust;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use slm_store::NameKind;

pub(crate) use adapter::{AdapterCommand, AdapterFormat, Factors};
pub(crate) use bake::{BakeArgs, BakeFormat};
pub(crate) use generate::{ChatArgs, LogitsArgs, RunArgs, SamplingArgs};
pub(crate) use measure::{BenchArgs, EvalCommand, PlanArgs};
pub(crate) use model::{ActivationsArg, EngineArgs, KvArg, ModelArgs};
pub(crate) use share::{AdapterExport, ExportCommand};
pub(crate) use trust::{BareBaseArg, KeyCommand, RuleArg, SignArgs, TrustCommand};

/// Over the options that every command has.
const EVERYWHERE: &str = "Everywhere";

/// One small language model, quantized and immutable, under any ordered stack of adapters, with proof of which composition produced which
/// bits.
#[derive(Debug, Parser)]
#[command(name = "slm", version, propagate_version = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Store folder [default: $SLM_STORE, then the platform's data folder]
    #[arg(long, global = true, value_name = "DIR", help_heading = EVERYWHERE)]
    pub(crate) store: Option<PathBuf>,
    /// One JSON object on stdout; errors as JSON on stderr
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub(crate) json: bool,
    /// No progress and no notes
    #[arg(long, short, global = true, help_heading = EVERYWHERE)]
    pub(crate) quiet: bool,
    /// What to do
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands, in the order a day uses them.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Bring a model into the store: a GGUF, .slm or SLM1 file, or a HF folder; `import oci DIR`: a composition from an OCI image layout
    Import {
        /// The file or folder, or the word oci
        path: PathBuf,
        /// The OCI image layout
        layout: Option<PathBuf>,
        /// Which image of the layout [default: the only one]
        #[arg(long, requires = "layout")]
        tag: Option<String>,
        /// Name in the store
        #[arg(long)]
        name: Option<String>,
        /// Let the name point to other content than before
        #[arg(long)]
        replace: bool,
    },
    /// Import adapters, and look at what they do
    Adapter {
        /// What to do
        #[command(subcommand)]
        command: AdapterCommand,
    },
    /// What is in the store
    List,
    /// What a name, a digest or a readable file holds
    Inspect {
        /// Name, digest or path
        what: Option<String>,
        /// What the name is of, where it is one of several things [default: composition, then base, then adapter]
        #[arg(long, value_enum, requires = "what")]
        kind: Option<KindArg>,
        /// The CPU tiers of this machine
        #[arg(long)]
        cpu: bool,
    },
    /// Make a composition and its manifest
    Compose {
        /// Name in the store
        name: String,
        /// Base, by name or id
        #[arg(long)]
        base: String,
        /// Adapter, by name or id, with its weight; bottom of the stack first
        #[arg(long = "adapter", value_name = "A[=WEIGHT]")]
        adapters: Vec<String>,
        /// Also write the manifest here (TOML, or JSON for *.json)
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Let the name point to another composition than before
        #[arg(long)]
        replace: bool,
    },
    /// Validate a composition and make it the active one
    Activate {
        /// Name, composition id, manifest digest or manifest file
        what: String,
    },
    /// Go back to the parent of the active generation
    Rollback,
    /// Activate the active stack without one adapter
    Deactivate {
        /// The adapter, by name or id
        adapter: String,
    },
    /// The active composition
    Status,
    /// The chain of generations, newest first
    History,
    /// The log of all operations, verified
    Audit,
    /// Compare everything in the store with what it promises
    Verify {
        /// Hash every blob, also the large ones
        #[arg(long)]
        deep: bool,
    },
    /// Remove what neither a name nor a kept generation needs
    Gc {
        /// Generations to keep [default: the policy's, 10]
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        keep: Option<u64>,
        /// Also remove damaged blobs that nothing names, though they may be signatures or evaluation records
        #[arg(long)]
        drop_damaged: bool,
    },
    /// Take from the audit log what was active last, where both active records are damaged
    Recover {
        /// Make it so; without this, only show what the log says
        #[arg(long)]
        yes: bool,
    },
    /// Take a name away; what it stands for stays until gc finds that nothing needs it
    Forget {
        /// The name, also one whose record is damaged
        name: String,
        /// What it is the name of
        #[arg(long, value_enum)]
        kind: KindArg,
    },
    /// What a composition needs in memory, beside what it then takes
    Plan(PlanArgs),
    /// Generate text
    Run(RunArgs),
    /// Talk with a model that has a chat template
    Chat(ChatArgs),
    /// Logits and their hashes: the audit command
    Logits(LogitsArgs),
    /// Text to ids; special tokens are parsed, no BOS is added
    Tokenize {
        /// The text
        #[arg(conflicts_with = "file")]
        text: Option<String>,
        /// Read the text from a file
        #[arg(long)]
        file: Option<PathBuf>,
        /// Which model
        #[command(flatten)]
        model: ModelArgs,
    },
    /// Ids to text
    Detokenize {
        /// Ids, separated by commas or spaces
        ids: Vec<String>,
        /// Which model
        #[command(flatten)]
        model: ModelArgs,
    },
    /// Measure quality
    Eval {
        /// What to measure
        #[command(subcommand)]
        command: EvalCommand,
    },
    /// Measure speed
    Bench(BenchArgs),
    /// Make a key pair for signatures
    Key {
        /// What to do
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Sign a composition or an evaluation record
    Sign(SignArgs),
    /// Whose signatures count here
    Trust {
        /// What to do
        #[command(subcommand)]
        command: TrustCommand,
    },
    /// Write a composition with everything it needs as one .slm file
    Pack {
        /// Name, composition id, manifest digest or manifest file
        what: String,
        /// The file to write
        file: PathBuf,
    },
    /// Bring a packed composition into the store
    Unpack {
        /// The file
        file: PathBuf,
        /// Name in the store
        #[arg(long)]
        name: Option<String>,
        /// Let the name point to another composition than before
        #[arg(long)]
        replace: bool,
    },
    /// Write a base or a composition in another format
    Export {
        /// What to write
        #[command(subcommand)]
        command: ExportCommand,
    },
    /// Write a composition as a new base: one way, other than everything else here
    Bake(BakeArgs),
    /// The embedded tiny model: base, an adapter, another, and back; no file and no network
    Demo,
}

/// What a name of the store is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindArg {
    /// A base
    Base,
    /// An adapter
    Adapter,
    /// A composition
    Composition,
}

impl From<KindArg> for NameKind {
    fn from(kind: KindArg) -> NameKind {
        match kind {
            KindArg::Base => NameKind::Base,
            KindArg::Adapter => NameKind::Adapter,
            KindArg::Composition => NameKind::Composition,
        }
    }
}

impl KindArg {
    /// As messages call it.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            KindArg::Base => "base",
            KindArg::Adapter => "adapter",
            KindArg::Composition => "composition",
        }
    }
}
