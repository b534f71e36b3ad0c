//! `import` and `adapter import`.

use std::path::Path;

use serde_json::json;
use slm_runtime::load::Base;
use slm_runtime::runtime::ResolvedAdapter;

use crate::adapter::{read_adapter, report_lines, warnings};
use crate::args::{AdapterFormat, Factors};
use crate::error::CliError;
use crate::model::{engine, load_base, source_digest};
use crate::world::{World, now};

/// Brings a model into the store.
pub(crate) fn base(
    world: &World,
    path: &Path,
    name: Option<String>,
    replace: bool,
) -> Result<(), CliError> {
    let engine = engine(None, None)?;
    let spinner = world.output.spinner("checking and hashing every tensor");
    let base = load_base(path, &engine)?;
    let name = crate::model::name("--name", &name.ok_or(CliError::Missing { option: "--name" })?)?;
    spinner.set_message(format!("writing {} MB to the store", base.weight_bytes() / 1_000_000));
    let source = source_digest(path)?;
    let runtime = world.runtime(engine)?;
    let imported = runtime.load_base_from(&base, Some(source), &name, &now(), replace)?;
    spinner.finish_and_clear();
    let mut object = base_object(&base);
    object["name"] = json!(name.as_str());
    object["changed"] = json!(imported.changed);
    object["blob"] = json!(imported.blob);
    object["source"] = json!(source);
    let mut lines = vec![format!(
        "{} {name}: base {}",
        changed(imported.changed, "imported", "unchanged"),
        imported.base
    )];
    lines.extend(base_lines(&base));
    world.output.result(object, &lines);
    Ok(())
}

/// Brings an adapter into the store.
pub(crate) fn adapter(
    world: &World,
    path: &Path,
    name: Option<String>,
    base: Option<String>,
    (format, layout): (AdapterFormat, Option<&Path>),
    factors: Factors,
    replace: bool,
) -> Result<(), CliError> {
    let read = read_adapter(path, format, layout)?;
    let name = crate::model::name("--name", &name.ok_or(CliError::Missing { option: "--name" })?)?;
    let base = base.ok_or(CliError::Missing { option: "--base" })?;
    let runtime = world.runtime(engine(None, None)?)?;
    let kind = std::cell::Cell::new("");
    let declares = std::cell::Cell::new(true);
    let resolve = |shape: &slm_overlay::BaseShape<'_>| {
        let resolved = read(shape)?;
        kind.set(resolved.adapter.kind().name());
        declares.set(resolved.bound_to.is_some());
        match factors {
            Factors::Keep => Ok(resolved),
            Factors::F16 => {
                Ok(ResolvedAdapter { adapter: resolved.adapter.with_factors_f16()?, ..resolved })
            }
        }
    };
    let imported = runtime.load_adapter(&resolve, &base, &name, &now(), replace)?;
    let report = &imported.report;
    let warnings = warnings(report, declares.get());
    let object = json!({
        "adapter": imported.adapter,
        "name": name.as_str(),
        "kind": kind.get(),
        "base": imported.base,
        "blob": imported.blob,
        "changed": imported.changed,
        "targets": report.targets,
        "patterns": report.patterns,
        "dropped": report.dropped,
        "unread": report.unread,
        "warnings": warnings,
    });
    let mut lines = vec![
        format!(
            "{} {name}: adapter {}",
            changed(imported.changed, "imported", "unchanged"),
            imported.adapter
        ),
        format!("{} on {} tensors of base {}", kind.get(), report.targets.len(), imported.base),
    ];
    lines.extend(
        report.targets.iter().map(|t| format!("  {} rank {} scale {}", t.tensor, t.rank, t.scale)),
    );
    lines.extend(report_lines(report, &warnings));
    world.output.result(object, &lines);
    Ok(())
}

/// What a base is, for a program.
pub(crate) fn base_object(base: &Base) -> serde_json::Value {
    let quantization: Vec<_> = base
        .quantization()
        .into_iter()
        .map(|(encoding, tensors)| json!({ "type": encoding.name(), "tensors": tensors }))
        .collect();
    json!({
        "kind": "base",
        "base": base.id(),
        "model": base.name(),
        "architecture": base.config().architecture.name(),
        "parameters": base.parameters(),
        "bytes": base.weight_bytes(),
        "tokenizer": base.tokenizer_id(),
        "quantization": quantization,
    })
}

/// What a base is, for a person.
pub(crate) fn base_lines(base: &Base) -> Vec<String> {
    let quantization: Vec<String> = base
        .quantization()
        .into_iter()
        .map(|(encoding, tensors)| format!("{tensors} {encoding}"))
        .collect();
    let c = base.config();
    vec![
        format!(
            "{} ({}), {} parameters, {} bytes",
            base.name(),
            c.architecture.name(),
            base.parameters(),
            base.weight_bytes()
        ),
        format!(
            "{} layers, hidden {}, ffn {}, {} heads over {} of {}, vocabulary {}, context {}",
            c.n_layers,
            c.n_embd,
            c.n_ff,
            c.n_heads,
            c.n_kv_heads,
            c.head_dim,
            c.vocab_size,
            c.context_length
        ),
        format!("tensors: {}", quantization.join(", ")),
        format!("tokenizer {}", base.tokenizer_id()),
    ]
}

fn changed(changed: bool, yes: &'static str, no: &'static str) -> &'static str {
    if changed { yes } else { no }
}
