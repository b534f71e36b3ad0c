//! `trust add`, `list`, `remove`, `policy`: the trust in the local policy.

use std::path::Path;

use serde_json::json;
use slm_manifest::policy::{LocalPolicy, RawLocalPolicy, TrustedKey};
use slm_manifest::signature::{KeyId, PublicKey};
use slm_manifest::{BareBase, TrustRule};
use slm_store::{Change, Intent, Operation};

use crate::args::{BareBaseArg, RuleArg, TrustCommand};
use crate::error::CliError;
use crate::model::engine;
use crate::outfile::OutFile;
use crate::world::{POLICY_FILE, World, actor, now, read};

/// Dispatches.
pub(crate) fn trust(world: &World, command: TrustCommand) -> Result<(), CliError> {
    match command {
        TrustCommand::Add { name, key } => add(world, &name, &key),
        TrustCommand::List => list(world),
        TrustCommand::Remove { name } => remove(world, &name),
        TrustCommand::Policy { rule, keys, bare_base } => policy(world, rule, &keys, bare_base),
    }
}

/// Trusts a key.
fn add(world: &World, name: &str, key: &str) -> Result<(), CliError> {
    let name = crate::model::name("NAME", name)?;
    let key = read_public(key)?;
    let policy = world.policy()?;
    let known = policy.keys.iter().any(|trusted| trusted.name == name && trusted.key == key);
    if !known {
        let mut raw: RawLocalPolicy = (*policy).clone();
        raw.keys.push(TrustedKey { name: name.clone(), key });
        write_policy(world, raw)?;
    }
    let object = json!({ "name": name.as_str(), "key": key.id().to_string(), "changed": !known });
    let verb = if known { "unchanged" } else { "trusted" };
    world.output.result(object, &[format!("{verb}: {name}, key {}", key.id())]);
    Ok(())
}

/// Trusts a key no longer.
fn remove(world: &World, name: &str) -> Result<(), CliError> {
    let name = crate::model::name("NAME", name)?;
    let mut raw: RawLocalPolicy = (*world.policy()?).clone();
    let before = raw.keys.len();
    raw.keys.retain(|trusted| trusted.name != name);
    let changed = raw.keys.len() < before;
    if changed {
        write_policy(world, raw)?;
    }
    let verb = if changed { "removed" } else { "unchanged" };
    let object = json!({ "name": name.as_str(), "changed": changed });
    world.output.result(object, &[format!("{verb}: {name}")]);
    Ok(())
}

/// Whom the store trusts.
fn list(world: &World) -> Result<(), CliError> {
    let policy = world.policy()?;
    let rows: Vec<_> = policy
        .keys
        .iter()
        .map(|trusted| {
            json!({
                "name": trusted.name,
                "key": trusted.key.id().to_string(),
                "public": trusted.key.to_base64(),
            })
        })
        .collect();
    let mut lines = trust_lines(&policy);
    for TrustedKey { name, key } in &policy.keys {
        lines.push(format!("  {:<24} {}  {}", name.as_str(), key.id(), key.to_base64()));
    }
    let mut object = trust_object(&policy);
    object["keys"] = rows.into();
    world.output.result(object, &lines);
    Ok(())
}

/// Shows the policy in force, or changes what it says of trust.
fn policy(
    world: &World,
    rule: Option<RuleArg>,
    keys: &[String],
    bare_base: Option<BareBaseArg>,
) -> Result<(), CliError> {
    let policy = world.policy()?;
    if rule.is_none() && bare_base.is_none() {
        let mut object = trust_object(&policy);
        object["policy"] = policy.to_toml().into();
        world.output.result(object, &[policy.to_toml().trim_end().to_owned()]);
        return Ok(());
    }
    let mut raw: RawLocalPolicy = (*policy).clone();
    if let Some(rule) = rule {
        raw.trust.rule = match rule {
            RuleArg::None => TrustRule::None,
            RuleArg::Signed => TrustRule::Signed,
            RuleArg::SignedBy => {
                let ids = keys.iter().map(|key| key_id(&policy, key));
                TrustRule::SignedBy(ids.collect::<Result<_, _>>()?)
            }
        };
    }
    if let Some(bare_base) = bare_base {
        raw.trust.bare_base = match bare_base {
            BareBaseArg::AsOthers => BareBase::AsOthers,
            BareBaseArg::Unsigned => BareBase::Unsigned,
            BareBaseArg::Refused => BareBase::Refused,
        };
    }
    let changed = raw != *policy;
    let policy = if changed { write_policy(world, raw)? } else { policy };
    let mut object = trust_object(&policy);
    object["changed"] = changed.into();
    world.output.result(object, &trust_lines(&policy));
    Ok(())
}

/// A public key: minisign's file, or the line that it prints.
pub(crate) fn read_public(key: &str) -> Result<PublicKey, CliError> {
    if let Ok(key) = PublicKey::parse(key.as_bytes()) {
        return Ok(key);
    }
    Ok(PublicKey::parse(&read(Path::new(key))?)?)
}

/// A key's id, or the name it is trusted under.
fn key_id(policy: &LocalPolicy, key: &str) -> Result<KeyId, CliError> {
    match policy.keys.iter().find(|trusted| trusted.name.as_str() == key) {
        Some(trusted) => Ok(trusted.key.id()),
        None => Ok(key.parse()?),
    }
}

/// Checks a policy, puts it in the place of the one there was, and tells the audit log.
fn write_policy(world: &World, raw: RawLocalPolicy) -> Result<LocalPolicy, CliError> {
    let policy = LocalPolicy::check(raw)?;
    let runtime = world.runtime(engine(Some(1), None)?)?;
    let store = runtime.store();
    let now = now();
    let mut lock = store.lock_at(&now)?;
    let pending = store.begin(
        &mut lock,
        Intent {
            operation: Operation::Trust,
            time: now,
            actor: actor(),
            composition: None,
            manifest: None,
        },
    )?;
    if let Err(error) = put(&world.store_path()?.join(POLICY_FILE), &policy.to_toml()) {
        // The error is what the caller must hear; where the log cannot be told either, the next operation tells it.
        let _ = pending.refuse(&error);
        return Err(error);
    }
    pending.stage(Change::Nothing)?.commit()?;
    Ok(policy)
}

fn put(path: &Path, document: &str) -> Result<(), CliError> {
    OutFile::create(path)?.write(&mut |out| {
        out.write_all(document.as_bytes()).map_err(|error| CliError::io(path, error))
    })
}

fn rule_words(policy: &LocalPolicy) -> (&'static str, Vec<String>, &'static str) {
    let (rule, ids) = match &policy.trust.rule {
        TrustRule::None => ("none", Vec::new()),
        TrustRule::Signed => ("signed", Vec::new()),
        TrustRule::SignedBy(ids) => ("signed-by", ids.iter().map(KeyId::to_string).collect()),
    };
    let bare_base = match policy.trust.bare_base {
        BareBase::AsOthers => "as-others",
        BareBase::Unsigned => "unsigned",
        BareBase::Refused => "refused",
    };
    (rule, ids, bare_base)
}

fn trust_object(policy: &LocalPolicy) -> serde_json::Value {
    let (rule, ids, bare_base) = rule_words(policy);
    json!({ "rule": rule, "signed_by": ids, "bare_base": bare_base })
}

fn trust_lines(policy: &LocalPolicy) -> Vec<String> {
    let (rule, ids, bare_base) = rule_words(policy);
    let mut line = format!("rule {rule}");
    for id in ids {
        line.push_str(&format!(" {id}"));
    }
    vec![format!("{line}; the bare base {bare_base}")]
}
