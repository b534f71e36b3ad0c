//! What can go wrong between messages and a prompt.

use slm_format::gguf::GgufError;
use slm_format::{Coded, ErrorClass};

use crate::tokenizer::TokenizerError;

/// A template that cannot be read or run, or messages that it does not take.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The model's file has no template; the caller decides what to do then.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The metadata that holds the template could not be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The configuration that holds the template is not JSON.
    #[error("tokenizer_config.json: {message}")]
    Json {
        /// What the JSON reader says.
        message: String,
    },
    /// The template does not parse.
    #[error("line {line} of the chat template: {message}")]
    Syntax {
        /// Line, from 1; 0 where it is not known.
        line: u64,
        /// What is wrong.
        message: String,
    },
    /// The template stopped at an error of its own making, or over its budget of steps.
    #[error("line {line} of the chat template: {message}")]
    Failed {
        /// Line, from 1; 0 where it is not known.
        line: u64,
        /// What is wrong.
        message: String,
    },
    /// The template refused the messages through `raise_exception`.
    #[error("the chat template refuses: {message}")]
    Raised {
        /// The template's own words.
        message: String,
    },
    /// The template asks for the date and none was given.
    #[error("the chat template asks for today's date and none was given")]
    NoDate,
    /// A date that is not `YYYY-MM-DD`, or a time behind it that is not `THH:MM:SS`.
    #[error("{found:?} is no date; expected YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS")]
    BadDate {
        /// What was given.
        found: String,
    },
    /// A role that is not one short word, so that it could write markup.
    #[error("role {found:?}; expected 1 to 64 letters, digits, - or _")]
    BadRole {
        /// The role.
        found: String,
    },
    /// The messages hold every private-use character, so that none is left to mark what users wrote.
    #[error("the messages hold all private-use characters; leave one out")]
    NoGuard,
    /// A size is over its limit.
    #[error("{field} is {found} bytes, the limit is {limit}")]
    TooLarge {
        /// What was measured.
        field: &'static str,
        /// Its size, or how much of it there was when the limit was passed.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The prompt cannot be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl Coded for ChatError {
    fn code(&self) -> &'static str {
        match self {
            ChatError::NoTemplate => "chat-no-template",
            ChatError::Gguf(error) => error.code(),
            ChatError::Json { .. } => "chat-bad-json",
            ChatError::Syntax { .. } => "chat-template-syntax",
            ChatError::Failed { .. } => "chat-template-failed",
            ChatError::Raised { .. } => "chat-template-raised",
            ChatError::NoDate => "chat-no-date",
            ChatError::BadDate { .. } => "chat-bad-date",
            ChatError::BadRole { .. } => "chat-bad-role",
            ChatError::NoGuard => "chat-no-guard",
            ChatError::TooLarge { .. } => "limit-exceeded",
            ChatError::Tokenizer(error) => error.code(),
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            ChatError::Gguf(error) => error.class(),
            ChatError::Tokenizer(error) => error.class(),
            ChatError::BadRole { .. } | ChatError::BadDate { .. } => ErrorClass::Usage,
            _ => ErrorClass::Refused,
        }
    }
}
