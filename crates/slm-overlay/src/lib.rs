//! Adapters: parse, bind to a base, apply at run time, never merged.
//!
//! An adapter goes through three types. [`peft::PeftLora`] is what the files say; [`Adapter`] is its normal form, in the base's own names
//! and row order, with an identity; [`BoundAdapter`] is ready for one base. A [`Stack`] of bound adapters hands out one [`TensorStack`] per
//! tensor, which adds `weight * scale * B(A x)` to the base's product, adapter after adapter.
//!
//! What an adapter's configuration says is applied exactly or refused by name (`docs/adapters.md`). The crate never sees a base's bytes: it
//! knows names and shapes ([`BaseShape`]), so nothing here can change a base.

pub mod peft;

mod adapter;
mod bind;
mod container;
mod error;
mod factor;
mod shape;
mod stack;

pub use adapter::{Adapter, AdapterKind, LoraModule, SourceDigest};
pub use bind::BoundAdapter;
pub use error::{Feature, OverlayError};
pub use factor::Factor;
pub use shape::BaseShape;
pub use stack::{Stack, TensorStack};
