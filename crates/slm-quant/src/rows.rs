//! Activation rows in 8 bits (numerics 2).

use crate::{Kernels, QuantError};

/// Elements of an activation block.
pub(crate) const BLOCK: usize = 32;
/// Blocks a row is padded to with zeros, so that a kernel may always read a whole group.
pub(crate) const GROUP: usize = 8;

/// Activation rows quantized to signed 8-bit blocks of 32; reusable buffers.
///
/// One quantization serves every matrix that reads the rows. Rows are padded with zero blocks to a multiple of 8 blocks; the accessors
/// leave the padding out.
#[derive(Debug, Clone, Default)]
pub struct QuantizedRows {
    cols: usize,
    n_rows: usize,
    n_blocks: usize,
    stride_blocks: usize,
    q: Vec<i8>,
    d: Vec<f32>,
    xsum: Vec<i32>,
    half: Vec<i32>,
    tiled: Vec<[i8; BLOCK]>,
    sums: Vec<BlockSums>,
}

/// What an interleaved kernel broadcasts of one activation block.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the scalar tier gathers rows"))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockSums {
    pub(crate) d: f32,
    /// `d * xsum`.
    pub(crate) sx: f32,
    /// The sum of the codes, which f32 holds exactly; so it does the products with minima of the K types, below 2^18. Where such a minimum is 0 the
    /// product may be -0, which no sum that begins with 0 shows.
    pub(crate) xsum: f32,
    less_8: i32,
    less_16: i32,
    less_128: i32,
    /// Minus 32 times the sum of the codes of each half.
    pub(crate) less_32: [i32; 2],
}

impl BlockSums {
    /// Of a block of zeros.
    pub(crate) const NONE: BlockSums = BlockSums::new(0.0, 0, 0);

    /// `half` is the sum of the first sixteen codes.
    const fn new(d: f32, xsum: i32, half: i32) -> BlockSums {
        let sum = xsum as f32;
        BlockSums {
            d,
            sx: d * sum,
            xsum: sum,
            less_8: -8 * xsum,
            less_16: -16 * xsum,
            less_128: -128 * xsum,
            less_32: [-32 * half, -32 * (xsum - half)],
        }
    }

    /// Where the sum of products begins whose weights' codes are `offset` too great: minus so many times the sum of the activations' codes.
    #[inline(always)]
    pub(crate) fn less(&self, offset: i32) -> i32 {
        match offset {
            0 => 0,
            8 => self.less_8,
            16 => self.less_16,
            128 => self.less_128,
            _ => unreachable!("BUG: no type has the offset {offset}"),
        }
    }
}

/// The rows of the next tile where `n` are left: 8, 4, 2 or 1. Interleaved kernels read tiles counted so from row 0.
#[inline(always)]
pub(crate) fn tile_rows(n: usize) -> usize {
    match n {
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

impl QuantizedRows {
    /// Bytes that it holds for each 32 values of a row: codes, scale and sums in order, and all once more in tiles.
    pub const BLOCK_BYTES: usize = (BLOCK + 4 + 4 + 4) + (BLOCK + size_of::<BlockSums>());

    /// Empty buffers; the first [`QuantizedRows::quantize`] allocates.
    pub fn new() -> QuantizedRows {
        QuantizedRows::default()
    }

    /// Quantizes the rows of `x` (`[n_rows, cols]`), replacing what was held. Allocates only when the buffers are too small.
    ///
    /// # Errors
    /// [`QuantError::Length`] when `cols` is zero or not a multiple of 32 or `x` is not whole rows; [`QuantError::NonFinite`] naming the
    /// first NaN or infinity. On error the buffers hold zero rows.
    pub fn quantize(&mut self, kernels: Kernels, x: &[f32], cols: usize) -> Result<(), QuantError> {
        self.n_rows = 0;
        if cols == 0 || !cols.is_multiple_of(BLOCK) {
            let needed = cols.next_multiple_of(BLOCK).max(BLOCK);
            return Err(QuantError::Length { what: "columns", needed, given: cols });
        }
        if !x.len().is_multiple_of(cols) {
            let needed = x.len() / cols * cols;
            return Err(QuantError::Length { what: "activations", needed, given: x.len() });
        }
        let n_rows = x.len() / cols;
        self.cols = cols;
        self.n_blocks = cols / BLOCK;
        self.stride_blocks = self.n_blocks.next_multiple_of(GROUP);
        // Cleared first: the padding blocks must be zero whatever the shape before was.
        self.q.clear();
        self.q.resize(n_rows * self.stride_blocks * BLOCK, 0);
        self.d.clear();
        self.d.resize(n_rows * self.stride_blocks, 0.0);
        self.xsum.clear();
        self.xsum.resize(n_rows * self.stride_blocks, 0);
        self.half.clear();
        self.half.resize(n_rows * self.stride_blocks, 0);
        for (row, x) in x.chunks_exact(cols).enumerate() {
            if !kernels.is_finite(x) {
                let index = x.iter().position(|x| !x.is_finite()).unwrap_or(0);
                return Err(QuantError::NonFinite { row, index });
            }
            let at = row * self.stride_blocks;
            kernels.quantize_row(
                x,
                &mut self.q[at * BLOCK..][..cols],
                &mut self.d[at..][..self.n_blocks],
                &mut self.xsum[at..][..self.n_blocks],
                &mut self.half[at..][..self.n_blocks],
            );
        }
        self.n_rows = n_rows;
        self.tile_all();
        Ok(())
    }

    /// Copies the rows tile by tile: block 0 of the tile's rows, block 1 of its rows, and so on.
    fn tile_all(&mut self) {
        self.tiled.resize(self.n_rows * self.n_blocks, [0; BLOCK]);
        self.sums.resize(self.n_rows * self.n_blocks, BlockSums::NONE);
        let mut first = 0;
        while first < self.n_rows {
            let tile = tile_rows(self.n_rows - first);
            for t in 0..tile {
                let at = (first + t) * self.stride_blocks;
                let (codes, _) = self.q[at * BLOCK..].as_chunks::<BLOCK>();
                let to = first * self.n_blocks + t;
                let tiled = self.tiled[to..].iter_mut().step_by(tile);
                for (to, q) in tiled.zip(&codes[..self.n_blocks]) {
                    *to = *q;
                }
                let sums = self.sums[to..].iter_mut().step_by(tile);
                let (d, xsum) = (&self.d[at..][..self.n_blocks], &self.xsum[at..]);
                for (to, (&d, (&xsum, &half))) in
                    sums.zip(d.iter().zip(xsum.iter().zip(&self.half[at..])))
                {
                    *to = BlockSums::new(d, xsum, half);
                }
            }
            first += tile;
        }
    }

    /// Rows held.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The codes of a row, each in -127 ..= 127.
    pub fn q(&self, row: usize) -> &[i8] {
        &self.padded(row).0[..self.cols]
    }

    /// The scales of a row, one per 32 elements.
    pub fn d(&self, row: usize) -> &[f32] {
        &self.padded(row).1[..self.n_blocks]
    }

    /// The sums of the codes of a row, one per 32 elements.
    pub fn xsum(&self, row: usize) -> &[i32] {
        &self.padded(row).2[..self.n_blocks]
    }

    /// A row with its padding: codes, scales, sums.
    #[inline(always)]
    pub(crate) fn padded(&self, row: usize) -> (&[i8], &[f32], &[i32]) {
        assert!(row < self.n_rows, "row {row} of {}", self.n_rows);
        let (at, n) = (row * self.stride_blocks, self.stride_blocks);
        (&self.q[at * BLOCK..][..n * BLOCK], &self.d[at..][..n], &self.xsum[at..][..n])
    }

    /// The tile of `T` rows from `first` on, a row of [`tile_rows`]: for each block, the codes of its rows and what is broadcast with them.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "the scalar tier gathers rows")
    )]
    #[inline(always)]
    pub(crate) fn tile<const T: usize>(&self, first: usize) -> Tile<'_, T> {
        assert!(first + T <= self.n_rows, "rows {first}..{} of {}", first + T, self.n_rows);
        let (codes, _) = self.tiled[first * self.n_blocks..].as_chunks();
        let (sums, _) = self.sums[first * self.n_blocks..].as_chunks();
        Tile { codes: &codes[..self.n_blocks], sums: &sums[..self.n_blocks] }
    }
}

/// `T` rows, block by block.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the scalar tier gathers rows"))]
pub(crate) struct Tile<'a, const T: usize> {
    pub(crate) codes: &'a [[[i8; BLOCK]; T]],
    pub(crate) sums: &'a [[BlockSums; T]],
}
