//! Bytes of blocks to f32 and back.
//!
//! Decoding is exact for every encoding; it is the scalar tier's. Encoders give ggml's own bytes for Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0,
//! round to nearest even for F16 and BF16, and search their own scales for Q4_K and Q6_K.

mod encode;
mod encode_q4_k;
mod encode_q6_k;
pub mod nf4;

use slm_format::Encoding;

use crate::QuantError;
use crate::arch::scalar;

/// Decodes whole blocks of `encoding` to `out`.
///
/// # Errors
/// [`QuantError::Shape`] when `out` is not whole blocks, [`QuantError::Length`] when `bytes` is not exactly their bytes.
///
/// ```
/// use slm_format::Encoding;
/// use slm_quant::codec;
///
/// let bytes = codec::encode(Encoding::BF16, &[1.0, -2.5], 2)?;
/// let mut out = [0.0; 2];
/// codec::decode(Encoding::BF16, &bytes, &mut out)?;
/// assert_eq!(out, [1.0, -2.5]);
/// # Ok::<(), slm_quant::QuantError>(())
/// ```
pub fn decode(encoding: Encoding, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    let shape = QuantError::Shape { encoding, rows: 1, cols: out.len() };
    let needed = encoding.row_bytes(out.len()).ok_or(shape)?;
    if bytes.len() != needed {
        return Err(QuantError::Length { what: "block bytes", needed, given: bytes.len() });
    }
    scalar::decode_row(encoding, out, bytes);
    Ok(())
}

/// Encodes rows of `cols` elements.
///
/// # Errors
/// [`QuantError::Shape`] when a row is not whole blocks, [`QuantError::Length`] when `x` is not whole rows, [`QuantError::NonFinite`] for a
/// NaN or infinity in `x` or a value whose scale overflows f16, [`QuantError::NoEncoder`] for the types that are only read
/// (Q2_K, Q3_K, Q5_K, IQ4_NL, IQ4_XS, MXFP4).
pub fn encode(encoding: Encoding, x: &[f32], cols: usize) -> Result<Vec<u8>, QuantError> {
    let whole = encoding.row_bytes(cols).filter(|&bytes| bytes > 0);
    let row_bytes =
        whole.ok_or(QuantError::Shape { encoding, rows: x.len() / cols.max(1), cols })?;
    if !x.len().is_multiple_of(cols) {
        let needed = x.len() / cols * cols;
        return Err(QuantError::Length { what: "elements", needed, given: x.len() });
    }
    if let Some(at) = x.iter().position(|x| !x.is_finite()) {
        return Err(QuantError::NonFinite { row: at / cols, index: at % cols });
    }
    let block: fn(&[f32], &mut Vec<u8>) = match encoding {
        Encoding::F32 => |x, out| out.extend(x[0].to_le_bytes()),
        Encoding::F16 => |x, out| out.extend(half::f16::from_f32_const(x[0]).to_le_bytes()),
        Encoding::BF16 => |x, out| out.extend(half::bf16::from_f32_const(x[0]).to_le_bytes()),
        Encoding::Q4_0 => encode::q4_0,
        Encoding::Q4_1 => encode::q4_1,
        Encoding::Q5_0 => encode::q5_0,
        Encoding::Q5_1 => encode::q5_1,
        Encoding::Q8_0 => encode::q8_0,
        Encoding::Q4_K => encode_q4_k::q4_k,
        Encoding::Q6_K => encode_q6_k::q6_k,
        Encoding::NF4 => nf4::encode_block,
        _ => return Err(QuantError::NoEncoder { encoding }),
    };
    let mut out = Vec::with_capacity(x.len() / cols * row_bytes);
    for x in x.chunks_exact(encoding.block_elements()) {
        block(x, &mut out);
    }
    let rows = x.len() / cols;
    let overflow = crate::QMatrix::new(encoding, rows, cols, &out)?.check_scales();
    if let Err(QuantError::NonFiniteScale { row, block, .. }) = overflow {
        return Err(QuantError::NonFinite { row, index: block * encoding.block_elements() });
    }
    Ok(out)
}
