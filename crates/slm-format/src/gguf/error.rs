//! Why bytes are not a GGUF file that slm reads.

use crate::error::Coded;
use crate::read::ReadError;

/// Why bytes are not a GGUF file that slm reads, or why a metadata entry is not what was asked for.
///
/// One variant and one code per way of being wrong; every variant tells the key or tensor and the numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The bytes are a Git-LFS pointer.
    #[error("this is a Git-LFS pointer, not the model itself; fetch the file with git lfs pull")]
    LfsPointer,
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it starts with {found:02x?}, expected the letters GGUF")]
    Magic {
        /// The bytes found.
        found: [u8; 4],
    },
    /// The file ends inside its 24-byte header.
    #[error("the file has {len} bytes, a GGUF header has 24")]
    TruncatedHeader {
        /// Length of the file.
        len: u64,
    },
    /// The file was written for a big-endian machine.
    #[error("big-endian GGUF (version field {version:#010x}); convert it to little-endian")]
    BigEndian {
        /// The version field as read.
        version: u32,
    },
    /// A version slm does not read.
    #[error("GGUF version {found}; slm reads 2 and 3")]
    Version {
        /// The version found.
        found: u32,
    },
    /// More tensors than the limit or than the file could hold.
    #[error("{found} tensors announced; at most {most} are possible here")]
    TensorCount {
        /// The count found.
        found: u64,
        /// The smaller of the limit and what the remaining bytes could hold.
        most: u64,
    },
    /// More metadata entries than the limit or than the file could hold.
    #[error("{found} metadata entries announced; at most {most} are possible here")]
    KvCount {
        /// The count found.
        found: u64,
        /// The smaller of the limit and what the remaining bytes could hold.
        most: u64,
    },
    /// The file ends inside its metadata or its tensor list.
    #[error("the file ends inside its metadata or tensor list: {0}")]
    Truncated(ReadError),
    /// A metadata key has no letters.
    #[error("metadata entry {index} has an empty key")]
    KeyEmpty {
        /// Position of the entry, from 0.
        index: u64,
    },
    /// A metadata key is longer than GGUF allows or than the file.
    #[error("metadata entry {index} has a key of {found} bytes; at most {most} are possible here")]
    KeyLength {
        /// Position of the entry, from 0.
        index: u64,
        /// The length found.
        found: u64,
        /// The smaller of 65535 and the bytes left.
        most: u64,
    },
    /// A metadata key is not UTF-8.
    #[error("the key of metadata entry {index} is not UTF-8")]
    KeyUtf8 {
        /// Position of the entry, from 0.
        index: u64,
    },
    /// The same key twice.
    #[error("metadata key {key} occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value type number that GGUF does not define.
    #[error("metadata {key} has the unknown value type {number}")]
    ValueType {
        /// The key.
        key: String,
        /// The number found.
        number: u32,
    },
    /// An array of arrays.
    #[error("metadata {key} is an array of arrays, which slm does not read")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// An array is longer than the limit or than the file.
    #[error("metadata {key} is an array of {found} elements; at most {most} are possible here")]
    ArrayLength {
        /// The key.
        key: String,
        /// The length found.
        found: u64,
        /// The smaller of the limit and what the remaining bytes could hold.
        most: u64,
    },
    /// A string is longer than the limit or than the file.
    #[error("metadata {key} holds a string of {found} bytes; at most {most} are possible here")]
    StringLength {
        /// The key.
        key: String,
        /// The length found.
        found: u64,
        /// The smaller of the limit and the bytes left.
        most: u64,
    },
    /// A string is not UTF-8.
    #[error("metadata {key} holds a string that is not UTF-8")]
    StringUtf8 {
        /// The key.
        key: String,
    },
    /// A truth value is neither 0 nor 1.
    #[error("metadata {key} holds the truth value {found}, expected 0 or 1")]
    Bool {
        /// The key.
        key: String,
        /// The byte found.
        found: u8,
    },
    /// `general.alignment` is not a u32 or not a power of two.
    #[error("general.alignment is {found}, expected a u32 that is a power of two")]
    Alignment {
        /// What was found.
        found: String,
    },
    /// A tensor's name is empty, longer than 64 bytes or than the file, or not UTF-8.
    #[error("tensor {index} has a name of {len} bytes; expected 1 to 64 bytes of UTF-8")]
    TensorName {
        /// Position of the tensor, from 0.
        index: u64,
        /// Length of the name.
        len: u64,
    },
    /// The same tensor name twice.
    #[error("tensor {tensor} occurs twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// Too few or too many dimensions.
    #[error("tensor {tensor} has {found} dimensions, expected 1 to {limit}")]
    NDims {
        /// The tensor.
        tensor: String,
        /// The number found.
        found: u32,
        /// The limit.
        limit: u32,
    },
    /// A dimension is 0.
    #[error("tensor {tensor} has the shape {shape:?}; no dimension may be 0")]
    DimsZero {
        /// The tensor.
        tensor: String,
        /// Its shape, innermost first.
        shape: Vec<u64>,
    },
    /// The product of the dimensions, or the bytes they need, cannot be counted.
    #[error("tensor {tensor} has the shape {shape:?}, whose size overflows")]
    DimsOverflow {
        /// The tensor.
        tensor: String,
        /// Its shape, innermost first.
        shape: Vec<u64>,
    },
    /// A ggml type slm does not have.
    #[error("tensor {tensor} has ggml type {number}, which slm does not read")]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The type number found.
        number: u32,
    },
    /// A row is not a whole number of blocks.
    #[error(
        "tensor {tensor}: rows of {cols} elements are not whole blocks of {block} ({encoding})"
    )]
    TensorShape {
        /// The tensor.
        tensor: String,
        /// Elements per row.
        cols: u64,
        /// Elements per block.
        block: u64,
        /// The encoding's name.
        encoding: &'static str,
    },
    /// A tensor's data do not start on the alignment.
    #[error("tensor {tensor} starts at {offset}, which is no multiple of {alignment}")]
    OffsetUnaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data area.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor's data run past the end of the file.
    #[error("tensor {tensor} needs bytes {offset}+{len} of the data area, which has {available}")]
    TensorOutOfBounds {
        /// The tensor.
        tensor: String,
        /// Its offset in the data area.
        offset: u64,
        /// Its length.
        len: u64,
        /// Length of the data area.
        available: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} overlap at {offset} of the data area")]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside it.
        second: String,
        /// Where the second starts.
        offset: u64,
    },
    /// A metadata entry that is needed is not there.
    #[error("metadata {key} is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// A metadata entry has another type than it must have.
    #[error("metadata {key} is {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A metadata number does not fit the type that was asked for.
    #[error("metadata {key} is {found}, which does not fit {expected}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The type asked for.
        expected: &'static str,
        /// The number found.
        found: i128,
    },
    /// Bytes follow the last entry of a metadata section that stands alone.
    #[error("{0} in a metadata section")]
    Trailing(ReadError),
}

impl Coded for GgufError {
    fn code(&self) -> &'static str {
        match self {
            GgufError::LfsPointer => "gguf-lfs-pointer",
            GgufError::Magic { .. } => "gguf-magic",
            GgufError::TruncatedHeader { .. } => "gguf-truncated-header",
            GgufError::BigEndian { .. } => "gguf-big-endian",
            GgufError::Version { .. } => "gguf-version",
            GgufError::TensorCount { .. } => "gguf-tensor-count",
            GgufError::KvCount { .. } => "gguf-kv-count",
            GgufError::Truncated(_) => "gguf-truncated",
            GgufError::KeyEmpty { .. } => "gguf-key-empty",
            GgufError::KeyLength { .. } => "gguf-key-length",
            GgufError::KeyUtf8 { .. } => "gguf-key-utf8",
            GgufError::DuplicateKey { .. } => "gguf-duplicate-key",
            GgufError::ValueType { .. } => "gguf-value-type",
            GgufError::NestedArray { .. } => "gguf-nested-array",
            GgufError::ArrayLength { .. } => "gguf-array-length",
            GgufError::StringLength { .. } => "gguf-string-length",
            GgufError::StringUtf8 { .. } => "gguf-string-utf8",
            GgufError::Bool { .. } => "gguf-bool",
            GgufError::Alignment { .. } => "gguf-alignment",
            GgufError::TensorName { .. } => "gguf-tensor-name",
            GgufError::DuplicateTensor { .. } => "gguf-duplicate-tensor",
            GgufError::NDims { .. } => "gguf-n-dims",
            GgufError::DimsZero { .. } => "gguf-dims-zero",
            GgufError::DimsOverflow { .. } => "gguf-dims-overflow",
            GgufError::TensorType { .. } => "gguf-tensor-type",
            GgufError::TensorShape { .. } => "gguf-tensor-shape",
            GgufError::OffsetUnaligned { .. } => "gguf-offset-unaligned",
            GgufError::TensorOutOfBounds { .. } => "gguf-tensor-out-of-bounds",
            GgufError::Overlap { .. } => "gguf-overlap",
            GgufError::Missing { .. } => "gguf-metadata-missing",
            GgufError::WrongType { .. } => "gguf-metadata-type",
            GgufError::OutOfRange { .. } => "gguf-metadata-range",
            GgufError::Trailing(_) => "gguf-metadata-trailing",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            GgufError::LfsPointer => Some("run `git lfs pull` where the file came from".into()),
            GgufError::TensorType { .. } => {
                Some("requantize the model, for example to Q4_K or Q8_0".into())
            }
            GgufError::TensorOutOfBounds { .. } | GgufError::TruncatedHeader { .. } => {
                Some("the download may be incomplete; compare the file's size and sha256".into())
            }
            _ => None,
        }
    }
}
