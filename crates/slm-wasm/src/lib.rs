//! slm for JavaScript: the same crates, no second implementation.
//!
//! [`js`] is what JavaScript sees, one class over [`Model`]; `README.md` uses it from Node. [`Model`] is the same in Rust, so that it is tested
//! on every target. Compile with `-C target-feature=+simd128`; relaxed SIMD never, for its results differ between machines.
//!
//! ```
//! use slm_wasm::{Model, Mode};
//!
//! let mut model = Model::open(slm_golden::TINY_Q8_0, None)?;
//! let kjv = (slm_golden::TINY_KJV_CONFIG, slm_golden::TINY_KJV_WEIGHTS);
//! model.add_adapter("kjv", kjv.0, kjv.1)?;
//! let bare = model.logits_digest(&[767, 261, 305], 64, Mode::default())?;
//! model.compose(&[("kjv", 0.7)])?;
//! let under_kjv = model.logits_digest(&[767, 261, 305], 64, Mode::default())?;
//! assert_ne!(under_kjv.logits.all, bare.logits.all);
//! model.compose(&[])?;
//! assert_eq!(model.logits_digest(&[767, 261, 305], 1, Mode::default())?, bare);
//! # Ok::<(), slm_wasm::WasmError>(())
//! ```

mod error;
mod model;

pub mod js;

pub use error::WasmError;
pub use model::{Digest, Mode, Model};
