//! The golden logits: checked, and made again only when asked.

use crate::problems::Outcome;
use crate::run;

/// Runs the checks of the golden crate in the profile that ships.
pub(crate) fn check() -> Outcome {
    run::must(run::cargo().args(["test", "--package", "slm-golden", "--release"]))
}

/// Makes the golden files again, then shows what is different from the committed ones.
pub(crate) fn accept() -> Outcome {
    run::must(run::cargo().args([
        "run",
        "--release",
        "--package",
        "slm-golden",
        "--bin",
        "slm-golden-generate",
    ]))?;
    run::must(run::command("git").args(["--no-pager", "diff", "--stat", "--", "golden"]))
}
