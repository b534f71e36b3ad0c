//! Identities, and the document that names a composition.
//!
//! [`BaseId`], [`TokenizerId`], [`AdapterId`], [`CompositionId`] and [`ExecutionId`] are types of their own, each hashed under its own
//! domain, so that one can never be passed where another is meant. [`ModelConfig`] is the checked model configuration that a [`BaseId`]
//! covers.
//!
//! It does not know weights, arithmetic or storage.

pub mod config;
mod id;

pub use config::ModelConfig;
pub use id::{
    Activations, AdapterId, BaseId, CompositionId, CompositionParts, ExecutionId, ExecutionProfile,
    KvType, NUMERICS_VERSION, PlanId, TensorIdentity, TokenizerId,
};
