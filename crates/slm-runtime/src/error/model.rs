//! A model file that cannot be run.

use slm_format::{Coded, ContentHash, Encoding};
use slm_manifest::BaseId;

/// A model file that is well-formed but not a model slm can run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The bytes are in no format that slm reads.
    #[error(
        "not a model file: the first bytes are {found:02x?}; GGUF, .slm and SLM1 are read, and folders with config.json"
    )]
    UnknownFormat {
        /// The first bytes, at most eight.
        found: Vec<u8>,
    },
    /// The architecture is not one of ours.
    #[error("architecture {found:?} is not supported; llama and gemma3 are")]
    Architecture {
        /// What the file says.
        found: String,
    },
    /// `config.json` is not JSON of the expected shape.
    #[error("config.json: {reason}")]
    ConfigJson {
        /// The parser's message.
        reason: String,
    },
    /// A configuration key changes the model in a way slm does not implement.
    #[error("{key} = {value} is not supported")]
    ConfigKey {
        /// The key as the file spells it.
        key: String,
        /// Its value, shortened.
        value: String,
    },
    /// A configuration key is missing.
    #[error("{key} is missing")]
    ConfigMissing {
        /// The key as the file spells it.
        key: String,
    },
    /// The file is not a model (an adapter, a projector).
    #[error("general.type is {found:?}: this file is not a model")]
    NotAModel {
        /// What the file says it is.
        found: String,
    },
    /// A tensor of the graph is missing.
    #[error("tensor {name} is missing")]
    TensorMissing {
        /// Its canonical name.
        name: String,
    },
    /// A tensor is there that the graph would ignore.
    #[error("tensor {name} is not part of the {architecture} graph; it would be ignored")]
    TensorUnknown {
        /// Its name in the file.
        name: String,
        /// The graph.
        architecture: &'static str,
    },
    /// A tensor has another shape than the configuration says.
    #[error("tensor {name} has shape {found:?}, expected {expected:?} (innermost first)")]
    TensorShape {
        /// Its canonical name.
        name: String,
        /// The shape in the file, innermost first.
        found: Vec<u64>,
        /// The shape the configuration implies.
        expected: Vec<u64>,
    },
    /// A tensor's encoding cannot be used where it stands.
    #[error("tensor {name} is {found}; it must be F32, F16 or BF16")]
    TensorEncoding {
        /// Its canonical name.
        name: String,
        /// The encoding in the file.
        found: Encoding,
    },
    /// A tensor is in a number format that slm does not read.
    #[error("tensor {name} has dtype {found}")]
    TensorDtype {
        /// Its name in the file.
        name: String,
        /// The dtype in the file.
        found: String,
    },
    /// A weight, decoded, is not a finite number.
    #[error("tensor {name}: element {at} is {value}")]
    TensorValue {
        /// Its canonical name.
        name: String,
        /// Which element, row-major.
        at: u64,
        /// The element.
        value: f32,
    },
    /// The tokenizer and the embedding table disagree.
    #[error("the tokenizer has {tokenizer} tokens, the model {model}")]
    Vocabulary {
        /// Tokens of the tokenizer.
        tokenizer: u64,
        /// Rows of the embedding table.
        model: u64,
    },
    /// A tensor's bytes do not have the hash that the directory gives.
    #[error("tensor {name}: its content is {found}, the directory says {expected}")]
    TensorContent {
        /// Its canonical name.
        name: String,
        /// The hash in the directory.
        expected: ContentHash,
        /// The hash of the bytes.
        found: ContentHash,
    },
    /// A base file's identity is not the one it was asked for by.
    #[error("this base is {found}, expected {expected}")]
    BaseMismatch {
        /// The identity asked for.
        expected: BaseId,
        /// The identity computed.
        found: BaseId,
    },
    /// A section that a base must have is missing.
    #[error("this .slm file has no {section} section: it is not a base")]
    SectionMissing {
        /// The section.
        section: &'static str,
    },
    /// A section's content cannot be decoded.
    #[error("the {section} section cannot be decoded")]
    SectionContent {
        /// The section.
        section: &'static str,
    },
    /// The base did not come from a GGUF file, whose metadata an export needs.
    #[error("this base was not imported from GGUF, so there is no GGUF metadata to write")]
    NotFromGguf,
    /// A file of a model folder is missing.
    #[error("the folder has no {file}")]
    FileMissing {
        /// Its name.
        file: String,
    },
}

impl Coded for ModelError {
    fn code(&self) -> &'static str {
        match self {
            ModelError::UnknownFormat { .. } => "unknown-format",
            ModelError::Architecture { .. } => "architecture-unsupported",
            ModelError::ConfigJson { .. } => "config-json",
            ModelError::ConfigKey { .. } => "config-unsupported",
            ModelError::ConfigMissing { .. } => "config-missing",
            ModelError::NotAModel { .. } => "not-a-model",
            ModelError::TensorMissing { .. } => "tensor-missing",
            ModelError::TensorUnknown { .. } => "tensor-unknown",
            ModelError::TensorShape { .. } => "tensor-shape",
            ModelError::TensorEncoding { .. } => "tensor-encoding",
            ModelError::TensorDtype { .. } => "tensor-dtype",
            ModelError::TensorValue { .. } => "tensor-value",
            ModelError::Vocabulary { .. } => "vocabulary-mismatch",
            ModelError::TensorContent { .. } => "tensor-content",
            ModelError::BaseMismatch { .. } => "base-mismatch",
            ModelError::SectionMissing { .. } => "section-missing",
            ModelError::SectionContent { .. } => "section-content",
            ModelError::NotFromGguf => "not-from-gguf",
            ModelError::FileMissing { .. } => "file-missing",
        }
    }
}
