//! `list`.

use serde_json::json;
use slm_store::NameKind;

use crate::error::CliError;
use crate::model::engine;
use crate::world::World;

/// What is in the store. A record that cannot be read is listed as damaged and hides nothing else.
pub(crate) fn list(world: &World) -> Result<(), CliError> {
    let runtime = world.looking(engine(Some(1), None)?)?;
    let store = runtime.store();
    let active = store.active()?.map(|active| active.record.composition.digest());
    let mut object = json!({});
    let mut lines = Vec::new();
    for (kind, plural) in [
        (NameKind::Base, "bases"),
        (NameKind::Adapter, "adapters"),
        (NameKind::Composition, "compositions"),
    ] {
        let mut rows = Vec::new();
        for (name, record) in store.names(kind)? {
            match record {
                Ok(record) => {
                    let is_active = kind == NameKind::Composition && active == Some(record.id);
                    let mark = if is_active { "*" } else { " " };
                    lines.push(format!(
                        "{mark} {:<11} {:<24} {}",
                        kind.to_string(),
                        name.as_str(),
                        record.id
                    ));
                    rows.push(json!({ "name": name, "id": record.id, "blob": record.blob, "source": record.source, "active": is_active }));
                }
                Err(error) => {
                    lines.push(format!(
                        "! {:<11} {:<24} damaged: {error}",
                        kind.to_string(),
                        name.as_str()
                    ));
                    rows.push(json!({ "name": name, "damaged": error.to_string() }));
                }
            }
        }
        object[plural] = rows.into();
    }
    if lines.is_empty() {
        world.output.note("the store is empty; slm import FILE --name NAME brings a model in");
    }
    world.output.result(object, &lines);
    Ok(())
}
