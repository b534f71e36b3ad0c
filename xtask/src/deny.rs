//! Licences, sources and banned crates of everything in the lock file, by the rules of deny.toml.
//!
//! deny.toml is in cargo-deny's own form, and cargo-deny accepts it; this reads the part that needs no advisory database, in a second
//! instead of the minutes that building cargo-deny takes.

use std::collections::BTreeMap;

use crate::metadata::{self, Kind, Package};
use crate::problems::{Outcome, Problems};
use crate::{run, spdx};

/// The one registry, as cargo spells it in every lock file.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Checks the lock file's packages; duplicates are printed as warnings.
pub(crate) fn check() -> Outcome {
    let rules = Rules::parse(&run::read("deny.toml")?)?;
    let packages = metadata::resolved()?;
    for line in duplicates(&packages) {
        println!("deny: warning: {line}");
    }
    println!("deny: {} packages", packages.len());
    Problems::none_or(violations(&rules, &packages))
}

struct Rules {
    /// Licences that may be taken, as SPDX names.
    allowed: Vec<String>,
    /// Licences that one crate alone may have.
    exceptions: BTreeMap<String, Vec<String>>,
    /// Crates that must not be used.
    banned: BTreeMap<String, Ban>,
}

/// Why a crate must not be used.
struct Ban {
    reason: String,
    /// Crates from elsewhere that may depend on it all the same, for their own sake.
    wrappers: Vec<String>,
}

impl Rules {
    fn parse(text: &str) -> Result<Rules, Problems> {
        let table: toml::Table =
            toml::from_str(text).map_err(|error| Problems::one(format!("deny.toml: {error}")))?;
        let licenses = table.get("licenses");
        let allowed = strings(licenses.and_then(|section| section.get("allow")));
        if allowed.is_empty() {
            return Err(Problems::one("deny.toml: licenses.allow is missing or empty"));
        }
        let mut exceptions = BTreeMap::new();
        for entry in tables(licenses.and_then(|section| section.get("exceptions"))) {
            exceptions.insert(named(entry)?, strings(entry.get("allow")));
        }
        let mut banned = BTreeMap::new();
        for entry in tables(table.get("bans").and_then(|section| section.get("deny"))) {
            let reason = entry.get("reason").and_then(toml::Value::as_str);
            let reason = reason.ok_or_else(|| Problems::one("deny.toml: a ban has no reason"))?;
            let wrappers = strings(entry.get("wrappers"));
            banned.insert(named(entry)?, Ban { reason: reason.to_owned(), wrappers });
        }
        Ok(Rules { allowed, exceptions, banned })
    }
}

fn violations(rules: &Rules, packages: &[Package]) -> Vec<String> {
    let mut found = Vec::new();
    for package in packages {
        let Package { name, version, .. } = package;
        if let Some(Ban { reason, wrappers }) = rules.banned.get(name) {
            let users = packages.iter().filter(|user| uses(user, name));
            let users: Vec<&str> = users.map(|user| user.name.as_str()).collect();
            let may = |user: &&str| wrappers.iter().any(|wrapper| wrapper == user);
            // A package that nobody depends on is in the lock file all the same: it stands for itself.
            if users.is_empty() || !users.iter().all(may) {
                let users = users.into_iter().filter(|user| !may(user)).collect::<Vec<_>>();
                found.push(format!(
                    "deny: {name} {version} is banned: {reason}; taken by {}",
                    users.join(", ")
                ));
            }
        }
        if let Some(source) = package.source.as_deref().filter(|source| *source != REGISTRY) {
            found.push(format!("deny: {name} {version} comes from {source}, not from crates.io"));
        }
        let mut allowed = rules.allowed.clone();
        allowed.extend(rules.exceptions.get(name).cloned().unwrap_or_default());
        match &package.license {
            None => found.push(format!("deny: {name} {version} names no licence")),
            Some(expression) => match spdx::is_allowed(expression, &allowed) {
                Ok(true) => {}
                Ok(false) => {
                    found.push(format!(
                        "deny: {name} {version} is under `{expression}`, which deny.toml does not allow"
                    ));
                }
                Err(why) => found.push(format!("deny: {name} {version}: `{expression}`: {why}")),
            },
        }
    }
    found
}

/// Whether a package is built with another. Development dependencies of crates from elsewhere are in no lock file.
fn uses(package: &Package, name: &str) -> bool {
    let is_built = |kind: Kind| kind != Kind::Dev || package.source.is_none();
    let mut dependencies = package.dependencies.iter();
    dependencies.any(|dependency| dependency.name == name && is_built(dependency.kind))
}

fn duplicates(packages: &[Package]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(&package.version);
    }
    versions.retain(|_, list| list.len() > 1);
    versions.iter().map(|(name, list)| format!("{name} in versions {}", list.join(", "))).collect()
}

fn named(entry: &toml::Value) -> Result<String, Problems> {
    let name = entry.get("crate").and_then(toml::Value::as_str);
    name.map(str::to_owned).ok_or_else(|| Problems::one("deny.toml: an entry without `crate`"))
}

fn strings(value: Option<&toml::Value>) -> Vec<String> {
    let items = value.and_then(toml::Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn tables(value: Option<&toml::Value>) -> &[toml::Value] {
    value.and_then(toml::Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        [licenses]
        allow = ["MIT"]
        exceptions = [{ crate = "ring", allow = ["ISC"] }]
        [bans]
        deny = [{ crate = "openssl-sys", reason = "no system library" }]
    "#;

    fn package(name: &str, license: Option<&str>, source: Option<&str>) -> Package {
        Package {
            source: source.map(str::to_owned),
            license: license.map(str::to_owned),
            ..Package::named(name)
        }
    }

    #[test]
    fn each_rule_finds_its_culprit_and_passes_its_twin() {
        let rules = Rules::parse(RULES).expect("the rules above can be read");
        let registry = Some(REGISTRY);
        let cases = [
            (package("a", Some("MIT"), registry), 0),
            (package("a", Some("ISC"), registry), 1),
            (package("ring", Some("ISC"), registry), 0),
            (package("a", None, registry), 1),
            (package("a", Some("MIT"), Some("git+https://example.invalid/a")), 1),
            (package("a", Some("MIT"), None), 0),
            (package("openssl-sys", Some("MIT"), registry), 1),
        ];
        for (package, expected) in cases {
            let found = violations(&rules, std::slice::from_ref(&package));
            assert_eq!(found.len(), expected, "{package:?}: {found:?}");
        }
    }

    #[test]
    fn a_banned_crate_is_for_its_wrappers_alone() {
        let text = RULES.replace("reason = \"no", "wrappers = [\"curl\"], reason = \"no");
        let rules = Rules::parse(&text).expect("the rules can be read");
        let registry = Some(REGISTRY);
        let with =
            |name: &str, source, kind| package(name, Some("MIT"), source).with("openssl-sys", kind);
        let cases = [
            (with("curl", registry, Kind::Normal), 0),
            (with("git2", registry, Kind::Normal), 1),
            (with("slm-kv", None, Kind::Normal), 1),
            (with("slm-kv", None, Kind::Dev), 1),
        ];
        for (user, expected) in cases {
            let banned = || package("openssl-sys", Some("MIT"), registry);
            let curl = with("curl", registry, Kind::Build);
            let tests_alone = with("git2", registry, Kind::Dev);
            let found = violations(&rules, &[banned(), curl, tests_alone, user]);
            assert_eq!(found.len(), expected, "{found:?}");
        }
    }

    #[test]
    fn a_rule_file_without_licences_or_reasons_is_refused() {
        assert!(Rules::parse("[licenses]\nallow = []").is_err());
        assert!(Rules::parse(&RULES.replace(", reason = \"no system library\"", "")).is_err());
    }

    #[test]
    fn two_versions_are_told() {
        let mut second = package("a", Some("MIT"), None);
        second.version = "2.0.0".to_owned();
        let lines = duplicates(&[package("a", Some("MIT"), None), second]);
        assert_eq!(lines, ["a in versions 1.0.0, 2.0.0"]);
    }
}
