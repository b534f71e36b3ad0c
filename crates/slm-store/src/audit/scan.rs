//! Bytes of the log to records, the torn tail told from damage.
//!
//! Each record is appended by itself, under the lock, and synced before the next is written. So a power cut can harm only the last one: at
//! most [`MAX_LINE`] bytes behind the last whole record are a torn tail, unless a whole line that is a record stands in them, which was
//! written after what is harmed.

use slm_format::Digest;

use super::{AuditRecord, LogProblem, MAX_LINE};

/// What stands before the first byte that a scanner is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// Nothing: it is the first byte of the log.
    Start,
    /// Something that is not looked at: the first whole record is believed, and bytes before it are passed over.
    Within,
}

/// How a log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With a whole record, or it is empty.
    Whole,
    /// With this many bytes that are no record.
    Torn(u64),
    /// A line at this offset, after the record of this number, is damaged.
    Damaged { offset: u64, after: u64, problem: LogProblem },
}

/// Takes the log in pieces and gives the records.
#[derive(Debug)]
pub(crate) struct Scanner {
    anchor: Anchor,
    /// Offset of `rest` in the log, which is the end of the last whole record.
    offset: u64,
    rest: Vec<u8>,
    last: Option<(u64, Digest)>,
}

impl Scanner {
    /// A scanner for the log from `offset` on.
    pub(crate) fn new(anchor: Anchor, offset: u64) -> Scanner {
        Scanner { anchor, offset, rest: Vec::new(), last: None }
    }

    /// The end of the last whole record.
    pub(crate) fn whole(&self) -> u64 {
        self.offset
    }

    /// Takes the next bytes, and shows every record that is whole and follows the one before.
    pub(crate) fn take(&mut self, bytes: &[u8], visit: &mut dyn FnMut(AuditRecord)) {
        self.rest.extend_from_slice(bytes);
        let mut used = 0;
        while let Some(len) = line_len(&self.rest[used..]) {
            match self.fits(&self.rest[used..used + len]) {
                Ok(record) => {
                    self.last = Some((record.sequence, record.digest));
                    visit(record);
                }
                // The window begins inside a line.
                Err(_) if self.anchor == Anchor::Within && self.last.is_none() => {}
                Err(_) => break,
            }
            used += len + 1;
        }
        self.rest.drain(..used);
        self.offset += used as u64;
    }

    /// Whether more bytes can change nothing about the ending.
    pub(crate) fn is_stuck(&self) -> bool {
        self.rest.len() > MAX_LINE
    }

    /// How the log ends, after its last byte was taken or the scanner is stuck.
    pub(crate) fn end(&self) -> Ending {
        let damaged = |problem| Ending::Damaged {
            offset: self.offset,
            after: self.last.map_or(0, |(sequence, _)| sequence),
            problem,
        };
        if self.anchor == Anchor::Within && self.last.is_none() {
            return damaged(LogProblem::Text);
        }
        let mut lines = self.rest.split_inclusive(|byte| *byte == b'\n');
        let Some(first) = lines.next() else { return Ending::Whole };
        let record_inside = lines
            .chain([first])
            .filter_map(|line| line.strip_suffix(b"\n"))
            .any(|line| AuditRecord::parse(line).is_ok());
        if self.rest.len() <= MAX_LINE && !record_inside {
            return Ending::Torn(self.rest.len() as u64);
        }
        match self.fits(first.strip_suffix(b"\n").unwrap_or(first)) {
            Err(problem) if first.len() <= MAX_LINE => damaged(problem),
            _ => damaged(LogProblem::Length),
        }
    }

    /// The record in `line`, if it follows the last one.
    fn fits(&self, line: &[u8]) -> Result<AuditRecord, LogProblem> {
        let record = AuditRecord::parse(line)?;
        let (sequence, before) = match (self.last, self.anchor) {
            (Some((sequence, digest)), _) => (sequence.checked_add(1), Some(digest)),
            (None, Anchor::Start) => (Some(1), None),
            (None, Anchor::Within) => return Ok(record),
        };
        if Some(record.sequence) != sequence {
            Err(LogProblem::Sequence)
        } else if record.before != before {
            Err(LogProblem::Chain)
        } else {
            Ok(record)
        }
    }
}

fn line_len(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n')
}
