//! `verify`: everything in the store, compared with what it promises.

use serde_json::json;

use crate::error::CliError;
use crate::model::engine;
use crate::world::World;

/// Names everything that is broken, and ends with an error if anything is.
pub(crate) fn verify(world: &World, deep: bool) -> Result<(), CliError> {
    let runtime = world.looking(engine(Some(1), None)?)?;
    let progress = world.output.spinner("verifying");
    let report = runtime.verify(deep);
    progress.finish_and_clear();
    if !report.is_clean() {
        let findings = report.findings.iter().map(ToString::to_string).collect();
        return Err(CliError::Unclean { findings });
    }
    let object = json!({
        "clean": true,
        "deep": deep,
        "blobs": report.blobs,
        "bytes": report.bytes,
        "hashed": report.hashed,
        "hashed_bytes": report.hashed_bytes,
        "unneeded": report.unneeded,
        "records": report.records,
        "torn_tail": report.torn_tail,
    });
    let lines = [format!(
        "all is well: {} of {} blobs hashed ({} of {} bytes), {} records of the log, {} blobs that nothing needs",
        report.hashed,
        report.blobs,
        report.hashed_bytes,
        report.bytes,
        report.records,
        report.unneeded.len()
    )];
    world.output.result(object, &lines);
    Ok(())
}
