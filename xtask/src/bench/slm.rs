//! Our side: the slm program.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::llama::Job;
use super::process;
use crate::problems::Problems;
use crate::run;

/// The program.
#[derive(Debug)]
pub(crate) struct Slm {
    binary: PathBuf,
}

/// What `slm bench --json` measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Measured {
    pub(crate) prefill: f64,
    pub(crate) decode: f64,
    pub(crate) peak_rss: u64,
    pub(crate) kv_bytes: u64,
}

/// A folder of its own, gone when dropped.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
}

impl Slm {
    /// The given program, or the one that cargo builds in the release profile.
    pub(crate) fn find(given: Option<&Path>) -> Result<Slm, Problems> {
        if let Some(binary) = given {
            return Ok(Slm { binary: binary.to_owned() });
        }
        eprintln!("bench: building slm");
        let mut build = run::cargo();
        build.args(["build", "--release", "--package", "slm-cli", "--bin", "slm"]);
        let messages = run::output(build.args(["--message-format", "json-render-diagnostics"]))?;
        let binary = executable(&messages)
            .ok_or_else(|| Problems::one("bench: cargo did not say where it put slm"))?;
        Ok(Slm { binary })
    }

    pub(crate) fn version(&self) -> Result<String, Problems> {
        Ok(process::run(run::command(&self.binary).arg("--version"))?.stdout.trim().to_owned())
    }

    /// A file's speed after `depth` tokens that are not timed.
    pub(crate) fn bench(&self, job: Job<'_>, depth: usize) -> Result<Measured, Problems> {
        let mut command = self.json("bench");
        command.arg("--model").arg(job.model);
        self.measure(command, job, depth)
    }

    /// The speed of a composition of a store.
    pub(crate) fn bench_composition(
        &self,
        store: &Store,
        composition: &str,
        job: Job<'_>,
    ) -> Result<Measured, Problems> {
        let mut command = self.json("bench");
        command.arg("--store").arg(&store.folder).args(["--composition", composition]);
        self.measure(command, job, 0)
    }

    /// Seconds of a whole process that opens the store's composition, verifies it, reads a prompt and gives one token.
    pub(crate) fn first_token(
        &self,
        store: &Store,
        composition: &str,
        threads: usize,
        prompt: &str,
    ) -> Result<f64, Problems> {
        let mut command = run::command(&self.binary);
        command
            .args(["run", "--max-tokens", "1", "--threads", &threads.to_string(), "--store"])
            .arg(&store.folder)
            .args(["--composition", composition, prompt]);
        Ok(process::run(&mut command)?.seconds)
    }

    /// A store with a model as `base`, and composed alone as `bare`.
    pub(crate) fn store(&self, model: &Path) -> Result<Store, Problems> {
        let name = format!("slm-bench-{}", std::process::id());
        let store = Store { folder: std::env::temp_dir().join(name) };
        self.tell(&store, &["import", "--name", "base"], Some(model))?;
        self.tell(&store, &["compose", "bare", "--base", "base"], None)?;
        Ok(store)
    }

    /// Composes the base with an adapter, its factors kept or rounded to f16, under the precision's name: `keep` or `f16`.
    pub(crate) fn compose(
        &self,
        store: &Store,
        adapter: &Path,
        factors: &str,
    ) -> Result<(), Problems> {
        let name = format!("adapter-{factors}");
        let import = ["adapter", "import", "--base", "base", "--factors", factors, "--name", &name];
        self.tell(store, &import, Some(adapter))?;
        self.tell(store, &["compose", factors, "--base", "base", "--adapter", &name], None)
    }

    fn tell(&self, store: &Store, args: &[&str], path: Option<&Path>) -> Result<(), Problems> {
        let mut command = run::command(&self.binary);
        command.args(["--quiet", "--store"]).arg(&store.folder).args(args);
        if let Some(path) = path {
            command.arg(path);
        }
        process::run(&mut command).map(drop)
    }

    fn json(&self, subcommand: &str) -> Command {
        let mut command = run::command(&self.binary);
        command.args(["--json", subcommand]);
        command
    }

    fn measure(
        &self,
        mut command: Command,
        job: Job<'_>,
        depth: usize,
    ) -> Result<Measured, Problems> {
        command
            .args(["--runs", "1", "--threads", &job.threads.to_string()])
            .args(["--prompt", &job.prompt.to_string()])
            .args(["--generate", &job.generate.to_string()]);
        if depth > 0 {
            command.args(["--depth", &depth.to_string()]);
        }
        parse(&process::run(&mut command)?.stdout)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // What is left in the folder of temporary files harms nobody.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The program among cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let executable = message["executable"].as_str()?;
        (message["target"]["name"] == "slm").then(|| PathBuf::from(executable))
    })
}

fn parse(text: &str) -> Result<Measured, Problems> {
    let json: Value = serde_json::from_str(text)
        .map_err(|error| Problems::one(format!("bench: slm's output: {error}")))?;
    let wrong = |key: &str| Problems::one(format!("bench: slm gave no {key}: {text}"));
    let rate = |key: &str| json[key].as_f64().ok_or_else(|| wrong(key));
    let bytes = |key: &str| json[key].as_u64().ok_or_else(|| wrong(key));
    Ok(Measured {
        prefill: rate("prompt_tokens_per_s")?,
        decode: rate("decode_tokens_per_s")?,
        peak_rss: bytes("peak_rss_bytes")?,
        kv_bytes: bytes("kv_bytes")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_program_is_found_among_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"slm_format"},"executable":null}
not JSON
{"reason":"compiler-artifact","target":{"name":"other"},"executable":"target/release/other"}
{"reason":"compiler-artifact","target":{"name":"slm"},"executable":"target/release/slm"}"#;
        assert_eq!(executable(messages), Some(PathBuf::from("target/release/slm")));
        assert_eq!(executable(""), None);
    }

    #[test]
    fn what_bench_measured_is_read_or_refused() {
        let text = r#"{"prompt_tokens": 512, "prompt_tokens_per_s": 1167.5, "decode_tokens_per_s": 180.25,
            "peak_rss_bytes": 149000000, "kv_bytes": 11796480, "runs": 1}"#;
        let measured = Measured {
            prefill: 1167.5,
            decode: 180.25,
            peak_rss: 149_000_000,
            kv_bytes: 11_796_480,
        };
        assert_eq!(parse(text).expect("all of it"), measured);
        for key in ["prompt_tokens_per_s", "decode_tokens_per_s", "peak_rss_bytes", "kv_bytes"] {
            assert!(parse(&text.replace(key, "other")).is_err(), "{key}");
        }
        assert!(parse("").is_err());
    }
}
