//! The compact format: `LORA`, version u8 = 1, rank u16, layers u16, targets u16, target ids u16 each; per layer and target A_rows u16, A_cols
//! u16, A, B_rows u16, B_cols u16, B; last the BLAKE3 of everything before it. Little-endian. It holds no alpha: it is twice the rank.

use slm_format::{ContentHash, Limits, Reader};

use super::{BinaryError, HASH, LoraAdapter, MAGIC, floats, size, to_adapter};
use crate::{Adapter, BaseShape, OverlayError};

const VERSION: u8 = 1;
/// Magic, version, three counts, hash.
const SMALLEST: usize = 4 + 1 + 6 + HASH;
/// Bytes of a pair of rank 1 with one input and one output.
const SMALLEST_PAIR: u64 = 16;

/// A target id of a compact file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is the projection of that name")]
pub enum Target {
    Q,
    K,
    V,
    O,
    Gate,
    Up,
    Down,
}

impl Target {
    const ALL: [Target; 7] =
        [Target::Q, Target::K, Target::V, Target::O, Target::Gate, Target::Up, Target::Down];

    /// The target of an id.
    pub fn from_id(id: u16) -> Option<Target> {
        Target::ALL.get(usize::from(id)).copied()
    }

    /// The middle of its canonical name, as in `blk.0.attn_q.weight`.
    pub fn canonical(self) -> &'static str {
        match self {
            Target::Q => "attn_q",
            Target::K => "attn_k",
            Target::V => "attn_v",
            Target::O => "attn_output",
            Target::Gate => "ffn_gate",
            Target::Up => "ffn_up",
            Target::Down => "ffn_down",
        }
    }
}

/// A compact file, with what its positions mean.
#[derive(Debug, Clone, PartialEq)]
pub struct Compact {
    /// The rank of every pair.
    pub rank: usize,
    /// Layers, from 0.
    pub n_layers: usize,
    /// The targets of each layer, in the file's order, each once.
    pub targets: Vec<Target>,
    /// Layer by layer, in each the targets in order.
    pub adapters: Vec<LoraAdapter>,
}

impl Compact {
    /// Reads a compact file.
    ///
    /// # Errors
    /// [`BinaryError`], the checksum first. What other readers let pass is refused as well: a shape that is not the rank's, a target
    /// twice, rank 0, a value that is not finite.
    pub fn load(bytes: &[u8], limits: &Limits) -> Result<Compact, BinaryError> {
        let (content, hash) = match bytes.split_last_chunk::<HASH>() {
            Some(split) if bytes.len() >= SMALLEST => split,
            _ => return Err(BinaryError::Short { found: bytes.len(), needed: SMALLEST }),
        };
        if !bytes.starts_with(&MAGIC) {
            return Err(BinaryError::Magic);
        }
        if ContentHash::of(content).to_bytes() != *hash {
            return Err(BinaryError::Checksum);
        }
        let mut reader = Reader::new(&content[MAGIC.len()..]);
        let version = reader.array::<1>("version")?[0];
        if version != VERSION {
            let (found, expected) = (version.into(), VERSION.into());
            return Err(BinaryError::Version { found, expected });
        }
        let mut count = |field| Ok::<u16, BinaryError>(u16::from_le_bytes(reader.array(field)?));
        let (rank, n_layers, n_targets) = (count("rank")?, count("layers")?, count("targets")?);
        if rank == 0 {
            return Err(BinaryError::RankZero);
        }
        for (what, found) in [("layers", n_layers), ("targets", n_targets)] {
            if found == 0 {
                return Err(BinaryError::Empty { what });
            }
        }
        let mut targets = Vec::new();
        for _ in 0..n_targets {
            let id = count("target id")?;
            let target = Target::from_id(id).ok_or(BinaryError::TargetId { id })?;
            if targets.contains(&target) {
                return Err(BinaryError::DuplicateTarget { id });
            }
            targets.push(target);
        }
        let n_pairs = u64::from(n_layers) * targets.len() as u64;
        let most = limits.max_tensors.min(reader.remaining() / SMALLEST_PAIR);
        if n_pairs > most {
            return Err(BinaryError::Count { what: "pairs", found: n_pairs, most });
        }
        let mut adapters = Vec::with_capacity(targets.len() * usize::from(n_layers));
        for _ in 0..n_pairs {
            adapters.push(pair(&mut reader, rank)?);
        }
        reader.finish()?;
        let (rank, n_layers) = (usize::from(rank), usize::from(n_layers));
        Ok(Compact { rank, n_layers, targets, adapters })
    }

    /// The tensors that the positions mean, in order.
    pub fn layout(&self) -> Vec<String> {
        let layer = |layer: usize| {
            self.targets
                .iter()
                .map(move |target| format!("blk.{layer}.{}.weight", target.canonical()))
        };
        (0..self.n_layers).flat_map(layer).collect()
    }

    /// The adapter on a base of this shape. The ids are the framework's projections, so rows of q and k are taken to stand in its order, and
    /// are put in the base's.
    ///
    /// # Errors
    /// [`OverlayError::UnknownTensor`] or [`OverlayError::Shape`] when the base has not every target in the right shape;
    /// [`OverlayError::NoTarget`] when no pair changes anything.
    pub fn to_adapter(&self, base: &BaseShape<'_>) -> Result<Adapter, OverlayError> {
        to_adapter(&self.adapters, &self.layout(), base, true)
    }
}

fn pair(reader: &mut Reader<'_>, rank: u16) -> Result<LoraAdapter, BinaryError> {
    let dim = |reader: &mut Reader<'_>, field| {
        Ok::<u32, BinaryError>(u16::from_le_bytes(reader.array(field)?).into())
    };
    let (a_rows, in_dim) = (dim(reader, "A_rows")?, dim(reader, "A_cols")?);
    if a_rows != u32::from(rank) {
        return Err(BinaryError::Rank { field: "A_rows", found: a_rows, expected: rank.into() });
    }
    let a = floats(reader, "A", a_rows.into(), in_dim.into())?;
    let (out_dim, b_cols) = (dim(reader, "B_rows")?, dim(reader, "B_cols")?);
    if b_cols != u32::from(rank) {
        return Err(BinaryError::Rank { field: "B_cols", found: b_cols, expected: rank.into() });
    }
    let b = floats(reader, "B", out_dim.into(), b_cols.into())?;
    if in_dim == 0 || out_dim == 0 {
        return Err(BinaryError::ZeroDimension { in_dim, out_dim });
    }
    Ok(LoraAdapter {
        rank: rank.into(),
        in_dim: size(in_dim),
        out_dim: size(out_dim),
        a,
        b,
        alpha: f32::from(rank) * 2.0,
    })
}
