//! `cargo xtask parity`: the same compositions and tokens natively, on every tier, and as WASM under Node; every digest must be equal.
//!
//! Without options it runs the embedded tiny model, whose digests the golden vectors have from the reference pass. With `--model` it runs a
//! model and a stack of the caller's, and tells the time that a token takes.

mod options;

mod case;
mod compare;
mod native;
mod node;

use crate::problems::{Outcome, Problems};

use case::Subject;
use options::Options;

/// Builds both sides, runs every case on each of their tiers, and compares.
pub(crate) fn run(args: &[&str]) -> Outcome {
    let options = Options::parse(args)?;
    let subject = match &options.model {
        None => case::tiny()?,
        Some(model) => case::of_caller(model, &options)?,
    };
    let slm = native::Slm::build()?;
    let node = node::Node::build(options.toolchain)?;
    check(&options, &subject, &slm, &node)
}

/// As [`run`] without options, for `cargo xtask ci`.
pub(crate) fn check_tiny() -> Outcome {
    run(&[])
}

fn check(options: &Options, subject: &Subject, slm: &native::Slm, node: &node::Node) -> Outcome {
    node.check_api()?;
    let mut runs = Vec::new();
    for tier in slm.tiers()? {
        runs.push(slm.run(subject, &tier)?);
    }
    runs.extend(node.run(subject)?);
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    println!("parity: {} cases on {}", subject.cases.len(), names.join(", "));
    if let Err(difference) = compare::compare(&subject.cases, &runs) {
        return Err(Problems::one(format!("parity: {difference}")));
    }
    println!("parity: all digests are equal");
    if options.model.is_some() {
        slm.print_times(subject)?;
        node::print_times(subject, &runs);
    }
    Ok(())
}
