//! Typed deltas: dense, sparse and low-rank changes to a base that carry the identity of what they were made for.
//!
//! Others ship such deltas in binary formats of which only the rules are public (TinyRustLM's ADP1, ASP1 and ALR1), not the bytes. This is our
//! equivalent with the same rules, and one more: their identity binds a base's shapes, ours its *content*. The file is a safetensors file whose
//! `__metadata__` says all of these, and nothing else:
//!
//! | key | value |
//! |---|---|
//! | `slm_delta` | `1`, the version |
//! | `kind` | `dense`, `sparse` or `low-rank` |
//! | `tensor_count`, `flags`, `parameter_count`, `tensor_layout`, `tokenizer` | the published identity, see [`BaseMatrices`]; the tokenizer by its id |
//! | `base`, `quantization`, `numerics` | the base's id; its encodings, `Q8_0:29,F32:9` as `inspect` lists them; the version of the arithmetic |
//! | `retention`, `mask` | sparse alone: kept elements over all of the targets' elements, and the digest of the indices, see [`mask_digest`] |
//! | `source`, `source_name` | low-rank alone: digest and name of the file that the factors were made from |
//!
//! Tensors are `<target>.delta` `[out, in]`; `<target>.shape` (U64, `[2]`: out and in), `<target>.indices` (U64, `[n]`: `row * in + column`,
//! ascending) and `<target>.values` `[n]`; `<target>.lora_a` `[r, in]` and `<target>.lora_b` `[out, r]`. All but shape and indices are F32; rows
//! stand in the base's order, targets go by canonical name, and the scale is 1.

mod identity;
mod write;

pub use identity::{BaseMatrices, DeltaIdentity};
pub use write::{mask_digest, to_delta};

use std::borrow::Cow;
use std::collections::BTreeMap;

use slm_format::safetensors::{Dtype, SafeTensors, TensorView};
use slm_format::{Digest, Encoding, Limits};

use crate::kind::expect_effect;
use crate::peft::BindingReport;
use crate::{
    Adapter, BaseShape, Delta, DenseDelta, Factor, Lora, Module, OverlayError, SourceDigest,
    SparseDelta,
};

/// The key of `__metadata__` that tells such a file from any other safetensors file.
pub const KEY: &str = "slm_delta";
/// The one version.
const VERSION: &str = "1";

/// What a typed delta is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeltaKind {
    Dense,
    Sparse,
    LowRank,
}

impl DeltaKind {
    /// The names of a target's tensors, and of the metadata that this kind alone has.
    fn parts(self) -> (&'static [&'static str], [&'static str; 2]) {
        match self {
            DeltaKind::Dense => (&["delta"], ["", ""]),
            DeltaKind::Sparse => (&["shape", "indices", "values"], ["retention", "mask"]),
            DeltaKind::LowRank => (&["lora_a", "lora_b"], ["source", "source_name"]),
        }
    }
}

/// A typed delta as its file states it, checked as far as no base is needed.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaFile {
    identity: DeltaIdentity,
    adapter: Adapter,
    /// What the file says of its kind, for the report.
    note: Option<String>,
}

impl DeltaFile {
    /// Whether safetensors bytes say that they are a typed delta.
    pub fn is_delta(file: &SafeTensors<'_>) -> bool {
        file.metadata().contains_key(KEY)
    }

    /// Reads a file: its identity, and its modules.
    ///
    /// # Errors
    /// [`OverlayError::DeltaVersion`]; [`OverlayError::Entry`] for a missing or wrong entry of the metadata (a retention or a mask that is not the content's among them),
    /// [`OverlayError::UnknownEntry`] for one that this version has not, [`OverlayError::UnusedTensor`], [`OverlayError::MissingFactor`],
    /// [`OverlayError::Dtype`], [`OverlayError::NotMatrix`], and what makes a module unusable.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<DeltaFile, OverlayError> {
        let file = SafeTensors::parse(bytes, limits)?;
        let metadata = file.metadata();
        let version = require(metadata, KEY)?;
        if version != VERSION {
            let found = excerpt(version);
            return Err(OverlayError::DeltaVersion { found, expected: VERSION });
        }
        let kind = match require(metadata, "kind")? {
            "dense" => DeltaKind::Dense,
            "sparse" => DeltaKind::Sparse,
            "low-rank" => DeltaKind::LowRank,
            other => return Err(OverlayError::Kind { kind: excerpt(other) }),
        };
        let identity = DeltaIdentity::read(metadata)?;
        let own = kind.parts().1;
        let known = |key: &str| identity::KEYS.contains(&key) || own.contains(&key);
        if let Some((key, value)) = metadata.iter().find(|(key, _)| !known(key)) {
            let (entry, found) = (excerpt(key), format!("{:?}", excerpt(value)));
            let of = "a typed delta of this version and kind";
            return Err(OverlayError::UnknownEntry { entry, found, of });
        }
        let modules = modules(kind, &file)?;
        let adapter = Adapter::new(modules)?;
        let (adapter, note) = annotate(kind, adapter, metadata)?;
        Ok(DeltaFile { identity, adapter, note })
    }

    /// What the file says it was made for. Base, tokenizer, quantization and numerics are the caller's to compare; the rest is
    /// [`DeltaFile::resolve`]'s.
    pub fn identity(&self) -> &DeltaIdentity {
        &self.identity
    }

    /// The adapter, and what it touches.
    ///
    /// # Errors
    /// [`OverlayError::DeltaIdentity`] with the first of `tensor_count`, `flags`, `parameter_count` and `tensor_layout` that is not the
    /// base's; [`OverlayError::UnknownTensor`] and [`OverlayError::Shape`] for a target that does not fit;
    /// [`OverlayError::NoTarget`] for a delta that changes nothing. That sums with the base's weights are finite is checked when the adapter is
    /// bound.
    pub fn resolve(&self, base: &BaseShape<'_>) -> Result<(Adapter, BindingReport), OverlayError> {
        self.identity.matrices.expect_of(base)?;
        for module in self.adapter.modules() {
            let Some((rows, cols)) = base.target(&module.target) else {
                let (part, module) = (module.factors()[0].0, module.target.clone());
                return Err(OverlayError::UnknownTensor {
                    tensor: format!("{module}.{part}"),
                    module,
                });
            };
            module.fits(rows, cols)?;
        }
        expect_effect(self.adapter.modules())?;
        let mut report = BindingReport::of(&self.adapter);
        report.warnings.extend(self.note.clone());
        Ok((self.adapter.clone(), report))
    }
}

/// The tensors of every target, each in a module.
fn modules(kind: DeltaKind, file: &SafeTensors<'_>) -> Result<Vec<Module>, OverlayError> {
    let (parts, _) = kind.parts();
    let mut targets: BTreeMap<&str, Vec<Option<&TensorView<'_>>>> = BTreeMap::new();
    for tensor in file.tensors() {
        let split = tensor.name.rsplit_once('.');
        let place = split.and_then(|(target, part)| {
            let at = parts.iter().position(|known| *known == part)?;
            Some((target, at))
        });
        let Some((target, at)) = place else {
            return Err(OverlayError::UnusedTensor { tensor: tensor.name.clone() });
        };
        targets.entry(target).or_insert_with(|| vec![None; parts.len()])[at] = Some(tensor);
    }
    let mut modules = Vec::new();
    for (target, found) in targets {
        let mut whole = Vec::new();
        for (part, tensor) in parts.iter().zip(found) {
            whole.push(tensor.ok_or_else(|| OverlayError::MissingFactor {
                module: target.to_owned(),
                factor: part,
            })?);
        }
        let delta = match (kind, &whole[..]) {
            (DeltaKind::Dense, [delta]) => {
                Delta::Dense(DenseDelta { scale: 1.0, delta: matrix(delta)? })
            }
            (DeltaKind::Sparse, [shape, indices, values]) => {
                Delta::Sparse(sparse(shape, indices, values)?)
            }
            (DeltaKind::LowRank, [a, b]) => {
                Delta::Lora(Lora { scale: 1.0, a: matrix(a)?, b: matrix(b)?, bias: None })
            }
            _ => unreachable!("BUG: a kind with other parts than its own"),
        };
        modules.push(Module { target: target.to_owned(), delta });
    }
    Ok(modules)
}

/// A matrix of F32.
fn matrix(tensor: &TensorView<'_>) -> Result<Factor, OverlayError> {
    let &[rows, cols] = &tensor.shape[..] else { return Err(not_matrix(tensor)) };
    factor(tensor, rows, cols)
}

fn sparse(
    shape: &TensorView<'_>,
    indices: &TensorView<'_>,
    values: &TensorView<'_>,
) -> Result<SparseDelta, OverlayError> {
    let shape_words = words(shape)?;
    let dims = shape_words.iter().map(|&dim| u32::try_from(dim).ok().filter(|&dim| dim > 0));
    let dims = dims.collect::<Option<Vec<u32>>>().unwrap_or_default();
    let &[rows, cols] = &dims[..] else {
        let (tensor, found) = (shape.name.clone(), shape_words);
        return Err(OverlayError::Shape { tensor, found, expected: Vec::new() });
    };
    let indices: Vec<u64> = words(indices)?;
    let &[n] = &values.shape[..] else { return Err(not_matrix(values)) };
    let values = factor(values, 1, n)?;
    Ok(SparseDelta { scale: 1.0, rows, cols, indices: indices.into(), values })
}

/// The elements of a vector of U64.
fn words(tensor: &TensorView<'_>) -> Result<Vec<u64>, OverlayError> {
    if tensor.dtype != Dtype::U64 {
        return Err(dtype(tensor));
    }
    if tensor.shape.len() != 1 {
        return Err(not_matrix(tensor));
    }
    let word = |b: &[u8]| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
    Ok(tensor.data.chunks_exact(8).map(word).collect())
}

fn factor(tensor: &TensorView<'_>, rows: u64, cols: u64) -> Result<Factor, OverlayError> {
    if tensor.dtype != Dtype::F32 {
        return Err(dtype(tensor));
    }
    if rows == 0 || cols == 0 {
        return Err(not_matrix(tensor));
    }
    Factor::new(&tensor.name, Encoding::F32, rows, cols, Cow::Borrowed(tensor.data))
}

/// Checks what the metadata say of a sparse or low-rank delta against its content; gives the adapter with its source, and a line for the report.
fn annotate(
    kind: DeltaKind,
    adapter: Adapter,
    metadata: &BTreeMap<String, String>,
) -> Result<(Adapter, Option<String>), OverlayError> {
    match kind {
        DeltaKind::Dense => Ok((adapter, None)),
        DeltaKind::Sparse => {
            let text = require(metadata, "retention")?;
            let stated = text.parse::<f64>().ok().filter(|stated| stated.is_finite());
            let counted = write::retention(&adapter);
            if !stated.is_some_and(|stated| (stated - counted).abs() <= 1e-6) {
                let expected = "the kept elements over all of the targets' elements";
                return Err(field("retention", text, expected));
            }
            let mask = digest(metadata, "mask")?;
            if mask != mask_digest(&adapter) {
                let expected = "the digest of the targets and their indices";
                return Err(field("mask", &mask.to_string(), expected));
            }
            Ok((adapter, Some(format!("sparse: retention {text}, mask {mask}, both as counted"))))
        }
        DeltaKind::LowRank => {
            let (digest, name) = (digest(metadata, "source")?, require(metadata, "source_name")?);
            // It is shown to people: nothing that moves a cursor, no folder.
            let bad = |letter: char| letter.is_control() || matches!(letter, '/' | '\\');
            if name.is_empty() || name.len() > 255 || name.contains(bad) {
                return Err(field("source_name", name, "a file's name without folders"));
            }
            let note = format!("low-rank: made from {name}, {digest}; not compared with it");
            let sources = vec![SourceDigest { name: name.to_owned(), digest }];
            Ok((adapter.with_sources(sources), Some(note)))
        }
    }
}

fn require<'a>(metadata: &'a BTreeMap<String, String>, key: &str) -> Result<&'a str, OverlayError> {
    let found = metadata.get(key).map(String::as_str);
    found.ok_or_else(|| field(key, "nothing", "an entry of the file's metadata"))
}

fn digest(metadata: &BTreeMap<String, String>, key: &str) -> Result<Digest, OverlayError> {
    let text = require(metadata, key)?;
    text.parse().map_err(|_| field(key, text, "sha256: and 64 lower-case hexadecimal digits"))
}

fn field(key: &str, found: &str, expected: &'static str) -> OverlayError {
    OverlayError::Entry { entry: key.to_owned(), found: excerpt(found), expected }
}

fn dtype(tensor: &TensorView<'_>) -> OverlayError {
    OverlayError::Dtype { tensor: tensor.name.clone(), dtype: tensor.dtype.name().to_owned() }
}

fn not_matrix(tensor: &TensorView<'_>) -> OverlayError {
    OverlayError::NotMatrix { tensor: tensor.name.clone(), found: tensor.shape.clone() }
}

/// At most the first 80 characters.
fn excerpt(text: &str) -> String {
    text.chars().take(80).collect()
}
