//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// One small language model, quantized and immutable, under any ordered stack of adapters, with proof of which composition produced which
/// bits.
#[derive(Debug, Parser)]
#[command(name = "slm", version, propagate_version = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Store folder [default: $SLM_STORE, then the platform's data folder]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// One JSON object on stdout; errors as JSON on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// No progress and no notes
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// What to do
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands, in the order a day uses them.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Bring a model into the store: a GGUF or .slm file, or a HF folder; `import oci DIR`: a composition from an OCI image layout
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
    /// Adapters
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
    /// The embedded tiny model: base, an adapter, another, and back; no file and no network
    Demo,
}

/// Adapter commands.
#[derive(Debug, Subcommand)]
pub(crate) enum AdapterCommand {
    /// Parse, bind and store an adapter
    Import {
        /// A PEFT folder, or a GGUF, Plan 008, compact or .slm file
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

/// Quality measures.
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Perplexity of a text
    Ppl {
        /// The text
        file: PathBuf,
        /// Ids per window
        #[arg(long, default_value_t = 512)]
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

/// Key commands.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key pair in minisign's form: NAME.pub and NAME.key
    New {
        /// What the files are called
        name: String,
        /// Where they go [default: the current folder]
        #[arg(long, value_name = "FOLDER")]
        dir: Option<PathBuf>,
        /// Put the secret key under the password in the first line of FILE
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
}

/// `sign`.
#[derive(Debug, Args)]
pub(crate) struct SignArgs {
    /// Name, composition id, manifest digest or manifest file; or the digest of an evaluation record
    pub(crate) what: String,
    /// The secret key
    #[arg(long, value_name = "FILE", conflicts_with = "signature")]
    pub(crate) key: Option<PathBuf>,
    /// The file whose first line is the key's password
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) password_file: Option<PathBuf>,
    /// Store this signature, which another program made
    #[arg(long, value_name = "FILE")]
    pub(crate) signature: Option<PathBuf>,
    /// The key it is by: a file or minisign's line [default: the trusted key of its id]
    #[arg(long, value_name = "KEY", requires = "signature")]
    pub(crate) public_key: Option<PathBuf>,
    /// Also write the signature here
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Only write the bytes that are signed here, for another program
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key", "signature", "out"])]
    pub(crate) document: Option<PathBuf>,
}

/// Trust commands.
#[derive(Debug, Subcommand)]
pub(crate) enum TrustCommand {
    /// Trust a public key
    Add {
        /// What its owner is called here
        name: String,
        /// minisign's file, or the line that it prints
        key: String,
    },
    /// Whom this store trusts
    List,
    /// Trust a key no longer
    Remove {
        /// What its owner is called here
        name: String,
    },
    /// Show the local policy, or change what it says of trust
    Policy {
        /// Who must have signed what is activated
        #[arg(value_enum)]
        rule: Option<RuleArg>,
        /// Key ids or names of trusted keys, for signed-by
        #[arg(value_name = "KEY")]
        keys: Vec<String>,
        /// Whether the empty stack may be activated
        #[arg(long, value_enum)]
        bare_base: Option<BareBaseArg>,
    },
}

/// Who must have signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuleArg {
    /// Nobody
    None,
    /// A trusted key
    Signed,
    /// One of these keys
    SignedBy,
}

/// Whether the empty stack may be activated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BareBaseArg {
    /// The rule decides
    AsOthers,
    /// Yes, without a signature
    Unsigned,
    /// Never
    Refused,
}

/// Which model a command runs: a composition of the store, or files.
#[derive(Debug, Clone, Args)]
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
pub(crate) struct EngineArgs {
    /// Threads [default: all cores]; changes no bit
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Kernel tier [default: the best of this machine]; changes no bit
    #[arg(long)]
    pub(crate) kernel: Option<String>,
    /// int8 blocks, or f32: the oracle mode, slow, with another execution id
    #[arg(long, value_enum, default_value_t = ActivationsArg::Int8)]
    pub(crate) activations: ActivationsArg,
    /// Precision of the KV cache [default: f16; f32 with --activations f32]
    #[arg(long, value_enum)]
    pub(crate) kv: Option<KvArg>,
    /// Tokens per prefill pass; changes no bit
    #[arg(long, value_parser = chunk, default_value_t = slm_runtime::generate::DEFAULT_CHUNK)]
    pub(crate) chunk: usize,
}

/// Precision of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ActivationsArg {
    /// Signed 8-bit blocks
    Int8,
    /// f32
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

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
pub(crate) struct SamplingArgs {
    /// Most tokens to generate
    #[arg(long, default_value_t = 128)]
    pub(crate) max_tokens: usize,
    /// Go on after an end-of-text token
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// 0 takes the most likely token
    #[arg(long, allow_negative_numbers = true, default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Candidates kept; 0 keeps all
    #[arg(long, default_value_t = 0)]
    pub(crate) top_k: usize,
    /// Probability mass kept
    #[arg(long, allow_negative_numbers = true, default_value_t = 1.0)]
    pub(crate) top_p: f32,
    /// Smallest probability kept, relative to the largest
    #[arg(long, allow_negative_numbers = true, default_value_t = 0.0)]
    pub(crate) min_p: f32,
    /// Above 1: turns away from the last 64 tokens
    #[arg(long, allow_negative_numbers = true, default_value_t = 1.0)]
    pub(crate) repeat_penalty: f32,
    /// The random number of a position is a function of the seed and the position
    #[arg(long, default_value_t = 0)]
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
    #[arg(long, default_value_t = 5)]
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

/// `plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Positions of the cache [default: the model's context]
    #[arg(long)]
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
    #[arg(long, default_value_t = 0)]
    pub(crate) depth: usize,
    /// Prompt tokens
    #[arg(long, default_value_t = 512)]
    pub(crate) prompt: usize,
    /// Tokens to generate
    #[arg(long, default_value_t = 128)]
    pub(crate) generate: usize,
    /// Runs; the medians are reported
    #[arg(long, default_value_t = 3)]
    pub(crate) runs: usize,
    /// Which model
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// How it runs
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// A number of tokens, at least one.
fn chunk(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(0) => Err("expected 1 or more".to_owned()),
        Ok(chunk) => Ok(chunk),
        Err(error) => Err(error.to_string()),
    }
}
