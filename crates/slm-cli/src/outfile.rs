//! Files that a person asked for: they appear whole or not at all.

use std::fs::{File, TryLockError};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempDir};

use crate::error::CliError;

/// A file that will be written. Making one shows whether it can be, before any long work.
#[derive(Debug)]
pub(crate) struct OutFile {
    path: PathBuf,
    target: Target,
    /// Whether a file that is there when the new one is whole stays, and the new one is refused.
    keeps_old: bool,
}

#[derive(Debug)]
enum Target {
    /// A neighbour that takes the path when it is whole.
    Temporary(NamedTempFile),
    /// A pipe or a device, which must not be replaced by a file.
    Stream(File),
}

impl OutFile {
    /// Prepares `path`, whose old content stays until the new is whole.
    ///
    /// # Errors
    /// `io` for whatever keeps the file from being written, a missing folder among it.
    pub(crate) fn create(path: &Path) -> Result<OutFile, CliError> {
        let io = |error| CliError::Io { path: path.to_owned(), error };
        let target = match std::fs::metadata(path) {
            Ok(metadata) if !metadata.is_file() => {
                Target::Stream(File::options().write(true).open(path).map_err(io)?)
            }
            _ => {
                // Through a link, the file that it names is replaced.
                let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
                Target::Temporary(temporary(&path).map_err(io)?)
            }
        };
        Ok(OutFile { path: path.to_owned(), target, keeps_old: false })
    }

    /// Prepares `path`, where nothing may be: neither now nor when the new file is whole.
    ///
    /// # Errors
    /// `file-exists`; as [`OutFile::create`].
    pub(crate) fn create_new(path: &Path) -> Result<OutFile, CliError> {
        refuse_existing(path)?;
        Ok(OutFile { keeps_old: true, ..OutFile::create(path)? })
    }

    /// Writes the content and puts the file in its place.
    ///
    /// # Errors
    /// What `write` returns; `io`.
    pub(crate) fn write(
        mut self,
        write: &mut dyn FnMut(&mut dyn Write) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let path = self.path;
        let io = |error| CliError::Io { path: path.clone(), error };
        let file: &mut File = match &mut self.target {
            Target::Temporary(temporary) => temporary.as_file_mut(),
            Target::Stream(file) => file,
        };
        let mut buffered = BufWriter::new(file);
        write(&mut buffered)?;
        buffered.flush().map_err(io)?;
        drop(buffered);
        if let Target::Temporary(temporary) = self.target {
            temporary.as_file().sync_all().map_err(io)?;
            let place = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
            match self.keeps_old {
                false => temporary.persist(&place).map_err(|error| io(error.error))?,
                true => temporary.persist_noclobber(&place).map_err(|error| {
                    match error.error.kind() {
                        std::io::ErrorKind::AlreadyExists => {
                            CliError::Exists { path: path.clone() }
                        }
                        _ => io(error.error),
                    }
                })?,
            };
            sync_folder(&place).map_err(io)?;
        }
        Ok(())
    }
}

/// Makes a folder where nothing is: `fill` puts its files into a neighbour, which then takes the path.
///
/// # Errors
/// `file-exists`; what `fill` returns; `io`. Nothing is left behind.
pub(crate) fn new_folder<T>(
    path: &Path,
    fill: &mut dyn FnMut(&Path) -> Result<T, CliError>,
) -> Result<T, CliError> {
    refuse_existing(path)?;
    let io = |error| CliError::Io { path: path.to_owned(), error };
    let beside = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = temporary_folder(beside).map_err(io)?;
    let filled = fill(folder.path())?;
    std::fs::rename(folder.path(), path).map_err(io)?;
    // It has another name now; there is nothing left to remove.
    let _ = folder.keep();
    sync_folder(path).map_err(io)?;
    Ok(filled)
}

/// As [`new_folder`], for a path where an empty folder may be, which stays: it can be a mount or have an owner. `fill` puts its files into a
/// folder within, and they are moved when all of them are whole.
///
/// # Errors
/// `file-exists` for anything else that is there; as [`new_folder`]. What `fill` left when it failed is removed.
pub(crate) fn fill_folder<T>(
    path: &Path,
    fill: &mut dyn FnMut(&Path) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let io = |error| CliError::Io { path: path.to_owned(), error };
    let is_empty_folder = std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if !is_empty_folder {
        return new_folder(path, fill);
    }
    let within = temporary_folder(path).map_err(io)?;
    let filled = fill(within.path())?;
    for entry in std::fs::read_dir(within.path()).map_err(io)? {
        let entry = entry.map_err(io)?;
        let place = path.join(entry.file_name());
        std::fs::rename(entry.path(), &place).map_err(io)?;
        sync_folder(&place).map_err(io)?;
    }
    within.close().map_err(io)?;
    Ok(filled)
}

fn refuse_existing(path: &Path) -> Result<(), CliError> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Err(CliError::Exists { path: path.to_owned() }),
        Err(_) => Ok(()),
    }
}

/// Syncs the entry of a file in its folder, where the system has such a thing.
fn sync_folder(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(folder) if cfg!(unix) && !folder.as_os_str().is_empty() => {
            File::open(folder)?.sync_all()
        }
        _ => Ok(()),
    }
}

/// Writes a file that must not be there yet, synced; a secret one is readable by its owner alone from its first byte on.
///
/// # Errors
/// `file-exists`; `io` for whatever else keeps it from being written.
pub(crate) fn write_new(path: &Path, bytes: &[u8], secret: bool) -> Result<(), CliError> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(if secret { 0o600 } else { 0o666 });
    }
    let io = |error| CliError::Io { path: path.to_owned(), error };
    let mut file = options.open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => CliError::Exists { path: path.to_owned() },
        _ => io(error),
    })?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io)
}

/// Behind the name of the file that it is to become, and before what tells one from another.
const PART: &str = ".slm-part-";

/// A temporary file beside `path`, locked for as long as it is open. What killed writers of the same file have left is removed.
fn temporary(path: &Path) -> std::io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // A part of the name, so that the whole is not too long for a name.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let prefix = format!(".{}{PART}", name.chars().take(40).collect::<String>());
    remove_left_behind(folder, &prefix);
    for _ in 0..TRIES {
        let file = with_permissions(&prefix).tempfile_in(folder).map_err(plain)?;
        // Another writer may have looked at it before it was locked, and taken it for left behind.
        let is_held = !matches!(file.as_file().try_lock(), Err(TryLockError::WouldBlock));
        if is_held && file.path().exists() {
            return Ok(file);
        }
    }
    Err(std::io::ErrorKind::ResourceBusy.into())
}

/// How often another writer can take a file away before it is locked.
const TRIES: usize = 16;

/// Removes files of this prefix that nobody has locked: the system gives a lock back when its holder dies.
fn remove_left_behind(folder: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let is_one = entry.file_name().to_string_lossy().starts_with(prefix)
            && entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_one
            && let Ok(file) = File::options().write(true).open(entry.path())
            && file.try_lock().is_ok()
        {
            // What cannot be removed is in nobody's way.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// With the permissions of a file that a person makes.
#[cfg(unix)]
fn with_permissions(prefix: &str) -> tempfile::Builder<'_, '_> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).permissions(std::fs::Permissions::from_mode(0o666));
    builder
}

#[cfg(not(unix))]
fn with_permissions(prefix: &str) -> tempfile::Builder<'_, '_> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    builder
}

/// The error without the name of a file that nobody asked for.
fn plain(error: std::io::Error) -> std::io::Error {
    error.kind().into()
}

/// A temporary folder with the permissions of a folder that a person makes.
#[cfg(unix)]
fn temporary_folder(beside: &Path) -> std::io::Result<TempDir> {
    use std::os::unix::fs::PermissionsExt as _;
    let permissions = std::fs::Permissions::from_mode(0o777);
    tempfile::Builder::new().permissions(permissions).tempdir_in(beside)
}

#[cfg(not(unix))]
fn temporary_folder(beside: &Path) -> std::io::Result<TempDir> {
    tempfile::Builder::new().tempdir_in(beside)
}
