//! A folder of the file system.

mod mmap;

use core::ops::Range;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::StoreError;
use crate::layout;
use crate::mem::absent;
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

/// How often a reader tries to lease a file that a writer looks at or removes at that moment.
const LEASE_LOOKS: usize = 1_000;

/// A file being written.
#[derive(Debug)]
pub struct FsFile(File);

/// The lock on a store's folder, or a lease on one of its files: the system's lock on an open file.
///
/// Dropping it gives the lock back in so many words. Closing the file alone would leave it with a child process that was just forked,
/// until that runs its own program.
#[derive(Debug)]
pub struct FsLock(File);

impl Drop for FsLock {
    fn drop(&mut self) {
        // The file is closed next, which gives it back too.
        let _ = self.0.unlock();
    }
}

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

    /// As [`FsStorage::resolve`], for a path that is a file or nothing: opening a pipe would wait for its other end, without end.
    fn resolve_file(&self, path: &str) -> Result<PathBuf, StoreError> {
        let full = self.resolve(path)?;
        match fs::symlink_metadata(&full) {
            Ok(metadata) if !metadata.is_file() => {
                let kind = io::ErrorKind::InvalidInput;
                Err(StoreError::io(path, &io::Error::new(kind, "it is not a regular file")))
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::io(path, &error))
            }
            _ => Ok(full),
        }
    }

    fn open_file(&self, path: &str) -> Result<Option<File>, StoreError> {
        let full = self.resolve_file(path)?;
        match File::open(&full) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io(path, &error)),
        }
    }

    /// Makes the folder `dir` and those above it, each made durable in the one above; does nothing where it is there.
    fn make_dir(&self, dir: &str) -> Result<(), StoreError> {
        if self.resolve(dir)?.is_dir() {
            return Ok(());
        }
        if dir == layout::ROOT {
            return self.make_root();
        }
        let above = layout::parent(dir);
        self.make_dir(above)?;
        self.create_dir(dir)?;
        self.sync_dir(above)
    }

    fn create_dir(&self, dir: &str) -> Result<(), StoreError> {
        match fs::create_dir(self.resolve(dir)?) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(StoreError::io(dir, &error))
            }
            _ => Ok(()),
        }
    }

    /// Makes the root and the folders above it, each made durable in the one above.
    fn make_root(&self) -> Result<(), StoreError> {
        let make = || -> io::Result<()> {
            let absent = self.root.ancestors().take_while(|folder| !folder.exists()).count();
            fs::create_dir_all(&self.root)?;
            let above = self.root.ancestors().skip(1).take(absent.max(1));
            above.filter(|folder| !folder.as_os_str().is_empty()).try_for_each(sync_folder)
        };
        make().map_err(|error| StoreError::io(".", &error))
    }

    /// Whether `file` is what `path` names.
    fn is_at(&self, file: &File, path: &str) -> Result<bool, StoreError> {
        let look = || -> io::Result<bool> {
            let opened = file.metadata()?;
            match fs::symlink_metadata(self.root.join(path)) {
                Ok(named) => Ok(same_file(&opened, &named)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error),
            }
        };
        look().map_err(|error| StoreError::io(path, &error))
    }

    /// The existing file at `path`, which is not a blob, for writing.
    fn open_to_write(&self, path: &str) -> Result<File, StoreError> {
        if in_blobs(path) {
            return Err(misuse(path));
        }
        let file = OpenOptions::new().write(true).open(self.resolve_file(path)?);
        file.map_err(|error| StoreError::io(path, &error))
    }
}

impl Storage for FsStorage {
    type Blob = FsBlob;
    type File = FsFile;
    type Lock = FsLock;
    type Lease = FsLock;

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

    fn read_at(
        &self,
        path: &str,
        offset: u64,
        limit: usize,
    ) -> Result<Option<(Vec<u8>, u64)>, StoreError> {
        let Some(mut file) = self.open_file(path)? else { return Ok(None) };
        let mut read = || -> io::Result<(Vec<u8>, u64)> {
            let len = file.metadata()?.len();
            let mut bytes = Vec::new();
            if offset < len && limit > 0 {
                file.seek(SeekFrom::Start(offset))?;
                (&file).take(limit as u64).read_to_end(&mut bytes)?;
            }
            Ok((bytes, len))
        };
        read().map(Some).map_err(|error| StoreError::io(path, &error))
    }

    fn prepare(&self, dirs: &[&str]) -> Result<(), StoreError> {
        self.make_root()?;
        let mut above = Vec::new();
        for dir in dirs {
            self.create_dir(dir)?;
            above.push(layout::parent(dir));
        }
        above.sort_unstable();
        above.dedup();
        above.into_iter().try_for_each(|dir| self.sync_dir(dir))
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
        let mut file = self.open_to_write(path)?;
        let mut write = || -> io::Result<()> {
            file.write_all(bytes)?;
            file.set_len(bytes.len() as u64)?;
            file.sync_all()
        };
        write().map_err(|error| StoreError::io(path, &error))
    }

    fn append(&self, path: &str, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let mut file = self.open_to_write(path)?;
        let mut write = || -> io::Result<()> {
            file.seek(SeekFrom::Start(offset))?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write().map_err(|error| StoreError::io(path, &error))
    }

    fn truncate(&self, path: &str, len: u64) -> Result<(), StoreError> {
        let file = self.open_to_write(path)?;
        let cut = file.set_len(len).and_then(|()| file.sync_all());
        cut.map_err(|error| StoreError::io(path, &error))
    }

    fn sync_file(&self, path: &str) -> Result<(), StoreError> {
        let file = self.open_file(path)?.ok_or_else(|| absent(path))?;
        file.sync_all().map_err(|error| StoreError::io(path, &error))
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

    fn remove_unleased(&self, path: &str) -> Result<bool, StoreError> {
        let Some(file) = self.open_file(path)? else { return Ok(true) };
        let Some(_lock) = lock(file, path)? else { return Ok(false) };
        // Still locked while the name goes: whoever takes a lease meanwhile finds the file without a name.
        self.remove(path).map(|()| true)
    }

    fn is_leased(&self, path: &str) -> Result<bool, StoreError> {
        let Some(file) = self.open_file(path)? else { return Ok(false) };
        Ok(lock(file, path)?.is_none())
    }

    fn lease(&self, path: &str) -> Result<Option<FsLock>, StoreError> {
        for _ in 0..LEASE_LOOKS {
            let Some(file) = self.open_file(path)? else { return Ok(None) };
            match file.try_lock_shared() {
                Ok(()) => {
                    let lease = FsLock(file);
                    if self.is_at(&lease.0, path)? {
                        return Ok(Some(lease));
                    }
                }
                // Somebody replaces or removes the file, or just looks whether it is leased: it holds the lock for one call.
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
                Err(TryLockError::Error(error)) => return Err(StoreError::io(path, &error)),
            }
        }
        Err(StoreError::Busy)
    }

    fn sync_dir(&self, dir: &str) -> Result<(), StoreError> {
        sync_folder(&self.resolve(dir)?).map_err(|error| StoreError::io(dir, &error))
    }

    fn try_lock(&self) -> Result<Option<FsLock>, StoreError> {
        self.make_dir(layout::ROOT)?;
        let full = self.resolve_file(layout::LOCK)?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(full);
        lock(file.map_err(|error| StoreError::io(layout::LOCK, &error))?, layout::LOCK)
    }
}

/// The exclusive lock on `file`, unless somebody has one.
fn lock(file: File, path: &str) -> Result<Option<FsLock>, StoreError> {
    match file.try_lock() {
        Ok(()) => Ok(Some(FsLock(file))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(StoreError::io(path, &error)),
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
fn same_file(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Where a locked file cannot lose its name, that there is one is enough.
#[cfg(not(unix))]
fn same_file(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
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
