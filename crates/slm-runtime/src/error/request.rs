//! A request that cannot be served.

use slm_format::{Coded, ErrorClass};

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
