//! Every check in one command: all are run, all are reported, one failure fails the whole.
//!
//! Profiles: clippy, tests and pages share the development profile's dependencies (tests run optimized, with overflow checks and
//! assertions on); the golden logits, the demo and the bytes
//! of the K encoders share the release profile, the one that ships.

use std::time::Instant;

use crate::problems::Outcome;
use crate::{
    deny, drift, faults, format_doc, fuzz, golden, kernels, layers, oci, package, parity, run,
    tidy, wasm,
};

type Step = (&'static str, fn() -> Outcome);

const STEPS: &[Step] = &[
    ("fmt", || run::must(run::cargo().args(["fmt", "--all", "--check"]))),
    ("layers", layers::check),
    ("tidy", tidy::check),
    ("format-doc", format_doc::check),
    ("deny", deny::check),
    ("package", package::check),
    ("clippy", clippy),
    ("test", || run::must(&mut tests())),
    // Identities hang on these bytes, and a compiler is freer in this profile.
    ("release bytes", || {
        let args = ["test", "--release", "-p", "slm-quant", "--test", "k_encoder_bytes"];
        run::must(run::cargo().args(args))
    }),
    ("doc", || {
        let mut cargo = run::cargo();
        cargo.env("RUSTDOCFLAGS", "-D warnings");
        run::must(cargo.args(["doc", "--no-deps", "--workspace"]))
    }),
    ("golden", golden::check),
    ("demo", || run::must(run::cargo().args(["run", "--release", "-p", "slm-cli", "--", "demo"]))),
    ("wasm", || wasm::check(wasm::Toolchain::Any)),
    ("parity", parity::check_tiny),
];

const HEAVY: &[Step] = &[
    ("kernels", kernels::check),
    ("oci", oci::check),
    ("faults", faults::check),
    ("root", || {
        let args = ["test", "-p", "slm-store", "--features", "root-tests"];
        run::must(run::cargo().args(args))
    }),
    ("drift", drift::check),
    ("fuzz", || fuzz::run(&["--seconds", "60"])),
    ("test (release)", || run::must(tests().arg("--release"))),
];

/// Runs every step, then prints the time of each and, as the last line, how many passed.
pub(crate) fn run(full: bool) -> Outcome {
    let heavy = if full { HEAVY } else { &[] };
    let mut lines = Vec::new();
    let mut failed = 0;
    let began = Instant::now();
    for (name, step) in STEPS.iter().chain(heavy) {
        println!("\n==> {name}");
        let start = Instant::now();
        let outcome = step();
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        if let Err(problems) = outcome {
            problems.print();
            failed += 1;
        }
        lines.push(format!("{name:<16}{:>8.1} s  {verdict}", start.elapsed().as_secs_f64()));
    }
    println!();
    for line in &lines {
        println!("{line}");
    }
    println!("{:<16}{:>8.1} s", "all", began.elapsed().as_secs_f64());
    println!("\n{} passed, {failed} failed", lines.len() - failed);
    if failed > 0 { std::process::exit(1) } else { Ok(()) }
}

/// Every test but slm-golden's, which the step `golden` runs; slm-bindgen has none and takes long to build.
fn tests() -> std::process::Command {
    let mut cargo = run::cargo();
    cargo.args(["test", "--workspace", "--exclude", "slm-golden", "--exclude", "slm-bindgen"]);
    cargo
}

fn clippy() -> Outcome {
    let args = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    run::must(run::cargo().args(args))
}
