//! The library crates compile for wasm32-unknown-unknown, where a `usize` has 32 bits and there are no files, threads or clock.

use std::path::{Path, PathBuf};

use crate::problems::{Outcome, Problems};
use crate::{metadata, run};

pub(crate) const TARGET: &str = "wasm32-unknown-unknown";

/// Every library crate that a browser needs; those that are not in the workspace are passed over.
const LIBRARIES: &[&str] = &[
    "slm-format",
    "slm-manifest",
    "slm-quant",
    "slm-overlay",
    "slm-store",
    "slm-compress",
    "slm-kv",
    "slm-runtime",
    "slm-wasm",
];

/// Debian's compiler, which builds the standard library from its own source package.
const DEBIAN_CARGO: &str = "/usr/bin/cargo";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_STD: &str = "/usr/lib/rustlib/src/rust/library/Cargo.toml";

/// Which compiler builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Toolchain {
    /// Ours if it has the target, else Debian's.
    Any,
    /// Debian's, though ours may have the target.
    Debian,
}

/// Compiles the libraries without their default features.
pub(crate) fn check(toolchain: Toolchain) -> Outcome {
    build(toolchain).map(|_module| ())
}

/// As [`check`]; returns where slm-wasm's module is.
pub(crate) fn build(toolchain: Toolchain) -> Result<PathBuf, Problems> {
    let members = metadata::workspace()?;
    let packages: Vec<&str> = LIBRARIES
        .iter()
        .copied()
        .filter(|name| members.iter().any(|member| member.name == *name))
        .collect();
    let mut command = compiler(toolchain)?;
    command.args(["--target", TARGET, "--release", "--no-default-features", "--lib"]);
    for package in packages {
        command.args(["--package", package]);
    }
    run::must(&mut command)?;
    Ok(target_dir().join(TARGET).join("release/slm_wasm.wasm"))
}

/// The target folder of [`compiler`].
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| run::root().join("target"), PathBuf::from)
        .join("wasm")
}

/// `cargo build` of a toolchain that has the target, with a target folder of its own.
pub(crate) fn compiler(toolchain: Toolchain) -> Result<std::process::Command, Problems> {
    let mut command = toolchain_with_target(toolchain)?;
    // simd128 is required, and relaxed SIMD never: its results differ between machines.
    command.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", "-C target-feature=+simd128");
    command.arg("--target-dir").arg(target_dir());
    Ok(command)
}

fn toolchain_with_target(toolchain: Toolchain) -> Result<std::process::Command, Problems> {
    let sysroot = run::output(run::command("rustc").args(["--print", "sysroot"]))?;
    let rustlib = Path::new(sysroot.trim()).join("lib/rustlib");
    if toolchain == Toolchain::Any && rustlib.join(TARGET).is_dir() {
        let mut command = run::cargo();
        command.arg("build");
        return Ok(command);
    }
    let missing = debian_missing();
    if !missing.is_empty() {
        return Err(Problems::one(format!(
            "wasm: this toolchain has no {TARGET}. Either `rustup target add {TARGET}`, or, on Debian, `apt-get install {}`",
            missing.join(" ")
        )));
    }
    let linker = rust_lld(&rustlib)
        .ok_or_else(|| Problems::one(format!("wasm: no rust-lld under {}", rustlib.display())))?;
    println!("wasm: {DEBIAN_RUSTC} with its own standard library's source");
    let mut command = debian_cargo();
    command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
    Ok(command)
}

/// `cargo build` of Debian's compiler and the standard library's source, for any target.
pub(crate) fn debian_cargo() -> std::process::Command {
    let mut command = run::command(DEBIAN_CARGO);
    command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC", DEBIAN_RUSTC)
        .args(["build", "-Zbuild-std=std,panic_abort"]);
    for inherited in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC_WRAPPER", "LD_LIBRARY_PATH"] {
        command.env_remove(inherited);
    }
    command
}

/// The packages of Debian that [`debian_cargo`] needs and that are not installed.
pub(crate) fn debian_missing() -> Vec<&'static str> {
    [(DEBIAN_RUSTC, "rustc-web"), (DEBIAN_CARGO, "cargo-web"), (DEBIAN_STD, "rust-web-src")]
        .into_iter()
        .filter(|(path, _)| !Path::new(path).is_file())
        .map(|(_, package)| package)
        .collect()
}

/// The linker that comes with every toolchain, under the host's name.
fn rust_lld(rustlib: &Path) -> Option<PathBuf> {
    let hosts = std::fs::read_dir(rustlib).ok()?;
    hosts.flatten().map(|host| host.path().join("bin/rust-lld")).find(|path| path.is_file())
}
