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
use crate::world::{World, actor, now, read};

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
    let trusted = TrustedKey { name: name.clone(), key };
    let (_, changed) = change(world, &|raw| {
        if !raw.keys.contains(&trusted) {
            raw.keys.push(trusted.clone());
        }
        Ok(())
    })?;
    let object = json!({ "name": name.as_str(), "key": key.id().to_string(), "changed": changed });
    let verb = if changed { "trusted" } else { "unchanged" };
    world.output.result(object, &[format!("{verb}: {name}, key {}", key.id())]);
    Ok(())
}

/// Trusts a key no longer.
fn remove(world: &World, name: &str) -> Result<(), CliError> {
    let name = crate::model::name("NAME", name)?;
    let (_, changed) = change(world, &|raw| {
        raw.keys.retain(|trusted| trusted.name != name);
        Ok(())
    })?;
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
    if rule.is_none() && bare_base.is_none() {
        let policy = world.policy()?;
        let mut object = trust_object(&policy);
        object["policy"] = policy.to_toml().into();
        world.output.result(object, &[policy.to_toml().trim_end().to_owned()]);
        return Ok(());
    }
    let (policy, changed) = change(world, &|raw| {
        match rule {
            Some(RuleArg::None) => raw.trust.rule = TrustRule::None,
            Some(RuleArg::Signed) => raw.trust.rule = TrustRule::Signed,
            Some(RuleArg::SignedBy) => {
                let ids = keys.iter().map(|key| key_id(raw, key));
                raw.trust.rule = TrustRule::SignedBy(ids.collect::<Result<_, _>>()?);
            }
            None => {}
        }
        match bare_base {
            Some(BareBaseArg::AsOthers) => raw.trust.bare_base = BareBase::AsOthers,
            Some(BareBaseArg::Unsigned) => raw.trust.bare_base = BareBase::Unsigned,
            Some(BareBaseArg::Refused) => raw.trust.bare_base = BareBase::Refused,
            None => {}
        }
        Ok(())
    })?;
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
fn key_id(policy: &RawLocalPolicy, key: &str) -> Result<KeyId, CliError> {
    match policy.keys.iter().find(|trusted| trusted.name.as_str() == key) {
        Some(trusted) => Ok(trusted.key.id()),
        None => Ok(key.parse()?),
    }
}

/// Changes the policy, and tells the audit log; false where that changed nothing. It is read under the lock, so that no change of another
/// process is lost.
fn change(
    world: &World,
    edit: &dyn Fn(&mut RawLocalPolicy) -> Result<(), CliError>,
) -> Result<(LocalPolicy, bool), CliError> {
    let runtime = world.runtime(engine(Some(1), None)?)?;
    let store = runtime.store();
    let now = now();
    let mut lock = store.lock_at(&now)?;
    let policy = world.policy()?;
    let mut raw: RawLocalPolicy = (*policy).clone();
    edit(&mut raw)?;
    if raw == *policy {
        return Ok((policy, false));
    }
    let policy = LocalPolicy::check(raw)?;
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
    // The log names the new policy before the store has it, so that a crash in between is told truthfully.
    pending.stage(Change::SetPolicy(policy.to_toml().into_bytes()))?.commit()?;
    Ok((policy, true))
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
