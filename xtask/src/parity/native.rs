//! The native side: the program itself.

use std::path::PathBuf;

use serde_json::Value;

use super::case::{Case, Subject};
use super::compare::{Digest, Run};
use crate::problems::Problems;
use crate::run;

/// The program, built in the profile that ships.
#[derive(Debug)]
pub(crate) struct Slm(PathBuf);

impl Slm {
    /// Builds it.
    pub(crate) fn build() -> Result<Slm, Problems> {
        run::must(run::cargo().args(["build", "--release", "--package", "slm-cli"]))?;
        Ok(Slm(target_dir().join("release/slm")))
    }

    /// The tiers of this machine, slowest first.
    pub(crate) fn tiers(&self) -> Result<Vec<String>, Problems> {
        let report = self.json(&["inspect", "--cpu"].map(str::to_owned))?;
        let tiers = report["tiers"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(tiers.iter().filter_map(|tier| tier.as_str().map(str::to_owned)).collect())
    }

    /// Runs every case on one tier.
    pub(crate) fn run(&self, subject: &Subject, tier: &str) -> Result<Run, Problems> {
        let mut digests = Vec::new();
        for case in &subject.cases {
            let tokens: Vec<String> = case.tokens.iter().map(u32::to_string).collect();
            let mut args = vec!["logits".to_owned(), "--tokens".to_owned(), tokens.join(",")];
            args.extend(["--chunk".to_owned(), case.chunk.to_string()]);
            args.extend(["--activations", case.activations, "--kv", case.kv].map(str::to_owned));
            args.extend(["--kernel", tier].map(str::to_owned));
            args.extend(model(subject, &case.stack));
            let report = self.json(&args)?;
            digests.push(Digest::read(&report).ok_or_else(|| {
                Problems::one(format!("parity: slm logits reports no digest: {report}"))
            })?);
        }
        let (name, tier) = (format!("native {tier}"), tier.to_owned());
        Ok(Run { name, tier, digests, ms: Vec::new() })
    }

    /// Prints what a token takes on one thread of each tier, by the program's own `bench`.
    pub(crate) fn print_times(&self, subject: &Subject) -> Result<(), Problems> {
        for tier in self.tiers()? {
            for case in timed(&subject.cases) {
                let n = case.tokens.len().to_string();
                let mut args = ["bench", "--runs", "3", "--threads", "1", "--kernel", &tier]
                    .map(str::to_owned)
                    .to_vec();
                args.extend(["--prompt", &n, "--generate", &n].map(str::to_owned));
                args.extend(model(subject, &case.stack));
                let report = self.json(&args)?;
                let ms = |field: &str| 1e3 / report[field].as_f64().unwrap_or(f64::NAN);
                println!(
                    "parity: native {tier}, 1 thread, {}: {:.2} ms a token one by one, {:.2} in one pass",
                    stack_name(case),
                    ms("decode_tokens_per_s"),
                    ms("prompt_tokens_per_s")
                );
            }
        }
        Ok(())
    }

    fn json(&self, args: &[String]) -> Result<Value, Problems> {
        let text = run::output(run::command(&self.0).arg("--json").args(args))?;
        serde_json::from_str(&text)
            .map_err(|error| Problems::one(format!("parity: slm {}: {error}", args.join(" "))))
    }
}

/// Where cargo builds for this machine.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| run::root().join("target"), PathBuf::from)
}

/// The cases that are told the time of: the default mode, token by token.
pub(crate) fn timed(cases: &[Case]) -> impl Iterator<Item = &Case> {
    cases.iter().filter(|case| case.activations == "int8" && case.chunk == 1)
}

/// The stack in words.
pub(crate) fn stack_name(case: &Case) -> String {
    let name = case.name();
    name.split(',').next().map_or_else(|| name.clone(), str::to_owned)
}

fn model(subject: &Subject, stack: &[(String, String)]) -> Vec<String> {
    let mut args = vec!["--model".to_owned(), subject.model.display().to_string()];
    for (name, weight) in stack {
        let folder = subject.adapters.iter().find(|(known, _)| known == name);
        let folder = folder.map(|(_, folder)| folder.display().to_string()).unwrap_or_default();
        args.extend(["--adapter".to_owned(), format!("{folder}={weight}")]);
    }
    args
}
