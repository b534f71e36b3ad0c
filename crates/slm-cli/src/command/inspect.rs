//! `inspect`: what a name, a digest or any readable file holds, with the same checks as import.

use std::path::Path;

use serde_json::{Value, json};
use slm_format::Digest;
use slm_format::container::Container;
use slm_format::gguf::Gguf;
use slm_format::safetensors::SafeTensors;
use slm_manifest::{Manifest, Name};
use slm_overlay::binary::{BinaryFormat, Compact, LoraAdapter};
use slm_overlay::gguf::GgufAdapter;
use slm_overlay::peft::PeftAdapter;
use slm_runtime::Runtime;
use slm_runtime::error::{ActivationError, ModelError};
use slm_runtime::load::{Base, Bytes, ModelFormat};
use slm_store::{NameKind, NameRecord, Storage, StoreError};

use crate::adapter::{Beside, is_pickle, read_adapter, report_lines, warnings};
use crate::args::{AdapterFormat, KindArg};
use crate::command::compose::{adapter_lines, adapters_of};
use crate::command::document;
use crate::command::import::{base_lines, base_object};
use crate::error::CliError;
use crate::model::{engine, is_safetensors, open_base, tier_names};
use crate::world::{LIMITS, World, map, read};

/// For a program, and for a person.
pub(super) type Report = (Value, Vec<String>);

/// Files that mean something only beside the others of their folder.
const PARTS: [&str; 5] = [
    "adapter_config.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Prints what `what` is.
pub(crate) fn inspect(
    world: &World,
    what: Option<String>,
    kind: Option<KindArg>,
    cpu: bool,
) -> Result<(), CliError> {
    if cpu {
        let best = engine(Some(1), None)?.kernels.tier().name();
        let object = json!({ "tiers": tier_names(), "best": best });
        world
            .output
            .result(object, &[format!("tiers: {} (best: {best})", tier_names().join(", "))]);
        return Ok(());
    }
    let what = what.ok_or(CliError::Missing { option: "NAME or FILE" })?;
    let path = Path::new(&what);
    let (object, lines) = match stored(world, &what, kind)? {
        Some(report) => report,
        None if path.is_dir() => folder(path)?,
        None => file(path)?,
    };
    world.output.result(object, &lines);
    Ok(())
}

/// What a name or an id in the store holds.
fn stored(world: &World, what: &str, kind: Option<KindArg>) -> Result<Option<Report>, CliError> {
    let digest = what.parse::<Digest>().ok();
    // What cannot be a name or an id is a path, and needs no store.
    if digest.is_none() && what.parse::<Name>().is_err() && kind.is_none() {
        return Ok(None);
    }
    let runtime = match world.looking(engine(None, None)?) {
        Ok(runtime) => runtime,
        // A file can be looked into without a store.
        Err(_) if Path::new(what).exists() && kind.is_none() => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = named(&runtime, what, kind)?;
    let Some((first, name, record)) = found.first() else {
        let name = what.chars().take(160).collect();
        return match (kind, digest) {
            (Some(kind), _) => Err(ActivationError::NotFound { kind: kind.noun(), name }.into()),
            (None, Some(digest)) => document::stored(&runtime, digest),
            (None, None) => Ok(None),
        };
    };
    let record = record.clone()?;
    runtime.store().verify_blob(record.blob)?;
    let (mut object, mut lines) = match first {
        NameKind::Base => {
            let engine = runtime.engine();
            let bytes: Bytes = runtime.store().blob(record.blob)?;
            let opened = Base::open(bytes, &LIMITS, engine.kernels, &*engine.exec)?;
            let (expected, found) = (record.id, opened.id().digest());
            if expected != found {
                let (kind, name) = ("base", name.to_string());
                return Err(
                    ActivationError::RecordContradicts { kind, name, expected, found }.into()
                );
            }
            base(&opened)
        }
        NameKind::Adapter => {
            let bytes: Bytes = runtime.store().blob(record.blob)?;
            slm(&bytes)?
        }
        NameKind::Composition => {
            let bytes = runtime.store().blob(record.blob)?;
            composition(&runtime, &Manifest::parse((*bytes).as_ref(), &LIMITS)?)?
        }
    };
    object["name"] = json!(name);
    object["blob"] = json!(record.blob);
    // A base, an adapter and a composition may have one name, as they have after `unpack`.
    let others = found.iter().map(|found| found.0).filter(|kind| kind != first);
    let others: Vec<NameKind> = others.collect();
    object["also"] = json!(others.iter().map(ToString::to_string).collect::<Vec<_>>());
    for kind in others {
        lines.push(format!("also the name of another thing: slm inspect {what} --kind {kind}"));
    }
    Ok(Some((object, lines)))
}

/// What is called so, or has this identity or this blob: a composition first, which is what the other commands take a name for.
#[allow(clippy::type_complexity, reason = "a list of what `Store::names` gives")]
fn named<S: Storage>(
    runtime: &Runtime<S>,
    what: &str,
    kind: Option<KindArg>,
) -> Result<Vec<(NameKind, Name, Result<NameRecord, StoreError>)>, CliError> {
    let mut found = Vec::new();
    for of in [NameKind::Composition, NameKind::Base, NameKind::Adapter] {
        if kind.is_some_and(|kind| NameKind::from(kind) != of) {
            continue;
        }
        let is_meant = |(name, record): &(Name, Result<NameRecord, StoreError>)| {
            name.as_str() == what
                || record.as_ref().is_ok_and(|record| {
                    record.id.to_string() == what || record.blob.to_string() == what
                })
        };
        let mut names = runtime.store().names(of)?.into_iter();
        found.extend(names.find(is_meant).map(|(name, record)| (of, name, record)));
    }
    Ok(found)
}

/// A manifest of the store, with what was measured of its composition.
pub(super) fn composition<S: Storage>(
    runtime: &Runtime<S>,
    parsed: &Manifest,
) -> Result<Report, CliError> {
    let (records, more) = crate::command::record::of(runtime, parsed.composition_id())?;
    let (mut object, mut lines) = manifest(parsed);
    object["records"] = json!(records);
    lines.extend(more);
    Ok((object, lines))
}

fn folder(path: &Path) -> Result<Report, CliError> {
    if path.join("adapter_config.json").exists() {
        let _resolve = read_adapter(path, AdapterFormat::Peft, None)?;
        let weights = map(&path.join("adapter_model.safetensors"))?;
        let config = read(&path.join("adapter_config.json"))?;
        let adapter = PeftAdapter::parse(&config, (*weights).as_ref(), &LIMITS)?;
        let mut report = adapter.resolve_alone()?;
        Beside::of(path)?.add_to(&mut report);
        let (mut object, _) = safetensors((*weights).as_ref())?;
        object["kind"] = json!("peft-adapter");
        object["targets"] = json!(report.targets);
        let warnings = warnings(&report, false);
        object["patterns"] = json!(report.patterns);
        object["dropped"] = json!(report.dropped);
        object["unread"] = json!(report.unread);
        object["warnings"] = json!(warnings);
        let mut lines = vec![format!("an adapter on {} tensors", report.targets.len())];
        lines.extend(
            report
                .targets
                .iter()
                .map(|t| format!("  {} rank {} scale {}", t.tensor, t.rank, t.scale)),
        );
        lines.extend(report_lines(&report, &warnings));
        return Ok((object, lines));
    }
    Ok(base(&open_base(path, &engine(None, None)?)?))
}

fn file(path: &Path) -> Result<Report, CliError> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if PARTS.contains(&name) {
        let reason = "one part of a model or an adapter; give its folder";
        return Err(CliError::Format { path: path.to_owned(), reason });
    }
    if extension == "toml" || extension == "json" {
        let bytes = read(path)?;
        return match document::held(&bytes)? {
            Some(report) => Ok(report),
            None => Ok(manifest(&Manifest::parse(&bytes, &LIMITS)?)),
        };
    }
    let bytes = map(path)?;
    let head: &[u8] = (*bytes).as_ref();
    if let Some(format) = BinaryFormat::detect(head) {
        return lora_binary(head, format);
    }
    if let Some(report) = document::held(head)? {
        return Ok(report);
    }
    match ModelFormat::detect(head) {
        Ok(ModelFormat::Gguf) if GgufAdapter::is_adapter(&Gguf::parse(head, &LIMITS)?) => {
            gguf_adapter(head)
        }
        Ok(ModelFormat::Gguf | ModelFormat::Slm1) => {
            Ok(base(&open_base(path, &engine(None, None)?)?))
        }
        Ok(ModelFormat::Slm) => {
            let bytes: Bytes = bytes;
            slm(&bytes)
        }
        Err(_) if is_safetensors(path, head) => safetensors(head),
        Err(_) if is_pickle(path, head) => Err(CliError::Pickle { path: path.to_owned() }),
        Err(_) if head.first() == Some(&b'{') => Ok(manifest(&Manifest::parse(head, &LIMITS)?)),
        Err(error) => Err(error.into()),
    }
}

fn base(base: &slm_runtime::load::Base) -> Report {
    let mut object = base_object(base);
    let tensors: Vec<Value> = base
        .tensors()
        .iter()
        .map(|t| json!({ "name": t.name(), "type": t.encoding().name(), "shape": t.shape(), "blake3": t.content().to_string() }))
        .collect();
    object["tensors"] = tensors.into();
    let mut lines = vec![format!("base {}", base.id())];
    lines.extend(base_lines(base));
    (object, lines)
}

pub(super) fn slm(bytes: &Bytes) -> Result<Report, CliError> {
    let container = Container::open((**bytes).as_ref(), &LIMITS)?;
    container.verify_all()?;
    match slm_runtime::runtime::read_adapter(&container, &LIMITS) {
        Ok((adapter, requires)) => {
            let bound = requires.base;
            let targets: Vec<Value> = adapter
                .modules()
                .iter()
                .map(|module| json!({ "tensor": module.target, "rank": module.rank(), "scale": module.scale() }))
                .collect();
            let lines = vec![
                format!("adapter {}", adapter.id()),
                format!(
                    "{} on {} tensors, bound to base {bound}",
                    adapter.kind().name(),
                    adapter.modules().len()
                ),
            ];
            Ok((
                json!({ "kind": "adapter", "adapter": adapter.id(), "base": bound, "targets": targets }),
                lines,
            ))
        }
        Err(error) => {
            let engine = engine(None, None)?;
            match slm_runtime::load::Base::open(
                bytes.clone(),
                &LIMITS,
                engine.kernels,
                &*engine.exec,
            ) {
                Ok(opened) => Ok(base(&opened)),
                // Neither: an adapter's own fault says more than the missing parts of a base.
                Err(slm_runtime::RuntimeError::Model(ModelError::SectionMissing { .. })) => {
                    Err(error.into())
                }
                Err(error) => Err(error.into()),
            }
        }
    }
}

/// A binary LoRA file: shapes alone, since it names no base.
fn lora_binary(bytes: &[u8], format: BinaryFormat) -> Result<Report, CliError> {
    let (format, pairs, layout) = match format {
        BinaryFormat::Plan008 => ("plan008", LoraAdapter::load(bytes, &LIMITS)?, None),
        BinaryFormat::Compact => {
            let file = Compact::load(bytes, &LIMITS)?;
            let layout = file.layout();
            ("compact", file.adapters, Some(layout))
        }
    };
    let name = |at: usize| layout.as_ref().map(|layout| layout[at].clone());
    let rows: Vec<Value> = pairs
        .iter()
        .enumerate()
        .map(|(at, p)| json!({ "position": at, "tensor": name(at), "rank": p.rank, "in": p.in_dim, "out": p.out_dim, "alpha": p.alpha }))
        .collect();
    let mut lines = vec![format!("{format}: {} low-rank pairs", pairs.len())];
    lines.extend(pairs.iter().enumerate().map(|(at, p)| {
        let name = name(at).unwrap_or_else(|| format!("position {at}"));
        format!("  {name} rank {} alpha {} from {} to {}", p.rank, p.alpha, p.in_dim, p.out_dim)
    }));
    Ok((json!({ "kind": "lora-binary", "format": format, "pairs": rows }), lines))
}

fn gguf_adapter(bytes: &[u8]) -> Result<Report, CliError> {
    let report = GgufAdapter::parse(bytes, &LIMITS)?.resolve_alone()?;
    let mut lines = vec![format!("gguf adapter on {} tensors", report.targets.len())];
    lines.extend(
        report.targets.iter().map(|t| format!("  {} rank {} scale {}", t.tensor, t.rank, t.scale)),
    );
    let warnings = warnings(&report, false);
    lines.extend(report_lines(&report, &warnings));
    let object = json!({
        "kind": "gguf-adapter",
        "targets": report.targets,
        "patterns": report.patterns,
        "dropped": report.dropped,
        "warnings": warnings,
    });
    Ok((object, lines))
}

fn safetensors(bytes: &[u8]) -> Result<Report, CliError> {
    let parsed = SafeTensors::parse(bytes, &LIMITS)?;
    let rows: Vec<Value> = parsed
        .tensors()
        .iter()
        .map(|t| json!({ "name": t.name, "dtype": t.dtype.name(), "shape": t.shape, "bytes": t.data.len() }))
        .collect();
    let lines = parsed
        .tensors()
        .iter()
        .map(|t| format!("{:<6} {:?} {}", t.dtype.name(), t.shape, t.name))
        .collect();
    Ok((json!({ "kind": "safetensors", "tensors": rows, "metadata": parsed.metadata() }), lines))
}

pub(super) fn manifest(manifest: &Manifest) -> Report {
    let object = json!({
        "kind": "manifest",
        "manifest": manifest.digest(),
        "composition": manifest.composition_id(),
        "base": manifest.base_model_hash,
        "tokenizer": manifest.tokenizer_id,
        "timestamp_utc": manifest.timestamp_utc,
        "adapters": adapters_of(manifest),
    });
    let mut lines = vec![
        format!("manifest {}", manifest.digest()),
        format!("composition {}", manifest.composition_id()),
        format!("base {}", manifest.base_model_hash),
    ];
    lines.extend(adapter_lines(manifest));
    (object, lines)
}
