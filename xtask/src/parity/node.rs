//! The WASM side: slm-wasm under Node.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::case::{Subject, to_json};
use super::compare::{Digest, Run};
use super::native::{stack_name, target_dir, timed};
use crate::problems::{Outcome, Problems};
use crate::run;
use crate::wasm::{self, Toolchain};

/// The scripts, beside the crate that they test.
const SCRIPTS: &str = "crates/slm-wasm/tests";

/// The module with its glue.
#[derive(Debug)]
pub(crate) struct Node {
    folder: PathBuf,
}

impl Node {
    /// Builds the module, the program that writes its glue, and the glue.
    pub(crate) fn build(toolchain: Toolchain) -> Result<Node, Problems> {
        run::output(run::command("node").arg("--version")).map_err(|_| {
            Problems::one(
                "parity: Node does not run; install version 20 or newer, on Debian with `apt-get install nodejs`",
            )
        })?;
        let module = wasm::build(toolchain)?;
        let folder = target_dir().join("parity");
        std::fs::create_dir_all(&folder)?;
        // The generator runs for two seconds: optimizing what it is made of costs a minute more than it saves.
        run::must(
            run::cargo()
                .args(["run", "--quiet", "--package", "slm-bindgen"])
                .args(["--config", "profile.dev.package.\"*\".opt-level=0"])
                .args(["--config", "profile.dev.debug=0"])
                .arg("--")
                .args([&module, &folder]),
        )?;
        Ok(Node { folder })
    }

    /// Runs the checks of the class itself: what it accepts, and what it throws.
    pub(crate) fn check_api(&self) -> Outcome {
        let files = run::root().join("golden/files");
        run::must(self.script("api.cjs").arg(files))
    }

    /// Runs every case on every tier that the module has under this Node.
    pub(crate) fn run(&self, subject: &Subject) -> Result<Vec<Run>, Problems> {
        let path = self.folder.join("cases.json");
        std::fs::write(&path, to_json(subject).to_string())?;
        let text = run::output(self.script("parity.cjs").arg(path))?;
        let mut runs: Vec<Run> = Vec::new();
        for line in text.lines() {
            let wrong = || Problems::one(format!("parity: Node printed no digest: {line}"));
            let value: Value = serde_json::from_str(line).map_err(|_| wrong())?;
            let tier = value["tier"].as_str().ok_or_else(wrong)?;
            let digest = Digest::read(&value["digest"]).ok_or_else(wrong)?;
            let ms = value["ms"].as_f64().ok_or_else(wrong)?;
            if runs.last().is_none_or(|run| run.tier != tier) {
                let (name, tier) = (format!("Node {tier}"), tier.to_owned());
                runs.push(Run { name, tier, digests: Vec::new(), ms: Vec::new() });
            }
            let run = runs.last_mut().ok_or_else(wrong)?;
            run.digests.push(digest);
            run.ms.push(ms);
        }
        if runs.is_empty() { Err(Problems::one("parity: Node ran nothing")) } else { Ok(runs) }
    }

    fn script(&self, name: &str) -> std::process::Command {
        let glue = self.folder.join("slm_wasm.js");
        let mut command = run::command("node");
        command.arg(Path::new(SCRIPTS).join(name)).arg(glue);
        command
    }
}

/// Prints what a token takes under Node on each tier: logits of every position, hashed.
pub(crate) fn print_times(subject: &Subject, runs: &[Run]) {
    for run in runs.iter().filter(|run| !run.ms.is_empty()) {
        for case in timed(&subject.cases) {
            let n = case.tokens.len();
            let ms = |chunk: usize| {
                let wanted = super::case::Case { chunk, ..case.clone() };
                let at = subject.cases.iter().position(|other| *other == wanted);
                at.map_or(f64::NAN, |at| run.ms[at] / n as f64)
            };
            println!(
                "parity: {}, {}: {:.2} ms a token one by one, {:.2} in one pass",
                run.name,
                stack_name(case),
                ms(1),
                ms(n)
            );
        }
    }
}
