//! What cannot be baked.

use slm_format::{Coded, ErrorClass};
use slm_overlay::MaterializeError;

/// A composition that is no plain model, or none in the form asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BakeError {
    /// A part of the stack is no change of weights.
    #[error(transparent)]
    Stack(#[from] MaterializeError),
    /// One side of a tied base would differ from the other.
    #[error(
        "the stack changes {tensor} of a base whose head is its embedding table; baking it makes two tables of one"
    )]
    TiedSplit {
        /// The side that is changed.
        tensor: &'static str,
    },
    /// A changed tensor's encoding is only read.
    #[error("{tensor}: slm reads {encoding} and does not write it")]
    Encoder {
        /// The tensor.
        tensor: String,
        /// Its encoding.
        encoding: &'static str,
    },
    /// A weight that its encoding cannot hold.
    #[error("{tensor}: {value} at row {row}, column {column} is beyond {encoding}")]
    Range {
        /// The tensor.
        tensor: String,
        /// Row of the weight.
        row: u64,
        /// Column of the weight.
        column: u64,
        /// The weight.
        value: f64,
        /// The encoding.
        encoding: &'static str,
    },
    /// A model that the form cannot express.
    #[error("a HF folder cannot hold this model: its {what} is {found}")]
    Format {
        /// What it cannot hold.
        what: &'static str,
        /// Its value.
        found: String,
    },
    /// A tokenizer that `tokenizer.json` cannot express.
    #[error("tokenizer.json cannot express this tokenizer: {reason}")]
    Tokenizer {
        /// What differs.
        reason: String,
    },
}

impl Coded for BakeError {
    fn code(&self) -> &'static str {
        match self {
            BakeError::Stack(error) => error.code(),
            BakeError::TiedSplit { .. } => "bake-tied-split",
            BakeError::Encoder { .. } => "bake-encoder",
            BakeError::Range { .. } => "bake-range",
            BakeError::Format { .. } => "bake-format",
            BakeError::Tokenizer { .. } => "bake-tokenizer",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            BakeError::Stack(error) => error.class(),
            _ => ErrorClass::Refused,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            BakeError::TiedSplit { .. } => "allow the second table (slm bake --untie)",
            BakeError::Encoder { .. } | BakeError::Range { .. } => {
                "bake to f16 or f32 (slm bake --encoding f32)"
            }
            BakeError::Format { what: "encoding", .. } => "bake to f16 or f32 (--encoding f32)",
            BakeError::Format { .. } | BakeError::Tokenizer { .. } => {
                "bake to GGUF, which keeps the metadata and the tokenizer of the source"
            }
            BakeError::Stack(_) => return None,
        };
        Some(hint.to_owned())
    }
}
