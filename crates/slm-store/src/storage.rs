//! What a store asks of the medium under it.

use core::ops::Range;
use std::io;

use crate::error::StoreError;

/// A whole file, readable.
pub trait Blob: AsRef<[u8]> + Send + Sync + 'static {
    /// Lets go of the memory behind `range`, where that makes sense: for bytes that were copied elsewhere and will hardly be read again. They
    /// can be read again.
    fn release(&self, range: Range<usize>) {
        let _ = range;
    }
}

impl Blob for Vec<u8> {}

impl Blob for std::sync::Arc<[u8]> {}

/// A medium: a folder, memory, or what a browser offers.
///
/// Paths are relative, of parts joined by `/`, and made by the store alone: fixed words, checked names and the hexadecimal digits of
/// parsed digests. Folders come into being with the first file in them. What the store relies on:
///
/// * [`Storage::publish`] replaces its target as a whole: whoever reads sees the old or the new file.
/// * After [`StorageFile::seal`] a file's bytes outlive a power cut, as soon as its entry does; after [`Storage::sync_dir`] the
///   entries do.
/// * [`Storage::overwrite`] and [`Storage::append`] may be torn by a power cut, but harm no other file, and an append no earlier byte.
pub trait Storage: Send + Sync {
    /// A whole file, readable for as long as this lives, also when the file is replaced or removed meanwhile.
    type Blob: Blob;
    /// A file being written.
    type File: StorageFile;
    /// The exclusive lock; dropping it releases it, and so does the death of the process.
    type Lock: Send + Sync + 'static;
    /// A lease on a file; dropping it ends it, and so does the death of the process.
    type Lease: Send + Sync + 'static;

    /// The file at `path`, for reading in place; `None` where there is none.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn open(&self, path: &str) -> Result<Option<Self::Blob>, StoreError>;

    /// The first `limit` bytes of the small file at `path`; `None` where there is none.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, StoreError>;

    /// The names of the entries of the folder `dir`, in ascending order; none where there is no such folder.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn list(&self, dir: &str) -> Result<Vec<String>, StoreError>;

    /// At most `limit` bytes of the file at `path` from `offset` on, and how long the file is; `None` where there is none.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn read_at(
        &self,
        path: &str,
        offset: u64,
        limit: usize,
    ) -> Result<Option<(Vec<u8>, u64)>, StoreError>;

    /// Makes every folder of `dirs`, of which each comes after the one it is in, and the root; all of them outlive a power cut, also those
    /// that were there. Media without folders have nothing to do.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn prepare(&self, dirs: &[&str]) -> Result<(), StoreError> {
        let _ = dirs;
        Ok(())
    }

    /// A new, empty file at `path`, which must not exist.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn create(&self, path: &str) -> Result<Self::File, StoreError>;

    /// Replaces the content of the existing file at `path` in place, and syncs it.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`]; the file may then hold anything.
    fn overwrite(&self, path: &str, bytes: &[u8]) -> Result<(), StoreError>;

    /// Writes `bytes` behind the first `offset` bytes of the existing file at `path`, which is not longer, and syncs it. Bytes before
    /// `offset` stay.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`]; some of the bytes may then be there.
    fn append(&self, path: &str, offset: u64, bytes: &[u8]) -> Result<(), StoreError>;

    /// Cuts the existing file at `path` to `len` bytes, and syncs it.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn truncate(&self, path: &str, len: u64) -> Result<(), StoreError>;

    /// Syncs the existing file at `path`, whoever wrote it.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn sync_file(&self, path: &str) -> Result<(), StoreError>;

    /// Gives the sealed file at `from` the name `to`, instead of what had it.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn publish(&self, from: &str, to: &str) -> Result<(), StoreError>;

    /// Removes the file at `path`; one that is not there is removed already.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn remove(&self, path: &str) -> Result<(), StoreError>;

    /// Removes the file at `path` as [`Storage::remove`] does, unless it is leased; `false` where it is.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn remove_unleased(&self, path: &str) -> Result<bool, StoreError>;

    /// Whether somebody holds a lease on the file at `path`, in this process or another.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn is_leased(&self, path: &str) -> Result<bool, StoreError>;

    /// Keeps [`Storage::remove_unleased`] from the file at `path`, in every process; `None` where there is no such file. It needs no right
    /// to write, and waits for nobody; any number of leases may be on one file.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn lease(&self, path: &str) -> Result<Option<Self::Lease>, StoreError>;

    /// Syncs the entries of the folder `dir`; the empty path is the root.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn sync_dir(&self, dir: &str) -> Result<(), StoreError>;

    /// Takes the exclusive lock without waiting; `None` where another holder has it, in this process or another.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Symlink`].
    fn try_lock(&self) -> Result<Option<Self::Lock>, StoreError>;
}

/// A file being written.
pub trait StorageFile: io::Write {
    /// Ends the writing: everything written is synced.
    ///
    /// # Errors
    /// What the medium says.
    fn seal(self, access: Access) -> io::Result<()>;
}

/// What may be done with a file after it was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read it, rename it, remove it.
    ReadOnly,
    /// Also [`Storage::overwrite`] it.
    Overwrite,
}
