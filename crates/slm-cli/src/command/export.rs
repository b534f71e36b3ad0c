//! `export gguf`.

use std::path::Path;

use serde_json::json;

use crate::error::CliError;
use crate::model::engine;
use crate::world::World;

/// Writes a base as GGUF with the metadata it came with. The file appears whole or not at all.
pub(crate) fn gguf(world: &World, base: &str, file: &Path) -> Result<(), CliError> {
    let base = world.runtime(engine(None, None)?)?.base_by_reference(base)?;
    let io = |error| CliError::io(file, error);
    let folder =
        file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut temporary = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
    base.write_gguf(&mut std::io::BufWriter::new(temporary.as_file_mut()))?;
    temporary.as_file().sync_all().map_err(io)?;
    let written = temporary.persist(file).map_err(|error| CliError::io(file, error.error))?;
    let bytes = written.metadata().map_err(io)?.len();
    world.output.result(
        json!({ "base": base.id(), "file": file, "bytes": bytes }),
        &[format!("wrote {} ({bytes} bytes), base {}", file.display(), base.id())],
    );
    Ok(())
}
