//! The forward pass, to be read beside `golden/reference`.

mod attention;
mod block;
mod forward;
mod overlays;
mod rope;
mod scaled;
mod scratch;

pub(crate) use attention::scores_len;
pub(crate) use forward::{Lane, Pass, Wanted};
pub(crate) use overlays::Overlays;
pub(crate) use rope::Rope;
pub(crate) use scratch::{Blocks, HEAD_BATCH, Scratch};
