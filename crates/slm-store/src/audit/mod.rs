//! The audit log's records, and the rules by which its bytes are read.

mod scan;

use core::fmt;

use serde::{Deserialize, Serialize};
use slm_format::Digest;
use slm_manifest::{CompositionId, MAX_COUNT, Name, is_utc_timestamp};

use crate::record::NameKind;
pub(crate) use scan::{Anchor, Ending, Scanner};

/// Longest line of the log, its line feed included.
pub(crate) const MAX_LINE: usize = 2048;

/// The last number of a record: the largest integer that every JSON reader gives back.
pub(crate) const MAX_SEQUENCE: u64 = MAX_COUNT;

/// What somebody set out to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operation {
    /// Bring in a base.
    Import,
    /// Bring in an adapter.
    AdapterImport,
    /// Put a composition together.
    Compose,
    /// Make a composition the active one.
    Activate,
    /// Go back to the parent of the active generation.
    Rollback,
    /// Activate the active stack without one adapter.
    Deactivate,
    /// Remove what nothing needs.
    Gc,
    /// Bring in a package.
    Unpack,
    /// Sign something stored.
    Sign,
    /// Change whom this store trusts.
    Trust,
    /// Store an evaluation record.
    Evaluate,
    /// Take a name away.
    RemoveName,
    /// Take from this log what was active, where the active records do not tell.
    Recover,
}

/// How far an operation had come when a record was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Stage {
    /// It began to look at what it was given.
    Validating,
    /// Everything is ready; what follows changes the store. Synced before it does.
    Staged,
    /// The change is made, and synced.
    Committed,
    /// What was asked for was so already.
    Unchanged,
    /// Something was wrong before anything was staged; `code` says what.
    Refused,
    /// Something was wrong after it was staged; `code` says what, and the old state is in force.
    RolledBack,
    /// The process died before it recorded an outcome. A later one looked: `outcome` and `why` say what it found.
    Recovered,
}

/// What a recovery found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Outcome {
    /// The state that the operation meant to make is in force.
    New,
    /// The state before it is in force.
    Old,
    /// Some of many equal steps were done; the next run of the operation does the rest.
    Partial,
    /// It cannot be told; `code` says why.
    Unknown,
}

/// One record of the log: one line of canonical JSON (RFC 8785), fields in alphabetical order, absent ones left out.
///
/// [`AuditRecord::digest`] is the sha256 of the line without its own field `"digest":"…",` and without the line feed;
/// [`AuditRecord::before`] is that of the line before. So a changed, dropped, inserted or exchanged line is found. Cutting whole lines
/// off the end is not, by the log alone: `Store::verify` also compares it with what is active.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditRecord {
    /// Who, in the caller's words.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub actor: Option<Name>,
    /// The digest of the record before; none for the first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub before: Option<Digest>,
    /// The blob that a name is to stand for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub blob: Option<Digest>,
    /// The stable code of the error that ended the operation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub code: Option<String>,
    /// The composition.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub composition: Option<CompositionId>,
    /// The digest of this record.
    pub digest: Digest,
    /// The blob of the generation that is to be the active one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub generation: Option<Digest>,
    /// The identity that a name is to stand for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<Digest>,
    /// The kind of a name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kind: Option<NameKind>,
    /// The blob of the manifest.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub manifest: Option<Digest>,
    /// The name that is to be given or taken away.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<Name>,
    /// What was to be done.
    pub operation: Operation,
    /// What a recovery found.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub outcome: Option<Outcome>,
    /// The digest of the policy that is to be in force.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy: Option<Digest>,
    /// 1, 2, 3 and so on. This is the order of records; times may go back.
    pub sequence: u64,
    /// How far it had come.
    pub stage: Stage,
    /// The caller's clock, RFC 3339 in UTC.
    pub time: String,
    /// Why a recovery says so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<String>,
}

impl AuditRecord {
    /// A record of nothing but these; its place in the chain is given by [`AuditRecord::chained`].
    pub(crate) fn new(operation: Operation, stage: Stage, time: &str) -> AuditRecord {
        AuditRecord {
            actor: None,
            before: None,
            blob: None,
            code: None,
            composition: None,
            digest: Digest::from_bytes([0; 32]),
            generation: None,
            id: None,
            kind: None,
            manifest: None,
            name: None,
            operation,
            outcome: None,
            policy: None,
            sequence: 0,
            stage,
            time: time.to_owned(),
            why: None,
        }
    }

    /// Whether the operation has no outcome yet.
    pub fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Validating | Stage::Staged)
    }

    /// This record behind `before`, with its digest; and its line.
    pub(crate) fn chained(
        mut self,
        sequence: u64,
        before: Option<Digest>,
    ) -> (AuditRecord, Vec<u8>) {
        self.sequence = sequence;
        self.before = before;
        self.digest = digest_of(&self.json(), self.digest);
        let mut line = self.json();
        line.push(b'\n');
        assert!(line.len() <= MAX_LINE, "BUG: a record of {} bytes", line.len());
        (self, line)
    }

    /// The record in `line`, which ends before its line feed.
    pub(crate) fn parse(line: &[u8]) -> Result<AuditRecord, LogProblem> {
        if line.len() >= MAX_LINE {
            return Err(LogProblem::Length);
        }
        let record: AuditRecord = serde_json::from_slice(line).map_err(|_| LogProblem::Text)?;
        if record.json() != line || !record.is_printable() {
            return Err(LogProblem::Text);
        }
        if !(1..=MAX_SEQUENCE).contains(&record.sequence) {
            return Err(LogProblem::Sequence);
        }
        if digest_of(line, record.digest) != record.digest {
            return Err(LogProblem::Digest);
        }
        Ok(record)
    }

    /// Whether the texts are such as this crate writes: a time, a code, words. A terminal shows them as they are.
    fn is_printable(&self) -> bool {
        let is_code = |code: &String| {
            (1..=64).contains(&code.len())
                && code.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        let is_words = |text: &String| text.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
        is_utc_timestamp(&self.time)
            && self.code.as_ref().is_none_or(is_code)
            && self.why.as_ref().is_none_or(is_words)
    }

    fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("BUG: an audit record could not be encoded")
    }
}

/// sha256 of `json` without its field `digest`, which says `digest` and is not the last. Inside a string a quote has a backslash before
/// it, so the field's text stands once.
fn digest_of(json: &[u8], digest: Digest) -> Digest {
    let field = format!("\"digest\":\"{digest}\",");
    let at = json.windows(field.len()).position(|window| window == field.as_bytes());
    let at = at.expect("BUG: a record without its digest");
    Digest::of(&[&json[..at], &json[at + field.len()..]].concat())
}

/// What is wrong with a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogProblem {
    /// It is not a record in canonical JSON.
    Text,
    /// Its bytes have another digest than it says.
    Digest,
    /// It does not name the record before it.
    Chain,
    /// Its number is not the next one.
    Sequence,
    /// It is longer than a record can be.
    Length,
}

impl fmt::Display for LogProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogProblem::Text => "it is not a record",
            LogProblem::Digest => "its digest does not fit its bytes",
            LogProblem::Chain => "it does not name the record before it",
            LogProblem::Sequence => "its number is not the next one",
            LogProblem::Length => "it is longer than a record can be",
        })
    }
}

macro_rules! spelt {
    ($($type:ty),*) => {
        $(impl fmt::Display for $type {
            /// As in the log.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        })*
    };
}
spelt!(Operation, Stage, Outcome);
