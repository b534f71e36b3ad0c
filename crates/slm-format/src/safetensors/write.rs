//! Writing safetensors: the same tensors give the same bytes, in whatever order they are given.

use std::collections::BTreeMap;
use std::io::Write;

use super::dtype::Dtype;
use super::error::SafeTensorsError;
use crate::counted::Counted;

/// A tensor to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorSource<'a> {
    /// Its name.
    pub name: &'a str,
    /// How its elements are stored.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: &'a [u64],
    /// Its bytes, little-endian.
    pub data: &'a [u8],
}

/// A tensor whose bytes are made as they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorHead<'a> {
    /// Its name.
    pub name: &'a str,
    /// How its elements are stored.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: &'a [u64],
}

/// Writes a safetensors file and gives its length.
///
/// Tensors are stored by falling element size, then by name, so that every one of them is aligned to its element; metadata are sorted
/// by key; the header is padded with spaces to a multiple of 8. Tensor data are written from where they are, never copied.
///
/// # Errors
/// `safetensors-duplicate-tensor`, `safetensors-shape`, `safetensors-shape-overflow` before anything is written; `safetensors-write-io`
/// where the output fails.
///
/// ```
/// use slm_format::{Limits, safetensors::{self, Dtype}};
///
/// let tensor = safetensors::TensorSource { name: "a", dtype: Dtype::F16, shape: &[2], data: &[0; 4] };
/// let mut file = Vec::new();
/// safetensors::write(&mut file, &[tensor], &Default::default()).unwrap();
/// let read = safetensors::SafeTensors::parse(&file, &Limits::STANDARD).unwrap();
/// assert_eq!(read.get("a").unwrap().shape, [2]);
/// ```
pub fn write(
    out: &mut dyn Write,
    tensors: &[TensorSource<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<u64, SafeTensorsError> {
    let mut heads = Vec::with_capacity(tensors.len());
    for &TensorSource { name, dtype, shape, data } in tensors {
        let found = data.len() as u64;
        let expected = dtype.tensor_bytes(shape);
        if let Some(expected) = expected.filter(|&expected| expected != found) {
            let (tensor, shape) = (name.to_owned(), shape.to_vec());
            return Err(SafeTensorsError::Shape { tensor, shape, expected, found });
        }
        heads.push(TensorHead { name, dtype, shape });
    }
    write_with(out, &heads, metadata, &mut |at, out| Ok(out.write_all(tensors[at].data)?))
}

/// Writes a safetensors file whose tensors' bytes are made as they are written; otherwise as [`write()`]. `data` is called once for each tensor, in
/// the order of the file, with the tensor's place in `tensors`.
///
/// # Errors
/// As [`write()`], what `data` returns, and `safetensors-shape` after a tensor of which it wrote too few or too many bytes.
pub fn write_with<E: From<SafeTensorsError>>(
    out: &mut dyn Write,
    tensors: &[TensorHead<'_>],
    metadata: &BTreeMap<String, String>,
    data: &mut dyn FnMut(usize, &mut dyn Write) -> Result<(), E>,
) -> Result<u64, E> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&at| (core::cmp::Reverse(tensors[at].dtype.size()), tensors[at].name));
    let (header, sizes) = header(order.iter().map(|&at| tensors[at]), metadata)?;
    let mut out = Counted { out, written: 0 };
    let start = |out: &mut Counted<'_>| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())
    };
    start(&mut out).map_err(SafeTensorsError::from)?;
    for (&at, expected) in order.iter().zip(sizes) {
        let before = out.written;
        data(at, &mut out)?;
        let found = out.written - before;
        if found != expected {
            let (tensor, shape) = (tensors[at].name.to_owned(), tensors[at].shape.to_vec());
            return Err(SafeTensorsError::Shape { tensor, shape, expected, found }.into());
        }
    }
    Ok(out.written)
}

/// The header, and the sizes of the tensors in their order; every tensor is checked.
fn header<'a>(
    tensors: impl Iterator<Item = TensorHead<'a>>,
    metadata: &BTreeMap<String, String>,
) -> Result<(String, Vec<u64>), SafeTensorsError> {
    let mut entries = Vec::new();
    if !metadata.is_empty() {
        let table = serde_json::to_string(metadata).expect("BUG: a table of strings is not JSON");
        entries.push(format!("\"__metadata__\":{table}"));
    }
    let mut names = std::collections::BTreeSet::new();
    let (mut end, mut sizes) = (0u64, Vec::new());
    for TensorHead { name, dtype, shape } in tensors {
        if !names.insert(name) || name == "__metadata__" {
            return Err(SafeTensorsError::DuplicateTensor { tensor: name.to_owned() });
        }
        let begin = end;
        let size = dtype.tensor_bytes(shape);
        let Some((size, new_end)) = size.and_then(|size| Some((size, begin.checked_add(size)?)))
        else {
            let (tensor, shape) = (name.to_owned(), shape.to_vec());
            return Err(SafeTensorsError::ShapeOverflow { tensor, shape });
        };
        end = new_end;
        sizes.push(size);
        let name = json_string(name);
        let shape = shape.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        entries.push(format!(
            "{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{begin},{end}]}}"
        ));
    }
    let mut header = format!("{{{}}}", entries.join(","));
    header.extend(core::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    Ok((header, sizes))
}

fn json_string(text: &str) -> String {
    serde_json::to_string(text).expect("BUG: a string is not JSON")
}
