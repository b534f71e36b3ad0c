//! `export gguf` and `export adapter`.

use std::io::Write;
use std::path::Path;

use serde_json::json;
use slm_overlay::binary::Layout;

use crate::args::AdapterExport;
use crate::command::adapter::open;
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

/// Writes an adapter in a format of others. Each file appears whole or not at all.
pub(crate) fn adapter(
    world: &World,
    what: &str,
    path: &Path,
    format: AdapterExport,
) -> Result<(), CliError> {
    let adapter = open(world, what, None, None)?.adapter;
    let base = || -> Result<_, CliError> {
        let runtime = world.runtime(engine(None, None)?)?;
        let bound = runtime.adapter_base(what)?;
        Ok(runtime.base_by_reference(&bound.to_string())?)
    };
    let files: Vec<(std::path::PathBuf, Vec<u8>)> = match format {
        AdapterExport::Peft => {
            let files = slm_overlay::peft::to_peft(&adapter, &base()?.shape())?;
            std::fs::create_dir(path).map_err(|error| CliError::io(path, error))?;
            vec![
                (path.join("adapter_model.safetensors"), files.weights),
                (path.join("adapter_config.json"), files.config.into_bytes()),
            ]
        }
        AdapterExport::Gguf => {
            let architecture = base()?.config().architecture.name();
            vec![(path.to_owned(), slm_overlay::gguf::to_gguf(&adapter, architecture)?)]
        }
        AdapterExport::Plan008 => {
            let (file, targets) = slm_overlay::binary::to_plan008(&adapter)?;
            let mut layout = path.as_os_str().to_owned();
            layout.push(".layout.json");
            vec![(layout.into(), Layout::to_json(&targets).into_bytes()), (path.to_owned(), file)]
        }
    };
    let mut lines = vec![format!("adapter {}", adapter.id())];
    for (path, bytes) in &files {
        OutFile::create(path)?
            .write(&mut |out| out.write_all(bytes).map_err(|error| CliError::io(path, error)))?;
        lines.push(format!("wrote {} ({} bytes)", path.display(), bytes.len()));
    }
    let files: Vec<_> =
        files.iter().map(|(path, bytes)| json!({ "file": path, "bytes": bytes.len() })).collect();
    world.output.result(json!({ "adapter": adapter.id(), "files": files }), &lines);
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
