//! safetensors: a reader that borrows tensor data from the file, and a writer.
//!
//! The reader makes its own checks first, so that every fault has its own code and no count reserves memory, and then asks the
//! format's own library for a second opinion: what it refuses is refused here too.

mod dtype;
mod error;
mod header;
mod write;

use std::collections::BTreeMap;

pub use dtype::Dtype;
pub use error::SafeTensorsError;
pub use write::{TensorHead, TensorSource, write, write_with};

use crate::limits::Limits;
use crate::read::Reader;
use header::{RawHeader, RawInfo};

/// A safetensors file, every offset and length checked: ranges disjoint, without gaps, and as long as the shapes ask for.
#[derive(Debug, Clone)]
pub struct SafeTensors<'a> {
    tensors: Vec<TensorView<'a>>,
    metadata: BTreeMap<String, String>,
}

/// A tensor of a safetensors file; `data` has exactly the bytes that `dtype` and `shape` ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorView<'a> {
    /// Its name, unique in the file.
    pub name: String,
    /// How its elements are stored.
    pub dtype: Dtype,
    /// Its dimensions, outermost first as in the file; empty for a scalar.
    pub shape: Vec<u64>,
    /// Its bytes, little-endian.
    pub data: &'a [u8],
}

impl<'a> SafeTensors<'a> {
    /// Reads a whole safetensors file. Copies no tensor data.
    ///
    /// # Errors
    /// [`SafeTensorsError`], one code per fault.
    pub fn parse(bytes: &'a [u8], limits: &Limits) -> Result<SafeTensors<'a>, SafeTensorsError> {
        let (header, data) = split(bytes, limits)?;
        let header = core::str::from_utf8(header)
            .map_err(|error| SafeTensorsError::HeaderJson { message: error.to_string() })?;
        let RawHeader { metadata, tensors: raw } = RawHeader::parse(header, limits)?;
        let mut tensors = Vec::new();
        let mut ranges = Vec::new();
        for (name, info) in raw {
            let (begin, end) = info.data_offsets;
            let tensor = locate(name, info, data, limits)?;
            ranges.push((begin, end, tensors.len()));
            tensors.push(tensor);
        }
        check_cover(&mut ranges, &tensors, data.len() as u64)?;
        ::safetensors::SafeTensors::read_metadata(bytes)
            .map_err(|error| SafeTensorsError::Library { message: error.to_string() })?;
        Ok(SafeTensors { tensors, metadata })
    }

    /// Every tensor, sorted by name.
    pub fn tensors(&self) -> &[TensorView<'a>] {
        &self.tensors
    }

    /// The tensor with this name.
    pub fn get(&self, name: &str) -> Option<&TensorView<'a>> {
        let at = self.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[at])
    }

    /// The `__metadata__` table; empty where the file has none.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
}

/// Header and data.
fn split<'a>(bytes: &'a [u8], limits: &Limits) -> Result<(&'a [u8], &'a [u8]), SafeTensorsError> {
    if bytes.is_empty() {
        return Err(SafeTensorsError::Empty);
    }
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(SafeTensorsError::LfsPointer);
    }
    let found = bytes.len() as u64;
    let truncated =
        |needed: u64| SafeTensorsError::Truncated { what: "the header".to_owned(), needed, found };
    let mut reader = Reader::new(bytes);
    let len = reader.u64("header length").map_err(|_| truncated(8))?;
    if len > limits.max_header_bytes {
        return Err(SafeTensorsError::HeaderLength { found: len, limit: limits.max_header_bytes });
    }
    let header = reader.take("header", len).map_err(|_| truncated(len.saturating_add(8)))?;
    let data = reader.take("data", reader.remaining()).expect("BUG: what remains cannot be taken");
    Ok((header, data))
}

fn locate<'a>(
    name: String,
    info: RawInfo,
    data: &'a [u8],
    limits: &Limits,
) -> Result<TensorView<'a>, SafeTensorsError> {
    let RawInfo { dtype, shape, data_offsets: (begin, end) } = info;
    let Some(dtype) = Dtype::from_name(&dtype) else {
        return Err(SafeTensorsError::Dtype {
            tensor: name,
            dtype: dtype.chars().take(80).collect(),
        });
    };
    if shape.count > u64::from(limits.max_dims) || shape.count != shape.dims.len() as u64 {
        let (found, limit) = (shape.count, limits.max_dims);
        return Err(SafeTensorsError::Dims { tensor: name, found, limit });
    }
    let shape = shape.dims;
    let Some(found) = end.checked_sub(begin) else {
        return Err(SafeTensorsError::Offsets { tensor: name, begin, end });
    };
    let Some(expected) = dtype.tensor_bytes(&shape) else {
        return Err(SafeTensorsError::ShapeOverflow { tensor: name, shape });
    };
    if expected != found {
        return Err(SafeTensorsError::Shape { tensor: name, shape, expected, found });
    }
    let mut reader = Reader::new(data);
    let taken = reader.take("offset", begin).and_then(|_| reader.take("tensor", found));
    match taken {
        Ok(data) => Ok(TensorView { name, dtype, shape, data }),
        Err(_) => Err(SafeTensorsError::Truncated {
            what: format!("tensor {name}"),
            needed: end,
            found: data.len() as u64,
        }),
    }
}

/// Checks that the ranges, given as (begin, end, tensor), cover the data without overlap or gap.
fn check_cover(
    ranges: &mut [(u64, u64, usize)],
    tensors: &[TensorView<'_>],
    data_len: u64,
) -> Result<(), SafeTensorsError> {
    ranges.sort_unstable();
    let mut covered = 0;
    for &mut (begin, end, at) in ranges {
        let tensor = || tensors[at].name.clone();
        if begin < covered {
            return Err(SafeTensorsError::Overlap { tensor: tensor(), begin, end: covered });
        }
        if begin > covered {
            return Err(SafeTensorsError::Gap { tensor: tensor(), begin, end: covered });
        }
        covered = end;
    }
    match data_len - covered {
        0 => Ok(()),
        count => Err(SafeTensorsError::Trailing { count }),
    }
}
