//! `gc`: away with what nothing needs.

use serde_json::json;

use crate::error::CliError;
use crate::model::engine;
use crate::world::{World, now};

/// Removes blobs that neither a name nor a kept generation needs.
pub(crate) fn gc(world: &World, keep: Option<u64>, drop_damaged: bool) -> Result<(), CliError> {
    let runtime = world.runtime(engine(Some(1), None)?)?;
    let keep = keep.unwrap_or(runtime.policy().store.keep_generations);
    let generations = usize::try_from(keep).unwrap_or(usize::MAX);
    let report = if drop_damaged {
        runtime.gc_dropping_damaged(generations, &now())?
    } else {
        runtime.gc(generations, &now())?
    };
    let object = json!({
        "removed": report.removed,
        "bytes": report.bytes,
        "kept": report.kept,
        "leased": report.leased,
        "damaged": report.damaged,
        "keep_generations": keep,
    });
    let mut lines: Vec<String> =
        report.removed.iter().map(|digest| format!("removed {digest}")).collect();
    lines.extend(report.damaged.iter().map(|digest| {
        format!(
            "kept {digest}: it is damaged and may be a signature or an evaluation record; --drop-damaged removes it"
        )
    }));
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
