//! A PEFT adapter: the files, and their normal form on a base.

use std::collections::BTreeMap;

use slm_format::Limits;
use slm_format::safetensors::SafeTensors;
use slm_manifest::config::Architecture;

use super::build::{Builder, adapted_shape};
use super::config::{Config, PeftType};
use super::report::{BindingReport, Copies, narrows_nothing, report};
use super::tensors::{Factors, Named, Tensors};
use crate::bind::expect_invocable;
use crate::kind::expect_effect;
use crate::shape::{EMBEDDING, HEAD, LINEARS, Linear};
use crate::{Adapter, BaseShape, BaseWeights, Module, OverlayError};

/// An adapter as PEFT saved it: the configuration understood, the factors sorted to their modules and checked, no base known yet.
#[derive(Debug, Clone)]
pub struct PeftAdapter {
    config: Config,
    tensors: Tensors,
    /// Entries of the file's metadata that nothing reads.
    unread: Vec<String>,
}

/// No model that slm runs has more blocks.
const MAX_LAYERS: u32 = 4096;

/// A module of the base that an adapter can name.
#[derive(Debug, Clone)]
pub(super) struct BaseModule {
    /// As the checkpoint's framework names it.
    pub(super) path: String,
    /// Its canonical name.
    pub(super) target: String,
    /// Which linear module of a block, and of which.
    pub(super) linear: Option<(Linear, u32)>,
}

impl BaseModule {
    pub(super) fn layer(&self) -> Option<u32> {
        self.linear.map(|(_, layer)| layer)
    }

    /// The framework's row that stands at row `row` of the base.
    pub(super) fn row(&self, base: &BaseShape<'_>, row: usize) -> usize {
        self.linear.map_or(row, |(linear, _)| base.framework_row(&linear, row))
    }
}

impl PeftAdapter {
    /// Reads `adapter_config.json` and `adapter_model.safetensors`.
    ///
    /// # Errors
    /// [`OverlayError`]: whatever is wrong with the configuration, with the file of tensors, or with a single tensor, named. A field that
    /// changes the arithmetic and is not applied is an error (`docs/adapters.md`), and so is a tensor that nothing would read.
    pub fn parse(
        config: &[u8],
        weights: &[u8],
        limits: &Limits,
    ) -> Result<PeftAdapter, OverlayError> {
        let config = Config::parse(config, limits)?;
        let file = SafeTensors::parse(weights, limits)?;
        let tensors = Tensors::read(config.peft_type, file.tensors())?;
        for (path, factors) in &tensors.modules {
            check_pairs(&config, path, factors)?;
        }
        // `format` tells frameworks apart, and the tensors stand in the file in one way only.
        let unread = file.metadata().keys().filter(|key| *key != "format").cloned().collect();
        Ok(PeftAdapter { config, tensors, unread })
    }

    /// The adapter's normal form on a base of this shape: canonical names, rows of q and k in the base's order, scales worked out.
    ///
    /// # Errors
    /// [`OverlayError`] when the configuration targets nothing in the base, or a tensor belongs to no targeted module, has another rank than
    /// the configuration says, or another shape than the base asks for; when the file has a copy of a base weight that is not the base's; when it
    /// claims tied weights and has one half.
    pub fn resolve(&self, base: &BaseShape<'_>) -> Result<(Adapter, BindingReport), OverlayError> {
        let copies = Copies::Compared(self.compare_copies(base)?);
        self.resolve_with(base, copies)
    }

    /// Everything that [`PeftAdapter::resolve`] finds wrong without knowing the base: the adapter on a base that has just the modules of the
    /// file, in the shapes of its factors. The report's names are canonical; a copy of a base weight is in its warnings, for it was not compared.
    ///
    /// # Errors
    /// As [`PeftAdapter::resolve`], but for what only the base can tell.
    pub fn resolve_alone(&self) -> Result<BindingReport, OverlayError> {
        let mut tensors = BTreeMap::new();
        let mut n_layers = 0;
        let mut tied_embeddings = true;
        for (path, factors) in &self.tensors.modules {
            let layer = path.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
            let known = layer.and_then(|(layer, module)| {
                let layer = layer.parse::<u32>().ok().filter(|&layer| layer < MAX_LAYERS)?;
                Some((layer, LINEARS.iter().find(|linear| linear.path == module)?))
            });
            let Some(shape) = adapted_shape(&self.config, path, factors, &self.tensors.shared)
            else {
                continue;
            };
            if let Some((layer, linear)) = known {
                n_layers = n_layers.max(layer + 1);
                tensors.insert(format!("blk.{layer}.{}.weight", linear.canonical), shape);
            } else if path == "model.embed_tokens" {
                tensors.insert(EMBEDDING.to_owned(), shape);
            } else if path == "lm_head" {
                tied_embeddings = false;
                tensors.insert(HEAD.to_owned(), shape);
            }
        }
        // An architecture whose rows stand as in the file: the order of rows is the base's business.
        let base = BaseShape {
            architecture: Architecture::Gemma3,
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 1,
            n_layers,
            tied_embeddings,
            tensors,
            weights: None,
        };
        let copies = self.tensors.copies.values().map(|copy| copy.tensor.clone()).collect();
        self.resolve_with(&base, Copies::Uncompared(copies)).map(|(_, report)| report)
    }

    fn resolve_with(
        &self,
        base: &BaseShape<'_>,
        copies: Copies,
    ) -> Result<(Adapter, BindingReport), OverlayError> {
        let modules = base_modules(base);
        let targeted: Vec<&BaseModule> = modules
            .iter()
            .filter(|module| self.config.targets(&module.path, module.layer()))
            .collect();
        if targeted.is_empty() {
            // Without a base there are only modules that the file names as a base would; where it names none so, that is what is wrong.
            if let (true, Some((path, factors))) =
                (modules.is_empty(), self.tensors.modules.first_key_value())
                && let Some(named) = factors.values().next()
            {
                find(path, &named.tensor, base, &modules)?;
            }
            let reason = match &self.config.target_modules {
                Some(names) => format!("none matches target_modules {:?}", names.entries()),
                None => "target_modules is empty".into(),
            };
            return Err(OverlayError::NoTarget { reason });
        }
        if self.tensors.modules.is_empty() {
            return Err(OverlayError::NoTarget { reason: "the file holds no factors".into() });
        }
        let mut builder = Builder::new(&self.config, base, &self.tensors.shared)?;
        let mut resolved = Vec::with_capacity(self.tensors.modules.len());
        for (path, factors) in &self.tensors.modules {
            let tensor = &factors.values().next().expect("BUG: a module without factors").tensor;
            let module = find(path, tensor, base, &modules)?;
            if !self.config.targets(path, module.layer()) {
                return Err(OverlayError::Untargeted { tensor: tensor.clone() });
            }
            let delta = builder.delta(module, factors)?;
            resolved.push(Module { target: module.target.clone(), delta });
        }
        expect_effect(&resolved)?;
        expect_invocable(&self.config.invocation, base)?;
        let tied = self.tied(&resolved, base)?;
        // Without a base there are the file's own modules alone, and none of those is excluded.
        let narrows_nothing = match copies {
            Copies::Compared(_) => narrows_nothing(&self.config, &modules),
            Copies::Uncompared(_) => Vec::new(),
        };
        let unsaved = |path: &str| !self.tensors.modules.contains_key(path);
        let mut report = report(&self.config, &resolved, base, &targeted, &unsaved, copies, tied)?;
        report.warnings.extend(narrows_nothing);
        report.warnings.extend(self.unread.iter().map(|key| {
            let key: String = key.chars().take(80).collect();
            format!("the entry {key:?} of the weights' metadata is not read")
        }));
        let adapter = Adapter::with_invocation(resolved, self.config.invocation.clone())?;
        Ok((adapter, report))
    }

    /// Whether one of two tied sides is adapted and the other is not. PEFT then splits them, unless the configuration claims that they stay
    /// tied.
    fn tied(&self, resolved: &[Module], base: &BaseShape<'_>) -> Result<bool, OverlayError> {
        let has = |target: &str| resolved.iter().any(|module| module.target == target);
        if !base.tied_embeddings || has(EMBEDDING) == has(HEAD) {
            return Ok(false);
        }
        let (found, missing) = match has(EMBEDDING) {
            true => ("embed_tokens", "lm_head"),
            false => ("lm_head", "embed_tokens"),
        };
        match self.config.ensure_weight_tying {
            true => Err(OverlayError::TiedHalf { found, missing }),
            false => Ok(true),
        }
    }

    /// The copies of base weights that are the base's own, by their names in the file; they are not needed.
    fn compare_copies(&self, base: &BaseShape<'_>) -> Result<Vec<String>, OverlayError> {
        if self.tensors.copies.is_empty() {
            return Ok(Vec::new());
        }
        let modules = base_modules(base);
        let mut dropped = Vec::new();
        for (path, copy) in &self.tensors.copies {
            let module = find(path, &copy.tensor, base, &modules)?;
            let refuse =
                |reason| Err(OverlayError::BaseCopy { tensor: copy.tensor.clone(), reason });
            match base.weights {
                None => return refuse("the base's weights are not at hand to compare it".into()),
                Some(weights) => {
                    if let Some(reason) = difference(copy, module, base, weights) {
                        return refuse(reason);
                    }
                }
            }
            dropped.push(copy.tensor.clone());
        }
        Ok(dropped)
    }
}

/// Where a copy of a weight matrix is not the base's: exact for plain floats, within one step of the quantization for others.
fn difference(
    copy: &Named,
    module: &BaseModule,
    base: &BaseShape<'_>,
    weights: &dyn BaseWeights,
) -> Option<String> {
    let (rows, cols) = base.target(&module.target)?;
    let found = (u64::from(copy.factor.rows()), u64::from(copy.factor.cols()));
    if found != (rows, cols) {
        return Some(format!("shape {found:?}, the base has {:?}", (rows, cols)));
    }
    let tensor = base.weight_of(&module.target);
    let encoding = weights.encoding(tensor)?;
    // Half a step is what rounding moves an element; formats of few bits also clip one end by a whole one.
    let len = encoding.block_elements();
    let bits = encoding.block_bytes() * 8 / len;
    let step = if len == 1 { 0.0 } else { 2.5 / f32::from(1u16 << bits.clamp(2, 9)) };
    let (mut ours, mut theirs) = (vec![0.0; cols as usize], vec![0.0; cols as usize]);
    for row in 0..rows as usize {
        weights.row(tensor, row, &mut ours);
        copy.factor.row_into(module.row(base, row), &mut theirs);
        for (block, (ours, theirs)) in ours.chunks(len).zip(theirs.chunks(len)).enumerate() {
            let most = theirs.iter().fold(0f32, |most, value| most.max(value.abs()));
            let differs = |(a, b): (&f32, &f32)| (a - b).abs() > step * most;
            if let Some(at) = ours.iter().zip(theirs).position(differs) {
                let (ours, theirs) = (ours[at], theirs[at]);
                return Some(format!(
                    "row {row}, column {} is {theirs}, the base has {ours}",
                    block * len + at
                ));
            }
        }
    }
    None
}

/// What can be said of a module's factors without the base.
fn check_pairs(config: &Config, path: &str, factors: &Factors) -> Result<(), OverlayError> {
    if config.peft_type != PeftType::Lora {
        return Ok(());
    }
    let has = |part: &str| factors.contains_key(part);
    let module = || path.to_owned();
    for (a, b) in [("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B")] {
        match (factors.get(a), factors.get(b)) {
            (Some(_), None) => return Err(OverlayError::MissingB { module: module() }),
            (None, Some(_)) => return Err(OverlayError::MissingA { module: module() }),
            (Some(a), Some(b)) if a.factor.rows() != b.factor.cols() => {
                let (found, expected) = (b.factor.cols().into(), a.factor.rows().into());
                return Err(OverlayError::Rank { tensor: b.tensor.clone(), found, expected });
            }
            _ => {}
        }
    }
    for (part, asked) in
        [("lora_magnitude_vector", config.use_dora), ("lora_B.bias", config.lora_bias)]
    {
        if let Some(Named { tensor, .. }) = factors.get(part).filter(|_| !asked) {
            return Err(OverlayError::UnusedTensor { tensor: tensor.clone() });
        }
        let embedding = has("lora_embedding_A");
        if asked && !has(part) && !embedding {
            return Err(OverlayError::MissingFactor { module: module(), factor: part });
        }
    }
    match has("lora_A") || has("lora_embedding_A") {
        true => Ok(()),
        false => Err(OverlayError::MissingA { module: module() }),
    }
}

/// Every module of the base that an adapter can name: the linear modules of its blocks, the embedding table, the head.
fn base_modules(base: &BaseShape<'_>) -> Vec<BaseModule> {
    let mut modules = Vec::new();
    for layer in 0..base.n_layers {
        for linear in LINEARS {
            let target = format!("blk.{layer}.{}.weight", linear.canonical);
            if base.tensors.contains_key(&target) {
                let path = format!("model.layers.{layer}.{}", linear.path);
                modules.push(BaseModule { path, target, linear: Some((linear, layer)) });
            }
        }
    }
    for (path, target) in [("model.embed_tokens", EMBEDDING), ("lm_head", HEAD)] {
        if base.target(target).is_some() {
            let (path, target) = (path.to_owned(), target.to_owned());
            modules.push(BaseModule { path, target, linear: None });
        }
    }
    modules
}

/// The module at `path`, or why there is none. `tensor` is the file's name of one of its factors.
fn find<'m>(
    path: &str,
    tensor: &str,
    base: &BaseShape<'_>,
    modules: &'m [BaseModule],
) -> Result<&'m BaseModule, OverlayError> {
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
