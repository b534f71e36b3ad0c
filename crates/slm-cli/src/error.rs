//! What the program can fail with.

use std::path::PathBuf;

use slm_format::{Coded, ErrorClass};
use slm_runtime::RuntimeError;

use crate::output::counted;
use crate::world::POLICY_FILE;

/// An error of the program: the runtime's, or one of the outside world.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The runtime refused or failed.
    #[error(transparent)]
    Runtime(RuntimeError),
    /// A file does not exist.
    #[error("{path}: no such file or folder")]
    NoFile {
        /// The path.
        path: PathBuf,
    },
    /// Something stands where a file is to be written.
    #[error("{path} is there already")]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The command line does not parse.
    #[error("{message}")]
    CommandLine {
        /// What is wrong.
        message: String,
        /// How the command is used.
        usage: Option<String>,
    },
    /// A name that was given cannot be one.
    #[error("{option}: {error}")]
    Name {
        /// The option or argument.
        option: &'static str,
        /// What is wrong with it.
        error: slm_manifest::NameError,
    },
    /// An option that the command needs is missing.
    #[error("{option} is missing")]
    Missing {
        /// The option.
        option: &'static str,
    },
    /// An option's value is wrong.
    #[error("{option} {value:?}: {reason}")]
    Value {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is wrong.
        reason: String,
    },
    /// A file is in no format that can be used here.
    #[error("{path}: {reason}")]
    Format {
        /// The path.
        path: PathBuf,
        /// What it is not.
        reason: &'static str,
    },
    /// An adapter as torch pickles it. Reading one can run code, so none is read.
    #[error("{path}: a pickle can run code when it is read")]
    Pickle {
        /// The path.
        path: PathBuf,
    },
    /// The local policy is wrong, wherever that is found.
    #[error("the local policy, {POLICY_FILE} in the store: {0}")]
    Policy(#[from] slm_manifest::PolicyError),
    /// An evaluation cannot be recorded.
    #[error(transparent)]
    Evaluation(#[from] slm_manifest::EvaluationError),
    /// The store does not hold what it promises.
    #[error("{} wrong in the store:\n{}", counted(findings.len() as u64, "thing"), findings.join("\n"))]
    Unclean {
        /// What is broken, where, with the code of each fault.
        findings: Vec<String>,
    },
    /// The program panicked.
    #[error("BUG: {what}")]
    Panic {
        /// Where and why.
        what: String,
    },
    /// Two runs that must agree do not.
    #[error("BUG: the timed runs gave different logits: {first} and {other}")]
    Disagree {
        /// Hash of the first run.
        first: String,
        /// Hash of another.
        other: String,
    },
}

impl CliError {
    /// Takes a message that clap has rendered apart.
    pub(crate) fn command_line(rendered: &str) -> CliError {
        let mut paragraphs = rendered.trim().split("\n\n").map(str::trim);
        let message = paragraphs.next().unwrap_or_default();
        let usage = paragraphs.find(|text| text.starts_with("Usage:"));
        CliError::CommandLine {
            message: message.strip_prefix("error: ").unwrap_or(message).to_owned(),
            usage: usage.map(str::to_owned),
        }
    }

    /// A second path where only an OCI image layout has one.
    pub(crate) fn layout_of(word: &std::path::Path) -> CliError {
        CliError::CommandLine {
            message: format!("{}: before a layout's folder stands the word oci", word.display()),
            usage: Some("Usage: slm import oci DIR --name NAME".to_owned()),
        }
    }

    /// Names the path of an input/output error.
    pub(crate) fn io(path: impl Into<PathBuf>, error: std::io::Error) -> CliError {
        let path = path.into();
        match error.kind() {
            std::io::ErrorKind::NotFound => CliError::NoFile { path },
            _ => CliError::Io { path, error },
        }
    }
}

impl Coded for CliError {
    fn code(&self) -> &'static str {
        match self {
            CliError::Runtime(error) => error.code(),
            CliError::NoFile { .. } => "file-not-found",
            CliError::Exists { .. } => "file-exists",
            CliError::Io { .. } => "io",
            CliError::CommandLine { .. } => "command-line",
            CliError::Name { error, .. } => error.code(),
            CliError::Missing { .. } => "option-missing",
            CliError::Value { .. } => "option-value",
            CliError::Format { .. } => "unknown-format",
            CliError::Pickle { .. } => "adapter-pickle",
            CliError::Policy(error) => error.code(),
            CliError::Evaluation(error) => error.code(),
            CliError::Unclean { .. } => "store-unclean",
            CliError::Panic { .. } => "panic",
            CliError::Disagree { .. } => "bench-disagree",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            CliError::Runtime(error) => error.class(),
            CliError::NoFile { .. } => ErrorClass::NotFound,
            CliError::Io { .. } => ErrorClass::Io,
            CliError::CommandLine { .. }
            | CliError::Name { .. }
            | CliError::Missing { .. }
            | CliError::Value { .. } => ErrorClass::Usage,
            CliError::Policy(error) => error.class(),
            CliError::Format { .. } | CliError::Pickle { .. } | CliError::Exists { .. } => {
                ErrorClass::Refused
            }
            CliError::Evaluation(error) => error.class(),
            CliError::Unclean { .. } => ErrorClass::Damaged,
            CliError::Panic { .. } | CliError::Disagree { .. } => ErrorClass::Bug,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            CliError::Runtime(error) => {
                advice(error.code()).map(str::to_owned).or_else(|| error.hint())
            }
            CliError::CommandLine { usage, .. } => usage.clone(),
            CliError::Pickle { .. } => {
                Some("save the adapter again with safe_serialization=True".to_owned())
            }
            _ => None,
        }
    }
}

/// What a person at this program can do about an error of the libraries.
fn advice(code: &str) -> Option<&'static str> {
    Some(match code {
        "none-active" => "activate a composition (slm activate NAME), or give --model FILE",
        "not-found" => "slm list shows what is in the store",
        "base-absent" => "import the base (slm import FILE --name NAME); its id must be this one",
        "adapter-absent" => "import the adapter (slm adapter import PATH --name NAME --base BASE)",
        "adapter-base-mismatch" => "import the adapter again for this base",
        "name-damaged" => {
            "give the name anew with --replace, or take it away: slm forget NAME --kind KIND"
        }
        "not-from-gguf" => {
            "only a base that came as GGUF can be written as GGUF; slm bake --format safetensors writes a folder"
        }
        "secret-key-encrypted" => "give the file that holds the password: --password-file FILE",
        "chat-no-template" => "slm run completes a text without a template",
        _ => return None,
    })
}

impl From<RuntimeError> for CliError {
    fn from(error: RuntimeError) -> CliError {
        match error {
            // The runtime knows the document; only here is it known to be a file.
            RuntimeError::Policy(error) => CliError::Policy(error),
            error => CliError::Runtime(error),
        }
    }
}

impl From<slm_manifest::signature::SignatureError> for CliError {
    fn from(error: slm_manifest::signature::SignatureError) -> CliError {
        slm_runtime::runtime::ShareError::from(error).into()
    }
}

/// Lets `?` turn every runtime-side error into ours.
macro_rules! through_runtime {
    ($($error:ty),* $(,)?) => {
        $(impl From<$error> for CliError {
            fn from(error: $error) -> CliError {
                CliError::Runtime(RuntimeError::from(error))
            }
        })*
    };
}

through_runtime!(
    slm_format::container::ContainerError,
    slm_format::gguf::GgufError,
    slm_format::safetensors::SafeTensorsError,
    slm_manifest::ManifestError,
    slm_overlay::OverlayError,
    slm_overlay::binary::BinaryError,
    slm_runtime::bake::BakeError,
    slm_runtime::chat::ChatError,
    slm_runtime::error::ActivationError,
    slm_runtime::error::ModelError,
    slm_runtime::error::RequestError,
    slm_runtime::runtime::ShareError,
    slm_runtime::tokenizer::TokenizerError,
    slm_store::StoreError,
);
