//! Why a document is not a manifest.

use slm_format::{Coded, DigestError};

use super::read::Form;
use crate::id::AdapterId;
use crate::name::NameError;

/// A document that is not a manifest. `field` is the path of the culprit, for example `adapters[1].merge_weight`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// The document is longer than [`slm_format::Limits::max_header_bytes`].
    #[error("the manifest is {found} bytes long, the limit is {limit}")]
    TooLong {
        /// Bytes found.
        found: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The document is not UTF-8.
    #[error("the manifest is not UTF-8 at byte {at}")]
    NotUtf8 {
        /// Offset of the first byte that is not.
        at: u64,
    },
    /// The text is not TOML or not JSON; a bare NaN in JSON or a number beyond a double in either is among these.
    #[error("not {form} at line {line}: {problem}")]
    Syntax {
        /// The form that was expected.
        form: Form,
        /// Line of the problem, from 1.
        line: u64,
        /// The parser's words.
        problem: String,
    },
    /// A key stands twice in one table.
    #[error("{field} is given twice")]
    DuplicateKey {
        /// The key.
        field: String,
    },
    /// A key that no manifest has.
    #[error("{field} is not a field of a manifest")]
    UnknownField {
        /// The key.
        field: String,
    },
    /// A field is not there.
    #[error("{field} is missing")]
    MissingField {
        /// The field.
        field: String,
    },
    /// A field is of another type.
    #[error("{field} is {found}, expected {expected}")]
    Type {
        /// The field.
        field: String,
        /// The type it has.
        found: &'static str,
        /// The type it must have.
        expected: &'static str,
    },
    /// A count is outside its range.
    #[error("{field} is {found}, expected {min} to {max}")]
    Range {
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// The smallest value allowed.
        min: u64,
        /// The largest value allowed.
        max: u64,
    },
    /// A text is not spelled as a digest.
    #[error("{field}: {source}")]
    Digest {
        /// The field.
        field: String,
        /// What is wrong with it.
        source: DigestError,
    },
    /// A text is not a name.
    #[error("{field}: {source}")]
    Name {
        /// The field.
        field: String,
        /// What is wrong with it.
        source: NameError,
    },
    /// A time is not RFC 3339 in UTC.
    #[error("{field} is {found:?}, expected a time in UTC such as 2026-07-21T00:00:00Z")]
    Timestamp {
        /// The field.
        field: String,
        /// What was given, cut to 80 characters.
        found: String,
    },
    /// A weight is not a number that an f32 can hold.
    #[error("{field} is {found}, expected a finite number that is not lost in an f32")]
    Weight {
        /// The field.
        field: String,
        /// What was given.
        found: String,
    },
    /// Adapters are not listed as 1, 2, 3 and so on.
    #[error(
        "{field} is {found}, expected {expected}: adapters are listed in the order in which they load, from 1 without gaps"
    )]
    LoadOrder {
        /// The field.
        field: String,
        /// Its value.
        found: u64,
        /// The value of this position.
        expected: u64,
    },
    /// One adapter stands twice in the stack, under whatever names.
    #[error("{field}: adapter {adapter} is already in the stack")]
    DuplicateAdapter {
        /// The second place.
        field: String,
        /// The adapter.
        adapter: AdapterId,
    },
    /// Two adapters of the stack have one name.
    #[error("{field}: the name {name:?} is already taken in this stack")]
    DuplicateName {
        /// The second place.
        field: String,
        /// The name.
        name: String,
    },
    /// The tensors an adapter touches: none, one twice, or a text that is no tensor's name.
    #[error("{field}: {found:?}, expected different canonical tensor names")]
    Targets {
        /// The field.
        field: String,
        /// The culprit, cut to 80 characters; empty where the list is.
        found: String,
    },
    /// An entry of the quantization list contradicts the scheme it names, or the scheme is unknown or stands twice.
    #[error("{field} is {found:?}, expected {expected}")]
    Quantization {
        /// The field.
        field: String,
        /// Its value, cut to 80 characters.
        found: String,
        /// What the scheme asks for.
        expected: String,
    },
    /// The runtime is another program, or its version is not a version.
    #[error("{field} is {found:?}, expected {expected}")]
    Runtime {
        /// The field.
        field: &'static str,
        /// Its value, cut to 80 characters.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The manifest was made under another version of the arithmetic.
    #[error("runtime.numerics is {found}, this build computes under {expected}")]
    NumericsVersion {
        /// Version in the manifest.
        found: u64,
        /// Version of this build.
        expected: u32,
    },
}

impl Coded for ManifestError {
    fn code(&self) -> &'static str {
        match self {
            ManifestError::TooLong { .. } => "limit-exceeded",
            ManifestError::NotUtf8 { .. } => "not-utf8",
            ManifestError::Syntax { .. } => "manifest-syntax",
            ManifestError::DuplicateKey { .. } => "manifest-duplicate-key",
            ManifestError::UnknownField { .. } => "manifest-unknown-field",
            ManifestError::MissingField { .. } => "manifest-missing-field",
            ManifestError::Type { .. } => "manifest-type",
            ManifestError::Range { .. } => "manifest-range",
            ManifestError::Digest { source, .. } => source.code(),
            ManifestError::Name { source, .. } => source.code(),
            ManifestError::Timestamp { .. } => "manifest-timestamp",
            ManifestError::Weight { .. } => "manifest-weight",
            ManifestError::LoadOrder { .. } => "manifest-load-order",
            ManifestError::DuplicateAdapter { .. } => "duplicate-adapter",
            ManifestError::DuplicateName { .. } => "manifest-duplicate-name",
            ManifestError::Targets { .. } => "manifest-targets",
            ManifestError::Quantization { .. } => "manifest-quantization",
            ManifestError::Runtime { .. } => "manifest-runtime",
            ManifestError::NumericsVersion { .. } => "numerics-version",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            ManifestError::NumericsVersion { .. } => {
                Some("make the composition again with `slm compose`".to_owned())
            }
            _ => None,
        }
    }
}

/// At most 80 characters of `text`, for a message.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}
