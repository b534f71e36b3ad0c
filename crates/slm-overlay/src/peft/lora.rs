//! A PEFT LoRA adapter: the files, and their normal form on a base.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use slm_format::Limits;
use slm_format::safetensors::{SafeTensors, TensorView};
use slm_manifest::config::Architecture;

use super::config::LoraConfig;
use crate::shape::{LINEARS, Linear};
use crate::{Adapter, BaseShape, Factor, Feature, LoraModule, OverlayError};

/// A LoRA adapter as PEFT saved it: the configuration understood, the factors paired and checked, no base known yet.
#[derive(Debug, Clone)]
pub struct PeftLora {
    config: LoraConfig,
    /// By module path, without PEFT's prefix.
    modules: BTreeMap<String, Pair>,
}

/// What a binding touches; every part of it is ordered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BindingReport {
    /// Every tensor touched, by name.
    pub targets: Vec<TouchedTensor>,
    /// Every entry of `target_modules`, in the file's order.
    pub patterns: Vec<MatchedPattern>,
    /// What is odd but changes nothing.
    pub warnings: Vec<String>,
}

/// One tensor that an adapter touches.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TouchedTensor {
    /// Canonical name.
    pub tensor: String,
    /// Rank of the delta.
    pub rank: u32,
    /// What the delta is multiplied by, before the weight in a stack.
    pub scale: f32,
}

/// One entry of `target_modules`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MatchedPattern {
    /// The entry.
    pub pattern: String,
    /// Modules of the base that it targets.
    pub matched: u32,
}

/// No model that slm runs has more blocks.
const MAX_LAYERS: u32 = 4096;

#[derive(Debug, Clone, Default)]
struct Pair {
    a: Option<(String, Factor)>,
    b: Option<(String, Factor)>,
}

/// A module of the base that an adapter can name.
struct Module {
    path: String,
    tensor: String,
    linear: Linear,
    layer: u32,
}

impl PeftLora {
    /// Reads `adapter_config.json` and `adapter_model.safetensors`.
    ///
    /// # Errors
    /// [`OverlayError`]: whatever is wrong with the configuration, with the file of tensors, or with a single tensor, named. A field that
    /// changes the arithmetic and is not applied is an error (`docs/adapters.md`), and so is a tensor that nothing would read.
    pub fn parse(config: &[u8], weights: &[u8], limits: &Limits) -> Result<PeftLora, OverlayError> {
        let config = LoraConfig::parse(config, limits)?;
        let file = SafeTensors::parse(weights, limits)?;
        let mut modules: BTreeMap<String, Pair> = BTreeMap::new();
        for tensor in file.tensors() {
            let (path, is_a) = factor_name(tensor)?;
            let pair = modules.entry(path.into()).or_default();
            let half = if is_a { &mut pair.a } else { &mut pair.b };
            *half = Some((tensor.name.clone(), factor(tensor)?));
        }
        for (path, pair) in &modules {
            match (&pair.a, &pair.b) {
                (Some(_), None) => return Err(OverlayError::MissingB { module: path.clone() }),
                (None, _) => return Err(OverlayError::MissingA { module: path.clone() }),
                (Some((_, a)), Some((tensor, b))) if a.rows() != b.cols() => {
                    let (found, expected) = (u64::from(b.cols()), u64::from(a.rows()));
                    return Err(OverlayError::Rank { tensor: tensor.clone(), found, expected });
                }
                _ => {}
            }
        }
        Ok(PeftLora { config, modules })
    }

    /// The adapter's normal form on a base of this shape: canonical names, rows of q and k in the base's order, scales worked out.
    ///
    /// # Errors
    /// [`OverlayError`] when the configuration targets nothing in the base, or a tensor belongs to no targeted module, has another rank than
    /// the configuration says, or another shape than the base asks for.
    pub fn resolve(&self, base: &BaseShape) -> Result<(Adapter, BindingReport), OverlayError> {
        let modules = base_modules(base);
        let targeted: Vec<&Module> = modules
            .iter()
            .filter(|module| self.config.targets(&module.path, Some(module.layer)))
            .collect();
        if targeted.is_empty() {
            let reason = match &self.config.target_modules {
                Some(names) => format!("none matches target_modules {:?}", names.entries()),
                None => "target_modules is empty".into(),
            };
            return Err(OverlayError::NoTarget { reason });
        }
        if self.modules.is_empty() {
            return Err(OverlayError::NoTarget { reason: "the file holds no factors".into() });
        }
        let mut resolved = Vec::with_capacity(self.modules.len());
        for (path, pair) in &self.modules {
            resolved.push(self.resolve_module(path, pair, base, &modules)?);
        }
        if resolved.iter().all(adds_nothing) {
            let reason = "every module's scale, A or B is zero".into();
            return Err(OverlayError::NoTarget { reason });
        }
        let report = self.report(&resolved, base, &targeted)?;
        Ok((Adapter::lora(resolved)?, report))
    }

    /// Everything that [`PeftLora::resolve`] finds wrong without knowing the base: the adapter on a base that has just the modules of the
    /// file, in the shapes of its factors. The report's names are canonical.
    ///
    /// # Errors
    /// As [`PeftLora::resolve`], but for what only the base can tell.
    pub fn resolve_alone(&self) -> Result<BindingReport, OverlayError> {
        let mut tensors = BTreeMap::new();
        let mut n_layers = 0;
        for (path, pair) in &self.modules {
            let layer = path.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
            let known = layer.and_then(|(layer, module)| {
                let layer = layer.parse::<u32>().ok().filter(|&layer| layer < MAX_LAYERS)?;
                Some((layer, LINEARS.iter().find(|linear| linear.path == module)?))
            });
            if let (Some((layer, linear)), Some((_, a)), Some((_, b))) = (known, &pair.a, &pair.b) {
                n_layers = n_layers.max(layer + 1);
                let name = format!("blk.{layer}.{}.weight", linear.canonical);
                tensors.insert(name, (u64::from(b.rows()), u64::from(a.cols())));
            }
        }
        // An architecture whose rows stand as in the file: the order of rows is the base's business.
        let architecture = Architecture::Gemma3;
        let (n_heads, n_kv_heads, head_dim) = (1, 1, 1);
        let tied_embeddings = true;
        let base = BaseShape {
            architecture,
            n_heads,
            n_kv_heads,
            head_dim,
            n_layers,
            tied_embeddings,
            tensors,
        };
        self.resolve(&base).map(|(_, report)| report)
    }

    fn resolve_module(
        &self,
        path: &str,
        pair: &Pair,
        base: &BaseShape,
        modules: &[Module],
    ) -> Result<LoraModule, OverlayError> {
        let (Some((a_name, a)), Some((b_name, b))) = (&pair.a, &pair.b) else {
            unreachable!("BUG: parse left half a pair");
        };
        let module = find(path, a_name, base, modules)?;
        if !self.config.targets(path, Some(module.layer)) {
            return Err(OverlayError::Untargeted { tensor: a_name.clone() });
        }
        let rank = self.config.rank_of(path);
        if a.rows() != rank {
            let (found, expected) = (u64::from(a.rows()), u64::from(rank));
            return Err(OverlayError::Rank { tensor: a_name.clone(), found, expected });
        }
        let (rows, cols) =
            base.tensor(&module.tensor).expect("BUG: a module of the base without its tensor");
        let rank = u64::from(rank);
        for (tensor, factor, expected) in [(a_name, a, [rank, cols]), (b_name, b, [rows, rank])] {
            let found = [u64::from(factor.rows()), u64::from(factor.cols())];
            if found != expected {
                return Err(OverlayError::Shape {
                    tensor: tensor.clone(),
                    found: found.into(),
                    expected: expected.into(),
                });
            }
        }
        if let Some(expected) =
            base.permuted_rows(&module.linear).filter(|&expected| expected != rows)
        {
            let (tensor, found) = (module.tensor.clone(), vec![rows, cols]);
            return Err(OverlayError::Shape { tensor, found, expected: vec![expected, cols] });
        }
        Ok(LoraModule {
            target: module.tensor.clone(),
            scale: self.config.scale_of(path)?,
            a: a.clone(),
            b: b.with_rows(|row| base.framework_row(&module.linear, row)),
        })
    }

    fn report(
        &self,
        resolved: &[LoraModule],
        base: &BaseShape,
        targeted: &[&Module],
    ) -> Result<BindingReport, OverlayError> {
        let mut warnings = Vec::new();
        let mut targets: Vec<TouchedTensor> = resolved
            .iter()
            .map(|module| TouchedTensor {
                tensor: module.target.clone(),
                rank: module.rank(),
                scale: module.scale,
            })
            .collect();
        targets.sort_by(|a, b| a.tensor.cmp(&b.tensor));

        let names = self.config.target_modules.as_ref();
        let mut patterns = Vec::new();
        for (index, entry) in names.iter().flat_map(|names| names.entries()).enumerate() {
            let matches = |module: &&&Module| {
                names.is_some_and(|names| names.entry_matches(index, &module.path, true))
            };
            let matched = targeted.iter().filter(matches).count();
            if matched == 0 {
                warnings.push(format!("target_modules: {entry:?} matches no module of the base"));
            }
            patterns.push(MatchedPattern { pattern: entry.into(), matched: matched as u32 });
        }
        for (field, texts) in [
            (
                "rank_pattern",
                self.config.rank_pattern.iter().map(|entry| &entry.0).collect::<Vec<_>>(),
            ),
            ("alpha_pattern", self.config.alpha_pattern.iter().map(|entry| &entry.0).collect()),
        ] {
            for pattern in texts {
                if !targeted.iter().any(|module| pattern.matches(&module.path)) {
                    warnings
                        .push(format!("{field}: {:?} matches no adapted module", pattern.text()));
                }
            }
        }
        for &layer in &self.config.layers_to_transform {
            if !(0..i64::from(base.n_layers)).contains(&layer) {
                warnings.push(format!("layers_to_transform: the base has no layer {layer}"));
            }
        }
        let unsaved = |path: &str| !self.modules.contains_key(path);
        let embeddings = ["model.embed_tokens", "lm_head"]
            .into_iter()
            .filter(|path| self.config.targets(path, None));
        let blocks = targeted.iter().map(|module| module.path.as_str());
        for path in blocks.chain(embeddings).filter(|path| unsaved(path)) {
            match &self.config.nonzero_init {
                None => warnings.push(format!(
                    "{path} is targeted but has no factors; it stays as in the base"
                )),
                Some(init) => {
                    return Err(OverlayError::MissingModule {
                        module: path.into(),
                        init: init.clone(),
                    });
                }
            }
        }
        for target in targets.iter().filter(|target| target.scale == 0.0) {
            warnings.push(format!("{}: the scale is zero", target.tensor));
        }
        Ok(BindingReport { targets, patterns, warnings })
    }
}

/// Every linear module of the base's blocks.
fn base_modules(base: &BaseShape) -> Vec<Module> {
    let mut modules = Vec::new();
    for layer in 0..base.n_layers {
        for linear in LINEARS {
            let tensor = format!("blk.{layer}.{}.weight", linear.canonical);
            if base.tensors.contains_key(&tensor) {
                modules.push(Module {
                    path: format!("model.layers.{layer}.{}", linear.path),
                    tensor,
                    linear,
                    layer,
                });
            }
        }
    }
    modules
}

/// The module at `path`, or why there is none. `tensor` is the file's name of one of its factors.
fn find<'m>(
    path: &str,
    tensor: &str,
    base: &BaseShape,
    modules: &'m [Module],
) -> Result<&'m Module, OverlayError> {
    if let Some(module) = modules.iter().find(|module| module.path == path) {
        return Ok(module);
    }
    let layer =
        path.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next()).unwrap_or("");
    let is_number = !layer.is_empty() && layer.bytes().all(|byte| byte.is_ascii_digit());
    match is_number && layer.parse::<u32>().map_or(true, |number| number >= base.n_layers) {
        true => {
            let (tensor, layer) = (tensor.into(), layer.into());
            Err(OverlayError::UnknownLayer { tensor, layer, n_layers: base.n_layers })
        }
        false => Err(OverlayError::UnknownTensor { tensor: tensor.into(), module: path.into() }),
    }
}

/// The module that a tensor belongs to, and whether it is A; every other tensor is refused by what it is.
fn factor_name<'t>(tensor: &'t TensorView<'_>) -> Result<(&'t str, bool), OverlayError> {
    let name = &tensor.name;
    let unsupported = |feature| {
        Err(OverlayError::Unsupported {
            feature,
            field: name.clone(),
            found: format!("a tensor of shape {:?}", tensor.shape),
        })
    };
    let Some(rest) = name.strip_prefix("base_model.model.") else {
        return Err(OverlayError::UnusedTensor { tensor: name.clone() });
    };
    for (suffix, is_a) in [(".lora_A.weight", true), (".lora_B.weight", false)] {
        match rest.strip_suffix(suffix) {
            Some(path)
                if ["embed_tokens", "lm_head"]
                    .contains(&path.rsplit('.').next().unwrap_or(path)) =>
            {
                return Err(OverlayError::Embedding { tensor: name.clone() });
            }
            Some(path) => return Ok((path, is_a)),
            None => {}
        }
    }
    if rest.contains(".lora_embedding_") {
        return Err(OverlayError::Embedding { tensor: name.clone() });
    }
    if rest.contains(".base_layer.") {
        return Err(OverlayError::BaseCopy { tensor: name.clone() });
    }
    if rest.contains(".lora_magnitude_vector") {
        return unsupported(Feature::Dora);
    }
    if rest.ends_with(".lora_B.bias") || rest.ends_with(".lora_A.bias") {
        return unsupported(Feature::LoraBias);
    }
    Err(OverlayError::UnusedTensor { tensor: name.clone() })
}

fn factor(tensor: &TensorView<'_>) -> Result<Factor, OverlayError> {
    let Some(encoding) = tensor.dtype.encoding() else {
        return Err(OverlayError::Dtype {
            tensor: tensor.name.clone(),
            dtype: tensor.dtype.name().into(),
        });
    };
    match tensor.shape[..] {
        [rows, cols] if rows > 0 && cols > 0 => {
            Factor::new(&tensor.name, encoding, rows, cols, Cow::Borrowed(tensor.data))
        }
        _ => Err(OverlayError::NotMatrix {
            tensor: tensor.name.clone(),
            found: tensor.shape.clone(),
        }),
    }
}

/// Whether a module changes no product.
fn adds_nothing(module: &LoraModule) -> bool {
    let is_zero = |factor: &Factor| factor.values().all(|value| value == 0.0);
    module.scale == 0.0 || is_zero(&module.a) || is_zero(&module.b)
}
