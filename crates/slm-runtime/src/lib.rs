//! Model graphs, tokenizers, sampling, generation, and the activation of compositions.
//!
//! This is where the crates meet. It does not know terminals, HTTP, paths, clocks or threads: bytes, times and an executor come from the
//! caller. (The feature `clock` lets a draining switch wait by the system's clock where the caller gives none.)
//!
//! A [`load::Base`] is one verified, immutable model; a [`Composition`] is a base under an ordered stack of adapters; a [`Session`] runs one; a
//! [`Runtime`] keeps them in a store and switches between them. `examples/switch.rs` shows the whole way.
//!
//! ```
//! use std::sync::Arc;
//!
//! use slm_format::Limits;
//! use slm_manifest::ExecutionProfile;
//! use slm_runtime::load::Base;
//! use slm_runtime::{Composition, Engine, Session};
//!
//! let engine = Engine::inline();
//! let file = Arc::new(slm_golden::TINY_Q8_0);
//! let base = Base::open(file, &Limits::STANDARD, engine.kernels, &*engine.exec)?;
//! let composition = Arc::new(Composition::bare(Arc::new(base))?);
//! let mut session = Session::new(composition, ExecutionProfile::DEFAULT, engine)?;
//! let logits = session.advance(&[10, 20, 30], 64)?;
//! session.truncate(0);
//! assert_eq!(session.advance(&[10, 20, 30], 1)?, logits);
//! # Ok::<(), slm_runtime::RuntimeError>(())
//! ```

pub mod audit;
pub mod bake;
pub mod budget;
pub mod chat;
pub mod error;
pub mod eval;
pub mod generate;
pub mod load;
pub mod runtime;
pub mod sample;
pub mod tokenizer;

mod composition;
mod graph;
mod parallel;
mod session;

pub use composition::{ActiveAdapter, Composition};
pub use error::RuntimeError;
pub use runtime::Runtime;
pub use session::{Engine, Session, Step};
