//! Evaluation records: made by `eval … --record`, shown by `inspect` and `status`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use slm_format::Digest;
use slm_manifest::evaluation::{Environment, Evaluator, Measure, PromptPolicy};
use slm_manifest::{CompositionId, EvaluationRecord, Manifest, RawEvaluationRecord};
use slm_runtime::eval::Perplexity;
use slm_runtime::{Runtime, Session};
use slm_store::Storage;

use crate::error::CliError;
use crate::model::reference;
use crate::output::counted;
use crate::world::now;

/// What a perplexity was measured on and how, beside the session that measured it.
pub(crate) struct Measured<'a> {
    pub(crate) manifest: &'a Manifest,
    pub(crate) session: &'a Session,
    pub(crate) threads: usize,
    pub(crate) kernel: &'static str,
    pub(crate) data: &'a [u8],
    pub(crate) limit: Option<usize>,
    pub(crate) context: usize,
    pub(crate) add_bos: bool,
}

/// The manifest of the composition that is meant, the active one where none is.
pub(crate) fn manifest<S: Storage>(
    runtime: &Runtime<S>,
    composition: Option<&str>,
) -> Result<Manifest, CliError> {
    Ok(match composition {
        None => runtime.status()?.manifest,
        Some(what) => runtime.manifest_by_reference(&reference(runtime, what)?)?,
    })
}

/// Stores the record of a perplexity; its digest.
pub(crate) fn perplexity<S: Storage>(
    runtime: &Runtime<S>,
    measured: &Measured<'_>,
    result: &Perplexity,
) -> Result<Digest, CliError> {
    let composition = measured.session.composition();
    let measure = Measure {
        value: result.perplexity,
        low: Some(result.low),
        high: Some(result.high),
        count: result.tokens,
    };
    let raw = RawEvaluationRecord {
        format: RawEvaluationRecord::FORMAT.to_owned(),
        composition: composition.id(),
        execution: measured.session.execution_id(),
        base: composition.base_id(),
        manifest: Some(measured.manifest.digest()),
        timestamp_utc: now(),
        // Nothing is generated.
        sampling: None,
        prompt_policy: PromptPolicy {
            add_bos: measured.add_bos,
            context: measured.context as u64,
            chat_template: None,
            system: None,
        },
        router: "fixed".to_owned(),
        evaluator: Evaluator {
            name: "slm".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            method: "ppl".to_owned(),
            data: Digest::of(measured.data),
            limit: measured.limit.map(|limit| limit as u64),
        },
        environment: Environment {
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            kernel: measured.kernel.to_owned(),
            threads: measured.threads as u64,
        },
        results: BTreeMap::from([("perplexity".to_owned(), measure)]),
    };
    let record = EvaluationRecord::check(raw)?;
    Ok(runtime.record_evaluation(&record, &now())?.0)
}

/// The records of a composition, for a program and for a person.
pub(crate) fn of<S: Storage>(
    runtime: &Runtime<S>,
    composition: CompositionId,
) -> Result<(Vec<Value>, Vec<String>), CliError> {
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for (digest, record) in runtime.evaluations_of(composition)? {
        let signatures = runtime.signatures_of(digest)?.len();
        for (what, measure) in &record.results {
            lines.push(format!(
                "measured: {what} {:.4} over {} on {}, {} ({digest}, {})",
                measure.value,
                measure.count,
                record.evaluator.data,
                record.timestamp_utc,
                counted(signatures as u64, "signature")
            ));
        }
        rows.push(json!({
            "record": digest,
            "execution": record.execution,
            "method": record.evaluator.method,
            "data": record.evaluator.data,
            "timestamp_utc": record.timestamp_utc,
            "results": record.results,
            "signatures": signatures,
        }));
    }
    Ok((rows, lines))
}
