//! `adapter_config.json`: every field applied, known to be about training only, or refused by name.

use slm_format::Limits;

use super::json::Json;
use super::pattern::{Anchor, MOST, Names, Pattern};
use crate::{Feature, OverlayError};

/// Largest configuration, in bytes.
const LONGEST: u64 = 4 << 20;

/// Fields that say how the adapter was trained, or where it came from. They change nothing about what it computes.
pub(super) const TRAINING_ONLY: [&str; 23] = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "d_initial",
    "decompose_both",
    "decompose_factor",
    "eva_config",
    "inference_mode",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "module_dropout",
    "peft_version",
    "qalora_group_size",
    "rank_dropout",
    "rank_dropout_scale",
    "revision",
    "runtime_config",
    "task_type",
    "use_effective_conv2d",
    "velora_config",
    "vera_dropout",
];

/// Features that are refused when their field is neither null, false nor empty.
pub(super) const REFUSED: [(&str, Feature); 11] = [
    ("modules_to_save", Feature::ModulesToSave),
    ("fan_in_fan_out", Feature::FanInFanOut),
    ("kasa_config", Feature::Kasa),
    ("layer_replication", Feature::LayerReplication),
    ("trainable_token_indices", Feature::TrainableTokens),
    ("target_parameters", Feature::TargetParameters),
    ("use_qalora", Feature::Qalora),
    ("use_bdlora", Feature::Bdlora),
    ("arrow_config", Feature::Arrow),
    ("monteclora_config", Feature::Monteclora),
    ("megatron_config", Feature::Megatron),
];

/// What PEFT takes for a rank or an alpha that the file leaves out.
const DEFAULT_R: u32 = 8;
const DEFAULT_R_VERA: u32 = 256;
const DEFAULT_ALPHA: f64 = 8.0;

/// PEFT's kinds of adapters that slm applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeftType {
    Lora,
    Ia3,
    Loha,
    Lokr,
    Vera,
}

impl PeftType {
    fn from_name(name: &str) -> Option<PeftType> {
        Some(match name {
            "LORA" => PeftType::Lora,
            "IA3" => PeftType::Ia3,
            "LOHA" => PeftType::Loha,
            "LOKR" => PeftType::Lokr,
            "VERA" => PeftType::Vera,
            _ => return None,
        })
    }

    /// Fields that change what adapters of this kind compute; in another kind's configuration they are unknown.
    fn owns(self, field: &str) -> bool {
        use PeftType::{Ia3, Loha, Lokr, Lora, Vera};
        match field {
            "lora_alpha"
            | "use_rslora"
            | "init_lora_weights"
            | "use_dora"
            | "lora_bias"
            | "alora_invocation_tokens"
            | "ensure_weight_tying" => self == Lora,
            "r" => self != Ia3,
            "rank_pattern" | "alpha_pattern" => matches!(self, Lora | Loha | Lokr),
            "alpha" => matches!(self, Loha | Lokr),
            "init_weights" => matches!(self, Loha | Lokr | Vera),
            "feedforward_modules" | "init_ia3_weights" => self == Ia3,
            "save_projection" | "projection_prng_key" => self == Vera,
            _ => true,
        }
    }
}

/// The fields that change what an adapter computes.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) peft_type: PeftType,
    pub(super) r: u32,
    /// `lora_alpha`, or `alpha` of LoHa and LoKr.
    pub(super) alpha: f64,
    pub(super) use_rslora: bool,
    pub(super) use_dora: bool,
    pub(super) lora_bias: bool,
    pub(super) invocation: Vec<u32>,
    pub(super) ensure_weight_tying: bool,
    pub(super) feedforward_modules: Option<Names>,
    pub(super) save_projection: bool,
    pub(super) rank_pattern: Vec<(Pattern, u32)>,
    pub(super) alpha_pattern: Vec<(Pattern, f64)>,
    pub(super) target_modules: Option<Names>,
    pub(super) exclude_modules: Option<Names>,
    pub(super) layers_to_transform: Vec<i64>,
    pub(super) layers_pattern: Vec<Pattern>,
    /// The value of `init_lora_weights` or its like where it starts an absent factor at something else than no change.
    pub(super) nonzero_init: Option<String>,
}

impl Config {
    /// What PEFT takes where a file says nothing.
    fn new(peft_type: PeftType) -> Config {
        Config {
            peft_type,
            r: if peft_type == PeftType::Vera { DEFAULT_R_VERA } else { DEFAULT_R },
            alpha: DEFAULT_ALPHA,
            use_rslora: false,
            use_dora: false,
            lora_bias: false,
            invocation: Vec::new(),
            ensure_weight_tying: false,
            feedforward_modules: None,
            save_projection: true,
            rank_pattern: Vec::new(),
            alpha_pattern: Vec::new(),
            target_modules: None,
            exclude_modules: None,
            layers_to_transform: Vec::new(),
            layers_pattern: Vec::new(),
            nonzero_init: None,
        }
    }

    /// Reads the configuration.
    pub(super) fn parse(bytes: &[u8], limits: &Limits) -> Result<Config, OverlayError> {
        let (found, limit) = (bytes.len() as u64, limits.max_header_bytes.min(LONGEST));
        if found > limit {
            return Err(OverlayError::Limit { what: "the configuration in bytes", found, limit });
        }
        let json = Json::parse(bytes)?;
        let Json::Object(fields) = &json else {
            return Err(wrong("adapter_config.json", &json, "an object"));
        };
        let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let peft_type = match field("peft_type") {
            Some(Json::Text(kind)) => PeftType::from_name(kind)
                .ok_or_else(|| OverlayError::Kind { kind: kind.chars().take(80).collect() })?,
            other => {
                return Err(wrong(
                    "peft_type",
                    other.unwrap_or(&Json::Null),
                    "the name of a kind of adapter",
                ));
            }
        };
        let mut config = Config::new(peft_type);
        for (key, value) in fields {
            config.apply(key, value)?;
        }
        config.check_together()?;
        Ok(config)
    }

    fn apply(&mut self, key: &str, value: &Json) -> Result<(), OverlayError> {
        if !self.peft_type.owns(key) {
            return match value.is_unset() {
                true => Ok(()),
                false => Err(unknown(key, value)),
            };
        }
        match key {
            "peft_type" => {}
            "r" => self.r = rank("r", value)?,
            "lora_alpha" | "alpha" => self.alpha = alpha(key, value)?,
            "use_rslora" => self.use_rslora = flag("use_rslora", value)?,
            "use_dora" => self.use_dora = flag("use_dora", value)?,
            "lora_bias" => self.lora_bias = flag("lora_bias", value)?,
            "alora_invocation_tokens" => self.invocation = tokens(value)?,
            "ensure_weight_tying" => self.ensure_weight_tying = flag(key, value)?,
            "feedforward_modules" => {
                self.feedforward_modules = names("feedforward_modules", value)?;
            }
            "save_projection" => self.save_projection = flag("save_projection", value)?,
            // Only says how projections that are not saved would be drawn.
            "projection_prng_key" => {}
            "rank_pattern" => self.rank_pattern = patterns("rank_pattern", value, rank)?,
            "alpha_pattern" => self.alpha_pattern = patterns("alpha_pattern", value, alpha)?,
            "target_modules" => self.target_modules = names("target_modules", value)?,
            "exclude_modules" => self.exclude_modules = names("exclude_modules", value)?,
            "layers_to_transform" => self.layers_to_transform = layers(value)?,
            "layers_pattern" => {
                let texts = texts("layers_pattern", value)?;
                let compiled =
                    texts.iter().map(|text| Pattern::new("layers_pattern", text, Anchor::LayerOf));
                self.layers_pattern = compiled.collect::<Result<_, _>>()?;
            }
            "bias" if *value == Json::Text("none".into()) => {}
            "bias" => return Err(unsupported(Feature::Bias, key, value)),
            "init_lora_weights" => self.nonzero_init = init(value)?,
            "init_weights" | "init_ia3_weights" => self.nonzero_init = plain_init(key, value)?,
            _ if TRAINING_ONLY.contains(&key) || value.is_unset() => {}
            _ => {
                return Err(match REFUSED.iter().find(|(name, _)| *name == key) {
                    Some(&(_, feature)) => unsupported(feature, key, value),
                    None => unknown(key, value),
                });
            }
        }
        Ok(())
    }

    /// Fields that PEFT refuses beside each other.
    fn check_together(&self) -> Result<(), OverlayError> {
        let refuse = |field: &str, expected| {
            Err(OverlayError::Field { field: field.into(), found: "given".into(), expected })
        };
        if !self.layers_to_transform.is_empty()
            && !matches!(self.target_modules, None | Some(Names::List(_)))
        {
            return refuse("layers_to_transform", "no such field where target_modules is a string");
        }
        if !self.layers_pattern.is_empty() && self.layers_to_transform.is_empty() {
            return refuse("layers_pattern", "no such field without layers_to_transform");
        }
        if self.lora_bias && self.use_dora {
            return refuse("lora_bias", "no such field beside use_dora");
        }
        if !self.invocation.is_empty() && self.use_dora {
            return refuse("alora_invocation_tokens", "no such field beside use_dora");
        }
        if let (Some(Names::List(targets)), Some(Names::List(feedforward))) =
            (&self.target_modules, &self.feedforward_modules)
            && feedforward.iter().any(|name| !targets.contains(name))
        {
            return refuse("feedforward_modules", "only names that are in target_modules");
        }
        if self.peft_type == PeftType::Vera && !self.save_projection {
            return Err(OverlayError::Unsupported {
                feature: Feature::UnsavedProjection,
                field: "save_projection".into(),
                found: "false".into(),
            });
        }
        Ok(())
    }

    /// Rank of the module at `path`: the first matching entry of rank_pattern, else `r`.
    pub(super) fn rank_of(&self, path: &str) -> u32 {
        first_match(&self.rank_pattern, path).unwrap_or(self.r)
    }

    /// Alpha of the module at `path`: the first matching entry of alpha_pattern, else `lora_alpha` or `alpha`.
    pub(super) fn alpha_of(&self, path: &str) -> f64 {
        first_match(&self.alpha_pattern, path).unwrap_or(self.alpha)
    }

    /// `alpha / r`, or `alpha / sqrt(r)`, in f64, rounded once to f32.
    pub(super) fn scale_of(&self, path: &str) -> Result<f32, OverlayError> {
        let (rank, alpha) = (self.rank_of(path), self.alpha_of(path));
        let divisor = if self.use_rslora { f64::from(rank).sqrt() } else { f64::from(rank) };
        let scale = (alpha / divisor) as f32;
        match scale.is_finite() {
            true => Ok(scale),
            false => Err(OverlayError::Scale { module: path.into(), alpha, rank }),
        }
    }

    /// Whether IA³ multiplies what the module at `path` reads: a list matches by bare suffix, a string by the whole path.
    pub(super) fn is_feedforward(&self, path: &str) -> bool {
        match &self.feedforward_modules {
            Some(Names::List(names)) => names.iter().any(|name| path.ends_with(name.as_str())),
            Some(names) => names.matches(path, true),
            None => false,
        }
    }

    /// Whether the configuration targets the module at `path`, in block `layer` where it is in one.
    pub(super) fn targets(&self, path: &str, layer: Option<u32>) -> bool {
        let is_linear = layer.is_some();
        let Some(targets) = &self.target_modules else { return false };
        if self.exclude_modules.as_ref().is_some_and(|excluded| excluded.matches(path, is_linear)) {
            return false;
        }
        if targets.has_path(path) {
            return true;
        }
        targets.matches(path, is_linear)
            && (self.layers_to_transform.is_empty() || self.transforms_layer(path, layer))
    }

    fn transforms_layer(&self, path: &str, layer: Option<u32>) -> bool {
        let index = match self.layers_pattern.is_empty() {
            true => layer.map(u64::from),
            false => self.layers_pattern.iter().find_map(|pattern| pattern.layer(path)),
        };
        index.is_some_and(|index| {
            self.layers_to_transform.iter().any(|&layer| u64::try_from(layer) == Ok(index))
        })
    }
}

fn first_match<T: Copy>(patterns: &[(Pattern, T)], path: &str) -> Option<T> {
    patterns.iter().find(|(pattern, _)| pattern.matches(path)).map(|&(_, value)| value)
}

fn wrong(field: &str, value: &Json, expected: &'static str) -> OverlayError {
    OverlayError::Field { field: field.into(), found: value.excerpt(), expected }
}

fn unknown(field: &str, value: &Json) -> OverlayError {
    OverlayError::UnknownField { field: field.chars().take(80).collect(), found: value.excerpt() }
}

fn unsupported(feature: Feature, field: &str, value: &Json) -> OverlayError {
    OverlayError::Unsupported { feature, field: field.into(), found: value.excerpt() }
}

fn rank(field: &str, value: &Json) -> Result<u32, OverlayError> {
    match *value {
        Json::Int(found) if found <= 0 => {
            Err(OverlayError::RankZero { field: field.into(), found })
        }
        Json::Int(found) => {
            u32::try_from(found).map_err(|_| wrong(field, value, "a rank below 2^32"))
        }
        _ => Err(wrong(field, value, "a whole number")),
    }
}

fn alpha(field: &str, value: &Json) -> Result<f64, OverlayError> {
    match *value {
        Json::Int(value) => Ok(value as f64),
        Json::Float(value) if value.is_finite() => Ok(value),
        _ => Err(wrong(field, value, "a finite number")),
    }
}

fn flag(field: &str, value: &Json) -> Result<bool, OverlayError> {
    match *value {
        Json::Bool(value) => Ok(value),
        Json::Null => Ok(false),
        _ => Err(wrong(field, value, "true or false")),
    }
}

fn patterns<T>(
    field: &'static str,
    value: &Json,
    read: fn(&str, &Json) -> Result<T, OverlayError>,
) -> Result<Vec<(Pattern, T)>, OverlayError> {
    let entries = match value {
        Json::Null => return Ok(Vec::new()),
        Json::Object(entries) => entries,
        _ => return Err(wrong(field, value, "an object")),
    };
    check_count(field, entries.len())?;
    let read_entry = |(key, value): &(String, Json)| {
        Ok((Pattern::new(field, key, Anchor::Suffix)?, read(&format!("{field}[{key:?}]"), value)?))
    };
    entries.iter().map(read_entry).collect()
}

fn names(field: &'static str, value: &Json) -> Result<Option<Names>, OverlayError> {
    match value {
        _ if value.is_unset() && *value != Json::Bool(false) => Ok(None),
        Json::Text(text)
            if field == "target_modules" && text.eq_ignore_ascii_case("all-linear") =>
        {
            Ok(Some(Names::AllLinear))
        }
        Json::Text(text) => Ok(Some(Names::Regex(Pattern::new(field, text, Anchor::Whole)?))),
        _ => Ok(Some(Names::List(texts(field, value)?))),
    }
}

/// A string, or a list of strings.
fn texts(field: &'static str, value: &Json) -> Result<Vec<String>, OverlayError> {
    const EXPECTED: &str = "a string or a list of strings";
    let items = match value {
        Json::Null => return Ok(Vec::new()),
        Json::Text(text) if text.is_empty() => return Ok(Vec::new()),
        Json::Text(text) => return Ok(vec![text.clone()]),
        Json::List(items) => items,
        _ => return Err(wrong(field, value, EXPECTED)),
    };
    check_count(field, items.len())?;
    let text = |item: &Json| match item {
        Json::Text(text) if !text.is_empty() => Ok(text.clone()),
        _ => Err(wrong(field, item, EXPECTED)),
    };
    items.iter().map(text).collect()
}

/// A number, or a list of numbers.
fn layers(value: &Json) -> Result<Vec<i64>, OverlayError> {
    const FIELD: &str = "layers_to_transform";
    const EXPECTED: &str = "a whole number or a list of whole numbers";
    let items = match value {
        Json::Null => return Ok(Vec::new()),
        Json::Int(layer) => return Ok(vec![*layer]),
        Json::List(items) => items,
        _ => return Err(wrong(FIELD, value, EXPECTED)),
    };
    check_count(FIELD, items.len())?;
    let layer = |item: &Json| match item {
        Json::Int(layer) => Ok(*layer),
        _ => Err(wrong(FIELD, item, EXPECTED)),
    };
    items.iter().map(layer).collect()
}

fn check_count(what: &'static str, found: usize) -> Result<(), OverlayError> {
    match found > MOST {
        true => Err(OverlayError::Limit { what, found: found as u64, limit: MOST as u64 }),
        false => Ok(()),
    }
}

/// Token ids, at least one where the field is given.
fn tokens(value: &Json) -> Result<Vec<u32>, OverlayError> {
    let wrong = |value: &Json| {
        let expected = "a list of token ids";
        OverlayError::Invocation { found: value.excerpt(), expected }
    };
    let items = match value {
        Json::Null => return Ok(Vec::new()),
        Json::List(items) => items,
        _ => return Err(wrong(value)),
    };
    check_count("alora_invocation_tokens", items.len())?;
    let token = |item: &Json| match *item {
        Json::Int(id) => u32::try_from(id).map_err(|_| wrong(item)),
        _ => Err(wrong(item)),
    };
    items.iter().map(token).collect()
}

/// `true` starts at no change, `false` at random; LoKr's `lycoris` is another start at no change.
fn plain_init(field: &str, value: &Json) -> Result<Option<String>, OverlayError> {
    match value {
        Json::Null | Json::Bool(true) => Ok(None),
        Json::Bool(false) => Ok(Some("false".into())),
        Json::Text(text) if text == "lycoris" => Ok(None),
        _ => Err(unsupported(Feature::Init, field, value)),
    }
}

/// Initialisations that leave the base as it is are accepted; those that do not start at a zero delta are remembered.
fn init(value: &Json) -> Result<Option<String>, OverlayError> {
    match value {
        Json::Null | Json::Bool(true) => Ok(None),
        Json::Bool(false) => Ok(Some("false".into())),
        Json::Text(text) => match text.as_str() {
            "gaussian" => Ok(None),
            "eva" | "orthogonal" | "mica" => Ok(Some(text.clone())),
            _ => Err(unsupported(Feature::Init, "init_lora_weights", value)),
        },
        _ => Err(unsupported(Feature::Init, "init_lora_weights", value)),
    }
}
