//! Documents that a person can hold in hand: evaluation records, generations, signatures, keys. `inspect` shows each.

use serde_json::{Value, json};
use slm_format::Digest;
use slm_format::container::layout::MAGIC;
use slm_manifest::evaluation::Measure;
use slm_manifest::signature::{DocumentKind, PublicKey, SecretKeyFile, Signature, SignedDocument};
use slm_manifest::{EvaluationRecord, Manifest, RawEvaluationRecord};
use slm_runtime::Runtime;
use slm_runtime::error::ActivationError;
use slm_runtime::load::Bytes;
use slm_runtime::runtime::Reference;
use slm_store::{FsStorage, Generation};

use crate::command::inspect::{Report, composition, slm};
use crate::error::CliError;
use crate::world::LIMITS;

/// A blob that is longer is not tried as a document.
pub(crate) const MAX_DOCUMENT: usize = 16 << 20;

/// What the blob of this digest holds, or the composition of this id.
pub(super) fn stored(
    runtime: &Runtime<FsStorage>,
    digest: Digest,
) -> Result<Option<Report>, CliError> {
    let store = runtime.store();
    if !store.has_blob(digest)? {
        // Not a blob: the id of a composition without a name, if anything.
        let reference = Reference::Text(digest.to_string());
        return match runtime.manifest_by_reference(&reference) {
            Ok(manifest) => Ok(Some(composition(runtime, &manifest)?)),
            Err(slm_runtime::RuntimeError::Activation(ActivationError::NotFound {
                name, ..
            })) => Err(ActivationError::NotFound { kind: "blob or composition", name }.into()),
            Err(error) => Err(error.into()),
        };
    }
    let blob: Bytes = store.verified_blob(digest)?;
    let bytes: &[u8] = (*blob).as_ref();
    let (mut object, lines) = match bytes {
        _ if bytes.starts_with(&MAGIC) => slm(&blob)?,
        _ if bytes.len() > MAX_DOCUMENT => return Err(nothing_known(digest)),
        _ => match held(bytes)? {
            Some((object, lines)) => with_signatures(runtime, digest, bytes, object, lines)?,
            None => match Manifest::parse(bytes, &LIMITS) {
                Ok(manifest) => composition(runtime, &manifest)?,
                Err(_) => match store.generation(digest) {
                    Ok(found) => generation(digest, &found),
                    Err(_) => return Err(nothing_known(digest)),
                },
            },
        },
    };
    object["blob"] = json!(digest);
    Ok(Some((object, lines)))
}

fn nothing_known(digest: Digest) -> CliError {
    CliError::Format {
        path: digest.to_string().into(),
        reason: "a blob that is nothing by itself, such as part of a file that was imported",
    }
}

/// A document that says itself what it is; none for anything else.
pub(super) fn held(bytes: &[u8]) -> Result<Option<Report>, CliError> {
    if bytes.starts_with(b"untrusted comment:") {
        if let Ok(key) = PublicKey::parse(bytes) {
            return Ok(Some(public_key(&key)));
        }
        if let Ok(file) = SecretKeyFile::parse(bytes) {
            let encrypted = file.is_encrypted();
            let note = if encrypted { "under a password" } else { "without a password" };
            let object = json!({ "kind": "secret-key", "encrypted": encrypted });
            return Ok(Some((object, vec![format!("a secret key {note}; keep it to yourself")])));
        }
        return Ok(Some(signature(&Signature::parse(bytes)?)));
    }
    let mark = format!("\"format\":\"{}\"", RawEvaluationRecord::FORMAT);
    let is_marked = bytes.windows(mark.len()).any(|window| window == mark.as_bytes());
    if bytes.first() == Some(&b'{') && bytes.len() <= MAX_DOCUMENT && is_marked {
        return Ok(Some(record(&EvaluationRecord::parse(bytes, &LIMITS)?)));
    }
    Ok(None)
}

fn record(record: &EvaluationRecord) -> Report {
    let RawEvaluationRecord { evaluator, environment, .. } = &**record;
    let fields = serde_json::to_value(&**record).expect("BUG: a record could not be encoded");
    let object = json!({
        "kind": "evaluation-record",
        "record": record.digest(),
        "composition": record.composition,
        "base": record.base,
        "results": record.results,
        "document": fields,
    });
    let mut lines = vec![
        format!("evaluation record {}", record.digest()),
        format!("composition {}", record.composition),
        format!("execution {}", record.execution),
        format!("base {}", record.base),
    ];
    lines.extend(record.manifest.map(|manifest| format!("manifest {manifest}")));
    let limit = evaluator.limit.map_or_else(String::new, |limit| format!(", the first {limit}"));
    lines.push(format!("{} of {}{limit}", evaluator.method, evaluator.data));
    lines.push(format!(
        "by {} {} on {}, {} {}, kernel {}, {} threads",
        evaluator.name,
        evaluator.version,
        record.timestamp_utc,
        environment.os,
        environment.arch,
        environment.kernel,
        environment.threads
    ));
    for (what, Measure { value, low, high, count }) in &record.results {
        let interval = match (low, high) {
            (Some(low), Some(high)) => format!(" ({low:.4} to {high:.4})"),
            _ => String::new(),
        };
        lines.push(format!("{what} {value:.4}{interval} over {count}"));
    }
    (object, lines)
}

fn generation(digest: Digest, generation: &Generation) -> Report {
    let object = json!({
        "kind": "generation",
        "generation": generation.number,
        "composition": generation.composition,
        "manifest": generation.manifest,
        "parent": generation.parent,
        "time": generation.time,
    });
    let parent = generation.parent.map_or_else(|| "none".to_owned(), |parent| parent.to_string());
    let lines = vec![
        format!("generation {} of {}, {digest}", generation.number, generation.time),
        format!("composition {}", generation.composition),
        format!("manifest {}", generation.manifest),
        format!("parent {parent}"),
    ];
    (object, lines)
}

fn signature(signature: &Signature) -> Report {
    let document = signature.names();
    let object = json!({
        "kind": "signature",
        "key": signature.key_id().to_string(),
        "comment": signature.trusted_comment(),
        "document": document.map(|document| document.digest),
    });
    let mut lines = vec![format!("a signature by the key {}", signature.key_id())];
    lines.extend(document.map(|document| format!("of {document}")));
    lines.push(format!("trusted comment: {}", signature.trusted_comment()));
    (object, lines)
}

fn public_key(key: &PublicKey) -> Report {
    let object =
        json!({ "kind": "public-key", "key": key.id().to_string(), "public": key.to_base64() });
    (object, vec![format!("the public key {}", key.id()), key.to_base64()])
}

/// Who signed a stored document, and whether that holds by a key that is trusted here.
fn with_signatures(
    runtime: &Runtime<FsStorage>,
    digest: Digest,
    bytes: &[u8],
    mut object: Value,
    mut lines: Vec<String>,
) -> Result<Report, CliError> {
    if object["kind"] != "evaluation-record" {
        // Of a signature, what it belongs to stands in its first line as well.
        if let Some(document) = SignedDocument::claimed_by(bytes) {
            object["document"] = json!(document.digest);
        }
        return Ok((object, lines));
    }
    let policy = runtime.policy();
    let mut rows = Vec::new();
    for (blob, file) in runtime.signatures_of(digest)? {
        // One that cannot be read signs nothing; `verify` names it.
        let Ok(signature) = Signature::parse(&file) else { continue };
        let by = policy.keys.iter().find(|trusted| {
            let kind = DocumentKind::EvaluationRecord;
            trusted.key.verify_document(kind, bytes, &signature).is_ok()
        });
        let name = by.map(|trusted| trusted.name.to_string());
        lines.push(match &name {
            Some(name) => format!("signed by {name}, key {}", signature.key_id()),
            None => format!("signed by the key {}, which is not trusted here", signature.key_id()),
        });
        let key = signature.key_id().to_string();
        rows.push(json!({ "signature": blob, "key": key, "trusted_as": name }));
    }
    object["signatures"] = rows.into();
    Ok((object, lines))
}
