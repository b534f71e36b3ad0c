//! The part of `cargo metadata` that the checks read.

use serde_json::Value;

use crate::problems::Problems;
use crate::run;

/// How a package depends on another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In every build.
    Normal,
    /// In tests, examples and benches.
    Dev,
    /// In a build script.
    Build,
}

/// One line of a package's dependencies.
#[derive(Debug, Clone)]
pub(crate) struct Dependency {
    /// The package's own name, whatever it was renamed to.
    pub(crate) name: String,
    /// When it is used.
    pub(crate) kind: Kind,
    /// The version requirement, `*` where none is given.
    pub(crate) requirement: String,
    /// Whether it stands in this repository.
    pub(crate) is_path: bool,
}

/// One package.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// Where it came from; nothing for a package of this workspace.
    pub(crate) source: Option<String>,
    /// Its licence expression.
    pub(crate) license: Option<String>,
    /// What it is.
    pub(crate) description: Option<String>,
    /// Its readme's file name.
    pub(crate) readme: Option<String>,
    /// Its repository.
    pub(crate) repository: Option<String>,
    /// Its keywords.
    pub(crate) keywords: Vec<String>,
    /// Its categories.
    pub(crate) categories: Vec<String>,
    /// Whether `cargo publish` is allowed for some registry.
    pub(crate) is_published: bool,
    /// The path of its Cargo.toml.
    pub(crate) manifest_path: String,
    /// What it depends on.
    pub(crate) dependencies: Vec<Dependency>,
}

#[cfg(test)]
impl Package {
    /// A published package of the workspace with a name, version 1.0.0, and nothing else.
    pub(crate) fn named(name: &str) -> Package {
        Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
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
        }
    }

    /// The same with one more dependency, on a crate of the workspace if its name is one of ours.
    pub(crate) fn with(mut self, name: &str, kind: Kind) -> Package {
        self.dependencies.push(Dependency {
            name: name.to_owned(),
            kind,
            requirement: "^1.0.0".to_owned(),
            is_path: name.starts_with("slm-"),
        });
        self
    }
}

/// The packages of this workspace alone.
pub(crate) fn workspace() -> Result<Vec<Package>, Problems> {
    let text = run::output(run::cargo().args([
        "metadata",
        "--format-version=1",
        "--no-deps",
        "--offline",
    ]))?;
    parse(&text)
}

/// Every package of the lock file that some target or feature of the workspace uses.
pub(crate) fn resolved() -> Result<Vec<Package>, Problems> {
    let text =
        run::output(run::cargo().args(["metadata", "--format-version=1", "--all-features"]))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<Package>, Problems> {
    let value: Value = serde_json::from_str(text)
        .map_err(|error| Problems::one(format!("cargo metadata: {error}")))?;
    let packages = value["packages"]
        .as_array()
        .ok_or_else(|| Problems::one("cargo metadata: no list of packages"))?;
    Ok(packages.iter().map(package).collect())
}

fn package(value: &Value) -> Package {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let list = |key: &str| -> Vec<String> {
        let items = value[key].as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
    };
    Package {
        name: text("name").unwrap_or_default(),
        version: text("version").unwrap_or_default(),
        source: text("source"),
        license: text("license"),
        description: text("description"),
        readme: text("readme"),
        repository: text("repository"),
        keywords: list("keywords"),
        categories: list("categories"),
        // `publish = false` is an empty list of registries; no `publish` line is null.
        is_published: value["publish"].as_array().is_none_or(|registries| !registries.is_empty()),
        manifest_path: text("manifest_path").unwrap_or_default(),
        dependencies: value["dependencies"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
            .map(dependency)
            .collect(),
    }
}

fn dependency(value: &Value) -> Dependency {
    Dependency {
        name: value["name"].as_str().unwrap_or_default().to_owned(),
        kind: match value["kind"].as_str() {
            Some("dev") => Kind::Dev,
            Some("build") => Kind::Build,
            _ => Kind::Normal,
        },
        requirement: value["req"].as_str().unwrap_or("*").to_owned(),
        is_path: value["path"].is_string(),
    }
}
