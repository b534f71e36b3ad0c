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
    files: Arc<Mutex<BTreeMap<String, Content>>>,
    locked: Arc<AtomicBool>,
    /// How many leases each path has.
    leases: Leases,
}

/// A file's bytes: shared with whoever reads it, or, once something was appended, in a buffer that grows in place.
#[derive(Debug, Clone)]
enum Content {
    Shared(Arc<[u8]>),
    Growing(Vec<u8>),
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Content::Shared(bytes) => bytes,
            Content::Growing(bytes) => bytes,
        }
    }

    fn shared(&self) -> Arc<[u8]> {
        match self {
            Content::Shared(bytes) => Arc::clone(bytes),
            Content::Growing(bytes) => Arc::from(bytes.as_slice()),
        }
    }
}

type Leases = Arc<Mutex<BTreeMap<String, usize>>>;

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

/// A lease on a file of a [`MemStorage`].
#[derive(Debug)]
pub struct MemLease {
    leases: Leases,
    path: String,
}

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
        self.files().insert(path.to_owned(), Content::Shared(Arc::from(bytes)));
    }

    /// Every file, in ascending order of paths.
    #[cfg(feature = "faulty")]
    pub(crate) fn files_now(&self) -> Vec<(String, Arc<[u8]>)> {
        self.files().iter().map(|(path, content)| (path.clone(), content.shared())).collect()
    }

    // No code panics while it holds the mutex, so a poisoned one still holds whole files.
    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Content>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the file at `path` through `change`.
    fn edit(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) -> Result<(), StoreError> {
        let mut files = self.files();
        let file = files.get_mut(path).ok_or_else(|| absent(path))?;
        if let Content::Shared(bytes) = file {
            *file = Content::Growing(bytes.to_vec());
        }
        if let Content::Growing(bytes) = file {
            change(bytes);
        }
        Ok(())
    }
}

impl Storage for MemStorage {
    type Blob = Arc<[u8]>;
    type File = MemFile;
    type Lock = MemLock;
    type Lease = MemLease;

    fn open(&self, path: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        Ok(self.files().get(path).map(Content::shared))
    }

    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.read_at(path, 0, limit)?.map(|(bytes, _)| bytes))
    }

    fn read_at(
        &self,
        path: &str,
        offset: u64,
        limit: usize,
    ) -> Result<Option<(Vec<u8>, u64)>, StoreError> {
        Ok(self.files().get(path).map(|content| window(content.bytes(), offset, limit)))
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
        files.insert(path.to_owned(), Content::Shared(Arc::from([])));
        Ok(MemFile { storage: self.clone(), path: path.to_owned(), bytes: Vec::new() })
    }

    fn overwrite(&self, path: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.edit(path, |file| {
            file.clear();
            file.extend_from_slice(bytes);
        })
    }

    fn append(&self, path: &str, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.edit(path, |file| {
            file.truncate(usize::try_from(offset).unwrap_or(usize::MAX));
            file.extend_from_slice(bytes);
        })
    }

    fn truncate(&self, path: &str, len: u64) -> Result<(), StoreError> {
        self.edit(path, |file| file.truncate(usize::try_from(len).unwrap_or(usize::MAX)))
    }

    fn sync_file(&self, path: &str) -> Result<(), StoreError> {
        if self.files().contains_key(path) { Ok(()) } else { Err(absent(path)) }
    }

    fn publish(&self, from: &str, to: &str) -> Result<(), StoreError> {
        let mut files = self.files();
        let content = files.remove(from).ok_or_else(|| absent(from))?;
        files.insert(to.to_owned(), content);
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<(), StoreError> {
        self.files().remove(path);
        Ok(())
    }

    fn remove_unleased(&self, path: &str) -> Result<bool, StoreError> {
        let leases = lock_leases(&self.leases);
        let free = !leases.contains_key(path);
        if free {
            self.files().remove(path);
        }
        Ok(free)
    }

    fn is_leased(&self, path: &str) -> Result<bool, StoreError> {
        Ok(lock_leases(&self.leases).contains_key(path))
    }

    fn lease(&self, path: &str) -> Result<Option<MemLease>, StoreError> {
        let mut leases = lock_leases(&self.leases);
        if !self.files().contains_key(path) {
            return Ok(None);
        }
        *leases.entry(path.to_owned()).or_insert(0) += 1;
        Ok(Some(MemLease { leases: Arc::clone(&self.leases), path: path.to_owned() }))
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
        self.storage.files().insert(self.path, Content::Shared(Arc::from(self.bytes)));
        Ok(())
    }
}

impl Drop for MemLock {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for MemLease {
    fn drop(&mut self) {
        let mut leases = lock_leases(&self.leases);
        if let Some(count) = leases.get_mut(&self.path) {
            *count -= 1;
            if *count == 0 {
                leases.remove(&self.path);
            }
        }
    }
}

fn lock_leases(leases: &Leases) -> MutexGuard<'_, BTreeMap<String, usize>> {
    leases.lock().unwrap_or_else(PoisonError::into_inner)
}

/// At most `limit` of `bytes` from `offset` on, and how many there are.
pub(crate) fn window(bytes: &[u8], offset: u64, limit: usize) -> (Vec<u8>, u64) {
    let from = usize::try_from(offset).map_or(bytes.len(), |offset| offset.min(bytes.len()));
    let to = from.saturating_add(limit).min(bytes.len());
    (bytes[from..to].to_vec(), bytes.len() as u64)
}

pub(crate) fn absent(path: &str) -> StoreError {
    StoreError::io(path, &io::Error::from(io::ErrorKind::NotFound))
}
