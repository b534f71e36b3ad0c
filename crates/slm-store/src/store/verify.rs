//! Looking at everything a store has.

use core::fmt;
use std::collections::BTreeSet;

use slm_format::{Coded as _, Digest};

use super::Store;
use super::walk::{MAX_DOCUMENT, Needs, Place, Walk};
use crate::audit::{AuditRecord, Outcome, Stage};
use crate::error::StoreError;
use crate::layout;
use crate::slot::Slots;
use crate::storage::Storage;

/// What is wrong somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub place: Place,
    /// What.
    pub error: StoreError,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.error.code(), self.error)
    }
}

/// What [`Store::verify`] saw.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    /// Everything that is wrong; empty for a store that holds what it promises.
    pub findings: Vec<Finding>,
    /// Blobs, whether anything needs them or not.
    pub blobs: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Blobs whose bytes were compared with their digest.
    pub hashed: usize,
    /// Their bytes.
    pub hashed_bytes: u64,
    /// Blobs that nothing needs: they are no fault, and `gc` removes them.
    pub unneeded: Vec<Digest>,
    /// Records of the audit log.
    pub records: u64,
    /// As [`AuditReport::torn_tail`](super::AuditReport::torn_tail); no fault, the next lock cuts it off.
    pub torn_tail: u64,
}

impl<S: Storage> Store<S> {
    /// Looks at everything, and goes on past what is wrong: every blob, names to blobs, both active records, all generations before
    /// them, their manifests and what those need, the chain of the audit log and that it tells what is active. Takes no lock; while
    /// somebody writes, what it finds may be half a change.
    ///
    /// `deep` hashes every blob (sha256). Else blobs up to 1 MiB are hashed, which all generations and manifests are, and larger ones
    /// are opened only; the report says how much was hashed. `needs` is as for [`Store::gc`].
    pub fn verify(&self, deep: bool, needs: &mut Needs<'_>) -> VerifyReport {
        let mut report = VerifyReport::default();
        self.verify_files(&mut report);
        let all = self.verify_blobs(deep, &mut report);
        let needed = self.verify_references(needs, &mut report.findings);
        report.unneeded = all.into_iter().filter(|digest| !needed.contains(digest)).collect();
        self.verify_log(&mut report);
        report
    }

    /// No file or folder is a link, and the small ones can be read.
    fn verify_files(&self, report: &mut VerifyReport) {
        let files =
            [layout::VERSION, layout::AUDIT, layout::POLICY].into_iter().chain(layout::SLOTS);
        for path in files {
            report.note(Place::Path(path.to_owned()), self.storage.read(path, 0));
        }
        report.note(Place::Path(layout::JOURNAL.to_owned()), self.journal());
        for folder in layout::FOLDERS {
            report.note(Place::Path(folder.to_owned()), self.storage.list(folder));
        }
    }

    fn verify_blobs(&self, deep: bool, report: &mut VerifyReport) -> Vec<Digest> {
        let all: Vec<Digest> = match self.blobs() {
            Ok(all) => all.collect(),
            // Told of with the folders.
            Err(_) => return Vec::new(),
        };
        for digest in &all {
            let Some(blob) = report.note(Place::Blob(*digest), self.blob(*digest)) else {
                continue;
            };
            let bytes = (*blob).as_ref();
            report.blobs += 1;
            report.bytes += bytes.len() as u64;
            if deep || bytes.len() <= MAX_DOCUMENT {
                report.hashed += 1;
                report.hashed_bytes += bytes.len() as u64;
                let found = Digest::of(bytes);
                if found != *digest {
                    let error = StoreError::BlobDamaged { expected: *digest, found };
                    report.findings.push(Finding { place: Place::Blob(*digest), error });
                }
            }
        }
        all
    }

    fn verify_references(
        &self,
        needs: &mut Needs<'_>,
        findings: &mut Vec<Finding>,
    ) -> BTreeSet<Digest> {
        if let Ok(Slots { fault: Some(fault), .. }) = self.slots() {
            let error = StoreError::SlotUnusable { fault };
            findings.push(Finding { place: Place::Active, error });
        }
        let mut told = |place, error| {
            // A damaged blob was told of as such already.
            let told = matches!(
                error,
                StoreError::BlobDamaged { .. } | StoreError::GenerationDamaged { .. }
            );
            if !told {
                findings.push(Finding { place, error });
            }
            Ok(())
        };
        let mut needs = |manifest: &_| needs(manifest);
        let mut walk = Walk::new(self, &mut needs, &mut told);
        let walked = walk.names().and_then(|()| walk.generations(usize::MAX));
        debug_assert!(walked.is_ok(), "BUG: a walk that nobody ended ended");
        walk.needed
    }

    fn verify_log(&self, report: &mut VerifyReport) {
        let mut records = 0;
        // What the log says may be active: the generation of the last change in force, and that of a change without an outcome.
        let mut recorded: Option<AuditRecord> = None;
        let mut open: Option<AuditRecord> = None;
        let mut was_active = false;
        let torn = self.audit_each(&mut |record| {
            records += 1;
            was_active |= is_made_active(&record);
            open = record.is_open().then(|| record.clone());
            if is_in_force(&record) {
                recorded = Some(record);
            }
        });
        report.records = records;
        let torn = report.note(Place::Log, torn);
        report.torn_tail = torn.unwrap_or(0);
        if records == 0 && torn.is_none() {
            return;
        }
        let active = match self.active() {
            Ok(Some(active)) => active,
            Ok(None) => {
                if was_active && let Ok(slots) = self.slots() {
                    report.findings.push(Finding { place: Place::Active, error: slots.lost() });
                }
                return;
            }
            // Told of already.
            Err(_) => return,
        };
        let says = |record: &Option<AuditRecord>| {
            record.as_ref().is_some_and(|record| {
                record.outcome == Some(Outcome::Unknown)
                    || record.generation == Some(active.generation)
            })
        };
        if !says(&recorded) && !says(&open) {
            let generation = recorded.and_then(|record| record.generation);
            let recorded = generation.map_or("nothing".to_owned(), |digest| digest.to_string());
            let error = StoreError::LogContradicts { found: active.generation, recorded };
            report.findings.push(Finding { place: Place::Log, error });
        }
    }
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn note<T>(&mut self, place: Place, result: Result<T, StoreError>) -> Option<T> {
        result.map_err(|error| self.findings.push(Finding { place, error })).ok()
    }
}

impl<S: Storage> Store<S> {
    /// Where the slots say that nothing is active, the log must not say that something ever was: nothing takes that back.
    ///
    /// # Errors
    /// [`StoreError::SlotDamaged`]; as [`Store::audit`].
    pub(super) fn check_never_active(&self, slots: &Slots) -> Result<(), StoreError> {
        let mut was_active = false;
        self.audit_each(&mut |record| was_active |= is_made_active(&record))?;
        if was_active { Err(slots.lost()) } else { Ok(()) }
    }
}

/// Whether the record says for certain that its generation became the active one.
pub(super) fn is_made_active(record: &AuditRecord) -> bool {
    is_in_force(record) && record.outcome != Some(Outcome::Unknown)
}

/// Whether the record says that its generation is the active one, or may be.
pub(super) fn is_in_force(record: &AuditRecord) -> bool {
    record.generation.is_some()
        && match record.stage {
            Stage::Committed | Stage::Unchanged => true,
            Stage::Recovered => matches!(record.outcome, Some(Outcome::New | Outcome::Unknown)),
            _ => false,
        }
}
