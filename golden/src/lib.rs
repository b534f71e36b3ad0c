//! Reference forward pass, vectors and the embedded tiny model.

#[path = "../reference/lib.rs"]
pub mod reference;

pub mod load;

/// RoPE's functions from the `libm` crate, as `docs/numerics.md` names it.
pub const TRIG: reference::Trig =
    reference::Trig { pow: libm::pow, cos: libm::cos, sin: libm::sin };
