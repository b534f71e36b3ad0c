//! A matrix of weights over borrowed bytes.

use half::{bf16, f16};
use slm_format::Encoding;

use crate::QuantError;
use crate::layout::{self, Layout, STRIP_ROWS};

/// A matrix of encoded weights: row-major, as the blocks stand in the file, or with sixteen rows interleaved ([`layout`]).
///
/// The layout changes no result, only the speed of the int8 products.
#[derive(Debug, Clone, Copy)]
pub struct QMatrix<'a> {
    encoding: Encoding,
    layout: Layout,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    read_once: bool,
    data: &'a [u8],
}

impl<'a> QMatrix<'a> {
    /// A view of `data` as `rows` rows of `cols` elements, row after row.
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
        let needed = layout::interleaved_bytes(encoding, rows, cols);
        let needed = needed.ok_or(QuantError::Shape { encoding, rows, cols })?;
        if data.len() != needed {
            return Err(QuantError::Length { what: "matrix bytes", needed, given: data.len() });
        }
        let row_bytes = encoding.row_bytes(cols).expect("BUG: whole blocks");
        Ok(QMatrix {
            encoding,
            layout: Layout::RowMajor,
            rows,
            cols,
            row_bytes,
            read_once: false,
            data,
        })
    }

    /// A view of `data` as [`layout::interleave`] made it. Row-major where the encoding has no other layout.
    ///
    /// # Errors
    /// As [`QMatrix::new`].
    ///
    /// ```
    /// use slm_format::Encoding;
    /// use slm_quant::{Kernels, QMatrix, codec, layout};
    ///
    /// let values: Vec<f32> = (0..16 * 32).map(|i| i as f32).collect();
    /// let bytes = codec::encode(Encoding::Q8_0, &values, 32)?;
    /// let mut strips = layout::AlignedBytes::zeroed(bytes.len());
    /// layout::interleave(Encoding::Q8_0, 16, 32, &bytes, &mut strips)?;
    ///
    /// let (plain, fast) = (
    ///     QMatrix::new(Encoding::Q8_0, 16, 32, &bytes)?,
    ///     QMatrix::new_interleaved(Encoding::Q8_0, 16, 32, &strips)?,
    /// );
    /// let (mut a, mut b) = ([0.0; 32], [0.0; 32]);
    /// Kernels::detect().decode_row(&mut a, &plain, 7);
    /// Kernels::detect().decode_row(&mut b, &fast, 7);
    /// assert_eq!(a, b);
    /// # Ok::<(), slm_quant::QuantError>(())
    /// ```
    pub fn new_interleaved(
        encoding: Encoding,
        rows: usize,
        cols: usize,
        data: &'a [u8],
    ) -> Result<QMatrix<'a>, QuantError> {
        let plain = QMatrix::new(encoding, rows, cols, data)?;
        let layout = match layout::is_interleavable(encoding) {
            true => Layout::Interleaved,
            false => Layout::RowMajor,
        };
        Ok(QMatrix { layout, ..plain })
    }

    /// The same matrix, with the promise that so much else is read before it is read again that no cache will still have it. What is used more
    /// often then stays in the caches. Changes no result: a promise that is not kept costs time alone.
    ///
    /// Heeded by the int8 product of a lone token with strips of Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 that stand at a multiple of 32 bytes, on x86;
    /// others read as ever. On AMD's Zen 5 and later that product, of any integer-coded strips, also asks for the weights 8 KiB ahead of its loads.
    ///
    /// ```
    /// use slm_format::Encoding;
    /// use slm_quant::{Inline, Kernels, QMatrix, QuantizedRows, codec, layout};
    ///
    /// let (kernels, x) = (Kernels::detect(), [0.25; 32]);
    /// let values: Vec<f32> = (0..16 * 32).map(|i| i as f32).collect();
    /// let bytes = codec::encode(Encoding::Q8_0, &values, 32)?;
    /// let mut strips = layout::AlignedBytes::zeroed(bytes.len());
    /// layout::interleave(Encoding::Q8_0, 16, 32, &bytes, &mut strips)?;
    /// let w = QMatrix::new_interleaved(Encoding::Q8_0, 16, 32, &strips)?;
    ///
    /// let mut xq = QuantizedRows::new();
    /// xq.quantize(kernels, &x, 32)?;
    /// let (mut a, mut b) = ([0.0; 16], [0.0; 16]);
    /// kernels.matmul(&Inline, &mut a, &w, &x, Some(&xq));
    /// kernels.matmul(&Inline, &mut b, &w.read_once(), &x, Some(&xq));
    /// assert_eq!(a, b);
    /// # Ok::<(), slm_quant::QuantError>(())
    /// ```
    pub fn read_once(self) -> QMatrix<'a> {
        QMatrix { read_once: true, ..self }
    }

    /// Whether [`QMatrix::read_once`] was said of it.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "such loads are x86's"))]
    pub(crate) fn is_read_once(&self) -> bool {
        self.read_once
    }

    /// Reads every block's scale (and minimum) once and refuses what the contract excludes. Done once, at load.
    ///
    /// For F32, F16 and BF16 every element is its own scale. An MXFP4 exponent is refused where its largest code would overflow `f32`.
    ///
    /// # Errors
    /// [`QuantError::NonFiniteScale`] naming the first such row and block.
    pub fn check_scales(&self) -> Result<(), QuantError> {
        let unit = self.encoding.block_bytes();
        let finite = scales_finite(self.encoding);
        let mut buffer = [0u8; layout::BLOCK_BYTES];
        for row in 0..self.rows {
            if self.strip_of(row).is_none() {
                let bad = self.row_bytes(row).chunks_exact(unit).position(|block| !finite(block));
                if let Some(block) = bad {
                    return Err(QuantError::NonFiniteScale { encoding: self.encoding, row, block });
                }
                continue;
            }
            for block in 0..self.row_bytes / unit {
                if !finite(self.blocks(row, block, 1, &mut buffer)) {
                    return Err(QuantError::NonFiniteScale { encoding: self.encoding, row, block });
                }
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

    /// Where the bytes stand.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Copies the bytes of row `row`, in row-major order, to `out`.
    ///
    /// # Panics
    /// When `row` is not below [`QMatrix::rows`] or `out` is not exactly a row's bytes.
    pub fn copy_row(&self, row: usize, out: &mut [u8]) {
        assert_eq!(out.len(), self.row_bytes, "bytes of the row");
        let unit = self.encoding.block_bytes();
        if self.strip_of(row).is_none() {
            return out.copy_from_slice(self.row_bytes(row));
        }
        let mut buffer = [0u8; layout::BLOCK_BYTES];
        for (b, out) in out.chunks_exact_mut(unit).enumerate() {
            out.copy_from_slice(self.blocks(row, b, 1, &mut buffer));
        }
    }

    /// The bytes of a row that stands by itself: of a row-major matrix, or left over after the strips.
    #[inline(always)]
    pub(crate) fn row_bytes(&self, row: usize) -> &'a [u8] {
        debug_assert!(self.strip_of(row).is_none(), "BUG: row {row} is interleaved");
        &self.data[row * self.row_bytes..][..self.row_bytes]
    }

    /// `n` blocks of a row from block `first` on, in row-major order: borrowed, or gathered in `buffer` (as many whole blocks as fit).
    #[inline(always)]
    pub(crate) fn blocks<'b>(
        &self,
        row: usize,
        first: usize,
        n: usize,
        buffer: &'b mut [u8; layout::BLOCK_BYTES],
    ) -> &'b [u8]
    where
        'a: 'b,
    {
        let unit = self.encoding.block_bytes();
        let Some(strip) = self.strip_of(row) else {
            return &self.row_bytes(row)[first * unit..][..n * unit];
        };
        let strip = self.strip_bytes(strip, 1);
        layout::gather(self.encoding, strip, first, n, row % STRIP_ROWS, buffer);
        &buffer[..n * unit]
    }

    /// `n` strips of sixteen rows from strip `first` on.
    #[inline(always)]
    pub(crate) fn strip_bytes(&self, first: usize, n: usize) -> &'a [u8] {
        let len = STRIP_ROWS * self.row_bytes;
        &self.data[first * len..][..n * len]
    }

    /// The strip that a row is interleaved in; `None` for a row that stands by itself.
    #[inline(always)]
    pub(crate) fn strip_of(&self, row: usize) -> Option<usize> {
        let strip = row / STRIP_ROWS;
        (self.layout == Layout::Interleaved && strip < self.rows / STRIP_ROWS).then_some(strip)
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
