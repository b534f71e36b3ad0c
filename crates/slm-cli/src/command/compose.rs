//! `compose`.

use std::path::PathBuf;

use serde_json::json;

use crate::error::CliError;
use crate::model::{engine, split_weight};
use crate::outfile::OutFile;
use crate::world::{World, now};

/// Puts a composition together.
pub(crate) fn compose(
    world: &World,
    name: &str,
    base: &str,
    adapters: &[String],
    out: Option<PathBuf>,
    replace: bool,
) -> Result<(), CliError> {
    let name = crate::model::name("NAME", name)?;
    let stack = adapters
        .iter()
        .map(|argument| split_weight(argument, "--adapter"))
        .collect::<Result<Vec<_>, _>>()?;
    // A manifest that cannot be written is known before anything is stored.
    let out = out.map(|path| Ok::<_, CliError>((OutFile::create(&path)?, path))).transpose()?;
    let composed =
        world.runtime(engine(None, None)?)?.compose(&name, base, &stack, &now(), replace)?;
    if let Some((file, path)) = out {
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let text = if is_json {
            composed.manifest.to_canonical_json()
        } else {
            composed.manifest.to_toml().into_bytes()
        };
        file.write(&mut |out| {
            out.write_all(&text).map_err(|error| CliError::Io { path: path.clone(), error })
        })?;
    }
    let object = json!({
        "composition": composed.composition,
        "manifest": composed.manifest_digest,
        "name": name.as_str(),
        "base": composed.manifest.base_model_hash,
        "adapters": adapters_of(&composed.manifest),
        "changed": composed.changed,
    });
    let mut lines = vec![
        format!("{name}: composition {}", composed.composition),
        format!("manifest {}", composed.manifest_digest),
    ];
    lines.extend(adapter_lines(&composed.manifest));
    world.output.result(object, &lines);
    Ok(())
}

/// The stack of a manifest, for a program.
pub(crate) fn adapters_of(manifest: &slm_manifest::Manifest) -> Vec<serde_json::Value> {
    manifest
        .adapters
        .iter()
        .map(|entry| json!({ "name": entry.name, "adapter": entry.adapter_id, "weight": weight_of(entry.merge_weight) }))
        .collect()
}

/// The stack of a manifest, for a person.
pub(crate) fn adapter_lines(manifest: &slm_manifest::Manifest) -> Vec<String> {
    if manifest.adapters.is_empty() {
        return vec!["  the bare base".to_owned()];
    }
    manifest
        .adapters
        .iter()
        .map(|e| {
            format!(
                "  {}. {} @ {} ({} tensors)",
                e.load_order,
                e.name,
                e.merge_weight,
                e.targets.len()
            )
        })
        .collect()
}

/// A weight as JSON has it: the shortest decimal that gives the f32 back, as in the manifest.
pub(crate) fn weight_of(weight: f32) -> f64 {
    weight.to_string().parse().expect("BUG: a float's own text is no float")
}
