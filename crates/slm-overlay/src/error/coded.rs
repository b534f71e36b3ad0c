//! Codes, classes and hints of refused adapters and stacks.

use slm_format::{Coded, ErrorClass};

use super::{Feature, OverlayError};

impl Coded for OverlayError {
    fn code(&self) -> &'static str {
        match self {
            OverlayError::ConfigJson { .. } => "adapter-config-json",
            OverlayError::DuplicateKey { .. } => "adapter-config-duplicate-key",
            OverlayError::Field { .. } | OverlayError::Entry { .. } => "adapter-field",
            OverlayError::FileType { .. } => "adapter-file-type",
            OverlayError::Invocation { .. } => "adapter-invocation",
            OverlayError::UnknownField { .. } | OverlayError::UnknownEntry { .. } => {
                "adapter-unknown-field"
            }
            OverlayError::Unsupported { feature, .. } => feature.code(),
            OverlayError::Kind { .. } => "adapter-kind-unsupported",
            OverlayError::Pattern { .. } => "adapter-pattern",
            OverlayError::Limit { .. } => "adapter-limit",
            OverlayError::RankZero { .. } => "adapter-rank-zero",
            OverlayError::Scale { .. } => "adapter-scale",
            OverlayError::NoTarget { .. } => "adapter-no-target",
            OverlayError::Untargeted { .. } => "adapter-untargeted-tensor",
            OverlayError::MissingModule { .. } => "adapter-missing-module",
            OverlayError::UnknownLayer { .. } => "adapter-unknown-layer",
            OverlayError::UnknownTensor { .. } => "adapter-unknown-tensor",
            OverlayError::UnusedTensor { .. } => "adapter-unused-tensor",
            OverlayError::Embedding { .. } => "embedding-adapter-unsupported",
            OverlayError::BaseCopy { .. } => "adapter-base-copy",
            OverlayError::MissingFactor { .. } => "adapter-missing-factor",
            OverlayError::MissingB { .. } => "adapter-missing-b",
            OverlayError::MissingA { .. } => "adapter-missing-a",
            OverlayError::Rank { .. } => "adapter-rank",
            OverlayError::Shape { .. } | OverlayError::NotMatrix { .. } => "adapter-shape",
            OverlayError::NonFinite { .. } => "adapter-non-finite",
            OverlayError::Dtype { .. } => "adapter-dtype",
            OverlayError::F16Range { .. } => "adapter-f16-range",
            OverlayError::DuplicateTarget { .. } => "adapter-duplicate-target",
            OverlayError::MixedKinds { .. } => "adapter-mixed-kinds",
            OverlayError::SparseIndex { .. } => "adapter-sparse-index",
            OverlayError::BaseWeights { .. } => "adapter-base-weights",
            OverlayError::Gain { .. } => "adapter-gain",
            OverlayError::Fused { .. } => "adapter-fused",
            OverlayError::DeltaIdentity { .. } => "adapter-delta-identity",
            OverlayError::DeltaVersion { .. } => "adapter-delta-version",
            OverlayError::TiedHalf { .. } => "adapter-tied-half",
            OverlayError::Section { .. } => "adapter-section",
            OverlayError::SectionVersion { .. } => "adapter-section-version",
            OverlayError::Identity { .. } => "adapter-identity",
            OverlayError::BaseMismatch { .. } => "base-mismatch",
            OverlayError::DuplicateAdapter { .. } => "duplicate-adapter",
            OverlayError::Weight { .. } => "adapter-weight",
            OverlayError::Factor { .. } => "adapter-factor",
            OverlayError::Architecture { .. } => "adapter-architecture",
            OverlayError::Export { .. } => "adapter-export",
            OverlayError::Gguf(error) => error.code(),
            OverlayError::GgufWrite(error) => error.code(),
            OverlayError::SafeTensors(error) => error.code(),
            OverlayError::Binary(error) => error.code(),
            OverlayError::Container(error) => error.code(),
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            OverlayError::Gguf(error) => error.class(),
            OverlayError::GgufWrite(error) => error.class(),
            OverlayError::SafeTensors(error) => error.class(),
            OverlayError::Container(error) => error.class(),
            _ => ErrorClass::Refused,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            OverlayError::Unsupported { feature: Feature::Init, .. } => {
                Some("save the adapter with PEFT's path_initial_model_for_weight_conversion to get a plain LoRA".into())
            }
            OverlayError::UnknownField { .. } => {
                Some("a field of a newer PEFT may change the arithmetic; set it to null if it does not".into())
            }
            OverlayError::UnknownEntry { .. } => {
                Some("it may change the arithmetic; write the file again without it if it does not".into())
            }
            OverlayError::F16Range { .. } => Some("import the adapter with its factors as they are".into()),
            OverlayError::Gguf(error) => error.hint(),
            OverlayError::SafeTensors(error) => error.hint(),
            OverlayError::Binary(error) => error.hint(),
            _ => None,
        }
    }
}
