//! A model in the normal form, not yet checked against its graph.

use std::sync::Arc;

use slm_format::Encoding;
use slm_manifest::ModelConfig;
use slm_quant::Layout;
use slm_quant::layout::AlignedBytes;

use crate::tokenizer::TokenizerSpec;

/// Bytes that stay where they are: an mmap, a buffer, a static.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Where a tensor's bytes are.
#[derive(Debug, Clone)]
pub enum TensorBytes {
    /// In the model's file.
    InFile {
        /// Offset of the first byte.
        offset: usize,
        /// Number of bytes.
        len: usize,
    },
    /// In memory of their own, because the file had another row order.
    Owned(Arc<[u8]>),
    /// In memory of their own, 64-aligned, because the rows were interleaved at load.
    Aligned(Arc<AlignedBytes>),
}

/// One tensor under its canonical name.
#[derive(Debug, Clone)]
pub struct SourceTensor {
    /// Canonical (GGUF) name.
    pub name: String,
    /// How the elements are stored.
    pub encoding: Encoding,
    /// Dimensions, innermost first.
    pub shape: Vec<u64>,
    /// How the rows stand in `bytes`.
    pub layout: Layout,
    /// Its bytes.
    pub bytes: TensorBytes,
}

/// Everything a base is made of, in the normal form.
#[derive(Debug, Clone)]
pub struct SourceModel {
    /// The checked configuration.
    pub config: ModelConfig,
    /// The tokenizer document.
    pub tokenizer: TokenizerSpec,
    /// The model's own name, for people.
    pub name: String,
    /// The chat template, if the source has one.
    pub chat_template: Option<String>,
    /// GGUF's metadata verbatim, as [`slm_format::gguf::RawMetadata::to_bytes`] gives them, where the source is GGUF.
    pub gguf_metadata: Option<Vec<u8>>,
    /// The tensors, in the source's order.
    pub tensors: Vec<SourceTensor>,
}

/// The range of `part` within `whole`.
///
/// # Panics
/// When `part` is not a piece of `whole`: our bug.
pub(crate) fn range_in(whole: &[u8], part: &[u8]) -> TensorBytes {
    let offset = (part.as_ptr() as usize)
        .checked_sub(whole.as_ptr() as usize)
        .expect("BUG: a tensor lies before its file");
    assert!(offset + part.len() <= whole.len(), "BUG: a tensor lies behind its file");
    TensorBytes::InFile { offset, len: part.len() }
}
