//! Adapters as PEFT saves them: `adapter_config.json` and `adapter_model.safetensors`.

mod config;
mod json;
mod lora;
mod pattern;

pub use lora::{BindingReport, MatchedPattern, PeftLora, TouchedTensor};
