//! What can go wrong with a cache.

use slm_format::{Coded, ErrorClass};
use slm_manifest::ExecutionId;

/// An operation that a cache refused. Nothing that was visible before has changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The geometry cannot be.
    #[error("cache geometry: {field} is {found}, expected {expected}")]
    Geometry {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it must be.
        expected: &'static str,
    },
    /// The cache belongs to another execution.
    #[error("the cache holds positions of execution {cache}, the call is for {call}")]
    WrongExecution {
        /// The execution the cache was made for.
        cache: ExecutionId,
        /// The execution the caller named.
        call: ExecutionId,
    },
    /// More positions than the cache may hold.
    #[error("the cache holds {capacity} positions; {used} are used and {wanted} more are wanted")]
    Full {
        /// Positions the cache may hold.
        capacity: u32,
        /// Positions already written.
        used: u32,
        /// Positions wanted on top.
        wanted: u64,
    },
    /// The memory of a page or of a table could not be had.
    #[error("no memory for {bytes} bytes of cache")]
    Memory {
        /// Bytes wanted.
        bytes: u64,
    },
    /// There is no such layer.
    #[error("layer {layer} of a cache of {n_layers} layers")]
    Layer {
        /// The layer asked for.
        layer: usize,
        /// Layers of the cache.
        n_layers: usize,
    },
    /// K and V are not the same whole number of rows.
    #[error("layer {layer}: k has {k} and v has {v} values, expected the same multiple of {width}")]
    Shape {
        /// The layer.
        layer: usize,
        /// Values in k.
        k: usize,
        /// Values in v.
        v: usize,
        /// Width of a row.
        width: usize,
    },
    /// A value that the cache's type cannot hold as a finite number.
    #[error(
        "{half} of layer {layer}, position {position}, channel {channel} is {value}, not finite in the cache's type"
    )]
    NonFinite {
        /// `k` or `v`.
        half: &'static str,
        /// The layer.
        layer: usize,
        /// The position.
        position: u32,
        /// The channel within the row.
        channel: usize,
        /// The value before rounding.
        value: f32,
    },
    /// A commit that not every layer has rows for.
    #[error("commit to {len} positions, but layer {layer} has {written}")]
    Uneven {
        /// Positions after the commit.
        len: u64,
        /// The first layer that has another number.
        layer: usize,
        /// Positions that layer has.
        written: u32,
    },
    /// A range of positions that the layer does not have.
    #[error("positions {start}..{end} of layer {layer}, which has {written}")]
    Range {
        /// The layer.
        layer: usize,
        /// First position asked for.
        start: u32,
        /// One past the last position asked for.
        end: u32,
        /// Positions the layer has.
        written: u32,
    },
}

impl Coded for KvError {
    fn code(&self) -> &'static str {
        match self {
            KvError::Geometry { .. } => "kv-geometry",
            KvError::WrongExecution { .. } => "kv-wrong-execution",
            KvError::Full { .. } => "kv-full",
            KvError::Memory { .. } => "kv-memory",
            KvError::Layer { .. } => "kv-layer",
            KvError::Shape { .. } => "kv-shape",
            KvError::NonFinite { .. } => "kv-non-finite",
            KvError::Uneven { .. } => "kv-uneven",
            KvError::Range { .. } => "kv-range",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            KvError::Full { .. } | KvError::Memory { .. } => ErrorClass::Budget,
            _ => ErrorClass::Refused,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            KvError::Full { .. } => {
                Some("start a session with a longer context, or shorten the prompt".into())
            }
            KvError::WrongExecution { .. } => Some(
                "a cache serves one composition under one execution profile; make a new one".into(),
            ),
            _ => None,
        }
    }
}
