//! `recover`: the way back where the store does not tell what is active.

use serde_json::json;

use crate::error::CliError;
use crate::model::engine;
use crate::world::{World, now};

/// Shows what the audit log says was active last, and makes it active again if told to.
pub(crate) fn recover(world: &World, yes: bool) -> Result<(), CliError> {
    let recovery = if yes {
        world.runtime(engine(None, None)?)?.in_place().recover(&now())?
    } else {
        world.looking(engine(Some(1), None)?)?.recoverable()?
    };
    let Some(recovery) = recovery else {
        let object = json!({ "recoverable": false, "changed": false });
        world
            .output
            .result(object, &["nothing to recover: slm status tells what is active".into()]);
        return Ok(());
    };
    let object = json!({
        "recoverable": true,
        "changed": recovery.changed,
        "composition": recovery.composition,
        "manifest": recovery.manifest,
        "generation": recovery.generation,
        "time": recovery.time,
        "unsure": recovery.unsure,
    });
    let verb = if recovery.changed { "recovered" } else { "the log says" };
    let mut lines = vec![format!(
        "{verb}: composition {} (generation {}, first active at {})",
        recovery.composition, recovery.generation, recovery.time
    )];
    lines.extend(recovery.unsure.map(|unsure| {
        format!("a later generation may have been active, the log does not know: {unsure}")
    }));
    if !recovery.changed {
        lines.push("nothing was changed; slm recover --yes makes it active".to_owned());
    }
    world.output.result(object, &lines);
    Ok(())
}
