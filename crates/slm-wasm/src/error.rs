//! What the class can fail with.

use slm_format::{Coded, ErrorClass};
use slm_overlay::OverlayError;
use slm_runtime::RuntimeError;

/// An error of the runtime, or a value from JavaScript that is none of those expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WasmError {
    /// The runtime refused or failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// An argument's value is wrong.
    #[error("{option} {value:?}: {reason}")]
    Value {
        /// The argument.
        option: &'static str,
        /// Its value, cut to 80 characters.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No adapter of this name was added.
    #[error("no adapter {name:?} was added")]
    NoAdapter {
        /// The name, cut to 80 characters.
        name: String,
    },
}

impl WasmError {
    /// [`WasmError::Value`] with a value that may be long.
    pub(crate) fn value(option: &'static str, value: &str, reason: String) -> WasmError {
        WasmError::Value { option, value: value.chars().take(80).collect(), reason }
    }
}

impl Coded for WasmError {
    fn code(&self) -> &'static str {
        match self {
            WasmError::Runtime(error) => error.code(),
            WasmError::Value { .. } => "option-value",
            WasmError::NoAdapter { .. } => "not-found",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            WasmError::Runtime(error) => error.class(),
            WasmError::Value { .. } => ErrorClass::Usage,
            WasmError::NoAdapter { .. } => ErrorClass::NotFound,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            WasmError::Runtime(error) => error.hint(),
            _ => None,
        }
    }
}

impl From<OverlayError> for WasmError {
    fn from(error: OverlayError) -> WasmError {
        WasmError::Runtime(error.into())
    }
}
