//! Why a document is not a policy.

use slm_format::Coded;

use crate::name::NameError;
use crate::signature::{KeyId, SignatureError};

/// A policy that cannot be followed. `field` is the parameter, for example `store.keep_generations`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The document is longer than [`slm_format::Limits::max_header_bytes`].
    #[error("the policy is {found} bytes long, the limit is {limit}")]
    TooLong {
        /// Bytes found.
        found: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The document is not text.
    #[error("the policy is not UTF-8 from byte {offset} on")]
    NotUtf8 {
        /// The first byte that is none.
        offset: u64,
    },
    /// Not TOML, a parameter that there is not, one given twice, or a value of another type.
    #[error("not a policy at line {line}: {problem}")]
    Syntax {
        /// The line, from 1.
        line: u64,
        /// The parser's words.
        problem: String,
    },
    /// A number is outside its bounds.
    #[error("{field} is {found}, expected {min} to {max}")]
    Range {
        /// The parameter.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The smallest value allowed.
        min: u64,
        /// The largest value allowed.
        max: u64,
    },
    /// A trusted key has no name that can be one.
    #[error("trust.keys[{at}].name: {source}")]
    Name {
        /// Its place in the list.
        at: u64,
        /// What is wrong with it.
        source: NameError,
    },
    /// A trusted key, or an id, is none.
    #[error("{field}: {source}")]
    Key {
        /// The parameter.
        field: String,
        /// What is wrong with it.
        source: SignatureError,
    },
    /// Two trusted keys have one name, or one key stands twice.
    #[error("trust.keys[{at}]: {name} or its key is in the list already")]
    DuplicateKey {
        /// The place of the second one.
        at: u64,
        /// Its name.
        name: String,
    },
    /// The rule is signed-by without ids, or another rule with some.
    #[error(
        "trust.signed_by has {found} ids; the rule signed-by needs one at least, another rule none"
    )]
    SignedBy {
        /// How many ids there are.
        found: u64,
    },
    /// An id of which there is no trusted key.
    #[error("trust.signed_by names the key {key}, which is not in trust.keys")]
    UnknownKey {
        /// The id.
        key: KeyId,
    },
}

impl Coded for PolicyError {
    fn code(&self) -> &'static str {
        match self {
            PolicyError::TooLong { .. } => "limit-exceeded",
            PolicyError::NotUtf8 { .. } => "not-utf8",
            PolicyError::Syntax { .. } => "policy-syntax",
            PolicyError::Range { .. } => "policy-range",
            PolicyError::Name { source, .. } => source.code(),
            PolicyError::Key { source, .. } => source.code(),
            PolicyError::DuplicateKey { .. } => "policy-duplicate-key",
            PolicyError::SignedBy { .. } => "policy-signed-by",
            PolicyError::UnknownKey { .. } => "policy-unknown-key",
        }
    }
}
