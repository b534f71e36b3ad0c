//! Content-addressed blobs, names, generations, the two-slot commit and the audit log, over a storage trait.
//!
//! A store holds immutable blobs under their sha256, names that point to them, and one active generation. Every change is made under
//! an exclusive [`WriteLock`] and is either whole or not there: blobs and names are written aside, synced and renamed into place; the
//! active generation is a record in one of two slots, of which the older is overwritten and synced, and then is the newer.
//! [`Store::begin`] makes a change that the audit log tells of before it is made; [`Store::gc`] removes what nothing needs;
//! [`Store::verify`] looks at everything.
//!
//! ```
//! use slm_format::Digest;
//! use slm_store::{MemStorage, NameKind, NameRecord, Store};
//!
//! let store = Store::open(MemStorage::new()).unwrap();
//! let lock = store.lock().unwrap();
//! let blob = store.put_bytes(&lock, b"weights").unwrap();
//! assert_eq!(blob, Digest::of(b"weights"));
//!
//! let record = NameRecord::new(blob, blob);
//! let name = "tiny".parse().unwrap();
//! assert!(store.set_name(&lock, NameKind::Base, &name, &record, false).unwrap());
//! assert!(!store.set_name(&lock, NameKind::Base, &name, &record, false).unwrap());
//! assert_eq!(store.name(NameKind::Base, &name).unwrap(), Some(record));
//! assert!(store.lock().is_err());
//! ```
//!
//! The folder, relative to its root:
//!
//! | path | what it is |
//! |---|---|
//! | `version` | the text `slm store 1`, written with the first lock |
//! | `lock` | locked by the one process that writes; its content means nothing |
//! | `blobs/sha256/<hex>` | a blob, read-only, named by its digest |
//! | `names/base/<name>`, `names/adapter/<name>`, `names/composition/<name>` | [`NameRecord`] as one line of JSON |
//! | `active.a`, `active.b` | the two slots, see [`SlotRecord`] |
//! | `names.journal` | several names that are given at once, until each is in its own file |
//! | `policy.toml` | the local policy, which the store keeps and does not read |
//! | `audit.log` | one [`AuditRecord`] a line, each with the digest of the one before |
//! | `tmp/<n>` | files being written; emptied by the next holder of the lock |
//!
//! It does not know models, tensors or arithmetic.

mod audit;
mod error;
#[cfg(feature = "faulty")]
pub mod faulty;
#[cfg(feature = "fs")]
mod fs;
mod layout;
mod mem;
mod record;
mod slot;
mod storage;
mod store;

pub use audit::{AuditRecord, LogProblem, Operation, Outcome, Stage};
pub use error::StoreError;
#[cfg(feature = "fs")]
pub use fs::{FsBlob, FsFile, FsLock, FsStorage, map_file};
pub use mem::{MemFile, MemLease, MemLock, MemStorage};
pub use record::{Generation, NameKind, NameRecord};
pub use slot::{SlotFault, SlotProblem, SlotRecord};
pub use storage::{Access, Blob, Storage, StorageFile};
pub use store::{
    Active, AuditReport, Change, Committed, Finding, GcOptions, GcReport, Intent, Lease,
    MAX_POLICY, NameChange, NameEntry, Needs, Pending, Place, Recorded, Staged, Store,
    VerifyReport, WriteLock,
};

/// The README, so that its example runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
