//! The composition manifest: read, then trusted; one model and one digest for TOML and JSON.

mod check;
mod error;
mod read;
mod write;

use core::ops::Deref;

use slm_format::{Digest, Encoding, Limits};

pub use error::ManifestError;
pub use read::Form;

use crate::id::{AdapterId, BaseId, CompositionId, CompositionParts, PlanId, TokenizerId};
use crate::name::Name;

/// The largest count a manifest can hold: the largest integer that every JSON reader gives back, 2^53 - 1 (RFC 7493).
pub const MAX_COUNT: u64 = (1 << 53) - 1;

/// A manifest as a document or a caller states it, before [`Manifest::check`].
#[derive(Debug, Clone, PartialEq)]
pub struct RawManifest {
    /// The base.
    pub base_model_hash: BaseId,
    /// The tokenizer.
    pub tokenizer_id: TokenizerId,
    /// How the tensors of the base are stored, one entry per scheme; the order does not matter.
    pub quantization: Vec<QuantizationEntry>,
    /// The program and the arithmetic.
    pub runtime: RuntimeTag,
    /// When the composition was put together, as [`crate::is_utc_timestamp`] wants it.
    pub timestamp_utc: String,
    /// The compression plan, if any.
    pub plan: Option<PlanId>,
    /// The stack, bottom first; empty for the bare base.
    pub adapters: Vec<AdapterEntry>,
    /// Where the parts came from.
    pub provenance: Provenance,
    /// The evaluation record of this composition, if any.
    pub evaluation: Option<Digest>,
}

/// How some tensors of the base are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantizationEntry {
    /// What one weight is, for example `int4`.
    pub dtype: String,
    /// Name of the encoding, for example `Q4_1`.
    pub scheme: String,
    /// Weights per block.
    pub block_size: u32,
    /// How many tensors are stored so; at least 1.
    pub tensors: u32,
}

impl QuantizationEntry {
    /// The entry for `tensors` tensors in `encoding`.
    ///
    /// ```
    /// use slm_format::Encoding;
    /// use slm_manifest::QuantizationEntry;
    ///
    /// let entry = QuantizationEntry::of(Encoding::NF4, 210);
    /// assert_eq!((entry.dtype.as_str(), entry.scheme.as_str(), entry.block_size), ("int4", "NF4", 64));
    /// ```
    pub fn of(encoding: Encoding, tensors: u32) -> QuantizationEntry {
        QuantizationEntry {
            dtype: check::dtype(encoding),
            scheme: encoding.name().to_owned(),
            block_size: check::block_size(encoding),
            tensors,
        }
    }
}

/// The program and the arithmetic that a composition was made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeTag {
    /// Always `slm`.
    pub name: String,
    /// Version of the program that wrote the manifest; for the record, not compared.
    pub version: String,
    /// Version of the arithmetic; must be [`crate::NUMERICS_VERSION`].
    pub numerics: u32,
}

impl RuntimeTag {
    /// The tag of this build.
    pub fn current() -> RuntimeTag {
        RuntimeTag {
            name: check::RUNTIME_NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            numerics: crate::NUMERICS_VERSION,
        }
    }
}

/// One adapter of the stack.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterEntry {
    /// What it is called; once per stack.
    pub name: Name,
    /// Its identity; once per stack.
    pub adapter_id: AdapterId,
    /// Digest of the blob that holds it.
    pub file_hash: Digest,
    /// Its place in the stack, from 1; equal to its place in the list.
    pub load_order: u32,
    /// What its update is multiplied with; finite. A negative zero becomes zero.
    pub merge_weight: f32,
    /// Canonical (GGUF) names of the tensors it touches, at least one, none twice; the order does not matter.
    pub targets: Vec<String>,
    /// Its highest rank; 0 for kinds that have none.
    pub rank: u32,
    /// Values it holds that are not zero; at most [`MAX_COUNT`].
    pub nnz: u64,
}

/// Where the parts came from. Outside every identity but the manifest's own digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Provenance {
    /// Digest of the blob that holds the base.
    pub base_file_hash: Option<Digest>,
    /// Digest of the file that the base was imported from.
    pub base_source_hash: Option<Digest>,
    /// Digest of the blob that holds the tokenizer document.
    pub tokenizer_file_hash: Option<Digest>,
}

/// A manifest that holds together. Fields are read through [`Deref`]; none can be changed.
///
/// Guarantees: every digest and name is well spelled; `load_order` is 1, 2, 3 and so on; no adapter and no name stands twice;
/// weights are finite; the arithmetic is this build's; quantization is sorted by scheme and targets by name, so that equal content
/// has one digest whatever order it was written in.
///
/// ```
/// use slm_format::Limits;
/// use slm_manifest::Manifest;
///
/// let text = r#"
/// base_model_hash = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
/// tokenizer_id    = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
/// quantization    = [{ dtype = "int4", scheme = "NF4", block_size = 64, tensors = 210 }]
/// runtime         = { name = "slm", version = "0.1.0", numerics = 1 }
/// timestamp_utc   = "2026-07-21T00:00:00Z"
///
/// [[adapters]]
/// name         = "medical-domain"
/// adapter_id   = "sha256:3333333333333333333333333333333333333333333333333333333333333333"
/// file_hash    = "sha256:4444444444444444444444444444444444444444444444444444444444444444"
/// load_order   = 1
/// merge_weight = 0.7
/// targets      = ["blk.0.attn_q.weight"]
/// rank         = 8
/// nnz          = 9216
/// "#;
/// let manifest = Manifest::from_toml(text, &Limits::STANDARD).unwrap();
/// assert_eq!(manifest.adapters[0].merge_weight, 0.7);
///
/// let json = manifest.to_canonical_json();
/// assert_eq!(Manifest::from_json(&json, &Limits::STANDARD).unwrap().digest(), manifest.digest());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest(RawManifest);

impl Deref for Manifest {
    type Target = RawManifest;

    fn deref(&self) -> &RawManifest {
        &self.0
    }
}

impl Manifest {
    /// Checks `raw`, sorts what has no order of its own, and makes a negative zero weight zero.
    ///
    /// # Errors
    /// [`ManifestError`] names the first field that is wrong.
    pub fn check(raw: RawManifest) -> Result<Manifest, ManifestError> {
        check::check(raw).map(Manifest)
    }

    /// Reads a manifest in TOML.
    ///
    /// # Errors
    /// [`ManifestError`] names the first field that is wrong.
    pub fn from_toml(text: &str, limits: &Limits) -> Result<Manifest, ManifestError> {
        Manifest::check(check::raw_from_tree(read::toml_tree(text, limits)?)?)
    }

    /// Reads a manifest in JSON.
    ///
    /// # Errors
    /// [`ManifestError`] names the first field that is wrong.
    pub fn from_json(bytes: &[u8], limits: &Limits) -> Result<Manifest, ManifestError> {
        Manifest::check(check::raw_from_tree(read::json_tree(bytes, limits)?)?)
    }

    /// Reads a manifest in either form: JSON where the first character that is not white space is `{`, else TOML.
    ///
    /// # Errors
    /// [`ManifestError`] names the first field that is wrong.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Manifest, ManifestError> {
        match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'{') => Manifest::from_json(bytes, limits),
            _ => Manifest::from_toml(read::utf8(bytes)?, limits),
        }
    }

    /// The manifest in TOML, for people: fields in the order of the documentation, weights as short as they can be.
    pub fn to_toml(&self) -> String {
        write::toml(&self.0)
    }

    /// The manifest in canonical JSON (RFC 8785): the bytes that [`Manifest::digest`] covers and that a store keeps.
    pub fn to_canonical_json(&self) -> Vec<u8> {
        write::canonical_json(&self.0)
    }

    /// sha256 of [`Manifest::to_canonical_json`], so also the digest of the blob that holds those bytes.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.to_canonical_json())
    }

    /// What the composition's identity covers.
    pub fn composition_parts(&self) -> CompositionParts {
        CompositionParts {
            base: self.0.base_model_hash,
            tokenizer: self.0.tokenizer_id,
            stack: self
                .0
                .adapters
                .iter()
                .map(|adapter| (adapter.adapter_id, adapter.merge_weight))
                .collect(),
            plan: self.0.plan,
        }
    }

    /// The composition's identity; names, times and provenance are outside it.
    pub fn composition_id(&self) -> CompositionId {
        self.composition_parts().id()
    }
}
