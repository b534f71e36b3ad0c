//! `export gguf`.

use std::io::Write;
use std::path::Path;

use serde_json::json;

use crate::error::CliError;
use crate::model::engine;
use crate::outfile::OutFile;
use crate::world::World;

/// Writes a base as GGUF with the metadata it came with. The file appears whole or not at all.
pub(crate) fn gguf(world: &World, base: &str, file: &Path) -> Result<(), CliError> {
    let base = world.runtime(engine(None, None)?)?.base_by_reference(base)?;
    let mut bytes = 0;
    OutFile::create(file)?.write(&mut |out| {
        let mut out = Counted { out, bytes: &mut bytes };
        Ok(base.write_gguf(&mut out)?)
    })?;
    world.output.result(
        json!({ "base": base.id(), "file": file, "bytes": bytes }),
        &[format!("wrote {} ({bytes} bytes), base {}", file.display(), base.id())],
    );
    Ok(())
}

/// Counts what passes through.
struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: &'a mut u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let n = self.out.write(buffer)?;
        *self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}
