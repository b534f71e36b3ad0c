//! What makes a binary LoRA file unusable.

use slm_format::{Coded, ReadError};

/// A refused binary LoRA file, layout, or request to write one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BinaryError {
    /// The first four bytes are not `LORA`.
    #[error("the file does not begin with LORA")]
    Magic,
    /// A version that this reader does not know. Each reader refuses the other format so.
    #[error("version {found}, expected {expected}")]
    Version {
        /// The file's.
        found: u32,
        /// The format's.
        expected: u32,
    },
    /// The numbers stand with their highest byte first.
    #[error("the file was written for a big-endian machine; its numbers must be little-endian")]
    BigEndian,
    /// The stored BLAKE3 is not that of the bytes it covers.
    #[error("the content has another BLAKE3 hash than the file states")]
    Checksum,
    /// Fewer bytes than any file of this format has.
    #[error("{found} bytes, a file has at least {needed}")]
    Short {
        /// Bytes there are.
        found: usize,
        /// Bytes of the smallest file.
        needed: usize,
    },
    /// The file ends inside a field, or bytes follow its end.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// None of what there must be at least one of.
    #[error("the file has no {what}")]
    Empty {
        /// What is missing.
        what: &'static str,
    },
    /// More than the limit or than the file could hold.
    #[error("{found} {what}, at most {most} are possible here")]
    Count {
        /// What is counted.
        what: &'static str,
        /// How many the file claims.
        found: u64,
        /// The limit, or how many fit in the bytes that are left.
        most: u64,
    },
    /// Rank 0.
    #[error("the rank is 0, a rank is at least 1")]
    RankZero,
    /// Alpha, or alpha over the rank, is not a finite number.
    #[error("alpha is {alpha}, which makes no finite scale")]
    Alpha {
        /// Alpha as stored.
        alpha: f32,
    },
    /// A dimension is 0.
    #[error("a pair of {in_dim} inputs and {out_dim} outputs")]
    ZeroDimension {
        /// Inputs.
        in_dim: u32,
        /// Outputs.
        out_dim: u32,
    },
    /// A matrix is larger than the bytes that are left.
    #[error("{field} of {rows} rows of {cols} does not fit in the {left} bytes that are left")]
    Dimensions {
        /// A or B.
        field: &'static str,
        /// Rows.
        rows: u64,
        /// Columns.
        cols: u64,
        /// Bytes left.
        left: u64,
    },
    /// A matrix whose rank is not the file's.
    #[error("{field} is {found}, the rank of the file is {expected}")]
    Rank {
        /// The dimension.
        field: &'static str,
        /// Its value.
        found: u32,
        /// The file's rank.
        expected: u32,
    },
    /// A NaN or an infinity.
    #[error("{field}: element {index} is {value}")]
    NonFinite {
        /// A or B.
        field: &'static str,
        /// Index of the element, row-major.
        index: u64,
        /// The element.
        value: f32,
    },
    /// A target id that the format does not have.
    #[error("target id {id}, the format has 0 to 6")]
    TargetId {
        /// The id.
        id: u16,
    },
    /// A target id stands twice.
    #[error("target id {id} stands twice")]
    DuplicateTarget {
        /// The id.
        id: u16,
    },
    /// To be written: a pair of another rank than the file's.
    #[error("pair {index} has rank {found}, the file has rank {expected}")]
    MixedRank {
        /// Index of the pair.
        index: usize,
        /// Its rank.
        found: usize,
        /// The file's.
        expected: usize,
    },
    /// To be written: a pair of another alpha than the file's.
    #[error("pair {index} has alpha {found}, the file has alpha {expected}")]
    MixedAlpha {
        /// Index of the pair.
        index: usize,
        /// Its alpha.
        found: f32,
        /// The file's.
        expected: f32,
    },
    /// To be written: values that are not as many as the dimensions need.
    #[error("{field} has {found} values, {rank} times {other} are needed")]
    Length {
        /// A or B.
        field: &'static str,
        /// Values there are.
        found: usize,
        /// The rank.
        rank: usize,
        /// The other dimension.
        other: usize,
    },
    /// To be written: an adapter that the format cannot hold.
    #[error("the format holds plain LoRA, not {kind}")]
    Kind {
        /// The adapter's kind.
        kind: &'static str,
    },
    /// The layout is no list of names.
    #[error("the layout is not a JSON array of tensor names: {reason}")]
    Layout {
        /// What is wrong.
        reason: String,
    },
    /// The layout has more or fewer names than the file has pairs.
    #[error("the layout names {names} tensors, the file has {pairs} pairs")]
    LayoutLength {
        /// Names.
        names: usize,
        /// Pairs.
        pairs: usize,
    },
}

impl Coded for BinaryError {
    fn code(&self) -> &'static str {
        match self {
            BinaryError::Magic => "lora-binary-magic",
            BinaryError::Version { .. } => "lora-binary-version",
            BinaryError::BigEndian => "lora-binary-big-endian",
            BinaryError::Checksum => "lora-binary-checksum",
            BinaryError::Short { .. } => "lora-binary-short",
            BinaryError::Read(error) => error.code(),
            BinaryError::Empty { .. } => "lora-binary-empty",
            BinaryError::Count { .. } => "lora-binary-count",
            BinaryError::RankZero => "lora-binary-rank-zero",
            BinaryError::Alpha { .. } => "lora-binary-alpha",
            BinaryError::ZeroDimension { .. } => "lora-binary-zero-dimension",
            BinaryError::Dimensions { .. } => "lora-binary-dimensions",
            BinaryError::Rank { .. } => "lora-binary-rank",
            BinaryError::NonFinite { .. } => "lora-binary-non-finite",
            BinaryError::TargetId { .. } => "lora-binary-target-id",
            BinaryError::DuplicateTarget { .. } => "lora-binary-duplicate-target",
            BinaryError::MixedRank { .. } => "lora-binary-mixed-rank",
            BinaryError::MixedAlpha { .. } => "lora-binary-mixed-alpha",
            BinaryError::Length { .. } => "lora-binary-length",
            BinaryError::Kind { .. } => "lora-binary-kind",
            BinaryError::Layout { .. } => "lora-binary-layout",
            BinaryError::LayoutLength { .. } => "lora-binary-layout-length",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            BinaryError::MixedRank { .. } | BinaryError::MixedAlpha { .. } => {
                Some("the format holds one rank and one alpha; export fills up ranks and folds scales into B".into())
            }
            _ => None,
        }
    }
}
