//! Every fuzz target for a while, with cargo-fuzz on the installed nightly.

use std::process::{Command, Stdio};

use crate::problems::{Outcome, Problems};
use crate::run;

/// Megabytes of resident memory that a target may use, and that one allocation may ask for.
const MEMORY_MB: u32 = 1024;

/// Runs all targets, or the one named, for `--seconds` each.
pub(crate) fn run(args: &[&str]) -> Outcome {
    let (seconds, wanted) = options(args)?;
    prepare()?;
    let all = targets()?;
    let chosen: Vec<&String> =
        all.iter().filter(|name| wanted.is_none_or(|wanted| wanted == **name)).collect();
    if chosen.is_empty() {
        return Err(Problems::one(format!("fuzz: no such target; there are {}", all.join(", "))));
    }
    let mut found = Vec::new();
    for target in chosen {
        println!("fuzz: {target} for {seconds} s");
        run::must(nightly().args(["cargo", "fuzz", "build", target]))?;
        if one(target, seconds).is_err() {
            found.push(format!("fuzz: {target} found something; see fuzz/artifacts/{target}"));
        }
    }
    Problems::none_or(found)
}

fn options<'a>(args: &[&'a str]) -> Result<(u32, Option<&'a str>), Problems> {
    let (seconds, rest) = match args {
        ["--seconds", number, rest @ ..] => {
            let seconds = number.parse().ok().filter(|seconds| *seconds > 0);
            let seconds = seconds.ok_or_else(|| {
                Problems::one(format!("fuzz: {number:?} is no number of seconds"))
            })?;
            (seconds, rest)
        }
        rest => (60, rest),
    };
    match rest {
        [] => Ok((seconds, None)),
        [name] if !name.starts_with('-') => Ok((seconds, Some(name))),
        _ => Err(Problems::one("usage: cargo xtask fuzz [--seconds N] [NAME]")),
    }
}

/// Looks for nightly and cargo-fuzz; cargo-fuzz is installed if it is missing, and that is said.
fn prepare() -> Outcome {
    let quiet = |args: &[&str]| {
        let mut command = run::command("rustup");
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !quiet(&["run", "nightly", "rustc", "--version"]) {
        return Err(Problems::one(
            "fuzz: no nightly toolchain; `rustup toolchain install nightly`",
        ));
    }
    if quiet(&["run", "nightly", "cargo", "fuzz", "--version"]) {
        return Ok(());
    }
    println!("fuzz: cargo-fuzz is missing; installing it from crates.io");
    run::must(run::cargo().args(["install", "--locked", "cargo-fuzz"]))
}

/// The targets by their files, in alphabetical order.
fn targets() -> Result<Vec<String>, Problems> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(run::root().join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(stem) = path.file_stem()
        {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// New inputs go to fuzz/corpus, which is not committed; the seeds are read only.
fn one(target: &str, seconds: u32) -> Outcome {
    std::fs::create_dir_all(run::root().join("fuzz/corpus").join(target))?;
    let mut command = nightly();
    command
        .args(["cargo", "fuzz", "run", target])
        .arg(format!("fuzz/corpus/{target}"))
        .arg(format!("fuzz/seeds/{target}"))
        .arg("--")
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-rss_limit_mb={MEMORY_MB}"))
        .arg(format!("-malloc_limit_mb={MEMORY_MB}"))
        .args(["-timeout=10", "-max_len=65536", "-print_final_stats=1"]);
    run::must(&mut command)
}

fn nightly() -> Command {
    let mut command = run::command("rustup");
    command.args(["run", "nightly"]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_or_refused() {
        assert!(matches!(options(&[]), Ok((60, None))));
        assert!(matches!(options(&["--seconds", "5", "gguf"]), Ok((5, Some("gguf")))));
        for bad in [&["--seconds"][..], &["--seconds", "0"], &["--second", "5"], &["a", "b"]] {
            assert!(options(bad).is_err(), "{bad:?}");
        }
    }
}
