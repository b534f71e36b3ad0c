//! Identities, and the document that names a composition.
//!
//! [`BaseId`], [`TokenizerId`], [`AdapterId`], [`CompositionId`] and [`ExecutionId`] are types of their own, each hashed under its own
//! domain, so that one can never be passed where another is meant. [`ModelConfig`] is the checked model configuration that a [`BaseId`]
//! covers. [`Manifest`] is the document that a person reads and signs, in TOML or in JSON, with one digest for both; [`EvaluationRecord`] says what was
//! measured on a composition. [`signature`] signs both as minisign does, [`TrustPolicy`] says whose signatures count, and [`LocalPolicy`] is
//! all that the owner of a machine decides.
//!
//! It does not know weights, arithmetic or storage.

pub mod config;
pub mod evaluation;
mod id;
mod manifest;
mod name;
pub mod policy;
pub mod signature;
mod timestamp;
mod trust;

pub use config::ModelConfig;
pub use evaluation::{EvaluationError, EvaluationRecord, RawEvaluationRecord};
pub use id::{
    Activations, AdapterId, BaseId, CompositionId, CompositionParts, ExecutionId, ExecutionProfile,
    KvType, NUMERICS_VERSION, PlanId, TensorIdentity, TokenizerId,
};
pub use manifest::{
    AdapterEntry, Form, MAX_COUNT, Manifest, ManifestError, Provenance, QuantizationEntry,
    RawManifest, RuntimeTag,
};
pub use name::{Name, NameError};
pub use policy::{LocalPolicy, PolicyError};
pub use timestamp::is_utc_timestamp;
pub use trust::{BareBase, TrustError, TrustPolicy, TrustRule};

/// The README, so that its example runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
