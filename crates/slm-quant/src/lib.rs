//! Block codecs, the numerics contract, and kernels with the same bits on every CPU tier.
//!
//! The arithmetic is fixed by `docs/numerics.md`. [`Tier::Scalar`] is its executable form; every other tier gives equal bits, and so
//! does every [`Executor`], whatever its number of workers. The crate knows no files and no models: it multiplies a [`QMatrix`] over
//! borrowed bytes with rows of `f32`.
//!
//! Equal bits assume the floating-point environment a thread starts in: rounding to nearest even, denormals on.
//!
//! ```
//! use slm_format::Encoding;
//! use slm_quant::{Inline, Kernels, QMatrix, QuantizedRows, codec};
//!
//! let kernels = Kernels::detect();
//! let weights: Vec<f32> = (0..4 * 64).map(|i| (i % 7) as f32 - 3.0).collect();
//! let bytes = codec::encode(Encoding::Q8_0, &weights, 64)?;
//! let w = QMatrix::new(Encoding::Q8_0, 4, 64, &bytes)?;
//! w.check_scales()?;
//!
//! let x = vec![0.5f32; 64];
//! let mut xq = QuantizedRows::new();
//! xq.quantize(kernels, &x, 64)?;
//! let mut out = vec![0.0f32; 4];
//! kernels.matmul(&Inline, &mut out, &w, &x, Some(&xq));
//! assert!(out.iter().all(|y| y.is_finite()));
//! # Ok::<(), slm_quant::QuantError>(())
//! ```

mod error;
mod exec;
mod kernels;
mod low_rank;
mod matmul;
mod matrix;
mod memory;
mod queries;
mod rows;
mod tier;

pub mod codec;
pub mod layout;

mod arch;

pub use error::QuantError;
#[cfg(feature = "rayon")]
pub use exec::RayonExecutor;
pub use exec::{Executor, Inline};
pub use kernels::Kernels;
pub use layout::Layout;
pub use low_rank::{DownMatrix, UpMatrix};
pub use matmul::{Ahead, Piece, Then, ThenPair};
pub use matrix::QMatrix;
pub use memory::last_cache_bytes;
pub use queries::Queries;
pub use rows::QuantizedRows;
pub use tier::Tier;
