//! The immutable base.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use slm_format::{ContentHash, Encoding};
use slm_manifest::{BaseId, ModelConfig, TensorIdentity, TokenizerId};
use slm_overlay::{BaseShape, BaseWeights};
use slm_quant::layout;
use slm_quant::{Executor, Kernels, Layout, QMatrix, last_cache_bytes};

use crate::chat::ChatTemplate;
use crate::error::{ModelError, RuntimeError};
use crate::load::source::CheckedTokenizer;
use crate::load::{Bytes, Graph, MatrixRef, SourceModel, SourceTensor, examine};
use crate::parallel::{join, parallel_for};
use crate::tokenizer::{Tokenizer, TokenizerSpec};

/// One tensor of a base.
#[derive(Debug, Clone)]
pub struct BaseTensor {
    source: SourceTensor,
    content: ContentHash,
}

impl BaseTensor {
    /// Canonical (GGUF) name.
    pub fn name(&self) -> &str {
        &self.source.name
    }

    /// How the elements are stored.
    pub fn encoding(&self) -> Encoding {
        self.source.encoding
    }

    /// Dimensions, innermost first.
    pub fn shape(&self) -> &[u64] {
        &self.source.shape
    }

    /// BLAKE3 of its bytes in ggml order, computed when the base was opened.
    pub fn content(&self) -> ContentHash {
        self.content
    }
}

/// Weights that are so many times the last cache's size leave nothing in it for the next token.
const OUTGROWS: u64 = 2;

/// Whether what a token reads leaves none of itself in a cache for the next one.
fn outgrows(weights: u64, last_cache: Option<u64>) -> bool {
    last_cache.is_some_and(|cache| weights / OUTGROWS >= cache)
}

/// Where the weights of a base shall stand.
pub(crate) enum Place<'a> {
    /// In the file itself.
    InFile(Bytes),
    /// In memory of their own.
    Memory {
        /// The file.
        file: &'a [u8],
        /// Told which range of the file will not be read again.
        release: &'a (dyn Fn(Range<usize>) + Sync),
    },
}

/// One small language model: checked, verified, and never changed.
///
/// A base is `Sync` and holds no state; sessions share it through an [`Arc`]. No method takes it by `&mut`.
pub struct Base {
    id: BaseId,
    config: ModelConfig,
    graph: Graph,
    tensors: Vec<BaseTensor>,
    bytes: Bytes,
    /// No cache will still have a weight when the next token reads it.
    outgrows_caches: bool,
    checked_tokenizer: CheckedTokenizer,
    tokenizer: OnceLock<Tokenizer>,
    chat_template: Option<String>,
    name: String,
    gguf_metadata: Option<Vec<u8>>,
}

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Base")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("tensors", &self.tensors.len())
            .finish()
    }
}

impl Base {
    /// Checks `source` against its graph, and every tensor's scales, and hashes every tensor.
    ///
    /// # Errors
    /// A tensor that is missing, unknown, of another shape, or has a non-finite scale; a tokenizer of another size.
    pub(crate) fn from_source(
        source: SourceModel,
        place: Place<'_>,
        kernels: Kernels,
        exec: &dyn Executor,
    ) -> Result<Base, RuntimeError> {
        let SourceModel { config, tokenizer, name, chat_template, gguf_metadata, mut tensors } =
            source;
        let layers = |tensors: &[SourceTensor], file: &[u8]| {
            Graph::join(&config, tensors, &|at| decode_norm(&tensors[at], file, kernels))
        };
        let file: &[u8] = match &place {
            Place::InFile(bytes) => (**bytes).as_ref(),
            Place::Memory { file, .. } => file,
        };
        let mut graph = layers(&tensors, file)?;
        // Reading the vocabulary takes one thread as long as hashing many tensors: it is done beside that.
        let (tokenizer, examined) = match place {
            Place::InFile(bytes) => {
                let file: &[u8] = (*bytes).as_ref();
                let (tokenizer, contents) = join(
                    exec,
                    || tokenizer.check(file),
                    || examine::in_place(&tensors, file, exec),
                );
                (tokenizer, contents.map(|contents| (bytes, contents)))
            }
            Place::Memory { file, release } => {
                let (tokenizer, examined) = join(
                    exec,
                    || tokenizer.check(file),
                    || examine::into_memory(&mut tensors, file, exec, release),
                );
                let examined = examined.and_then(|(memory, contents)| {
                    // The norms of the copy: those of the file were only looked at.
                    graph = layers(&tensors, &memory)?;
                    Ok((Arc::new(memory) as Bytes, contents))
                });
                (tokenizer, examined)
            }
        };
        let tokenizer = tokenizer?;
        if tokenizer.vocab_size != config.vocab_size {
            return Err(ModelError::Vocabulary {
                tokenizer: u64::from(tokenizer.vocab_size),
                model: u64::from(config.vocab_size),
            }
            .into());
        }
        let (bytes, contents) = examined?;
        let tensors: Vec<BaseTensor> = tensors
            .into_iter()
            .zip(contents)
            .map(|(source, content)| BaseTensor { source, content })
            .collect();
        let id = BaseId::compute(&config, &identities(&tensors));
        // Of an embedding table that is not the head too, a token reads a row.
        let read = |&(at, _): &(usize, &BaseTensor)| {
            graph.token_embd == graph.output || at != graph.token_embd.0
        };
        let len =
            |(_, tensor): (usize, &BaseTensor)| tensor.source.bytes.of((*bytes).as_ref()).len();
        let weights: usize = tensors.iter().enumerate().filter(read).map(len).sum();
        let outgrows_caches = outgrows(weights as u64, last_cache_bytes());
        Ok(Base {
            id,
            config,
            graph,
            tensors,
            bytes,
            outgrows_caches,
            checked_tokenizer: tokenizer,
            tokenizer: OnceLock::new(),
            chat_template,
            name,
            gguf_metadata,
        })
    }

    /// The identity of what this base computes.
    pub fn id(&self) -> BaseId {
        self.id
    }

    /// The identity of its tokenizer.
    pub fn tokenizer_id(&self) -> TokenizerId {
        self.checked_tokenizer.id
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The graph's handles.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The tensors, in the source's order.
    pub fn tensors(&self) -> &[BaseTensor] {
        &self.tensors
    }

    /// The model's own name, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tokenizer document, read at the first call where the base came as `.slm`: it was checked when the base was opened.
    pub fn tokenizer_spec(&self) -> &TokenizerSpec {
        self.checked_tokenizer.spec()
    }

    /// The tokenizer, built at the first call.
    ///
    /// # Errors
    /// What building it refuses.
    pub fn tokenizer(&self) -> Result<&Tokenizer, RuntimeError> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(tokenizer);
        }
        let tokenizer = Tokenizer::new(self.tokenizer_spec())?;
        Ok(self.tokenizer.get_or_init(|| tokenizer))
    }

    /// The chat template's source, if the model has one.
    pub fn chat_template_source(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// The chat template.
    ///
    /// # Errors
    /// [`crate::chat::ChatError`] when there is none or it does not parse.
    pub fn chat_template(&self) -> Result<ChatTemplate, RuntimeError> {
        Ok(ChatTemplate::new(
            self.chat_template.as_deref().ok_or(crate::chat::ChatError::NoTemplate)?,
        )?)
    }

    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.shape().iter().product::<u64>()).sum()
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> u64 {
        (0..self.tensors.len()).map(|at| self.stored_bytes(at).len() as u64).sum()
    }

    /// How many tensors there are of each encoding, in the order of ggml's type numbers.
    pub fn quantization(&self) -> Vec<(Encoding, u32)> {
        Encoding::all()
            .map(|encoding| {
                (
                    encoding,
                    self.tensors.iter().filter(|tensor| tensor.encoding() == encoding).count()
                        as u32,
                )
            })
            .filter(|row| row.1 > 0)
            .collect()
    }

    /// The shape that adapters are resolved and bound against.
    pub fn shape(&self) -> BaseShape<'_> {
        let c = &self.config;
        BaseShape {
            architecture: c.architecture,
            n_heads: c.n_heads,
            n_kv_heads: c.n_kv_heads,
            head_dim: c.head_dim,
            n_layers: c.n_layers,
            tied_embeddings: c.tied_embeddings,
            tensors: self
                .tensors
                .iter()
                .filter(|tensor| tensor.shape().len() == 2)
                .map(|tensor| (tensor.name().to_owned(), (tensor.shape()[1], tensor.shape()[0])))
                .collect(),
            weights: Some(self),
        }
    }

    /// The bytes of tensor `at`, in ggml order; a copy where they stand interleaved.
    pub fn tensor_bytes(&self, at: usize) -> Cow<'_, [u8]> {
        let tensor = &self.tensors[at].source;
        let bytes = self.stored_bytes(at);
        if tensor.layout == Layout::RowMajor {
            return Cow::Borrowed(bytes);
        }
        let mut rows = vec![0; bytes.len()];
        let (n_rows, cols) = tensor.rows_and_cols();
        layout::deinterleave(tensor.encoding, n_rows, cols, bytes, &mut rows)
            .expect("BUG: a checked matrix changed its length");
        Cow::Owned(rows)
    }

    /// The bytes of tensor `at` interleaved; `None` where its encoding has no such layout.
    pub(crate) fn interleaved_bytes(&self, at: usize) -> Option<Cow<'_, [u8]>> {
        let tensor = &self.tensors[at].source;
        if !examine::is_worth_interleaving(tensor) {
            return None;
        }
        let bytes = self.stored_bytes(at);
        if tensor.layout == Layout::Interleaved {
            return Some(Cow::Borrowed(bytes));
        }
        let (n_rows, cols) = tensor.rows_and_cols();
        let mut strips = vec![0; bytes.len()];
        layout::interleave(tensor.encoding, n_rows, cols, bytes, &mut strips)
            .expect("BUG: a checked matrix changed its length");
        Some(Cow::Owned(strips))
    }

    fn stored_bytes(&self, at: usize) -> &[u8] {
        self.tensors[at].source.bytes.of((*self.bytes).as_ref())
    }

    /// The matrix behind a handle.
    pub fn matrix(&self, matrix: MatrixRef) -> QMatrix<'_> {
        let tensor = &self.tensors[matrix.0].source;
        tensor
            .matrix(self.stored_bytes(matrix.0))
            .expect("BUG: a checked matrix changed its length")
    }

    /// Whether it is so large that no cache still has a part of it when the next pass reads that.
    pub(crate) fn outgrows_caches(&self) -> bool {
        self.outgrows_caches
    }

    /// The encoding of a matrix.
    pub fn matrix_encoding(&self, matrix: MatrixRef) -> Encoding {
        self.tensors[matrix.0].encoding()
    }

    /// The canonical name of a matrix.
    pub fn matrix_name(&self, matrix: MatrixRef) -> &str {
        self.tensors[matrix.0].name()
    }

    /// Hashes the weights as they are in memory now and returns the identity that they give. Equal to [`Base::id`] for as long as nothing
    /// outside has written to the bytes.
    pub fn rehash(&self, exec: &dyn Executor) -> BaseId {
        let hashes = parallel_for(exec, self.tensors.len(), &|at| {
            examine::hash(&self.tensors[at].source, self.stored_bytes(at))
                .expect("BUG: a checked matrix changed its length")
        });
        let identities: Vec<TensorIdentity> = identities(&self.tensors)
            .into_iter()
            .zip(hashes)
            .map(|(identity, content)| TensorIdentity { content, ..identity })
            .collect();
        BaseId::compute(&self.config, &identities)
    }

    /// GGUF's metadata section, where the source was GGUF.
    pub(crate) fn gguf_metadata(&self) -> Option<&[u8]> {
        self.gguf_metadata.as_deref()
    }

    /// Compares the hashes computed at opening with those a directory gives, in the same order.
    pub(crate) fn compare_contents(&self, expected: &[ContentHash]) -> Result<(), ModelError> {
        for (tensor, &expected) in self.tensors.iter().zip(expected) {
            if tensor.content != expected {
                return Err(ModelError::TensorContent {
                    name: tensor.name().to_owned(),
                    expected,
                    found: tensor.content,
                });
            }
        }
        Ok(())
    }

    /// Refuses this base unless it is the one that was asked for.
    ///
    /// # Errors
    /// [`ModelError::BaseMismatch`] with both identities.
    pub fn expect_id(self: Arc<Base>, expected: BaseId) -> Result<Arc<Base>, ModelError> {
        if self.id == expected {
            Ok(self)
        } else {
            Err(ModelError::BaseMismatch { expected, found: self.id })
        }
    }
}

impl BaseWeights for Base {
    fn row(&self, tensor: &str, row: usize, out: &mut [f32]) {
        let at = self.tensors.iter().position(|known| known.name() == tensor);
        let matrix = self.matrix(MatrixRef(at.expect("BUG: a row of no tensor of the base")));
        Kernels::detect().decode_row(out, &matrix, row);
    }

    fn encoding(&self, tensor: &str) -> Option<Encoding> {
        self.tensors.iter().find(|known| known.name() == tensor).map(BaseTensor::encoding)
    }
}

fn identities(tensors: &[BaseTensor]) -> Vec<TensorIdentity> {
    tensors
        .iter()
        .map(|tensor| TensorIdentity {
            name: tensor.name().to_owned(),
            encoding: tensor.encoding(),
            shape: tensor.shape().to_vec(),
            content: tensor.content,
        })
        .collect()
}

fn decode_norm(
    tensor: &SourceTensor,
    file: &[u8],
    kernels: Kernels,
) -> Result<Vec<f32>, RuntimeError> {
    if !matches!(tensor.encoding, Encoding::F32 | Encoding::F16 | Encoding::BF16) {
        return Err(ModelError::TensorEncoding {
            name: tensor.name.clone(),
            found: tensor.encoding,
        }
        .into());
    }
    let matrix = tensor.matrix(tensor.bytes.of(file))?;
    let mut decoded = vec![0.0; matrix.cols()];
    kernels.decode_row(&mut decoded, &matrix, 0);
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::outgrows;

    #[test]
    fn a_base_of_twice_the_last_cache_outgrows_it_and_none_outgrows_what_nobody_knows() {
        assert!(outgrows(64 << 20, Some(32 << 20)));
        assert!(!outgrows((64 << 20) - 1, Some(32 << 20)));
        assert!(!outgrows(u64::MAX, None));
    }
}
