//! Adapters as PEFT saves them: `adapter_config.json` and `adapter_model.safetensors`.

mod adapter;
mod build;
mod config;
mod export;
mod json;
mod kronecker;
mod pattern;
mod report;
mod tensors;

pub use adapter::PeftAdapter;
pub use export::{PeftFiles, to_peft};
pub(crate) use report::TIED_SPLIT;
pub use report::{BindingReport, MatchedPattern, TouchedTensor};

/// A PEFT adapter of any kind, under the name it had when LoRA was the only one.
pub type PeftLora = PeftAdapter;
