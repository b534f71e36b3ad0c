//! A folder of the file system.

mod mmap;

use core::ops::Range;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::StoreError;
use crate::layout;
use crate::storage::{Access, Blob, Storage, StorageFile};

/// A store's folder. Opening it and reading from it changes nothing; it comes into being with the first lock.
///
/// Every path is looked at part by part from the root before it is used, and a symbolic link on the way is refused; the root itself may
/// be reached through one. The lock is the system's lock on the file `lock` (`flock` on Unix), which ends with the process that holds it.
///
/// Files under `blobs/` are mapped into memory. So that no safe call changes mapped bytes, a file is made under `tmp/` only, gets a name
/// under `blobs/` only after it was sealed read-only, and is never overwritten there; other calls fail with `InvalidInput`.
#[derive(Debug, Clone)]
pub struct FsStorage {
    root: PathBuf,
}

/// A whole file: mapped into memory under `blobs/` and by [`map_file`], else read into it.
#[derive(Debug)]
pub struct FsBlob(Bytes);

#[derive(Debug)]
enum Bytes {
    Mapped(Mmap),
    Read(Vec<u8>),
}

impl Blob for FsBlob {
    /// Where the file is mapped, the system reads it once more if it is needed again.
    fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Bytes::Mapped(mapped) = &self.0 {
            mmap::release(mapped, range);
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

/// A file being written.
#[derive(Debug)]
pub struct FsFile(File);

/// Maps a file that is in no store, such as a model given by path; symbolic links are followed.
///
/// The file must not be written to or cut while it is mapped: reads may then see other bytes, or the system may end the process.
///
/// # Errors
/// What the system says.
pub fn map_file(path: &Path) -> io::Result<FsBlob> {
    map_whole(&File::open(path)?)
}

impl FsStorage {
    /// The storage in the folder `root`, whether it exists or not.
    pub fn open(root: impl Into<PathBuf>) -> FsStorage {
        FsStorage { root: root.into() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file system's path of `path`, none of whose parts is a symbolic link.
    fn resolve(&self, path: &str) -> Result<PathBuf, StoreError> {
        let mut full = self.root.clone();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            if part == ".." || part == "." {
                return Err(misuse(path));
            }
            full.push(part);
            match fs::symlink_metadata(&full) {
                Ok(metadata) if metadata.file_type().is_symlink() => {
                    return Err(StoreError::Symlink { path: path.to_owned() });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(StoreError::io(path, &error)),
            }
        }
        Ok(full)
    }

    fn open_file(&self, path: &str) -> Result<Option<File>, StoreError> {
        let full = self.resolve(path)?;
        match File::open(&full) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io(path, &error)),
        }
    }

    /// Makes the folder `dir` and those above it, each made durable in the one above.
    fn make_dir(&self, dir: &str) -> Result<(), StoreError> {
        if self.resolve(dir)?.is_dir() {
            return Ok(());
        }
        if dir == layout::ROOT {
            fs::create_dir_all(&self.root).map_err(|error| StoreError::io(".", &error))?;
            return match self.root.parent() {
                Some(above) if !above.as_os_str().is_empty() => {
                    sync_folder(above).map_err(|error| StoreError::io(".", &error))
                }
                _ => Ok(()),
            };
        }
        let above = layout::parent(dir);
        self.make_dir(above)?;
        match fs::create_dir(self.resolve(dir)?) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(StoreError::io(dir, &error))
            }
            _ => self.sync_dir(above),
        }
    }
}

impl Storage for FsStorage {
    type Blob = FsBlob;
    type File = FsFile;
    type Lock = File;

    fn open(&self, path: &str) -> Result<Option<FsBlob>, StoreError> {
        let Some(file) = self.open_file(path)? else { return Ok(None) };
        let whole = if in_blobs(path) { map_whole(&file) } else { read_whole(file) };
        whole.map(Some).map_err(|error| StoreError::io(path, &error))
    }

    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(file) = self.open_file(path)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(limit as u64)
            .read_to_end(&mut bytes)
            .map_err(|error| StoreError::io(path, &error))?;
        Ok(Some(bytes))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, StoreError> {
        let entries = match fs::read_dir(self.resolve(dir)?) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(StoreError::io(dir, &error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| StoreError::io(dir, &error))?;
            // A name that is not UTF-8 is none that a store gives.
            names.extend(entry.file_name().into_string().ok());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create(&self, path: &str) -> Result<FsFile, StoreError> {
        if layout::parent(path) != layout::TMP {
            return Err(misuse(path));
        }
        self.make_dir(layout::TMP)?;
        let full = self.resolve(path)?;
        let file = OpenOptions::new().write(true).create_new(true).open(full);
        file.map(FsFile).map_err(|error| StoreError::io(path, &error))
    }

    fn overwrite(&self, path: &str, bytes: &[u8]) -> Result<(), StoreError> {
        if in_blobs(path) {
            return Err(misuse(path));
        }
        let full = self.resolve(path)?;
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).open(full)?;
            file.write_all(bytes)?;
            file.set_len(bytes.len() as u64)?;
            file.sync_all()
        };
        write().map_err(|error| StoreError::io(path, &error))
    }

    fn publish(&self, from: &str, to: &str) -> Result<(), StoreError> {
        let source = self.resolve(from)?;
        let metadata = fs::metadata(&source).map_err(|error| StoreError::io(from, &error))?;
        if in_blobs(to) && !metadata.permissions().readonly() {
            return Err(misuse(from));
        }
        self.make_dir(layout::parent(to))?;
        fs::rename(source, self.resolve(to)?).map_err(|error| StoreError::io(to, &error))
    }

    fn remove(&self, path: &str) -> Result<(), StoreError> {
        match fs::remove_file(self.resolve(path)?) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::io(path, &error))
            }
            _ => Ok(()),
        }
    }

    fn sync_dir(&self, dir: &str) -> Result<(), StoreError> {
        sync_folder(&self.resolve(dir)?).map_err(|error| StoreError::io(dir, &error))
    }

    fn try_lock(&self) -> Result<Option<File>, StoreError> {
        self.make_dir(layout::ROOT)?;
        let full = self.resolve(layout::LOCK)?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(full);
        let file = file.map_err(|error| StoreError::io(layout::LOCK, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(StoreError::io(layout::LOCK, &error)),
        }
    }
}

/// Not every system maps an empty file.
fn map_whole(file: &File) -> io::Result<FsBlob> {
    let empty = file.metadata()?.len() == 0;
    Ok(FsBlob(if empty { Bytes::Read(Vec::new()) } else { Bytes::Mapped(mmap::map(file)?) }))
}

fn read_whole(mut file: File) -> io::Result<FsBlob> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(FsBlob(Bytes::Read(bytes)))
}

impl AsRef<[u8]> for FsBlob {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Mapped(map) => map,
            Bytes::Read(bytes) => bytes,
        }
    }
}

impl io::Write for FsFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl StorageFile for FsFile {
    fn seal(self, access: Access) -> io::Result<()> {
        if access == Access::ReadOnly {
            let mut permissions = self.0.metadata()?.permissions();
            make_read_only(&mut permissions);
            self.0.set_permissions(permissions)?;
        }
        self.0.sync_all()
    }
}

/// Whether `path` is among the files that are mapped.
fn in_blobs(path: &str) -> bool {
    path.split('/').find(|part| !part.is_empty()) == Some("blobs")
}

fn misuse(path: &str) -> StoreError {
    StoreError::io(path, &io::Error::from(io::ErrorKind::InvalidInput))
}

#[cfg(unix)]
fn make_read_only(permissions: &mut fs::Permissions) {
    use std::os::unix::fs::PermissionsExt as _;
    permissions.set_mode(0o444);
}

#[cfg(not(unix))]
fn make_read_only(permissions: &mut fs::Permissions) {
    permissions.set_readonly(true);
}

#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Where folders cannot be opened as files, the system gives no way to sync them; NTFS journals its entries.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
