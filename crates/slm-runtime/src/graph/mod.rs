//! The forward pass, to be read beside `golden/reference`.

mod attention;
mod forward;
mod overlays;
mod rope;
mod scratch;

pub(crate) use forward::{Pass, Wanted};
pub(crate) use overlays::Overlays;
pub(crate) use rope::Rope;
pub(crate) use scratch::Scratch;
