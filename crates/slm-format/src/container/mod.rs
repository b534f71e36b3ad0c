//! The `.slm` container, version 0: one file of content-addressed sections. `docs/format.md` is its byte map.
//!
//! [`Container::open`] takes a whole file, usually a mapped one, and uses it in place. [`Index::parse`] takes the start of a file and
//! tells where everything is and which hashes it must have, for readers that fetch by byte range. [`ContainerWriter`] writes.

pub mod layout;

mod error;
mod index;
mod write;

pub use error::{ContainerError, ContainerWriteError};
pub use index::{Index, SectionEntry, TensorRecord};
pub use layout::{SectionKind, TensorLayout};
pub use write::{ContainerWriter, Written};

use crate::digest::{ContentHash, Digest};
use crate::encoding::Encoding;
use crate::limits::Limits;

/// An open container: header, index and padding are checked, payloads are in place and not yet verified.
///
/// Opening reads header, index and padding only. Payloads are verified on demand, one by one and from any thread.
#[derive(Debug, Clone)]
pub struct Container<'a> {
    index: Index<'a>,
    sections: Vec<Section<'a>>,
    tensors: Vec<TensorEntry<'a>>,
}

/// A section of an open container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section<'a> {
    entry: SectionEntry,
    bytes: &'a [u8],
}

/// A tensor of an open container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry<'a> {
    /// Its name, unique in the file.
    pub name: &'a str,
    /// How its elements are stored.
    pub encoding: Encoding,
    /// How its rows are laid out in `data`.
    pub layout: TensorLayout,
    /// Its dimensions, innermost first, none of them 0.
    pub shape: Vec<u64>,
    /// The BLAKE3 that its bytes in ggml order must have; [`TensorEntry::verify`] compares where the layout is that order.
    pub content: ContentHash,
    /// Its bytes, as many as `encoding` and `shape` ask for; 64-aligned in the file.
    pub data: &'a [u8],
}

impl<'a> Container<'a> {
    /// Opens a whole file in place.
    ///
    /// # Errors
    /// [`ContainerError`]: everything that can be wrong but the payloads' content.
    pub fn open(bytes: &'a [u8], limits: &Limits) -> Result<Container<'a>, ContainerError> {
        let index = Index::parse(bytes, limits)?;
        let (expected, found) = (index.file_length(), bytes.len() as u64);
        if expected != found {
            return Err(ContainerError::FileLength { expected, found });
        }
        for padding in index.paddings() {
            let start = padding.start;
            let zeros = slice(bytes, start, padding.end - start);
            if let Some(at) = zeros.iter().position(|&byte| byte != 0) {
                return Err(ContainerError::Padding { at: start + at as u64, found: zeros[at] });
            }
        }
        let sections = index
            .sections()
            .iter()
            .map(|&entry| Section { entry, bytes: slice(bytes, entry.offset, entry.length) })
            .collect();
        let tensors = index
            .tensors()
            .iter()
            .enumerate()
            .map(|(at, record)| TensorEntry {
                name: record.name,
                encoding: record.encoding,
                layout: record.layout,
                shape: record.shape.clone(),
                content: record.content,
                data: slice(bytes, index.tensor_range(at).start, record.length),
            })
            .collect();
        Ok(Container { index, sections, tensors })
    }

    /// Header and index.
    pub fn index(&self) -> &Index<'a> {
        &self.index
    }

    /// Every section, in the file's order.
    pub fn sections(&self) -> &[Section<'a>] {
        &self.sections
    }

    /// The first section of this kind.
    pub fn section(&self, kind: SectionKind) -> Option<Section<'a>> {
        self.sections_of(kind).next()
    }

    /// Every section of this kind, in the file's order.
    pub fn sections_of(&self, kind: SectionKind) -> impl Iterator<Item = Section<'a>> + '_ {
        self.sections.iter().copied().filter(move |section| section.kind() == kind)
    }

    /// Every tensor, in the file's order.
    pub fn tensors(&self) -> &[TensorEntry<'a>] {
        &self.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry<'a>> {
        self.index.position(name).map(|at| &self.tensors[at])
    }

    /// Checks the bytes of tensor `at` of [`Container::tensors`]. Independent of all others, so a caller may use as many threads as it has.
    ///
    /// # Errors
    /// `slm-tensor-hash`.
    ///
    /// # Panics
    /// When there is no tensor `at`.
    pub fn verify_tensor(&self, at: usize) -> Result<(), ContainerError> {
        self.tensors[at].verify()
    }

    /// Checks every section (BLAKE3 and sha256), which covers every byte of every tensor, and the hash of every tensor whose rows are in
    /// ggml order. The hash of an interleaved tensor is of another order of its bytes: who runs the model compares it.
    ///
    /// # Errors
    /// The first mismatch: `slm-tensor-hash`, or `slm-section-hash`.
    pub fn verify_all(&self) -> Result<(), ContainerError> {
        self.tensors.iter().try_for_each(TensorEntry::verify)?;
        self.sections.iter().try_for_each(Section::verify)
    }
}

impl<'a> Section<'a> {
    /// What it holds.
    pub fn kind(&self) -> SectionKind {
        self.entry.kind
    }

    /// The name of its bytes as a blob; [`Section::verify`] compares.
    pub fn sha256(&self) -> Digest {
        self.entry.sha256
    }

    /// The BLAKE3 that its bytes must have.
    pub fn content(&self) -> ContentHash {
        self.entry.content
    }

    /// Where it starts in the file.
    pub fn offset(&self) -> u64 {
        self.entry.offset
    }

    /// Its bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Checks its bytes: BLAKE3 and sha256.
    ///
    /// # Errors
    /// `slm-section-hash`.
    pub fn verify(&self) -> Result<(), ContainerError> {
        self.entry.verify(self.bytes)
    }
}

impl TensorEntry<'_> {
    /// Checks its bytes, where they are in ggml order; interleaved rows are left to the caller, who can permute them.
    ///
    /// # Errors
    /// `slm-tensor-hash`.
    pub fn verify(&self) -> Result<(), ContainerError> {
        if self.layout != TensorLayout::Rows {
            return Ok(());
        }
        let (expected, found) = (self.content, ContentHash::of(self.data));
        if found == expected {
            return Ok(());
        }
        Err(ContainerError::TensorHash { tensor: self.name.to_owned(), expected, found })
    }
}

/// A range that the index was checked to have in the file.
fn slice(bytes: &[u8], start: u64, len: u64) -> &[u8] {
    let in_memory = |n: u64| usize::try_from(n).expect("BUG: a checked range is not in memory");
    &bytes[in_memory(start)..in_memory(start + len)]
}
