//! One factor of a low-rank product.

use std::borrow::Cow;
use std::sync::Arc;

use half::{bf16, f16};
use slm_format::{ContentHash, Encoding};

use crate::OverlayError;

/// A matrix of plain floats, row-major, little-endian, all finite. Cloning shares the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Factor {
    encoding: Encoding,
    rows: u32,
    cols: u32,
    data: Arc<[u8]>,
}

impl Factor {
    /// The `rows` by `cols` matrix in `data`. `name` is what errors call it.
    ///
    /// # Errors
    /// [`OverlayError::Dtype`] when `encoding` is not F32, F16 or BF16, [`OverlayError::Factor`] when the bytes are not as many as the shape
    /// needs or a dimension is zero or above `u32`, [`OverlayError::NonFinite`] for a NaN or an infinity.
    pub fn new(
        name: &str,
        encoding: Encoding,
        rows: u64,
        cols: u64,
        data: Cow<'_, [u8]>,
    ) -> Result<Factor, OverlayError> {
        if !matches!(encoding, Encoding::F32 | Encoding::F16 | Encoding::BF16) {
            return Err(OverlayError::Dtype { tensor: name.into(), dtype: encoding.name().into() });
        }
        let wrong = OverlayError::Factor { encoding, rows, cols, bytes: data.len() as u64 };
        let bytes = encoding.tensor_bytes(&[cols, rows]);
        let (Ok(rows), Ok(cols)) = (u32::try_from(rows), u32::try_from(cols)) else {
            return Err(wrong);
        };
        if rows == 0 || cols == 0 || bytes != Some(data.len() as u64) {
            return Err(wrong);
        }
        let factor = Factor { encoding, rows, cols, data: data.into() };
        // Counted first: that is many elements at a time, and mostly there is nothing to find.
        let exponent = match encoding {
            Encoding::F32 => 0x7f80_0000,
            Encoding::F16 => 0x7c00,
            _ => 0x7f80,
        };
        let n_bad = factor.count(|bits| bits & exponent == exponent);
        let find = || factor.values().enumerate().find(|(_, value)| !value.is_finite());
        match (n_bad > 0).then(find).flatten() {
            None => Ok(factor),
            Some((index, value)) => {
                Err(OverlayError::NonFinite { tensor: name.into(), index: index as u64, value })
            }
        }
    }

    /// How the elements are stored: F32, F16 or BF16.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Rows.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> u32 {
        self.cols
    }

    /// The elements' bytes.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// BLAKE3 of the bytes.
    pub fn content(&self) -> ContentHash {
        ContentHash::of(&self.data)
    }

    /// The elements, row by row, widened exactly.
    pub fn values(&self) -> impl Iterator<Item = f32> + '_ {
        widen(self.encoding, &self.data)
    }

    /// How many elements are not zero.
    pub(crate) fn n_not_zero(&self) -> u64 {
        let magnitude = if self.encoding == Encoding::F32 { 0x7fff_ffff } else { 0x7fff };
        self.count(|bits| bits & magnitude != 0)
    }

    /// How many elements have bits that `test` accepts.
    fn count(&self, test: impl Fn(u32) -> bool) -> u64 {
        let n = if self.encoding == Encoding::F32 {
            let elements = self.data.as_chunks().0.iter();
            elements.filter(|bytes| test(u32::from_le_bytes(**bytes))).count()
        } else {
            let elements = self.data.as_chunks().0.iter();
            elements.filter(|bytes| test(u16::from_le_bytes(**bytes).into())).count()
        };
        n as u64
    }

    /// Whether both are the same bytes in memory, of one shape.
    pub(crate) fn shares(&self, other: &Factor) -> bool {
        Arc::ptr_eq(&self.data, &other.data)
            && (self.encoding, self.rows, self.cols) == (other.encoding, other.rows, other.cols)
    }

    /// The matrix with its columns for rows.
    pub(crate) fn transposed(&self) -> Factor {
        let mut data = vec![0; self.data.len()];
        let (rows, cols) = (self.rows as usize, self.cols as usize);
        if self.encoding == Encoding::F32 {
            transpose::<4>(rows, cols, &self.data, &mut data);
        } else {
            transpose::<2>(rows, cols, &self.data, &mut data);
        }
        Factor { encoding: self.encoding, rows: self.cols, cols: self.rows, data: data.into() }
    }

    /// A vector, whichever way it stands, as one row.
    pub(crate) fn as_row(&self) -> Factor {
        let len = self.rows.max(self.cols);
        debug_assert!(self.rows.min(self.cols) == 1, "BUG: a matrix as a row");
        Factor { rows: 1, cols: len, ..self.clone() }
    }

    /// A row's elements in another order: element `i` of the result is element `source(i)` of this.
    pub(crate) fn with_columns(&self, source: impl Fn(usize) -> usize) -> Factor {
        let column = Factor { rows: self.cols, cols: 1, ..self.clone() };
        Factor { rows: 1, cols: self.cols, ..column.with_rows(source) }
    }

    /// The first `rows` rows and `cols` columns; all of it shares the bytes.
    pub(crate) fn corner(&self, rows: u32, cols: u32) -> Factor {
        if (rows, cols) == (self.rows, self.cols) {
            return self.clone();
        }
        let width = self.encoding.block_bytes();
        let (stride, len) = (self.cols as usize * width, cols as usize * width);
        let data: Vec<u8> = self
            .data
            .chunks_exact(stride)
            .take(rows as usize)
            .flat_map(|row| &row[..len])
            .copied()
            .collect();
        Factor { encoding: self.encoding, rows, cols, data: data.into() }
    }

    /// One row, widened.
    pub(crate) fn row_into(&self, row: usize, out: &mut [f32]) {
        let len = self.cols as usize * self.encoding.block_bytes();
        let data = &self.data[row * len..][..len];
        widen(self.encoding, data).zip(out).for_each(|(value, out)| *out = value);
    }

    /// Every element times `factor`, in f64, rounded once to f32. `name` is what errors call it.
    pub(crate) fn times(&self, name: &str, factor: f64) -> Result<Factor, OverlayError> {
        let values = self.values().map(|value| (f64::from(value) * factor) as f32);
        let data: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        Factor::new(name, Encoding::F32, self.rows.into(), self.cols.into(), Cow::Owned(data))
    }

    /// The same rows in another order: row `i` of the result is row `source(i)` of this.
    pub(crate) fn with_rows(&self, source: impl Fn(usize) -> usize) -> Factor {
        let row_bytes = self.cols as usize * self.encoding.block_bytes();
        let mut data = Vec::with_capacity(self.data.len());
        for row in 0..self.rows as usize {
            data.extend_from_slice(&self.data[source(row) * row_bytes..][..row_bytes]);
        }
        Factor { data: data.into(), ..*self }
    }

    /// The elements rounded to f16, to nearest even. `name` is what errors call the factor.
    pub(crate) fn to_f16(&self, name: &str) -> Result<Factor, OverlayError> {
        if self.encoding == Encoding::F16 {
            return Ok(self.clone());
        }
        let mut data = Vec::with_capacity(self.data.len() / self.encoding.block_bytes() * 2);
        for (index, value) in self.values().enumerate() {
            let rounded = f16::from_f32(value);
            if !rounded.is_finite() {
                return Err(OverlayError::F16Range {
                    tensor: name.into(),
                    index: index as u64,
                    value,
                });
            }
            data.extend_from_slice(&rounded.to_le_bytes());
        }
        Ok(Factor { encoding: Encoding::F16, data: data.into(), ..*self })
    }
}

/// Elements of so many bytes: row by row in, column by column out.
fn transpose<const WIDTH: usize>(rows: usize, cols: usize, from: &[u8], to: &mut [u8]) {
    let (from, to) = (from.as_chunks::<WIDTH>().0, to.as_chunks_mut::<WIDTH>().0);
    for (col, out) in to.chunks_exact_mut(rows).take(cols).enumerate() {
        for (row, out) in out.iter_mut().enumerate() {
            *out = from[row * cols + col];
        }
    }
}

fn widen(encoding: Encoding, data: &[u8]) -> impl Iterator<Item = f32> + '_ {
    data.chunks_exact(encoding.block_bytes()).map(move |bytes| match (encoding, bytes) {
        (Encoding::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (Encoding::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (Encoding::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        _ => unreachable!("BUG: a factor of another encoding"),
    })
}

#[cfg(test)]
mod tests {
    use slm_format::Coded;

    use super::*;

    fn f32_bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// What is counted by bits is what the values say, and a matrix turned twice is itself.
    #[test]
    fn elements_are_counted_and_turned_in_every_encoding() {
        let values = [0.0f32, -0.0, 1.0, -2.5, 1e-8, f32::MIN_POSITIVE / 2.0, 65504.0, 0.0];
        for encoding in [Encoding::F32, Encoding::F16, Encoding::BF16] {
            let bytes = |value: &f32| match encoding {
                Encoding::F32 => value.to_le_bytes().to_vec(),
                Encoding::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
                _ => bf16::from_f32(*value).to_le_bytes().to_vec(),
            };
            let data: Vec<u8> = values.iter().flat_map(bytes).collect();
            let factor = Factor::new("x", encoding, 2, 4, Cow::Owned(data)).unwrap();
            let expected = factor.values().filter(|value| *value != 0.0).count();
            assert_eq!(factor.n_not_zero(), expected as u64, "{encoding}");
            let turned = factor.transposed();
            for (index, value) in factor.values().enumerate() {
                let (row, col) = (index / 4, index % 4);
                let there = turned.values().nth(col * 2 + row).unwrap();
                assert_eq!(there.to_bits(), value.to_bits(), "{encoding} {row} {col}");
            }
            assert_eq!(turned.transposed(), factor);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let data = [bytes(&1.0), bytes(&bad), bytes(&2.0)].concat();
                let refused = Factor::new("x", encoding, 1, 3, Cow::Owned(data)).unwrap_err();
                assert_eq!(refused.code(), "adapter-non-finite", "{encoding} {bad}");
            }
        }
    }

    #[test]
    fn shapes_and_values_are_checked() {
        let good = f32_bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let new = |encoding, rows, cols, data: &[u8]| {
            Factor::new("x", encoding, rows, cols, Cow::Borrowed(data))
        };
        assert!(new(Encoding::F32, 2, 3, &good).is_ok());
        assert_eq!(new(Encoding::F32, 2, 2, &good).unwrap_err().code(), "adapter-factor");
        assert_eq!(new(Encoding::F32, 0, 3, &[]).unwrap_err().code(), "adapter-factor");
        assert_eq!(
            new(Encoding::F32, 1 << 40, 1 << 40, &good).unwrap_err().code(),
            "adapter-factor"
        );
        assert_eq!(new(Encoding::Q8_0, 2, 3, &good).unwrap_err().code(), "adapter-dtype");
        let mut bad = good.clone();
        bad[16..20].copy_from_slice(&f32::INFINITY.to_le_bytes());
        let error = new(Encoding::F32, 2, 3, &bad).unwrap_err();
        assert_eq!(
            (error.code(), error.to_string().as_str()),
            ("adapter-non-finite", "x: element 4 is inf")
        );
    }

    #[test]
    fn a_transposed_matrix_has_rows_for_columns() {
        let data = f32_bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let factor = Factor::new("x", Encoding::F32, 2, 3, data.into()).unwrap();
        assert_eq!(factor.transposed().data(), f32_bytes(&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
        assert_eq!(
            factor.with_rows(|row| 1 - row).data(),
            f32_bytes(&[4.0, 5.0, 6.0, 1.0, 2.0, 3.0])
        );
    }

    #[test]
    fn rounding_to_f16_refuses_what_it_cannot_hold() {
        let factor = |value: f32| {
            Factor::new("x", Encoding::F32, 1, 2, f32_bytes(&[1.0, value]).into()).unwrap()
        };
        assert_eq!(
            factor(65504.0).to_f16("x").unwrap().values().collect::<Vec<_>>(),
            [1.0, 65504.0]
        );
        assert_eq!(factor(65520.0).to_f16("x").unwrap_err().code(), "adapter-f16-range");
    }
}
