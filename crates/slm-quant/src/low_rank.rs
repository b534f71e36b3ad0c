//! The two factors of a low-rank term in the order in which a lone token reads them: each is one stream of addresses.
//!
//! A row of an adapter is short. Read row by row, the factors of one matrix are as many streams as they have rows, and a processor that has
//! hardly begun to follow one is sent to the next; what that costs is more than what the bytes do.

use slm_format::Encoding;

use crate::kernels::tier_call;
use crate::matmul::float_units;
use crate::{Executor, Kernels, QuantError};

/// Rows of a down-projection that are interleaved.
pub(crate) const GROUP_ROWS: usize = 4;
/// Columns of a row that stand together: the lanes of a reduction.
pub(crate) const GROUP_COLS: usize = 16;

/// Rows of an up-projection that are interleaved.
pub(crate) const UP_ROWS: usize = 64;

/// A down-projection, `[rank, cols]`, in groups of four rows (the last may have fewer): sixteen columns of the first row, the same of the
/// second, and so on; then the next sixteen columns (the last may be fewer).
#[derive(Debug, Clone, Copy)]
pub struct DownMatrix<'a> {
    encoding: Encoding,
    rank: usize,
    cols: usize,
    data: &'a [u8],
    read_once: bool,
}

/// An up-projection, `[rows, rank]`, in strips of sixty-four rows (the last may have fewer): the first column of the strip's rows, then the
/// second, and so on.
#[derive(Debug, Clone, Copy)]
pub struct UpMatrix<'a> {
    encoding: Encoding,
    rows: usize,
    rank: usize,
    data: &'a [u8],
    read_once: bool,
}

impl<'a> DownMatrix<'a> {
    /// Rows that are interleaved.
    pub const GROUP_ROWS: usize = GROUP_ROWS;

    /// The matrix in `data`, which [`DownMatrix::pack`] wrote.
    ///
    /// # Errors
    /// [`QuantError::Unusable`] unless `encoding` is F32, F16 or BF16; [`QuantError::Shape`] for no rows or columns or more than memory
    /// has; [`QuantError::Length`] when the bytes are not as many as the shape needs.
    #[inline]
    pub fn new(
        encoding: Encoding,
        rank: usize,
        cols: usize,
        data: &'a [u8],
    ) -> Result<DownMatrix<'a>, QuantError> {
        check(encoding, rank, cols, data.len())?;
        Ok(DownMatrix { encoding, rank, cols, data, read_once: false })
    }

    /// Writes the row-major `[rank, cols]` matrix `src` to `dst` in this order; both have as many bytes.
    ///
    /// # Errors
    /// As [`DownMatrix::new`], about either.
    ///
    /// ```
    /// use slm_format::Encoding;
    /// use slm_quant::{DownMatrix, Kernels};
    ///
    /// let rows: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    /// let mut packed = vec![0; rows.len()];
    /// DownMatrix::pack(Encoding::F32, 2, 2, &rows, &mut packed)?;
    /// let a = DownMatrix::new(Encoding::F32, 2, 2, &packed)?;
    /// let mut z = [0.0; 2];
    /// Kernels::detect().low_rank_down(&slm_quant::Inline, [&mut z], [&a], &[1.0, 10.0]);
    /// assert_eq!(z, [21.0, 43.0]);
    /// # Ok::<(), slm_quant::QuantError>(())
    /// ```
    pub fn pack(
        encoding: Encoding,
        rank: usize,
        cols: usize,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<(), QuantError> {
        let width = check(encoding, rank, cols, src.len())?;
        check(encoding, rank, cols, dst.len())?;
        let row_bytes = cols * width;
        let groups = src.chunks(GROUP_ROWS * row_bytes).zip(dst.chunks_mut(GROUP_ROWS * row_bytes));
        for (src, mut dst) in groups {
            for at in (0..row_bytes).step_by(GROUP_COLS * width) {
                let len = (GROUP_COLS * width).min(row_bytes - at);
                for row in src.chunks_exact(row_bytes) {
                    let (to, rest) = dst.split_at_mut(len);
                    to.copy_from_slice(&row[at..at + len]);
                    dst = rest;
                }
            }
        }
        Ok(())
    }

    /// Rows: values that it makes.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// How the weights are stored.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// All bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The same matrix, of which no cache will still have a byte when it is read again: on x86 of AMD's from Zen 5 on its bytes are then asked for past
    /// the caches. Bits never depend on it.
    #[inline]
    pub fn read_once(self) -> DownMatrix<'a> {
        DownMatrix { read_once: true, ..self }
    }

    /// Whether [`DownMatrix::read_once`] was said of it.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "such requests are x86's"))]
    pub(crate) fn is_read_once(&self) -> bool {
        self.read_once
    }

    /// `n` rows from row `first` on, which is the first of a group, as a matrix of their own; whole groups, but for the last.
    ///
    /// # Panics
    /// When there are no such groups.
    #[inline]
    pub fn groups(&self, first: usize, n: usize) -> DownMatrix<'a> {
        assert!(first.is_multiple_of(GROUP_ROWS), "a group's first row");
        assert!(n.is_multiple_of(GROUP_ROWS) || first + n == self.rank, "whole groups");
        let row_bytes = self.data.len() / self.rank;
        DownMatrix { rank: n, data: &self.data[first * row_bytes..][..n * row_bytes], ..*self }
    }
}

impl<'a> UpMatrix<'a> {
    /// The matrix in `data`, which [`UpMatrix::pack`] wrote.
    ///
    /// # Errors
    /// As [`DownMatrix::new`].
    #[inline]
    pub fn new(
        encoding: Encoding,
        rows: usize,
        rank: usize,
        data: &'a [u8],
    ) -> Result<UpMatrix<'a>, QuantError> {
        check(encoding, rows, rank, data.len())?;
        Ok(UpMatrix { encoding, rows, rank, data, read_once: false })
    }

    /// Writes the row-major `[rows, rank]` matrix `src` to `dst` in this order; both have as many bytes.
    ///
    /// # Errors
    /// As [`DownMatrix::new`], about either.
    ///
    /// ```
    /// use slm_format::Encoding;
    /// use slm_quant::{Kernels, UpMatrix};
    ///
    /// let rows: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    /// let mut packed = vec![0; rows.len()];
    /// UpMatrix::pack(Encoding::F32, 2, 2, &rows, &mut packed)?;
    /// let b = UpMatrix::new(Encoding::F32, 2, 2, &packed)?;
    /// let mut y = [100.0, 200.0];
    /// Kernels::detect().low_rank_up(&mut y, 0.5, &b, 0, &[1.0, 10.0], 1);
    /// assert_eq!(y, [110.5, 221.5]);
    /// # Ok::<(), slm_quant::QuantError>(())
    /// ```
    pub fn pack(
        encoding: Encoding,
        rows: usize,
        rank: usize,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<(), QuantError> {
        let width = check(encoding, rows, rank, src.len())?;
        check(encoding, rows, rank, dst.len())?;
        match width {
            2 => interleave::<2>(rank, src, dst),
            _ => interleave::<4>(rank, src, dst),
        }
        Ok(())
    }

    /// Rows: outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How the weights are stored.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// All bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The same matrix, of which no cache will still have a byte when it is read again: on x86 of AMD's from Zen 5 on its bytes are then asked for past
    /// the caches. Bits never depend on it.
    #[inline]
    pub fn read_once(self) -> UpMatrix<'a> {
        UpMatrix { read_once: true, ..self }
    }

    /// Whether [`UpMatrix::read_once`] was said of it.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "such requests are x86's"))]
    pub(crate) fn is_read_once(&self) -> bool {
        self.read_once
    }

    /// Bytes from the strip on that row `first` is in.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline]
    pub fn data_from(&self, first: usize) -> &'a [u8] {
        assert!(first < self.rows, "a row of the up-projection");
        &self.data[first / UP_ROWS * UP_ROWS * self.rank * self.encoding.block_bytes()..]
    }

    /// The strips that rows `first .. first + n` are in, in order.
    #[inline(always)]
    pub(crate) fn strips(&self, first: usize, n: usize) -> impl Iterator<Item = Strip<'a>> {
        let (matrix, end) = (*self, first + n);
        let strip_bytes = UP_ROWS * self.rank * self.encoding.block_bytes();
        (first / UP_ROWS..end.div_ceil(UP_ROWS)).map(move |strip| {
            let start = strip * UP_ROWS;
            let skip = first.saturating_sub(start);
            let stride = UP_ROWS.min(matrix.rows - start);
            let bytes = &matrix.data[strip * strip_bytes..];
            Strip { bytes, stride, skip, n_rows: (end - start).min(stride) - skip }
        })
    }
}

/// Rows of one strip: row `i` of them has its element of column `r` at element `r * stride + skip + i`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strip<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) stride: usize,
    pub(crate) skip: usize,
    pub(crate) n_rows: usize,
}

/// [`UpMatrix::pack`] for elements of `WIDTH` bytes.
fn interleave<const WIDTH: usize>(rank: usize, src: &[u8], dst: &mut [u8]) {
    let strip_bytes = UP_ROWS * rank * WIDTH;
    for (src, dst) in src.chunks(strip_bytes).zip(dst.chunks_mut(strip_bytes)) {
        let n_rows = src.len() / (rank * WIDTH);
        let dst = dst.as_chunks_mut::<WIDTH>().0;
        for (row, src) in src.chunks_exact(rank * WIDTH).enumerate() {
            let to = dst[row..].iter_mut().step_by(n_rows);
            src.as_chunks::<WIDTH>().0.iter().zip(to).for_each(|(from, to)| *to = *from);
        }
    }
}

/// Bytes of an element, when the encoding is one of plain floats and the shape needs `bytes`.
#[inline]
fn check(encoding: Encoding, rows: usize, cols: usize, bytes: usize) -> Result<usize, QuantError> {
    if !matches!(encoding, Encoding::F32 | Encoding::F16 | Encoding::BF16) {
        return Err(QuantError::Unusable { encoding, what: "a factor of low rank" });
    }
    let width = encoding.block_bytes();
    let needed = rows.checked_mul(cols).and_then(|n| n.checked_mul(width)).filter(|&n| n > 0);
    let needed = needed.ok_or(QuantError::Shape { encoding, rows, cols })?;
    if bytes != needed {
        return Err(QuantError::Length { what: "a factor of low rank", needed, given: bytes });
    }
    Ok(width)
}

/// Down-projections of one token, at most three, handed out together where they are large.
#[inline]
pub(crate) fn down<const N: usize>(
    kernels: Kernels,
    exec: &dyn Executor,
    outs: [&mut [f32]; N],
    matrices: [&DownMatrix<'_>; N],
    x: &[f32],
) {
    const { assert!(N <= 3, "at most three products together") };
    let (mut all_rows, mut bytes) = (0, 0);
    for (out, matrix) in outs.iter().zip(matrices) {
        assert_eq!(out.len(), matrix.rank, "output of the down-projection");
        assert_eq!(x.len(), matrix.cols, "columns of the down-projection");
        (all_rows, bytes) = (all_rows + matrix.rank, bytes + matrix.data.len());
    }
    if all_rows == 0 {
        return;
    }
    let split = float_units(exec, all_rows, bytes / all_rows);
    if split >= all_rows {
        // Too little to hand over.
        for (out, matrix) in outs.into_iter().zip(matrices) {
            one_down(kernels, out, matrix, x);
        }
        return;
    }
    let mut three: [&mut [f32]; 3] = [&mut [], &mut [], &mut []];
    for (to, out) in three.iter_mut().zip(outs) {
        *to = out;
    }
    exec.for_each_chunk_of(three, [split; 3], &|product, job, out| {
        one_down(kernels, out, &matrices[product].groups(job * split, out.len()), x);
    });
}

fn one_down(kernels: Kernels, out: &mut [f32], matrix: &DownMatrix<'_>, x: &[f32]) {
    tier_call!(kernels, low_rank_down(out, matrix, x));
}

/// Outputs `first ..` of `n_tokens` tokens.
pub(crate) fn up(
    kernels: Kernels,
    y: &mut [f32],
    s: f32,
    b: &UpMatrix<'_>,
    first: usize,
    z: &[f32],
    n_tokens: usize,
) {
    assert_eq!(z.len(), n_tokens * b.rank, "rank of the up-projection");
    if n_tokens == 0 {
        return assert!(y.is_empty(), "outputs of the up-projection");
    }
    if n_tokens == 1 {
        assert!(first + y.len() <= b.rows, "outputs of the up-projection");
        return tier_call!(kernels, low_rank_up(y, s, b, z, first));
    }
    assert!(y.len().is_multiple_of(n_tokens), "outputs of the up-projection");
    let n = y.len() / n_tokens;
    assert!(first + n <= b.rows, "outputs of the up-projection");
    if n == 0 {
        return;
    }
    for (y, z) in y.chunks_exact_mut(n).zip(z.chunks_exact(b.rank)) {
        tier_call!(kernels, low_rank_up(y, s, b, z, first));
    }
}
