//! "Plan 008": `LORA`, version u32 = 1, BLAKE3 of the payload (magic and version are not covered), then the payload: number of pairs u32, rank
//! u32, alpha f32, and per pair in_dim u32, out_dim u32, A `[rank, in]`, B `[out, rank]`. Everything little-endian.

use slm_format::{ContentHash, Limits, Reader};

use super::{BinaryError, HASH, LoraAdapter, MAGIC, floats, size};
use crate::shape::{EMBEDDING, HEAD};
use crate::{Adapter, AdapterKind};

const VERSION: u32 = 1;
/// Bytes of a pair without its factors.
const SMALLEST_PAIR: u64 = 8;

/// The first pair of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct FirstAdapter {
    /// The pair.
    pub adapter: LoraAdapter,
    /// Pairs of the file that are not in here. Where this is not 0, the adapter is not the file's.
    pub dropped: usize,
}

pub(super) fn load(bytes: &[u8], limits: &Limits) -> Result<Vec<LoraAdapter>, BinaryError> {
    let mut reader = Reader::new(bytes);
    if reader.array::<4>("magic")? != MAGIC {
        return Err(BinaryError::Magic);
    }
    let version = reader.u32("version")?;
    if version != VERSION {
        return Err(match version.swap_bytes() {
            VERSION => BinaryError::BigEndian,
            _ => BinaryError::Version { found: version, expected: VERSION },
        });
    }
    let hash = reader.array::<HASH>("hash")?;
    let payload = &bytes[reader.position() as usize..];
    if ContentHash::of(payload).to_bytes() != hash {
        return Err(BinaryError::Checksum);
    }
    let n_adapters = reader.u32("number of adapters")?;
    let rank = reader.u32("rank")?;
    let alpha = f32::from_le_bytes(reader.array("alpha")?);
    if n_adapters == 0 {
        return Err(BinaryError::Empty { what: "adapters" });
    }
    if rank == 0 {
        return Err(BinaryError::RankZero);
    }
    if !alpha.is_finite() {
        return Err(BinaryError::Alpha { alpha });
    }
    let most = limits.max_tensors.min(reader.remaining() / SMALLEST_PAIR);
    if u64::from(n_adapters) > most {
        return Err(BinaryError::Count { what: "adapters", found: n_adapters.into(), most });
    }
    let mut adapters = Vec::with_capacity(size(n_adapters));
    for _ in 0..n_adapters {
        let (in_dim, out_dim) = (reader.u32("in_dim")?, reader.u32("out_dim")?);
        if in_dim == 0 || out_dim == 0 {
            return Err(BinaryError::ZeroDimension { in_dim, out_dim });
        }
        let a = floats(&mut reader, "A", rank.into(), in_dim.into())?;
        let b = floats(&mut reader, "B", out_dim.into(), rank.into())?;
        let (rank, in_dim, out_dim) = (size(rank), size(in_dim), size(out_dim));
        adapters.push(LoraAdapter { rank, in_dim, out_dim, a, b, alpha });
    }
    reader.finish()?;
    adapters[0].scale()?;
    Ok(adapters)
}

pub(super) fn load_first(bytes: &[u8], limits: &Limits) -> Result<FirstAdapter, BinaryError> {
    let mut adapters = load(bytes, limits)?;
    let dropped = adapters.len() - 1;
    Ok(FirstAdapter { adapter: adapters.swap_remove(0), dropped })
}

pub(super) fn save(
    adapters: &[&LoraAdapter],
    rank: usize,
    alpha: f32,
) -> Result<Vec<u8>, BinaryError> {
    if adapters.is_empty() {
        return Err(BinaryError::Empty { what: "adapters" });
    }
    if rank == 0 {
        return Err(BinaryError::RankZero);
    }
    if !alpha.is_finite() {
        return Err(BinaryError::Alpha { alpha });
    }
    let narrow = |what: &'static str, found: usize| {
        u32::try_from(found).map_err(|_| BinaryError::Count {
            what,
            found: found as u64,
            most: u32::MAX.into(),
        })
    };
    let mut payload = Vec::new();
    payload.extend(narrow("adapters", adapters.len())?.to_le_bytes());
    payload.extend(narrow("ranks", rank)?.to_le_bytes());
    payload.extend(alpha.to_le_bytes());
    for (index, adapter) in adapters.iter().enumerate() {
        if adapter.rank != rank {
            return Err(BinaryError::MixedRank { index, found: adapter.rank, expected: rank });
        }
        if adapter.alpha.to_bits() != alpha.to_bits() {
            return Err(BinaryError::MixedAlpha { index, found: adapter.alpha, expected: alpha });
        }
        let (in_dim, out_dim) =
            (narrow("inputs", adapter.in_dim)?, narrow("outputs", adapter.out_dim)?);
        if in_dim == 0 || out_dim == 0 {
            return Err(BinaryError::ZeroDimension { in_dim, out_dim });
        }
        payload.extend(in_dim.to_le_bytes());
        payload.extend(out_dim.to_le_bytes());
        for (field, values, other) in
            [("A", &adapter.a, adapter.in_dim), ("B", &adapter.b, adapter.out_dim)]
        {
            if rank.checked_mul(other) != Some(values.len()) {
                return Err(BinaryError::Length { field, found: values.len(), rank, other });
            }
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                return Err(BinaryError::NonFinite { field, index: at as u64, value: values[at] });
            }
            values.iter().for_each(|value| payload.extend(value.to_le_bytes()));
        }
    }
    let mut bytes = Vec::with_capacity(40 + payload.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(ContentHash::of(&payload).to_bytes());
    bytes.extend(payload);
    Ok(bytes)
}

/// A Plan 008 file of a LoRA adapter, and the layout that says which tensors its positions mean; rows in the base's order, factors in f32.
///
/// The file holds one rank and one alpha. Pairs of a lower rank are filled up with zeros, which add nothing, and a pair whose scale is
/// another than the first one's has the quotient multiplied into B: so rsLoRA and rank and alpha patterns come out as numbers, each rounded
/// once, and are never lost.
///
/// # Errors
/// [`BinaryError::Kind`] for an adapter that is not plain LoRA, or not on linear modules of blocks alone; as [`LoraAdapter::save`].
pub fn to_plan008(adapter: &Adapter) -> Result<(Vec<u8>, Vec<String>), BinaryError> {
    let kind = match adapter.kind() {
        AdapterKind::Lora => "LoRA with biases",
        other => other.name(),
    };
    let modules = adapter.plain_lora().ok_or(BinaryError::Kind { kind })?;
    // A reader takes positions for linear modules of blocks, and would refuse these.
    if modules.iter().any(|module| [EMBEDDING, HEAD].contains(&module.target.as_str())) {
        return Err(BinaryError::Kind { kind: "LoRA on the embedding table or the head" });
    }
    let rank = size(adapter.max_rank());
    let scale = modules.iter().map(|module| module.scale).find(|&scale| scale != 0.0);
    let scale = scale.unwrap_or(1.0);
    let alpha = (f64::from(scale) * rank as f64) as f32;
    // What a reader makes of alpha again.
    let stored = (f64::from(alpha) / rank as f64) as f32;
    if !alpha.is_finite() || stored == 0.0 {
        return Err(BinaryError::Alpha { alpha });
    }
    let mut adapters = Vec::with_capacity(modules.len());
    for module in &modules {
        let own = size(module.rank());
        let (in_dim, out_dim) = (size(module.a.cols()), size(module.b.rows()));
        let mut a: Vec<f32> = module.a.values().collect();
        a.resize(rank * in_dim, 0.0);
        let mut b = vec![0.0; out_dim * rank];
        let mut values = module.b.values();
        for row in b.chunks_exact_mut(rank) {
            row[..own].iter_mut().zip(&mut values).for_each(|(to, value)| *to = value);
        }
        if module.scale.to_bits() != stored.to_bits() {
            let factor = f64::from(module.scale) / f64::from(stored);
            b.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
        }
        adapters.push(LoraAdapter { rank, in_dim, out_dim, a, b, alpha });
    }
    let file = save(&adapters.iter().collect::<Vec<_>>(), rank, alpha)?;
    Ok((file, modules.iter().map(|module| module.target.clone()).collect()))
}
