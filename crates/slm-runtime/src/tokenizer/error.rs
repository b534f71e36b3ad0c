//! What can be wrong with a tokenizer, a text or an id.

use slm_format::gguf::GgufError;
use slm_format::{Coded, ErrorClass};

/// A tokenizer that cannot be, or a text or id that it cannot take.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The GGUF metadata could not be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A document is not the JSON that was expected.
    #[error("{document}: {message}")]
    Json {
        /// The document's usual file name.
        document: &'static str,
        /// What the JSON reader says, with line and column.
        message: String,
    },
    /// A field that decides the ids is missing.
    #[error("{field} is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A tokenizer model other than byte-level BPE or SentencePiece BPE.
    #[error("tokenizer model {found:?}; slm knows byte-level BPE and SentencePiece BPE")]
    UnknownModel {
        /// The model's name in the file.
        found: String,
    },
    /// A pre-tokenizer whose rule is not known, so that the ids would be wrong.
    #[error("pre-tokenizer {found:?}; slm knows {known}")]
    UnknownPre {
        /// The name or rule in the file.
        found: String,
        /// Those that are known.
        known: &'static str,
    },
    /// A setting that this implementation does not carry out.
    #[error("{field} is {found}; expected {expected}")]
    Unsupported {
        /// The setting.
        field: &'static str,
        /// Its value.
        found: String,
        /// What is supported.
        expected: &'static str,
    },
    /// The id of a special token lies outside the vocabulary.
    #[error("{field} is {id}, the vocabulary has {vocab_size} tokens")]
    SpecialOutOfRange {
        /// Which special token.
        field: &'static str,
        /// Its id.
        id: u64,
        /// Tokens in the vocabulary.
        vocab_size: u32,
    },
    /// Two tokens have the same text.
    #[error("tokens {first} and {second} are both {text:?}")]
    DuplicateToken {
        /// Their text.
        text: String,
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// Two tokens have the same id.
    #[error("tokens {first:?} and {second:?} both have id {id}")]
    DuplicateId {
        /// The id.
        id: u32,
        /// One text.
        first: String,
        /// The other.
        second: String,
    },
    /// An id below the highest has no token.
    #[error("no token has id {id}, the highest id is {highest}")]
    VocabularyHole {
        /// The first id without a token.
        id: u32,
        /// The highest id.
        highest: u32,
    },
    /// A token is empty or longer than its kind allows.
    #[error("token {id} has {found} bytes; expected 1 to {limit}")]
    TokenLength {
        /// The token.
        id: u32,
        /// Its length.
        found: u64,
        /// The longest allowed.
        limit: u64,
    },
    /// A byte token whose text is not `<0xXX>`.
    #[error("token {id} is a byte token but reads {text:?}, expected the form <0x0A>")]
    BadByteToken {
        /// The token.
        id: u32,
        /// Its text.
        text: String,
    },
    /// A token type number that GGUF does not define.
    #[error("token {id} has type {found}, expected 1 to 6")]
    UnknownTokenType {
        /// The token.
        id: u32,
        /// The type found.
        found: i32,
    },
    /// Two arrays that belong together differ in length.
    #[error("{field} has {found} elements, expected {expected} as there are tokens")]
    LengthMismatch {
        /// The array.
        field: &'static str,
        /// Its length.
        found: u64,
        /// The length it must have.
        expected: u64,
    },
    /// A score is infinite or not a number.
    #[error("token {id} has score {score}, expected a finite number")]
    BadScore {
        /// The token.
        id: u32,
        /// Its score.
        score: f32,
    },
    /// A merge is not two parts around one ASCII space.
    #[error("merge {index} is {line:?}, expected two tokens around one space")]
    BadMerge {
        /// Position in the list.
        index: u32,
        /// The line.
        line: String,
    },
    /// A merge names a token that is not in the vocabulary, as part or as result.
    #[error("merge {index} needs token {token:?}, which is not in the vocabulary")]
    MergeUnknownToken {
        /// Position in the list.
        index: u32,
        /// The missing token.
        token: String,
    },
    /// The same pair is merged twice.
    #[error("merge {index} repeats the pair of tokens {left} and {right}")]
    DuplicateMerge {
        /// Position of the second.
        index: u32,
        /// Left token.
        left: u32,
        /// Right token.
        right: u32,
    },
    /// A merge would make a control token out of a user's text.
    #[error("merge {index} makes {token:?}, which plain text must not become")]
    MergeMakesSpecial {
        /// Position in the list.
        index: u32,
        /// The token.
        token: String,
    },
    /// A merge names another output than its parts make.
    #[error("merge {index} gives {found:?}, its parts make {expected:?}")]
    MergeOutput {
        /// Position in the list.
        index: u32,
        /// The text of the token it names.
        found: String,
        /// The text that its parts make.
        expected: String,
    },
    /// Two merges have one rank, so that neither comes first.
    #[error("merge {index} repeats the rank {rank}")]
    DuplicateRank {
        /// Position of the second.
        index: u32,
        /// Their rank.
        rank: u32,
    },
    /// A token record has an id outside the vocabulary.
    #[error("a token record has id {id}, the vocabulary has {vocab_size} tokens")]
    RecordOutOfRange {
        /// The id.
        id: u32,
        /// Tokens in the vocabulary.
        vocab_size: u32,
    },
    /// A tokenizer section is for another number of tokens than the embedding table has rows.
    #[error("the tokenizer has {found} tokens, the embedding table {expected} rows")]
    Vocabulary {
        /// Tokens that the section claims.
        found: u64,
        /// Rows.
        expected: u64,
    },
    /// A tokenizer section of another length or version than it must have.
    #[error("tokenizer section: {reason}")]
    Section {
        /// What is wrong with it.
        reason: String,
    },
    /// A count or a size is over its limit.
    #[error("{field} is {found}, the limit is {limit}")]
    TooLarge {
        /// What was counted.
        field: &'static str,
        /// The value found.
        found: u64,
        /// The largest allowed.
        limit: u64,
    },
    /// Bytes that are not the canonical encoding of a tokenizer.
    #[error("not a canonical tokenizer document: {message}")]
    NotCanonical {
        /// What is wrong with it.
        message: String,
    },
    /// An id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size} tokens")]
    IdOutOfRange {
        /// The id.
        id: u32,
        /// Tokens in the vocabulary.
        vocab_size: u32,
    },
    /// Text that no token stands for.
    #[error("the vocabulary has no token for {what}, in {text:?}")]
    Unencodable {
        /// The byte or character without a token.
        what: String,
        /// The word around it.
        text: String,
    },
}

impl Coded for TokenizerError {
    fn code(&self) -> &'static str {
        match self {
            TokenizerError::Gguf(error) => error.code(),
            TokenizerError::Json { .. } => "tokenizer-bad-json",
            TokenizerError::Missing { .. } => "tokenizer-missing-field",
            TokenizerError::UnknownModel { .. } => "tokenizer-unknown-model",
            TokenizerError::UnknownPre { .. } => "tokenizer-unknown-pre",
            TokenizerError::Unsupported { .. } => "tokenizer-unsupported",
            TokenizerError::SpecialOutOfRange { .. } => "tokenizer-special-out-of-range",
            TokenizerError::DuplicateToken { .. } => "tokenizer-duplicate-token",
            TokenizerError::DuplicateId { .. } => "tokenizer-duplicate-id",
            TokenizerError::VocabularyHole { .. } => "tokenizer-vocabulary-hole",
            TokenizerError::TokenLength { .. } => "tokenizer-token-length",
            TokenizerError::BadByteToken { .. } => "tokenizer-bad-byte-token",
            TokenizerError::UnknownTokenType { .. } => "tokenizer-unknown-token-type",
            TokenizerError::LengthMismatch { .. } => "tokenizer-length-mismatch",
            TokenizerError::BadScore { .. } => "tokenizer-bad-score",
            TokenizerError::BadMerge { .. } => "tokenizer-bad-merge",
            TokenizerError::MergeUnknownToken { .. } => "tokenizer-merge-unknown-token",
            TokenizerError::DuplicateMerge { .. } => "tokenizer-duplicate-merge",
            TokenizerError::MergeMakesSpecial { .. } => "tokenizer-merge-makes-special",
            TokenizerError::MergeOutput { .. } => "tokenizer-merge-output",
            TokenizerError::DuplicateRank { .. } => "tokenizer-duplicate-rank",
            TokenizerError::RecordOutOfRange { .. } => "tokenizer-record-out-of-range",
            TokenizerError::Vocabulary { .. } => "vocabulary-mismatch",
            TokenizerError::Section { .. } => "tokenizer-section",
            TokenizerError::TooLarge { .. } => "limit-exceeded",
            TokenizerError::NotCanonical { .. } => "tokenizer-not-canonical",
            TokenizerError::IdOutOfRange { .. } => "tokenizer-id-out-of-range",
            TokenizerError::Unencodable { .. } => "tokenizer-unencodable",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            TokenizerError::Gguf(error) => error.class(),
            TokenizerError::IdOutOfRange { .. } => ErrorClass::Usage,
            _ => ErrorClass::Refused,
        }
    }
}
