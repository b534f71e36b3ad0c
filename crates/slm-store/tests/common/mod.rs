//! A medium that fails, and forgets at a power cut what was not synced.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use slm_format::Digest;
use slm_manifest::CompositionId;
use slm_store::{
    Access, Generation, MemStorage, Storage, StorageFile, Store, StoreError, WriteLock,
};

/// A generation whose manifest is a blob of the store.
pub fn generation<S: Storage>(
    store: &Store<S>,
    lock: &WriteLock,
    number: u64,
    parent: Option<Digest>,
) -> Generation {
    let manifest = store.put_bytes(lock, format!("manifest {number}").as_bytes()).unwrap();
    Generation {
        number,
        composition: CompositionId::of_canonical(&number.to_le_bytes()),
        manifest,
        parent,
        time: "2026-07-21T00:00:00Z".to_owned(),
    }
}

/// Files whose bytes and entries are durable only once they were synced.
#[derive(Clone, Default)]
pub struct CrashStorage(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// (bytes as written, bytes as synced)
    contents: Vec<(Vec<u8>, Vec<u8>)>,
    entries: BTreeMap<String, usize>,
    synced_entries: BTreeMap<String, usize>,
    /// Operations so far.
    operations: usize,
    /// The operation at which the power goes.
    crash_at: Option<usize>,
    /// Writes to new files fail as on a full disk.
    full: bool,
    locked: bool,
}

/// What of the unsynced state a power cut keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Survival {
    /// Entries that were not synced are there all the same.
    pub unsynced_entries: bool,
    /// Of bytes that were not synced, this many percent, followed by what was there before.
    pub unsynced_percent: usize,
}

impl Survival {
    pub fn all() -> impl Iterator<Item = Survival> {
        [false, true].into_iter().flat_map(|unsynced_entries| {
            [0, 1, 50, 99, 100]
                .map(|unsynced_percent| Survival { unsynced_entries, unsynced_percent })
        })
    }
}

impl CrashStorage {
    pub fn crashing_at(operation: usize) -> CrashStorage {
        let storage = CrashStorage::default();
        storage.state().crash_at = Some(operation);
        storage
    }

    pub fn operations(&self) -> usize {
        self.state().operations
    }

    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    pub fn crash_after(&self, more: usize) {
        let mut state = self.state();
        state.crash_at = Some(state.operations + more);
    }

    pub fn paths(&self) -> Vec<String> {
        self.state().entries.keys().cloned().collect()
    }

    /// What is on the medium after the power cut.
    pub fn image(&self, survival: Survival) -> MemStorage {
        let state = self.state();
        let image = MemStorage::new();
        let entries =
            if survival.unsynced_entries { &state.entries } else { &state.synced_entries };
        for (path, &content) in entries {
            let (written, synced) = &state.contents[content];
            image.insert(path, &torn(written, synced, survival.unsynced_percent));
        }
        image
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Counts an operation; none works once the power is gone.
    fn step(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        if state.crash_at.is_some_and(|at| state.operations >= at) {
            return Err(io::Error::other("power cut"));
        }
        state.operations += 1;
        Ok(state)
    }
}

fn torn(written: &[u8], synced: &[u8], percent: usize) -> Vec<u8> {
    let kept = written.len() * percent / 100;
    let mut bytes = written[..kept].to_vec();
    bytes.extend_from_slice(synced.get(kept..).unwrap_or_default());
    bytes
}

pub struct CrashFile {
    storage: CrashStorage,
    content: usize,
}

pub struct CrashLock(CrashStorage);

impl Storage for CrashStorage {
    type Blob = Vec<u8>;
    type File = CrashFile;
    type Lock = CrashLock;

    fn open(&self, path: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.read(path, usize::MAX)
    }

    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, StoreError> {
        let state = self.state();
        let Some(&content) = state.entries.get(path) else { return Ok(None) };
        let written = &state.contents[content].0;
        Ok(Some(written[..written.len().min(limit)].to_vec()))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, StoreError> {
        let prefix = format!("{dir}/");
        let state = self.state();
        let names = state.entries.keys().filter_map(|path| path.strip_prefix(&prefix));
        Ok(names.filter(|name| !name.contains('/')).map(str::to_owned).collect())
    }

    fn create(&self, path: &str) -> Result<CrashFile, StoreError> {
        let mut state = self.step().map_err(|error| StoreError::io(path, &error))?;
        assert!(!state.entries.contains_key(path), "{path} exists");
        let content = state.contents.len();
        state.contents.push((Vec::new(), Vec::new()));
        state.entries.insert(path.to_owned(), content);
        drop(state);
        Ok(CrashFile { storage: self.clone(), content })
    }

    fn overwrite(&self, path: &str, bytes: &[u8]) -> Result<(), StoreError> {
        // Two steps: the power may go after the write and before the sync.
        for synced in [false, true] {
            let mut state = self.step().map_err(|error| StoreError::io(path, &error))?;
            let content = state.entries[path];
            let content = &mut state.contents[content];
            content.0 = bytes.to_vec();
            if synced {
                content.1 = bytes.to_vec();
            }
        }
        Ok(())
    }

    fn publish(&self, from: &str, to: &str) -> Result<(), StoreError> {
        let mut state = self.step().map_err(|error| StoreError::io(to, &error))?;
        let content = state.entries.remove(from).unwrap();
        state.entries.insert(to.to_owned(), content);
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<(), StoreError> {
        let mut state = self.step().map_err(|error| StoreError::io(path, &error))?;
        state.entries.remove(path);
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> Result<(), StoreError> {
        let mut state = self.step().map_err(|error| StoreError::io(dir, &error))?;
        let inside = |path: &str| path.rsplit_once('/').map_or("", |(parent, _)| parent) == dir;
        let State { entries, synced_entries, .. } = &mut *state;
        synced_entries.retain(|path, _| !inside(path));
        synced_entries.extend(
            entries
                .iter()
                .filter(|(path, _)| inside(path))
                .map(|(path, &content)| (path.clone(), content)),
        );
        Ok(())
    }

    fn try_lock(&self) -> Result<Option<CrashLock>, StoreError> {
        let mut state = self.state();
        if state.locked {
            return Ok(None);
        }
        state.locked = true;
        Ok(Some(CrashLock(self.clone())))
    }
}

impl io::Write for CrashFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.storage.step()?;
        if state.full {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        state.contents[self.content].0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl StorageFile for CrashFile {
    fn seal(self, _: Access) -> io::Result<()> {
        let mut state = self.storage.step()?;
        let content = &mut state.contents[self.content];
        content.1 = content.0.clone();
        Ok(())
    }
}

impl Drop for CrashLock {
    fn drop(&mut self) {
        self.0.state().locked = false;
    }
}
