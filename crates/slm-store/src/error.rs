//! What can go wrong in a store.

use std::io;

use slm_format::{Coded, Digest, ErrorClass};
use slm_manifest::{BaseId, CompositionId, Name};

use crate::audit::LogProblem;
use crate::record::NameKind;
use crate::slot::SlotFault;
use crate::store::Place;

/// An operation on a store that failed. Paths are relative to the store. Nothing was changed, unless the variant says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No blob has this digest.
    #[error("blob {digest} is not in the store")]
    NotFound {
        /// The digest.
        digest: Digest,
    },
    /// The name is taken by other content.
    #[error("the {kind} name {name} is taken by {current}")]
    NameTaken {
        /// What kind of thing is named.
        kind: NameKind,
        /// The name.
        name: Name,
        /// The identity it stands for now.
        current: Digest,
    },
    /// Another holder has the lock.
    #[error("another process is writing to this store")]
    Busy,
    /// A stored blob has another digest than its name says.
    #[error("blob {expected} is damaged: its bytes have the digest {found}")]
    BlobDamaged {
        /// The digest it is stored under.
        expected: Digest,
        /// The digest of its bytes.
        found: Digest,
    },
    /// The blob of a generation has another digest than its name says.
    #[error("the blob of generation {generation} is damaged: its bytes have the digest {found}")]
    GenerationDamaged {
        /// The digest it is stored under.
        generation: Digest,
        /// The digest of its bytes.
        found: Digest,
    },
    /// A damaged blob that nothing names: it may be what is looked for, a signature or an evaluation record.
    #[error(
        "blob {digest} is damaged, and nothing names it: whether it is a signature or an evaluation record that belongs to {about} cannot be told"
    )]
    StrayDamaged {
        /// The digest it is stored under.
        digest: Digest,
        /// The manifest.
        about: Digest,
    },
    /// A blob that the store's own record needs is gone.
    #[error("blob {digest} is missing, and the store needs it")]
    BlobMissing {
        /// The digest.
        digest: Digest,
    },
    /// No blob holds a base that a manifest needs.
    #[error("no blob holds the base {base}")]
    BaseMissing {
        /// The base.
        base: BaseId,
    },
    /// A manifest gives another composition than what names it says.
    #[error("manifest {digest} gives the composition {found}, and is recorded as {expected}")]
    ManifestContradicts {
        /// The manifest's blob.
        digest: Digest,
        /// What it gives.
        found: CompositionId,
        /// What a name or a generation says.
        expected: CompositionId,
    },
    /// One slot cannot be read. The other one can, so it is known what is active, if not whether that is the newest.
    #[error("{fault}; the other record is in force")]
    SlotUnusable {
        /// What is wrong.
        fault: SlotFault,
    },
    /// Neither slot can be read, so it is not known which generation is active.
    #[error("both records of the active generation are damaged: {first}; {second}")]
    SlotDamaged {
        /// What is wrong with `active.a`.
        first: SlotFault,
        /// What is wrong with `active.b`.
        second: SlotFault,
    },
    /// Neither slot tells what is active, and the audit log does not either.
    #[error("the audit log does not say that anything was ever made active")]
    NothingRecorded,
    /// A slot names a generation whose blob says something else.
    #[error("the active record names generation {generation}, whose {field} is another")]
    SlotContradicts {
        /// The generation.
        generation: Digest,
        /// The field in which the two differ.
        field: &'static str,
    },
    /// The record of a name cannot be read.
    #[error("the record of the {kind} name {name} is damaged: {problem}")]
    NameDamaged {
        /// What kind of thing is named.
        kind: NameKind,
        /// The name.
        name: Name,
        /// What is wrong.
        problem: String,
    },
    /// The journal of names that are given at once cannot be read.
    #[error("the journal of names is damaged: {problem}")]
    JournalDamaged {
        /// What is wrong.
        problem: String,
    },
    /// What must be looked through to know what is needed cannot be read, so that `gc` removes nothing.
    #[error("{place} hides what is needed, and nothing was removed: {error}")]
    Hidden {
        /// A name, a generation or a manifest.
        place: Place,
        /// What is wrong with it.
        error: Box<StoreError>,
    },
    /// A document is longer than the store keeps.
    #[error("{what} is {found} bytes long, the limit is {limit}")]
    TooLong {
        /// What it is.
        what: &'static str,
        /// Bytes found.
        found: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A blob that should hold a generation holds something else.
    #[error("blob {digest} is not a generation: {problem}")]
    NotAGeneration {
        /// The blob.
        digest: Digest,
        /// What is wrong.
        problem: String,
    },
    /// A blob that should hold a manifest holds something else.
    #[error("blob {digest} is not a manifest: {problem}")]
    NotAManifest {
        /// The blob.
        digest: Digest,
        /// What is wrong.
        problem: String,
    },
    /// A line of the audit log is damaged, though records stand behind it, or more than a torn record can leave.
    #[error("the audit log is damaged at byte {offset}, behind record {after}: {problem}")]
    LogDamaged {
        /// Where the line begins.
        offset: u64,
        /// Number of the last good record before it, 0 for none.
        after: u64,
        /// What is wrong with the line.
        problem: LogProblem,
    },
    /// The audit log is whole, and does not tell what is active.
    #[error("the audit log does not say that {found} was made active; it says {recorded}")]
    LogContradicts {
        /// The active generation.
        found: Digest,
        /// The generation that the log says was made active last, or `nothing`.
        recorded: String,
    },
    /// A time is not RFC 3339 in UTC.
    #[error("the time {found:?} is not a time in UTC such as 2026-07-21T00:00:00Z")]
    BadTime {
        /// What was given, cut to 80 characters.
        found: String,
    },
    /// A generation's number is not above its parent's.
    #[error("generation {number} cannot follow generation {parent}")]
    BadNumber {
        /// Its number.
        number: u64,
        /// The parent's number.
        parent: u64,
    },
    /// A symbolic link where a file or a folder of the store belongs.
    #[error("{path} is a symbolic link; a store has none")]
    Symlink {
        /// The path.
        path: String,
    },
    /// The folder is a store of another version.
    #[error("the store says it is {found:?}, this build knows {expected:?}")]
    Version {
        /// The first line of its version file, cut to 80 characters.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The storage failed.
    #[error("{path}: {message}")]
    Io {
        /// The path.
        path: String,
        /// The kind of failure, such as a full disk or a missing permission.
        kind: io::ErrorKind,
        /// The system's words.
        message: String,
    },
    /// The bytes of a new blob could not be had from where they come from.
    #[error("reading what should be stored failed: {message}")]
    Source {
        /// The kind of failure.
        kind: io::ErrorKind,
        /// The source's words.
        message: String,
    },
}

impl StoreError {
    /// An absent blob, where the store itself says that it must be there.
    pub fn missing_is_damage(self) -> StoreError {
        match self {
            StoreError::NotFound { digest } => StoreError::BlobMissing { digest },
            other => other,
        }
    }

    /// A failure of the storage at `path`.
    pub fn io(path: &str, error: &io::Error) -> StoreError {
        StoreError::Io { path: path.to_owned(), kind: error.kind(), message: error.to_string() }
    }
}

impl Coded for StoreError {
    fn code(&self) -> &'static str {
        match self {
            StoreError::NotFound { .. } => "not-found",
            StoreError::NameTaken { .. } => "name-taken",
            StoreError::Busy => "store-busy",
            StoreError::BlobDamaged { .. }
            | StoreError::GenerationDamaged { .. }
            | StoreError::StrayDamaged { .. } => "blob-damaged",
            StoreError::BlobMissing { .. } | StoreError::BaseMissing { .. } => "blob-missing",
            StoreError::ManifestContradicts { .. } => "name-damaged",
            StoreError::SlotDamaged { .. }
            | StoreError::SlotUnusable { .. }
            | StoreError::SlotContradicts { .. } => "slot-damaged",
            StoreError::NothingRecorded => "nothing-recorded",
            StoreError::NameDamaged { .. } | StoreError::JournalDamaged { .. } => "name-damaged",
            StoreError::Hidden { error, .. } => error.code(),
            StoreError::TooLong { .. } => "limit-exceeded",
            StoreError::NotAGeneration { .. } => "not-a-generation",
            StoreError::NotAManifest { .. } => "not-a-manifest",
            StoreError::LogDamaged { .. } | StoreError::LogContradicts { .. } => "log-damaged",
            StoreError::BadTime { .. } => "bad-timestamp",
            StoreError::BadNumber { .. } => "generation-number",
            StoreError::Symlink { .. } => "store-symlink",
            StoreError::Version { .. } => "store-version",
            StoreError::Io { .. } | StoreError::Source { .. } => "io",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            StoreError::NotFound { .. } | StoreError::NothingRecorded => ErrorClass::NotFound,
            StoreError::Busy => ErrorClass::Busy,
            StoreError::BlobDamaged { .. }
            | StoreError::GenerationDamaged { .. }
            | StoreError::StrayDamaged { .. }
            | StoreError::BlobMissing { .. }
            | StoreError::BaseMissing { .. }
            | StoreError::ManifestContradicts { .. }
            | StoreError::SlotUnusable { .. }
            | StoreError::SlotDamaged { .. }
            | StoreError::SlotContradicts { .. }
            | StoreError::NameDamaged { .. }
            | StoreError::JournalDamaged { .. }
            | StoreError::Symlink { .. }
            | StoreError::LogDamaged { .. }
            | StoreError::LogContradicts { .. } => ErrorClass::Damaged,
            StoreError::Io { .. } | StoreError::Source { .. } => ErrorClass::Io,
            StoreError::Hidden { error, .. } => error.class(),
            StoreError::NameTaken { .. }
            | StoreError::NotAGeneration { .. }
            | StoreError::NotAManifest { .. }
            | StoreError::BadTime { .. }
            | StoreError::BadNumber { .. }
            | StoreError::TooLong { .. }
            | StoreError::Version { .. } => ErrorClass::Refused,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            StoreError::NameTaken { .. } => "choose another name, or say --replace",
            StoreError::Busy => "wait until the other process has ended; the lock goes with it",
            StoreError::BlobDamaged { .. } => {
                "import the same file again: a damaged blob is then replaced"
            }
            StoreError::GenerationDamaged { generation, .. } => {
                return Some(format!(
                    "bring the file blobs/sha256/{} back from a copy of this store: nothing else has what it said; slm audit tells which composition it was of",
                    generation.hex()
                ));
            }
            StoreError::StrayDamaged { .. } => {
                "bring it in again: a damaged blob is then replaced; or let go of what cannot be read: slm gc --drop-damaged"
            }
            StoreError::LogDamaged { .. } => {
                "keep the file as evidence under another name; a new log begins with the next change"
            }
            StoreError::NameDamaged { kind, name, .. } => {
                return Some(format!(
                    "give the name anew with --replace, or take it away: remove the {kind} name {name}"
                ));
            }
            StoreError::SlotDamaged { .. } => {
                "slm recover takes from the audit log what was active last"
            }
            StoreError::NothingRecorded => {
                "if nothing ever was active, remove active.a and active.b; else bring back the audit log that tells what was"
            }
            StoreError::JournalDamaged { .. } => {
                "keep names.journal as evidence under another name: the names are then as they were before it"
            }
            StoreError::Hidden { place, error } => return place.way_out().or_else(|| error.hint()),
            StoreError::Symlink { .. } => {
                "put the file itself where the link is, or remove the link and import again"
            }
            StoreError::Io { kind: io::ErrorKind::StorageFull, .. } => {
                "make room on the disk; the store is as it was"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}
