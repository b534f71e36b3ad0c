//! What a person or a program sees.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use slm_format::Coded;

use crate::error::CliError;

/// Where output goes and in which form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// One JSON object on stdout.
    pub(crate) json: bool,
    /// No progress and no notes.
    pub(crate) quiet: bool,
}

impl Output {
    /// Prints a result: `object` for a program, or `lines` for a person.
    pub(crate) fn result(&self, object: Value, lines: &[String]) {
        if self.json {
            print_out(&format!("{object}\n"));
        } else {
            for line in lines {
                print_out(&format!("{line}\n"));
            }
        }
    }

    /// A remark on stderr.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet && !self.json {
            eprintln!("{text}");
        }
    }

    /// Prints an error; the process then ends with its status.
    pub(crate) fn error(&self, error: &CliError) {
        if self.json {
            let mut body = json!({ "code": error.code(), "message": error.to_string() });
            if let Some(hint) = error.hint() {
                body["hint"] = hint.into();
            }
            eprintln!("{}", json!({ "error": body }));
        } else {
            eprintln!("error[{}]: {error}", error.code());
            if let Some(hint) = error.hint() {
                eprintln!("hint: {hint}");
            }
        }
    }

    /// A progress bar of `len` steps on a terminal; silent when piped, quiet or JSON.
    pub(crate) fn progress(&self, len: u64, what: &str) -> ProgressBar {
        let visible = !self.quiet && !self.json && std::io::stderr().is_terminal();
        let target =
            if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("{msg} [{bar:32}] {pos}/{len} {eta}")
            .expect("BUG: the progress template does not parse");
        ProgressBar::with_draw_target(Some(len), target)
            .with_style(style)
            .with_message(what.to_owned())
    }
}

/// Writes to stdout at once. A closed pipe ends the program quietly, as it does for every filter.
pub(crate) fn print_out(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}
