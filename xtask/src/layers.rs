//! The table of layers, as code: a crate depends on strictly lower levels only.

use crate::metadata::{self, Kind, Package};
use crate::problems::{Outcome, Problems};

/// Every package of the workspace and its level. Crates of one level do not know each other; the level above introduces them.
const LEVELS: &[(&str, u8)] = &[
    ("slm-format", 0),
    ("slm-manifest", 1),
    ("slm-quant", 1),
    ("slm-overlay", 2),
    ("slm-store", 2),
    ("slm-compress", 2),
    ("slm-kv", 3),
    ("slm-runtime", 4),
    ("slm-cli", 5),
    ("slm-wasm", 5),
    ("slm-capi", 5),
    ("slm-server", 5),
    ("slm-golden", TOOLS),
    ("slm-oracle", TOOLS),
    ("slm-kernel-checks", TOOLS),
    ("slm-bindgen", TOOLS),
    ("xtask", TOOLS + 1),
];

/// Above every crate that ships: these test the crates, and the crates do not depend on them.
const TOOLS: u8 = 6;

/// What the tests of any crate may use.
const TESTERS: &[&str] = &["slm-golden", "slm-kernel-checks"];

/// The edges upwards that are allowed, and why.
const EXCEPTIONS: &[(&str, &str, &str)] =
    &[("slm-cli", "slm-golden", "`slm demo` runs the embedded tiny model")];

/// Checks the workspace as it is.
pub(crate) fn check() -> Outcome {
    let packages = metadata::workspace()?;
    Problems::none_or(violations(&packages))
}

fn violations(packages: &[Package]) -> Vec<String> {
    let mut found = Vec::new();
    for package in packages {
        let Some(level) = level(&package.name) else {
            found.push(format!(
                "layers: {} is not in the table of xtask/src/layers.rs; a new crate needs a level and an absence to justify it",
                package.name
            ));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|dependency| dependency.is_path) {
            let Some(below) = self::level(&dependency.name) else {
                found.push(format!(
                    "layers: {} depends on {}, which is not in the table of xtask/src/layers.rs",
                    package.name, dependency.name
                ));
                continue;
            };
            let excepted = EXCEPTIONS
                .iter()
                .any(|(from, to, _)| *from == package.name && *to == dependency.name);
            let allowed = match dependency.kind {
                Kind::Normal | Kind::Build => below < level || excepted,
                Kind::Dev => below <= level || TESTERS.contains(&dependency.name.as_str()),
            };
            if !allowed {
                found.push(format!(
                    "layers: {} (level {level}) has a {:?} dependency on {} (level {below}); it must point strictly down",
                    package.name, dependency.kind, dependency.name
                ));
            }
        }
    }
    found
}

fn level(name: &str) -> Option<u8> {
    LEVELS.iter().find(|(known, _)| *known == name).map(|(_, level)| *level)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[(&str, Kind)]) -> Package {
        dependencies
            .iter()
            .fold(Package::named(name), |package, (name, kind)| package.with(name, *kind))
    }

    #[test]
    fn a_straight_graph_passes() {
        let packages = [
            package("slm-format", &[("slm-golden", Kind::Dev)]),
            package("slm-manifest", &[("slm-format", Kind::Normal)]),
            package("slm-runtime", &[("slm-format", Kind::Normal), ("slm-manifest", Kind::Normal)]),
            package("slm-cli", &[("slm-runtime", Kind::Normal), ("slm-golden", Kind::Normal)]),
        ];
        assert_eq!(violations(&packages), Vec::<String>::new());
    }

    #[test]
    fn every_bend_is_found() {
        let bends: &[(&str, &str, Kind)] = &[
            ("slm-format", "slm-manifest", Kind::Normal),
            ("slm-manifest", "slm-quant", Kind::Normal),
            ("slm-overlay", "slm-overlay", Kind::Normal),
            ("slm-runtime", "slm-golden", Kind::Normal),
            ("slm-wasm", "slm-golden", Kind::Normal),
            ("slm-wasm", "slm-cli", Kind::Build),
            ("slm-kv", "slm-runtime", Kind::Dev),
            ("slm-kv", "slm-oracle", Kind::Dev),
            ("slm-kv", "slm-unheard-of", Kind::Normal),
        ];
        for (from, to, kind) in bends {
            let found = violations(&[package(from, &[(to, *kind)])]);
            assert_eq!(found.len(), 1, "{from} → {to}: {found:?}");
            assert!(found[0].contains(from) && found[0].contains(to), "{found:?}");
        }
    }

    #[test]
    fn a_crate_without_a_level_is_found() {
        assert_eq!(violations(&[package("slm-extra", &[])]).len(), 1);
    }

    #[test]
    fn a_crate_from_elsewhere_has_no_level_and_needs_none() {
        let outside = package("slm-format", &[("serde", Kind::Normal)]);
        assert_eq!(violations(&[outside]), Vec::<String>::new());
    }
}
