//! `cargo xtask kernels`: every tier gives the scalar tier's bits, here, under an emulator of aarch64, and as WASM under Node; and the
//! scalar tier gives the same bits on all of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::problems::{Outcome, Problems};
use crate::run;
use crate::wasm::{self, Toolchain};

const PACKAGE: &str = "slm-kernel-checks";
const NODE_SCRIPT: &str = "golden/kernels/node.mjs";

const ARM: &str = "aarch64-unknown-linux-gnu";
const ARM_LINKER: &str = "aarch64-linux-gnu-gcc";
/// The C library for the emulated program.
const ARM_ROOT: &str = "/usr/aarch64-linux-gnu";
const EMULATOR: &str = "qemu-aarch64";
/// CPUs to emulate, and the int8 kernel each must choose: with the dot-product instructions, and one from before them.
const ARM_CPUS: [(&str, &str); 2] = [("max", "neon-dotprod-int8"), ("cortex-a53", "neon-int8")];

/// Runs the checks wherever the tools are; says what to install for the rest.
pub(crate) fn check() -> Outcome {
    let mut reports = vec![Report::parse("native", "scalar", &native()?)?];
    let mut missing = Vec::new();
    match node_tools() {
        Err(what) => missing.push(format!("WASM under Node: {what}")),
        Ok(()) => reports.push(Report::parse("Node", "simd128", &node()?)?),
    }
    match arm_tools() {
        Err(what) => missing.push(format!("emulated aarch64: {what}")),
        Ok(toolchain) => {
            let program = arm_program(toolchain)?;
            // A minute or two each.
            let runs = std::thread::scope(|scope| {
                let runs = ARM_CPUS.map(|(cpu, _)| scope.spawn(|| emulate(cpu, &program)));
                runs.map(std::thread::ScopedJoinHandle::join)
            });
            for ((cpu, kernel), run) in ARM_CPUS.into_iter().zip(runs) {
                let text = run.expect("BUG: no panic in a run")?;
                let report = Report::parse(&format!("aarch64 {cpu}"), "neon", &text)?;
                if report.lines.iter().any(|line| line.tier == "neon" && line.kernel != kernel) {
                    return Err(Problems::one(format!("kernels: {cpu} did not run {kernel}")));
                }
                reports.push(report);
            }
        }
    }
    let summary = compare(&reports).map_err(|what| Problems::one(format!("kernels: {what}")))?;
    println!("{summary}");
    for what in missing {
        println!("kernels: NOT RUN, {what}");
    }
    Ok(())
}

fn native() -> Result<String, Problems> {
    run::output(run::cargo().args(["run", "--quiet", "--release", "--package", PACKAGE]))
}

fn node_tools() -> Result<(), String> {
    wasm::compiler(Toolchain::Any).map_err(|_| {
        "neither `rustup target add wasm32-unknown-unknown` nor Debian's rustc-web, cargo-web and rust-web-src were run".to_owned()
    })?;
    works("node").then_some(()).ok_or_else(|| "install Node 20 or newer (nodejs)".to_owned())
}

fn node() -> Result<String, Problems> {
    let mut build = wasm::compiler(Toolchain::Any)?;
    run::must(build.args(["--target", wasm::TARGET, "--release", "--package", PACKAGE]))?;
    let module = wasm::target_dir().join(wasm::TARGET).join("release").join(PACKAGE);
    run::output(run::command("node").arg(NODE_SCRIPT).arg(module.with_extension("wasm")))
}

/// Which compiler builds for aarch64; or what is to be installed.
fn arm_tools() -> Result<Toolchain, String> {
    let sysroot = run::output(run::command("rustc").args(["--print", "sysroot"]))
        .map_err(|_| "no rustc".to_owned())?;
    let has_target = Path::new(sysroot.trim()).join("lib/rustlib").join(ARM).is_dir();
    let has_source = wasm::debian_missing().is_empty();
    let needed = [
        (has_target || has_source, "rustc-web cargo-web rust-web-src"),
        (works(ARM_LINKER), "gcc-aarch64-linux-gnu"),
        (Path::new(ARM_ROOT).join("lib/libc.so.6").is_file(), "libc6-dev-arm64-cross"),
        (works(EMULATOR), "qemu-user"),
    ];
    let missing: Vec<&str> =
        needed.iter().filter(|(there, _)| !there).map(|(_, package)| *package).collect();
    match missing.is_empty() {
        true if has_target => Ok(Toolchain::Any),
        true => Ok(Toolchain::Debian),
        false => Err(format!("on Debian, `apt-get install {}`", missing.join(" "))),
    }
}

fn arm_program(toolchain: Toolchain) -> Result<PathBuf, Problems> {
    let target_dir = wasm::target_dir().with_file_name("aarch64");
    let mut build = match toolchain {
        Toolchain::Any => {
            let mut cargo = run::cargo();
            cargo.arg("build");
            cargo
        }
        Toolchain::Debian => wasm::debian_cargo(),
    };
    build
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", ARM_LINKER)
        .args(["--target", ARM, "--release", "--package", PACKAGE])
        .arg("--target-dir")
        .arg(&target_dir);
    run::must(&mut build)?;
    Ok(target_dir.join(ARM).join("release").join(PACKAGE))
}

fn emulate(cpu: &str, program: &Path) -> Result<String, Problems> {
    run::output(run::command(EMULATOR).args(["-cpu", cpu, "-L", ARM_ROOT]).arg(program))
}

/// Whether a program can be run and knows its version.
fn works(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// What one machine printed.
#[derive(Debug, Clone)]
struct Report {
    name: String,
    lines: Vec<Line>,
}

/// One check on one tier.
#[derive(Debug, Clone)]
struct Line {
    tier: String,
    kernel: String,
    check: String,
    cases: u64,
    values: u64,
    digest: String,
}

impl Report {
    /// The report must have the scalar tier and `tier`.
    fn parse(name: &str, tier: &str, text: &str) -> Result<Report, Problems> {
        let lines: Option<Vec<Line>> = text.lines().map(Line::parse).collect();
        let lines = lines.ok_or_else(|| Problems::one(format!("kernels: {name}: {text}")))?;
        for tier in ["scalar", tier] {
            if !lines.iter().any(|line| line.tier == tier) {
                return Err(Problems::one(format!("kernels: {name} has not run {tier}")));
            }
        }
        Ok(Report { name: name.to_owned(), lines })
    }
}

impl Line {
    fn parse(line: &str) -> Option<Line> {
        let words: Vec<&str> = line.split(' ').collect();
        let [tier, kernel, check, cases, values, digest] = words.as_slice() else { return None };
        Some(Line {
            tier: (*tier).to_owned(),
            kernel: (*kernel).to_owned(),
            check: (*check).to_owned(),
            cases: cases.parse().ok()?,
            values: values.parse().ok()?,
            digest: (*digest).to_owned(),
        })
    }
}

/// Every tier of every report has the checks and digests of the first, and as many cases as every other of its kind. Gives a line for each
/// tier.
fn compare(reports: &[Report]) -> Result<String, String> {
    let first = reports.first().ok_or("nothing was run")?;
    let expected: Vec<&Line> = first.lines.iter().filter(|line| line.tier == "scalar").collect();
    let mut summary = Vec::new();
    // What is counted on the first tier that is not the scalar one.
    let mut counts: Option<Vec<(u64, u64)>> = None;
    for report in reports {
        let mut tiers: Vec<&str> = report.lines.iter().map(|line| line.tier.as_str()).collect();
        tiers.dedup();
        for tier in tiers {
            let lines: Vec<&Line> = report.lines.iter().filter(|line| line.tier == tier).collect();
            let name = format!("{} {tier}", report.name);
            if lines.len() != expected.len() {
                return Err(format!("{name}: {} checks of {}", lines.len(), expected.len()));
            }
            for (line, expected) in lines.iter().zip(&expected) {
                if line.check != expected.check || line.digest != expected.digest {
                    return Err(format!(
                        "{name}: {} is {}, {} is {} on {} scalar",
                        line.check, line.digest, expected.check, expected.digest, first.name
                    ));
                }
            }
            let found: Vec<(u64, u64)> =
                lines.iter().map(|line| (line.cases, line.values)).collect();
            let scalar = expected.iter().map(|line| (line.cases, line.values)).collect();
            let counted = if tier == "scalar" {
                &scalar
            } else {
                counts.get_or_insert_with(|| found.clone())
            };
            if *counted != found {
                return Err(format!("{name}: cases and values {found:?}, elsewhere {counted:?}"));
            }
            let (cases, values) =
                found.iter().fold((0, 0), |sum, add| (sum.0 + add.0, sum.1 + add.1));
            summary.push(format!(
                "kernels: {name} ({}): {cases} cases, {values} numbers",
                lines[0].kernel
            ));
        }
    }
    let digests: Vec<String> =
        expected.iter().map(|line| format!("{} {}", line.check, line.digest)).collect();
    summary.push(format!("kernels: the same everywhere: {}", digests.join(", ")));
    Ok(summary.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "scalar scalar-int8 exp 2 9 aa\nscalar scalar-int8 rope 3 9 bb\n\
        avx2 avx2-int8 exp 1 5 aa\navx2 avx2-int8 rope 1 6 bb\n";
    const THERE: &str = "scalar scalar-int8 exp 2 9 aa\nscalar scalar-int8 rope 3 9 bb\n\
        neon neon-int8 exp 1 5 aa\nneon neon-int8 rope 1 6 bb\n";

    fn outcome(there: &str) -> Result<String, String> {
        let report = |name, tier, text| Report::parse(name, tier, text).map_err(|_| "refused");
        compare(&[report("native", "scalar", HERE)?, report("aarch64", "neon", there)?])
    }

    #[test]
    fn equal_reports_pass() {
        let summary = outcome(THERE).expect("equal");
        assert!(summary.contains("aarch64 neon (neon-int8): 2 cases, 11 numbers"), "{summary}");
        assert!(summary.ends_with("exp aa, rope bb"), "{summary}");
    }

    #[test]
    fn every_difference_is_told() {
        let bends: &[(&str, &str)] = &[
            ("neon neon-int8 rope 1 6 bb", "neon neon-int8 rope 1 6 bc"),
            ("scalar scalar-int8 exp 2 9 aa", "scalar scalar-int8 exp 2 9 ab"),
            ("neon neon-int8 rope 1 6 bb", "neon neon-int8 rope 0 6 bb"),
            ("scalar scalar-int8 exp 2 9 aa", "scalar scalar-int8 exp 2 8 aa"),
            ("neon neon-int8 rope 1 6 bb\n", ""),
            ("neon neon-int8 rope 1", "neon neon-int8 ropes 1"),
            ("neon neon-int8 exp 1 5 aa\nneon neon-int8 rope 1 6 bb\n", ""),
            ("exp 1 5 aa", "exp one 5 aa"),
        ];
        for (from, to) in bends {
            let there = THERE.replacen(from, to, 1);
            assert_ne!(there, THERE, "{from}");
            assert!(outcome(&there).is_err(), "{to}");
        }
    }
}
