//! `cargo xtask drift`: how far ways of adapting a quantized model end from the model that was meant.
//!
//! The numbers come from the example `drift` of slm-runtime, which runs the real forward pass; they are kept in `docs/drift/*.json`. The plots beside them and
//! the tables in `docs/drift.md` are made of those files alone, so the same numbers give the same pages.

mod page;
mod plot;
mod study;

use std::path::{Path, PathBuf};

use crate::problems::{Outcome, Problems};
use crate::run;

use study::Study;

/// The folder of numbers and plots.
const FOLDER: &str = "docs/drift";

/// What is studied: the name of its files, what it is called, and where it is.
const TINY: &str = "tiny";
const SMOLLM2: &str = "smollm2";

/// Measures the tiny model and, with `--models`, SmolLM2; then makes the plots and the tables.
pub(crate) fn run(args: &[&str]) -> Outcome {
    let (models, adapters) = match args {
        [] => (None, None),
        ["--models", models] => (Some(*models), None),
        ["--models", models, "--adapters", adapters] => (Some(*models), Some(*adapters)),
        ["--render"] => return render(),
        ["--check"] => return check(),
        _ => {
            let usage =
                "usage: cargo xtask drift [--models DIR [--adapters DIR]] | --render | --check";
            return Err(Problems::one(usage.to_owned()));
        }
    };
    std::fs::create_dir_all(run::root().join(FOLDER))
        .map_err(|error| Problems::one(format!("{FOLDER}: {error}")))?;
    store(TINY, &measure_tiny()?)?;
    if let Some(models) = models {
        let folder = PathBuf::from(models);
        let adapters = adapters.map_or_else(|| folder.clone(), PathBuf::from);
        let numbers = measure(
            &folder.join("smollm2-135m-instruct-q4_1.gguf"),
            [&adapters.join("smollm2-kjv"), &adapters.join("smollm2-shakespeare")],
            64,
        )?;
        store(SMOLLM2, &numbers)?;
    }
    render()
}

/// Measures the tiny model again and holds it against the numbers that are kept, and all that are kept against what the page says of them.
pub(crate) fn check() -> Outcome {
    let tiny = Study::parse(&run::read(&format!("{FOLDER}/{TINY}.json"))?)?;
    let again = Study::parse(&measure_tiny()?)?;
    let mut found = tiny.differences(&again);
    for (name, study) in kept()? {
        found.extend(study.broken_claims().into_iter().map(|claim| format!("{name}: {claim}")));
    }
    for (path, text) in rendered()? {
        if run::read(&path)? != text {
            found.push(format!(
                "drift: {path} is not what its numbers give; run cargo xtask drift --render"
            ));
        }
    }
    Problems::none_or(found)
}

fn measure_tiny() -> Result<String, Problems> {
    let files = run::root().join("golden/files");
    measure(&files.join("tiny"), [&files.join("tiny-kjv"), &files.join("tiny-python")], 128)
}

fn measure(model: &Path, adapters: [&Path; 2], n_tokens: usize) -> Result<String, Problems> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut cargo = run::cargo();
    cargo
        .args(["run", "--quiet", "--release", "--package", "slm-runtime", "--example", "drift"])
        .arg("--")
        .arg(absolute(model)?);
    for adapter in adapters {
        cargo.arg(absolute(adapter)?);
    }
    run::output(cargo.args([threads.to_string(), n_tokens.to_string()]))
}

/// The example runs in the workspace's folder.
fn absolute(path: &Path) -> Result<PathBuf, Problems> {
    std::path::absolute(path).map_err(|error| Problems::one(format!("{}: {error}", path.display())))
}

fn render() -> Outcome {
    for (path, text) in rendered()? {
        write(&path, &text)?;
    }
    Ok(())
}

/// Every file that is made of the numbers, with its text.
fn rendered() -> Result<Vec<(String, String)>, Problems> {
    let mut files = Vec::new();
    let studies = kept()?;
    for (name, study) in &studies {
        for (plot, text) in plot::all(study) {
            files.push((format!("{FOLDER}/{name}-{plot}.svg"), text));
        }
    }
    let page = page::fill(&run::read(page::PAGE)?, &studies)?;
    files.push((page::PAGE.to_owned(), page));
    Ok(files)
}

/// The studies whose numbers are kept.
fn kept() -> Result<Vec<(&'static str, Study)>, Problems> {
    let mut studies = Vec::new();
    for name in [TINY, SMOLLM2] {
        let path = format!("{FOLDER}/{name}.json");
        if run::root().join(&path).exists() {
            studies.push((name, Study::parse(&run::read(&path)?)?));
        }
    }
    Ok(studies)
}

fn store(name: &str, numbers: &str) -> Outcome {
    Study::parse(numbers)?;
    write(&format!("{FOLDER}/{name}.json"), numbers)
}

fn write(path: &str, text: &str) -> Outcome {
    std::fs::write(run::root().join(path), text)
        .map_err(|error| Problems::one(format!("{path}: {error}")))
}
