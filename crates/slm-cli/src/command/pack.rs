//! `pack`, `unpack`, `export oci`, `import oci`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use slm_manifest::Name;
use slm_runtime::runtime::{FileBytes, LayoutReader, LayoutWriter, Shared, Unpacked};
use slm_store::map_file;

use crate::error::CliError;
use crate::model::{engine, name, reference};
use crate::outfile::{OutFile, fill_folder};
use crate::world::{World, map, now};

/// Writes a composition with all it needs as one file, which appears whole or not at all.
pub(crate) fn pack(world: &World, what: &str, file: &Path) -> Result<(), CliError> {
    let runtime = world.runtime(engine(None, None)?)?;
    let reference = reference(&runtime, what)?;
    let out = OutFile::create(file)?;
    let spinner = world.output.spinner("verifying and writing");
    let mut shared = None;
    out.write(&mut |out| {
        shared = Some(runtime.pack(&reference, out)?);
        Ok(())
    })?;
    spinner.finish_and_clear();
    print_shared(world, &shared.expect("BUG: written without a result"), file);
    Ok(())
}

/// Brings a packed composition into the store.
pub(crate) fn unpack(
    world: &World,
    file: &Path,
    given: Option<String>,
    replace: bool,
) -> Result<(), CliError> {
    let mapped = map(file)?;
    let spinner = world.output.spinner("checking everything in the package");
    let runtime = world.runtime(engine(None, None)?)?;
    let bytes = (*mapped).as_ref();
    let name = match given {
        Some(given) => name("--name", &given)?,
        None => {
            // What is wrong with the file is said before what is missing on the command line.
            slm_format::container::Container::open(bytes, &crate::world::LIMITS)?;
            return Err(CliError::Missing { option: "--name" });
        }
    };
    let unpacked = runtime.unpack(bytes, &name, replace, &now())?;
    spinner.finish_and_clear();
    print_unpacked(world, &unpacked, &name);
    Ok(())
}

/// Writes a composition with all it needs as an OCI image layout, which appears whole or not at all.
pub(crate) fn export_oci(
    world: &World,
    what: &str,
    folder: &Path,
    tag: &str,
) -> Result<(), CliError> {
    let tag = name("--tag", tag)?;
    let runtime = world.runtime(engine(None, None)?)?;
    let reference = reference(&runtime, what)?;
    let spinner = world.output.spinner("verifying and writing");
    // A folder with other content is not written into: a layout that is mixed with another image's would be neither.
    let shared = fill_folder(folder, &mut |folder| {
        Ok(runtime.export_oci(&reference, &tag, &mut Folder(folder.to_owned()))?)
    })?;
    spinner.finish_and_clear();
    print_shared(world, &shared, folder);
    Ok(())
}

/// Brings the composition of an OCI image layout into the store.
pub(crate) fn import_oci(
    world: &World,
    folder: &Path,
    tag: Option<&str>,
    given: Option<String>,
    replace: bool,
) -> Result<(), CliError> {
    if !folder.is_dir() {
        return Err(CliError::NoFile { path: folder.to_owned() });
    }
    let name = name("--name", &given.ok_or(CliError::Missing { option: "--name" })?)?;
    let runtime = world.runtime(engine(None, None)?)?;
    let spinner = world.output.spinner("checking everything in the layout");
    let layout = Folder(folder.to_owned());
    let unpacked = runtime.import_oci(&layout, tag, &name, replace, &now())?;
    spinner.finish_and_clear();
    print_unpacked(world, &unpacked, &name);
    Ok(())
}

/// A folder of the file system. The paths asked for are fixed words and hexadecimal digits.
struct Folder(PathBuf);

impl LayoutWriter for Folder {
    fn put(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.0.join(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = OutFile::create(&path).map_err(io::Error::other)?;
        file.write(&mut |out: &mut dyn Write| {
            out.write_all(bytes).map_err(|error| CliError::io(&path, error))
        })
        .map_err(|error| match error {
            CliError::Io { error, .. } => error,
            other => io::Error::other(other),
        })
    }
}

impl LayoutReader for Folder {
    fn get(&self, path: &str) -> io::Result<Option<FileBytes>> {
        let path = self.0.join(path);
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => Ok(Some(Arc::new(map_file(&path)?))),
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn print_shared(world: &World, shared: &Shared, path: &Path) {
    let object = json!({
        "composition": shared.composition,
        "manifest": shared.manifest,
        "base": shared.base,
        "blobs": shared.blobs,
        "signatures": shared.signatures,
        "bytes": shared.bytes,
        "digest": shared.digest,
        "path": path,
    });
    let lines = [
        format!("wrote {} ({} bytes), {}", path.display(), shared.bytes, shared.digest),
        format!("composition {}", shared.composition),
        format!("{} blobs, {} of them signatures", shared.blobs.len(), shared.signatures),
    ];
    world.output.result(object, &lines);
}

fn print_unpacked(world: &World, unpacked: &Unpacked, name: &Name) {
    let adapters: Vec<_> = unpacked
        .adapters
        .iter()
        .map(|(name, adapter, named)| json!({ "name": name, "adapter": adapter, "named": named }))
        .collect();
    let object = json!({
        "composition": unpacked.composition,
        "manifest": unpacked.manifest,
        "name": name.as_str(),
        "base": unpacked.base,
        "adapters": adapters,
        "blobs": unpacked.blobs,
        "signatures": unpacked.signatures,
        "verified": unpacked.verified,
        "changed": unpacked.changed,
    });
    let verb = if unpacked.changed { "unpacked" } else { "unchanged" };
    let mut lines = vec![
        format!("{verb} {name}: composition {}", unpacked.composition),
        format!(
            "manifest {}, {} signatures, {} of them by keys that are trusted here",
            unpacked.manifest, unpacked.signatures, unpacked.verified
        ),
    ];
    for (name, adapter, named) in &unpacked.adapters {
        let note = if *named { "" } else { " (the name is another's here)" };
        lines.push(format!("  {name} {adapter}{note}"));
    }
    world.output.result(object, &lines);
}
