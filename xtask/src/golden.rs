//! The golden logits: checked, and made again only when asked.

use std::process::Command;

use crate::problems::Outcome;
use crate::run;

/// Runs the checks of the golden crate in the profile that ships, then asks whether its generated files are what it would write today.
pub(crate) fn check() -> Outcome {
    run::must(run::cargo().args(["test", "--package", "slm-golden", "--release"]))?;
    run::must(&mut generator())
}

/// Makes the golden files again, then shows which are different from the committed ones.
pub(crate) fn accept() -> Outcome {
    run::must(generator().args(["--", "--accept"]))?;
    run::must(run::command("git").args(["--no-pager", "diff", "--stat", "--", "golden"]))
}

fn generator() -> Command {
    let mut command = run::cargo();
    command
        .args(["run", "--release", "--package", "slm-golden", "--features", "generate"])
        .args(["--bin", "generate"]);
    command
}
