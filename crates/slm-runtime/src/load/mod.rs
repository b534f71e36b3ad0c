//! From bytes to a [`Base`]: one checked, verified, immutable model.
//!
//! A source (GGUF, `.slm`, SLM1, a HF folder) becomes a [`SourceModel`] in the normal form, and that becomes a [`Base`] only when every tensor of
//! the graph is there, has its shape and finite scales, and nothing would be ignored.

mod base;
mod examine;
mod gguf;
mod graph;
mod hf;
mod slm;
mod slm1;
mod source;

pub use base::{Base, BaseTensor};
pub use graph::{Graph, Layer, MatrixRef};
pub use hf::HfFiles;
pub(crate) use slm::peek_base_id;
pub use source::{Bytes, SourceModel, SourceTensor, TensorBytes, TokenizerSource};

use std::ops::Range;

use crate::error::{ModelError, RuntimeError};
use base::Place;
use slm_format::{ContentHash, Limits};
use slm_quant::{Executor, Kernels};

/// What a model file is, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFormat {
    /// GGUF v2 or v3.
    Gguf,
    /// Our container.
    Slm,
    /// TinyRustLM's container.
    Slm1,
}

impl ModelFormat {
    /// The format that `bytes` start with.
    ///
    /// # Errors
    /// [`ModelError::UnknownFormat`] with the first bytes. Files that carry GGUF's faults (a big-endian magic, a Git-LFS pointer, fewer bytes than a
    /// header) count as GGUF, whose reader names the fault.
    pub fn detect(bytes: &[u8]) -> Result<ModelFormat, ModelError> {
        let head = &bytes[..bytes.len().min(8)];
        if head.starts_with(&slm_format::container::layout::MAGIC) {
            Ok(ModelFormat::Slm)
        } else if head.starts_with(&slm_format::slm1::MAGIC) {
            Ok(ModelFormat::Slm1)
        } else if head.starts_with(b"GGUF")
            || head.starts_with(b"FUGG")
            || head.starts_with(b"version ")
        {
            Ok(ModelFormat::Gguf)
        } else {
            Err(ModelError::UnknownFormat { found: head.to_vec() })
        }
    }
}

impl Base {
    /// Opens a model file in place, whatever its format; everything is checked and every tensor hashed. Nothing is copied: for looking at a
    /// file, or where memory is dearer than speed.
    ///
    /// # Errors
    /// The first thing found wrong in the file.
    pub fn open(
        bytes: Bytes,
        limits: &Limits,
        kernels: Kernels,
        exec: &dyn Executor,
    ) -> Result<Base, RuntimeError> {
        let read = read((*bytes).as_ref(), limits)?;
        Base::build(read, Place::InFile(bytes), kernels, exec)
    }

    /// Reads a model file into memory, whatever its format, with its rows in the order that kernels read fastest and in huge pages where the
    /// system has them: for running it. What is checked and hashed is the copy, so that nobody who writes to the file can change it.
    ///
    /// `release` is told the range of the file of each tensor that was copied, so that a mapped file need not stay in memory beside the copy.
    ///
    /// # Errors
    /// As [`Base::open`].
    pub fn load(
        file: &[u8],
        limits: &Limits,
        kernels: Kernels,
        exec: &dyn Executor,
        release: &(dyn Fn(Range<usize>) + Sync),
    ) -> Result<Base, RuntimeError> {
        Base::build(read(file, limits)?, Place::Memory { file, release }, kernels, exec)
    }

    /// Reads the files of a HF folder into memory; q and k rows are brought into GGUF's order.
    ///
    /// # Errors
    /// As [`Base::open`].
    pub fn open_hf(
        files: &HfFiles<'_>,
        limits: &Limits,
        kernels: Kernels,
        exec: &dyn Executor,
    ) -> Result<Base, RuntimeError> {
        let source = hf::read(files, limits)?;
        Base::from_parts(source, kernels, exec)
    }

    /// A model whose tensors stand in memory of their own, from its parts.
    pub(crate) fn from_parts(
        source: SourceModel,
        kernels: Kernels,
        exec: &dyn Executor,
    ) -> Result<Base, RuntimeError> {
        Base::from_source(source, Place::Memory { file: &[], release: &|_| {} }, kernels, exec)
    }

    fn build(
        (source, expected): (SourceModel, Option<Vec<ContentHash>>),
        place: Place<'_>,
        kernels: Kernels,
        exec: &dyn Executor,
    ) -> Result<Base, RuntimeError> {
        let base = Base::from_source(source, place, kernels, exec)?;
        if let Some(expected) = expected {
            base.compare_contents(&expected)?;
        }
        Ok(base)
    }

    /// Writes this base as a `.slm` file: the same tensor bytes, the tokenizer document, the configuration, and the source's metadata
    /// verbatim. Deterministic: equal sources give equal files.
    ///
    /// # Errors
    /// What `out` returns.
    pub fn write_slm(&self, out: &mut dyn std::io::Write) -> Result<(), RuntimeError> {
        slm::write(self, out)
    }

    /// Writes this base as GGUF with the metadata of the GGUF file it came from, verbatim.
    ///
    /// # Errors
    /// [`ModelError::NotFromGguf`] when it came from another format; what `out` returns.
    pub fn write_gguf(&self, out: &mut dyn std::io::Write) -> Result<(), RuntimeError> {
        gguf::write(self, out)
    }
}

/// The parts of a model, and the hashes that its file claims for its tensors, where it does.
fn read(
    file: &[u8],
    limits: &Limits,
) -> Result<(SourceModel, Option<Vec<ContentHash>>), RuntimeError> {
    match ModelFormat::detect(file)? {
        ModelFormat::Gguf => Ok((gguf::read(file, limits)?, None)),
        ModelFormat::Slm1 => Ok((slm1::read(file, limits)?, None)),
        ModelFormat::Slm => {
            let (source, expected) = slm::read(file, limits)?;
            Ok((source, Some(expected)))
        }
    }
}
