//! The header: read, then trusted.

use super::error::Slm1Error;
use super::{HEADER_BYTES, MAGIC};
use crate::read::{ReadError, Reader};

/// The one flag: the head is the embedding table.
pub const TIED_OUTPUT: u32 = 1;
/// The one version.
pub(super) const VERSION: u32 = 1;
/// The one model type.
pub(super) const MODEL_TYPE: u32 = 1;
/// 256 bytes and four special tokens.
const MIN_VOCAB: u32 = 260;

/// What a header states of the model, before [`Slm1Header::check`]. Offsets and lengths are the writer's business.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the format's own names, with its units")]
pub struct RawHeader {
    /// Bit 0: [`TIED_OUTPUT`].
    pub flags: u32,
    pub vocab_size: u32,
    /// At least 4 beside a `BTOK` section.
    pub special_token_count: u32,
    pub hidden_size: u32,
    pub layer_count: u32,
    pub head_count: u32,
    pub kv_head_count: u32,
    pub head_dim: u32,
    pub ffn_size: u32,
    pub max_context: u32,
    pub rope_theta: f32,
    pub rms_norm_epsilon: f32,
    /// The format's own sum of the file. Not zero; its constants are not public, so that it is kept and not compared.
    pub checksum: u64,
}

/// A header whose fields keep the format's rules. Read through [`core::ops::Deref`]; none can be changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slm1Header(RawHeader);

impl Slm1Header {
    /// Checks the rules of every field.
    ///
    /// # Errors
    /// `slm1-flags`, `slm1-vocab-size`, `slm1-zero-field`, `slm1-heads`, `slm1-constant`, `slm1-checksum`.
    pub fn check(raw: RawHeader) -> Result<Slm1Header, Slm1Error> {
        if raw.flags & !TIED_OUTPUT != 0 {
            return Err(Slm1Error::Flags { found: raw.flags });
        }
        if raw.vocab_size < MIN_VOCAB {
            return Err(Slm1Error::VocabSize { found: raw.vocab_size, least: MIN_VOCAB });
        }
        for (field, found) in [
            ("hidden_size", raw.hidden_size),
            ("layer_count", raw.layer_count),
            ("head_count", raw.head_count),
            ("kv_head_count", raw.kv_head_count),
            ("head_dim", raw.head_dim),
            ("ffn_size", raw.ffn_size),
            ("max_context", raw.max_context),
        ] {
            if found == 0 {
                return Err(Slm1Error::ZeroField { field });
            }
        }
        if !raw.head_count.is_multiple_of(raw.kv_head_count) {
            let (heads, kv_heads) = (raw.head_count, raw.kv_head_count);
            return Err(Slm1Error::Heads { heads, kv_heads });
        }
        for (field, found) in
            [("rope_theta", raw.rope_theta), ("rms_norm_epsilon", raw.rms_norm_epsilon)]
        {
            if !(found.is_finite() && found > 0.0) {
                return Err(Slm1Error::Constant { field, found });
            }
        }
        if raw.checksum == 0 {
            return Err(Slm1Error::Checksum);
        }
        Ok(Slm1Header(raw))
    }

    /// Whether the head is the embedding table.
    pub fn is_tied(&self) -> bool {
        self.0.flags & TIED_OUTPUT != 0
    }
}

impl core::ops::Deref for Slm1Header {
    type Target = RawHeader;

    fn deref(&self) -> &RawHeader {
        &self.0
    }
}

/// Where the parts are.
pub(super) struct Places {
    pub(super) header_length: u32,
    pub(super) tokenizer_offset: u64,
    pub(super) tokenizer_length: u64,
    pub(super) tensor_directory_offset: u64,
    pub(super) tensor_count: u32,
    pub(super) tensor_data_offset: u64,
}

/// Reads the first 108 bytes.
pub(super) fn read(bytes: &[u8]) -> Result<(Slm1Header, Places), Slm1Error> {
    if !bytes.starts_with(&MAGIC) {
        return Err(Slm1Error::Magic { found: bytes[..bytes.len().min(4)].to_vec() });
    }
    let found = bytes.len() as u64;
    fields(&mut Reader::new(bytes))
        .map_err(|_| Slm1Error::Truncated { needed: u64::from(HEADER_BYTES), found })
        .and_then(|(version, model_type, raw, places)| {
            if version != VERSION {
                return Err(Slm1Error::Version { found: version });
            }
            let length = places.header_length;
            if length < HEADER_BYTES || u64::from(length) > found {
                return Err(Slm1Error::HeaderLength { found: length, file_length: found });
            }
            if model_type != MODEL_TYPE {
                return Err(Slm1Error::ModelType { found: model_type });
            }
            Ok((Slm1Header::check(raw)?, places))
        })
}

/// Version, model type, and the rest, in the file's order.
fn fields(reader: &mut Reader<'_>) -> Result<(u32, u32, RawHeader, Places), ReadError> {
    reader.take("magic", 4)?;
    let version = reader.u32("version")?;
    let header_length = reader.u32("header_length")?;
    let model_type = reader.u32("model_type")?;
    let mut raw = RawHeader {
        flags: reader.u32("flags")?,
        vocab_size: reader.u32("vocab_size")?,
        special_token_count: reader.u32("special_token_count")?,
        hidden_size: reader.u32("hidden_size")?,
        layer_count: reader.u32("layer_count")?,
        head_count: reader.u32("head_count")?,
        kv_head_count: reader.u32("kv_head_count")?,
        head_dim: reader.u32("head_dim")?,
        ffn_size: reader.u32("ffn_size")?,
        max_context: reader.u32("max_context")?,
        rope_theta: reader.f32("rope_theta")?,
        rms_norm_epsilon: reader.f32("rms_norm_epsilon")?,
        checksum: 0,
    };
    let places = Places {
        header_length,
        tokenizer_offset: reader.u64("tokenizer_offset")?,
        tokenizer_length: reader.u64("tokenizer_length")?,
        tensor_directory_offset: reader.u64("tensor_directory_offset")?,
        tensor_count: reader.u32("tensor_count")?,
        tensor_data_offset: reader.u64("tensor_data_offset")?,
    };
    raw.checksum = reader.u64("checksum")?;
    Ok((version, model_type, raw, places))
}
