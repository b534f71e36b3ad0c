//! `cargo xtask faults`: the program is killed, its disk filled, its rights taken and its files damaged, in a store of the tiny model.
//!
//! After each blow the store must hold what it held before or what it was asked for, `verify --deep` must find nothing, and the next command
//! must work; the sweep of slm-runtime over every step is run with every state of a power cut. Where a command is refused, its code, its exit status and every byte of the store are compared.

mod blows;
mod kills;
mod store;

use crate::problems::Outcome;
use crate::run;

use store::Store;

/// Activations that are killed: `kill -9` at a random moment of each.
const KILLS: usize = 500;

/// The sweep over every step of every operation, with every state that a power cut can leave, not a sample.
fn every_power_cut() -> std::process::Command {
    let mut cargo = run::cargo();
    cargo.args(["test", "--release", "--package", "slm-runtime", "--test", "crash_sweep"]);
    cargo.args(["--", "--nocapture"]).env("SLM_SWEEP", "exhaustive");
    cargo
}

/// Both halves.
pub(crate) fn check() -> Outcome {
    sweep()?;
    program()
}

/// Every state of a power cut at every step of every operation.
pub(crate) fn sweep() -> Outcome {
    run::must(&mut every_power_cut())
}

/// Builds the program and does to it what can be done from outside; what needs root (mounts, another user) is refused without it.
pub(crate) fn program() -> Outcome {
    run::must(run::cargo().args(["build", "--release", "--package", "slm-cli"]))?;
    let store = Store::new("faults")?;
    let outcome = kills::check(&store, KILLS).and_then(|()| blows::check(&store));
    store.remove();
    outcome
}
