//! Why a composition is not activated.

use slm_format::{Coded, Digest, ErrorClass};
use slm_manifest::{AdapterId, BaseId, TokenizerId};

use crate::tokenizer::TokenizerError;

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
    /// An adapter's file requires tensors of other encodings than the base has.
    #[error("adapter {name:?} requires the quantization {required}, the base has {found}")]
    AdapterQuantization {
        /// The adapter's name.
        name: String,
        /// Encodings and how many tensors have each, as its file says.
        required: String,
        /// As the base has.
        found: String,
    },
    /// An adapter's file requires another version of the arithmetic than this build's.
    #[error("adapter {name:?} requires numerics {required}, this build computes by {found}")]
    AdapterNumerics {
        /// The adapter's name.
        name: String,
        /// The version in its file.
        required: u32,
        /// This build's.
        found: u32,
    },
    /// A tokenizer beside an adapter has other tokens than the base.
    #[error(
        "the adapter's tokenizer has {} for id {id}, the base has {}",
        or_nothing(.claimed),
        or_nothing(.found)
    )]
    AdapterTokens {
        /// The id.
        id: u64,
        /// The adapter's token, where it has one.
        claimed: Option<String>,
        /// The base's, where it has one.
        found: Option<String>,
    },
    /// A tokenizer beside an adapter makes other tokens of a text than the base's.
    #[error(
        "the adapter's tokenizer is not the base's: {part} {at} is {claimed}, the base's {found}"
    )]
    AdapterTokenizer {
        /// What differs.
        part: &'static str,
        /// Its place, 0 where there is one of it.
        at: u64,
        /// The adapter's.
        claimed: String,
        /// The base's.
        found: String,
    },
    /// A tokenizer beside an adapter is none that a base here could have.
    #[error("the adapter's tokenizer is not the base's: {0}")]
    AdapterTokenizerRules(Box<TokenizerError>),
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

fn or_nothing(text: &Option<String>) -> String {
    text.as_ref().map_or_else(|| "nothing".to_owned(), |text| format!("{text:?}"))
}

impl Coded for ActivationError {
    fn code(&self) -> &'static str {
        match self {
            ActivationError::NotFound { .. } => "not-found",
            ActivationError::BaseAbsent { .. } => "base-absent",
            ActivationError::BaseLost { .. } => "blob-missing",
            ActivationError::AdapterAbsent { .. } => "adapter-absent",
            ActivationError::AdapterMismatch { .. } => "adapter-mismatch",
            ActivationError::TokenizerMismatch { .. }
            | ActivationError::AdapterTokens { .. }
            | ActivationError::AdapterTokenizer { .. }
            | ActivationError::AdapterTokenizerRules(_) => "tokenizer-mismatch",
            ActivationError::AdapterQuantization { .. } => "adapter-quantization",
            ActivationError::AdapterNumerics { .. } => "adapter-numerics",
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

    fn hint(&self) -> Option<String> {
        match self {
            ActivationError::AdapterTokens { .. }
            | ActivationError::AdapterTokenizer { .. }
            | ActivationError::AdapterTokenizerRules(_) => Some(
                "use the base that the adapter was made on; if you know that no text of yours shows the difference, take the tokenizer's files out of the folder".into(),
            ),
            _ => None,
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
