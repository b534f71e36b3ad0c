//! `gc`: away with what nothing needs.

use serde_json::json;

use crate::error::CliError;
use crate::model::engine;
use crate::world::{World, now};

/// Removes blobs that neither a name nor a kept generation needs.
pub(crate) fn gc(world: &World, keep: Option<u64>) -> Result<(), CliError> {
    let runtime = world.runtime(engine(Some(1), None)?)?;
    let keep = keep.unwrap_or(runtime.policy().store.keep_generations);
    let report = runtime.gc(usize::try_from(keep).unwrap_or(usize::MAX), &now())?;
    let object = json!({
        "removed": report.removed,
        "bytes": report.bytes,
        "kept": report.kept,
        "leased": report.leased,
        "keep_generations": keep,
    });
    let mut lines: Vec<String> =
        report.removed.iter().map(|digest| format!("removed {digest}")).collect();
    lines.push(format!(
        "{} blobs removed ({} bytes), {} kept, {} of them only because somebody has them open",
        report.removed.len(),
        report.bytes,
        report.kept,
        report.leased.len()
    ));
    world.output.result(object, &lines);
    Ok(())
}
