//! An adapter written as PEFT saves it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use slm_format::safetensors::{Dtype, TensorSource, write};

use super::kronecker::Layout;
use crate::shape::{EMBEDDING, HEAD, LINEARS};
use crate::{
    Adapter, AdapterKind, BaseShape, Delta, Factor, LokrFactor, Module, OverlayError, RowOrder,
    Side,
};

/// The two files of a PEFT adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeftFiles {
    /// `adapter_config.json`.
    pub config: String,
    /// `adapter_model.safetensors`.
    pub weights: Vec<u8>,
}

/// A tensor to be written: name, shape, factor.
type Tensor = (String, Vec<u64>, Factor);

/// The adapter as PEFT would have saved it: the framework's names, rows of q and k in its order. Scales come out as alphas, and where modules
/// differ as patterns, so that reading it again gives the same scales bit for bit.
///
/// # Errors
/// [`OverlayError::Export`] for what PEFT has no room for: sparse and dense deltas, VeRA modules that do not share their projections, Kronecker
/// products of shapes that no options of PEFT's make.
pub fn to_peft(adapter: &Adapter, base: &BaseShape<'_>) -> Result<PeftFiles, OverlayError> {
    let mut tensors = Vec::new();
    let mut paths = Vec::new();
    for module in adapter.modules() {
        let path = path(&module.target).ok_or_else(|| no_room(&module.target, "this tensor"))?;
        add(&mut tensors, module, &path, base)?;
        paths.push(path);
    }
    if adapter.kind() == AdapterKind::Vera {
        add_projections(&mut tensors, adapter, base)?;
    }
    let config = config(adapter, &paths)?;
    let config =
        serde_json::to_string_pretty(&config).expect("BUG: a configuration is not JSON") + "\n";
    let sources: Vec<TensorSource<'_>> = tensors
        .iter()
        .map(|(name, shape, factor)| TensorSource {
            name,
            dtype: Dtype::from_encoding(factor.encoding())
                .expect("BUG: a factor that is no plain float"),
            shape,
            data: factor.data(),
        })
        .collect();
    let mut weights = Vec::new();
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    write(&mut weights, &sources, &metadata)?;
    Ok(PeftFiles { config, weights })
}

/// The framework's path of a target.
fn path(target: &str) -> Option<String> {
    match target {
        EMBEDDING => return Some("model.embed_tokens".into()),
        HEAD => return Some("lm_head".into()),
        _ => {}
    }
    let middle = target.strip_prefix("blk.")?.strip_suffix(".weight")?;
    let (layer, canonical) = middle.split_once('.')?;
    let linear = LINEARS.iter().find(|linear| linear.canonical == canonical)?;
    Some(format!("model.layers.{layer}.{}", linear.path))
}

fn add(
    tensors: &mut Vec<Tensor>,
    module: &Module,
    path: &str,
    base: &BaseShape<'_>,
) -> Result<(), OverlayError> {
    let target = &module.target;
    let prefix = format!("base_model.model.{path}");
    // Where each of the framework's rows stands in the base: the reverse of the order that reading makes.
    let inverse = |rows: u32| {
        let mut inverse = vec![0; rows as usize];
        (0..rows as usize).for_each(|row| inverse[base.row_source(target, row)] = row);
        inverse
    };
    let rows = |factor: &Factor| {
        let inverse = inverse(factor.rows());
        factor.with_rows(|row| inverse[row])
    };
    let columns = |factor: &Factor| {
        let inverse = inverse(factor.cols());
        factor.with_columns(|row| inverse[row])
    };
    let mut matrix = |suffix: &str, factor: Factor| {
        let shape = vec![factor.rows().into(), factor.cols().into()];
        tensors.push((format!("{prefix}.{suffix}"), shape, factor));
    };
    match &module.delta {
        Delta::Lora(lora) if target == EMBEDDING => {
            matrix("lora_embedding_A", lora.b.transposed());
            matrix("lora_embedding_B", lora.a.transposed());
        }
        Delta::Lora(lora) => {
            matrix("lora_A.weight", lora.a.clone());
            matrix("lora_B.weight", rows(&lora.b));
            if let Some(bias) = &lora.bias {
                let shape = vec![bias.cols().into()];
                tensors.push((format!("{prefix}.lora_B.bias"), shape, columns(bias)));
            }
        }
        Delta::Dora(dora) => {
            matrix("lora_A.weight", dora.a.clone());
            matrix("lora_B.weight", rows(&dora.b));
            let magnitude = columns(&dora.magnitude);
            let shape = vec![magnitude.cols().into()];
            tensors.push((format!("{prefix}.lora_magnitude_vector"), shape, magnitude));
        }
        Delta::Ia3(ia3) => match ia3.side {
            Side::Input => matrix("ia3_l", ia3.l.clone()),
            Side::Output => matrix("ia3_l", columns(&ia3.l).transposed()),
        },
        Delta::Loha(loha) => {
            matrix("hada_w1_a", rows(&loha.w1_a));
            matrix("hada_w1_b", loha.w1_b.clone());
            matrix("hada_w2_a", rows(&loha.w2_a));
            matrix("hada_w2_b", loha.w2_b.clone());
        }
        Delta::Lokr(lokr) => {
            let permuted = inverse(lokr.rows()).iter().enumerate().any(|(at, row)| at != *row);
            if permuted != (lokr.rows != RowOrder::Base) {
                return Err(no_room(target, "a Kronecker product in another order of rows"));
            }
            for (w, [whole, a_name, b_name]) in [
                (&lokr.w1, ["lokr_w1", "lokr_w1_a", "lokr_w1_b"]),
                (&lokr.w2, ["lokr_w2", "lokr_w2_a", "lokr_w2_b"]),
            ] {
                match w {
                    LokrFactor::Full(w) => matrix(whole, w.clone()),
                    LokrFactor::Low(a, b) => {
                        matrix(a_name, a.clone());
                        matrix(b_name, b.clone());
                    }
                }
            }
        }
        Delta::Vera(vera) => {
            let lambda_b = columns(&vera.lambda_b);
            for (suffix, vector) in
                [("vera_lambda_b", &lambda_b), ("vera_lambda_d", &vera.lambda_d)]
            {
                let shape = vec![vector.cols().into()];
                tensors.push((format!("{prefix}.{suffix}"), shape, vector.clone()));
            }
        }
        Delta::Sparse(_) | Delta::Dense(_) => {
            return Err(no_room(target, module.kind().name()));
        }
    }
    Ok(())
}

/// The shared projections: the widest and the tallest module's, of which every other one must be a part.
fn add_projections(
    tensors: &mut Vec<Tensor>,
    adapter: &Adapter,
    base: &BaseShape<'_>,
) -> Result<(), OverlayError> {
    let mut widest: Option<Factor> = None;
    let mut tallest: Option<Factor> = None;
    let mut all = Vec::new();
    for module in adapter.modules() {
        let Delta::Vera(vera) = &module.delta else { continue };
        let mut inverse = vec![0; vera.b.rows() as usize];
        (0..inverse.len()).for_each(|row| inverse[base.row_source(&module.target, row)] = row);
        let b = vera.b.with_rows(|row| inverse[row]);
        if widest.as_ref().is_none_or(|known| known.cols() < vera.a.cols()) {
            widest = Some(vera.a.clone());
        }
        if tallest.as_ref().is_none_or(|known| known.rows() < b.rows()) {
            tallest = Some(b.clone());
        }
        all.push((&module.target, &vera.a, b));
    }
    let (Some(a), Some(b)) = (widest, tallest) else { return Ok(()) };
    for (target, own_a, own_b) in all {
        let same_rank = own_a.rows() == a.rows() && own_b.cols() == b.cols();
        if !same_rank
            || a.corner(own_a.rows(), own_a.cols()) != *own_a
            || b.corner(own_b.rows(), own_b.cols()) != own_b
        {
            return Err(no_room(target, "projections that are not shared"));
        }
    }
    for (name, factor) in [("base_model.vera_A", a), ("base_model.vera_B", b)] {
        let shape = vec![factor.rows().into(), factor.cols().into()];
        tensors.push((name.to_owned(), shape, factor));
    }
    Ok(())
}

fn config(adapter: &Adapter, paths: &[String]) -> Result<Map<String, Value>, OverlayError> {
    let modules = adapter.modules();
    let mut config = Map::new();
    let mut set = |key: &str, value: Value| drop(config.insert(key.into(), value));
    set("task_type", json!("CAUSAL_LM"));
    set("inference_mode", json!(true));
    set("target_modules", json!(paths));
    let mut ranks: Vec<u32> = modules.iter().map(Module::rank).collect();
    let (peft_type, alpha) = match adapter.kind() {
        AdapterKind::Ia3 => {
            let input = |(module, path): (&Module, &String)| match &module.delta {
                Delta::Ia3(ia3) if ia3.side == Side::Input => Some(path.clone()),
                _ => None,
            };
            let feedforward: Vec<String> = modules.iter().zip(paths).filter_map(input).collect();
            set("feedforward_modules", json!(feedforward));
            ("IA3", None)
        }
        AdapterKind::Vera => {
            set("r", json!(adapter.max_rank()));
            set("save_projection", json!(true));
            ("VERA", None)
        }
        AdapterKind::Loha => ("LOHA", Some("alpha")),
        AdapterKind::Lokr => {
            let kronecker = modules.iter().map(|module| match &module.delta {
                Delta::Lokr(lokr) => lokr,
                _ => unreachable!("BUG: an adapter of two kinds"),
            });
            let all: Vec<_> = kronecker.collect();
            let layout = Layout::of(&all).map_err(|at| {
                no_room(&modules[at].target, "a Kronecker product of matrices of these shapes")
            })?;
            set("decompose_both", json!(layout.decompose_both));
            set("decompose_factor", json!(layout.decompose_factor));
            ranks = layout.ranks;
            ("LOKR", Some("alpha"))
        }
        _ => {
            set("bias", json!("none"));
            set("use_dora", json!(adapter.kind() == AdapterKind::Dora));
            let bias =
                |module: &Module| matches!(&module.delta, Delta::Lora(lora) if lora.bias.is_some());
            // An older PEFT refuses a field that it does not know, whatever its value.
            if modules.iter().any(bias) {
                set("lora_bias", json!(true));
            }
            if !adapter.invocation().is_empty() {
                set("alora_invocation_tokens", json!(adapter.invocation()));
            }
            ("LORA", Some("lora_alpha"))
        }
    };
    set("peft_type", json!(peft_type));
    if let Some(alpha_key) = alpha {
        // In f64 the product and the quotient that undoes it round far below f32.
        let alpha = |at: usize| f64::from(modules[at].scale()) * f64::from(ranks[at]);
        set("r", json!(ranks[0]));
        set(alpha_key, json!(alpha(0)));
        // Paths as they are: a dot matches itself, and an older PEFT looks whole paths up, letter by letter.
        let patterns = |pattern: &dyn Fn(usize) -> Option<Value>| -> Value {
            let rows = paths.iter().enumerate();
            Value::Object(
                rows.filter_map(|(at, path)| Some((path.clone(), pattern(at)?))).collect(),
            )
        };
        let rank_pattern = patterns(&|at| (ranks[at] != ranks[0]).then(|| json!(ranks[at])));
        let alpha_pattern = patterns(&|at| (alpha(at) != alpha(0)).then(|| json!(alpha(at))));
        set("rank_pattern", rank_pattern);
        set("alpha_pattern", alpha_pattern);
    }
    Ok(config)
}

fn no_room(target: &str, what: &'static str) -> OverlayError {
    OverlayError::Export { tensor: target.into(), format: "PEFT", what }
}
