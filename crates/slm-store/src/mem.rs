//! A medium in memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::StoreError;
use crate::storage::{Access, Storage, StorageFile};

/// Files in memory. Clones share them, so that a store can be opened again.
#[derive(Debug, Clone, Default)]
pub struct MemStorage {
    files: Arc<Mutex<BTreeMap<String, Arc<[u8]>>>>,
    locked: Arc<AtomicBool>,
}

/// A file being written to a [`MemStorage`].
#[derive(Debug)]
pub struct MemFile {
    storage: MemStorage,
    path: String,
    bytes: Vec<u8>,
}

/// The lock of a [`MemStorage`].
#[derive(Debug)]
pub struct MemLock(Arc<AtomicBool>);

impl MemStorage {
    /// No files.
    pub fn new() -> MemStorage {
        MemStorage::default()
    }

    /// The paths of all files, in ascending order.
    pub fn paths(&self) -> Vec<String> {
        self.files().keys().cloned().collect()
    }

    /// Makes the file at `path` hold `bytes`, past all rules of a store: to bring in a snapshot, or damage.
    pub fn insert(&self, path: &str, bytes: &[u8]) {
        self.files().insert(path.to_owned(), Arc::from(bytes));
    }

    // No code panics while it holds the mutex, so a poisoned one still holds whole files.
    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Arc<[u8]>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Storage for MemStorage {
    type Blob = Arc<[u8]>;
    type File = MemFile;
    type Lock = MemLock;

    fn open(&self, path: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        Ok(self.files().get(path).cloned())
    }

    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.files().get(path).map(|bytes| bytes[..bytes.len().min(limit)].to_vec()))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, StoreError> {
        let prefix = format!("{dir}/");
        let files = self.files();
        let names = files.range(prefix.clone()..).map_while(|(path, _)| path.strip_prefix(&prefix));
        Ok(names.filter(|name| !name.contains('/')).map(str::to_owned).collect())
    }

    fn create(&self, path: &str) -> Result<MemFile, StoreError> {
        let mut files = self.files();
        if files.contains_key(path) {
            return Err(StoreError::io(path, &io::Error::from(io::ErrorKind::AlreadyExists)));
        }
        files.insert(path.to_owned(), Arc::from([]));
        Ok(MemFile { storage: self.clone(), path: path.to_owned(), bytes: Vec::new() })
    }

    fn overwrite(&self, path: &str, bytes: &[u8]) -> Result<(), StoreError> {
        match self.files().get_mut(path) {
            Some(file) => *file = Arc::from(bytes),
            None => return Err(StoreError::io(path, &io::Error::from(io::ErrorKind::NotFound))),
        }
        Ok(())
    }

    fn publish(&self, from: &str, to: &str) -> Result<(), StoreError> {
        let mut files = self.files();
        let bytes = files
            .remove(from)
            .ok_or_else(|| StoreError::io(from, &io::Error::from(io::ErrorKind::NotFound)))?;
        files.insert(to.to_owned(), bytes);
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<(), StoreError> {
        self.files().remove(path);
        Ok(())
    }

    fn sync_dir(&self, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    fn try_lock(&self) -> Result<Option<MemLock>, StoreError> {
        let taken = self.locked.swap(true, Ordering::Acquire);
        Ok((!taken).then(|| MemLock(Arc::clone(&self.locked))))
    }
}

impl io::Write for MemFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl StorageFile for MemFile {
    fn seal(self, _: Access) -> io::Result<()> {
        self.storage.files().insert(self.path, Arc::from(self.bytes));
        Ok(())
    }
}

impl Drop for MemLock {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
