//! A medium that forgets at a power cut what was not synced.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::medium::{Event, Image, Medium, Node};
use crate::error::StoreError;
use crate::layout;
use crate::mem::{MemStorage, absent, window};
use crate::storage::{Access, Storage, StorageFile};

/// Files in memory that take the steps [`FsStorage`](crate::FsStorage) takes, one [`Event`] each, and remember what was synced. It can be
/// stopped before any step; then the process goes on after a kill ([`CrashStorage::restart`]) or the machine after a power cut
/// ([`CrashStorage::images`]). Clones share the files.
///
/// What a power cut keeps, each apart from every other: an entry as it was when its folder was last synced, or as it was at any time since;
/// a file's bytes as they were when it was last synced, or with some of the writes since, the last of them torn, earlier ones missing, or the
/// length alone.
#[derive(Debug, Clone, Default)]
pub struct CrashStorage(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    medium: Medium,
    stop_at: Option<usize>,
    locked: bool,
    leases: BTreeMap<String, usize>,
    /// Counts restarts, so that what a killed process drops does not touch what its successor holds.
    life: u64,
}

/// A file being written to a [`CrashStorage`].
#[derive(Debug)]
pub struct CrashFile {
    storage: CrashStorage,
    path: String,
    len: usize,
}

/// The lock of a [`CrashStorage`].
#[derive(Debug)]
pub struct CrashLock {
    storage: CrashStorage,
    life: u64,
}

/// A lease on a file of a [`CrashStorage`].
#[derive(Debug)]
pub struct CrashLease {
    storage: CrashStorage,
    path: String,
    life: u64,
}

impl CrashStorage {
    /// No files.
    pub fn new() -> CrashStorage {
        CrashStorage::default()
    }

    /// A medium that holds `files`, all synced.
    pub fn holding(files: &MemStorage) -> CrashStorage {
        let storage = CrashStorage::default();
        storage.state().medium = Medium::holding(files);
        storage
    }

    /// The steps so far, in order.
    pub fn events(&self) -> Vec<Event> {
        self.state().medium.events.clone()
    }

    /// How many steps there were so far.
    pub fn steps(&self) -> usize {
        self.state().medium.events.len()
    }

    /// Before the step of this number, counted from 0, everything stops: that step and all calls after it fail without an effect.
    pub fn stop_at(&self, step: usize) {
        self.state().stop_at = Some(step);
    }

    /// Whether it has stopped.
    pub fn has_stopped(&self) -> bool {
        let state = self.state();
        state.stop_at.is_some_and(|at| state.medium.events.len() >= at)
    }

    /// The process was killed and another one goes on: locks and leases are gone, files are as they were, synced or not.
    pub fn restart(&self) {
        let mut state = self.state();
        state.stop_at = None;
        state.locked = false;
        state.leases.clear();
        state.life += 1;
    }

    /// What a power cut may leave: every combination of unsynced changes if there are at most `limit`, else a sample of `limit`, the same in
    /// every run.
    pub fn images(&self, limit: usize) -> Vec<Image> {
        self.state().medium.images(limit)
    }

    /// How many combinations of unsynced changes there are; `None` for more than a `usize` counts.
    pub fn possible_images(&self) -> Option<usize> {
        self.state().medium.possible_images()
    }

    // No code panics while it holds the mutex, but for a call that breaks the rules of a medium.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self, path: &str) -> Result<MutexGuard<'_, State>, StoreError> {
        let state = self.state();
        if state.stop_at.is_some_and(|at| state.medium.events.len() >= at) {
            return Err(StoreError::io(path, &stopped()));
        }
        Ok(state)
    }

    fn step(&self, path: &str, event: Event) -> Result<(), StoreError> {
        self.running(path)?.medium.apply(event, 0, &[]);
        Ok(())
    }

    fn write(&self, path: &str, offset: usize, bytes: &[u8]) -> Result<(), StoreError> {
        let event = Event::Write(path.to_owned(), bytes.len());
        self.running(path)?.medium.apply(event, offset, bytes);
        Ok(())
    }

    fn must_exist(&self, path: &str) -> Result<(), StoreError> {
        self.running(path)?.medium.file(path).map(|_| ()).ok_or_else(|| absent(path))
    }

    fn make_dir(&self, dir: &str) -> Result<(), StoreError> {
        if dir == layout::ROOT || self.running(dir)?.medium.entries.contains_key(dir) {
            return Ok(());
        }
        let above = layout::parent(dir);
        self.make_dir(above)?;
        self.step(dir, Event::MakeDir(dir.to_owned()))?;
        self.sync_dir(above)
    }
}

impl Storage for CrashStorage {
    type Blob = Vec<u8>;
    type File = CrashFile;
    type Lock = CrashLock;
    type Lease = CrashLease;

    fn open(&self, path: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.read(path, usize::MAX)
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
        let state = self.running(path)?;
        Ok(state.medium.file(path).map(|content| window(&content.now, offset, limit)))
    }

    fn prepare(&self, dirs: &[&str]) -> Result<(), StoreError> {
        let mut above = Vec::new();
        for dir in dirs {
            if !self.running(dir)?.medium.entries.contains_key(*dir) {
                self.step(dir, Event::MakeDir((*dir).to_owned()))?;
            }
            above.push(layout::parent(dir));
        }
        above.sort_unstable();
        above.dedup();
        above.into_iter().try_for_each(|dir| self.sync_dir(dir))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, StoreError> {
        let prefix = format!("{dir}/");
        let state = self.running(dir)?;
        let names = state.medium.entries.keys().filter_map(|path| path.strip_prefix(&prefix));
        Ok(names.filter(|name| !name.contains('/')).map(str::to_owned).collect())
    }

    fn create(&self, path: &str) -> Result<CrashFile, StoreError> {
        self.make_dir(layout::parent(path))?;
        if self.running(path)?.medium.entries.contains_key(path) {
            return Err(StoreError::io(path, &io::Error::from(io::ErrorKind::AlreadyExists)));
        }
        self.step(path, Event::Create(path.to_owned()))?;
        Ok(CrashFile { storage: self.clone(), path: path.to_owned(), len: 0 })
    }

    fn overwrite(&self, path: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.must_exist(path)?;
        self.write(path, 0, bytes)?;
        self.step(path, Event::Truncate(path.to_owned(), bytes.len() as u64))?;
        self.sync_file(path)
    }

    fn append(&self, path: &str, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.must_exist(path)?;
        self.write(path, offset as usize, bytes)?;
        self.sync_file(path)
    }

    fn truncate(&self, path: &str, len: u64) -> Result<(), StoreError> {
        self.must_exist(path)?;
        self.step(path, Event::Truncate(path.to_owned(), len))?;
        self.sync_file(path)
    }

    fn sync_file(&self, path: &str) -> Result<(), StoreError> {
        self.must_exist(path)?;
        self.step(path, Event::Sync(path.to_owned()))
    }

    fn publish(&self, from: &str, to: &str) -> Result<(), StoreError> {
        self.must_exist(from)?;
        self.make_dir(layout::parent(to))?;
        self.step(to, Event::Rename(from.to_owned(), to.to_owned()))
    }

    fn remove(&self, path: &str) -> Result<(), StoreError> {
        let there = self.running(path)?.medium.file(path).is_some();
        if there { self.step(path, Event::Remove(path.to_owned())) } else { Ok(()) }
    }

    fn remove_unleased(&self, path: &str) -> Result<bool, StoreError> {
        let free = !self.is_leased(path)?;
        if free {
            self.remove(path)?;
        }
        Ok(free)
    }

    fn is_leased(&self, path: &str) -> Result<bool, StoreError> {
        Ok(self.running(path)?.leases.contains_key(path))
    }

    fn lease(&self, path: &str) -> Result<Option<CrashLease>, StoreError> {
        let mut state = self.running(path)?;
        if state.medium.file(path).is_none() {
            return Ok(None);
        }
        *state.leases.entry(path.to_owned()).or_insert(0) += 1;
        let life = state.life;
        drop(state);
        Ok(Some(CrashLease { storage: self.clone(), path: path.to_owned(), life }))
    }

    fn sync_dir(&self, dir: &str) -> Result<(), StoreError> {
        let there = matches!(self.running(dir)?.medium.entries.get(dir), Some(Node::Dir));
        if !there && dir != layout::ROOT {
            return Err(absent(dir));
        }
        self.step(dir, Event::SyncDir(dir.to_owned()))
    }

    fn try_lock(&self) -> Result<Option<CrashLock>, StoreError> {
        if self.running(layout::LOCK)?.medium.file(layout::LOCK).is_none() {
            self.step(layout::LOCK, Event::Create(layout::LOCK.to_owned()))?;
        }
        let mut state = self.running(layout::LOCK)?;
        if state.locked {
            return Ok(None);
        }
        state.locked = true;
        let life = state.life;
        drop(state);
        Ok(Some(CrashLock { storage: self.clone(), life }))
    }
}

impl io::Write for CrashFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.storage.write(&self.path, self.len, bytes).map_err(|_| stopped())?;
        self.len += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl StorageFile for CrashFile {
    fn seal(self, _: Access) -> io::Result<()> {
        self.storage.sync_file(&self.path).map_err(|_| stopped())
    }
}

impl Drop for CrashLock {
    fn drop(&mut self) {
        let mut state = self.storage.state();
        if state.life == self.life {
            state.locked = false;
        }
    }
}

impl Drop for CrashLease {
    fn drop(&mut self) {
        let mut state = self.storage.state();
        if state.life == self.life
            && let Some(count) = state.leases.get_mut(&self.path)
        {
            *count -= 1;
            if *count == 0 {
                state.leases.remove(&self.path);
            }
        }
    }
}

fn stopped() -> io::Error {
    io::Error::other("stopped")
}
