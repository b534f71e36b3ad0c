//! Header and index: enough to know everything about a container but its payloads.

use core::ops::Range;
use std::collections::BTreeMap;

use super::error::ContainerError;
use super::layout::{self, MAGIC, MAX_DIMS, SectionKind, TensorLayout, VERSION, align_up};
use crate::digest::{ContentHash, Digest};
use crate::encoding::Encoding;
use crate::limits::Limits;
use crate::read::Reader;

/// The checked header and index of a container, read from the start of the file alone.
///
/// Every offset and length in it has been compared with the others and with the file length that the header gives. Payloads have not
/// been seen: [`SectionEntry::verify`] and [`TensorRecord::verify`] check them when they are fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index<'a> {
    prefix_length: u64,
    file_length: u64,
    sections: Vec<SectionEntry>,
    tensors: Vec<TensorRecord<'a>>,
    by_name: BTreeMap<&'a str, usize>,
}

/// One row of the section table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectionEntry {
    /// What it holds.
    pub kind: SectionKind,
    /// Where it starts in the file, a multiple of 64.
    pub offset: u64,
    /// Its length in bytes, at least 1.
    pub length: u64,
    /// The name of its bytes as a blob.
    pub sha256: Digest,
    /// For fast verification.
    pub content: ContentHash,
}

/// One row of the tensor table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRecord<'a> {
    /// Its name, unique in the file.
    pub name: &'a str,
    /// How its elements are stored.
    pub encoding: Encoding,
    /// How its rows are laid out.
    pub layout: TensorLayout,
    /// Its dimensions, innermost first, none of them 0.
    pub shape: Vec<u64>,
    /// Where it starts in the base weights section, a multiple of 64.
    pub offset: u64,
    /// Its length in bytes: what `encoding` and `shape` ask for.
    pub length: u64,
    /// BLAKE3 of its bytes in ggml order.
    pub content: ContentHash,
}

impl<'a> Index<'a> {
    /// How many bytes from the start of the file [`Index::parse`] needs, told from the first 64.
    ///
    /// # Errors
    /// `slm-truncated`, `slm-magic`, `slm-version` and the limits' codes.
    pub fn prefix_length(start: &[u8], limits: &Limits) -> Result<u64, ContainerError> {
        RawHeader::read(start, limits).map(|header| header.prefix_length())
    }

    /// Reads header and index; bytes behind them are not looked at.
    ///
    /// # Errors
    /// [`ContainerError`]; `slm-index-hash` before any field of the index is believed.
    pub fn parse(start: &'a [u8], limits: &Limits) -> Result<Index<'a>, ContainerError> {
        let header = RawHeader::read(start, limits)?;
        RawIndex::read(start, header)?.check(limits)
    }

    /// Length of header and index.
    pub fn length(&self) -> u64 {
        self.prefix_length
    }

    /// Length of the whole file.
    pub fn file_length(&self) -> u64 {
        self.file_length
    }

    /// The section table.
    pub fn sections(&self) -> &[SectionEntry] {
        &self.sections
    }

    /// The tensor table.
    pub fn tensors(&self) -> &[TensorRecord<'a>] {
        &self.tensors
    }

    /// Position in [`Index::tensors`] of the tensor with this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Where tensor `at` is in the file.
    ///
    /// # Panics
    /// When there is no tensor `at`.
    pub fn tensor_range(&self, at: usize) -> Range<u64> {
        let base = self.base_weights().expect("BUG: tensors without a base weights section");
        let tensor = &self.tensors[at];
        base.offset + tensor.offset..base.offset + tensor.offset + tensor.length
    }

    /// The padding of the file: the ranges that no section and no tensor covers, in ascending order.
    pub(super) fn paddings(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut end = self.prefix_length;
        let outer = self.sections.iter().map(move |section| {
            let gap = end..section.offset;
            end = section.offset + section.length;
            gap
        });
        let base = self.base_weights().map_or(0, |section| section.offset);
        let mut end = base;
        let inner = self.tensors.iter().map(move |tensor| {
            let gap = end..base + tensor.offset;
            end = base + tensor.offset + tensor.length;
            gap
        });
        outer.chain(inner)
    }

    fn base_weights(&self) -> Option<&SectionEntry> {
        self.sections.iter().find(|section| section.kind == SectionKind::BaseWeights)
    }
}

impl SectionEntry {
    /// Checks that `bytes` are this section: length, BLAKE3 and sha256.
    ///
    /// # Errors
    /// `slm-section-hash`.
    pub fn verify(&self, bytes: &[u8]) -> Result<(), ContainerError> {
        let (kind, expected) = (self.kind, self.content);
        let found = ContentHash::of(bytes);
        if found != expected || bytes.len() as u64 != self.length {
            return Err(ContainerError::SectionHash { kind, expected, found });
        }
        let (expected, found) = (self.sha256, Digest::of(bytes));
        if found != expected {
            return Err(ContainerError::SectionDigest { kind, expected, found });
        }
        Ok(())
    }
}

impl TensorRecord<'_> {
    /// Checks that `bytes` are this tensor: length and BLAKE3. For interleaved rows give the bytes in ggml order.
    ///
    /// # Errors
    /// `slm-tensor-hash`.
    pub fn verify(&self, bytes: &[u8]) -> Result<(), ContainerError> {
        let (expected, found) = (self.content, ContentHash::of(bytes));
        if found != expected || bytes.len() as u64 != self.length {
            let tensor = self.name.to_owned();
            return Err(ContainerError::TensorHash { tensor, expected, found });
        }
        Ok(())
    }
}

/// The header's fields, counts within the limits, nothing else believed.
struct RawHeader {
    section_count: u32,
    tensor_count: u32,
    names_length: u32,
    file_length: u64,
    index_blake3: ContentHash,
}

impl RawHeader {
    fn read(start: &[u8], limits: &Limits) -> Result<RawHeader, ContainerError> {
        let found = start.len() as u64;
        let truncated = |_| ContainerError::Truncated {
            what: "the header",
            needed: layout::header::SIZE,
            found,
        };
        let mut reader = Reader::new(start);
        let magic = reader.array("magic").map_err(truncated)?;
        if magic != MAGIC {
            return Err(ContainerError::Magic { found: magic });
        }
        let version = reader.u32("version").map_err(truncated)?;
        if version != VERSION {
            return Err(ContainerError::Version { found: version });
        }
        let section_count = reader.u32("section count").map_err(truncated)?;
        let tensor_count = reader.u32("tensor count").map_err(truncated)?;
        let names_length = reader.u32("length of names").map_err(truncated)?;
        let file_length = reader.u64("file length").map_err(truncated)?;
        let index_blake3 =
            ContentHash::from_bytes(reader.array("hash of the index").map_err(truncated)?);
        let (found, limit) = (section_count.into(), limits.max_metadata_entries);
        if found > limit {
            return Err(ContainerError::SectionCount { found, limit });
        }
        let (found, limit) = (tensor_count.into(), limits.max_tensors);
        if found > limit {
            return Err(ContainerError::TensorCount { found, limit });
        }
        let (found, expected) = (names_length.into(), limits.max_header_bytes);
        if found > expected {
            return Err(ContainerError::NamesLength { found, expected });
        }
        Ok(RawHeader { section_count, tensor_count, names_length, file_length, index_blake3 })
    }

    /// Three 32-bit counts times small sizes: far below 2^64.
    fn prefix_length(&self) -> u64 {
        layout::header::SIZE
            + u64::from(self.section_count) * layout::section::SIZE
            + u64::from(self.tensor_count) * layout::tensor::SIZE
            + u64::from(self.names_length)
    }
}

struct RawSection {
    kind: u32,
    reserved: u32,
    offset: u64,
    length: u64,
    sha256: Digest,
    content: ContentHash,
}

struct RawTensor {
    offset: u64,
    length: u64,
    content: ContentHash,
    shape: [u64; MAX_DIMS],
    name_length: u32,
    encoding: u16,
    layout: u16,
    n_dims: u32,
    reserved: u32,
}

/// The index as it stands in the file, undamaged but not yet checked.
struct RawIndex<'a> {
    header: RawHeader,
    sections: Vec<RawSection>,
    tensors: Vec<RawTensor>,
    names: &'a [u8],
}

impl<'a> RawIndex<'a> {
    fn read(start: &'a [u8], header: RawHeader) -> Result<RawIndex<'a>, ContainerError> {
        let needed = header.prefix_length();
        let truncated =
            |_| ContainerError::Truncated { what: "the index", needed, found: start.len() as u64 };
        let prefix = Reader::new(start).take("index", needed).map_err(truncated)?;
        let (expected, found) = (header.index_blake3, index_hash(prefix));
        if found != expected {
            return Err(ContainerError::IndexHash { expected, found });
        }
        let mut reader = Reader::new(prefix);
        reader.take("header", layout::header::SIZE).map_err(truncated)?;
        // The counts cannot reserve more than the bytes just taken.
        let mut sections = Vec::with_capacity(header.section_count as usize);
        for _ in 0..header.section_count {
            sections.push(RawSection {
                kind: reader.u32("kind").map_err(truncated)?,
                reserved: reader.u32("reserved").map_err(truncated)?,
                offset: reader.u64("offset").map_err(truncated)?,
                length: reader.u64("length").map_err(truncated)?,
                sha256: Digest::from_bytes(reader.array("sha256").map_err(truncated)?),
                content: ContentHash::from_bytes(reader.array("blake3").map_err(truncated)?),
            });
        }
        let mut tensors = Vec::with_capacity(header.tensor_count as usize);
        for _ in 0..header.tensor_count {
            let offset = reader.u64("offset").map_err(truncated)?;
            let length = reader.u64("length").map_err(truncated)?;
            let content = ContentHash::from_bytes(reader.array("blake3").map_err(truncated)?);
            let mut shape = [0; MAX_DIMS];
            for dim in &mut shape {
                *dim = reader.u64("dimension").map_err(truncated)?;
            }
            tensors.push(RawTensor {
                offset,
                length,
                content,
                shape,
                name_length: reader.u32("length of name").map_err(truncated)?,
                encoding: reader.u16("encoding").map_err(truncated)?,
                layout: reader.u16("layout").map_err(truncated)?,
                n_dims: reader.u32("number of dimensions").map_err(truncated)?,
                reserved: reader.u32("reserved").map_err(truncated)?,
            });
        }
        let names = reader.take("names", header.names_length.into()).map_err(truncated)?;
        Ok(RawIndex { header, sections, tensors, names })
    }

    fn check(self, limits: &Limits) -> Result<Index<'a>, ContainerError> {
        let prefix_length = self.header.prefix_length();
        let file_length = self.header.file_length;
        let sections = check_sections(&self.sections, prefix_length, file_length)?;

        let mut names = Reader::new(self.names);
        let mut by_name = BTreeMap::new();
        let mut tensors: Vec<TensorRecord<'a>> = Vec::with_capacity(self.tensors.len());
        for raw in &self.tensors {
            let index = tensors.len() as u64;
            let (length, limit) = (u64::from(raw.name_length), limits.max_string_bytes);
            let wrong = ContainerError::TensorName { index, length, limit };
            if length == 0 || length > limit {
                return Err(wrong);
            }
            let (expected, found) = (names.position() + length, self.names.len() as u64);
            let name = names
                .take("name", length)
                .map_err(|_| ContainerError::NamesLength { found, expected })?;
            let name = core::str::from_utf8(name).map_err(|_| wrong)?;
            let end = tensors.last().map_or(0, |tensor| tensor.offset + tensor.length);
            tensors.push(raw.check(name, end)?);
            if by_name.insert(name, tensors.len() - 1).is_some() {
                return Err(ContainerError::DuplicateTensor { tensor: name.to_owned() });
            }
        }
        let (expected, found) = (names.position(), self.names.len() as u64);
        if found != expected {
            return Err(ContainerError::NamesLength { found, expected });
        }
        let base = sections.iter().find(|section| section.kind == SectionKind::BaseWeights);
        let found = base.map_or(0, |section| section.length);
        let expected = tensors.last().map_or(0, |tensor| tensor.offset + tensor.length);
        if found != expected {
            let tensors = tensors.len() as u64;
            return Err(ContainerError::BaseWeights { found, expected, tensors });
        }
        Ok(Index { prefix_length, file_length, sections, tensors, by_name })
    }
}

fn check_sections(
    raw: &[RawSection],
    prefix_length: u64,
    file_length: u64,
) -> Result<Vec<SectionEntry>, ContainerError> {
    let mut sections: Vec<SectionEntry> = Vec::with_capacity(raw.len());
    let mut end = prefix_length;
    for section in raw {
        let index = sections.len() as u64;
        let &RawSection { kind, reserved, offset, length, sha256, content } = section;
        let Some(kind) = SectionKind::from_number(kind) else {
            return Err(ContainerError::SectionKind { index, kind });
        };
        if reserved != 0 {
            return Err(ContainerError::SectionReserved { index, found: reserved });
        }
        if kind.is_single() && sections.iter().any(|before| before.kind == kind) {
            return Err(ContainerError::DuplicateSection { index, kind });
        }
        let expected = align_up(end).unwrap_or(u64::MAX);
        if offset != expected {
            return Err(ContainerError::SectionOffset { index, found: offset, expected });
        }
        end = match offset.checked_add(length).filter(|&end| length > 0 && end <= file_length) {
            Some(end) => end,
            None => {
                return Err(ContainerError::SectionLength { index, offset, length, file_length });
            }
        };
        sections.push(SectionEntry { kind, offset, length, sha256, content });
    }
    if file_length != end {
        return Err(ContainerError::FileLength { expected: end, found: file_length });
    }
    Ok(sections)
}

impl RawTensor {
    /// The tensor, where the one before it ends at `end` of the base weights.
    fn check<'a>(&self, name: &'a str, end: u64) -> Result<TensorRecord<'a>, ContainerError> {
        let &RawTensor { offset, length, content, shape, n_dims, .. } = self;
        let tensor = || name.to_owned();
        let Some(encoding) = layout::encoding_from_code(self.encoding) else {
            return Err(ContainerError::TensorEncoding { tensor: tensor(), code: self.encoding });
        };
        let layout = TensorLayout::from_number(self.layout);
        let Some(layout) = layout.filter(|layout| layout.fits(encoding)) else {
            return Err(ContainerError::TensorLayout { tensor: tensor(), layout: self.layout });
        };
        let used = usize::try_from(n_dims).ok().filter(|n| (1..=MAX_DIMS).contains(n));
        let used = used
            .map(|n| shape.split_at(n))
            .filter(|(dims, rest)| !dims.contains(&0) && rest.iter().all(|&dim| dim == 0));
        let Some((dims, _)) = used else {
            return Err(ContainerError::TensorDims { tensor: tensor(), n_dims, shape });
        };
        if self.reserved != 0 {
            return Err(ContainerError::TensorReserved { tensor: tensor(), found: self.reserved });
        }
        let expected = align_up(end).unwrap_or(u64::MAX);
        if offset != expected {
            return Err(ContainerError::TensorOffset { tensor: tensor(), found: offset, expected });
        }
        let expected = encoding.tensor_bytes(dims);
        if expected != Some(length) || offset.checked_add(length).is_none() {
            return Err(ContainerError::TensorLength { tensor: tensor(), found: length, expected });
        }
        Ok(TensorRecord { name, encoding, layout, shape: dims.to_vec(), offset, length, content })
    }
}

/// BLAKE3 of the header's fields before the hash, then of the index.
pub(super) fn index_hash(prefix: &[u8]) -> ContentHash {
    let (header, index) = prefix.split_at(layout::header::SIZE as usize);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&header[..layout::header::INDEX_BLAKE3 as usize]);
    hasher.update(index);
    ContentHash::from_bytes(*hasher.finalize().as_bytes())
}
