//! `verify`: everything in the store, compared with what it promises.

use serde_json::{Value, json};
use slm_format::Coded;

use crate::error::CliError;
use crate::model::engine;
use crate::world::World;

/// Names everything that is broken, and ends with an error if anything is.
pub(crate) fn verify(world: &World, deep: bool) -> Result<(), CliError> {
    let runtime = world.runtime(engine(Some(1), None)?)?;
    let progress = world.output.spinner("verifying");
    let report = runtime.verify(deep);
    progress.finish_and_clear();
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| {
            json!({
                "place": finding.place.to_string(),
                "code": finding.error.code(),
                "message": finding.error.to_string(),
            })
        })
        .collect();
    let object = json!({
        "clean": report.is_clean(),
        "deep": deep,
        "findings": findings,
        "blobs": report.blobs,
        "bytes": report.bytes,
        "hashed": report.hashed,
        "hashed_bytes": report.hashed_bytes,
        "unneeded": report.unneeded,
        "records": report.records,
        "torn_tail": report.torn_tail,
    });
    let mut lines: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    lines.push(format!(
        "{} of {} blobs hashed ({} of {} bytes), {} records of the log, {} blobs that nothing needs",
        report.hashed,
        report.blobs,
        report.hashed_bytes,
        report.bytes,
        report.records,
        report.unneeded.len()
    ));
    world.output.result(object, &lines);
    if report.is_clean() { Ok(()) } else { Err(CliError::Unclean { n: report.findings.len() }) }
}
