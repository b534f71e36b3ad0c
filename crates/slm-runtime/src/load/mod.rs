//! From bytes to a [`Base`]: one checked, verified, immutable model.
//!
//! A source (GGUF, `.slm`, a HF folder) becomes a [`SourceModel`] in the normal form, and that becomes a [`Base`] only when every tensor of
//! the graph is there, has its shape and finite scales, and nothing would be ignored.

mod base;
mod gguf;
mod graph;
mod hf;
mod slm;
mod source;

pub use base::{Base, BaseTensor};
pub use graph::{Graph, Layer, MatrixRef};
pub use hf::HfFiles;
pub(crate) use slm::peek_base_id;
pub use source::{Bytes, SourceModel, SourceTensor, TensorBytes};

use crate::error::{ModelError, RuntimeError};
use slm_format::Limits;
use slm_quant::{Executor, Kernels};

/// What a model file is, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFormat {
    /// GGUF v2 or v3.
    Gguf,
    /// Our container.
    Slm,
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
    /// Opens a model file in place, whatever its format; everything is checked and every tensor hashed.
    ///
    /// # Errors
    /// The first thing found wrong in the file.
    pub fn open(
        bytes: Bytes,
        limits: &Limits,
        kernels: Kernels,
        exec: &dyn Executor,
    ) -> Result<Base, RuntimeError> {
        match ModelFormat::detect((*bytes).as_ref())? {
            ModelFormat::Gguf => Base::open_gguf(bytes, limits, kernels, exec),
            ModelFormat::Slm => Base::open_slm(bytes, limits, kernels, exec),
        }
    }

    /// Opens a GGUF model in place.
    ///
    /// # Errors
    /// As [`Base::open`].
    pub fn open_gguf(
        bytes: Bytes,
        limits: &Limits,
        kernels: Kernels,
        exec: &dyn Executor,
    ) -> Result<Base, RuntimeError> {
        let source = gguf::read(&bytes, limits)?;
        Base::from_source(source, bytes, kernels, exec)
    }

    /// Opens a `.slm` base in place.
    ///
    /// # Errors
    /// As [`Base::open`]; a tensor whose bytes do not have the directory's hash is [`ModelError::TensorContent`].
    pub fn open_slm(
        bytes: Bytes,
        limits: &Limits,
        kernels: Kernels,
        exec: &dyn Executor,
    ) -> Result<Base, RuntimeError> {
        let (source, expected) = slm::read(&bytes, limits)?;
        let base = Base::from_source(source, bytes, kernels, exec)?;
        base.compare_contents(&expected)?;
        Ok(base)
    }

    /// Reads the files of a HF folder; q and k rows are brought into GGUF's order in memory.
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
        Base::from_source(source, std::sync::Arc::new(Vec::new()), kernels, exec)
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
