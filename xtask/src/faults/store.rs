//! A store of the tiny model in a folder of its own, and the program over it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::problems::Problems;
use crate::run;

/// Compositions that a store has, by name.
pub(super) const COMPOSITIONS: &[(&str, &[&str])] = &[
    ("bare", &[]),
    ("kjv", &["kjv"]),
    ("python", &["python"]),
    ("pair", &["kjv=0.7", "python=0.3"]),
];

/// The program, a temporary folder, and the store `store` in it.
pub(super) struct Store {
    program: PathBuf,
    /// Everything is in here.
    pub(super) folder: PathBuf,
    /// The store.
    pub(super) path: PathBuf,
}

impl Store {
    /// A store with the tiny model, two adapters, four compositions, of which `bare` is active.
    pub(super) fn new(name: &str) -> Result<Store, Problems> {
        let folder = std::env::temp_dir().join(format!("slm-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| run::root().join("target"), PathBuf::from);
        let path = folder.join("store");
        let store = Store { program: target.join("release/slm"), folder, path };
        store.fill()?;
        Ok(store)
    }

    fn fill(&self) -> Result<(), Problems> {
        self.ok(&["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"])?;
        for adapter in ["kjv", "python"] {
            let folder = golden(&format!("tiny-{adapter}"));
            self.ok(&["adapter", "import", &folder, "--name", adapter, "--base", "tiny"])?;
        }
        for (name, adapters) in COMPOSITIONS {
            let mut args = vec!["compose", name, "--base", "tiny"];
            for adapter in *adapters {
                args.extend(["--adapter", adapter]);
            }
            self.ok(&args)?;
        }
        self.ok(&["activate", "bare"])?;
        Ok(())
    }

    /// The same program over another store of the same folder.
    pub(super) fn beside(&self, name: &str) -> Store {
        let (program, folder) = (self.program.clone(), self.folder.clone());
        Store { program, path: folder.join(name), folder }
    }

    pub(super) fn remove(&self) {
        // What is left behind in a temporary folder harms nobody.
        let _ = std::fs::remove_dir_all(&self.folder);
    }

    /// The program with these arguments, not yet started; its machine output is wanted.
    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = run::command(&self.program);
        command.arg("--store").arg(&self.path).arg("--json").args(args).stdin(Stdio::null());
        command
    }

    /// As another user, who owns nothing here.
    pub(super) fn as_nobody(&self, args: &[&str]) -> Command {
        let mut command = run::command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.arg(&self.program).arg("--store").arg(&self.path).arg("--json").args(args);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command that must succeed, and gives what it printed.
    pub(super) fn ok(&self, args: &[&str]) -> Result<Value, Problems> {
        let output = run_to_end(&mut self.command(args))?;
        if output.status.success() {
            return json(&output.stdout);
        }
        Err(Problems::one(format!(
            "slm {}: {}, {}",
            args.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        )))
    }

    /// The active composition.
    pub(super) fn active(&self) -> Result<String, Problems> {
        let status = self.ok(&["status"])?;
        Ok(status["composition"].as_str().unwrap_or_default().to_owned())
    }

    /// Holds every blob, name and record against what it says.
    pub(super) fn verify(&self) -> Result<(), Problems> {
        self.ok(&["verify", "--deep"]).map(|_| ())
    }

    /// Every file but the log, with its bytes.
    pub(super) fn files(&self) -> Result<BTreeMap<PathBuf, Vec<u8>>, Problems> {
        let mut files = BTreeMap::new();
        collect(&self.path, &mut files)?;
        files.retain(|path, _| !path.ends_with("audit.log") && !path.ends_with("lock"));
        Ok(files)
    }
}

/// A file or folder of `golden/files`.
pub(super) fn golden(name: &str) -> String {
    run::root().join("golden/files").join(name).display().to_string()
}

pub(super) fn run_to_end(command: &mut Command) -> Result<Output, Problems> {
    command.output().map_err(|error| Problems::one(format!("{command:?}: {error}")))
}

/// The machine output, or the machine error.
pub(super) fn json(bytes: &[u8]) -> Result<Value, Problems> {
    serde_json::from_slice(bytes).map_err(|error| {
        Problems::one(format!("not JSON ({error}): {}", String::from_utf8_lossy(bytes)))
    })
}

fn collect(folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<(), Problems> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.insert(path.clone(), std::fs::read(&path)?);
        }
    }
    Ok(())
}
