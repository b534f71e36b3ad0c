//! A composition made into a new base: one way. What runs a model never merges (`docs/numerics.md`, section 7); this writes another model, with another
//! identity, for whoever wants a plain file. No arithmetic brings the old base or the adapters back from it.
//!
//! A changed tensor's rows are [`slm_overlay::Materialized`]: worked out in f64 from the base's dequantized rows, adapter after adapter, rounded
//! once to f32 and then encoded. Tensors that the stack leaves alone keep their bytes in GGUF. Rows are made, hashed and written piece by piece, so
//! that no more of the new model is in memory than some rows for each worker.
//!
//! ```
//! use std::sync::Arc;
//!
//! use slm_format::Limits;
//! use slm_runtime::bake::{Bake, BakeEncoding, BakeOptions};
//! use slm_runtime::load::Base;
//! use slm_runtime::{Composition, Engine};
//!
//! let engine = Engine::inline();
//! let file = Arc::new(slm_golden::TINY_Q8_0);
//! let base = Base::open(file, &Limits::STANDARD, engine.kernels, &*engine.exec)?;
//! let composition = Composition::bare(Arc::new(base))?;
//! let mut out = Vec::new();
//! let baked = Bake::new(&composition, BakeOptions::default())?.write_gguf(&*engine.exec, &mut out)?;
//! // No adapter, nothing re-encoded: the same base.
//! assert_eq!(baked.base, composition.base_id());
//! # Ok::<(), slm_runtime::RuntimeError>(())
//! ```

mod error;
mod hf;
mod rows;
mod tokenizer;

pub use error::BakeError;
pub use hf::HfDocuments;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;

use slm_format::gguf::{self, GgufWriteError, RawMetadata};
use slm_format::safetensors::{self, Dtype, SafeTensorsError};
use slm_format::{ContentHash, Encoding, Limits};
use slm_manifest::config::RawModelConfig;
use slm_manifest::{BaseId, ModelConfig, TensorIdentity};
use slm_overlay::{EMBEDDING, HEAD, Materialized};
use slm_quant::{Executor, Kernels, codec};

use crate::composition::Composition;
use crate::error::{ModelError, RuntimeError};
use crate::load::{Base, SourceModel, SourceTensor, TensorBytes, TokenizerSource};

/// How tensors are stored in what is baked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BakeEncoding {
    /// Each as in the base: what the stack changes is quantized again.
    #[default]
    Keep,
    /// binary16. In a folder all matrices, vectors staying binary32; in GGUF what the stack changes.
    F16,
    /// binary32. In a folder everything; in GGUF what the stack changes.
    F32,
}

/// What to bake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BakeOptions {
    /// How tensors are stored.
    pub encoding: BakeEncoding,
    /// Give a tied base a head of its own, where the stack changes one of the two sides. Without it such a stack is refused, because the file grows by
    /// a second table.
    pub untie: bool,
}

/// One tensor of what was baked.
#[derive(Debug, Clone, PartialEq)]
pub struct BakedTensor {
    /// Canonical name.
    pub name: String,
    /// How the base stores it.
    pub from: Encoding,
    /// How the new base stores it.
    pub to: Encoding,
    /// Whether the stack changed it.
    pub changed: bool,
    /// Norm of the error that storing it added, relative to the norm of what was to be stored; 0 where the base's bytes were taken.
    pub error: f64,
}

/// What was baked.
#[derive(Debug, Clone, PartialEq)]
pub struct Baked {
    /// The new base's identity: what importing the file gives.
    pub base: BaseId,
    /// Its tensors, in the base's order; a head of its own comes last.
    pub tensors: Vec<BakedTensor>,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A composition that can be baked: nothing in it is refused but what only its numbers can tell.
#[derive(Debug)]
pub struct Bake<'a> {
    composition: &'a Composition,
    encoding: BakeEncoding,
    config: ModelConfig,
    tensors: Vec<Planned>,
}

/// One tensor to be made.
#[derive(Debug)]
struct Planned {
    name: String,
    /// The base's tensor whose rows it starts from.
    source: usize,
    change: Materialized,
}

impl<'a> Bake<'a> {
    /// Looks at every tensor of the composition.
    ///
    /// # Errors
    /// `bake-waits` and `bake-bias` for adapters that are no change of weights, `bake-tied-split` where a tied base would have to be untied and
    /// `options` do not say so.
    pub fn new(
        composition: &'a Composition,
        options: BakeOptions,
    ) -> Result<Bake<'a>, RuntimeError> {
        let (base, stack) = (composition.base(), composition.stack());
        let mut tensors = Vec::with_capacity(base.tensors().len() + 1);
        for (source, tensor) in base.tensors().iter().enumerate() {
            let name = tensor.name().to_owned();
            let change = stack.materialize(&name).map_err(BakeError::from)?;
            tensors.push(Planned { name, source, change });
        }
        let mut config = base.config().clone();
        if config.tied_embeddings {
            let change = stack.materialize(HEAD).map_err(BakeError::from)?;
            let embedding = tensors.iter().find(|tensor| tensor.name == EMBEDDING);
            let embedding = embedding.expect("BUG: a base without an embedding table");
            if !(change.is_empty() && embedding.change.is_empty()) {
                if !options.untie {
                    let tensor = if change.is_empty() { EMBEDDING } else { HEAD };
                    return Err(BakeError::TiedSplit { tensor }.into());
                }
                tensors.push(Planned { name: HEAD.to_owned(), source: embedding.source, change });
                config = ModelConfig::check(RawModelConfig {
                    tied_embeddings: false,
                    ..RawModelConfig::clone(&config)
                })?;
            }
        }
        Ok(Bake { composition, encoding: options.encoding, config, tensors })
    }

    /// How many tensors the stack changes.
    pub fn n_changed(&self) -> usize {
        self.tensors.iter().filter(|tensor| !tensor.change.is_empty()).count()
    }

    /// Writes GGUF: the metadata and tokenizer of the file that the base came from, and after them `slm.baked.N.base` and
    /// `slm.baked.N.composition`, which say what was baked.
    ///
    /// # Errors
    /// `not-from-gguf` for a base of another source, `bake-encoder` for a changed tensor whose encoding slm only reads, before anything is written;
    /// `bake-range` for a weight that its encoding cannot hold; what `out` returns.
    pub fn write_gguf(
        &self,
        exec: &dyn Executor,
        out: &mut dyn Write,
    ) -> Result<Baked, RuntimeError> {
        let base = self.base();
        let metadata = base.gguf_metadata().ok_or(ModelError::NotFromGguf)?;
        let (metadata, entries) = RawMetadata::from_bytes(metadata, &Limits::STANDARD)?;
        let n = (0u32..).find(|n| entries.get(&format!("slm.baked.{n}.base")).is_none());
        let n = n.expect("BUG: more entries than numbers");
        let mut bytes = metadata.bytes.to_vec();
        for (what, id) in [("base", base.id().to_string()), ("composition", self.id())] {
            put_text(&mut bytes, &format!("slm.baked.{n}.{what}"), &id);
        }
        let metadata = RawMetadata { bytes: &bytes, kv_count: metadata.kv_count + 2, ..metadata };
        let encodings = self.gguf_encodings()?;
        let heads: Vec<_> = self
            .tensors
            .iter()
            .zip(&encodings)
            .map(|(tensor, &encoding)| gguf::TensorHead {
                name: &tensor.name,
                shape: base.tensors()[tensor.source].shape(),
                encoding,
            })
            .collect();
        let mut done = Vec::with_capacity(heads.len());
        let bytes = gguf::write_with(out, &metadata, &heads, &mut |at, out| {
            let put = &mut |bytes: &[u8]| Ok(out.write_all(bytes).map_err(GgufWriteError::from)?);
            done.push((at, self.tensor(at, encodings[at], exec, false, put)?));
            Ok::<(), RuntimeError>(())
        })?;
        Ok(self.baked(&encodings, done, bytes))
    }

    /// Writes the weights of a HF folder as one safetensors file, with rows of q and k in the framework's order; [`Bake::hf_documents`] are the
    /// files beside it.
    ///
    /// # Errors
    /// `bake-format` for a model that such a folder cannot express, or for [`BakeEncoding::Keep`] where the base is quantized, before anything is
    /// written; `bake-range` for a weight that its encoding cannot hold; what `out` returns.
    pub fn write_safetensors(
        &self,
        exec: &dyn Executor,
        out: &mut dyn Write,
    ) -> Result<Baked, RuntimeError> {
        hf::check(&self.config)?;
        let base = self.base();
        let (mut names, mut shapes, mut encodings) = (Vec::new(), Vec::new(), Vec::new());
        for tensor in &self.tensors {
            let source = &base.tensors()[tensor.source];
            names.push(
                hf::name(&tensor.name).ok_or_else(|| BakeError::Format {
                    what: "tensor",
                    found: tensor.name.clone(),
                })?,
            );
            // GGUF may write a matrix with trailing dimensions of one.
            let n_dims = source.shape().iter().rposition(|&dim| dim != 1).map_or(1, |at| at + 1);
            shapes.push(source.shape()[..n_dims].iter().rev().copied().collect::<Vec<u64>>());
            encodings.push(match self.encoding {
                BakeEncoding::Keep => source.encoding(),
                BakeEncoding::F16 if n_dims > 1 => Encoding::F16,
                BakeEncoding::F16 | BakeEncoding::F32 => Encoding::F32,
            });
        }
        let mut heads = Vec::with_capacity(names.len());
        for ((name, shape), &encoding) in names.iter().zip(&shapes).zip(&encodings) {
            let plain = matches!(encoding, Encoding::F32 | Encoding::F16 | Encoding::BF16);
            let dtype = Dtype::from_encoding(encoding).filter(|_| plain).ok_or_else(|| {
                BakeError::Format { what: "encoding", found: encoding.name().to_owned() }
            })?;
            heads.push(safetensors::TensorHead { name, dtype, shape });
        }
        let table =
            [("slm.baked.base", base.id().to_string()), ("slm.baked.composition", self.id())];
        let mut table: BTreeMap<String, String> =
            table.into_iter().map(|(key, id)| (key.to_owned(), id)).collect();
        // What the framework's own loader asks for.
        table.insert("format".to_owned(), "pt".to_owned());
        let mut done = Vec::with_capacity(heads.len());
        let bytes = safetensors::write_with(out, &heads, &table, &mut |at, out| {
            let put =
                &mut |bytes: &[u8]| Ok(out.write_all(bytes).map_err(SafeTensorsError::from)?);
            done.push((at, self.tensor(at, encodings[at], exec, true, put)?));
            Ok::<(), RuntimeError>(())
        })?;
        Ok(self.baked(&encodings, done, bytes))
    }

    /// The files of a HF folder beside the weights. The tokenizer's are read back and compared before they are handed out.
    ///
    /// # Errors
    /// `bake-format` for a model that such a folder cannot express, `bake-tokenizer` for a tokenizer that `tokenizer.json` cannot.
    pub fn hf_documents(&self) -> Result<HfDocuments, RuntimeError> {
        hf::documents(self.base(), &self.config)
    }

    /// The new base in memory: what writing and importing it would give, whatever its encodings.
    ///
    /// # Errors
    /// As [`Bake::write_gguf`], but for `not-from-gguf`.
    pub fn to_base(&self, kernels: Kernels, exec: &dyn Executor) -> Result<Base, RuntimeError> {
        let encodings = self.gguf_encodings()?;
        let mut changed = Vec::new();
        for (at, tensor) in self.tensors.iter().enumerate() {
            let mut bytes = Vec::new();
            let put = &mut |piece: &[u8]| {
                bytes.extend_from_slice(piece);
                Ok(())
            };
            self.tensor(at, encodings[at], exec, false, put)?;
            changed.push((tensor.name.clone(), encodings[at], bytes));
        }
        self.base().with_tensors(changed, kernels, exec)
    }

    fn base(&self) -> &Base {
        self.composition.base()
    }

    fn id(&self) -> String {
        self.composition.id().to_string()
    }

    /// The encodings in GGUF, each of which can be written.
    fn gguf_encodings(&self) -> Result<Vec<Encoding>, RuntimeError> {
        let encoding = |tensor: &Planned| {
            let own = self.base().tensors()[tensor.source].encoding();
            let encoding = match self.encoding {
                _ if tensor.change.is_empty() => return Ok(own),
                BakeEncoding::Keep => own,
                BakeEncoding::F16 => Encoding::F16,
                BakeEncoding::F32 => Encoding::F32,
            };
            let n = encoding.block_elements();
            match codec::encode(encoding, &vec![0.0; n], n) {
                Ok(_) => Ok(encoding),
                Err(_) => {
                    let tensor = tensor.name.clone();
                    Err(BakeError::Encoder { tensor, encoding: encoding.name() }.into())
                }
            }
        };
        self.tensors.iter().map(encoding).collect()
    }

    fn baked(
        &self,
        encodings: &[Encoding],
        mut done: Vec<(usize, (ContentHash, f64))>,
        bytes: u64,
    ) -> Baked {
        done.sort_by_key(|(at, _)| *at);
        let (mut tensors, mut identities) = (Vec::new(), Vec::new());
        for (at, (content, error)) in done {
            let (planned, encoding) = (&self.tensors[at], encodings[at]);
            let source = &self.base().tensors()[planned.source];
            identities.push(TensorIdentity {
                name: planned.name.clone(),
                encoding,
                shape: source.shape().to_vec(),
                content,
            });
            tensors.push(BakedTensor {
                name: planned.name.clone(),
                from: source.encoding(),
                to: encoding,
                changed: !planned.change.is_empty(),
                error,
            });
        }
        Baked { base: BaseId::compute(&self.config, &identities), tensors, bytes }
    }
}

impl Base {
    /// The same model with other weights, in memory: each of `changed` (canonical name, encoding, bytes in ggml order) takes the place of the tensor
    /// of that name; a head for a tied base unties it. It has no metadata of a GGUF file.
    ///
    /// # Errors
    /// As [`Base::open`]: a tensor of no such name, of a wrong length, or with a scale that is not finite.
    pub fn with_tensors(
        &self,
        changed: Vec<(String, Encoding, Vec<u8>)>,
        kernels: Kernels,
        exec: &dyn Executor,
    ) -> Result<Base, RuntimeError> {
        let mut changed: BTreeMap<String, (Encoding, Vec<u8>)> =
            changed.into_iter().map(|(name, encoding, bytes)| (name, (encoding, bytes))).collect();
        let mut tensors = Vec::with_capacity(self.tensors().len() + 1);
        let mut config = self.config().clone();
        for (at, tensor) in self.tensors().iter().enumerate() {
            let (encoding, bytes) = match changed.remove(tensor.name()) {
                Some((encoding, bytes)) => (encoding, Cow::Owned(bytes)),
                None => (tensor.encoding(), self.tensor_bytes(at)),
            };
            tensors.push(source(tensor.name(), encoding, tensor.shape(), &bytes)?);
        }
        for (name, (encoding, bytes)) in changed {
            let embedding = self.tensors().iter().find(|tensor| tensor.name() == EMBEDDING);
            let shape = match embedding.filter(|_| name == HEAD && config.tied_embeddings) {
                Some(embedding) => embedding.shape(),
                None => {
                    return Err(ModelError::TensorUnknown {
                        name,
                        architecture: config.architecture.name(),
                    }
                    .into());
                }
            };
            tensors.push(source(&name, encoding, shape, &bytes)?);
            config = ModelConfig::check(RawModelConfig {
                tied_embeddings: false,
                ..RawModelConfig::clone(&config)
            })?;
        }
        let source = SourceModel {
            config,
            tokenizer: TokenizerSource::Read(self.tokenizer_spec().clone()),
            name: self.name().to_owned(),
            chat_template: self.chat_template_source().map(str::to_owned),
            gguf_metadata: None,
            tensors,
        };
        Base::from_parts(source, kernels, exec)
    }
}

fn source(
    name: &str,
    encoding: Encoding,
    shape: &[u64],
    bytes: &[u8],
) -> Result<SourceTensor, RuntimeError> {
    let tensor = SourceTensor {
        name: name.to_owned(),
        encoding,
        shape: shape.to_vec(),
        layout: slm_quant::Layout::RowMajor,
        bytes: TensorBytes::Owned(bytes.into()),
    };
    tensor.matrix(bytes)?;
    Ok(tensor)
}

/// An entry of GGUF's metadata.
fn put_text(bytes: &mut Vec<u8>, key: &str, value: &str) {
    for (text, value_type) in [(key, Some(gguf::ValueType::Str)), (value, None)] {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(value_type.into_iter().flat_map(|kind| kind.number().to_le_bytes()));
    }
}
