//! What a typed delta was made for.

use std::collections::BTreeMap;

use slm_format::{Digest, Encoding};
use slm_manifest::{BaseId, TokenizerId};

use super::{KEY, field, require};
use crate::{BaseShape, OverlayError};

/// The keys of every file's metadata.
pub(super) const KEYS: [&str; 10] = [
    KEY,
    "kind",
    "tensor_count",
    "flags",
    "parameter_count",
    "tensor_layout",
    "tokenizer",
    "base",
    "quantization",
    "numerics",
];

/// The identity that a typed delta carries. All of it must be the base's it is used on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaIdentity {
    /// What the base's names and shapes give.
    pub matrices: BaseMatrices,
    /// The tokenizer whose words it learned.
    pub tokenizer: TokenizerId,
    /// The base's content.
    pub base: BaseId,
    /// Encodings of the base, and how many tensors have each, in the order of ggml's type numbers.
    pub quantization: Vec<(Encoding, u32)>,
    /// Version of the arithmetic.
    pub numerics: u32,
}

/// The shapes' part of an identity, over a base's matrices: the tensors that [`BaseShape::tensors`] lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseMatrices {
    /// How many there are.
    pub tensor_count: u64,
    /// `tied` or `untied`, in the file's `flags`.
    pub tied: bool,
    /// Elements of all of them.
    pub parameter_count: u64,
    /// Digest of a line `name rows columns` for each, by name.
    pub tensor_layout: Digest,
}

impl BaseMatrices {
    /// Those of a base.
    pub fn of(base: &BaseShape<'_>) -> BaseMatrices {
        let lines: String = base
            .tensors
            .iter()
            .map(|(name, (rows, cols))| format!("{name} {rows} {cols}\n"))
            .collect();
        let elements = base.tensors.values().map(|(rows, cols)| rows.saturating_mul(*cols));
        BaseMatrices {
            tensor_count: base.tensors.len() as u64,
            tied: base.tied_embeddings,
            parameter_count: elements.fold(0, u64::saturating_add),
            tensor_layout: Digest::of(lines.as_bytes()),
        }
    }

    /// Refuses a base that is shaped otherwise, by the first part that differs, in the published order.
    pub(super) fn expect_of(&self, base: &BaseShape<'_>) -> Result<(), OverlayError> {
        for ((part, stated), (_, found)) in self.texts().into_iter().zip(Self::of(base).texts()) {
            if stated != found {
                return Err(OverlayError::DeltaIdentity { part, stated, found });
            }
        }
        Ok(())
    }

    /// Every part as the metadata spell it.
    pub(super) fn texts(&self) -> [(&'static str, String); 4] {
        [
            ("tensor_count", self.tensor_count.to_string()),
            ("flags", if self.tied { "tied" } else { "untied" }.to_owned()),
            ("parameter_count", self.parameter_count.to_string()),
            ("tensor_layout", self.tensor_layout.to_string()),
        ]
    }
}

impl DeltaIdentity {
    /// Reads the metadata's entries.
    pub(super) fn read(metadata: &BTreeMap<String, String>) -> Result<DeltaIdentity, OverlayError> {
        let digest = "sha256: and 64 lower-case hexadecimal digits";
        let get = |key: &str| require(metadata, key);
        let tensor_count = number(metadata, "tensor_count")?;
        let tied = match get("flags")? {
            "tied" => true,
            "untied" => false,
            other => return Err(field("flags", other, "tied or untied")),
        };
        let matrices = BaseMatrices {
            tensor_count,
            tied,
            parameter_count: number(metadata, "parameter_count")?,
            tensor_layout: super::digest(metadata, "tensor_layout")?,
        };
        let tokenizer = get("tokenizer")?;
        let base = get("base")?;
        let quantization = get("quantization")?;
        Ok(DeltaIdentity {
            matrices,
            tokenizer: tokenizer.parse().map_err(|_| field("tokenizer", tokenizer, digest))?,
            base: base.parse().map_err(|_| field("base", base, digest))?,
            quantization: encodings(quantization).ok_or_else(|| {
                field("quantization", quantization, "encodings and counts, as Q8_0:29,F32:9")
            })?,
            numerics: u32::try_from(number(metadata, "numerics")?).unwrap_or(u32::MAX),
        })
    }

    /// Every entry as the metadata spell it.
    pub(super) fn texts(&self) -> Vec<(&'static str, String)> {
        let quantization = self.quantization.iter();
        let quantization: Vec<String> =
            quantization.map(|(encoding, n)| format!("{encoding}:{n}")).collect();
        let mut texts = self.matrices.texts().to_vec();
        texts.push(("tokenizer", self.tokenizer.to_string()));
        texts.push(("base", self.base.to_string()));
        texts.push(("quantization", quantization.join(",")));
        texts.push(("numerics", self.numerics.to_string()));
        texts
    }
}

/// A number without a sign or leading zeros.
fn number(metadata: &BTreeMap<String, String>, key: &str) -> Result<u64, OverlayError> {
    let text = require(metadata, key)?;
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain).ok_or_else(|| field(key, text, "a whole number"))
}

/// Encodings with their counts.
fn encodings(text: &str) -> Option<Vec<(Encoding, u32)>> {
    let one = |part: &str| {
        let (name, n) = part.split_once(':')?;
        Some((Encoding::from_name(name)?, n.parse().ok()?))
    };
    // There are as many encodings as slm has, whatever the text's length.
    if text.len() > 1024 {
        return None;
    }
    text.split(',').map(one).collect()
}
