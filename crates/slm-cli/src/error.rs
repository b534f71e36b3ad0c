//! What the program can fail with.

use std::path::PathBuf;

use slm_format::{Coded, ErrorClass};
use slm_runtime::RuntimeError;

/// An error of the program: the runtime's, or one of the outside world.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The runtime refused or failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A file does not exist.
    #[error("{path}: no such file or folder")]
    NoFile {
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
            CliError::Io { .. } => "io",
            CliError::Missing { .. } => "option-missing",
            CliError::Value { .. } => "option-value",
            CliError::Format { .. } => "unknown-format",
            CliError::Disagree { .. } => "bench-disagree",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            CliError::Runtime(error) => error.class(),
            CliError::NoFile { .. } => ErrorClass::NotFound,
            CliError::Io { .. } => ErrorClass::Io,
            CliError::Missing { .. } | CliError::Value { .. } => ErrorClass::Usage,
            CliError::Format { .. } => ErrorClass::Refused,
            CliError::Disagree { .. } => ErrorClass::Bug,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            CliError::Runtime(error) => error.hint(),
            _ => None,
        }
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
    slm_manifest::NameError,
    slm_overlay::OverlayError,
    slm_runtime::chat::ChatError,
    slm_runtime::error::ActivationError,
    slm_runtime::error::ModelError,
    slm_runtime::error::RequestError,
    slm_runtime::tokenizer::TokenizerError,
    slm_store::StoreError,
);
