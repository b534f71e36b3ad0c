//! Entries of the directory.

use super::error::Slm1Error;
use super::{Regions, aligned};
use crate::read::{ReadError, Reader};

/// How a tensor's elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the format's own names")]
pub enum Slm1Dtype {
    /// IEEE binary32, row-major, no scales.
    F32,
    /// One signed byte per element and one f32 scale per row.
    Q8_0,
    /// Two elements per byte, the low nibble first, in two's complement, and one f32 scale per block of a row.
    Q4_0,
}

impl Slm1Dtype {
    /// The format's number.
    pub fn number(self) -> u32 {
        match self {
            Slm1Dtype::F32 => 1,
            Slm1Dtype::Q8_0 => 2,
            Slm1Dtype::Q4_0 => 3,
        }
    }

    fn from_number(number: u32) -> Option<Slm1Dtype> {
        [Slm1Dtype::F32, Slm1Dtype::Q8_0, Slm1Dtype::Q4_0]
            .into_iter()
            .find(|dtype| dtype.number() == number)
    }
}

/// One tensor. As [`super::Slm1::parse`] gives it, `values` and `scales` have exactly the lengths that its shape asks for, and every scale is positive and
/// finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slm1Tensor<'a> {
    /// [`name_hash`] of its name.
    pub name_hash: u64,
    /// How its elements are stored.
    pub dtype: Slm1Dtype,
    /// How many of `dims` count, 1 to 4; the others are 0 or 1.
    pub rank: u32,
    /// Dimensions, outermost first; the last that counts is the length of a row.
    pub dims: [u32; 4],
    /// Elements per scale: a row for `q8_0`, an even part of one for `q4_0`; without meaning for `f32`.
    pub block_size: u32,
    /// The entry's last field, without meaning.
    pub reserved: u32,
    /// The elements, row-major.
    pub values: &'a [u8],
    /// The scales, f32, row after row; empty for `f32`.
    pub scales: &'a [u8],
}

impl Slm1Tensor<'_> {
    /// The dimensions that count.
    pub fn shape(&self) -> &[u32] {
        &self.dims[..(self.rank as usize).min(4)]
    }

    /// Length of a row.
    pub fn cols(&self) -> u64 {
        self.shape().last().map_or(0, |&dim| u64::from(dim))
    }

    /// Rows: the product of all dimensions but the last. Saturates, which no file that was read does.
    pub fn rows(&self) -> u64 {
        let outer = self.shape().split_last().map_or(&[][..], |(_, outer)| outer);
        outer.iter().fold(1, |rows, &dim| rows.saturating_mul(u64::from(dim)))
    }

    /// Checks rank, dimensions and block size; gives the bytes of values and of scales.
    pub(super) fn lengths(&self, index: u64) -> Result<(u64, u64), Slm1Error> {
        if !(1..=4).contains(&self.rank) {
            return Err(Slm1Error::Rank { index, found: self.rank });
        }
        let (counted, others) = self.dims.split_at(self.rank as usize);
        if counted.contains(&0) || others.iter().any(|&dim| dim > 1) {
            return Err(Slm1Error::Dims { index, rank: self.rank, dims: self.dims });
        }
        let overflow = || Slm1Error::Overflow { index, dims: self.dims };
        let elements = counted.iter().try_fold(1u64, |n, &dim| n.checked_mul(u64::from(dim)));
        let elements = elements.ok_or_else(overflow)?;
        let cols = self.cols();
        let rows = elements / cols;
        let block = u64::from(self.block_size);
        let block_error =
            || Slm1Error::BlockSize { index, found: self.block_size, cols, dtype: self.dtype };
        let (values, scales) = match self.dtype {
            Slm1Dtype::F32 => (elements.checked_mul(4).ok_or_else(overflow)?, 0),
            Slm1Dtype::Q8_0 if block == cols => (elements, rows),
            Slm1Dtype::Q4_0
                if block > 0 && block.is_multiple_of(2) && cols.is_multiple_of(block) =>
            {
                (elements / 2, elements / block)
            }
            Slm1Dtype::Q8_0 | Slm1Dtype::Q4_0 => return Err(block_error()),
        };
        Ok((values, scales.checked_mul(4).ok_or_else(overflow)?))
    }

    /// Every scale is positive and finite.
    pub(super) fn check_scales(&self, index: u64) -> Result<(), Slm1Error> {
        for (at, scale) in self.scales.chunks_exact(4).enumerate() {
            let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
            if !(scale.is_finite() && scale > 0.0) {
                return Err(Slm1Error::Scale { index, at: at as u64, found: scale });
            }
        }
        Ok(())
    }
}

/// The hash that stands for a tensor's name: FNV-1a of its UTF-8 bytes, 64 bits.
///
/// ```
/// assert_eq!(slm_format::slm1::name_hash(""), 0xcbf2_9ce4_8422_2325);
/// assert_eq!(slm_format::slm1::name_hash("a"), 0xaf63_dc4c_8601_ec8c); // the published vector
/// ```
pub fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// An entry as it stands.
struct Entry {
    name_hash: u64,
    dtype: u32,
    rank: u32,
    dims: [u32; 4],
    byte_offset: u64,
    byte_length: u64,
    scale_offset: u64,
    block_size: u32,
    reserved: u32,
}

/// Reads entry `index` and takes its regions.
pub(super) fn read<'a>(
    reader: &mut Reader<'_>,
    index: u64,
    regions: &mut Regions<'a>,
    data_offset: u64,
) -> Result<Slm1Tensor<'a>, Slm1Error> {
    let entry = entry(reader).expect("BUG: the directory has fewer bytes than was checked");
    let Some(dtype) = Slm1Dtype::from_number(entry.dtype) else {
        return Err(Slm1Error::Dtype { index, found: entry.dtype });
    };
    let Entry { name_hash, rank, dims, block_size, reserved, .. } = entry;
    let bare =
        Slm1Tensor { name_hash, dtype, rank, dims, block_size, reserved, values: &[], scales: &[] };
    let (expected, scale_bytes) = bare.lengths(index)?;
    if entry.byte_length != expected {
        return Err(Slm1Error::ByteLength { index, found: entry.byte_length, expected });
    }
    if (entry.scale_offset == 0) != (scale_bytes == 0) {
        return Err(Slm1Error::ScaleOffset { index, found: entry.scale_offset, dtype });
    }
    let mut take = |part: &str, offset: u64, length: u64| {
        let what = format!("the {part} of tensor {index}");
        aligned(&what, offset)?;
        if offset < data_offset {
            return Err(Slm1Error::BeforeData { what, offset, data_offset });
        }
        regions.take(&what, offset, length)
    };
    let values = take("values", entry.byte_offset, expected)?;
    let scales = match scale_bytes {
        0 => &[][..],
        bytes => take("scales", entry.scale_offset, bytes)?,
    };
    let tensor = Slm1Tensor { values, scales, ..bare };
    tensor.check_scales(index)?;
    Ok(tensor)
}

fn entry(reader: &mut Reader<'_>) -> Result<Entry, ReadError> {
    Ok(Entry {
        name_hash: reader.u64("name_hash")?,
        dtype: reader.u32("dtype")?,
        rank: reader.u32("rank")?,
        dims: [reader.u32("dim0")?, reader.u32("dim1")?, reader.u32("dim2")?, reader.u32("dim3")?],
        byte_offset: reader.u64("byte_offset")?,
        byte_length: reader.u64("byte_length")?,
        scale_offset: reader.u64("scale_offset")?,
        block_size: reader.u32("block_size")?,
        reserved: reader.u32("reserved")?,
    })
}
