//! Model graphs, tokenizers, sampling, generation, and the activation of compositions.
//!
//! This is where the crates meet. It does not know terminals, HTTP, paths, clocks or threads: bytes, times and an executor come from the
//! caller.
//!
//! A [`load::Base`] is one verified, immutable model; a [`Composition`] is a base under an ordered stack of adapters; a [`Session`] runs one; a
//! [`Runtime`] keeps them in a store and switches between them. `examples/switch.rs` shows the whole way.

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
pub use session::{Engine, Session};
