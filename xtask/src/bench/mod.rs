//! `cargo xtask bench`: slm beside llama.cpp on the same files, in one run, as the tables of docs/performance.md.
//!
//! Builds nothing of the peers: `--peers` names the folder of the binaries that the user built. Every comparison is interleaved (A B A B …),
//! so that a neighbour who takes the machine for a while takes it from both. What counts is the ratio within a run: of the medians, and
//! its smallest and largest value over the rounds.

mod options;

mod adapter;
mod depth;
mod first_token;
mod race;
mod roofline;

mod llama;
mod machine;
mod slm;

mod process;
mod stats;
mod table;

use crate::problems::{Outcome, Problems};

use options::{Options, Part};

/// Runs the chosen comparisons and prints each table as soon as it is complete; progress goes to stderr.
pub(crate) fn run(args: &[&str]) -> Outcome {
    let options = Options::parse(args)?;
    let llama = llama::Llama::find(&options.peers)?;
    let slm = slm::Slm::find(options.slm.as_deref())?;
    println!("{}", machine::line()?);
    println!("slm: {}. llama.cpp: {}.", slm.version()?, llama.version(&options)?);
    let limits = match options.wants(Part::Roofline) {
        true => Some(machine::measure_limits(&options.threads)?),
        false => None,
    };
    if let Some(limits) = &limits {
        println!("\n{}", limits.table());
    }
    let mut failed = Vec::new();
    let mut raced = Vec::new();
    for part in [Part::Q4_1, Part::Q4_0, Part::Q8_0, Part::Gemma3] {
        if options.wants(part) {
            match race::run(&options, &slm, &llama, part) {
                Ok(mut rows) => raced.append(&mut rows),
                Err(problems) => {
                    problems.print();
                    failed.push(part.model().1);
                }
            }
        }
    }
    if !raced.is_empty() {
        println!("\n{}", race::table(&raced));
    }
    if let Some(limits) = &limits
        && !raced.is_empty()
    {
        println!("\n{}", roofline::table(&raced, limits));
    }
    type Comparison = fn(&Options, &slm::Slm, &llama::Llama) -> Result<String, Problems>;
    let others: [(Part, &str, Comparison); 3] = [
        (Part::Lora, "LoRA", adapter::run),
        (Part::FirstToken, "first token", first_token::run),
        (Part::Depth, "depth", depth::run),
    ];
    for (part, name, comparison) in others {
        if options.wants(part) {
            match comparison(&options, &slm, &llama) {
                Ok(table) => println!("\n{table}"),
                // What else can be measured is measured.
                Err(problems) => {
                    problems.print();
                    failed.push(name);
                }
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Problems::one(format!("bench: not measured: {}", failed.join(", "))))
}
