//! What a configuration may ask for that is refused whenever it is set.

/// A feature of PEFT's LoRA that slm refuses when it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Feature {
    /// `bias` other than `none`.
    Bias,
    /// `modules_to_save`.
    ModulesToSave,
    /// `fan_in_fan_out`.
    FanInFanOut,
    /// An initialisation that changes the base.
    Init,
    /// `kasa_config`.
    Kasa,
    /// `layer_replication`.
    LayerReplication,
    /// `trainable_token_indices`.
    TrainableTokens,
    /// `target_parameters`.
    TargetParameters,
    /// `use_qalora`.
    Qalora,
    /// `use_bdlora`.
    Bdlora,
    /// `arrow_config`.
    Arrow,
    /// `monteclora_config`.
    Monteclora,
    /// `megatron_config`.
    Megatron,
    /// Projections of VeRA that are not in the file.
    UnsavedProjection,
    /// Factors of a convolution.
    Convolution,
}

impl Feature {
    /// The stable code of its refusal.
    pub fn code(self) -> &'static str {
        match self {
            Feature::Bias => "adapter-bias",
            Feature::ModulesToSave => "adapter-modules-to-save",
            Feature::FanInFanOut => "adapter-fan-in-fan-out",
            Feature::Init => "adapter-init",
            Feature::Kasa => "adapter-kasa",
            Feature::LayerReplication => "adapter-layer-replication",
            Feature::TrainableTokens => "adapter-trainable-tokens",
            Feature::TargetParameters => "adapter-target-parameters",
            Feature::Qalora => "adapter-qalora",
            Feature::Bdlora => "adapter-bdlora",
            Feature::Arrow => "adapter-arrow",
            Feature::Monteclora => "adapter-monteclora",
            Feature::Megatron => "adapter-megatron",
            Feature::UnsavedProjection => "adapter-unsaved-projection",
            Feature::Convolution => "adapter-convolution",
        }
    }

    /// Why it is refused.
    pub fn reason(self) -> &'static str {
        match self {
            Feature::Bias => "it replaces biases of the base, also while the adapter is off",
            Feature::ModulesToSave => "it replaces whole weights of the base",
            Feature::FanInFanOut => "bases that store weights transposed are not supported",
            Feature::Init => {
                "the base was changed before training, so the factors are not a delta on it"
            }
            Feature::Kasa => "it truncates the base",
            Feature::LayerReplication => "it changes the list of layers",
            Feature::TrainableTokens => "it replaces rows of the embedding table",
            Feature::TargetParameters => "it adapts parameters that are no modules",
            Feature::Qalora => "it pools the input",
            Feature::Bdlora => "its factors are block-diagonal",
            Feature::Arrow => "it routes between adapters by the input",
            Feature::Monteclora => "it draws random factors",
            Feature::Megatron => "it is laid out for Megatron's parallel layers",
            Feature::UnsavedProjection => {
                "the shared projections would have to be drawn as torch draws them; save the adapter with save_projection=True"
            }
            Feature::Convolution => "it is a factor of a convolution, which no model here has",
        }
    }
}
