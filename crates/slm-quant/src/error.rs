//! What this crate refuses.

use slm_format::{Coded, Encoding};

/// Why a matrix, a row or a conversion was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// A row is not a whole number of blocks, or the matrix's byte count overflows.
    #[error("{encoding}: {rows} rows of {cols} columns are not whole blocks of {}", .encoding.block_elements())]
    Shape {
        /// The encoding asked for.
        encoding: Encoding,
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
    },
    /// The bytes or elements given are not as many as the shape needs.
    #[error("{what}: {given} given, {needed} needed")]
    Length {
        /// What was counted, for example `matrix bytes`.
        what: &'static str,
        /// The count needed.
        needed: usize,
        /// The count given.
        given: usize,
    },
    /// An activation is NaN or infinite.
    #[error("row {row}: element {index} is not finite")]
    NonFinite {
        /// The row (token) within the batch.
        row: usize,
        /// The element within the row.
        index: usize,
    },
    /// A block's scale or minimum is NaN or infinite (for plain floats: the element itself).
    #[error("{encoding}: row {row}, block {block}: the scale is not finite")]
    NonFiniteScale {
        /// The encoding of the matrix.
        encoding: Encoding,
        /// The row of the matrix.
        row: usize,
        /// The block within the row.
        block: usize,
    },
    /// There is no encoder to this encoding.
    #[error("{encoding}: no encoder")]
    NoEncoder {
        /// The encoding asked for.
        encoding: Encoding,
    },
    /// Weights of this encoding only feed the decoder here (for example LoRA factors must be plain floats).
    #[error("{encoding}: cannot be used as {what}")]
    Unusable {
        /// The encoding given.
        encoding: Encoding,
        /// Where it was given.
        what: &'static str,
    },
}

impl Coded for QuantError {
    fn code(&self) -> &'static str {
        match self {
            QuantError::Shape { .. } => "quant-shape",
            QuantError::Length { .. } => "quant-length",
            QuantError::NonFinite { .. } => "non-finite-activation",
            QuantError::NonFiniteScale { .. } => "non-finite-scale",
            QuantError::NoEncoder { .. } => "no-encoder",
            QuantError::Unusable { .. } => "quant-unusable",
        }
    }
}
