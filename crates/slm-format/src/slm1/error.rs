//! Why bytes are not an SLM1 file.

use std::io;

use super::tensor::Slm1Dtype;
use crate::error::{Coded, ErrorClass};

/// Why bytes are not an SLM1 file of version 1, or why one cannot be written. One variant and one code per rule.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Slm1Error {
    /// The first four bytes are not `SLM1`.
    #[error("not an SLM1 file: it starts with {found:02x?}")]
    Magic {
        /// The first bytes, at most four.
        found: Vec<u8>,
    },
    /// The file ends inside its 108-byte header.
    #[error("the header needs {needed} bytes, {found} are here")]
    Truncated {
        /// Bytes of the header.
        needed: u64,
        /// Bytes there are.
        found: u64,
    },
    /// A version slm does not read.
    #[error("SLM1 version {found}; slm reads 1")]
    Version {
        /// The version.
        found: u32,
    },
    /// The header's length is below 108 or past the end of the file.
    #[error("a header of {found} bytes in a file of {file_length}; at least 108 are needed")]
    HeaderLength {
        /// The length in the header.
        found: u32,
        /// Length of the file.
        file_length: u64,
    },
    /// A model type other than 1.
    #[error("model type {found}; slm reads 1")]
    ModelType {
        /// The type.
        found: u32,
    },
    /// A flag that the format does not define.
    #[error("flags {found:#x}; only bit 0, tied output, is defined")]
    Flags {
        /// All flags.
        found: u32,
    },
    /// Fewer tokens than 256 bytes and four special ones.
    #[error("a vocabulary of {found}, expected at least {least}")]
    VocabSize {
        /// Tokens.
        found: u32,
        /// The fewest possible.
        least: u32,
    },
    /// A byte tokenizer with fewer than four special tokens.
    #[error("{found} special tokens beside a BTOK tokenizer, expected at least 4")]
    SpecialTokens {
        /// The count in the header.
        found: u32,
    },
    /// A dimension of the header is zero.
    #[error("{field} is 0")]
    ZeroField {
        /// The field.
        field: &'static str,
    },
    /// Key and value heads do not divide the heads.
    #[error("{kv_heads} key and value heads do not divide {heads} heads")]
    Heads {
        /// Heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
    },
    /// The RoPE base or the norms' constant is not a positive, finite number.
    #[error("{field} is {found}, expected a positive, finite number")]
    Constant {
        /// The field.
        field: &'static str,
        /// Its value.
        found: f32,
    },
    /// The checksum is zero.
    #[error("the checksum is 0")]
    Checksum,
    /// A part of the file runs past its end.
    #[error("{what}: {length} bytes at {offset}, the file has {file_length}")]
    Range {
        /// The part.
        what: String,
        /// Its offset.
        offset: u64,
        /// Its length.
        length: u64,
        /// Length of the file.
        file_length: u64,
    },
    /// The directory or a region of tensor data does not start at a multiple of 64.
    #[error("{what} starts at {offset}, not a multiple of 64")]
    Alignment {
        /// The part.
        what: String,
        /// Its offset.
        offset: u64,
    },
    /// A tensor's data start before the data area.
    #[error("{what} starts at {offset}, before the tensor data at {data_offset}")]
    BeforeData {
        /// The part.
        what: String,
        /// Its offset.
        offset: u64,
        /// Where the header says that tensor data start.
        data_offset: u64,
    },
    /// Two parts of the file share bytes.
    #[error("{what} starts at {begin}, inside the part that ends at {end}")]
    Overlap {
        /// The part that starts second.
        what: String,
        /// Its offset.
        begin: u64,
        /// The end of the part before.
        end: u64,
    },
    /// A byte that belongs to no part is not zero.
    #[error("the byte at {at} belongs to no part and is {found:#04x}, expected 0")]
    Padding {
        /// Its offset.
        at: u64,
        /// The byte.
        found: u8,
    },
    /// More tensors than the limit.
    #[error("{found} tensors announced, the limit is {limit}")]
    TensorCount {
        /// The count.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A tensor's type is none of the format's three.
    #[error("tensor {index} has type {found}; 1 (f32), 2 (q8_0) and 3 (q4_0) are defined")]
    Dtype {
        /// Its place in the directory.
        index: u64,
        /// The type.
        found: u32,
    },
    /// A tensor has no dimension or more than four.
    #[error("tensor {index} has rank {found}, expected 1 to 4")]
    Rank {
        /// Its place in the directory.
        index: u64,
        /// The rank.
        found: u32,
    },
    /// A dimension that counts is zero, or one that does not is above one.
    #[error("tensor {index} of rank {rank} has dimensions {dims:?}")]
    Dims {
        /// Its place in the directory.
        index: u64,
        /// How many count.
        rank: u32,
        /// All four.
        dims: [u32; 4],
    },
    /// The bytes of a tensor cannot be counted.
    #[error("tensor {index}: the bytes of {dims:?} elements cannot be counted")]
    Overflow {
        /// Its place in the directory.
        index: u64,
        /// Its dimensions.
        dims: [u32; 4],
    },
    /// A block size that the tensor's type does not allow.
    #[error("tensor {index}: block size {found} of a {dtype:?} tensor with rows of {cols}")]
    BlockSize {
        /// Its place in the directory.
        index: u64,
        /// The block size.
        found: u32,
        /// Length of a row.
        cols: u64,
        /// Its type.
        dtype: Slm1Dtype,
    },
    /// A tensor has another number of bytes than its shape asks for.
    #[error("tensor {index} has {found} bytes, its shape asks for {expected}")]
    ByteLength {
        /// Its place in the directory.
        index: u64,
        /// Bytes announced or given.
        found: u64,
        /// Bytes the shape asks for.
        expected: u64,
    },
    /// A quantized tensor without scales, or another with some.
    #[error("tensor {index}: scales at or of {found} for type {dtype:?}")]
    ScaleOffset {
        /// Its place in the directory.
        index: u64,
        /// The offset read, or the bytes given for writing.
        found: u64,
        /// Its type.
        dtype: Slm1Dtype,
    },
    /// A scale is not a positive, finite number.
    #[error("tensor {index}: scale {at} is {found}, expected a positive, finite number")]
    Scale {
        /// Its place in the directory.
        index: u64,
        /// Which scale.
        at: u64,
        /// The scale.
        found: f32,
    },
    /// Two tensors have one name hash.
    #[error("tensors {first} and {index} both have the name hash {hash:#018x}")]
    DuplicateTensor {
        /// The first, by its place in the directory.
        first: u64,
        /// The second.
        index: u64,
        /// The hash.
        hash: u64,
    },
    /// The output refused bytes.
    #[error("writing failed")]
    Io(#[from] io::Error),
}

impl Coded for Slm1Error {
    fn code(&self) -> &'static str {
        match self {
            Slm1Error::Magic { .. } => "slm1-magic",
            Slm1Error::Truncated { .. } => "slm1-truncated",
            Slm1Error::Version { .. } => "slm1-version",
            Slm1Error::HeaderLength { .. } => "slm1-header-length",
            Slm1Error::ModelType { .. } => "slm1-model-type",
            Slm1Error::Flags { .. } => "slm1-flags",
            Slm1Error::VocabSize { .. } => "slm1-vocab-size",
            Slm1Error::SpecialTokens { .. } => "slm1-special-tokens",
            Slm1Error::ZeroField { .. } => "slm1-zero-field",
            Slm1Error::Heads { .. } => "slm1-heads",
            Slm1Error::Constant { .. } => "slm1-constant",
            Slm1Error::Checksum => "slm1-checksum",
            Slm1Error::Range { .. } => "slm1-range",
            Slm1Error::Alignment { .. } => "slm1-alignment",
            Slm1Error::BeforeData { .. } => "slm1-before-data",
            Slm1Error::Overlap { .. } => "slm1-overlap",
            Slm1Error::Padding { .. } => "slm1-padding",
            Slm1Error::TensorCount { .. } => "slm1-tensor-count",
            Slm1Error::Dtype { .. } => "slm1-dtype",
            Slm1Error::Rank { .. } => "slm1-rank",
            Slm1Error::Dims { .. } => "slm1-dims",
            Slm1Error::Overflow { .. } => "slm1-overflow",
            Slm1Error::BlockSize { .. } => "slm1-block-size",
            Slm1Error::ByteLength { .. } => "slm1-byte-length",
            Slm1Error::ScaleOffset { .. } => "slm1-scale-offset",
            Slm1Error::Scale { .. } => "slm1-scale",
            Slm1Error::DuplicateTensor { .. } => "slm1-duplicate-tensor",
            Slm1Error::Io(_) => "slm1-write-io",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            Slm1Error::Io(_) => ErrorClass::Io,
            _ => ErrorClass::Refused,
        }
    }
}
