//! Writing safetensors: the same tensors give the same bytes, in whatever order they are given.

use std::collections::BTreeMap;
use std::io::Write;

use super::dtype::Dtype;
use super::error::SafeTensorsError;

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
    let mut order: Vec<&TensorSource<'_>> = tensors.iter().collect();
    order.sort_by_key(|tensor| (core::cmp::Reverse(tensor.dtype.size()), tensor.name));
    check(&order)?;

    let mut entries = Vec::new();
    if !metadata.is_empty() {
        let table = serde_json::to_string(metadata).expect("BUG: a table of strings is not JSON");
        entries.push(format!("\"__metadata__\":{table}"));
    }
    let mut end = 0u64;
    for tensor in &order {
        let begin = end;
        end += tensor.data.len() as u64;
        let name = json_string(tensor.name);
        let (dtype, shape) = (tensor.dtype, tensor.shape.iter().map(u64::to_string));
        let shape = shape.collect::<Vec<_>>().join(",");
        entries.push(format!(
            "{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{begin},{end}]}}"
        ));
    }
    let mut header = format!("{{{}}}", entries.join(","));
    header.extend(core::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));

    let header_len = header.len() as u64;
    out.write_all(&header_len.to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    for tensor in &order {
        out.write_all(tensor.data)?;
    }
    Ok(8 + header_len + end)
}

fn check(tensors: &[&TensorSource<'_>]) -> Result<(), SafeTensorsError> {
    let mut names = std::collections::BTreeSet::new();
    for TensorSource { name, dtype, shape, data } in tensors {
        let tensor = || (*name).to_owned();
        if !names.insert(*name) || *name == "__metadata__" {
            return Err(SafeTensorsError::DuplicateTensor { tensor: tensor() });
        }
        let shape = shape.to_vec();
        let Some(expected) = dtype.tensor_bytes(&shape) else {
            return Err(SafeTensorsError::ShapeOverflow { tensor: tensor(), shape });
        };
        let found = data.len() as u64;
        if expected != found {
            return Err(SafeTensorsError::Shape { tensor: tensor(), shape, expected, found });
        }
    }
    Ok(())
}

fn json_string(text: &str) -> String {
    serde_json::to_string(text).expect("BUG: a string is not JSON")
}
