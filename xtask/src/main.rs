//! Every project command: `cargo xtask COMMAND`.

#![forbid(unsafe_code)]

mod bench;
mod ci;
mod deny;
mod dependencies_doc;
mod drift;
mod errors_doc;
mod faults;
mod format_doc;
mod fuzz;
mod golden;
mod kernels;
mod layers;
mod metadata;
mod oci;
mod package;
mod parity;
mod policy_doc;
mod problems;
mod run;
mod source;
mod spdx;
mod tidy;
mod wasm;

use problems::{Outcome, Problems};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  ci [--full]                 every check, in the order of .ci/run; --full adds fuzzing and the heavy checks
  layers                      crates depend strictly downwards (the table of docs/architecture.md as code)
  tidy                        what compilers do not check about sources and pages
  format-doc                  docs/format.md says what the constants of the container say
  deny                        licences, sources and banned crates (deny.toml)
  package                     every crate for crates.io has what crates.io asks for
  wasm [--debian]             the library crates compile for wasm32-unknown-unknown; --debian: with Debian's compiler
  parity [--model FILE …]     the same digests natively on every tier and as WASM under Node; with a model: on it, and how fast
  kernels                     every tier's kernels have the scalar bits: here, on aarch64 under qemu, as WASM under Node
  oci                         signatures and packages beside minisign, skopeo and a docker-registry on loopback: the same ids, the same bits
  faults [sweep|program]      every state of a power cut at every step; kill -9, a full disk, no rights, damage, a second writer: nothing is
                              lost and the next command works; as root; or one half of it
  golden [--accept]           the golden logits; --accept makes them again and shows what changed
  bench --peers DIR …         slm beside llama.cpp's binaries in DIR: tables of ratios and of the machine's limits; alone, it prints its options
  drift [--models DIR]        how far merging ends from what was meant: docs/drift.md, its numbers and plots; with DIR on SmolLM2 too
  fuzz [--seconds N] [NAME]   every fuzz target, or one, for N seconds (60) under a memory limit
";

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match dispatch(&args) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(problems) => {
            problems.print();
            std::process::ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &[&str]) -> Outcome {
    match args {
        ["ci"] => ci::run(false),
        ["ci", "--full"] => ci::run(true),
        ["layers"] => layers::check(),
        ["tidy"] => tidy::check(),
        ["format-doc"] => format_doc::check(),
        ["deny"] => deny::check(),
        ["package"] => package::check(),
        ["wasm"] => wasm::check(wasm::Toolchain::Any),
        ["wasm", "--debian"] => wasm::check(wasm::Toolchain::Debian),
        ["parity", rest @ ..] => parity::run(rest),
        ["kernels"] => kernels::check(),
        ["oci"] => oci::check(),
        ["faults"] => faults::check(),
        ["faults", "sweep"] => faults::sweep(),
        ["faults", "program"] => faults::program(),
        ["golden"] => golden::check(),
        ["golden", "--accept"] => golden::accept(),
        ["bench", rest @ ..] => bench::run(rest),
        ["drift", rest @ ..] => drift::run(rest),
        ["fuzz", rest @ ..] => fuzz::run(rest),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => Err(Problems::one(format!("not a command: {:?}\n\n{USAGE}", args.join(" ")))),
    }
}
