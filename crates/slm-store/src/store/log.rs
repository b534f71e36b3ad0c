//! The audit log: its end under the lock, its records for readers.

use slm_format::{Coded as _, ErrorClass};

use super::{Store, WriteLock};
use crate::audit::{
    Anchor, AuditRecord, Ending, LogProblem, MAX_LINE, MAX_SEQUENCE, Operation, Outcome, Scanner,
    Stage,
};
use crate::error::StoreError;
use crate::layout;
use crate::record::NameRecord;
use crate::storage::{Access, Storage};

/// Bytes of the log's end that are looked at under the lock: a torn record, a whole one, and where that begins.
const WINDOW: u64 = 3 * MAX_LINE as u64;

/// Bytes of the log that a reader holds at a time.
const PIECE: usize = 1 << 18;

/// How often a reader looks again at an end that seems torn: without the lock, it may have met an append half-way.
const LOOKS: usize = 3;

/// The audit log, verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditReport {
    /// The records, oldest first. Each one's digest fits its bytes and names the one before.
    pub records: Vec<AuditRecord>,
    /// Bytes behind the last whole record that are none: what a power cut left of an append, or a writer is at it. The next lock cuts
    /// them off.
    pub torn_tail: u64,
}

/// Where the log ends.
#[derive(Debug, Clone)]
pub(super) struct LogState {
    exists: bool,
    /// Length of the whole records.
    len: u64,
    /// The last record.
    last: Option<AuditRecord>,
    /// An append failed, and may have left something behind `len`.
    soiled: bool,
}

impl LogState {
    /// Whether the last operation has no outcome.
    pub(super) fn is_open(&self) -> bool {
        self.last.as_ref().is_some_and(AuditRecord::is_open)
    }
}

impl<S: Storage> Store<S> {
    /// The whole audit log, its chain verified; empty where there is none.
    ///
    /// # Errors
    /// [`StoreError::LogDamaged`] where anything but the last record is harmed; [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn audit(&self) -> Result<AuditReport, StoreError> {
        let mut report = None;
        for _ in 0..LOOKS {
            let mut records = Vec::new();
            let torn_tail = self.audit_each(&mut |record| records.push(record))?;
            report = Some(AuditReport { records, torn_tail });
            if torn_tail == 0 {
                break;
            }
        }
        Ok(report.expect("BUG: nobody looked"))
    }

    /// Shows every record of the audit log, oldest first, in bounded memory, and gives the bytes of its torn tail. Also the records before
    /// a damaged one are shown.
    ///
    /// # Errors
    /// As [`Store::audit`].
    pub fn audit_each(&self, visit: &mut dyn FnMut(AuditRecord)) -> Result<u64, StoreError> {
        let mut scanner = Scanner::new(Anchor::Start, 0);
        let mut at = 0;
        while let Some((bytes, _)) = self.storage.read_at(layout::AUDIT, at, PIECE)? {
            if bytes.is_empty() {
                break;
            }
            at += bytes.len() as u64;
            scanner.take(&bytes, visit);
            if scanner.is_stuck() {
                break;
            }
        }
        match scanner.end() {
            Ending::Whole => Ok(0),
            Ending::Torn(bytes) => Ok(bytes),
            Ending::Damaged { offset, after, problem } => {
                Err(StoreError::LogDamaged { offset, after, problem })
            }
        }
    }

    /// Where the log ends, after a torn tail was cut off. Only the end is read, however long the log is, and where its last line is a whole
    /// record only that is parsed; [`Store::audit`] looks at the chain.
    pub(super) fn mend_log(&self) -> Result<LogState, StoreError> {
        let Some((_, total)) = self.storage.read_at(layout::AUDIT, 0, 0)? else {
            return Ok(LogState { exists: false, len: 0, last: None, soiled: false });
        };
        let from = total.saturating_sub(WINDOW);
        let anchor = if from == 0 { Anchor::Start } else { Anchor::Within };
        let window = self.storage.read_at(layout::AUDIT, from, WINDOW as usize)?;
        let window = window.unwrap_or_default().0;
        if let Some(last) = last_record(&window) {
            return Ok(LogState { exists: true, len: total, last: Some(last), soiled: false });
        }
        let mut scanner = Scanner::new(anchor, from);
        let mut last = None;
        scanner.take(&window, &mut |record| last = Some(record));
        match scanner.end() {
            Ending::Whole => {}
            Ending::Torn(_) => self.storage.truncate(layout::AUDIT, scanner.whole())?,
            Ending::Damaged { offset, after, problem } => {
                return Err(StoreError::LogDamaged { offset, after, problem });
            }
        }
        Ok(LogState { exists: true, len: scanner.whole(), last, soiled: false })
    }

    /// Gives an operation without an outcome one.
    pub(super) fn complete_log(&self, lock: &mut WriteLock, now: &str) -> Result<(), StoreError> {
        let open = match &lock.log {
            Ok(LogState { last: Some(last), .. }) if last.is_open() => last.clone(),
            _ => return Ok(()),
        };
        let mut record = AuditRecord {
            stage: Stage::Recovered,
            time: now.to_owned(),
            code: None,
            ..open.clone()
        };
        let (outcome, why) = match self.look_after(lock, &open) {
            Ok((outcome, why)) => (outcome, why.to_owned()),
            Err(error) if error.class() == ErrorClass::Damaged => {
                record.code = Some(error.code().to_owned());
                (Outcome::Unknown, "what is in force cannot be read".to_owned())
            }
            Err(error) => return Err(error),
        };
        record.outcome = Some(outcome);
        record.why = Some(why);
        self.append_record(lock, record).map(|_| ())
    }

    /// Which state is in force after `open` was left without an outcome; that state is synced.
    fn look_after(
        &self,
        lock: &WriteLock,
        open: &AuditRecord,
    ) -> Result<(Outcome, &'static str), StoreError> {
        if open.stage == Stage::Validating {
            return Ok((Outcome::Old, "nothing was staged"));
        }
        if let Some(generation) = open.generation {
            let slots = match (self.slots(), open.operation) {
                (Err(StoreError::SlotDamaged { .. }), Operation::Recover) => {
                    return Ok((Outcome::Old, "neither active record can be read, as before"));
                }
                (slots, _) => slots?,
            };
            self.sync_slots(lock, &slots)?;
            let active = self.active()?.map(|active| active.generation);
            return Ok(if active == Some(generation) {
                if open.operation == Operation::Recover && slots.fault.is_some() {
                    self.heal_slots(&slots)?;
                }
                (Outcome::New, "the active record names the new generation")
            } else if slots.fault.is_some() {
                self.heal_slots(&slots)?;
                (Outcome::Old, "the new active record is torn, the old one is whole")
            } else {
                (Outcome::Old, "the active record names the old generation")
            });
        }
        if let Some(policy) = open.policy {
            self.storage.sync_dir(layout::ROOT)?;
            return Ok(match self.policy_digest()? == Some(policy) {
                true => (Outcome::New, "the policy is the new one"),
                false => (Outcome::Old, "the policy is the old one"),
            });
        }
        if let (Some(kind), Some(name)) = (open.kind, &open.name) {
            // Of several names, the first is told of; a journal gives all of them or none.
            self.apply_journal()?;
            let wanted = match (open.id, open.blob) {
                (Some(id), Some(blob)) => Some(NameRecord::new(id, blob)),
                _ => None,
            };
            self.sync_names(kind)?;
            // The log does not tell where a thing came from.
            let is_new = match (self.name(kind, name)?, wanted) {
                (Some(found), Some(wanted)) => found.is_same(&wanted),
                (found, wanted) => found == wanted,
            };
            return Ok(match is_new {
                true => (Outcome::New, "the name is as it was meant to be"),
                false => (Outcome::Old, "the name is as it was"),
            });
        }
        Ok(match open.operation {
            Operation::Gc => (Outcome::Partial, "the next run removes what this one has left"),
            _ => (Outcome::Old, "the operation changes nothing but by its outcome"),
        })
    }

    /// Appends `record` behind the last one and syncs it.
    pub(super) fn append_record(
        &self,
        lock: &mut WriteLock,
        record: AuditRecord,
    ) -> Result<(), StoreError> {
        let log = lock.log.as_mut().map_err(|error| error.clone())?;
        if !log.exists {
            self.write_small(layout::AUDIT, b"", Access::Overwrite)?;
            log.exists = true;
        }
        if log.soiled {
            self.storage.truncate(layout::AUDIT, log.len)?;
            log.soiled = false;
        }
        if let Some(AuditRecord { sequence: after @ MAX_SEQUENCE.., .. }) = log.last {
            return Err(StoreError::LogDamaged {
                offset: log.len,
                after,
                problem: LogProblem::Sequence,
            });
        }
        let (sequence, before) = match &log.last {
            Some(last) => (last.sequence + 1, Some(last.digest)),
            None => (1, None),
        };
        let (record, line) = record.chained(sequence, before);
        log.soiled = true;
        self.storage.append(layout::AUDIT, log.len, &line)?;
        log.soiled = false;
        log.len += line.len() as u64;
        log.last = Some(record);
        Ok(())
    }
}

/// The record in the last line of `log`, if that is whole and behind another one.
fn last_record(log: &[u8]) -> Option<AuditRecord> {
    let lines = log.strip_suffix(b"\n")?;
    let begin = lines.iter().rposition(|byte| *byte == b'\n')? + 1;
    AuditRecord::parse(&lines[begin..]).ok()
}
