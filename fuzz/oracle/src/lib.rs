//! What must hold for any input, in ordinary code: a fuzz target is a line that calls one of these.
//!
//! Each property takes bytes in two ways. As a **file**: whatever it is, reading it never panics, and what is accepted survives being written
//! and read again. As a **recipe**: the bytes choose among the values of a valid file, which must be accepted, and then one bend of it, which
//! must be refused or mean the same. A property that does not hold panics with a message.
//!
//! [`Verdict`] says which way a file went, so that a test can show that both ways are reached.

mod adapter;
mod container;
mod gguf;
mod manifest;
mod peft;
mod recipe;
mod slm1;

pub use adapter::{
    adapter, adapter_file, adapter_recipe, adapter_sample, compact, delta, delta_recipe,
    delta_sample, gguf_adapter, plan008,
};
pub use container::{container, container_file, container_recipe, container_sample, sealed};
pub use gguf::{gguf, gguf_file, gguf_recipe, gguf_sample};
pub use manifest::{manifest, manifest_file, manifest_recipe, manifest_sample};
pub use peft::{join, peft, peft_file, peft_kind_sample, peft_recipe, peft_sample};
pub use slm1::{slm1, slm1_file, slm1_recipe, slm1_sample};

/// Which way an input went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It was read, and everything that must hold of it does.
    Accepted,
    /// It was refused with this code.
    Refused(&'static str),
}
