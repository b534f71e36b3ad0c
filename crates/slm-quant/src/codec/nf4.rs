//! NF4: bitsandbytes' tensors to our blocks (absmax and 32 bytes of codes), and encoding.
//!
//! bitsandbytes keeps codes and scales in separate tensors, the scales themselves in 8 bits when double-quantized. Double quantization is
//! undone here once, with bitsandbytes' own rounding; codes are never changed, so the weights stay the same f32 values.

use slm_format::Encoding;

use crate::QuantError;
use crate::arch::NF4_VALUES;

/// Elements of a block.
pub const BLOCK: usize = 64;

/// bitsandbytes' second level of quantization: the block scales in 8 bits, in blocks of 256.
#[derive(Debug, Clone, Copy)]
pub struct Nested<'a> {
    /// One byte per NF4 block: an index into `code`.
    pub absmax: &'a [u8],
    /// The 256 values of the dynamic map (`nested_quant_map`).
    pub code: &'a [f32],
    /// One scale per `blocksize` bytes of `absmax` (`nested_absmax`).
    pub nested_absmax: &'a [f32],
    /// Block scales per nested scale; bitsandbytes uses 256.
    pub blocksize: usize,
    /// Added to every scale (`nested_offset`).
    pub offset: f32,
}

/// The 16 values of the code, ascending: `quant_map` must equal them bit for bit.
pub fn code() -> &'static [f32; 16] {
    &NF4_VALUES
}

/// The f32 block scales of a double-quantized tensor: `code[absmax[b]] * nested_absmax[b / blocksize] + offset`, product rounded first.
///
/// # Errors
/// [`QuantError::Length`] when the parts do not fit each other.
pub fn undo_nested(nested: &Nested) -> Result<Vec<f32>, QuantError> {
    check("nested code", 256, nested.code.len())?;
    let blocks = nested.absmax.len().div_ceil(nested.blocksize.max(1));
    check("nested scales", blocks, nested.nested_absmax.len())?;
    let scale = |b: usize| nested.nested_absmax[b / nested.blocksize.max(1)];
    let undo = |(b, &q): (usize, &u8)| nested.code[usize::from(q)] * scale(b) + nested.offset;
    Ok(nested.absmax.iter().enumerate().map(undo).collect())
}

/// Our [`Encoding::NF4`] blocks of a bitsandbytes tensor of block size 64: `packed` is its `weight` (two codes per byte, the first in
/// the high nibble), `absmax` one f32 per block. The element count must be a multiple of 64.
///
/// # Errors
/// [`QuantError::Length`] when `packed` is not whole blocks or `absmax` has another count.
pub fn blocks(packed: &[u8], absmax: &[f32]) -> Result<Vec<u8>, QuantError> {
    let half = BLOCK / 2;
    check("packed codes", packed.len() / half * half, packed.len())?;
    check("block scales", packed.len() / half, absmax.len())?;
    let mut out = Vec::with_capacity(absmax.len() * Encoding::NF4.block_bytes());
    for (codes, absmax) in packed.chunks_exact(half).zip(absmax) {
        out.extend(absmax.to_le_bytes());
        out.extend(codes);
    }
    Ok(out)
}

/// The nearest code of `x` in -1 ..= 1; a tie goes to the lower code.
pub fn nearest(x: f32) -> u8 {
    let above = |i: usize| x > (NF4_VALUES[i] + NF4_VALUES[i + 1]) * 0.5;
    (0..15).take_while(|&i| above(i)).count() as u8
}

/// One block of 64, for `codec::encode`.
pub(super) fn encode_block(x: &[f32], out: &mut Vec<u8>) {
    let absmax = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let inverse = if absmax == 0.0 { 0.0 } else { 1.0 / absmax };
    out.extend(absmax.to_le_bytes());
    // A subnormal absmax has no finite inverse: such a block divides.
    let unit = |x: f32| if inverse.is_finite() { x * inverse } else { x / absmax };
    out.extend(x.chunks_exact(2).map(|x| nearest(unit(x[0])) << 4 | nearest(unit(x[1]))));
}

fn check(what: &'static str, needed: usize, given: usize) -> Result<(), QuantError> {
    if needed == given { Ok(()) } else { Err(QuantError::Length { what, needed, given }) }
}
