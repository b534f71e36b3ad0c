//! A medium that fails when told to.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::StoreError;
use crate::storage::{Access, Storage, StorageFile};

/// When and how a [`FailingStorage`] fails. Operations are counted from 0, reads included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The first operation that fails.
    pub at: u64,
    /// Every later one fails too; else that one alone.
    pub lasting: bool,
    /// The operation has its effect all the same, as when a sync reports a failure after the bytes arrived.
    pub after_effect: bool,
    /// Only operations that bring bytes to the medium fail, as on a full disk; others are counted and pass.
    pub writes_only: bool,
    /// What kind of failure it is.
    pub kind: io::ErrorKind,
}

impl Failure {
    /// The operation `at`, and it alone, fails without an effect.
    pub fn once(at: u64) -> Failure {
        Failure {
            at,
            lasting: false,
            after_effect: false,
            writes_only: false,
            kind: io::ErrorKind::Other,
        }
    }

    /// From the operation `at` on, all fail without an effect.
    pub fn lasting(at: u64) -> Failure {
        Failure { lasting: true, ..Failure::once(at) }
    }
}

/// The medium `S`, of which operations fail with [`StoreError::Io`]. Clones share the count and the failure.
#[derive(Debug, Clone)]
pub struct FailingStorage<S> {
    inner: S,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Debug, Default)]
struct Plan {
    operations: u64,
    failure: Option<Failure>,
    failed: u64,
}

/// A file being written to a [`FailingStorage`].
#[derive(Debug)]
pub struct FailingFile<S: Storage> {
    file: S::File,
    plan: Arc<Mutex<Plan>>,
}

impl<S: Storage> FailingStorage<S> {
    /// `inner`, which works until [`FailingStorage::fail`].
    pub fn new(inner: S) -> FailingStorage<S> {
        FailingStorage { inner, plan: Arc::default() }
    }

    /// The medium below.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        lock(&self.plan).operations
    }

    /// How many operations have failed.
    pub fn failed(&self) -> u64 {
        lock(&self.plan).failed
    }

    /// Sets the failure; `None` for a medium that works.
    pub fn fail(&self, failure: Option<Failure>) {
        lock(&self.plan).failure = failure;
    }

    fn step<T>(
        &self,
        path: &str,
        writes: bool,
        operation: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match next(&self.plan, writes) {
            None => operation(),
            Some(failure) => {
                if failure.after_effect {
                    operation()?;
                }
                Err(StoreError::io(path, &io::Error::from(failure.kind)))
            }
        }
    }
}

impl<S: Storage> Storage for FailingStorage<S> {
    type Blob = S::Blob;
    type File = FailingFile<S>;
    type Lock = S::Lock;
    type Lease = S::Lease;

    fn open(&self, path: &str) -> Result<Option<S::Blob>, StoreError> {
        self.step(path, false, || self.inner.open(path))
    }

    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, StoreError> {
        self.step(path, false, || self.inner.read(path, limit))
    }

    fn read_at(
        &self,
        path: &str,
        offset: u64,
        limit: usize,
    ) -> Result<Option<(Vec<u8>, u64)>, StoreError> {
        self.step(path, false, || self.inner.read_at(path, offset, limit))
    }

    fn prepare(&self, dirs: &[&str]) -> Result<(), StoreError> {
        self.step("", true, || self.inner.prepare(dirs))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, StoreError> {
        self.step(dir, false, || self.inner.list(dir))
    }

    fn create(&self, path: &str) -> Result<FailingFile<S>, StoreError> {
        let file = self.step(path, true, || self.inner.create(path))?;
        Ok(FailingFile { file, plan: Arc::clone(&self.plan) })
    }

    fn overwrite(&self, path: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.step(path, true, || self.inner.overwrite(path, bytes))
    }

    fn append(&self, path: &str, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.step(path, true, || self.inner.append(path, offset, bytes))
    }

    fn truncate(&self, path: &str, len: u64) -> Result<(), StoreError> {
        self.step(path, false, || self.inner.truncate(path, len))
    }

    fn sync_file(&self, path: &str) -> Result<(), StoreError> {
        self.step(path, false, || self.inner.sync_file(path))
    }

    fn publish(&self, from: &str, to: &str) -> Result<(), StoreError> {
        self.step(to, false, || self.inner.publish(from, to))
    }

    fn remove(&self, path: &str) -> Result<(), StoreError> {
        self.step(path, false, || self.inner.remove(path))
    }

    fn remove_unleased(&self, path: &str) -> Result<bool, StoreError> {
        self.step(path, false, || self.inner.remove_unleased(path))
    }

    fn is_leased(&self, path: &str) -> Result<bool, StoreError> {
        self.step(path, false, || self.inner.is_leased(path))
    }

    fn lease(&self, path: &str) -> Result<Option<S::Lease>, StoreError> {
        self.step(path, false, || self.inner.lease(path))
    }

    fn sync_dir(&self, dir: &str) -> Result<(), StoreError> {
        self.step(dir, false, || self.inner.sync_dir(dir))
    }

    fn try_lock(&self) -> Result<Option<S::Lock>, StoreError> {
        self.step("lock", false, || self.inner.try_lock())
    }
}

impl<S: Storage> io::Write for FailingFile<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match next(&self.plan, true) {
            None => self.file.write(bytes),
            Some(failure) => {
                if failure.after_effect {
                    self.file.write_all(bytes)?;
                }
                Err(io::Error::from(failure.kind))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<S: Storage> StorageFile for FailingFile<S> {
    fn seal(self, access: Access) -> io::Result<()> {
        match next(&self.plan, false) {
            None => self.file.seal(access),
            Some(failure) => {
                if failure.after_effect {
                    self.file.seal(access)?;
                }
                Err(io::Error::from(failure.kind))
            }
        }
    }
}

/// Counts an operation, and says whether it fails.
fn next(plan: &Mutex<Plan>, writes: bool) -> Option<Failure> {
    let mut plan = lock(plan);
    let number = plan.operations;
    plan.operations += 1;
    let failure = plan.failure.filter(|failure| {
        let due = if failure.lasting { number >= failure.at } else { number == failure.at };
        due && (writes || !failure.writes_only)
    });
    plan.failed += u64::from(failure.is_some());
    failure
}

// No code panics while it holds the mutex.
fn lock(plan: &Mutex<Plan>) -> MutexGuard<'_, Plan> {
    plan.lock().unwrap_or_else(PoisonError::into_inner)
}
