//! Where the bytes of a matrix stand: row after row as in the file, or sixteen rows interleaved.
//!
//! The interleaved layout is a permutation of the same bytes, made so that one 64-byte load holds four codes of each of sixteen rows.
//! Rows are taken in strips of sixteen, whole strips first; the last `rows % 16` rows stay row-major at the end. Within a strip the
//! blocks (super-blocks of 256 for the K types) follow each other, and within a block the fields, each cut in pieces of 2 or 4 bytes: piece 0 of
//! the sixteen rows, then piece 1 of the sixteen rows, and so on. Each field keeps the packing it has in the file (low nibbles are
//! the first half of a block, high nibbles the second).
//!
//! | encoding | fields of a block, in order: bytes of the row-major block, size of a piece |
//! |---|---|
//! | Q4_0 | d `0..2` by 2, codes `2..18` by 4 |
//! | Q4_1 | d `0..2` by 2, m `2..4` by 2, codes `4..20` by 4 |
//! | Q5_0 | d `0..2` by 2, fifth bits `2..6` by 4, codes `6..22` by 4 |
//! | Q5_1 | d `0..2` by 2, m `2..4` by 2, fifth bits `4..8` by 4, codes `8..24` by 4 |
//! | Q8_0 | d `0..2` by 2, codes `2..34` by 4 |
//! | Q4_K | d `0..2` by 2, dmin `2..4` by 2, scales `4..16` by 4, codes `16..144` by 4 |
//! | Q5_K | d `0..2` by 2, dmin `2..4` by 2, scales `4..16` by 4, fifth bits `16..48` by 4, codes `48..176` by 4 |
//! | Q6_K | d `208..210` by 2, scales `192..208` by 4, low bits `0..128` by 4, high bits `128..192` by 4 |
//!
//! Every other encoding stays row-major: for it the permutation is the identity.

use slm_format::Encoding;

use crate::QuantError;

pub use crate::memory::AlignedBytes;

/// Rows of a strip.
pub const STRIP_ROWS: usize = 16;

/// Room for eight blocks of 32 or a super-block of 256.
pub(crate) const BLOCK_BYTES: usize = 8 * 34;

/// Where the bytes of a matrix stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Row after row, as in the file.
    RowMajor,
    /// Strips of sixteen rows, then the rows left over.
    Interleaved,
}

/// Whether `encoding` has an interleaved layout; for the others [`interleave`] copies.
pub fn is_interleavable(encoding: Encoding) -> bool {
    !fields(encoding).is_empty()
}

/// Bytes of an interleaved matrix: as many as row-major. `None` when a row is empty or not whole blocks, or the size overflows.
pub fn interleaved_bytes(encoding: Encoding, rows: usize, cols: usize) -> Option<usize> {
    encoding.row_bytes(cols).filter(|&bytes| bytes > 0)?.checked_mul(rows)
}

/// Runs the same code for each encoding with that one's fields and block bytes as constants: the pieces become single moves.
macro_rules! by_encoding {
    ($given:expr, |$fields:ident, $unit:ident| $body:block) => {
        by_encoding!(@ $given, $fields, $unit, $body,
            Q4_0 18 Q4_1 20 Q5_0 22 Q5_1 24 Q8_0 34 Q4_K 144 Q5_K 176 Q6_K 210)
    };
    (@ $given:expr, $fields:ident, $unit:ident, $body:block, $($encoding:ident $bytes:literal)*) => {
        match $given {
            $(Encoding::$encoding => {
                let $fields = fields(Encoding::$encoding);
                let $unit = $bytes;
                $body
            })*
            other => unreachable!("BUG: {other} is never interleaved"),
        }
    };
}

/// Permutes the row-major bytes `src` into the interleaved layout.
///
/// Whole strips do not depend on each other: a matrix may be permuted in ranges of rows that start at multiples of [`STRIP_ROWS`].
///
/// # Errors
/// [`QuantError::Shape`] when a row is empty or not whole blocks or the size overflows, [`QuantError::Length`] when `src` or `dst` is not
/// exactly [`interleaved_bytes`] long.
///
/// ```
/// use slm_format::Encoding;
/// use slm_quant::layout;
///
/// let rows: Vec<u8> = (0..17 * 2 * 18).map(|i| i as u8).collect();
/// let (mut strips, mut back) = (vec![0; rows.len()], vec![0; rows.len()]);
/// layout::interleave(Encoding::Q4_0, 17, 64, &rows, &mut strips)?;
/// // The f16 scale of row 1 follows that of row 0.
/// assert_eq!(strips[2..4], rows[36..38]);
/// layout::deinterleave(Encoding::Q4_0, 17, 64, &strips, &mut back)?;
/// assert_eq!(back, rows);
/// # Ok::<(), slm_quant::QuantError>(())
/// ```
pub fn interleave(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    src: &[u8],
    dst: &mut [u8],
) -> Result<(), QuantError> {
    let row_bytes = check(encoding, rows, cols, src, dst)?;
    let strip_bytes = STRIP_ROWS * row_bytes;
    let whole = if fields(encoding).is_empty() { 0 } else { rows / STRIP_ROWS * strip_bytes };
    let (strips, rest) = dst.split_at_mut(whole);
    rest.copy_from_slice(&src[whole..]);
    for (strip, src) in strips.chunks_exact_mut(strip_bytes).zip(src.chunks_exact(strip_bytes)) {
        by_encoding!(encoding, |fields, unit| {
            for (b, block) in strip.chunks_exact_mut(STRIP_ROWS * unit).enumerate() {
                for (r, row) in src.chunks_exact(row_bytes).enumerate() {
                    put(fields, block, r, &row[b * unit..][..unit]);
                }
            }
        });
    }
    Ok(())
}

/// Permutes the interleaved bytes `src` back to row-major: the exact inverse of [`interleave`].
///
/// # Errors
/// As [`interleave`].
pub fn deinterleave(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    src: &[u8],
    dst: &mut [u8],
) -> Result<(), QuantError> {
    let row_bytes = check(encoding, rows, cols, src, dst)?;
    let strip_bytes = STRIP_ROWS * row_bytes;
    let whole = if fields(encoding).is_empty() { 0 } else { rows / STRIP_ROWS * strip_bytes };
    let (strips, rest) = dst.split_at_mut(whole);
    rest.copy_from_slice(&src[whole..]);
    for (dst, strip) in strips.chunks_exact_mut(strip_bytes).zip(src.chunks_exact(strip_bytes)) {
        by_encoding!(encoding, |fields, unit| {
            for (b, block) in strip.chunks_exact(STRIP_ROWS * unit).enumerate() {
                for (r, row) in dst.chunks_exact_mut(row_bytes).enumerate() {
                    take(fields, block, r, &mut row[b * unit..][..unit]);
                }
            }
        });
    }
    Ok(())
}

/// Bytes of a row.
fn check(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    src: &[u8],
    dst: &[u8],
) -> Result<usize, QuantError> {
    let needed = interleaved_bytes(encoding, rows, cols);
    let needed = needed.ok_or(QuantError::Shape { encoding, rows, cols })?;
    for (what, given) in [("bytes to permute", src.len()), ("permuted bytes", dst.len())] {
        if given != needed {
            return Err(QuantError::Length { what, needed, given });
        }
    }
    Ok(encoding.row_bytes(cols).expect("BUG: whole blocks"))
}

/// A run of a block's bytes and how it is cut.
#[derive(Debug, Clone, Copy)]
struct Field {
    /// First byte in the row-major block.
    at: usize,
    len: usize,
    /// 2 or 4.
    piece: usize,
}

/// The fields of a block in the order of the interleaved layout; none where there is no such layout.
#[inline(always)]
fn fields(encoding: Encoding) -> &'static [Field] {
    const fn field(at: usize, end: usize, piece: usize) -> Field {
        Field { at, len: end - at, piece }
    }
    const D: Field = field(0, 2, 2);
    const M: Field = field(2, 4, 2);
    match encoding {
        Encoding::Q4_0 => &const { [D, field(2, 18, 4)] },
        Encoding::Q4_1 => &const { [D, M, field(4, 20, 4)] },
        Encoding::Q5_0 => &const { [D, field(2, 6, 4), field(6, 22, 4)] },
        Encoding::Q5_1 => &const { [D, M, field(4, 8, 4), field(8, 24, 4)] },
        Encoding::Q8_0 => &const { [D, field(2, 34, 4)] },
        Encoding::Q4_K => &const { [D, M, field(4, 16, 4), field(16, 144, 4)] },
        Encoding::Q5_K => &const { [D, M, field(4, 16, 4), field(16, 48, 4), field(48, 176, 4)] },
        Encoding::Q6_K => {
            &const { [field(208, 210, 2), field(192, 208, 4), field(0, 128, 4), field(128, 192, 4)] }
        }
        _ => &[],
    }
}

/// Row `r` of `n` interleaved blocks from block `first` of a strip on, in the row-major order of its bytes.
pub(crate) fn gather(
    encoding: Encoding,
    strip: &[u8],
    first: usize,
    n: usize,
    r: usize,
    out: &mut [u8],
) {
    by_encoding!(encoding, |fields, unit| {
        let blocks = strip.chunks_exact(STRIP_ROWS * unit).skip(first);
        for (block, out) in blocks.zip(out[..n * unit].chunks_exact_mut(unit)) {
            take(fields, block, r, out);
        }
    });
}

/// Row `r` of an interleaved block.
#[inline(always)]
fn take(fields: &[Field], block: &[u8], r: usize, out: &mut [u8]) {
    let mut base = 0;
    for field in fields {
        let (from, to) = (&block[base..], &mut out[field.at..][..field.len]);
        if field.piece == 4 {
            let (to, _) = to.as_chunks_mut::<4>();
            let (from, _) = from.as_chunks::<4>();
            for (to, from) in to.iter_mut().zip(from[r..].iter().step_by(STRIP_ROWS)) {
                *to = *from;
            }
        } else {
            to.copy_from_slice(&from[2 * r..][..2]);
        }
        base += STRIP_ROWS * field.len;
    }
}

/// The inverse of [`take`].
#[inline(always)]
fn put(fields: &[Field], block: &mut [u8], r: usize, row: &[u8]) {
    let mut base = 0;
    for field in fields {
        let (to, from) = (&mut block[base..], &row[field.at..][..field.len]);
        if field.piece == 4 {
            let (to, _) = to.as_chunks_mut::<4>();
            let (from, _) = from.as_chunks::<4>();
            for (to, from) in to[r..].iter_mut().step_by(STRIP_ROWS).zip(from) {
                *to = *from;
            }
        } else {
            to[2 * r..][..2].copy_from_slice(from);
        }
        base += STRIP_ROWS * field.len;
    }
}
