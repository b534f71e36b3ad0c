//! Whether a tier's kernels give the scalar tier's bits: for every encoding and function, at lengths around every boundary, on random and
//! extreme numbers, alone and in batches, in either layout, writing nowhere else.
//!
//! The first check is against the numbers of a program that has nothing to do with this one.
//!
//! An ordinary library, so that the same cases run in slm-quant's tests, under an emulator and as WASM. Each check also digests every bit
//! of the scalar tier: the numbers must be equal on all machines, for the scalar tier is compiled for each.
//!
//! ```
//! use slm_quant::Tier;
//!
//! let [scalar, detected] =
//!     [Tier::Scalar, Tier::detect()].map(|tier| slm_kernel_checks::check_rope(tier).unwrap());
//! assert_eq!(scalar, detected);
//! ```

mod attention;
mod cases;
mod checker;
mod functions;
mod products;
mod random;
mod reference;

pub use attention::{check_attention, check_queries};
pub use cases::{KINDS, Kind, activations, columns, f16_offsets, weights};
pub use checker::{Mismatch, Summary};
pub use functions::{check_exp, check_extremes, check_functions, check_halves, check_rope};
pub use products::{check_low_rank, check_products, check_quantized_rows};
pub use random::Random;
pub use reference::check_reference;

use slm_format::Encoding;
use slm_quant::{Kernels, Tier};

/// A check of one tier.
pub type Check = fn(Tier) -> Result<Summary, Mismatch>;

/// Every check and its name.
pub const CHECKS: [(&str, Check); 11] = [
    ("reference", check_reference),
    ("products", check_products),
    ("quantized-rows", check_quantized_rows),
    ("low-rank", check_low_rank),
    ("functions", check_functions),
    ("extremes", check_extremes),
    ("halves", check_halves),
    ("exp", check_exp),
    ("rope", check_rope),
    ("attention", check_attention),
    ("queries", check_queries),
];

/// Runs every check on every tier of this machine: a line `tier kernel check cases values digest` for each.
///
/// # Errors
/// The first mismatch.
pub fn report() -> Result<String, Mismatch> {
    let mut lines = String::new();
    for tier in Tier::available() {
        let kernel =
            Kernels::with_tier(tier).map_or("none", |k| k.kernel_name(Encoding::Q4_0, true));
        for (name, check) in CHECKS {
            let Summary { cases, values, digest } = check(tier)?;
            lines += &format!("{} {kernel} {name} {cases} {values} {digest:016x}\n", tier.name());
        }
    }
    Ok(lines)
}
