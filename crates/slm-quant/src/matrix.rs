//! A matrix of weights over borrowed bytes.

use half::{bf16, f16};
use slm_format::Encoding;

use crate::QuantError;

/// A row-major matrix of encoded weights, as the blocks stand in the file.
#[derive(Debug, Clone, Copy)]
pub struct QMatrix<'a> {
    encoding: Encoding,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    data: &'a [u8],
}

impl<'a> QMatrix<'a> {
    /// A view of `data` as `rows` rows of `cols` elements.
    ///
    /// # Errors
    /// [`QuantError::Shape`] when a row is empty or not whole blocks or the size overflows, [`QuantError::Length`] when `data` is not
    /// exactly the bytes of the shape.
    pub fn new(
        encoding: Encoding,
        rows: usize,
        cols: usize,
        data: &'a [u8],
    ) -> Result<QMatrix<'a>, QuantError> {
        let shape = QuantError::Shape { encoding, rows, cols };
        let row_bytes = encoding.row_bytes(cols).filter(|&bytes| bytes > 0);
        let row_bytes = row_bytes.ok_or_else(|| shape.clone())?;
        let needed = row_bytes.checked_mul(rows).ok_or(shape)?;
        if data.len() != needed {
            return Err(QuantError::Length { what: "matrix bytes", needed, given: data.len() });
        }
        Ok(QMatrix { encoding, rows, cols, row_bytes, data })
    }

    /// Reads every block's scale (and minimum) once and refuses what the contract excludes. Done once, at load.
    ///
    /// For F32, F16 and BF16 every element is its own scale. An MXFP4 exponent is refused where its largest code would overflow `f32`.
    ///
    /// # Errors
    /// [`QuantError::NonFiniteScale`] naming the first such row and block.
    pub fn check_scales(&self) -> Result<(), QuantError> {
        let block_bytes = self.encoding.block_bytes();
        let finite = scales_finite(self.encoding);
        for (index, block) in self.data.chunks_exact(block_bytes).enumerate() {
            if !finite(block) {
                let per_row = self.row_bytes / block_bytes;
                let (row, block) = (index / per_row, index % per_row);
                return Err(QuantError::NonFiniteScale { encoding: self.encoding, row, block });
            }
        }
        Ok(())
    }

    /// Rows (output elements).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns (input elements).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// How the weights are stored.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The bytes of row `row`.
    ///
    /// # Panics
    /// When `row` is not below [`QMatrix::rows`].
    #[inline(always)]
    pub fn row_bytes(&self, row: usize) -> &'a [u8] {
        &self.data[row * self.row_bytes..][..self.row_bytes]
    }

    /// All bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }
}

/// The test of one block, chosen once per matrix.
fn scales_finite(encoding: Encoding) -> fn(&[u8]) -> bool {
    fn f16_at(block: &[u8], at: usize) -> bool {
        f16::from_le_bytes([block[at], block[at + 1]]).is_finite()
    }
    match encoding {
        Encoding::F32 | Encoding::NF4 => {
            |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_finite()
        }
        Encoding::BF16 => |b| bf16::from_le_bytes([b[0], b[1]]).is_finite(),
        Encoding::F16
        | Encoding::Q4_0
        | Encoding::Q5_0
        | Encoding::Q8_0
        | Encoding::IQ4_NL
        | Encoding::IQ4_XS => |b| f16_at(b, 0),
        Encoding::Q4_1 | Encoding::Q5_1 | Encoding::Q4_K | Encoding::Q5_K => {
            |b| f16_at(b, 0) && f16_at(b, 2)
        }
        Encoding::Q2_K => |b| f16_at(b, 80) && f16_at(b, 82),
        Encoding::Q3_K => |b| f16_at(b, 108),
        Encoding::Q6_K => |b| f16_at(b, 208),
        // 6 * 2^(252 - 127) is the largest finite.
        Encoding::MXFP4 => |b| b[0] <= 252,
        _ => |_| false,
    }
}
