//! From TOML to a policy, and what its values must be.

use std::collections::BTreeSet;

use serde::Deserialize;
use slm_format::Limits;

use super::error::PolicyError;
use super::{
    BudgetPolicy, DuringGeneration, MAX_BUDGET, MAX_KEEP_GENERATIONS, MAX_KEYS, MAX_WAIT_MS,
    RawLocalPolicy, StorePolicy, SwitchPolicy, TrustedKey,
};
use crate::signature::PublicKey;
use crate::trust::{BareBase, TrustPolicy, TrustRule};

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    budget: Budget,
    trust: Trust,
    switch: Switch,
    store: Store,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Budget {
    base_bytes: Option<u64>,
    adapters_bytes: Option<u64>,
    kv_bytes: Option<u64>,
    scratch_bytes: Option<u64>,
    total_bytes: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Trust {
    rule: Rule,
    signed_by: Vec<String>,
    bare_base: Bare,
    keys: Vec<Key>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Rule {
    #[default]
    None,
    Signed,
    SignedBy,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Bare {
    #[default]
    AsOthers,
    Unsigned,
    Refused,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    name: String,
    key: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Switch {
    during_generation: During,
    drain_wait_ms: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum During {
    #[default]
    Reject,
    Abort,
    Drain,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Store {
    keep_generations: Option<u64>,
}

/// Takes every parameter out of the document.
pub(super) fn raw_from_toml(text: &str, limits: &Limits) -> Result<RawLocalPolicy, PolicyError> {
    let (found, limit) = (text.len() as u64, limits.max_header_bytes);
    if found > limit {
        return Err(PolicyError::TooLong { found, limit });
    }
    let document: Document = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let before = text.as_bytes().get(..start).unwrap_or(text.as_bytes());
        PolicyError::Syntax {
            line: 1 + before.iter().filter(|&&byte| byte == b'\n').count() as u64,
            problem: error.message().to_owned(),
        }
    })?;
    let (switch, store) = (SwitchPolicy::default(), StorePolicy::default());
    let budget = document.budget;
    Ok(RawLocalPolicy {
        budget: BudgetPolicy {
            base: budget.base_bytes,
            adapters: budget.adapters_bytes,
            kv: budget.kv_bytes,
            scratch: budget.scratch_bytes,
            total: budget.total_bytes,
        },
        trust: trust(&document.trust)?,
        keys: keys(&document.trust.keys)?,
        switch: SwitchPolicy {
            during_generation: match document.switch.during_generation {
                During::Reject => DuringGeneration::Reject,
                During::Abort => DuringGeneration::Abort,
                During::Drain => DuringGeneration::Drain,
            },
            drain_wait_ms: document.switch.drain_wait_ms.unwrap_or(switch.drain_wait_ms),
        },
        store: StorePolicy {
            keep_generations: document.store.keep_generations.unwrap_or(store.keep_generations),
        },
    })
}

/// Checks bounds, and how the parameters of trust agree.
pub(super) fn check(raw: &RawLocalPolicy) -> Result<(), PolicyError> {
    for (field, found) in [
        ("budget.base_bytes", raw.budget.base),
        ("budget.adapters_bytes", raw.budget.adapters),
        ("budget.kv_bytes", raw.budget.kv),
        ("budget.scratch_bytes", raw.budget.scratch),
        ("budget.total_bytes", raw.budget.total),
    ] {
        within(field, found.unwrap_or(1), 1, MAX_BUDGET)?;
    }
    within("switch.drain_wait_ms", raw.switch.drain_wait_ms, 0, MAX_WAIT_MS)?;
    within("store.keep_generations", raw.store.keep_generations, 1, MAX_KEEP_GENERATIONS)?;
    within("trust.keys", raw.keys.len() as u64, 0, MAX_KEYS)?;
    let (mut names, mut keys) = (BTreeSet::new(), BTreeSet::new());
    for (at, TrustedKey { name, key }) in (0..).zip(&raw.keys) {
        if !names.insert(name) || !keys.insert(key.to_base64()) {
            return Err(PolicyError::DuplicateKey { at, name: name.to_string() });
        }
    }
    if let TrustRule::SignedBy(ids) = &raw.trust.rule {
        if ids.is_empty() {
            return Err(PolicyError::SignedBy { found: 0 });
        }
        let unknown =
            ids.iter().find(|id| !raw.keys.iter().any(|trusted| trusted.key.id() == **id));
        if let Some(&key) = unknown {
            return Err(PolicyError::UnknownKey { key });
        }
    }
    Ok(())
}

fn trust(trust: &Trust) -> Result<TrustPolicy, PolicyError> {
    let mut ids = BTreeSet::new();
    for (at, id) in trust.signed_by.iter().enumerate() {
        let field = format!("trust.signed_by[{at}]");
        ids.insert(id.parse().map_err(|source| PolicyError::Key { field, source })?);
    }
    let rule = match (&trust.rule, ids.is_empty()) {
        (Rule::None, true) => TrustRule::None,
        (Rule::Signed, true) => TrustRule::Signed,
        (Rule::SignedBy, _) => TrustRule::SignedBy(ids),
        // Ids that are not asked for: whoever wrote them believes that they count.
        _ => return Err(PolicyError::SignedBy { found: trust.signed_by.len() as u64 }),
    };
    let bare_base = match trust.bare_base {
        Bare::AsOthers => BareBase::AsOthers,
        Bare::Unsigned => BareBase::Unsigned,
        Bare::Refused => BareBase::Refused,
    };
    Ok(TrustPolicy { rule, bare_base })
}

fn keys(keys: &[Key]) -> Result<Vec<TrustedKey>, PolicyError> {
    let mut trusted = Vec::new();
    for (at, Key { name, key }) in (0..).zip(keys) {
        let field = || format!("trust.keys[{at}].key");
        trusted.push(TrustedKey {
            name: name.parse().map_err(|source| PolicyError::Name { at, source })?,
            key: PublicKey::parse(key.as_bytes())
                .map_err(|source| PolicyError::Key { field: field(), source })?,
        });
    }
    Ok(trusted)
}

fn within(field: &'static str, found: u64, min: u64, max: u64) -> Result<(), PolicyError> {
    if (min..=max).contains(&found) {
        Ok(())
    } else {
        Err(PolicyError::Range { field, found, min, max })
    }
}
