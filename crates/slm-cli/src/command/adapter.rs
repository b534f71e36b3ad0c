//! `adapter inspect` and `adapter diff`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use slm_overlay::{Adapter, Module};
use slm_runtime::runtime::ResolvedAdapter;
use slm_store::NameKind;

use crate::adapter::{NO_LAYOUT, read_adapter, report_lines, resolved_slm, warnings};
use crate::args::AdapterFormat;
use crate::error::CliError;
use crate::model::engine;
use crate::world::World;

/// What an adapter does to each tensor.
pub(crate) fn inspect(
    world: &World,
    what: &str,
    base: Option<&str>,
    layout: Option<&Path>,
) -> Result<(), CliError> {
    let resolved = open(world, what, base, layout)?;
    let (adapter, report) = (&resolved.adapter, &resolved.report);
    let warnings = warnings(report, resolved.bound_to.is_some());
    let modules: Vec<Value> = adapter.modules().iter().map(module_object).collect();
    let object = json!({
        "adapter": adapter.id(),
        "kind": adapter.kind().name(),
        "invocation": adapter.invocation(),
        "bytes": adapter.bytes(),
        "nnz": adapter.nnz(),
        "modules": modules,
        "patterns": report.patterns,
        "dropped": report.dropped,
        "unread": report.unread,
        "warnings": warnings,
    });
    let mut lines = vec![
        format!("adapter {}", adapter.id()),
        format!(
            "{} on {} tensors, {} bytes, {} values that are not zero",
            adapter.kind().name(),
            adapter.modules().len(),
            adapter.bytes(),
            adapter.nnz()
        ),
    ];
    if !adapter.invocation().is_empty() {
        lines.push(format!("acts from the tokens {:?} on", adapter.invocation()));
    }
    lines.extend(adapter.modules().iter().map(|module| {
        let factors: Vec<String> = module
            .factors()
            .iter()
            .map(|(name, f)| format!("{name} {} [{}, {}]", f.encoding(), f.rows(), f.cols()))
            .collect();
        format!(
            "  {} rank {} scale {}: {}",
            module.target,
            module.rank(),
            module.scale(),
            factors.join(", ")
        )
    }));
    lines.extend(report_lines(report, &warnings));
    world.output.result(object, &lines);
    Ok(())
}

/// What two adapters do differently.
pub(crate) fn diff(world: &World, a: &str, b: &str, base: Option<&str>) -> Result<(), CliError> {
    let (a, b) = (open(world, a, base, None)?.adapter, open(world, b, base, None)?.adapter);
    let by_target = |adapter: &Adapter| -> BTreeMap<String, Module> {
        adapter.modules().iter().map(|module| (module.target.clone(), module.clone())).collect()
    };
    let (ours, theirs) = (by_target(&a), by_target(&b));
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    if a.kind() != b.kind() {
        lines.push(format!("kind: {} and {}", a.kind().name(), b.kind().name()));
    }
    if a.invocation() != b.invocation() {
        lines.push(format!("invocation: {:?} and {:?}", a.invocation(), b.invocation()));
    }
    for (target, module) in &ours {
        match theirs.get(target) {
            None => {
                rows.push(json!({ "tensor": target, "only": "a" }));
                lines.push(format!("  {target}: only in the first"));
            }
            Some(other) if other != module => {
                let (differences, largest) = differences(module, other);
                lines.push(format!("  {target}: {}", differences.join(", ")));
                rows.push(
                    json!({ "tensor": target, "differences": differences, "largest": largest }),
                );
            }
            Some(_) => {}
        }
    }
    for target in theirs.keys().filter(|target| !ours.contains_key(*target)) {
        rows.push(json!({ "tensor": target, "only": "b" }));
        lines.push(format!("  {target}: only in the second"));
    }
    let same = a.id() == b.id();
    let object = json!({
        "same": same,
        "a": { "adapter": a.id(), "kind": a.kind().name() },
        "b": { "adapter": b.id(), "kind": b.kind().name() },
        "tensors": rows,
    });
    lines.insert(
        0,
        match same {
            true => format!("the same adapter: {}", a.id()),
            false => format!("{} and {}", a.id(), b.id()),
        },
    );
    world.output.result(object, &lines);
    Ok(())
}

/// What differs in a module, and the largest difference of an element where all shapes agree.
fn differences(a: &Module, b: &Module) -> (Vec<String>, Option<f32>) {
    let mut found = Vec::new();
    if a.kind() != b.kind() {
        found.push(format!("kind {} and {}", a.kind().name(), b.kind().name()));
    }
    if a.rank() != b.rank() {
        found.push(format!("rank {} and {}", a.rank(), b.rank()));
    }
    if a.scale().to_bits() != b.scale().to_bits() {
        found.push(format!("scale {} and {}", a.scale(), b.scale()));
    }
    let mut largest = Some(0f32);
    for ((name, ours), (other, theirs)) in a.factors().into_iter().zip(b.factors()) {
        if name != other || (ours.rows(), ours.cols()) != (theirs.rows(), theirs.cols()) {
            found.push(format!("{name} and {other} of other shapes"));
            largest = None;
        } else if ours != theirs {
            let own = ours.values().zip(theirs.values()).map(|(a, b)| (a - b).abs());
            let own = own.fold(0f32, f32::max);
            found.push(format!("{name} by up to {own}"));
            largest = largest.map(|largest| largest.max(own));
        }
    }
    if found.is_empty() {
        found.push("factors or positions".to_owned());
    }
    (found, largest)
}

fn module_object(module: &Module) -> Value {
    let factors: Vec<Value> = module
        .factors()
        .iter()
        .map(|(name, f)| {
            json!({ "name": name, "type": f.encoding().name(), "shape": [f.rows(), f.cols()], "blake3": f.content().to_string() })
        })
        .collect();
    json!({ "tensor": module.target, "rank": module.rank(), "scale": module.scale(), "factors": factors })
}

/// The adapter of a name, an id or a path. A file that names no base needs one.
pub(crate) fn open(
    world: &World,
    what: &str,
    base: Option<&str>,
    layout: Option<&Path>,
) -> Result<ResolvedAdapter, CliError> {
    if !Path::new(what).exists() {
        let runtime = world.runtime(engine(None, None)?)?;
        for (name, record) in runtime.store().names(NameKind::Adapter)? {
            let Ok(record) = record else { continue };
            if name.as_str() == what || record.id.to_string() == what {
                if layout.is_some() {
                    return Err(CliError::Format { path: what.into(), reason: NO_LAYOUT });
                }
                let bytes = runtime.store().verified_blob(record.blob)?;
                return resolved_slm((*bytes).as_ref());
            }
        }
        let name = what.chars().take(160).collect();
        return Err(slm_runtime::error::ActivationError::NotFound { kind: "adapter", name }.into());
    }
    let read = read_adapter(Path::new(what), AdapterFormat::Auto, layout)?;
    match base {
        Some(reference) => {
            let runtime = world.runtime(engine(None, None)?)?;
            let base = runtime.base_by_reference(reference)?;
            let resolved = read(&base.shape())?;
            resolved.tokens.check(&base)?;
            Ok(resolved)
        }
        // A .slm file is in normal form already; of every other, only a base gives it.
        None if what.ends_with(".slm") => {
            resolved_slm((*crate::world::map(Path::new(what))?).as_ref())
        }
        None => Err(CliError::Missing { option: "--base" }),
    }
}
