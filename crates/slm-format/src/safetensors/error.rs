//! Why bytes are not a safetensors file that slm reads.

use std::io;

use crate::error::{Coded, ErrorClass};

/// Why bytes are not a safetensors file that slm reads, or why one cannot be written.
///
/// One variant and one code per way of being wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafeTensorsError {
    /// There are no bytes.
    #[error("the file is empty")]
    Empty,
    /// The bytes are a Git-LFS pointer.
    #[error("this is a Git-LFS pointer, not the tensors; fetch the file with git lfs pull")]
    LfsPointer,
    /// The file ends before its header, or before the data of a tensor.
    #[error("{what} needs {needed} bytes, the file has {found}")]
    Truncated {
        /// `the header`, or the tensor.
        what: String,
        /// Bytes needed, counted from the start of the file or of the data.
        needed: u64,
        /// Bytes there are.
        found: u64,
    },
    /// The header is longer than the limit.
    #[error("a header of {found} bytes is announced, the limit is {limit}")]
    HeaderLength {
        /// The length found.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The header is not one JSON object, or something follows it.
    #[error("the header is not one JSON object: {message}")]
    HeaderJson {
        /// What the JSON reader said, with line and column.
        message: String,
    },
    /// `__metadata__` is not a flat table of strings.
    #[error("__metadata__ is not a table of strings: {message}")]
    Metadata {
        /// What the JSON reader said.
        message: String,
    },
    /// A tensor's entry lacks a field, has one too many, or one of another type.
    #[error("the entry of tensor {tensor} is wrong: {message}")]
    Info {
        /// The tensor.
        tensor: String,
        /// What the JSON reader said.
        message: String,
    },
    /// More tensors or metadata entries than the limit.
    #[error("more than {limit} {what}")]
    Count {
        /// What there are too many of.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The same tensor name twice.
    #[error("tensor {tensor} occurs twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// The same metadata key twice, or `__metadata__` itself.
    #[error("metadata key {key} occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// An element type slm does not know.
    #[error("tensor {tensor} has the unknown element type {dtype}")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// The name found.
        dtype: String,
    },
    /// Too many dimensions.
    #[error("tensor {tensor} has {found} dimensions, the limit is {limit}")]
    Dims {
        /// The tensor.
        tensor: String,
        /// The number found.
        found: u64,
        /// The limit.
        limit: u32,
    },
    /// A range that ends before it begins.
    #[error("tensor {tensor} has the range {begin}..{end}")]
    Offsets {
        /// The tensor.
        tensor: String,
        /// Its begin.
        begin: u64,
        /// Its end.
        end: u64,
    },
    /// The product of the dimensions and the element size cannot be counted.
    #[error("tensor {tensor} has the shape {shape:?}, whose size overflows")]
    ShapeOverflow {
        /// The tensor.
        tensor: String,
        /// Its shape, outermost first.
        shape: Vec<u64>,
    },
    /// The range is not as long as the shape asks for.
    #[error("tensor {tensor} of shape {shape:?} needs {expected} bytes, its range has {found}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape, outermost first.
        shape: Vec<u64>,
        /// Bytes the shape asks for.
        expected: u64,
        /// Bytes in the range.
        found: u64,
    },
    /// Two tensors share bytes.
    #[error("tensor {tensor} begins at {begin}, inside the one that ends at {end}")]
    Overlap {
        /// The tensor that begins second.
        tensor: String,
        /// Its begin.
        begin: u64,
        /// The end of the one before.
        end: u64,
    },
    /// Bytes between two tensors belong to none.
    #[error("tensor {tensor} begins at {begin}, the one before it ends at {end}")]
    Gap {
        /// The tensor after the gap.
        tensor: String,
        /// Its begin.
        begin: u64,
        /// The end of the one before.
        end: u64,
    },
    /// Bytes follow the last tensor.
    #[error("{count} bytes follow the last tensor")]
    Trailing {
        /// How many.
        count: u64,
    },
    /// The format's own library refuses what our checks let pass.
    #[error("the safetensors library refuses the file: {message}")]
    Library {
        /// What it said.
        message: String,
    },
    /// The output refused bytes.
    #[error("writing failed")]
    Io(#[from] io::Error),
}

impl Coded for SafeTensorsError {
    fn code(&self) -> &'static str {
        match self {
            SafeTensorsError::Empty => "safetensors-empty",
            SafeTensorsError::LfsPointer => "safetensors-lfs-pointer",
            SafeTensorsError::Truncated { .. } => "safetensors-truncated",
            SafeTensorsError::HeaderLength { .. } => "safetensors-header-length",
            SafeTensorsError::HeaderJson { .. } => "safetensors-header-json",
            SafeTensorsError::Metadata { .. } => "safetensors-metadata",
            SafeTensorsError::Info { .. } => "safetensors-info",
            SafeTensorsError::Count { .. } => "safetensors-count",
            SafeTensorsError::DuplicateTensor { .. } => "safetensors-duplicate-tensor",
            SafeTensorsError::DuplicateKey { .. } => "safetensors-duplicate-key",
            SafeTensorsError::Dtype { .. } => "safetensors-dtype",
            SafeTensorsError::Dims { .. } => "safetensors-n-dims",
            SafeTensorsError::Offsets { .. } => "safetensors-offsets",
            SafeTensorsError::ShapeOverflow { .. } => "safetensors-shape-overflow",
            SafeTensorsError::Shape { .. } => "safetensors-shape",
            SafeTensorsError::Overlap { .. } => "safetensors-overlap",
            SafeTensorsError::Gap { .. } => "safetensors-gap",
            SafeTensorsError::Trailing { .. } => "safetensors-trailing",
            SafeTensorsError::Library { .. } => "safetensors-library",
            SafeTensorsError::Io(_) => "safetensors-write-io",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            SafeTensorsError::Io(_) => ErrorClass::Io,
            _ => ErrorClass::Refused,
        }
    }
}
