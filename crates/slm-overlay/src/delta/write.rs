//! Writing typed deltas.

use std::collections::BTreeMap;

use slm_format::Digest;
use slm_format::safetensors::{self, Dtype, TensorSource};

use super::{DeltaIdentity, KEY, VERSION};
use crate::{Adapter, AdapterKind, Delta, OverlayError};

/// What errors call the format.
const FORMAT: &str = "a typed delta";

/// The adapter as a typed delta for the base of `identity`. Deterministic.
///
/// # Errors
/// [`OverlayError::Export`] for another kind than sparse, dense and plain low rank, a scale other than 1, factors other than F32, and a low-rank
/// adapter that has not one source.
pub fn to_delta(adapter: &Adapter, identity: &DeltaIdentity) -> Result<Vec<u8>, OverlayError> {
    let refuse = |tensor: &str, what: &'static str| OverlayError::Export {
        tensor: tensor.to_owned(),
        format: FORMAT,
        what,
    };
    let first = &adapter.modules()[0].target;
    let mut metadata: BTreeMap<String, String> =
        identity.texts().into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
    metadata.insert(KEY.to_owned(), VERSION.to_owned());
    let kind = match adapter.kind() {
        AdapterKind::Dense => "dense",
        AdapterKind::Sparse => {
            metadata.insert("retention".to_owned(), retention(adapter).to_string());
            metadata.insert("mask".to_owned(), mask_digest(adapter).to_string());
            "sparse"
        }
        AdapterKind::Lora => {
            let [source] = adapter.sources() else {
                return Err(refuse(first, "other than one source"));
            };
            metadata.insert("source".to_owned(), source.digest.to_string());
            metadata.insert("source_name".to_owned(), source.name.clone());
            "low-rank"
        }
        _ => return Err(refuse(first, "this kind of adapter")),
    };
    metadata.insert("kind".to_owned(), kind.to_owned());

    let mut tensors: Vec<(String, Dtype, Vec<u64>, Vec<u8>)> = Vec::new();
    for module in adapter.modules() {
        let target = &module.target;
        if module.scale() != 1.0 {
            return Err(refuse(target, "a scale other than 1"));
        }
        let plain = |(_, factor): &(_, &crate::Factor)| {
            Dtype::from_encoding(factor.encoding()) == Some(Dtype::F32)
        };
        if !module.factors().iter().all(plain) {
            return Err(refuse(target, "factors other than F32"));
        }
        if let Delta::Sparse(sparse) = &module.delta {
            let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let shape = [u64::from(sparse.rows), u64::from(sparse.cols)];
            tensors.push((format!("{target}.shape"), Dtype::U64, vec![2], words(&shape)));
            let n = sparse.indices.len() as u64;
            tensors.push((
                format!("{target}.indices"),
                Dtype::U64,
                vec![n],
                words(&sparse.indices),
            ));
        }
        if matches!(&module.delta, Delta::Lora(lora) if lora.bias.is_some()) {
            return Err(refuse(target, "a bias"));
        }
        for (name, factor) in module.factors() {
            let (rows, cols) = (u64::from(factor.rows()), u64::from(factor.cols()));
            let shape = if name == "values" { vec![cols] } else { vec![rows, cols] };
            tensors.push((format!("{target}.{name}"), Dtype::F32, shape, factor.data().to_vec()));
        }
    }
    let sources: Vec<TensorSource<'_>> = tensors
        .iter()
        .map(|(name, dtype, shape, data)| TensorSource { name, dtype: *dtype, shape, data })
        .collect();
    let mut file = Vec::new();
    safetensors::write(&mut file, &sources, &metadata)?;
    Ok(file)
}

/// The elements that a sparse adapter keeps over all elements of its targets; 0 for other kinds.
pub(super) fn retention(adapter: &Adapter) -> f64 {
    let counts = adapter.modules().iter().filter_map(|module| match &module.delta {
        Delta::Sparse(sparse) => {
            let all = u64::from(sparse.rows) * u64::from(sparse.cols);
            Some((sparse.indices.len() as f64, all as f64))
        }
        _ => None,
    });
    let (kept, all) =
        counts.fold((0.0, 0.0), |sums, counts| (sums.0 + counts.0, sums.1 + counts.1));
    if all > 0.0 { kept / all } else { 0.0 }
}

/// The digest of a sparse adapter's mask: of each target, by name, its name, a line feed, and its indices as little-endian u64.
pub fn mask_digest(adapter: &Adapter) -> Digest {
    let mut bytes = Vec::new();
    for module in adapter.modules() {
        if let Delta::Sparse(sparse) = &module.delta {
            bytes.extend(module.target.as_bytes());
            bytes.push(b'\n');
            sparse.indices.iter().for_each(|index| bytes.extend(index.to_le_bytes()));
        }
    }
    Digest::of(&bytes)
}
