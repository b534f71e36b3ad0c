//! A manifest in TOML and in canonical JSON, from one description.

use serde::Serialize;

use super::{AdapterEntry, QuantizationEntry, RawManifest};

/// The manifest in TOML.
pub(super) fn toml(raw: &RawManifest) -> String {
    toml::to_string(&Document::of(raw)).expect("BUG: a checked manifest has no TOML form")
}

/// The manifest in canonical JSON.
pub(super) fn canonical_json(raw: &RawManifest) -> Vec<u8> {
    serde_json_canonicalizer::to_vec(&Document::of(raw))
        .expect("BUG: a checked manifest has no JSON form")
}

/// The double that stands for a weight in either form: the one nearest to the shortest decimal that gives the f32 back, so that 0.7 is
/// written as 0.7 and not as 0.699999988. Where rounding twice would give another f32, the weight itself.
pub(super) fn weight_as_written(weight: f32) -> f64 {
    match weight.to_string().parse::<f64>() {
        Ok(short) if short as f32 == weight => short,
        _ => f64::from(weight),
    }
}

#[derive(Serialize)]
struct Document<'a> {
    base_model_hash: String,
    tokenizer_id: String,
    timestamp_utc: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluation: Option<String>,
    runtime: Runtime<'a>,
    quantization: Vec<Quantization<'a>>,
    #[serde(skip_serializing_if = "Provenance::is_empty")]
    provenance: Provenance,
    adapters: Vec<Adapter<'a>>,
}

#[derive(Serialize)]
struct Runtime<'a> {
    name: &'a str,
    version: &'a str,
    numerics: u32,
}

#[derive(Serialize)]
struct Quantization<'a> {
    dtype: &'a str,
    scheme: &'a str,
    block_size: u32,
    tensors: u32,
}

#[derive(Serialize)]
struct Provenance {
    #[serde(skip_serializing_if = "Option::is_none")]
    base_file_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_source_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer_file_hash: Option<String>,
}

#[derive(Serialize)]
struct Adapter<'a> {
    name: &'a str,
    adapter_id: String,
    file_hash: String,
    load_order: u32,
    merge_weight: f64,
    targets: &'a [String],
    rank: u32,
    nnz: u64,
}

impl Provenance {
    fn is_empty(&self) -> bool {
        self.base_file_hash.is_none()
            && self.base_source_hash.is_none()
            && self.tokenizer_file_hash.is_none()
    }
}

impl<'a> Document<'a> {
    fn of(raw: &'a RawManifest) -> Document<'a> {
        Document {
            base_model_hash: raw.base_model_hash.to_string(),
            tokenizer_id: raw.tokenizer_id.to_string(),
            timestamp_utc: &raw.timestamp_utc,
            plan: raw.plan.map(|plan| plan.to_string()),
            evaluation: raw.evaluation.map(|digest| digest.to_string()),
            runtime: Runtime {
                name: &raw.runtime.name,
                version: &raw.runtime.version,
                numerics: raw.runtime.numerics,
            },
            quantization: raw.quantization.iter().map(Quantization::of).collect(),
            provenance: Provenance {
                base_file_hash: raw.provenance.base_file_hash.map(|digest| digest.to_string()),
                base_source_hash: raw.provenance.base_source_hash.map(|digest| digest.to_string()),
                tokenizer_file_hash: raw
                    .provenance
                    .tokenizer_file_hash
                    .map(|digest| digest.to_string()),
            },
            adapters: raw.adapters.iter().map(Adapter::of).collect(),
        }
    }
}

impl<'a> Quantization<'a> {
    fn of(entry: &'a QuantizationEntry) -> Quantization<'a> {
        Quantization {
            dtype: &entry.dtype,
            scheme: &entry.scheme,
            block_size: entry.block_size,
            tensors: entry.tensors,
        }
    }
}

impl<'a> Adapter<'a> {
    fn of(entry: &'a AdapterEntry) -> Adapter<'a> {
        Adapter {
            name: entry.name.as_str(),
            adapter_id: entry.adapter_id.to_string(),
            file_hash: entry.file_hash.to_string(),
            load_order: entry.load_order,
            merge_weight: weight_as_written(entry.merge_weight),
            targets: &entry.targets,
            rank: entry.rank,
            nnz: entry.nnz,
        }
    }
}
