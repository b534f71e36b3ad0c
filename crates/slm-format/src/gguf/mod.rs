//! GGUF versions 2 and 3: a reader that borrows from the file, and a writer.
//!
//! The layout is ggml's (`docs/gguf.md` of the ggml project): magic, version, counts, metadata entries, tensor list, padding, data.
//! The reader refuses what ggml refuses, plus what it lets through to its harm: overlapping tensors, duplicate names, nested arrays,
//! dimensions of 0.

mod error;
mod metadata;
mod value;
mod write;

use std::collections::BTreeMap;

pub use error::GgufError;
pub use metadata::Metadata;
pub use value::{Array, Value, ValueType};
pub use write::{
    GgufWriteError, RawMetadata, TensorHead, TensorSource, write, write_raw, write_with,
};

use crate::encoding::Encoding;
use crate::limits::Limits;
use crate::read::Reader;

/// Alignment of tensor data where `general.alignment` says nothing.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Longest tensor name, from GGUF's specification.
pub const MAX_TENSOR_NAME_BYTES: u64 = 64;

pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

const HEADER_BYTES: u64 = 4 + 4 + 8 + 8;

/// The least a tensor takes in the list: name length, one letter, number of dimensions, one dimension, type, offset.
const MIN_TENSOR_INFO_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// A GGUF file, every count, offset and length checked.
///
/// ```
/// use slm_format::{Encoding, Limits, gguf};
///
/// let mut file = Vec::new();
/// let data = [0u8; 16];
/// let tensor = gguf::TensorSource { name: "a", shape: &[4], encoding: Encoding::F32, data: &data };
/// gguf::write(&mut file, &[("general.architecture", gguf::Value::Str("llama"))], &[tensor]).unwrap();
///
/// let model = gguf::Gguf::parse(&file, &Limits::STANDARD).unwrap();
/// assert_eq!(model.metadata().require_str("general.architecture").unwrap(), "llama");
/// assert_eq!(model.tensor("a").unwrap().data, &data);
/// ```
#[derive(Debug, Clone)]
pub struct Gguf<'a> {
    version: u32,
    alignment: u64,
    metadata: Metadata<'a>,
    metadata_bytes: &'a [u8],
    tensors: Vec<GgufTensor<'a>>,
    index: BTreeMap<&'a str, usize>,
    data_offset: u64,
}

/// A tensor of a GGUF file; `data` has exactly the bytes that `encoding` and `shape` ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor<'a> {
    /// Its name, unique in the file.
    pub name: &'a str,
    /// Its dimensions, innermost first (`shape[0]` is the length of a row), none of them 0.
    pub shape: Vec<u64>,
    /// How its elements are stored.
    pub encoding: Encoding,
    /// Its bytes, in ggml order.
    pub data: &'a [u8],
    /// Where they start in the data area; see [`Gguf::data_offset`].
    pub offset: u64,
}

impl<'a> Gguf<'a> {
    /// Reads a whole GGUF file. Copies no tensor data and no text; allocates what the metadata and the tensor list need.
    ///
    /// # Errors
    /// [`GgufError`]; the file is checked from its start, and the first thing found wrong is reported.
    pub fn parse(bytes: &'a [u8], limits: &Limits) -> Result<Gguf<'a>, GgufError> {
        let mut reader = Reader::new(bytes);
        let RawHeader { version, tensor_count, kv_count } = RawHeader::read(bytes, &mut reader)?;
        let most = limits.max_tensors.min(reader.remaining() / MIN_TENSOR_INFO_BYTES);
        if tensor_count > most {
            return Err(GgufError::TensorCount { found: tensor_count, most });
        }
        let metadata_start = reader.position();
        let metadata = Metadata::read(&mut reader, kv_count, limits)?;
        let metadata_bytes = slice(bytes, metadata_start, reader.position() - metadata_start);
        let alignment = metadata.alignment()?;

        let mut raw = Vec::new();
        let mut index = BTreeMap::new();
        for number in 0..tensor_count {
            let info = RawTensor::read(&mut reader, number, alignment, bytes.len() as u64, limits)?;
            if index.insert(info.name, raw.len()).is_some() {
                return Err(GgufError::DuplicateTensor { tensor: info.name.to_owned() });
            }
            raw.push(info);
        }
        let data_offset = reader.position().next_multiple_of(alignment);
        check_overlap(&raw)?;
        let available = reader.remaining().saturating_sub(data_offset - reader.position());
        let tensors = raw
            .into_iter()
            .map(|info| info.locate(bytes, data_offset, available))
            .collect::<Result<_, _>>()?;
        Ok(Gguf { version, alignment, metadata, metadata_bytes, tensors, index, data_offset })
    }

    /// 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of tensor data in bytes, a power of two.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The metadata entries.
    pub fn metadata(&self) -> &Metadata<'a> {
        &self.metadata
    }

    /// The metadata entries verbatim, as they stand in the file.
    pub fn metadata_bytes(&self) -> &'a [u8] {
        self.metadata_bytes
    }

    /// What [`write_raw`] needs to write the same metadata again, byte for byte.
    pub fn raw_metadata(&self) -> RawMetadata<'a> {
        RawMetadata {
            version: self.version,
            kv_count: self.metadata.len() as u64,
            bytes: self.metadata_bytes,
        }
    }

    /// Every tensor, in the order of the file's list.
    pub fn tensors(&self) -> &[GgufTensor<'a>] {
        &self.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor<'a>> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// Offset of the data area in the file; a tensor's bytes start at this plus its `offset`.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }
}

struct RawHeader {
    version: u32,
    tensor_count: u64,
    kv_count: u64,
}

impl RawHeader {
    fn read(bytes: &[u8], reader: &mut Reader<'_>) -> Result<RawHeader, GgufError> {
        if bytes.starts_with(b"version https://git-lfs") {
            return Err(GgufError::LfsPointer);
        }
        let truncated = |_| GgufError::TruncatedHeader { len: bytes.len() as u64 };
        let magic: [u8; 4] = reader.array("magic").map_err(truncated)?;
        if magic != MAGIC {
            return Err(GgufError::Magic { found: magic });
        }
        if (bytes.len() as u64) < HEADER_BYTES {
            return Err(GgufError::TruncatedHeader { len: bytes.len() as u64 });
        }
        let version = reader.u32("version").map_err(truncated)?;
        match version {
            2 | 3 => {}
            swapped if matches!(swapped.swap_bytes(), 1..=0xffff) => {
                return Err(GgufError::BigEndian { version });
            }
            found => return Err(GgufError::Version { found }),
        }
        let tensor_count = reader.u64("tensor count").map_err(truncated)?;
        let kv_count = reader.u64("metadata count").map_err(truncated)?;
        Ok(RawHeader { version, tensor_count, kv_count })
    }
}

/// A list entry whose size is known and whose place in the data area is not yet compared with the file.
struct RawTensor<'a> {
    name: &'a str,
    shape: Vec<u64>,
    encoding: Encoding,
    offset: u64,
    len: u64,
}

impl<'a> RawTensor<'a> {
    fn read(
        reader: &mut Reader<'a>,
        index: u64,
        alignment: u64,
        file_length: u64,
        limits: &Limits,
    ) -> Result<RawTensor<'a>, GgufError> {
        let name = read_name(reader, index)?;
        let tensor = || name.to_owned();
        let n_dims = reader.u32("number of dimensions").map_err(GgufError::Truncated)?;
        if n_dims == 0 || n_dims > limits.max_dims {
            let limit = limits.max_dims;
            return Err(GgufError::NDims { tensor: tensor(), found: n_dims, limit });
        }
        let mut shape = Vec::new();
        for _ in 0..n_dims {
            shape.push(reader.u64("dimension").map_err(GgufError::Truncated)?);
        }
        if shape.contains(&0) {
            return Err(GgufError::DimsZero { tensor: tensor(), shape });
        }
        // ggml counts elements in an i64, and none of its types takes less than a bit for one. Checked before the type, so that an
        // unknown type cannot hide an impossible size.
        let elements = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
        let Some(elements) = elements.filter(|&elements| i64::try_from(elements).is_ok()) else {
            return Err(GgufError::DimsOverflow { tensor: tensor(), shape });
        };
        if elements / 8 > file_length {
            let (len, available) = (elements / 8, file_length);
            return Err(GgufError::TensorOutOfBounds {
                tensor: tensor(),
                offset: 0,
                len,
                available,
            });
        }
        let number = reader.u32("tensor type").map_err(GgufError::Truncated)?;
        let encoding = Encoding::from_ggml_type(number)
            .ok_or_else(|| GgufError::TensorType { tensor: tensor(), number })?;
        let block = encoding.block_elements() as u64;
        if !shape[0].is_multiple_of(block) {
            let (cols, encoding) = (shape[0], encoding.name());
            return Err(GgufError::TensorShape { tensor: tensor(), cols, block, encoding });
        }
        let Some(len) = encoding.tensor_bytes(&shape) else {
            return Err(GgufError::DimsOverflow { tensor: tensor(), shape });
        };
        let offset = reader.u64("tensor offset").map_err(GgufError::Truncated)?;
        if !offset.is_multiple_of(alignment) {
            return Err(GgufError::OffsetUnaligned { tensor: tensor(), offset, alignment });
        }
        Ok(RawTensor { name, shape, encoding, offset, len })
    }

    /// The tensor with its bytes, where `bytes` hold a data area of `available` bytes at `data_offset`.
    fn locate(
        self,
        bytes: &'a [u8],
        data_offset: u64,
        available: u64,
    ) -> Result<GgufTensor<'a>, GgufError> {
        let RawTensor { name, shape, encoding, offset, len } = self;
        if offset.checked_add(len).is_none_or(|end| end > available) {
            let tensor = name.to_owned();
            return Err(GgufError::TensorOutOfBounds { tensor, offset, len, available });
        }
        let data = slice(bytes, data_offset + offset, len);
        Ok(GgufTensor { name, shape, encoding, data, offset })
    }
}

fn read_name<'a>(reader: &mut Reader<'a>, index: u64) -> Result<&'a str, GgufError> {
    let len = reader.u64("tensor name length").map_err(GgufError::Truncated)?;
    if len == 0 || len > MAX_TENSOR_NAME_BYTES {
        return Err(GgufError::TensorName { index, len });
    }
    let bytes = reader.take("tensor name", len).map_err(GgufError::Truncated)?;
    core::str::from_utf8(bytes).map_err(|_| GgufError::TensorName { index, len })
}

fn check_overlap(tensors: &[RawTensor<'_>]) -> Result<(), GgufError> {
    let mut by_offset: Vec<&RawTensor<'_>> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        // An end past u64 is past the file too, which is reported as that.
        if first.offset.checked_add(first.len).is_some_and(|end| end > second.offset) {
            return Err(GgufError::Overlap {
                first: first.name.to_owned(),
                second: second.name.to_owned(),
                offset: second.offset,
            });
        }
    }
    Ok(())
}

/// A range that is known to lie in `bytes`.
fn slice(bytes: &[u8], start: u64, len: u64) -> &[u8] {
    let in_memory = |n: u64| usize::try_from(n).expect("BUG: a checked range is not in memory");
    &bytes[in_memory(start)..in_memory(start + len)]
}
