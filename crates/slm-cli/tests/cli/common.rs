//! A temporary place with a store, and what a process did in it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A folder that is removed at the end, and in it the path of a store.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
}

/// What a process left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) exit: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The program with no store of the machine in its environment.
pub(crate) fn slm() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slm"));
    command.env_remove("SLM_STORE").stdin(Stdio::null());
    command
}

/// Runs `command` to its end.
pub(crate) fn finish(command: &mut Command) -> Ran {
    let output = command.output().expect("the program starts");
    Ran {
        exit: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).expect("stdout is text"),
        stderr: String::from_utf8(output.stderr).expect("stderr is text"),
    }
}

/// Runs `command` with `input` on its standard input.
pub(crate) fn finish_with(command: &mut Command, input: &str) -> Ran {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    stdin.write_all(input.as_bytes()).expect("the input is taken");
    drop(stdin);
    let output = child.wait_with_output().expect("the program ends");
    Ran {
        exit: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).expect("stdout is text"),
        stderr: String::from_utf8(output.stderr).expect("stderr is text"),
    }
}

impl Place {
    /// An empty place; the store does not exist yet.
    pub(crate) fn new() -> Place {
        Place { dir: tempfile::tempdir().expect("a temporary folder") }
    }

    /// A place whose store holds the tiny model as `tiny` and both adapters.
    pub(crate) fn with_tiny() -> Place {
        let place = Place::new();
        place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
        for (name, folder) in [("kjv", "tiny-kjv"), ("python", "tiny-python")] {
            place.json(["adapter", "import", &golden(folder), "--name", name, "--base", "tiny"]);
        }
        place
    }

    /// As [`Place::with_tiny`], with the compositions `base` (no adapter), `kjv`, `python` and `both` (kjv at 0.7 below python at 0.3); `both` is active.
    pub(crate) fn with_active() -> Place {
        let place = Place::with_tiny();
        place.json(["compose", "base", "--base", "tiny"]);
        place.json(["compose", "kjv", "--base", "tiny", "--adapter", "kjv"]);
        place.json(["compose", "python", "--base", "tiny", "--adapter", "python"]);
        place.json([
            "compose",
            "both",
            "--base",
            "tiny",
            "--adapter",
            "kjv=0.7",
            "--adapter",
            "python=0.3",
        ]);
        place.json(["activate", "both"]);
        place
    }

    /// A path in the place.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A path in the place, as an argument.
    pub(crate) fn arg(&self, name: &str) -> String {
        self.path(name).to_str().expect("a UTF-8 path").to_owned()
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// Writes a file of the place, and gives its path as an argument.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), content).expect("the file is written");
        self.arg(name)
    }

    /// A command on this store.
    pub(crate) fn command<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, args: I) -> Command {
        let mut command = slm();
        command.arg("--store").arg(self.store()).args(args).current_dir(self.dir.path());
        command
    }

    /// Runs a command on this store.
    pub(crate) fn run<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, args: I) -> Ran {
        finish(&mut self.command(args))
    }

    /// Runs a command that must succeed, and gives the object it printed.
    pub(crate) fn json<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, args: I) -> Value {
        finish(self.command(args).arg("--json")).object()
    }

    /// Runs a command that must be refused: the exit status and the code of the error object.
    pub(crate) fn refused<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(
        &self,
        args: I,
    ) -> (i32, String) {
        let ran = finish(self.command(args).arg("--json"));
        (ran.exit, ran.error_code())
    }

    /// Every file of the store with its bytes, but for the log, which also tells what was refused; `None` where there is no store.
    pub(crate) fn snapshot(&self) -> Option<BTreeMap<PathBuf, Vec<u8>>> {
        let mut files = snapshot(&self.store())?;
        files.remove(&self.store().join("audit.log"));
        Some(files)
    }
}

impl Ran {
    /// The one object on stdout of a command that succeeded.
    pub(crate) fn object(&self) -> Value {
        assert_eq!(self.exit, 0, "{self:?}");
        assert_eq!(self.stderr, "", "nothing on stderr when piped with --json");
        let object: Value = serde_json::from_str(&self.stdout).expect("one JSON document");
        assert!(object.is_object(), "{object}");
        assert_eq!(self.stdout.trim_end().lines().count(), 1, "{self:?}");
        object
    }

    /// The code of the one error object on stderr of a command that failed with nothing on stdout.
    pub(crate) fn error_code(&self) -> String {
        self.error()["code"].as_str().expect("a code").to_owned()
    }

    /// What stands under `error` on stderr.
    pub(crate) fn error(&self) -> Value {
        assert_ne!(self.exit, 0, "{self:?}");
        assert_eq!(self.stdout, "", "no result beside an error");
        let object: Value = serde_json::from_str(&self.stderr)
            .unwrap_or_else(|error| panic!("one JSON document: {error}: {self:?}"));
        let error = &object["error"];
        assert_eq!(object.as_object().map(serde_json::Map::len), Some(1), "{object}");
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{object}");
        assert!(error["hint"].is_null() || error["hint"].is_string(), "{object}");
        let code = error["code"].as_str().expect("a code");
        assert!(
            !code.is_empty()
                && code.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
            "{code}"
        );
        error.clone()
    }
}

/// A file or folder of `golden/files`, as an argument.
pub(crate) fn golden(name: &str) -> String {
    slm_golden::path(&format!("files/{name}")).to_str().expect("a UTF-8 path").to_owned()
}

/// Every file below `folder` with its bytes; `None` where there is no folder.
pub(crate) fn snapshot(folder: &Path) -> Option<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).ok()? {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).expect("a file of the store");
                files.insert(path, bytes);
            }
        }
    }
    Some(files)
}

/// Copies a folder of plain files.
pub(crate) fn copy_folder(from: &str, to: &Path) {
    std::fs::create_dir_all(to).expect("the folder is made");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("a file");
        std::fs::write(to.join(path.file_name().expect("a name")), bytes).expect("a copy");
    }
}

/// Text of a field that must be a string.
pub(crate) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_else(|| panic!("{field} in {object}"))
}

/// Holds a field against the form of a SHA-256 identity.
pub(crate) fn is_digest(object: &Value, field: &str) -> bool {
    object[field].as_str().is_some_and(|text| {
        text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && is_hex(hex))
    })
}

/// Holds a field against the form of a bare BLAKE3 hash.
pub(crate) fn is_blake3(object: &Value, field: &str) -> bool {
    object[field].as_str().is_some_and(|hex| hex.len() == 64 && is_hex(hex))
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}
