//! Writing a container: hashes first, then everything in one pass, payloads from where they are.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::{self, Write};

use super::TensorEntry;
use super::error::ContainerWriteError;
use super::index::index_hash;
use super::layout::{
    self, ALIGNMENT, MAGIC, MAX_DIMS, SectionKind, TensorLayout, VERSION, align_up,
};
use crate::digest::{ContentHash, Digest, DigestWriter};
use crate::encoding::Encoding;

/// Collects sections and tensors, then writes the container.
///
/// The same input gives the same bytes. Payloads are borrowed or owned as given and never copied.
///
/// ```
/// use slm_format::container::{Container, ContainerWriter, SectionKind};
/// use slm_format::{Encoding, Limits};
///
/// let weights = [0u8; 16];
/// let mut writer = ContainerWriter::new();
/// writer.section(SectionKind::Config, b"config".as_slice()).unwrap();
/// writer.tensor("output_norm.weight", Encoding::F32, &[4], weights.as_slice()).unwrap();
/// let mut file = Vec::new();
/// writer.write_to(&mut file).unwrap();
///
/// let container = Container::open(&file, &Limits::STANDARD).unwrap();
/// container.verify_all().unwrap();
/// assert_eq!(container.section(SectionKind::Config).unwrap().bytes(), b"config");
/// assert_eq!(container.tensor("output_norm.weight").unwrap().data, weights);
/// ```
#[derive(Debug, Clone, Default)]
pub struct ContainerWriter<'a> {
    sections: Vec<(SectionKind, Cow<'a, [u8]>)>,
    tensors: Vec<PendingTensor<'a>>,
    names: BTreeSet<String>,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Length of the file.
    pub file_length: u64,
    /// The sha256 of the whole file.
    pub digest: Digest,
}

#[derive(Debug, Clone)]
struct PendingTensor<'a> {
    name: String,
    encoding: Encoding,
    layout: TensorLayout,
    shape: Vec<u64>,
    /// BLAKE3 in ggml order, where `data` is in another.
    content: Option<ContentHash>,
    data: Cow<'a, [u8]>,
}

impl<'a> ContainerWriter<'a> {
    /// A writer with nothing in it.
    pub fn new() -> ContainerWriter<'a> {
        ContainerWriter::default()
    }

    /// Adds a section behind those already there. Base weights are not given here: they follow from the tensors.
    ///
    /// # Errors
    /// `slm-write-section` for an empty one, or a second one of a kind that occurs once.
    pub fn section(
        &mut self,
        kind: SectionKind,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self, ContainerWriteError> {
        let bytes = bytes.into();
        let taken = kind.is_single() && self.sections.iter().any(|(before, _)| *before == kind);
        if bytes.is_empty() || taken || kind == SectionKind::BaseWeights {
            return Err(ContainerWriteError::Section { kind, length: bytes.len() as u64 });
        }
        self.sections.push((kind, bytes));
        Ok(self)
    }

    /// Adds a tensor behind those already there; `shape` is innermost first, `data` in ggml order.
    ///
    /// # Errors
    /// `slm-write-tensor` where the name is empty or taken, or `data` are not as long as `encoding` and `shape` ask for.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        encoding: Encoding,
        shape: &[u64],
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self, ContainerWriteError> {
        self.put(name.into(), encoding, TensorLayout::Rows, shape.to_vec(), None, data.into())
    }

    /// Adds a tensor whose rows are interleaved in `data`; `content` is the BLAKE3 of its bytes in ggml order, which the caller has.
    ///
    /// # Errors
    /// As [`ContainerWriter::tensor`].
    pub fn interleaved_tensor(
        &mut self,
        name: impl Into<String>,
        encoding: Encoding,
        shape: &[u64],
        content: ContentHash,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self, ContainerWriteError> {
        let layout = TensorLayout::Interleaved16;
        self.put(name.into(), encoding, layout, shape.to_vec(), Some(content), data.into())
    }

    /// Adds a tensor of an open container as it stands there, in its layout.
    ///
    /// # Errors
    /// As [`ContainerWriter::tensor`].
    pub fn entry(&mut self, tensor: &TensorEntry<'a>) -> Result<&mut Self, ContainerWriteError> {
        let (name, encoding, shape) = (tensor.name, tensor.encoding, &tensor.shape);
        match tensor.layout {
            TensorLayout::Rows => self.tensor(name, encoding, shape, tensor.data),
            TensorLayout::Interleaved16 => {
                self.interleaved_tensor(name, encoding, shape, tensor.content, tensor.data)
            }
        }
    }

    fn put(
        &mut self,
        name: String,
        encoding: Encoding,
        layout: TensorLayout,
        shape: Vec<u64>,
        content: Option<ContentHash>,
        data: Cow<'a, [u8]>,
    ) -> Result<&mut Self, ContainerWriteError> {
        let found = data.len() as u64;
        let reason = if name.is_empty() || u32::try_from(name.len()).is_err() {
            Some("its name is empty or too long")
        } else if !(1..=MAX_DIMS).contains(&shape.len()) || shape.contains(&0) {
            Some("it must have 1 to 4 dimensions, none of them 0")
        } else if encoding.tensor_bytes(&shape) != Some(found) {
            Some("its bytes are not as many as its encoding and shape ask for")
        } else if !layout.fits(encoding) {
            Some("its encoding has no interleaved layout")
        } else if !self.names.insert(name.clone()) {
            Some("its name is taken")
        } else {
            None
        };
        if let Some(reason) = reason {
            return Err(ContainerWriteError::Tensor { tensor: name, shape, found, reason });
        }
        self.tensors.push(PendingTensor { name, encoding, layout, shape, content, data });
        Ok(self)
    }

    /// Writes the container: the sections in the order given, then the base weights with the tensors in the order given.
    ///
    /// Reads every payload twice, once for its hashes and once to write it; allocates only the index.
    ///
    /// # Errors
    /// `slm-write-io` where the output fails; what is written by then is no container.
    pub fn write_to(&self, out: &mut dyn Write) -> Result<Written, ContainerWriteError> {
        let prefix = self.prefix();
        let mut out = Output { out, written: 0, digest: DigestWriter::new() };
        out.put(&prefix)?;
        for (_, bytes) in &self.sections {
            out.pad()?;
            out.put(bytes)?;
        }
        for tensor in &self.tensors {
            out.pad()?;
            out.put(&tensor.data)?;
        }
        Ok(Written { file_length: out.written, digest: out.digest.finish() })
    }

    /// Header and index.
    fn prefix(&self) -> Vec<u8> {
        let base = BaseWeights::of(&self.tensors);
        let section_count = self.sections.len() + usize::from(base.length > 0);
        let names_length: usize = self.tensors.iter().map(|tensor| tensor.name.len()).sum();
        let prefix_length = layout::header::SIZE
            + section_count as u64 * layout::section::SIZE
            + self.tensors.len() as u64 * layout::tensor::SIZE
            + names_length as u64;

        let mut table = Vec::new();
        let mut end = prefix_length;
        for (kind, bytes) in &self.sections {
            let (sha256, content) = (Digest::of(bytes), ContentHash::of(bytes));
            end = put_section(&mut table, *kind, end, bytes.len() as u64, sha256, content);
        }
        if base.length > 0 {
            let kind = SectionKind::BaseWeights;
            end = put_section(&mut table, kind, end, base.length, base.sha256, base.content);
        }

        let mut prefix = Vec::new();
        prefix.extend(MAGIC);
        prefix.extend(VERSION.to_le_bytes());
        prefix.extend(count(section_count).to_le_bytes());
        prefix.extend(count(self.tensors.len()).to_le_bytes());
        prefix.extend(count(names_length).to_le_bytes());
        prefix.extend(end.to_le_bytes());
        prefix.extend([0; 32]);
        prefix.extend(table);
        prefix.extend(base.table);
        self.tensors.iter().for_each(|tensor| prefix.extend(tensor.name.as_bytes()));
        let hash = index_hash(&prefix).to_bytes();
        let at = layout::header::INDEX_BLAKE3 as usize;
        prefix[at..at + hash.len()].copy_from_slice(&hash);
        prefix
    }
}

/// The base weights section: its hashes and its tensor table.
struct BaseWeights {
    length: u64,
    sha256: Digest,
    content: ContentHash,
    table: Vec<u8>,
}

impl BaseWeights {
    fn of(tensors: &[PendingTensor<'_>]) -> BaseWeights {
        let mut sha256 = DigestWriter::new();
        let mut blake3 = blake3::Hasher::new();
        let mut table = Vec::new();
        let mut end = 0u64;
        for tensor in tensors {
            let offset = aligned(end);
            let padding = &[0; ALIGNMENT as usize][..(offset - end) as usize];
            for bytes in [padding, &tensor.data] {
                sha256.update(bytes);
                blake3.update(bytes);
            }
            let length = tensor.data.len() as u64;
            end = offset + length;
            let mut shape = [0u64; MAX_DIMS];
            shape[..tensor.shape.len()].copy_from_slice(&tensor.shape);
            table.extend(offset.to_le_bytes());
            table.extend(length.to_le_bytes());
            table
                .extend(tensor.content.unwrap_or_else(|| ContentHash::of(&tensor.data)).to_bytes());
            table.extend(shape.iter().flat_map(|dim| dim.to_le_bytes()));
            table.extend(count(tensor.name.len()).to_le_bytes());
            table.extend(layout::encoding_code(tensor.encoding).to_le_bytes());
            table.extend(tensor.layout.number().to_le_bytes());
            table.extend(count(tensor.shape.len()).to_le_bytes());
            table.extend(0u32.to_le_bytes());
        }
        let content = ContentHash::from_bytes(*blake3.finalize().as_bytes());
        BaseWeights { length: end, sha256: sha256.finish(), content, table }
    }
}

/// Appends a row of the section table and gives the section's end.
fn put_section(
    table: &mut Vec<u8>,
    kind: SectionKind,
    end: u64,
    length: u64,
    sha256: Digest,
    content: ContentHash,
) -> u64 {
    let offset = aligned(end);
    table.extend(kind.number().to_le_bytes());
    table.extend(0u32.to_le_bytes());
    table.extend(offset.to_le_bytes());
    table.extend(length.to_le_bytes());
    table.extend(sha256.to_bytes());
    table.extend(content.to_bytes());
    offset + length
}

struct Output<'w> {
    out: &'w mut dyn Write,
    written: u64,
    digest: DigestWriter,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.digest.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn pad(&mut self) -> io::Result<()> {
        let missing = aligned(self.written) - self.written;
        self.put(&[0; ALIGNMENT as usize][..missing as usize])
    }
}

fn aligned(end: u64) -> u64 {
    align_up(end).expect("BUG: payloads in memory pass 2^64 bytes")
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("BUG: more than 2^32 entries of an index in memory")
}
