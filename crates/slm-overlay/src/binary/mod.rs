//! Two binary LoRA formats that share a magic and nothing else: "Plan 008" and the compact one. Neither names a tensor, a layer or a base.
//!
//! [`LoraAdapter`] is their reader and writer over bytes; [`Layout`] says which tensors the positions of a Plan 008 file mean, and turns the
//! factors into an [`Adapter`]. Alpha is stored raw, and the scale is `alpha / rank`, once.
//!
//! ```
//! use slm_format::Limits;
//! use slm_overlay::binary::LoraAdapter;
//!
//! let adapter = LoraAdapter { rank: 1, in_dim: 2, out_dim: 3, a: vec![1.0, 2.0], b: vec![3.0, 4.0, 5.0], alpha: 2.0 };
//! let file = LoraAdapter::save(&[&adapter], 1, 2.0)?;
//! assert_eq!(LoraAdapter::load(&file, &Limits::STANDARD)?, [adapter]);
//! # Ok::<(), slm_overlay::binary::BinaryError>(())
//! ```

use std::borrow::Cow;

use slm_format::{ContentHash, Encoding, Limits, Reader};

use crate::kind::expect_effect;
use crate::{Adapter, BaseShape, Factor, LoraModule, OverlayError};

mod compact;
mod error;
mod layout;
mod plan008;

pub use compact::{Compact, Target};
pub use error::BinaryError;
pub use layout::Layout;
pub use plan008::{FirstAdapter, to_plan008};

/// The magic of both formats.
const MAGIC: [u8; 4] = *b"LORA";
/// Bytes of a BLAKE3 hash.
const HASH: usize = 32;

/// One low-rank pair, as the files hold it: `y += (alpha / rank) * B(A x)`.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraAdapter {
    /// Rank, at least 1.
    pub rank: usize,
    /// Inputs.
    pub in_dim: usize,
    /// Outputs.
    pub out_dim: usize,
    /// Down-projection, `[rank, in_dim]`, row-major.
    pub a: Vec<f32>,
    /// Up-projection, `[out_dim, rank]`, row-major.
    pub b: Vec<f32>,
    /// Alpha as it is stored, not divided by the rank.
    pub alpha: f32,
}

/// Which of the two formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinaryFormat {
    /// One rank and one alpha for all; version in four bytes; hash at byte 8.
    Plan008,
    /// Layers times target ids; version in one byte; hash at the end.
    Compact,
}

impl BinaryFormat {
    /// Which format `bytes` are in, by where their hash stands; where neither hash is right, by the width of the version. `None` without the
    /// magic. A version of one byte and one of four cannot be told apart in every file, the place of the hash can.
    pub fn detect(bytes: &[u8]) -> Option<BinaryFormat> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let payload = bytes.get(40..).unwrap_or(&[]);
        if bytes.get(8..40) == Some(&ContentHash::of(payload).to_bytes()[..]) {
            return Some(BinaryFormat::Plan008);
        }
        if let Some((content, hash)) = bytes.split_last_chunk::<HASH>()
            && ContentHash::of(content).to_bytes() == *hash
        {
            return Some(BinaryFormat::Compact);
        }
        match rest.starts_with(&[1, 0, 0, 0]) {
            true => Some(BinaryFormat::Plan008),
            false => Some(BinaryFormat::Compact),
        }
    }
}

impl LoraAdapter {
    /// All pairs of a Plan 008 file, in declaration order.
    ///
    /// # Errors
    /// [`BinaryError`]; nothing is reserved before it is known to be in the file.
    pub fn load(bytes: &[u8], limits: &Limits) -> Result<Vec<LoraAdapter>, BinaryError> {
        plan008::load(bytes, limits)
    }

    /// The first pair of a Plan 008 file, and how many it leaves behind. The whole file is checked.
    ///
    /// # Errors
    /// As [`LoraAdapter::load`].
    pub fn load_first(bytes: &[u8], limits: &Limits) -> Result<FirstAdapter, BinaryError> {
        plan008::load_first(bytes, limits)
    }

    /// The pairs of a compact file, layer by layer and in each in the order of its targets. Alpha is twice the rank. [`Compact::load`] also
    /// gives the layers and targets.
    ///
    /// # Errors
    /// As [`Compact::load`].
    pub fn load_from_bin(bytes: &[u8], limits: &Limits) -> Result<Vec<LoraAdapter>, BinaryError> {
        Ok(Compact::load(bytes, limits)?.adapters)
    }

    /// A Plan 008 file of these pairs; the reverse of [`LoraAdapter::load`], byte for byte.
    ///
    /// # Errors
    /// [`BinaryError`]: no pairs, a pair of another rank or alpha (the file holds each once), lengths that are not what the dimensions
    /// need, a value that is not finite.
    pub fn save(
        adapters: &[&LoraAdapter],
        rank: usize,
        alpha: f32,
    ) -> Result<Vec<u8>, BinaryError> {
        plan008::save(adapters, rank, alpha)
    }

    /// `alpha / rank`, in f64, rounded once.
    ///
    /// # Errors
    /// [`BinaryError::Alpha`] where that is not finite.
    pub fn scale(&self) -> Result<f32, BinaryError> {
        let scale = (f64::from(self.alpha) / self.rank as f64) as f32;
        match scale.is_finite() {
            true => Ok(scale),
            false => Err(BinaryError::Alpha { alpha: self.alpha }),
        }
    }

    /// The module that this pair is on the tensor `target` of the base, its rows of B taken in the order `row` says.
    fn module(
        &self,
        target: &str,
        row: impl Fn(usize) -> usize,
    ) -> Result<LoraModule, OverlayError> {
        let factor = |half: &str, rows: usize, cols: usize, values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let name = format!("{target}.{half}");
            Factor::new(&name, Encoding::F32, rows as u64, cols as u64, Cow::Owned(bytes))
        };
        Ok(LoraModule {
            target: target.into(),
            scale: self.scale()?,
            a: factor("lora_a", self.rank, self.in_dim, &self.a)?,
            b: factor("lora_b", self.out_dim, self.rank, &self.b)?.with_rows(row),
        })
    }
}

/// Every pair on its tensor, in the shape that the base has there.
fn to_adapter(
    pairs: &[LoraAdapter],
    targets: &[String],
    base: &BaseShape<'_>,
    framework_rows: bool,
) -> Result<Adapter, OverlayError> {
    let modules = pairs.iter().zip(targets).map(|(pair, target)| {
        let Some((rows, cols)) = base.linear(target) else {
            let (tensor, module) = (format!("{target}.lora_a"), target.clone());
            return Err(OverlayError::UnknownTensor { tensor, module });
        };
        let rank = pair.rank as u64;
        for (half, found, expected) in [
            ("lora_a", [rank, pair.in_dim as u64], [rank, cols]),
            ("lora_b", [pair.out_dim as u64, rank], [rows, rank]),
        ] {
            if found != expected {
                let (tensor, found, expected) =
                    (format!("{target}.{half}"), found.into(), expected.into());
                return Err(OverlayError::Shape { tensor, found, expected });
            }
        }
        pair.module(target, |row| if framework_rows { base.row_source(target, row) } else { row })
    });
    let adapter = Adapter::lora(modules.collect::<Result<_, _>>()?)?;
    expect_effect(adapter.modules())?;
    Ok(adapter)
}

/// `rows * cols` finite floats; reserved only when they are there.
fn floats(
    reader: &mut Reader<'_>,
    field: &'static str,
    rows: u64,
    cols: u64,
) -> Result<Vec<f32>, BinaryError> {
    let bytes = rows
        .checked_mul(cols)
        .and_then(|n| n.checked_mul(4))
        .ok_or(BinaryError::Dimensions { field, rows, cols, left: reader.remaining() })?;
    let left = reader.remaining();
    let taken = reader.take(field, bytes).map_err(|_| BinaryError::Dimensions {
        field,
        rows,
        cols,
        left,
    })?;
    let values: Vec<f32> =
        taken.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(at) => Err(BinaryError::NonFinite { field, index: at as u64, value: values[at] }),
    }
}

/// A count that came from 32 bits or fewer.
fn size(value: u32) -> usize {
    usize::try_from(value).expect("BUG: usize has fewer than 32 bits")
}
