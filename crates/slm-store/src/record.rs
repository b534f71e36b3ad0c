//! The small documents of a store: names and generations.

use core::fmt;

use serde::{Deserialize, Serialize};
use slm_format::Digest;
use slm_manifest::{CompositionId, Name};

/// What kind of thing a name stands for. Each kind has its own names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NameKind {
    /// A base.
    Base,
    /// An adapter.
    Adapter,
    /// A composition.
    Composition,
}

impl fmt::Display for NameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NameKind::Base => "base",
            NameKind::Adapter => "adapter",
            NameKind::Composition => "composition",
        })
    }
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NameRecord {
    /// The identity: of the base, the adapter or the composition.
    pub id: Digest,
    /// The blob that holds it.
    pub blob: Digest,
    /// The digest of what it was imported from, where that is known: provenance, which no identity covers.
    pub source: Option<Digest>,
}

/// A name's file. It says its own name, so that a file system that takes `A` and `a` for one cannot pass one for the other.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NameFile {
    name: Name,
    id: Digest,
    blob: Digest,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    source: Option<Digest>,
}

/// Longest file of a name.
pub(crate) const MAX_NAME_FILE: usize = 1024;

impl NameRecord {
    /// A record of what came from nowhere that is known.
    pub fn new(id: Digest, blob: Digest) -> NameRecord {
        NameRecord { id, blob, source: None }
    }

    /// Whether both stand for the same thing, wherever they came from.
    pub fn is_same(&self, other: &NameRecord) -> bool {
        (self.id, self.blob) == (other.id, other.blob)
    }

    pub(crate) fn encode(&self, name: &Name) -> Vec<u8> {
        let NameRecord { id, blob, source } = *self;
        let file = NameFile { name: name.clone(), id, blob, source };
        let mut bytes =
            serde_json::to_vec(&file).expect("BUG: a name's record could not be encoded");
        bytes.push(b'\n');
        bytes
    }

    pub(crate) fn decode(bytes: &[u8], name: &Name) -> Result<NameRecord, String> {
        if bytes.len() > MAX_NAME_FILE {
            return Err(format!("it is longer than {MAX_NAME_FILE} bytes"));
        }
        let file: NameFile = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if file.name != *name {
            return Err(format!("it belongs to the name {}", file.name));
        }
        Ok(NameRecord { id: file.id, blob: file.blob, source: file.source })
    }
}

/// One state of the store: which composition was made active, and what was active before.
///
/// Stored as a blob of compact JSON, fields in this order; equal generations are one blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    /// Above the parent's number.
    pub number: u64,
    /// The composition.
    pub composition: CompositionId,
    /// The blob of its manifest.
    pub manifest: Digest,
    /// The generation before, none for the first.
    pub parent: Option<Digest>,
    /// When it was made, RFC 3339 in UTC.
    pub time: String,
}

/// Longest blob of a generation.
pub(crate) const MAX_GENERATION: usize = 4096;

impl Generation {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("BUG: a generation could not be encoded")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Generation, String> {
        if bytes.len() > MAX_GENERATION {
            return Err(format!("it is longer than {MAX_GENERATION} bytes"));
        }
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }
}
