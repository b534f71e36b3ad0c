//! Evaluation records: what was measured on which composition, how, and with what result.

use core::ops::Deref;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slm_format::{Coded, Digest, Limits};

use crate::id::{BaseId, CompositionId, ExecutionId};
use crate::timestamp::is_utc_timestamp;

/// What the first field of every record says.
const FORMAT: &str = "slm evaluation record 1";
/// Most bytes of a text in a record.
const MAX_TEXT: usize = 256;
/// Most results of one record.
const MAX_RESULTS: usize = 1_000;

/// An evaluation record as a document or a caller states it, before [`EvaluationRecord::check`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawEvaluationRecord {
    /// Always `slm evaluation record 1`; [`RawEvaluationRecord::FORMAT`].
    pub format: String,
    /// What was measured.
    pub composition: CompositionId,
    /// Under which execution profile: the key of the bits.
    pub execution: ExecutionId,
    /// Its base.
    pub base: BaseId,
    /// The manifest it was made from, if it came from one. A manifest that names this record is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Digest>,
    /// When, as [`crate::is_utc_timestamp`] wants it.
    pub timestamp_utc: String,
    /// How tokens were chosen; none where nothing was generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// How text became tokens.
    pub prompt_policy: PromptPolicy,
    /// What chose the composition for each request; `fixed` where it was always this one.
    pub router: String,
    /// Who measured, and on what.
    pub evaluator: Evaluator,
    /// Where.
    pub environment: Environment,
    /// What came out, by name; at least one.
    pub results: BTreeMap<String, Measure>,
}

/// How tokens were chosen. Floats are written as doubles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// 0 takes the most likely token.
    pub temperature: f64,
    /// Candidates kept; 0 keeps all.
    pub top_k: u64,
    /// Probability mass kept.
    pub top_p: f64,
    /// Smallest probability kept, relative to the largest.
    pub min_p: f64,
    /// 1 for none.
    pub repeat_penalty: f64,
    /// The seed; at most [`crate::MAX_COUNT`].
    pub seed: u64,
    /// Most tokens generated per request.
    pub max_tokens: u64,
}

/// How text became tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptPolicy {
    /// Whether a beginning-of-text token came first.
    pub add_bos: bool,
    /// Most tokens of context.
    pub context: u64,
    /// sha256 of the chat template that was applied, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<Digest>,
    /// sha256 of the system message, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<Digest>,
}

/// Who measured, and on what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluator {
    /// The program, for example `slm`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What it did, for example `ppl`.
    pub method: String,
    /// sha256 of the data it did it on.
    pub data: Digest,
    /// How much of the data was used, where not all: tokens or tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Where it was measured. Results do not depend on it (that is what slm promises), times do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// The operating system, for example `linux`.
    pub os: String,
    /// The architecture, for example `x86_64`.
    pub arch: String,
    /// The kernel tier, for example `avx2`.
    pub kernel: String,
    /// Threads.
    pub threads: u64,
}

/// A value with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// The value.
    pub value: f64,
    /// Lower end of its confidence interval, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Over how many tokens, tasks or runs.
    pub count: u64,
}

impl RawEvaluationRecord {
    /// What [`RawEvaluationRecord::format`] must say.
    pub const FORMAT: &'static str = FORMAT;
}

/// A document that is not an evaluation record.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluationError {
    /// The document is longer than [`slm_format::Limits::max_header_bytes`].
    #[error("the evaluation record is {found} bytes long, the limit is {limit}")]
    TooLong {
        /// Bytes found.
        found: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// Not JSON, a field that a record has not, one that is missing or stands twice, or a value of another type.
    #[error("not an evaluation record at line {line}: {problem}")]
    Syntax {
        /// The line, from 1.
        line: u64,
        /// The parser's words.
        problem: String,
    },
    /// A field's value is not one it can have.
    #[error("{field} is {found:?}, expected {expected}")]
    Value {
        /// The field.
        field: String,
        /// What was given, cut to 80 characters.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The bytes are not the canonical form of what they say, so that they would have another digest when written again.
    #[error(
        "the evaluation record is not canonical JSON: it differs from its canonical form at byte {at}"
    )]
    NotCanonical {
        /// The first byte that differs.
        at: u64,
    },
}

impl Coded for EvaluationError {
    fn code(&self) -> &'static str {
        match self {
            EvaluationError::TooLong { .. } => "limit-exceeded",
            EvaluationError::Syntax { .. } => "evaluation-syntax",
            EvaluationError::Value { .. } => "evaluation-value",
            EvaluationError::NotCanonical { .. } => "evaluation-not-canonical",
        }
    }
}

/// An evaluation record that holds together. Fields are read through [`Deref`]; none can be changed.
///
/// Its bytes are canonical JSON (RFC 8785) and nothing else is read: programs write records, so one spelling costs nobody anything, and a
/// record's digest can be worked out from what it says. That also refuses keys that stand twice.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationRecord(RawEvaluationRecord);

impl Deref for EvaluationRecord {
    type Target = RawEvaluationRecord;

    fn deref(&self) -> &RawEvaluationRecord {
        &self.0
    }
}

impl EvaluationRecord {
    /// Checks `raw`.
    ///
    /// # Errors
    /// `evaluation-value` names the first field that is wrong.
    pub fn check(raw: RawEvaluationRecord) -> Result<EvaluationRecord, EvaluationError> {
        check(&raw)?;
        Ok(EvaluationRecord(raw))
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`EvaluationError`].
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<EvaluationRecord, EvaluationError> {
        let (found, limit) = (bytes.len() as u64, limits.max_header_bytes);
        if found > limit {
            return Err(EvaluationError::TooLong { found, limit });
        }
        let raw = serde_json::from_slice(bytes).map_err(|error| EvaluationError::Syntax {
            line: error.line() as u64,
            problem: error.to_string(),
        })?;
        let record = EvaluationRecord::check(raw)?;
        let canonical = record.to_canonical_json();
        if canonical == bytes {
            return Ok(record);
        }
        let same = canonical.iter().zip(bytes).take_while(|(a, b)| a == b).count();
        Err(EvaluationError::NotCanonical { at: same as u64 })
    }

    /// The record in canonical JSON: what is stored, signed and hashed.
    pub fn to_canonical_json(&self) -> Vec<u8> {
        serde_json_canonicalizer::to_vec(&self.0).expect("BUG: a checked record has no JSON form")
    }

    /// sha256 of [`EvaluationRecord::to_canonical_json`]; what a manifest's `evaluation` names.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.to_canonical_json())
    }
}

fn check(raw: &RawEvaluationRecord) -> Result<(), EvaluationError> {
    let refuse = |field: &str, found: &str, expected: &'static str| EvaluationError::Value {
        field: field.to_owned(),
        found: found.chars().take(80).collect(),
        expected,
    };
    if raw.format != FORMAT {
        return Err(refuse("format", &raw.format, FORMAT));
    }
    if !is_utc_timestamp(&raw.timestamp_utc) {
        let expected = "a time in UTC such as 2026-07-21T00:00:00Z";
        return Err(refuse("timestamp_utc", &raw.timestamp_utc, expected));
    }
    for (field, text) in [
        ("router", &raw.router),
        ("evaluator.name", &raw.evaluator.name),
        ("evaluator.version", &raw.evaluator.version),
        ("evaluator.method", &raw.evaluator.method),
        ("environment.os", &raw.environment.os),
        ("environment.arch", &raw.environment.arch),
        ("environment.kernel", &raw.environment.kernel),
    ] {
        if !is_text(text) {
            return Err(refuse(field, text, "1 to 256 bytes without control characters"));
        }
    }
    let sampling = raw.sampling.as_ref();
    for (field, count) in [
        ("prompt_policy.context", raw.prompt_policy.context),
        ("evaluator.limit", raw.evaluator.limit.unwrap_or(0)),
        ("environment.threads", raw.environment.threads),
        ("sampling.top_k", sampling.map_or(0, |s| s.top_k)),
        ("sampling.seed", sampling.map_or(0, |s| s.seed)),
        ("sampling.max_tokens", sampling.map_or(0, |s| s.max_tokens)),
    ] {
        if count > crate::MAX_COUNT {
            return Err(refuse(field, &count.to_string(), "at most 2^53 - 1"));
        }
    }
    for (field, number) in [
        ("sampling.temperature", sampling.map_or(0.0, |s| s.temperature)),
        ("sampling.top_p", sampling.map_or(0.0, |s| s.top_p)),
        ("sampling.min_p", sampling.map_or(0.0, |s| s.min_p)),
        ("sampling.repeat_penalty", sampling.map_or(0.0, |s| s.repeat_penalty)),
    ] {
        if !number.is_finite() {
            return Err(refuse(field, &number.to_string(), "a finite number"));
        }
    }
    if raw.results.is_empty() || raw.results.len() > MAX_RESULTS {
        return Err(refuse("results", &raw.results.len().to_string(), "1 to 1000 results"));
    }
    for (name, measure) in &raw.results {
        let field = || format!("results.{}", name.chars().take(80).collect::<String>());
        if !is_text(name) {
            return Err(refuse(
                "results",
                name,
                "names of 1 to 256 bytes without control characters",
            ));
        }
        let (value, low, high) = (measure.value, measure.low, measure.high);
        if ![Some(value), low, high].into_iter().flatten().all(f64::is_finite) {
            return Err(refuse(&field(), &format!("{measure:?}"), "finite numbers"));
        }
        if low.is_some_and(|low| low > value) || high.is_some_and(|high| high < value) {
            return Err(refuse(&field(), &format!("{measure:?}"), "a value within its interval"));
        }
        if measure.count > crate::MAX_COUNT {
            return Err(refuse(
                &field(),
                &measure.count.to_string(),
                "a count of at most 2^53 - 1",
            ));
        }
    }
    Ok(())
}

fn is_text(text: &str) -> bool {
    (1..=MAX_TEXT).contains(&text.len()) && !text.chars().any(char::is_control)
}
