//! Why bytes are not a `.slm` container, or a part of one is not what its hash says.

use std::io;

use super::layout::SectionKind;
use crate::digest::{ContentHash, Digest};
use crate::error::{Coded, ErrorClass};

/// Why bytes are not a `.slm` container of version 0, or why a part of one is not what its hash says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerError {
    /// The bytes end before the header or the index does.
    #[error("{what} needs {needed} bytes, {found} are here")]
    Truncated {
        /// `the header` or `the index`.
        what: &'static str,
        /// Bytes needed from the start of the file.
        needed: u64,
        /// Bytes there are.
        found: u64,
    },
    /// The first eight bytes are others.
    #[error("not a .slm container: it starts with {found:02x?}")]
    Magic {
        /// The bytes found.
        found: [u8; 8],
    },
    /// A version this reader does not know.
    #[error("container version {found}; this reader knows 0")]
    Version {
        /// The version found.
        found: u32,
    },
    /// More sections than the limit.
    #[error("{found} sections announced, the limit is {limit}")]
    SectionCount {
        /// The count found.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// More tensors than the limit.
    #[error("{found} tensors announced, the limit is {limit}")]
    TensorCount {
        /// The count found.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// More bytes of names than the limit, or other than the tensors' name lengths add up to.
    #[error("{found} bytes of tensor names announced, {expected} are possible here")]
    NamesLength {
        /// The length in the header.
        found: u64,
        /// The limit, or the sum of the lengths.
        expected: u64,
    },
    /// The file has another length than its header says.
    #[error("the file should have {expected} bytes and has {found}")]
    FileLength {
        /// The length the header, or the last section, gives.
        expected: u64,
        /// The length found.
        found: u64,
    },
    /// Header or index are damaged.
    #[error("header or index are damaged: {found}, expected {expected}")]
    IndexHash {
        /// The hash in the header.
        expected: ContentHash,
        /// The hash of header and index.
        found: ContentHash,
    },
    /// A section of a kind this reader does not know.
    #[error("section {index} has the unknown kind {kind}")]
    SectionKind {
        /// Position of the section, from 0.
        index: u64,
        /// The number found.
        kind: u32,
    },
    /// A reserved field of a section is not zero.
    #[error("section {index} has {found:#x} in its reserved field")]
    SectionReserved {
        /// Position of the section, from 0.
        index: u64,
        /// The value found.
        found: u32,
    },
    /// A section does not start where the one before it ends, rounded up to 64.
    #[error("section {index} starts at {found}, expected {expected}")]
    SectionOffset {
        /// Position of the section, from 0.
        index: u64,
        /// The offset found.
        found: u64,
        /// The only offset possible.
        expected: u64,
    },
    /// A section is empty or runs past the end of the file.
    #[error("section {index} has {length} bytes at {offset}, the file has {file_length}")]
    SectionLength {
        /// Position of the section, from 0.
        index: u64,
        /// Its offset.
        offset: u64,
        /// Its length.
        length: u64,
        /// Length of the file.
        file_length: u64,
    },
    /// A second section of a kind that occurs once.
    #[error("section {index} is a second {kind} section")]
    DuplicateSection {
        /// Position of the second one, from 0.
        index: u64,
        /// Its kind.
        kind: SectionKind,
    },
    /// Tensors without a base weights section, or one whose length is not what its tensors add up to.
    #[error("the base weights section has {found} bytes, its {tensors} tensors end at {expected}")]
    BaseWeights {
        /// Length of the section; 0 where there is none.
        found: u64,
        /// The end of the last tensor.
        expected: u64,
        /// How many tensors there are.
        tensors: u64,
    },
    /// A padding byte is not zero.
    #[error("the padding byte at {at} is {found:#04x}, expected 0")]
    Padding {
        /// Its offset in the file.
        at: u64,
        /// The byte found.
        found: u8,
    },
    /// A tensor's name is empty, too long or not UTF-8.
    #[error("tensor {index} has a name of {length} bytes; expected 1 to {limit} bytes of UTF-8")]
    TensorName {
        /// Position of the tensor, from 0.
        index: u64,
        /// Length of the name.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// The same tensor name twice.
    #[error("tensor {tensor} occurs twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// An encoding this reader does not know.
    #[error("tensor {tensor} has the unknown encoding {code}")]
    TensorEncoding {
        /// The tensor.
        tensor: String,
        /// The number found.
        code: u16,
    },
    /// A layout that version 0 does not have.
    #[error("tensor {tensor} has layout {layout}; version 0 has only 0")]
    TensorLayout {
        /// The tensor.
        tensor: String,
        /// The number found.
        layout: u16,
    },
    /// Too few or too many dimensions, one that is 0, or one behind the last that is not.
    #[error("tensor {tensor} has {n_dims} dimensions of {shape:?}")]
    TensorDims {
        /// The tensor.
        tensor: String,
        /// The number found.
        n_dims: u32,
        /// All four fields.
        shape: [u64; 4],
    },
    /// A reserved field of a tensor is not zero.
    #[error("tensor {tensor} has {found:#x} in its reserved field")]
    TensorReserved {
        /// The tensor.
        tensor: String,
        /// The value found.
        found: u32,
    },
    /// A tensor does not start where the one before it ends, rounded up to 64.
    #[error("tensor {tensor} starts at {found} of the base weights, expected {expected}")]
    TensorOffset {
        /// The tensor.
        tensor: String,
        /// The offset found.
        found: u64,
        /// The only offset possible.
        expected: u64,
    },
    /// A tensor is not as long as its encoding and shape ask for.
    #[error("tensor {tensor} has {found} bytes, its encoding and shape ask for {expected:?}")]
    TensorLength {
        /// The tensor.
        tensor: String,
        /// The length found.
        found: u64,
        /// The length asked for; `None` where a row is no whole number of blocks or the size overflows.
        expected: Option<u64>,
    },
    /// A section's bytes are not those that were written.
    #[error("the {kind} section is damaged: {found}, expected {expected}")]
    SectionHash {
        /// Its kind.
        kind: SectionKind,
        /// The hash in the section table.
        expected: ContentHash,
        /// The hash of the bytes.
        found: ContentHash,
    },
    /// A section's bytes have another sha256 than its entry names.
    #[error("the {kind} section is not the blob it names: {found}, expected {expected}")]
    SectionDigest {
        /// Its kind.
        kind: SectionKind,
        /// The digest in the section table.
        expected: Digest,
        /// The digest of the bytes.
        found: Digest,
    },
    /// A tensor's bytes are not those that were written.
    #[error("tensor {tensor} is damaged: {found}, expected {expected}")]
    TensorHash {
        /// The tensor.
        tensor: String,
        /// The hash in the tensor table.
        expected: ContentHash,
        /// The hash of the bytes.
        found: ContentHash,
    },
}

impl Coded for ContainerError {
    fn code(&self) -> &'static str {
        match self {
            ContainerError::Truncated { .. } => "slm-truncated",
            ContainerError::Magic { .. } => "slm-magic",
            ContainerError::Version { .. } => "slm-version",
            ContainerError::SectionCount { .. } => "slm-section-count",
            ContainerError::TensorCount { .. } => "slm-tensor-count",
            ContainerError::NamesLength { .. } => "slm-names-length",
            ContainerError::FileLength { .. } => "slm-file-length",
            ContainerError::IndexHash { .. } => "slm-index-hash",
            ContainerError::SectionKind { .. } => "slm-section-kind",
            ContainerError::SectionReserved { .. } => "slm-section-reserved",
            ContainerError::SectionOffset { .. } => "slm-section-offset",
            ContainerError::SectionLength { .. } => "slm-section-length",
            ContainerError::DuplicateSection { .. } => "slm-duplicate-section",
            ContainerError::BaseWeights { .. } => "slm-base-weights",
            ContainerError::Padding { .. } => "slm-padding",
            ContainerError::TensorName { .. } => "slm-tensor-name",
            ContainerError::DuplicateTensor { .. } => "slm-duplicate-tensor",
            ContainerError::TensorEncoding { .. } => "slm-tensor-encoding",
            ContainerError::TensorLayout { .. } => "slm-tensor-layout",
            ContainerError::TensorDims { .. } => "slm-tensor-dims",
            ContainerError::TensorReserved { .. } => "slm-tensor-reserved",
            ContainerError::TensorOffset { .. } => "slm-tensor-offset",
            ContainerError::TensorLength { .. } => "slm-tensor-length",
            ContainerError::SectionHash { .. } | ContainerError::SectionDigest { .. } => {
                "slm-section-hash"
            }
            ContainerError::TensorHash { .. } => "slm-tensor-hash",
        }
    }
}

/// Why a container cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerWriteError {
    /// The output refused bytes.
    #[error("writing failed")]
    Io(#[from] io::Error),
    /// A section is empty, a second one of a kind that occurs once, or the base weights, which come from the tensors.
    #[error("a {kind} section of {length} bytes cannot be written here")]
    Section {
        /// Its kind.
        kind: SectionKind,
        /// Its length.
        length: u64,
    },
    /// A tensor's name is empty or taken, or its bytes are not as many as its shape asks for.
    #[error("tensor {tensor:?} of shape {shape:?} with {found} bytes cannot be written: {reason}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// Its shape, innermost first.
        shape: Vec<u64>,
        /// Bytes given.
        found: u64,
        /// What is wrong.
        reason: &'static str,
    },
}

impl Coded for ContainerWriteError {
    fn code(&self) -> &'static str {
        match self {
            ContainerWriteError::Io(_) => "slm-write-io",
            ContainerWriteError::Section { .. } => "slm-write-section",
            ContainerWriteError::Tensor { .. } => "slm-write-tensor",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            ContainerWriteError::Io(_) => ErrorClass::Io,
            _ => ErrorClass::Refused,
        }
    }
}
