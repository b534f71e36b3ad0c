//! `activate`, `rollback`, `deactivate`, `status`, `history`.

use serde_json::json;
use slm_runtime::runtime::Activation;

use crate::command::compose::{adapter_lines, adapters_of};
use crate::command::record;
use crate::error::CliError;
use crate::model::{engine, reference};
use crate::world::{World, now};

/// Makes a composition the active one.
pub(crate) fn activate(world: &World, what: &str) -> Result<(), CliError> {
    let runtime = world.runtime(engine(None, None)?)?.in_place();
    let reference = reference(&runtime, what)?;
    let activation = runtime.activate_composition(&reference, &now())?;
    print(world, &activation);
    // The process ends, and the system takes back at once what it had: taking it apart piece by piece would take longer.
    std::mem::forget(runtime);
    Ok(())
}

/// Goes back to the parent generation.
pub(crate) fn rollback(world: &World) -> Result<(), CliError> {
    let activation = world.runtime(engine(None, None)?)?.in_place().rollback(&now())?;
    print(world, &activation);
    Ok(())
}

/// Activates the stack without one adapter.
pub(crate) fn deactivate(world: &World, adapter: &str) -> Result<(), CliError> {
    let activation =
        world.runtime(engine(None, None)?)?.in_place().deactivate_adapter(adapter, &now())?;
    print(world, &activation);
    Ok(())
}

/// What is active.
pub(crate) fn status(world: &World) -> Result<(), CliError> {
    let runtime = world.looking(engine(Some(1), None)?)?;
    let status = runtime.status()?;
    let (records, record_lines) = record::of(&runtime, status.composition)?;
    let object = json!({
        "composition": status.composition,
        "generation": status.generation,
        "manifest": status.manifest_digest,
        "base": status.manifest.base_model_hash,
        "adapters": adapters_of(&status.manifest),
        "records": records,
        "policy_fault": runtime.policy_fault().as_ref().map(ToString::to_string),
        "fault": status.fault.as_ref().map(ToString::to_string),
    });
    let mut lines = vec![
        format!("composition {}", status.composition),
        format!("generation {}, manifest {}", status.generation, status.manifest_digest),
        format!("base {}", status.manifest.base_model_hash),
    ];
    lines.extend(adapter_lines(&status.manifest));
    lines.extend(record_lines);
    world.output.result(object, &lines);
    Ok(())
}

/// The chain of generations.
pub(crate) fn history(world: &World) -> Result<(), CliError> {
    let history = world.looking(engine(Some(1), None)?)?.history()?;
    let rows: Vec<_> = history
        .iter()
        .map(|e| json!({ "generation": e.generation, "composition": e.composition, "manifest": e.manifest, "time": e.time }))
        .collect();
    let lines: Vec<String> = history
        .iter()
        .map(|e| format!("{:>6}  {}  {}", e.generation, e.time, e.composition))
        .collect();
    world.output.result(json!({ "generations": rows }), &lines);
    Ok(())
}

fn print(world: &World, activation: &Activation) {
    let object = json!({
        "composition": activation.composition,
        "manifest": activation.manifest,
        "generation": activation.generation,
        "previous": activation.previous,
        "changed": activation.changed,
    });
    let verb = if activation.changed { "active" } else { "unchanged" };
    let mut lines = vec![format!(
        "{verb}: composition {} (generation {})",
        activation.composition, activation.generation
    )];
    if let Some(previous) = activation.previous.filter(|_| activation.changed) {
        lines.push(format!("before: {previous}"));
    }
    world.output.result(object, &lines);
}
