//! A model in the normal form, not yet checked against its graph.

use std::sync::{Arc, OnceLock};

use slm_format::{Encoding, Limits};
use slm_manifest::{ModelConfig, TokenizerId};
use slm_quant::{Layout, QMatrix, QuantError};

use crate::tokenizer::{Document, TokenizerError, TokenizerSpec};

/// Bytes that stay where they are: an mmap, a buffer, a static.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Where a tensor's bytes are.
#[derive(Debug, Clone)]
pub enum TensorBytes {
    /// In the model's file, or in the memory that it was copied to.
    InFile {
        /// Offset of the first byte.
        offset: usize,
        /// Number of bytes.
        len: usize,
    },
    /// In memory of their own, because the file had another row order.
    Owned(Arc<[u8]>),
}

impl TensorBytes {
    /// The bytes, given the file.
    pub(crate) fn of<'a>(&'a self, file: &'a [u8]) -> &'a [u8] {
        match self {
            TensorBytes::InFile { offset, len } => &file[*offset..*offset + *len],
            TensorBytes::Owned(bytes) => bytes,
        }
    }
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

impl SourceTensor {
    /// As a matrix: rows of its innermost dimension.
    pub(crate) fn rows_and_cols(&self) -> (usize, usize) {
        let cols = self.shape.first().copied().unwrap_or(1);
        let rows: u64 = self.shape.iter().skip(1).product();
        (rows as usize, cols as usize)
    }

    /// A view of its bytes.
    pub(crate) fn matrix<'a>(&self, bytes: &'a [u8]) -> Result<QMatrix<'a>, QuantError> {
        let (rows, cols) = self.rows_and_cols();
        match self.layout {
            Layout::RowMajor => QMatrix::new(self.encoding, rows, cols, bytes),
            Layout::Interleaved => QMatrix::new_interleaved(self.encoding, rows, cols, bytes),
        }
    }
}

/// A tokenizer document, read already or to be read beside the tensors: for a large vocabulary, that takes as long as hashing many of them.
#[derive(Debug, Clone)]
pub enum TokenizerSource {
    /// Read and checked.
    Read(TokenizerSpec),
    /// What [`TokenizerSpec::to_canonical`] wrote, in the model's file.
    Document {
        /// Where.
        bytes: TensorBytes,
        /// The limits to read it under.
        limits: Limits,
    },
}

impl TokenizerSource {
    /// The document, checked.
    pub(crate) fn check(self, file: &[u8]) -> Result<CheckedTokenizer, TokenizerError> {
        Ok(match self {
            TokenizerSource::Read(spec) => CheckedTokenizer {
                id: spec.id(),
                vocab_size: spec.vocab_size(),
                document: None,
                spec: OnceLock::from(spec),
            },
            TokenizerSource::Document { bytes, limits } => {
                // A copy: whoever writes to the file afterwards changes nothing that was found good.
                let document = Document::check(bytes.of(file).to_vec(), &limits)?;
                CheckedTokenizer {
                    id: document.id(),
                    vocab_size: document.vocab_size(),
                    document: Some(document),
                    spec: OnceLock::new(),
                }
            }
        })
    }
}

/// A tokenizer that was checked. Where nothing is encoded, its tokens are never copied out of the document.
#[derive(Debug)]
pub(crate) struct CheckedTokenizer {
    /// Its identity.
    pub(crate) id: TokenizerId,
    /// How many tokens there are.
    pub(crate) vocab_size: u32,
    document: Option<Document>,
    spec: OnceLock<TokenizerSpec>,
}

impl CheckedTokenizer {
    /// The tokenizer, read at the first call.
    pub(crate) fn spec(&self) -> &TokenizerSpec {
        self.spec.get_or_init(|| {
            let document = self.document.as_ref();
            document.expect("BUG: neither a tokenizer nor its document").spec()
        })
    }
}

/// Everything a base is made of, in the normal form.
#[derive(Debug, Clone)]
pub struct SourceModel {
    /// The checked configuration.
    pub config: ModelConfig,
    /// The tokenizer document.
    pub tokenizer: TokenizerSource,
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
