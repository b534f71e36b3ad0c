//! From a tree to the fields, and from the fields to a manifest that holds together.

use std::collections::BTreeSet;

use slm_format::Encoding;

use super::error::{ManifestError, cut};
use super::read::{Fields, Node};
use super::{AdapterEntry, MAX_COUNT, Provenance, QuantizationEntry, RawManifest, RuntimeTag};
use crate::NUMERICS_VERSION;
use crate::id::{AdapterId, BaseId, PlanId, TokenizerId};
use crate::timestamp::is_utc_timestamp;

/// The only runtime there is.
pub(super) const RUNTIME_NAME: &str = "slm";

const TOP: [&str; 9] = [
    "base_model_hash",
    "tokenizer_id",
    "quantization",
    "runtime",
    "timestamp_utc",
    "plan",
    "adapters",
    "provenance",
    "evaluation",
];
const QUANTIZATION: [&str; 4] = ["dtype", "scheme", "block_size", "tensors"];
const RUNTIME: [&str; 3] = ["name", "version", "numerics"];
const ADAPTER: [&str; 8] =
    ["name", "adapter_id", "file_hash", "load_order", "merge_weight", "targets", "rank", "nnz"];
const PROVENANCE: [&str; 3] = ["base_file_hash", "base_source_hash", "tokenizer_file_hash"];

/// Takes every field out of a tree. What fields mean together is [`check`]'s business.
pub(super) fn raw_from_tree(tree: Node) -> Result<RawManifest, ManifestError> {
    check_numerics(&tree)?;
    let mut fields = Fields::new("", tree, &TOP)?;
    Ok(RawManifest {
        base_model_hash: BaseId::from_digest(fields.digest("base_model_hash")?),
        tokenizer_id: TokenizerId::from_digest(fields.digest("tokenizer_id")?),
        quantization: each(fields.list("quantization")?, "quantization", quantization)?,
        runtime: runtime(fields.required("runtime")?)?,
        timestamp_utc: fields.text("timestamp_utc")?,
        plan: fields.optional_digest("plan")?.map(PlanId::from_digest),
        // The bare base says so with an empty list: a stack that was lost must not read as none.
        adapters: each(fields.list("adapters")?, "adapters", adapter)?,
        provenance: match fields.optional("provenance") {
            Some(node) => provenance(node)?,
            None => Provenance::default(),
        },
        evaluation: fields.optional_digest("evaluation")?,
    })
}

/// Checks what fields mean and how they agree, and brings the lists without an order of their own into one.
pub(super) fn check(mut raw: RawManifest) -> Result<RawManifest, ManifestError> {
    check_runtime(&raw.runtime)?;
    if !is_utc_timestamp(&raw.timestamp_utc) {
        return Err(ManifestError::Timestamp {
            field: "timestamp_utc".to_owned(),
            found: cut(&raw.timestamp_utc),
        });
    }
    check_quantization(&raw.quantization)?;
    raw.quantization.sort_by(|a, b| a.scheme.cmp(&b.scheme));
    let mut ids = BTreeSet::new();
    let mut names = BTreeSet::new();
    for (expected, adapter) in (1u64..).zip(&mut raw.adapters) {
        let field = |name: &str| format!("adapters[{}].{name}", expected - 1);
        let found = u64::from(adapter.load_order);
        if found != expected {
            return Err(ManifestError::LoadOrder { field: field("load_order"), found, expected });
        }
        if !ids.insert(adapter.adapter_id) {
            return Err(ManifestError::DuplicateAdapter {
                field: field("adapter_id"),
                adapter: adapter.adapter_id,
            });
        }
        if !names.insert(&adapter.name) {
            return Err(ManifestError::DuplicateName {
                field: field("name"),
                name: adapter.name.to_string(),
            });
        }
        if !adapter.merge_weight.is_finite() {
            return Err(ManifestError::Weight {
                field: field("merge_weight"),
                found: adapter.merge_weight.to_string(),
            });
        }
        if adapter.merge_weight == 0.0 {
            adapter.merge_weight = 0.0;
        }
        adapter.targets.sort_unstable();
        check_targets(&adapter.targets, &field("targets"))?;
        if adapter.nnz > MAX_COUNT {
            return Err(ManifestError::Range {
                field: field("nnz"),
                found: adapter.nnz.to_string(),
                min: 0,
                max: MAX_COUNT,
            });
        }
    }
    Ok(raw)
}

/// What a weight is called in an encoding. Normal-float codes count as `int4`, as the field writes it.
pub(super) fn dtype(encoding: Encoding) -> String {
    let dtype = match encoding {
        Encoding::Q2_K => "int2",
        Encoding::Q3_K => "int3",
        Encoding::Q4_0
        | Encoding::Q4_1
        | Encoding::Q4_K
        | Encoding::IQ4_NL
        | Encoding::IQ4_XS
        | Encoding::NF4 => "int4",
        Encoding::Q5_0 | Encoding::Q5_1 | Encoding::Q5_K => "int5",
        Encoding::Q6_K => "int6",
        Encoding::Q8_0 => "int8",
        Encoding::MXFP4 => "fp4",
        // F32, F16, BF16, and any plain type to come.
        other => return other.name().to_ascii_lowercase(),
    };
    dtype.to_owned()
}

/// Weights per block of an encoding.
pub(super) fn block_size(encoding: Encoding) -> u32 {
    u32::try_from(encoding.block_elements()).expect("BUG: a block of more than 2^32 elements")
}

/// The version of the arithmetic comes before everything: a manifest of another version may well have other fields.
fn check_numerics(tree: &Node) -> Result<(), ManifestError> {
    match tree.get("runtime").and_then(|runtime| runtime.get("numerics")) {
        Some(&Node::Integer(found)) if found != i128::from(NUMERICS_VERSION) => {
            match u64::try_from(found) {
                Ok(found) => {
                    Err(ManifestError::NumericsVersion { found, expected: NUMERICS_VERSION })
                }
                // Negative: the field's own check refuses it.
                Err(_) => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

fn runtime(node: Node) -> Result<RuntimeTag, ManifestError> {
    let mut fields = Fields::new("runtime", node, &RUNTIME)?;
    Ok(RuntimeTag {
        name: fields.text("name")?,
        version: fields.text("version")?,
        numerics: fields.count_u32("numerics")?,
    })
}

fn quantization(path: &str, node: Node) -> Result<QuantizationEntry, ManifestError> {
    let mut fields = Fields::new(path, node, &QUANTIZATION)?;
    Ok(QuantizationEntry {
        dtype: fields.text("dtype")?,
        scheme: fields.text("scheme")?,
        block_size: fields.count_u32("block_size")?,
        tensors: fields.count_u32("tensors")?,
    })
}

fn adapter(path: &str, node: Node) -> Result<AdapterEntry, ManifestError> {
    let mut fields = Fields::new(path, node, &ADAPTER)?;
    Ok(AdapterEntry {
        name: fields.name("name")?,
        adapter_id: AdapterId::from_digest(fields.digest("adapter_id")?),
        file_hash: fields.digest("file_hash")?,
        load_order: fields.count_u32("load_order")?,
        merge_weight: fields.weight("merge_weight")?,
        targets: {
            let path = fields.field("targets");
            each(fields.list("targets")?, &path, |path, node| node.text(path))?
        },
        rank: fields.count_u32("rank")?,
        nnz: fields.count("nnz", MAX_COUNT)?,
    })
}

fn provenance(node: Node) -> Result<Provenance, ManifestError> {
    let mut fields = Fields::new("provenance", node, &PROVENANCE)?;
    Ok(Provenance {
        base_file_hash: fields.optional_digest("base_file_hash")?,
        base_source_hash: fields.optional_digest("base_source_hash")?,
        tokenizer_file_hash: fields.optional_digest("tokenizer_file_hash")?,
    })
}

fn each<T>(
    nodes: Vec<Node>,
    path: &str,
    item: impl Fn(&str, Node) -> Result<T, ManifestError>,
) -> Result<Vec<T>, ManifestError> {
    nodes.into_iter().enumerate().map(|(at, node)| item(&format!("{path}[{at}]"), node)).collect()
}

fn check_runtime(runtime: &RuntimeTag) -> Result<(), ManifestError> {
    if runtime.name != RUNTIME_NAME {
        return Err(ManifestError::Runtime {
            field: "runtime.name",
            found: cut(&runtime.name),
            expected: "slm",
        });
    }
    if runtime.numerics != NUMERICS_VERSION {
        return Err(ManifestError::NumericsVersion {
            found: u64::from(runtime.numerics),
            expected: NUMERICS_VERSION,
        });
    }
    let version = &runtime.version;
    let fits = (1..=64).contains(&version.len())
        && version.starts_with(|first: char| first.is_ascii_digit());
    if !fits || !version.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+-".contains(&byte))
    {
        let expected = "a version of at most 64 characters";
        return Err(ManifestError::Runtime {
            field: "runtime.version",
            found: cut(version),
            expected,
        });
    }
    Ok(())
}

fn check_quantization(entries: &[QuantizationEntry]) -> Result<(), ManifestError> {
    let refuse = |field: String, found: &str, expected: String| {
        Err(ManifestError::Quantization { field, found: cut(found), expected })
    };
    if entries.is_empty() {
        return refuse("quantization".to_owned(), "", "at least one entry".to_owned());
    }
    let mut seen = BTreeSet::new();
    for (at, entry) in entries.iter().enumerate() {
        let field = |name: &str| format!("quantization[{at}].{name}");
        let Some(encoding) = Encoding::from_name(&entry.scheme) else {
            return refuse(field("scheme"), &entry.scheme, "the name of an encoding".to_owned());
        };
        if !seen.insert(encoding) {
            return refuse(field("scheme"), &entry.scheme, "each scheme once".to_owned());
        }
        let expected = QuantizationEntry::of(encoding, entry.tensors);
        if entry.dtype != expected.dtype {
            return refuse(
                field("dtype"),
                &entry.dtype,
                format!("{} for {encoding}", expected.dtype),
            );
        }
        if entry.block_size != expected.block_size {
            return refuse(
                field("block_size"),
                &entry.block_size.to_string(),
                format!("{} for {encoding}", expected.block_size),
            );
        }
        if entry.tensors == 0 {
            return Err(ManifestError::Range {
                field: field("tensors"),
                found: "0".to_owned(),
                min: 1,
                max: u64::from(u32::MAX),
            });
        }
    }
    Ok(())
}

/// `targets` are sorted.
fn check_targets(targets: &[String], field: &str) -> Result<(), ManifestError> {
    let refuse =
        |found: &str| Err(ManifestError::Targets { field: field.to_owned(), found: cut(found) });
    if targets.is_empty() {
        return refuse("");
    }
    for (at, target) in targets.iter().enumerate() {
        let spelled = (1..=256).contains(&target.len())
            && target.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !spelled || (at > 0 && targets[at - 1] == *target) {
            return refuse(target);
        }
    }
    Ok(())
}
