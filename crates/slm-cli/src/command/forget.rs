//! `forget`: a name is taken away.

use serde_json::json;

use crate::args::KindArg;
use crate::error::CliError;
use crate::model::engine;
use crate::world::{World, now};

/// Takes a name away, whether its record can be read or not.
pub(crate) fn forget(world: &World, name: &str, kind: KindArg) -> Result<(), CliError> {
    let name = crate::model::name("NAME", name)?;
    let runtime = world.runtime(engine(Some(1), None)?)?;
    let changed = runtime.remove_name(kind.into(), &name, &now())?;
    let object = json!({ "name": name, "kind": kind.noun(), "changed": changed });
    let verb = if changed { "forgotten" } else { "unchanged" };
    world.output.result(object, &[format!("{verb}: the {} name {name}", kind.noun())]);
    Ok(())
}
