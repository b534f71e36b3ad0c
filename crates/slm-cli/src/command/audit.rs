//! `audit`: the log, verified.

use serde_json::{Value, json};
use slm_store::AuditRecord;

use crate::error::CliError;
use crate::model::engine;
use crate::world::World;

/// Verifies the chain of the log and prints who did what, when, to which composition, and how it ended.
pub(crate) fn audit(world: &World) -> Result<(), CliError> {
    let report = world.looking(engine(Some(1), None)?)?.store().audit()?;
    let lines: Vec<String> = report.records.iter().map(line).collect();
    let rows: Vec<Value> = report.records.iter().map(object).collect();
    if report.torn_tail > 0 {
        let note = "bytes of a record that was not finished; the next change cuts them off";
        world.output.note(&format!("warning: {} {note}", report.torn_tail));
    }
    let object = json!({ "records": rows, "verified": true, "torn_tail": report.torn_tail });
    world.output.result(object, &lines);
    Ok(())
}

fn line(record: &AuditRecord) -> String {
    let mut line = format!(
        "{:>6}  {}  {:<14} {:<11}",
        record.sequence,
        record.time,
        record.operation.to_string(),
        record.stage.to_string()
    );
    let mut say = |what: &str, value: Option<String>| {
        if let Some(value) = value {
            line.push_str(&format!(" {what}{value}"));
        }
    };
    say("by ", record.actor.as_ref().map(ToString::to_string));
    say("name ", record.name.as_ref().map(ToString::to_string));
    say("", record.composition.map(|id| id.to_string()));
    say("code ", record.code.clone());
    say("outcome ", record.outcome.map(|outcome| outcome.to_string()));
    say("why ", record.why.clone());
    line.trim_end().to_owned()
}

fn object(record: &AuditRecord) -> Value {
    serde_json::to_value(record).expect("BUG: an audit record could not be encoded")
}
