//! The executable form of `docs/numerics.md`: plain loops in the order the contract states.

mod attention;
mod blocks;
mod float;
mod low_rank;
mod product;

pub(crate) use attention::*;
pub(crate) use blocks::{ScaleMin, decode_row, k4_scale_min};
pub(crate) use float::*;
pub(crate) use low_rank::{low_rank_down, low_rank_strip, low_rank_up};
pub(crate) use product::{float_strip, int8_interleaved, int8_strip, integer_bounds, quantize_row};
