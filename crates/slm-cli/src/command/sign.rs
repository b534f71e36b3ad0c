//! `sign`.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use slm_format::Digest;
use slm_manifest::EvaluationRecord;
use slm_manifest::signature::{DocumentKind, PublicKey, Signature, SignedDocument};
use slm_runtime::Runtime;
use slm_store::{FsStorage, Storage};

use crate::args::SignArgs;
use crate::command::document::MAX_DOCUMENT;
use crate::command::key::open_secret;
use crate::command::trust::read_public;
use crate::error::CliError;
use crate::model::{engine, reference};
use crate::outfile::OutFile;
use crate::world::{LIMITS, World, now, read};

/// Signs a composition's manifest or an evaluation record, stores a signature that another program made, or writes what is to be signed.
pub(crate) fn sign(world: &World, args: &SignArgs) -> Result<(), CliError> {
    let runtime = world.runtime(engine(Some(1), None)?)?;
    let (kind, document) = document(&runtime, &args.what)?;
    let signed = SignedDocument { kind, digest: Digest::of(&document) };
    if let Some(file) = &args.document {
        write(file, &document)?;
        let object = json!({ "document": signed.digest, "file": file });
        let line = format!("wrote {} ({}), to be signed", file.display(), signed.digest);
        world.output.result(object, &[line]);
        return Ok(());
    }
    let (signature, key) = match (&args.key, &args.signature) {
        (Some(key), _) => {
            let secret = open_secret(world, key, args.password_file.as_deref())?;
            let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let signature = secret.sign(&document, &signed.comment(seconds.as_secs()))?;
            (signature, secret.public_key())
        }
        (None, Some(file)) => {
            let signature = Signature::parse(&read(file)?)?;
            let key = public_key(world, args.public_key.as_deref(), &signature)?;
            (signature, key)
        }
        (None, None) => return Err(CliError::Missing { option: "--key" }),
    };
    // A file that cannot be written is known before anything is stored.
    let out = args.out.as_deref().map(OutFile::create).transpose()?;
    let (blob, changed) = runtime.add_signature(kind, &document, &signature, &key, &now())?;
    if let Some(out) = out {
        let text = signature.to_document_of(signed);
        out.write(&mut |out| {
            out.write_all(text.as_bytes())
                .map_err(|error| CliError::io(args.out.clone().unwrap_or_default(), error))
        })?;
    }
    let object = json!({
        "document": signed.digest,
        "signature": blob,
        "key": key.id().to_string(),
        "comment": signature.trusted_comment(),
        "changed": changed,
    });
    let verb = if changed { "signed" } else { "unchanged" };
    let lines = [format!("{verb}: {signed} by the key {}", key.id()), format!("signature {blob}")];
    world.output.result(object, &lines);
    Ok(())
}

/// What a name, an id or a file means, as the bytes that are signed.
fn document(runtime: &Runtime<FsStorage>, what: &str) -> Result<(DocumentKind, Vec<u8>), CliError> {
    if let Some(record) = stored_record(runtime, what)? {
        return Ok((DocumentKind::EvaluationRecord, record));
    }
    let manifest = runtime.manifest_by_reference(&reference(runtime, what)?)?;
    Ok((DocumentKind::Manifest, manifest.to_canonical_json()))
}

/// The stored evaluation record of this digest.
fn stored_record<S: Storage>(
    runtime: &Runtime<S>,
    what: &str,
) -> Result<Option<Vec<u8>>, CliError> {
    let Ok(digest) = what.parse::<Digest>() else { return Ok(None) };
    let store = runtime.store();
    if !store.has_blob(digest)? || (*store.blob(digest)?).as_ref().len() > MAX_DOCUMENT {
        return Ok(None);
    }
    let bytes = (*store.verified_blob(digest)?).as_ref().to_vec();
    Ok(EvaluationRecord::parse(&bytes, &LIMITS).is_ok().then_some(bytes))
}

/// The key that a signature is checked with: the one given, else a trusted one of its id.
fn public_key(
    world: &World,
    file: Option<&Path>,
    signature: &Signature,
) -> Result<PublicKey, CliError> {
    if let Some(file) = file {
        return read_public(&file.to_string_lossy());
    }
    let policy = world.policy()?;
    let trusted = policy.keys.iter().find(|trusted| trusted.key.id() == signature.key_id());
    trusted.map(|trusted| trusted.key).ok_or(CliError::Missing { option: "--public-key" })
}

fn write(file: &PathBuf, bytes: &[u8]) -> Result<(), CliError> {
    OutFile::create(file)?
        .write(&mut |out| out.write_all(bytes).map_err(|error| CliError::io(file, error)))
}
