//! Writing SLM1: one way to lay out the same parts, so that what was written, read, and written again is the same file.

use std::io::Write;

use super::error::Slm1Error;
use super::header::{MODEL_TYPE, Slm1Header, VERSION};
use super::tensor::Slm1Tensor;
use super::{ALIGNMENT, ENTRY_BYTES, HEADER_BYTES, MAGIC};

/// Where scales go. Which of the two the format's own writer does is not public; both give files of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleOrder {
    /// Behind the values of each tensor.
    PerTensor,
    /// Behind the values of all tensors.
    Last,
}

/// Writes a file and gives its length: header, `extension`, `tokenizer`, and from there every part at the next multiple of 64, the end too,
/// with zeros between. Tensors stand in the order given; what they hold is checked as a reader checks it, before anything is written.
///
/// # Errors
/// `slm1-special-tokens`, `slm1-duplicate-tensor`, and the rules of an entry: `slm1-rank`, `slm1-dims`, `slm1-block-size`, `slm1-byte-length`,
/// `slm1-scale-offset`, `slm1-scale`, `slm1-overflow`; `slm1-write-io` where the output fails.
pub fn write(
    out: &mut dyn Write,
    header: &Slm1Header,
    extension: &[u8],
    tokenizer: &[u8],
    tensors: &[Slm1Tensor<'_>],
    order: ScaleOrder,
) -> Result<u64, Slm1Error> {
    check(header, tokenizer, tensors)?;
    let overflow = || Slm1Error::Overflow { index: tensors.len() as u64, dims: [0; 4] };
    let count = u32::try_from(tensors.len()).map_err(|_| overflow())?;
    let header_length =
        u32::try_from(extension.len()).ok().and_then(|len| len.checked_add(HEADER_BYTES));
    let header_length = header_length.ok_or_else(overflow)?;

    let mut file = Placer { end: u64::from(header_length) };
    let tokenizer_offset = file.append(tokenizer.len() as u64).ok_or_else(overflow)?;
    let directory = file.place(u64::from(count) * ENTRY_BYTES).ok_or_else(overflow)?;
    let data = file.place(0).ok_or_else(overflow)?;
    let mut places = vec![(0, 0); tensors.len()];
    let mut parts: Vec<(u64, &[u8])> = Vec::new();
    let passes: &[(bool, bool)] = match order {
        ScaleOrder::PerTensor => &[(true, true)],
        ScaleOrder::Last => &[(true, false), (false, true)],
    };
    for &(values, scales) in passes {
        for (tensor, place) in tensors.iter().zip(&mut places) {
            if values {
                place.0 = file.place(tensor.values.len() as u64).ok_or_else(overflow)?;
                parts.push((place.0, tensor.values));
            }
            if scales && !tensor.scales.is_empty() {
                place.1 = file.place(tensor.scales.len() as u64).ok_or_else(overflow)?;
                parts.push((place.1, tensor.scales));
            }
        }
    }
    let end = file.place(0).ok_or_else(overflow)?;

    let head = head_bytes(
        header,
        header_length,
        [tokenizer_offset, tokenizer.len() as u64, directory],
        count,
        data,
    );
    let entries = entry_bytes(tensors, &places);
    let first =
        [(0, &head[..]), (u64::from(HEADER_BYTES), extension), (tokenizer_offset, tokenizer)];
    let mut at = 0;
    for (offset, bytes) in first.into_iter().chain([(directory, &entries[..])]).chain(parts) {
        pad(out, &mut at, offset)?;
        out.write_all(bytes)?;
        at += bytes.len() as u64;
    }
    pad(out, &mut at, end)?;
    Ok(end)
}

fn check(
    header: &Slm1Header,
    tokenizer: &[u8],
    tensors: &[Slm1Tensor<'_>],
) -> Result<(), Slm1Error> {
    if tokenizer.starts_with(b"BTOK") && header.special_token_count < 4 {
        return Err(Slm1Error::SpecialTokens { found: header.special_token_count });
    }
    let mut hashes = std::collections::BTreeMap::new();
    for (index, tensor) in (0u64..).zip(tensors) {
        let (expected, scale_bytes) = tensor.lengths(index)?;
        let found = tensor.values.len() as u64;
        if found != expected {
            return Err(Slm1Error::ByteLength { index, found, expected });
        }
        if tensor.scales.len() as u64 != scale_bytes {
            let (found, dtype) = (tensor.scales.len() as u64, tensor.dtype);
            return Err(Slm1Error::ScaleOffset { index, found, dtype });
        }
        tensor.check_scales(index)?;
        if let Some(first) = hashes.insert(tensor.name_hash, index) {
            return Err(Slm1Error::DuplicateTensor { first, index, hash: tensor.name_hash });
        }
    }
    Ok(())
}

/// The end of what has a place.
struct Placer {
    end: u64,
}

impl Placer {
    /// The offset of `length` bytes right behind the rest.
    fn append(&mut self, length: u64) -> Option<u64> {
        let offset = self.end;
        self.end = offset.checked_add(length)?;
        Some(offset)
    }

    /// The offset of `length` bytes at the next multiple of 64.
    fn place(&mut self, length: u64) -> Option<u64> {
        self.end = self.end.checked_next_multiple_of(ALIGNMENT)?;
        self.append(length)
    }
}

fn head_bytes(
    header: &Slm1Header,
    header_length: u32,
    [tokenizer, tokenizer_length, directory]: [u64; 3],
    count: u32,
    data: u64,
) -> Vec<u8> {
    let h = header;
    let mut bytes = MAGIC.to_vec();
    for field in [
        VERSION,
        header_length,
        MODEL_TYPE,
        h.flags,
        h.vocab_size,
        h.special_token_count,
        h.hidden_size,
        h.layer_count,
        h.head_count,
        h.kv_head_count,
        h.head_dim,
        h.ffn_size,
        h.max_context,
        h.rope_theta.to_bits(),
        h.rms_norm_epsilon.to_bits(),
    ] {
        bytes.extend(field.to_le_bytes());
    }
    for field in [tokenizer, tokenizer_length, directory] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(count.to_le_bytes());
    bytes.extend(data.to_le_bytes());
    bytes.extend(h.checksum.to_le_bytes());
    bytes
}

fn entry_bytes(tensors: &[Slm1Tensor<'_>], places: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(tensors.len() * ENTRY_BYTES as usize);
    for (tensor, &(values, scales)) in tensors.iter().zip(places) {
        bytes.extend(tensor.name_hash.to_le_bytes());
        bytes.extend(tensor.dtype.number().to_le_bytes());
        bytes.extend(tensor.rank.to_le_bytes());
        tensor.dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        for field in [values, tensor.values.len() as u64, scales] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(tensor.block_size.to_le_bytes());
        bytes.extend(tensor.reserved.to_le_bytes());
    }
    bytes
}

/// Zeros from `at` to `offset`, fewer than 64.
fn pad(out: &mut dyn Write, at: &mut u64, offset: u64) -> Result<(), Slm1Error> {
    let count = (offset - *at) as usize;
    out.write_all(&[0; ALIGNMENT as usize][..count])?;
    *at = offset;
    Ok(())
}
