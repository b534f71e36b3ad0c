//! Running other programs, and where the project stands.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::problems::{Outcome, Problems};

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest_dir.parent().map(Path::to_path_buf).unwrap_or(manifest_dir)
}

/// The text of a file, named from the workspace's folder.
pub(crate) fn read(relative: &str) -> Result<String, Problems> {
    std::fs::read_to_string(root().join(relative))
        .map_err(|error| Problems::one(format!("{relative}: {error}")))
}

/// The cargo that runs us.
pub(crate) fn cargo() -> Command {
    command(std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from))
}

/// A program to be run in the workspace's folder. What cargo tells a running package (`CARGO_PKG_*` and such) is not passed on: a nested
/// cargo would hand it to build scripts, and rebuild for it.
pub(crate) fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs to the end, with our stdout and stderr.
pub(crate) fn must(command: &mut Command) -> Outcome {
    let shown = show(command);
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| Problems::one(format!("{shown}: {error}")))?;
    if status.success() { Ok(()) } else { Err(Problems::one(format!("{shown}: {status}"))) }
}

/// Runs to the end and gives stdout; stderr is ours.
pub(crate) fn output(command: &mut Command) -> Result<String, Problems> {
    let shown = show(command);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Problems::one(format!("{shown}: {error}")))?;
    if !output.status.success() {
        return Err(Problems::one(format!("{shown}: {}", output.status)));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| Problems::one(format!("{shown}: its output is not UTF-8")))
}

/// Every file of the project, tracked or new, but not the ignored ones, as paths from the workspace's folder with `/`.
pub(crate) fn project_files() -> Result<Vec<String>, Problems> {
    let listing = output(command("git").args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    let root = root();
    let mut files: Vec<String> = listing
        .split('\0')
        .filter(|path| !path.is_empty() && root.join(path).is_file())
        .map(str::to_owned)
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

fn show(command: &Command) -> String {
    let mut shown = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        shown.push(' ');
        shown.push_str(&argument.to_string_lossy());
    }
    shown
}
