//! Why a key or a signature is refused.

use core::fmt;

use slm_format::Coded;

use super::{KeyId, SignedDocument};

/// What a file of minisign holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A detached signature.
    Signature,
    /// A public key.
    PublicKey,
    /// A secret key.
    SecretKey,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileKind::Signature => "signature",
            FileKind::PublicKey => "public key",
            FileKind::SecretKey => "secret key",
        })
    }
}

/// A key or a signature that cannot be used. No message holds a byte of a secret key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// A text that is not a key id.
    #[error("{found:?} is not a key id: expected 16 hexadecimal digits, letters in upper case")]
    KeyId {
        /// What was given, cut to 80 characters.
        found: String,
    },
    /// The file is longer than any of its kind.
    #[error("the {kind} is {found} bytes long, the limit is {limit}")]
    TooLong {
        /// What it should be.
        kind: FileKind,
        /// Bytes found.
        found: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The file is not in minisign's form.
    #[error("not a {kind} of minisign's form: line {line}: {problem}")]
    Malformed {
        /// What it should be.
        kind: FileKind,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An algorithm that this form does not have.
    #[error("the {kind} names the algorithm {found:02x?}, which is none of minisign's")]
    Algorithm {
        /// What names it.
        kind: FileKind,
        /// The two bytes found.
        found: [u8; 2],
    },
    /// A comment with control characters or longer than minisign reads.
    #[error("the comment has control characters, or more than {limit} bytes")]
    Comment {
        /// Bytes allowed.
        limit: u64,
    },
    /// A public key that no secret key belongs to, or one of the few points for which signatures say nothing.
    #[error("the public key {key} is no key: its point is weak or does not exist")]
    WeakKey {
        /// Its id.
        key: KeyId,
    },
    /// The signature was made with another key.
    #[error("signed by the key {found}, not by {expected}")]
    OtherKey {
        /// The key that was given.
        expected: KeyId,
        /// The key that the signature names.
        found: KeyId,
    },
    /// The signature is of another document.
    #[error("the signature is of {named}, the document here is {found}")]
    OtherDocument {
        /// What its trusted comment names.
        named: SignedDocument,
        /// The document that it was checked against.
        found: SignedDocument,
    },
    /// The bytes are not those that this key signed.
    #[error("the signature by the key {key} does not hold for these bytes")]
    Invalid {
        /// The key.
        key: KeyId,
    },
    /// The signature holds, but its trusted comment was changed.
    #[error("the trusted comment is not the one that the key {key} signed")]
    CommentInvalid {
        /// The key.
        key: KeyId,
    },
    /// Random bytes for a new key that are none.
    #[error("the random bytes for a new key are all 0")]
    RandomZero,
    /// A secret key that is under a password, and none was given or this build cannot.
    #[error("the secret key is under a password")]
    Encrypted,
    /// The key's checksum does not match: a wrong password, or a damaged file.
    #[error("the secret key is damaged, or the password is another")]
    Checksum,
    /// The key derivation asks for more than is allowed.
    #[error(
        "the secret key asks for {operations} operations and {memory} bytes to derive its key; allowed are {max_operations} and {max_memory}"
    )]
    Derivation {
        /// Operations asked for.
        operations: u64,
        /// Bytes asked for.
        memory: u64,
        /// Operations allowed.
        max_operations: u64,
        /// Bytes allowed.
        max_memory: u64,
    },
}

impl Coded for SignatureError {
    fn code(&self) -> &'static str {
        match self {
            SignatureError::KeyId { .. } => "bad-key-id",
            SignatureError::TooLong { .. } => "limit-exceeded",
            SignatureError::Malformed { kind: FileKind::Signature, .. } => "signature-malformed",
            SignatureError::Malformed { kind: FileKind::PublicKey, .. } => "public-key-malformed",
            SignatureError::Malformed { kind: FileKind::SecretKey, .. } => "secret-key-malformed",
            SignatureError::Algorithm { .. } => "signature-algorithm",
            SignatureError::Comment { .. } => "signature-comment",
            SignatureError::WeakKey { .. } => "public-key-weak",
            SignatureError::OtherKey { .. } => "signature-other-key",
            SignatureError::OtherDocument { .. } => "signature-other-document",
            SignatureError::Invalid { .. } => "signature-invalid",
            SignatureError::CommentInvalid { .. } => "signature-comment-invalid",
            SignatureError::RandomZero => "random-zero",
            SignatureError::Encrypted => "secret-key-encrypted",
            SignatureError::Checksum => "secret-key-checksum",
            SignatureError::Derivation { .. } => "secret-key-derivation",
        }
    }
}
