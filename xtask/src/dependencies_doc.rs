//! docs/dependencies.md argues every crate that the workspace takes from elsewhere, and no other.

use std::collections::BTreeSet;

use crate::metadata::{self, Package};
use crate::problems::Problems;
use crate::run;

const PAGE: &str = "docs/dependencies.md";

/// Taken by fuzz/, which is no member of the workspace.
const OUTSIDE: &[&str] = &["libfuzzer-sys"];

/// What the page and the manifests do not agree on.
pub(crate) fn check() -> Result<Vec<String>, Problems> {
    Ok(differences(&run::read(PAGE)?, &metadata::workspace()?))
}

fn differences(page: &str, workspace: &[Package]) -> Vec<String> {
    let argued: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|name| !OUTSIDE.contains(name))
        .collect();
    let taken: BTreeSet<&str> = workspace
        .iter()
        .flat_map(|package| &package.dependencies)
        .filter(|dependency| !dependency.is_path)
        .map(|dependency| dependency.name.as_str())
        .collect();
    let unargued =
        taken.difference(&argued).map(|name| format!("tidy: {PAGE} does not argue `{name}`"));
    let gone = argued
        .difference(&taken)
        .map(|name| format!("tidy: {PAGE} argues `{name}`, which no crate takes"));
    unargued.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Dependency, Kind};

    #[test]
    fn both_directions_are_compared() {
        let mut package = Package {
            name: "slm-kv".to_owned(),
            version: "0.1.0".to_owned(),
            source: None,
            license: None,
            description: None,
            readme: None,
            repository: None,
            keywords: Vec::new(),
            categories: Vec::new(),
            is_published: true,
            manifest_path: String::new(),
            dependencies: Vec::new(),
        };
        let page = "| crate | for |\n|---|---|\n| `half` | f16 |\n| `libfuzzer-sys` | fuzz |\n";
        assert_eq!(differences(page, std::slice::from_ref(&package)).len(), 1);
        for name in ["half", "slm-format"] {
            package.dependencies.push(Dependency {
                name: name.to_owned(),
                kind: Kind::Normal,
                requirement: "*".to_owned(),
                is_path: name.starts_with("slm-"),
            });
        }
        assert_eq!(differences(page, std::slice::from_ref(&package)), Vec::<String>::new());
        assert_eq!(differences("", std::slice::from_ref(&package)).len(), 1);
    }
}
