//! Writing GGUF: the layout that ggml's own writer gives.

use std::io::{self, Write};

use super::error::GgufError;
use super::metadata::{MAX_KEY_BYTES, Metadata};
use super::value::{Array, Value};
use super::{MAGIC, MAX_TENSOR_NAME_BYTES};
use crate::counted::Counted;
use crate::encoding::Encoding;
use crate::error::{Coded, ErrorClass};
use crate::limits::Limits;
use crate::read::Reader;

/// A tensor to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorSource<'a> {
    /// Its name, at most 64 bytes.
    pub name: &'a str,
    /// Its dimensions, innermost first.
    pub shape: &'a [u64],
    /// How its elements are stored.
    pub encoding: Encoding,
    /// Its bytes, in ggml order.
    pub data: &'a [u8],
}

/// A tensor whose bytes are made as they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorHead<'a> {
    /// Its name, at most 64 bytes.
    pub name: &'a str,
    /// Its dimensions, innermost first.
    pub shape: &'a [u64],
    /// How its elements are stored.
    pub encoding: Encoding,
}

/// The metadata of a GGUF file verbatim, so that it can be written again byte for byte.
///
/// [`RawMetadata::to_bytes`] is the payload of a container's source metadata section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawMetadata<'a> {
    /// The file's GGUF version, 2 or 3.
    pub version: u32,
    /// How many entries `bytes` hold.
    pub kv_count: u64,
    /// The entries.
    pub bytes: &'a [u8],
}

/// Why a GGUF file cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufWriteError {
    /// The output refused bytes.
    #[error("writing failed")]
    Io(#[from] io::Error),
    /// The metadata are wrong: the same as a reader would say.
    #[error("the metadata cannot be written: {0}")]
    Metadata(#[from] GgufError),
    /// An encoding that GGUF has no number for.
    #[error("tensor {tensor} is {encoding}, which GGUF cannot hold")]
    Encoding {
        /// The tensor.
        tensor: String,
        /// Its encoding.
        encoding: &'static str,
    },
    /// A name that GGUF cannot hold, or one that occurs twice.
    #[error("{tensor:?} is no tensor name: it is empty, longer than 64 bytes, or taken")]
    Name {
        /// The name.
        tensor: String,
    },
    /// The bytes of a tensor are not as many as its shape asks for.
    #[error("tensor {tensor} of shape {shape:?} has {found} bytes, expected {expected:?}")]
    Size {
        /// The tensor.
        tensor: String,
        /// Its shape, innermost first.
        shape: Vec<u64>,
        /// Bytes given.
        found: u64,
        /// Bytes its shape asks for; `None` when the shape itself is not possible.
        expected: Option<u64>,
    },
}

impl Coded for GgufWriteError {
    fn code(&self) -> &'static str {
        match self {
            GgufWriteError::Io(_) => "gguf-write-io",
            GgufWriteError::Metadata(error) => error.code(),
            GgufWriteError::Encoding { .. } => "gguf-write-encoding",
            GgufWriteError::Name { .. } => "gguf-write-name",
            GgufWriteError::Size { .. } => "gguf-write-size",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            GgufWriteError::Io(_) => ErrorClass::Io,
            _ => ErrorClass::Refused,
        }
    }
}

impl<'a> RawMetadata<'a> {
    /// Version (u32), number of entries (u64), entries; little-endian.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(12 + self.bytes.len());
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.kv_count.to_le_bytes());
        bytes.extend(self.bytes);
        bytes
    }

    /// The reverse of [`RawMetadata::to_bytes`], with the entries parsed.
    ///
    /// # Errors
    /// [`GgufError`] as in reading a file, and `gguf-metadata-trailing` where bytes follow the last entry.
    pub fn from_bytes(
        bytes: &'a [u8],
        limits: &Limits,
    ) -> Result<(RawMetadata<'a>, Metadata<'a>), GgufError> {
        let mut reader = Reader::new(bytes);
        let version = reader.u32("version").map_err(GgufError::Truncated)?;
        let kv_count = reader.u64("metadata count").map_err(GgufError::Truncated)?;
        let raw = RawMetadata { version, kv_count, bytes: &bytes[12..] };
        let metadata = raw.parse(limits)?;
        Ok((raw, metadata))
    }

    /// The entries.
    ///
    /// # Errors
    /// As [`RawMetadata::from_bytes`].
    pub fn parse(&self, limits: &Limits) -> Result<Metadata<'a>, GgufError> {
        if !matches!(self.version, 2 | 3) {
            return Err(GgufError::Version { found: self.version });
        }
        let mut reader = Reader::new(self.bytes);
        let metadata = Metadata::read(&mut reader, self.kv_count, limits)?;
        reader.finish().map_err(GgufError::Trailing)?;
        Ok(metadata)
    }
}

/// Writes a GGUF version 3 file from typed values, and gives its length.
///
/// Entries and tensors keep the order given. Tensor data are written from where they are, never copied; each tensor is padded with
/// zeros to the alignment (`general.alignment` among the entries, or 32), the last one too, as ggml's writer does.
///
/// # Errors
/// [`GgufWriteError`]; everything but the output itself is checked before the first byte is written.
pub fn write(
    out: &mut dyn Write,
    metadata: &[(&str, Value<'_>)],
    tensors: &[TensorSource<'_>],
) -> Result<u64, GgufWriteError> {
    let mut bytes = Vec::new();
    for (index, (key, value)) in metadata.iter().enumerate() {
        let len = key.len() as u64;
        if len > MAX_KEY_BYTES {
            let index = index as u64;
            return Err(GgufError::KeyLength { index, found: len, most: MAX_KEY_BYTES }.into());
        }
        put_str(&mut bytes, key);
        bytes.extend(value.value_type().number().to_le_bytes());
        put_value(&mut bytes, value);
    }
    let raw = RawMetadata { version: 3, kv_count: metadata.len() as u64, bytes: &bytes };
    write_raw(out, &raw, tensors)
}

/// Writes a GGUF file with metadata taken verbatim, and gives its length; otherwise as [`write()`].
///
/// Where a file had the layout that ggml's writer gives, reading it and writing it so gives the same bytes.
///
/// # Errors
/// As [`write()`]; the metadata are parsed first, within bounds that only their own length sets.
pub fn write_raw(
    out: &mut dyn Write,
    metadata: &RawMetadata<'_>,
    tensors: &[TensorSource<'_>],
) -> Result<u64, GgufWriteError> {
    let mut heads = Vec::with_capacity(tensors.len());
    for TensorSource { name, shape, encoding, data } in tensors {
        let expected = tensor_bytes(*encoding, shape);
        let found = data.len() as u64;
        if expected != Some(found) && encoding.ggml_type().is_some() {
            let (tensor, shape) = ((*name).to_owned(), shape.to_vec());
            return Err(GgufWriteError::Size { tensor, shape, found, expected });
        }
        heads.push(TensorHead { name, shape, encoding: *encoding });
    }
    write_with(out, metadata, &heads, &mut |at, out| Ok(out.write_all(tensors[at].data)?))
}

/// Writes a GGUF file whose tensors' bytes are made as they are written; otherwise as [`write_raw`]. `data` is called once for each tensor, in
/// order, and writes its bytes to what it is given.
///
/// # Errors
/// As [`write_raw`], what `data` returns, and [`GgufWriteError::Size`] after a tensor of which it wrote too few or too many bytes.
pub fn write_with<E: From<GgufWriteError>>(
    out: &mut dyn Write,
    metadata: &RawMetadata<'_>,
    tensors: &[TensorHead<'_>],
    data: &mut dyn FnMut(usize, &mut dyn Write) -> Result<(), E>,
) -> Result<u64, E> {
    let unbounded = metadata.bytes.len() as u64;
    let limits = Limits {
        max_metadata_entries: unbounded,
        max_string_bytes: unbounded,
        max_array_len: unbounded,
        ..Limits::STANDARD
    };
    let parsed = metadata.parse(&limits).map_err(GgufWriteError::from)?;
    let alignment = parsed.alignment().map_err(GgufWriteError::from)?;
    let (list, sizes) = tensor_list(tensors, alignment)?;

    let mut out = Counted { out, written: 0 };
    put_start(&mut out, metadata, tensors.len(), &list, alignment).map_err(GgufWriteError::from)?;
    for (at, (head, expected)) in tensors.iter().zip(sizes).enumerate() {
        let before = out.written;
        data(at, &mut out)?;
        let found = out.written - before;
        if found != expected {
            let (tensor, shape) = (head.name.to_owned(), head.shape.to_vec());
            let expected = Some(expected);
            return Err(GgufWriteError::Size { tensor, shape, found, expected }.into());
        }
        pad(&mut out, alignment).map_err(GgufWriteError::from)?;
    }
    Ok(out.written)
}

/// Bytes of a tensor of a shape that GGUF can hold.
fn tensor_bytes(encoding: Encoding, shape: &[u64]) -> Option<u64> {
    let possible = matches!(shape.len(), 1..=4) && !shape.contains(&0);
    encoding.tensor_bytes(shape).filter(|_| possible)
}

/// The tensor list and the tensors' sizes, every tensor checked.
fn tensor_list(
    tensors: &[TensorHead<'_>],
    alignment: u64,
) -> Result<(Vec<u8>, Vec<u64>), GgufWriteError> {
    let (mut list, mut sizes) = (Vec::new(), Vec::new());
    let mut names = std::collections::BTreeSet::new();
    let mut offset = 0u64;
    for TensorHead { name, shape, encoding } in tensors {
        let len = name.len() as u64;
        if len == 0 || len > MAX_TENSOR_NAME_BYTES || !names.insert(*name) {
            return Err(GgufWriteError::Name { tensor: (*name).to_owned() });
        }
        let number = encoding.ggml_type().ok_or_else(|| GgufWriteError::Encoding {
            tensor: (*name).to_owned(),
            encoding: encoding.name(),
        })?;
        let size = tensor_bytes(*encoding, shape);
        let end =
            size.and_then(|size| offset.checked_add(size)?.checked_next_multiple_of(alignment));
        let (Some(size), Some(end)) = (size, end) else {
            let (tensor, shape) = ((*name).to_owned(), shape.to_vec());
            return Err(GgufWriteError::Size { tensor, shape, found: 0, expected: None });
        };
        put_str(&mut list, name);
        list.extend((shape.len() as u32).to_le_bytes());
        list.extend(shape.iter().flat_map(|dim| dim.to_le_bytes()));
        list.extend(number.to_le_bytes());
        list.extend(offset.to_le_bytes());
        sizes.push(size);
        offset = end;
    }
    Ok((list, sizes))
}

fn put_str(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn put_value(bytes: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::U8(v) => bytes.push(*v),
        Value::I8(v) => bytes.extend(v.to_le_bytes()),
        Value::U16(v) => bytes.extend(v.to_le_bytes()),
        Value::I16(v) => bytes.extend(v.to_le_bytes()),
        Value::U32(v) => bytes.extend(v.to_le_bytes()),
        Value::I32(v) => bytes.extend(v.to_le_bytes()),
        Value::F32(v) => bytes.extend(v.to_le_bytes()),
        Value::Bool(v) => bytes.push((*v).into()),
        Value::Str(v) => put_str(bytes, v),
        Value::U64(v) => bytes.extend(v.to_le_bytes()),
        Value::I64(v) => bytes.extend(v.to_le_bytes()),
        Value::F64(v) => bytes.extend(v.to_le_bytes()),
        Value::Array(array) => {
            bytes.extend(array.element().number().to_le_bytes());
            bytes.extend((array.len() as u64).to_le_bytes());
            match array {
                Array::Str(strings) => strings.iter().for_each(|text| put_str(bytes, text)),
                Array::Numbers { bytes: numbers, .. } => bytes.extend_from_slice(numbers),
            }
        }
    }
}

/// Everything before the tensors' data.
fn put_start(
    out: &mut Counted<'_>,
    metadata: &RawMetadata<'_>,
    n_tensors: usize,
    list: &[u8],
    alignment: u64,
) -> io::Result<()> {
    out.write_all(&MAGIC)?;
    out.write_all(&metadata.version.to_le_bytes())?;
    out.write_all(&(n_tensors as u64).to_le_bytes())?;
    out.write_all(&metadata.kv_count.to_le_bytes())?;
    out.write_all(metadata.bytes)?;
    out.write_all(list)?;
    pad(out, alignment)
}

/// Zeros up to the next multiple of `alignment` bytes.
fn pad(out: &mut Counted<'_>, alignment: u64) -> io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut missing = out.written.next_multiple_of(alignment) - out.written;
    while missing > 0 {
        let piece = missing.min(ZEROS.len() as u64);
        out.write_all(&ZEROS[..piece as usize])?;
        missing -= piece;
    }
    Ok(())
}
