//! The tensors of an adapter file: which module each belongs to, and as what.

use std::borrow::Cow;
use std::collections::BTreeMap;

use slm_format::safetensors::TensorView;

use super::config::PeftType;
use crate::{Factor, Feature, OverlayError};

/// A factor with the name it has in the file.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub(super) tensor: String,
    pub(super) factor: Factor,
}

/// The factors of one module by PEFT's name for each.
pub(super) type Factors = BTreeMap<&'static str, Named>;

/// What an adapter file holds.
#[derive(Debug, Clone, Default)]
pub(super) struct Tensors {
    /// By module path, without PEFT's prefix.
    pub(super) modules: BTreeMap<String, Factors>,
    /// Those that all modules share.
    pub(super) shared: Factors,
    /// Copies of base weights, by module path.
    pub(super) copies: BTreeMap<String, Named>,
}

/// A name's end, what it is called here, and how many dimensions it has.
type Suffix = (&'static str, &'static str, usize);

const LORA: [Suffix; 6] = [
    (".lora_A.weight", "lora_A", 2),
    (".lora_B.weight", "lora_B", 2),
    (".lora_B.bias", "lora_B.bias", 1),
    (".lora_magnitude_vector", "lora_magnitude_vector", 1),
    (".lora_embedding_A", "lora_embedding_A", 2),
    (".lora_embedding_B", "lora_embedding_B", 2),
];
const IA3: [Suffix; 1] = [(".ia3_l", "ia3_l", 2)];
const LOHA: [Suffix; 4] = [
    (".hada_w1_a", "hada_w1_a", 2),
    (".hada_w1_b", "hada_w1_b", 2),
    (".hada_w2_a", "hada_w2_a", 2),
    (".hada_w2_b", "hada_w2_b", 2),
];
const LOKR: [Suffix; 6] = [
    (".lokr_w1", "lokr_w1", 2),
    (".lokr_w1_a", "lokr_w1_a", 2),
    (".lokr_w1_b", "lokr_w1_b", 2),
    (".lokr_w2", "lokr_w2", 2),
    (".lokr_w2_a", "lokr_w2_a", 2),
    (".lokr_w2_b", "lokr_w2_b", 2),
];
const VERA: [Suffix; 2] =
    [(".vera_lambda_b", "vera_lambda_b", 1), (".vera_lambda_d", "vera_lambda_d", 1)];
const CONVOLUTIONS: [&str; 3] = [".hada_t1", ".hada_t2", ".lokr_t2"];

impl Tensors {
    /// Sorts every tensor to its place; one that has none is refused by what it is.
    pub(super) fn read(
        peft_type: PeftType,
        tensors: &[TensorView<'_>],
    ) -> Result<Tensors, OverlayError> {
        let suffixes: &[Suffix] = match peft_type {
            PeftType::Lora => &LORA,
            PeftType::Ia3 => &IA3,
            PeftType::Loha => &LOHA,
            PeftType::Lokr => &LOKR,
            PeftType::Vera => &VERA,
        };
        let mut read = Tensors::default();
        for tensor in tensors {
            let name = &tensor.name;
            let unused = || OverlayError::UnusedTensor { tensor: name.clone() };
            let shared = ["vera_A", "vera_B"].into_iter().find(|shared| {
                peft_type == PeftType::Vera && name.strip_prefix("base_model.") == Some(*shared)
            });
            if let Some(shared) = shared {
                read.shared.insert(shared, named(tensor, 2)?);
                continue;
            }
            let rest = name.strip_prefix("base_model.model.").ok_or_else(unused)?;
            let found = suffixes
                .iter()
                .find_map(|suffix| rest.strip_suffix(suffix.0).map(|path| (path, suffix)));
            if let Some((path, &(_, part, n_dims))) = found {
                let factor = named(tensor, n_dims)?;
                read.modules.entry(path.into()).or_default().insert(part, factor);
            } else if let Some(path) = rest.strip_suffix(".base_layer.weight") {
                read.copies.insert(path.into(), named(tensor, 2)?);
            } else if rest.contains(".base_layer.") {
                let (tensor, reason) = (name.clone(), "not of a weight matrix".into());
                return Err(OverlayError::BaseCopy { tensor, reason });
            } else if CONVOLUTIONS.iter().any(|suffix| rest.ends_with(suffix)) {
                return Err(OverlayError::Unsupported {
                    feature: Feature::Convolution,
                    field: name.clone(),
                    found: format!("a tensor of shape {:?}", tensor.shape),
                });
            } else {
                return Err(unused());
            }
        }
        Ok(read)
    }
}

/// The factor of `n_dims` dimensions, a vector as one row.
fn named(tensor: &TensorView<'_>, n_dims: usize) -> Result<Named, OverlayError> {
    let Some(encoding) = tensor.dtype.encoding() else {
        return Err(OverlayError::Dtype {
            tensor: tensor.name.clone(),
            dtype: tensor.dtype.name().into(),
        });
    };
    let (rows, cols) = match (n_dims, &tensor.shape[..]) {
        (2, &[rows, cols]) if rows > 0 && cols > 0 => (rows, cols),
        (1, &[len]) if len > 0 => (1, len),
        _ => {
            let (tensor, found) = (tensor.name.clone(), tensor.shape.clone());
            return Err(OverlayError::NotMatrix { tensor, found });
        }
    };
    let factor = Factor::new(&tensor.name, encoding, rows, cols, Cow::Borrowed(tensor.data))?;
    Ok(Named { tensor: tensor.name.clone(), factor })
}
