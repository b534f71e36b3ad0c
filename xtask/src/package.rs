//! Every crate for crates.io has what crates.io asks for.

use std::path::Path;

use crate::metadata::{self, Kind, Package};
use crate::problems::{Outcome, Problems};
use crate::run;

/// The most that a package may hold, unpacked: below what the registry takes packed, 10 MiB.
const MAX_BYTES: u64 = 8 << 20;

/// Checks every crate that is not `publish = false`, and lists what each would upload.
pub(crate) fn check() -> Outcome {
    let packages = metadata::workspace()?;
    let mut found = Vec::new();
    for package in packages.iter().filter(|package| package.is_published) {
        let folder = Path::new(&package.manifest_path).parent().unwrap_or(Path::new("."));
        found.extend(violations(package, &packages, folder));
        let files = run::output(run::cargo().args([
            "package",
            "--list",
            "--allow-dirty",
            "--offline",
            "--package",
            &package.name,
        ]))?;
        let bytes: u64 = files
            .lines()
            .filter_map(|file| std::fs::metadata(folder.join(file)).ok())
            .map(|metadata| metadata.len())
            .sum();
        println!(
            "package: {} {}: {} files, {bytes} bytes",
            package.name,
            package.version,
            files.lines().count()
        );
        if bytes > MAX_BYTES {
            found.push(format!(
                "package: {} holds {bytes} bytes, more than {MAX_BYTES}",
                package.name
            ));
        }
    }
    Problems::none_or(found)
}

fn violations(package: &Package, workspace: &[Package], folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut report = |what: &str| found.push(format!("package: {}: {what}", package.name));
    if package.description.as_deref().is_none_or(str::is_empty) {
        report("no description");
    }
    if package.license.is_none() {
        report("no licence");
    }
    if package.repository.is_none() {
        report("no repository");
    }
    match &package.readme {
        None => report("no readme"),
        Some(readme) if !folder.join(readme).is_file() => report(&format!("{readme} is missing")),
        Some(_) => {}
    }
    if package.keywords.is_empty() || package.keywords.len() > 5 {
        report("between one and five keywords are needed");
    }
    if package.keywords.iter().any(|keyword| keyword.len() > 20) {
        report("a keyword is longer than 20 bytes");
    }
    if package.categories.is_empty() || package.categories.len() > 5 {
        report("between one and five categories are needed");
    }
    for dependency in package.dependencies.iter().filter(|dependency| dependency.is_path) {
        let has_version = dependency.requirement != "*";
        // cargo drops a development dependency that has a path alone; every other one is looked up by its version.
        if !has_version && dependency.kind != Kind::Dev {
            report(&format!("{} has no version beside its path", dependency.name));
        }
        let is_published =
            workspace.iter().any(|other| other.name == dependency.name && other.is_published);
        if has_version && !is_published {
            report(&format!("depends on {}, which is not published", dependency.name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Package {
        Package {
            license: Some("MIT".to_owned()),
            description: Some("A cache".to_owned()),
            readme: Some("Cargo.toml".to_owned()),
            repository: Some("https://example.invalid".to_owned()),
            keywords: vec!["cache".to_owned()],
            categories: vec!["science".to_owned()],
            ..Package::named("slm-kv").with("slm-kv", Kind::Normal)
        }
    }

    #[test]
    fn each_missing_thing_is_told() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let workspace = [good()];
        assert_eq!(violations(&good(), &workspace, folder), Vec::<String>::new());
        let bends: &[fn(&mut Package)] = &[
            |package| package.description = None,
            |package| package.license = None,
            |package| package.repository = None,
            |package| package.readme = None,
            |package| package.readme = Some("NONE.md".to_owned()),
            |package| package.keywords.clear(),
            |package| package.keywords = vec!["k".to_owned(); 6],
            |package| package.categories.clear(),
            |package| package.dependencies[0].requirement = "*".to_owned(),
            |package| package.dependencies[0].name = "slm-golden".to_owned(),
        ];
        for (index, bend) in bends.iter().enumerate() {
            let mut package = good();
            bend(&mut package);
            assert_eq!(violations(&package, &workspace, folder).len(), 1, "bend {index}");
        }
    }
}
