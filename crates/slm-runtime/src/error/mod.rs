//! What can go wrong in the runtime, each with its stable code.

mod activation;
mod model;
mod request;

use slm_format::container::{ContainerError, ContainerWriteError};
use slm_format::gguf::{GgufError, GgufWriteError};
use slm_format::safetensors::SafeTensorsError;
use slm_format::slm1::Slm1Error;
use slm_format::{Coded, DigestError, ErrorClass};
use slm_kv::KvError;
use slm_manifest::config::ConfigError;
use slm_manifest::policy::PolicyError;
use slm_manifest::{ManifestError, NameError, TrustError};
use slm_overlay::OverlayError;
use slm_quant::QuantError;
use slm_store::StoreError;

pub use activation::{ActivationError, SwitchError};
pub use model::ModelError;
pub use request::RequestError;

use crate::budget::BudgetError;
use crate::chat::ChatError;
use crate::runtime::ShareError;
use crate::tokenizer::TokenizerError;

/// Any error of this crate. [`Coded::code`] gives the stable code, [`Coded::class`] who is at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// A GGUF file is wrong.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A safetensors file is wrong.
    #[error(transparent)]
    SafeTensors(#[from] SafeTensorsError),
    /// An SLM1 file is wrong.
    #[error(transparent)]
    Slm1(#[from] Slm1Error),
    /// A `.slm` container is wrong.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// A `.slm` container cannot be written.
    #[error(transparent)]
    ContainerWrite(#[from] ContainerWriteError),
    /// A GGUF file cannot be written.
    #[error(transparent)]
    GgufWrite(#[from] GgufWriteError),
    /// A model configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tokenizer is wrong, or text cannot be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A chat template failed.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A weight matrix or an activation is wrong.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// An adapter is wrong or does not fit.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// A manifest is wrong.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A name cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A digest is misspelt or does not match.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// The store failed or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The KV cache refused.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// The model itself is wrong.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A composition could not be made or activated.
    #[error(transparent)]
    Activation(#[from] ActivationError),
    /// A request to a session cannot be served.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// More memory would be needed than the caller allows.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// A switch or a generation has to wait for another.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The local policy cannot be followed, so that nothing is done under it.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The local policy does not trust a manifest.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// A composition cannot be shared, or a package is refused.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// A composition cannot be made into a base.
    #[error(transparent)]
    Bake(#[from] crate::bake::BakeError),
}

impl RuntimeError {
    fn inner(&self) -> &dyn Coded {
        match self {
            RuntimeError::Gguf(e) => e,
            RuntimeError::SafeTensors(e) => e,
            RuntimeError::Slm1(e) => e,
            RuntimeError::Container(e) => e,
            RuntimeError::ContainerWrite(e) => e,
            RuntimeError::GgufWrite(e) => e,
            RuntimeError::Config(e) => e,
            RuntimeError::Tokenizer(e) => e,
            RuntimeError::Chat(e) => e,
            RuntimeError::Quant(e) => e,
            RuntimeError::Overlay(e) => e,
            RuntimeError::Manifest(e) => e,
            RuntimeError::Name(e) => e,
            RuntimeError::Digest(e) => e,
            RuntimeError::Store(e) => e,
            RuntimeError::Kv(e) => e,
            RuntimeError::Model(e) => e,
            RuntimeError::Activation(e) => e,
            RuntimeError::Request(e) => e,
            RuntimeError::Budget(e) => e,
            RuntimeError::Switch(e) => e,
            RuntimeError::Policy(e) => e,
            RuntimeError::Trust(e) => e,
            RuntimeError::Share(e) => e,
            RuntimeError::Bake(e) => e,
        }
    }
}

impl From<slm_overlay::binary::BinaryError> for RuntimeError {
    fn from(error: slm_overlay::binary::BinaryError) -> RuntimeError {
        RuntimeError::Overlay(error.into())
    }
}

impl Coded for RuntimeError {
    fn code(&self) -> &'static str {
        self.inner().code()
    }

    fn class(&self) -> ErrorClass {
        self.inner().class()
    }

    fn hint(&self) -> Option<String> {
        self.inner().hint()
    }
}
