//! What can go wrong in the runtime, each with its stable code.

use slm_format::container::{ContainerError, ContainerWriteError};
use slm_format::gguf::{GgufError, GgufWriteError};
use slm_format::safetensors::SafeTensorsError;
use slm_format::slm1::Slm1Error;
use slm_format::{Coded, ContentHash, Digest, DigestError, Encoding, ErrorClass};
use slm_kv::KvError;
use slm_manifest::config::ConfigError;
use slm_manifest::{AdapterId, BaseId, ManifestError, NameError, TokenizerId, TrustError};
use slm_overlay::OverlayError;
use slm_quant::QuantError;
use slm_store::StoreError;

use crate::budget::BudgetError;
use crate::chat::ChatError;
use crate::runtime::ShareError;
use crate::tokenizer::TokenizerError;

/// Any error of this crate. [`Coded::code`] gives the stable code, [`Coded::class`] who is at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// A GGUF file is wrong.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A safetensors file is wrong.
    #[error(transparent)]
    SafeTensors(#[from] SafeTensorsError),
    /// An SLM1 file is wrong.
    #[error(transparent)]
    Slm1(#[from] Slm1Error),
    /// A `.slm` container is wrong.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// A `.slm` container cannot be written.
    #[error(transparent)]
    ContainerWrite(#[from] ContainerWriteError),
    /// A GGUF file cannot be written.
    #[error(transparent)]
    GgufWrite(#[from] GgufWriteError),
    /// A model configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tokenizer is wrong, or text cannot be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A chat template failed.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A weight matrix or an activation is wrong.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// An adapter is wrong or does not fit.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// A manifest is wrong.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A name cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A digest is misspelt or does not match.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// The store failed or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The KV cache refused.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// The model itself is wrong.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A composition could not be made or activated.
    #[error(transparent)]
    Activation(#[from] ActivationError),
    /// A request to a session cannot be served.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// More memory would be needed than the caller allows.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// A switch or a generation has to wait for another.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The local policy does not trust a manifest.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// A composition cannot be shared, or a package is refused.
    #[error(transparent)]
    Share(#[from] ShareError),
}

impl RuntimeError {
    fn inner(&self) -> &dyn Coded {
        match self {
            RuntimeError::Gguf(e) => e,
            RuntimeError::SafeTensors(e) => e,
            RuntimeError::Slm1(e) => e,
            RuntimeError::Container(e) => e,
            RuntimeError::ContainerWrite(e) => e,
            RuntimeError::GgufWrite(e) => e,
            RuntimeError::Config(e) => e,
            RuntimeError::Tokenizer(e) => e,
            RuntimeError::Chat(e) => e,
            RuntimeError::Quant(e) => e,
            RuntimeError::Overlay(e) => e,
            RuntimeError::Manifest(e) => e,
            RuntimeError::Name(e) => e,
            RuntimeError::Digest(e) => e,
            RuntimeError::Store(e) => e,
            RuntimeError::Kv(e) => e,
            RuntimeError::Model(e) => e,
            RuntimeError::Activation(e) => e,
            RuntimeError::Request(e) => e,
            RuntimeError::Budget(e) => e,
            RuntimeError::Switch(e) => e,
            RuntimeError::Trust(e) => e,
            RuntimeError::Share(e) => e,
        }
    }
}

impl From<slm_overlay::binary::BinaryError> for RuntimeError {
    fn from(error: slm_overlay::binary::BinaryError) -> RuntimeError {
        RuntimeError::Overlay(error.into())
    }
}

impl Coded for RuntimeError {
    fn code(&self) -> &'static str {
        self.inner().code()
    }

    fn class(&self) -> ErrorClass {
        self.inner().class()
    }

    fn hint(&self) -> Option<String> {
        self.inner().hint()
    }
}

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

/// Why a composition cannot be made, found or activated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ActivationError {
    /// Nothing in the store has this name or digest.
    #[error("no {kind} called {name:?} in the store")]
    NotFound {
        /// base, adapter or composition.
        kind: &'static str,
        /// What was asked for.
        name: String,
    },
    /// A manifest names a base that the store does not hold.
    #[error("the manifest needs base {base}, which is not in the store")]
    BaseAbsent {
        /// The base.
        base: BaseId,
    },
    /// A generation of this store needs a base that is gone.
    #[error("base {base} is missing, and the active generation needs it")]
    BaseLost {
        /// The base.
        base: BaseId,
    },
    /// A manifest names an adapter file that the store does not hold.
    #[error("the manifest needs adapter {name:?} ({file_hash}), which is not in the store")]
    AdapterAbsent {
        /// The adapter's name in the manifest.
        name: String,
        /// The digest of its file.
        file_hash: Digest,
    },
    /// An adapter blob is another adapter than the manifest says.
    #[error("adapter {name:?} is {found}, the manifest says {expected}")]
    AdapterMismatch {
        /// The adapter's name in the manifest.
        name: String,
        /// The identity in the manifest.
        expected: AdapterId,
        /// The identity of the blob.
        found: AdapterId,
    },
    /// The base's tokenizer is not the one the manifest or the adapter names.
    #[error("the base's tokenizer is {found}, expected {expected}")]
    TokenizerMismatch {
        /// The identity in the manifest.
        expected: TokenizerId,
        /// The identity of the base's tokenizer.
        found: TokenizerId,
    },
    /// An adapter's file requires something else than the base is.
    #[error("adapter {name:?} requires {what} {required}, the base has {found}")]
    AdapterRequires {
        /// The adapter's name.
        name: String,
        /// What differs.
        what: &'static str,
        /// What its file says.
        required: String,
        /// What the base has.
        found: String,
    },
    /// A tokenizer beside an adapter has other tokens than the base.
    #[error("the adapter's tokenizer has {claimed:?} for id {id}, the base has {found:?}")]
    AdapterTokens {
        /// The id.
        id: u64,
        /// The adapter's token.
        claimed: String,
        /// The base's, where it has one.
        found: Option<String>,
    },
    /// A descriptive field of a manifest does not describe what it names.
    #[error("the manifest's {field} is {found}, the composition's is {expected}")]
    ManifestContradicts {
        /// The field.
        field: String,
        /// What the manifest says.
        found: String,
        /// What the blobs say.
        expected: String,
    },
    /// A compression plan is named, and this build runs none.
    #[error("the manifest names a compression plan, which this build does not run")]
    PlanUnsupported,
    /// An adapter was bound to another base.
    #[error("adapter {name:?} was imported for base {bound}, not for {base}")]
    AdapterBase {
        /// The adapter's name.
        name: String,
        /// The base it was imported for.
        bound: BaseId,
        /// The base asked for.
        base: BaseId,
    },
    /// A name's record names another identity than the blob it points to.
    #[error("the record of the {kind} name {name} says {expected}, its blob is {found}")]
    RecordContradicts {
        /// adapter or composition.
        kind: &'static str,
        /// The name.
        name: String,
        /// The identity in the record.
        expected: Digest,
        /// The identity that the blob gives.
        found: Digest,
    },
    /// No composition is active.
    #[error("no composition is active")]
    NoneActive,
    /// The active generation has no parent.
    #[error("generation {number} has no parent to roll back to")]
    NoParent {
        /// The active generation's number.
        number: u64,
    },
}

impl Coded for ActivationError {
    fn code(&self) -> &'static str {
        match self {
            ActivationError::NotFound { .. } => "not-found",
            ActivationError::BaseAbsent { .. } => "base-absent",
            ActivationError::BaseLost { .. } => "blob-missing",
            ActivationError::AdapterAbsent { .. } => "adapter-absent",
            ActivationError::AdapterMismatch { .. } => "adapter-mismatch",
            ActivationError::TokenizerMismatch { .. } | ActivationError::AdapterTokens { .. } => {
                "tokenizer-mismatch"
            }
            ActivationError::AdapterRequires { .. } => "adapter-requires",
            ActivationError::ManifestContradicts { .. } => "manifest-contradicts",
            ActivationError::PlanUnsupported => "plan-unsupported",
            ActivationError::AdapterBase { .. } => "adapter-base-mismatch",
            ActivationError::RecordContradicts { .. } => "name-damaged",
            ActivationError::NoneActive => "none-active",
            ActivationError::NoParent { .. } => "no-parent",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            ActivationError::NotFound { .. }
            | ActivationError::NoneActive
            | ActivationError::NoParent { .. } => ErrorClass::NotFound,
            ActivationError::RecordContradicts { .. } | ActivationError::BaseLost { .. } => {
                ErrorClass::Damaged
            }
            _ => ErrorClass::Refused,
        }
    }
}

/// A switch and generations that are in each other's way. Nothing was changed; trying again later may succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// Generations run, and the policy is to reject a switch then.
    #[error("{running} generations are running, and the policy is to reject a switch then")]
    Running {
        /// How many.
        running: u64,
    },
    /// Generations did not end while the switch waited for them.
    #[error("{running} generations did not end while the switch waited for them")]
    NotDrained {
        /// How many were left.
        running: u64,
    },
    /// A switch is on its way in this process.
    #[error("a switch is on its way")]
    Switching,
    /// A staged switch was called off by its caller.
    #[error("the switch was called off")]
    Cancelled,
}

impl Coded for SwitchError {
    fn code(&self) -> &'static str {
        match self {
            SwitchError::Running { .. } => "generation-running",
            SwitchError::NotDrained { .. } => "drain-timeout",
            SwitchError::Switching => "switch-running",
            SwitchError::Cancelled => "switch-cancelled",
        }
    }

    fn class(&self) -> ErrorClass {
        ErrorClass::Busy
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            SwitchError::Running { .. } => {
                "wait until they have ended, or set the policy to abort or drain"
            }
            SwitchError::NotDrained { .. } => "allow a longer wait, or set the policy to abort",
            SwitchError::Switching => "try again when it is done",
            SwitchError::Cancelled => return None,
        };
        Some(hint.to_owned())
    }
}

/// Why a session cannot serve a request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There is nothing to compute.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A token id is outside the vocabulary.
    #[error("token {id} at position {position} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Its position in the request.
        position: u64,
        /// Tokens of the model.
        vocab_size: u32,
    },
    /// The request needs more positions than the model has.
    #[error("{needed} positions are needed, the context is {context_length}")]
    ContextFull {
        /// Positions the request needs.
        needed: u64,
        /// Positions there are.
        context_length: u32,
    },
    /// Sessions that differ in what a common pass needs to be one.
    #[error("session {index} of a common step has another {what} than the first")]
    MixedStep {
        /// Which of the sessions.
        index: usize,
        /// What differs: base or activations.
        what: &'static str,
    },
    /// A logit is not finite.
    #[error("logit {id} at position {position} is not finite")]
    NonFiniteLogit {
        /// The token id of the logit.
        id: u32,
        /// The position.
        position: u64,
    },
    /// A sampling setting is out of range.
    #[error("{setting} is {found}, expected {expected}")]
    Sampling {
        /// The setting.
        setting: &'static str,
        /// Its value.
        found: f32,
        /// What it must be.
        expected: &'static str,
    },
    /// A profile whose parts exclude each other.
    #[error("{setting} cannot be combined with {with}")]
    Profile {
        /// The setting that gives way.
        setting: &'static str,
        /// The setting it contradicts.
        with: &'static str,
    },
    /// The text to evaluate is too short.
    #[error("the text has {tokens} tokens; a window of at least two is needed")]
    TextTooShort {
        /// Tokens there are.
        tokens: u64,
    },
}

impl Coded for RequestError {
    fn code(&self) -> &'static str {
        match self {
            RequestError::EmptyPrompt => "empty-prompt",
            RequestError::TokenOutOfRange { .. } => "token-out-of-range",
            RequestError::ContextFull { .. } => "context-full",
            RequestError::MixedStep { .. } => "mixed-step",
            RequestError::NonFiniteLogit { .. } => "non-finite-logit",
            RequestError::Sampling { .. } => "sampling-range",
            RequestError::Profile { .. } => "profile-contradicts",
            RequestError::TextTooShort { .. } => "text-too-short",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            RequestError::ContextFull { .. } => ErrorClass::Budget,
            RequestError::NonFiniteLogit { .. } | RequestError::TextTooShort { .. } => {
                ErrorClass::Refused
            }
            _ => ErrorClass::Usage,
        }
    }
}
