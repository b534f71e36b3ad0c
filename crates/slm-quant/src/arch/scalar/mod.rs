//! The executable form of `docs/numerics.md`: plain loops in the order the contract states.

mod attention;
mod blocks;
mod float;
mod product;

pub(crate) use attention::*;
pub(crate) use blocks::{ScaleMin, decode_row, k4_scale_min};
pub(crate) use float::*;
pub(crate) use product::{
    float_strip, int8_interleaved, int8_strip, integer_bounds, lora_strip, quantize_row,
};
