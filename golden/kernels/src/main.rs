//! Prints the report of every check on every tier of this machine.
//!
//! As WASM there is nowhere to print to: the report then lies in the module's memory, between [`BEGIN`] and [`END`], for whoever called
//! `main`. Neither text stands whole in the module itself.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::OnceLock;

/// Joined by `>` when the program runs.
const BEGIN: [&str; 2] = ["<kernel-checks", "\n"];
/// As [`BEGIN`].
const END: [&str; 2] = ["</kernel-checks", "\n"];

/// Kept for the reader of the memory.
static REPORT: OnceLock<String> = OnceLock::new();

fn main() -> ExitCode {
    let (text, code) = match slm_kernel_checks::report() {
        Ok(report) => (report, ExitCode::SUCCESS),
        Err(mismatch) => (format!("MISMATCH {mismatch}\n"), ExitCode::FAILURE),
    };
    if cfg!(target_family = "wasm") {
        let framed = [BEGIN.join(black_box(">")), text, END.join(black_box(">"))].concat();
        black_box(REPORT.get_or_init(|| framed));
    } else {
        print!("{text}");
    }
    code
}
