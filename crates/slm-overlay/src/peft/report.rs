//! What a binding touches and what is odd about it.

use serde::Serialize;

use super::adapter::BaseModule;
use super::config::Config;
use crate::{Adapter, BaseShape, Module, OverlayError};

/// What a binding touches; every part of it is ordered. Nothing of a file is ignored without standing here.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BindingReport {
    /// Every tensor touched, by name.
    pub targets: Vec<TouchedTensor>,
    /// Every entry of `target_modules`, in the file's order.
    pub patterns: Vec<MatchedPattern>,
    /// Tensors of the file that were not needed: copies of base weights that were compared and are the base's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<String>,
    /// Files beside the adapter that nothing reads and that hold no weights, by name. What could hold some is in the warnings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
    /// What is odd but changes nothing.
    pub warnings: Vec<String>,
}

/// The warning where one of two tied sides is adapted.
pub(crate) const TIED_SPLIT: &str =
    "tied-split: embedding table and head are tied in the base, and only one of them is adapted";

/// One tensor that an adapter touches.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TouchedTensor {
    /// Canonical name.
    pub tensor: String,
    /// Rank of the delta; 0 for kinds that have none.
    pub rank: u32,
    /// What the delta is multiplied by, before the weight in a stack; 1 for kinds that have no scale.
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

impl BindingReport {
    /// The report of an adapter of which only its normal form is known.
    pub fn of(adapter: &Adapter) -> BindingReport {
        let targets = touched(adapter.modules());
        let warnings = zero_scales(&targets).collect();
        let (patterns, dropped, unread) = (Vec::new(), Vec::new(), Vec::new());
        BindingReport { targets, patterns, dropped, unread, warnings }
    }
}

/// Copies of base weights in a file, by their names there.
pub(super) enum Copies {
    /// Each is the base's own.
    Compared(Vec<String>),
    /// No base was there to compare them with.
    Uncompared(Vec<String>),
}

pub(super) fn report(
    config: &Config,
    resolved: &[Module],
    base: &BaseShape<'_>,
    targeted: &[&BaseModule],
    unsaved: &dyn Fn(&str) -> bool,
    copies: Copies,
    tied_split: bool,
) -> Result<BindingReport, OverlayError> {
    let mut warnings = Vec::new();
    let mut targets = touched(resolved);
    targets.sort_by(|a, b| a.tensor.cmp(&b.tensor));

    let names = config.target_modules.as_ref();
    let mut patterns = Vec::new();
    for (index, entry) in names.iter().flat_map(|names| names.entries()).enumerate() {
        let matches = |module: &&&BaseModule| {
            let is_linear = module.linear.is_some();
            names.is_some_and(|names| names.entry_matches(index, &module.path, is_linear))
        };
        let matched = targeted.iter().filter(matches).count();
        if matched == 0 {
            warnings.push(format!("target_modules: {entry:?} matches no module of the base"));
        }
        patterns.push(MatchedPattern { pattern: entry.into(), matched: matched as u32 });
    }
    let rank_patterns: Vec<_> = config.rank_pattern.iter().map(|entry| &entry.0).collect();
    let alpha_patterns: Vec<_> = config.alpha_pattern.iter().map(|entry| &entry.0).collect();
    for (field, patterns) in [("rank_pattern", rank_patterns), ("alpha_pattern", alpha_patterns)] {
        for pattern in patterns {
            if !targeted.iter().any(|module| pattern.matches(&module.path)) {
                warnings.push(format!("{field}: {:?} matches no adapted module", pattern.text()));
            }
        }
    }
    for &layer in &config.layers_to_transform {
        if !(0..i64::from(base.n_layers)).contains(&layer) {
            warnings.push(format!("layers_to_transform: the base has no layer {layer}"));
        }
    }
    let paths = targeted.iter().map(|module| module.path.as_str());
    for path in paths.filter(|path| unsaved(path)) {
        match &config.nonzero_init {
            None => warnings
                .push(format!("{path} is targeted but has no factors; it stays as in the base")),
            Some(init) => {
                let (module, init) = (path.into(), init.clone());
                return Err(OverlayError::MissingModule { module, init });
            }
        }
    }
    warnings.extend(zero_scales(&targets));
    let dropped = match copies {
        Copies::Compared(dropped) => {
            warnings.extend(dropped.iter().map(|tensor| {
                format!(
                    "{tensor}: a copy of the base's own weight; it is not needed and was left out"
                )
            }));
            dropped
        }
        Copies::Uncompared(tensors) => {
            warnings.extend(tensors.iter().map(|tensor| {
                format!("{tensor}: a copy of a base weight, not compared: no base was given")
            }));
            Vec::new()
        }
    };
    if tied_split {
        warnings.push(TIED_SPLIT.into());
    }
    Ok(BindingReport { targets, patterns, dropped, unread: Vec::new(), warnings })
}

/// Entries that are there to narrow what is targeted, and do not.
pub(super) fn narrows_nothing(config: &Config, modules: &[BaseModule]) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut check = |field: &str, entry: &str, matches: &dyn Fn(&BaseModule) -> bool| {
        if !modules.iter().any(matches) {
            warnings.push(format!("{field}: {entry:?} matches no module of the base"));
        }
    };
    if let Some(excluded) = &config.exclude_modules {
        for (index, entry) in excluded.entries().into_iter().enumerate() {
            check("exclude_modules", entry, &|module| {
                excluded.entry_matches(index, &module.path, module.linear.is_some())
            });
        }
    }
    for pattern in &config.layers_pattern {
        check("layers_pattern", pattern.text(), &|module| pattern.layer(&module.path).is_some());
    }
    warnings
}

fn touched(modules: &[Module]) -> Vec<TouchedTensor> {
    let touched = |module: &Module| TouchedTensor {
        tensor: module.target.clone(),
        rank: module.rank(),
        scale: module.scale(),
    };
    modules.iter().map(touched).collect()
}

fn zero_scales(targets: &[TouchedTensor]) -> impl Iterator<Item = String> {
    let zero = targets.iter().filter(|target| target.scale == 0.0);
    zero.map(|target| format!("{}: the scale is zero", target.tensor))
}
