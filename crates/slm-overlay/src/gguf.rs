//! LoRA adapters as llama.cpp's converter writes them: a GGUF file of type `adapter`, tensors by the base's own names, rows in the base's own
//! order.

use std::borrow::Cow;
use std::collections::BTreeMap;

use slm_format::gguf::{Gguf, GgufTensor, TensorSource, Value, write};
use slm_format::{Encoding, Limits};
use slm_quant::{Kernels, QMatrix};

use crate::bind::expect_invocable;
use crate::kind::expect_effect;
use crate::peft::BindingReport;
use crate::shape::{EMBEDDING, HEAD};
use crate::{Adapter, BaseShape, Delta, Factor, Lora, LoraModule, Module, OverlayError};

const TYPE: &str = "general.type";
const ARCHITECTURE: &str = "general.architecture";
const KIND: &str = "adapter.type";
const ALPHA: &str = "adapter.lora.alpha";
const INVOCATION: &str = "adapter.alora.invocation_tokens";
/// The place of the tensors, which the file's reader heeds.
const ALIGNMENT: &str = "general.alignment";
/// What the adapter was trained for and behind, which is the caller's business: listed as not read.
const TEXTS: [&str; 2] = ["adapter.lora.task_name", "adapter.lora.prompt_prefix"];

/// A GGUF adapter: metadata understood, factors paired and checked, no base known yet.
#[derive(Debug, Clone)]
pub struct GgufAdapter {
    architecture: String,
    /// `None` where the file gives none, or 0: the scale is then 1.
    alpha: Option<f32>,
    invocation: Vec<u32>,
    /// By the base's tensor: `lora_a` and `lora_b` as they are in the file.
    pairs: BTreeMap<String, (Factor, Factor)>,
    warnings: Vec<String>,
}

impl GgufAdapter {
    /// Whether a GGUF file says that it is an adapter.
    pub fn is_adapter(file: &Gguf<'_>) -> bool {
        matches!(file.metadata().get(TYPE), Some(Value::Str("adapter")))
    }

    /// Reads a GGUF adapter. Quantized factors are decoded to f32.
    ///
    /// # Errors
    /// [`OverlayError`]: another type of file or of adapter; a key of an adapter that is not known; invocation tokens that are no array of u32; a
    /// tensor that is no factor, has no other half, or is not finite.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<GgufAdapter, OverlayError> {
        let file = Gguf::parse(bytes, limits)?;
        let metadata = file.metadata();
        let found = metadata.require_str(TYPE)?;
        if found != "adapter" {
            return Err(OverlayError::FileType { found: format!("{:?}", excerpt(found)) });
        }
        let kind = metadata.require_str(KIND)?;
        if kind != "lora" {
            return Err(OverlayError::Kind { kind: excerpt(kind) });
        }
        let architecture = excerpt(metadata.require_str(ARCHITECTURE)?);
        let alpha = metadata.f32(ALPHA)?;
        let invocation = match metadata.get(INVOCATION) {
            None => Vec::new(),
            Some(value) => tokens(value).ok_or_else(|| OverlayError::Invocation {
                found: value.describe(),
                expected: "an array of u32 with at least one element",
            })?,
        };
        let mut warnings = Vec::new();
        for (key, value) in metadata.iter() {
            if [TYPE, ARCHITECTURE, KIND, ALPHA, INVOCATION, ALIGNMENT].contains(&key) {
                continue;
            }
            if key.starts_with("adapter.") && !TEXTS.contains(&key) {
                let (entry, found) = (excerpt(key), value.describe());
                return Err(OverlayError::UnknownEntry { entry, found, of: "a GGUF adapter" });
            }
            warnings.push(format!("the entry {:?} is not read", excerpt(key)));
        }
        let pairs = pairs(file.tensors())?;
        if let Some(alpha) = alpha.filter(|alpha| !alpha.is_finite()) {
            let first = pairs.iter().next();
            let (module, rank) =
                first.map_or((ALPHA, 0), |(target, (_, b))| (target.as_str(), b.cols()));
            return Err(OverlayError::Scale { module: module.into(), alpha: alpha.into(), rank });
        }
        Ok(GgufAdapter {
            architecture,
            alpha: alpha.filter(|&alpha| alpha != 0.0),
            invocation,
            pairs,
            warnings,
        })
    }

    /// The adapter's normal form on a base of this shape. The scale is alpha over the rank, or 1 where alpha is 0 or not given.
    ///
    /// # Errors
    /// [`OverlayError`] for another architecture, a tensor that the base has not or that no adapter may touch, another shape.
    pub fn resolve(&self, base: &BaseShape<'_>) -> Result<(Adapter, BindingReport), OverlayError> {
        let expected = base.architecture.name();
        if self.architecture != expected {
            let found = self.architecture.clone();
            return Err(OverlayError::Architecture { found, expected });
        }
        let mut modules = Vec::with_capacity(self.pairs.len());
        for (target, (a, b)) in &self.pairs {
            let Some((rows, cols)) = base.target(target) else {
                let tensor = format!("{target}.lora_a");
                return Err(OverlayError::UnknownTensor { tensor, module: target.clone() });
            };
            let rank = b.cols();
            let scale = self.alpha.map_or(1.0, |alpha| (f64::from(alpha) / f64::from(rank)) as f32);
            // The table is looked up, not multiplied with: its A is stored with a row for each id, as our B is.
            let (a, b) = match target == EMBEDDING {
                true => (b.transposed(), a.clone()),
                false => (a.clone(), b.clone()),
            };
            let delta = Delta::Lora(Lora { scale, a, b, bias: None });
            let module = Module { target: target.clone(), delta };
            module.check()?;
            module.fits(rows, cols)?;
            modules.push(module);
        }
        expect_effect(&modules)?;
        expect_invocable(&self.invocation, base)?;
        let has = |target: &str| self.pairs.contains_key(target);
        let split = base.tied_embeddings && has(EMBEDDING) != has(HEAD);
        let adapter = Adapter::with_invocation(modules, self.invocation.clone())?;
        let mut report = BindingReport::of(&adapter);
        report.warnings.extend(self.warnings.iter().cloned());
        if split {
            report.warnings.push(crate::peft::TIED_SPLIT.into());
        }
        Ok((adapter, report))
    }

    /// Everything that [`GgufAdapter::resolve`] finds wrong without knowing the base: the report by the file alone.
    ///
    /// # Errors
    /// A scale that is not finite.
    pub fn resolve_alone(&self) -> Result<BindingReport, OverlayError> {
        let module = |(target, (a, b)): (&String, &(Factor, Factor))| {
            let rank = f64::from(b.cols());
            let scale = self.alpha.map_or(1.0, |alpha| (f64::from(alpha) / rank) as f32);
            let (a, b) = match target == EMBEDDING {
                true => (b.transposed(), a.clone()),
                false => (a.clone(), b.clone()),
            };
            LoraModule { target: target.clone(), scale, a, b }
        };
        let adapter = Adapter::lora(self.pairs.iter().map(module).collect())?;
        let mut report = BindingReport::of(&adapter);
        report.warnings.extend(self.warnings.iter().cloned());
        Ok(report)
    }
}

/// A GGUF adapter for a base of this architecture. Rows stand in the base's order, as the normal form has them.
///
/// The file holds one alpha, and its readers divide it by each module's rank. Where that does not give a module's scale, the quotient is
/// multiplied into B, each element rounded once to f32: rsLoRA and alpha patterns come out as numbers and are not lost.
///
/// # Errors
/// [`OverlayError::Export`] for what the format has no room for: another kind than LoRA, a bias.
pub fn to_gguf(adapter: &Adapter, architecture: &str) -> Result<Vec<u8>, OverlayError> {
    let mut modules = Vec::new();
    for Module { target, delta } in adapter.modules() {
        match delta {
            Delta::Lora(Lora { scale, a, b, bias: None }) => modules.push((target, *scale, a, b)),
            Delta::Lora(_) => return Err(no_room(target, "a bias")),
            _ => return Err(no_room(target, adapter.kind().name())),
        }
    }
    // A zero alpha would mean a scale of 1.
    let first = modules.iter().find(|module| module.1 != 0.0);
    let alpha =
        first.map_or(1.0, |(_, scale, a, _)| (f64::from(*scale) * f64::from(a.rows())) as f32);
    if !alpha.is_finite() || alpha == 0.0 {
        return Err(no_room(modules[0].0, "a scale beyond f32"));
    }
    let mut tensors: Vec<(String, Factor)> = Vec::new();
    for (target, scale, a, b) in modules {
        let stored = (f64::from(alpha) / f64::from(a.rows())) as f32;
        let b = match scale.to_bits() == stored.to_bits() {
            true => b.clone(),
            false => b.times(&format!("{target}.lora_b"), f64::from(scale) / f64::from(stored))?,
        };
        let (a, b) = match target == EMBEDDING {
            true => (b, a.transposed()),
            false => (a.clone(), b),
        };
        tensors.push((format!("{target}.lora_a"), a));
        tensors.push((format!("{target}.lora_b"), b));
    }
    let shapes: Vec<[u64; 2]> = tensors
        .iter()
        .map(|(_, factor)| [u64::from(factor.cols()), u64::from(factor.rows())])
        .collect();
    let sources: Vec<TensorSource<'_>> = tensors
        .iter()
        .zip(&shapes)
        .map(|((name, factor), shape)| TensorSource {
            name,
            shape,
            encoding: factor.encoding(),
            data: factor.data(),
        })
        .collect();
    let mut metadata = vec![
        (ARCHITECTURE, Value::Str(architecture)),
        (TYPE, Value::Str("adapter")),
        (KIND, Value::Str("lora")),
        (ALPHA, Value::F32(alpha)),
    ];
    if !adapter.invocation().is_empty() {
        metadata.push((INVOCATION, Value::u32_array(adapter.invocation())));
    }
    let mut out = Vec::new();
    write(&mut out, &metadata, &sources)?;
    Ok(out)
}

fn no_room(target: &str, what: &'static str) -> OverlayError {
    OverlayError::Export { tensor: target.into(), format: "GGUF", what }
}

fn pairs(tensors: &[GgufTensor<'_>]) -> Result<BTreeMap<String, (Factor, Factor)>, OverlayError> {
    type Halves = (Option<Factor>, Option<Factor>);
    let mut halves: BTreeMap<&str, Halves> = BTreeMap::new();
    for tensor in tensors {
        let unused = || OverlayError::UnusedTensor { tensor: tensor.name.into() };
        let (target, is_a) = match tensor.name.rsplit_once('.').ok_or_else(unused)? {
            (target, "lora_a") => (target, true),
            (target, "lora_b") => (target, false),
            _ => return Err(unused()),
        };
        let pair = halves.entry(target).or_default();
        *(if is_a { &mut pair.0 } else { &mut pair.1 }) = Some(factor(tensor)?);
    }
    let mut pairs = BTreeMap::new();
    for (target, pair) in halves {
        let module = target.to_owned();
        match pair {
            (Some(_), None) => return Err(OverlayError::MissingB { module }),
            (None, _) => return Err(OverlayError::MissingA { module }),
            (Some(a), Some(b)) => {
                let rank = if target == EMBEDDING { a.cols() } else { a.rows() };
                if rank != b.cols() {
                    let tensor = format!("{target}.lora_b");
                    let (found, expected) = (b.cols().into(), rank.into());
                    return Err(OverlayError::Rank { tensor, found, expected });
                }
                pairs.insert(module, (a, b));
            }
        }
    }
    match pairs.is_empty() {
        true => Err(OverlayError::NoTarget { reason: "the file holds no factors".into() }),
        false => Ok(pairs),
    }
}

fn factor(tensor: &GgufTensor<'_>) -> Result<Factor, OverlayError> {
    let &[cols, rows] = &tensor.shape[..] else {
        let found = tensor.shape.iter().rev().copied().collect();
        return Err(OverlayError::NotMatrix { tensor: tensor.name.into(), found });
    };
    let plain = matches!(tensor.encoding, Encoding::F32 | Encoding::F16 | Encoding::BF16);
    if plain {
        return Factor::new(tensor.name, tensor.encoding, rows, cols, Cow::Borrowed(tensor.data));
    }
    let (Ok(n_rows), Ok(n_cols)) = (usize::try_from(rows), usize::try_from(cols)) else {
        let (tensor, found) = (tensor.name.into(), vec![rows, cols]);
        return Err(OverlayError::NotMatrix { tensor, found });
    };
    let dtype =
        || OverlayError::Dtype { tensor: tensor.name.into(), dtype: tensor.encoding.name().into() };
    let matrix = QMatrix::new(tensor.encoding, n_rows, n_cols, tensor.data).map_err(|_| dtype())?;
    let kernels = Kernels::detect();
    let mut row = vec![0.0; n_cols];
    let mut data = Vec::new();
    for at in 0..n_rows {
        kernels.decode_row(&mut row, &matrix, at);
        row.iter().for_each(|value| data.extend(value.to_le_bytes()));
    }
    Factor::new(tensor.name, Encoding::F32, rows, cols, Cow::Owned(data))
}

fn tokens(value: &Value<'_>) -> Option<Vec<u32>> {
    let Value::Array(array) = value else { return None };
    if array.element().name() != "u32" || array.is_empty() {
        return None;
    }
    array.integers()?.into_iter().map(|id| u32::try_from(id).ok()).collect()
}

fn excerpt(text: &str) -> String {
    text.chars().take(80).collect()
}
