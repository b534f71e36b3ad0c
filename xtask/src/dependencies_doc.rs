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
    use crate::metadata::Kind;

    #[test]
    fn both_directions_are_compared() {
        let page = "| crate | for |\n|---|---|\n| `half` | f16 |\n| `libfuzzer-sys` | fuzz |\n";
        let none = [Package::named("slm-kv")];
        assert_eq!(differences(page, &none).len(), 1);
        let [none] = none;
        let half = [none.with("half", Kind::Normal).with("slm-format", Kind::Normal)];
        assert_eq!(differences(page, &half), Vec::<String>::new());
        assert_eq!(differences("", &half).len(), 1);
    }
}
