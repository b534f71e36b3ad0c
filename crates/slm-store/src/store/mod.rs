//! The store: opening, locking, blobs.

mod active;
mod gc;
mod journal;
mod log;
mod names;
mod pending;
mod policy;
mod recover;
mod strays;
mod verify;
mod walk;

use std::any::Any;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use slm_format::{Digest, DigestWriter};
use slm_manifest::is_utc_timestamp;

pub use active::Active;
pub use gc::{GcOptions, GcReport, Lease};
pub use journal::NameChange;
pub use log::AuditReport;
use log::LogState;
pub use names::NameEntry;
pub use pending::{Change, Committed, Intent, Pending, Staged};
pub use policy::MAX_POLICY;
pub use recover::Recorded;
pub use verify::{Finding, VerifyReport};
pub use walk::{Needs, Place};

use crate::error::StoreError;
use crate::layout;
use crate::storage::{Access, Storage, StorageFile};

/// A store over the medium `S`. Reading needs no lock and never waits; writing needs the [`WriteLock`].
#[derive(Debug)]
pub struct Store<S> {
    storage: S,
    /// Tells this store's locks from others'.
    token: Arc<()>,
    temp_files: AtomicU64,
}

/// The right to write to one [`Store`], for as long as it lives. There is one at a time, over all processes.
#[derive(Debug)]
pub struct WriteLock {
    token: Arc<()>,
    /// What was active when the lock was taken is synced: who wrote it may have died before that.
    slots_synced: AtomicBool,
    /// The end of the log, or why it cannot be told.
    log: Result<LogState, StoreError>,
    _guard: Box<dyn Any + Send + Sync>,
}

impl WriteLock {
    /// What is in force was synced under this lock.
    fn slots_are_synced(&self) {
        self.slots_synced.store(true, Ordering::Relaxed);
    }
}

impl<S: Storage> Store<S> {
    /// The store on `storage`; an empty storage is an empty store. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Version`] for the store of another version; [`StoreError::Io`].
    pub fn open(storage: S) -> Result<Store<S>, StoreError> {
        if let Some(bytes) = storage.read(layout::VERSION, 80)?
            && bytes != version_line()
        {
            let text = String::from_utf8_lossy(&bytes);
            let found = text.lines().next().unwrap_or_default().to_owned();
            return Err(StoreError::Version { found, expected: layout::VERSION_TEXT });
        }
        Ok(Store { storage, token: Arc::new(()), temp_files: AtomicU64::new(0) })
    }

    /// Whether there is a store: it comes into being with the first lock.
    ///
    /// # Errors
    /// [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn exists(&self) -> Result<bool, StoreError> {
        Ok(self.storage.read(layout::VERSION, 1)?.is_some())
    }

    /// The medium.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// Takes the lock, and removes what a writer that died has left unfinished: files aside, a torn end of the audit log, and names that
    /// are given and not all written. An operation that has no outcome in the log is told of with the next [`Store::begin`]; [`Store::lock_at`] does it at once.
    ///
    /// # Errors
    /// [`StoreError::Busy`], at once, where another holder has it, in this process or another; [`StoreError::Io`]. A damaged log does
    /// not hinder the lock, but [`Store::begin`].
    pub fn lock(&self) -> Result<WriteLock, StoreError> {
        let guard = self.storage.try_lock()?.ok_or(StoreError::Busy)?;
        for name in self.storage.list(layout::TMP)? {
            match self.storage.remove(&format!("{}/{name}", layout::TMP)) {
                // A folder is none of ours: it stays, and hinders nobody.
                Err(StoreError::Io { kind: io::ErrorKind::IsADirectory, .. }) => {}
                removed => removed?,
            }
        }
        if self.storage.read(layout::VERSION, 1)?.is_none() {
            // The file says that the folders outlive a power cut.
            self.storage.prepare(&layout::FOLDERS)?;
            self.write_small(layout::VERSION, &version_line(), Access::ReadOnly)?;
        }
        let log = match self.mend_log() {
            Err(error @ StoreError::LogDamaged { .. }) => Err(error),
            state => Ok(state?),
        };
        if log.as_ref().map_or(true, LogState::is_open) {
            // What the writer that died removed last may come back with a power cut, a journal of names among it.
            self.storage.sync_dir(layout::ROOT)?;
        }
        self.apply_journal()?;
        Ok(WriteLock {
            token: Arc::clone(&self.token),
            slots_synced: AtomicBool::new(false),
            log,
            _guard: Box::new(guard),
        })
    }

    /// Takes the lock as [`Store::lock`] does, and completes the audit log at `now`, RFC 3339 in UTC: an operation whose process died
    /// before its outcome was recorded gets a record [`Stage::Recovered`](crate::Stage::Recovered) that says which state is in force
    /// and why.
    ///
    /// # Errors
    /// [`StoreError::BadTime`]; as [`Store::lock`].
    pub fn lock_at(&self, now: &str) -> Result<WriteLock, StoreError> {
        check_time(now)?;
        let mut lock = self.lock()?;
        self.complete_log(&mut lock, now)?;
        Ok(lock)
    }

    /// Stores what `write` writes and gives its digest. The bytes are streamed to a file aside and hashed on the way, then synced and
    /// renamed into place; memory stays at one buffer. A blob that is there already stays as it is, unless it is damaged: then it is
    /// replaced. On any failure nothing is left behind.
    ///
    /// # Errors
    /// [`StoreError::Source`] when `write` fails by itself, [`StoreError::Io`] when the storage does.
    ///
    /// # Panics
    /// If `lock` is another store's.
    pub fn put_blob(
        &self,
        lock: &WriteLock,
        write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Digest, StoreError> {
        self.check(lock);
        let (temp, file) = self.create_temp()?;
        let mut buffer = BufWriter::with_capacity(
            1 << 16,
            Hashing { file, digest: DigestWriter::new(), failed: false },
        );
        let written = write(&mut buffer).and_then(|()| buffer.flush());
        // Taken apart, so that a buffer with bytes left after a failure is not written out once more.
        let (hashing, _) = buffer.into_parts();
        if let Err(error) = written {
            return Err(if hashing.failed {
                StoreError::io(&temp.path, &error)
            } else {
                StoreError::Source { kind: error.kind(), message: error.to_string() }
            });
        }
        let digest = hashing.digest.finish();
        hashing.file.seal(Access::ReadOnly).map_err(|error| StoreError::io(&temp.path, &error))?;
        let path = layout::blob(digest);
        let kept = match self.storage.open(&path)? {
            Some(blob) => Digest::of(blob.as_ref()) == digest,
            None => false,
        };
        if !kept {
            self.storage.publish(&temp.path, &path)?;
        }
        // Also for a blob that was there: whoever published it may have died before this step.
        self.storage.sync_dir(layout::BLOBS)?;
        Ok(digest)
    }

    /// Stores `bytes`; otherwise as [`Store::put_blob`].
    ///
    /// # Errors
    /// [`StoreError::Io`].
    ///
    /// # Panics
    /// If `lock` is another store's.
    pub fn put_bytes(&self, lock: &WriteLock, bytes: &[u8]) -> Result<Digest, StoreError> {
        self.put_blob(lock, &mut |writer| writer.write_all(bytes))
    }

    /// The blob `digest`, in place where the medium can (mapped by `FsStorage`). Its bytes are not compared with the digest here.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn blob(&self, digest: Digest) -> Result<Arc<S::Blob>, StoreError> {
        match self.storage.open(&layout::blob(digest))? {
            Some(blob) => Ok(Arc::new(blob)),
            None => Err(StoreError::NotFound { digest }),
        }
    }

    /// Whether the blob `digest` is there.
    ///
    /// # Errors
    /// [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn has_blob(&self, digest: Digest) -> Result<bool, StoreError> {
        Ok(self.storage.open(&layout::blob(digest))?.is_some())
    }

    /// Hashes the blob `digest` again with sha256.
    ///
    /// # Errors
    /// [`StoreError::BlobDamaged`] with both digests; otherwise as [`Store::blob`].
    pub fn verify_blob(&self, digest: Digest) -> Result<(), StoreError> {
        self.verified_blob(digest).map(|_| ())
    }

    /// The digests of all blobs, in ascending order. Files that are not named by a digest are passed over.
    ///
    /// # Errors
    /// [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn blobs(&self) -> Result<impl Iterator<Item = Digest> + use<S>, StoreError> {
        let names = self.storage.list(layout::BLOBS)?;
        Ok(names.into_iter().filter_map(|name| layout::blob_digest(&name)))
    }

    /// The first blob, in ascending order of digests, whose bytes `wanted` accepts. It is shown bytes that were not compared with their digest.
    ///
    /// # Errors
    /// Where no blob is accepted and some could not be opened, the first such failure: as [`Store::blob`].
    pub fn find_blob(&self, wanted: &dyn Fn(&[u8]) -> bool) -> Result<Option<Digest>, StoreError> {
        let mut failure = None;
        for digest in self.blobs()? {
            match self.blob(digest) {
                Ok(blob) if wanted((*blob).as_ref()) => return Ok(Some(digest)),
                // Gone since the listing.
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// The blob `digest`, hashed again with sha256: the very bytes that are handed out are those that were hashed.
    ///
    /// # Errors
    /// As [`Store::verify_blob`].
    pub fn verified_blob(&self, digest: Digest) -> Result<Arc<S::Blob>, StoreError> {
        let blob = self.blob(digest)?;
        let found = Digest::of((*blob).as_ref());
        if found == digest {
            Ok(blob)
        } else {
            Err(StoreError::BlobDamaged { expected: digest, found })
        }
    }

    /// Puts a small file in the place of `path`, synced with its folder.
    fn write_small(&self, path: &str, bytes: &[u8], access: Access) -> Result<(), StoreError> {
        let (temp, mut file) = self.create_temp()?;
        let written = file.write_all(bytes).and_then(|()| file.seal(access));
        written.map_err(|error| StoreError::io(&temp.path, &error))?;
        self.storage.publish(&temp.path, path)?;
        self.storage.sync_dir(layout::parent(path))
    }

    /// A new file aside, under the first number that is free: the lock has removed files, but not folders that somebody made there.
    fn create_temp(&self) -> Result<(Temp<'_, S>, S::File), StoreError> {
        let mut tries = 0;
        loop {
            let path = layout::tmp(self.temp_files.fetch_add(1, Ordering::Relaxed));
            match self.storage.create(&path) {
                Ok(file) => return Ok((Temp { storage: &self.storage, path }, file)),
                Err(StoreError::Io { kind: io::ErrorKind::AlreadyExists, .. })
                    if tries < MAX_TAKEN =>
                {
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn check(&self, lock: &WriteLock) {
        assert!(Arc::ptr_eq(&self.token, &lock.token), "BUG: the lock of another store");
    }
}

/// How many numbers of files aside may be taken.
const MAX_TAKEN: usize = 1_000;

/// A file aside, removed when this is dropped unless it was published.
struct Temp<'a, S: Storage> {
    storage: &'a S,
    path: String,
}

impl<S: Storage> Drop for Temp<'_, S> {
    fn drop(&mut self) {
        // Whatever hinders the removal was reported by the step before, and the next holder of the lock removes it again.
        let _ = self.storage.remove(&self.path);
    }
}

/// Hashes what it passes on.
struct Hashing<F> {
    file: F,
    digest: DigestWriter,
    /// A write of the storage has failed, so that the failure is not the source's.
    failed: bool,
}

impl<F: Write> Write for Hashing<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.file.write(bytes);
        match &result {
            Ok(count) => self.digest.update(&bytes[..*count]),
            Err(error) => self.failed |= error.kind() != io::ErrorKind::Interrupted,
        }
        result
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.file.flush();
        self.failed |= result.is_err();
        result
    }
}

fn check_time(time: &str) -> Result<(), StoreError> {
    if is_utc_timestamp(time) {
        Ok(())
    } else {
        Err(StoreError::BadTime { found: time.chars().take(80).collect() })
    }
}

fn version_line() -> Vec<u8> {
    format!("{}\n", layout::VERSION_TEXT).into_bytes()
}
