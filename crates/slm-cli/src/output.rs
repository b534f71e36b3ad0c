//! What a person or a program sees.

use std::io::{IsTerminal, Write};
use std::time::Duration;

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
            self.print(&format!("{object}\n"));
        } else if !lines.is_empty() {
            self.print(&format!("{}\n", lines.join("\n")));
        }
    }

    /// Writes to stdout at once. A closed pipe ends the program quietly, as it does for every filter; any other failure, such as a full
    /// disk, ends it as an error.
    pub(crate) fn print(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) else { return };
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        let error = CliError::Io { path: "standard output".into(), error };
        self.error(&error);
        std::process::exit(error.class().exit_status().into());
    }

    /// A remark on stderr.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet && !self.json {
            print_err(text);
        }
    }

    /// Asks for a line, where somebody may see it.
    pub(crate) fn prompt(&self) {
        if !self.quiet && !self.json && std::io::stdin().is_terminal() {
            let mut err = std::io::stderr().lock();
            let _ = err.write_all(b"> ").and_then(|()| err.flush());
        }
    }

    /// Prints an error; the process then ends with its status.
    pub(crate) fn error(&self, error: &CliError) {
        let message = whole(error);
        if self.json {
            let mut body = json!({ "code": error.code(), "message": message });
            if let Some(hint) = error.hint() {
                body["hint"] = hint.into();
            }
            print_err(&json!({ "error": body }).to_string());
        } else {
            print_err(&format!("error[{}]: {message}", error.code()));
            if let Some(hint) = error.hint() {
                print_err(&format!("hint: {hint}"));
            }
        }
    }

    /// A progress bar of `len` steps on a terminal; silent when piped, quiet or JSON.
    pub(crate) fn progress(&self, len: u64, what: &str) -> ProgressBar {
        let style = ProgressStyle::with_template("{msg} [{bar:32}] {pos}/{len} {eta}")
            .expect("BUG: the progress template does not parse");
        ProgressBar::with_draw_target(Some(len), self.target())
            .with_style(style)
            .with_message(what.to_owned())
    }

    /// A sign of life with the time it takes, for work whose steps cannot be counted from here; silent as [`Output::progress`].
    pub(crate) fn spinner(&self, what: &str) -> ProgressBar {
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}")
            .expect("BUG: the progress template does not parse");
        let spinner = ProgressBar::with_draw_target(None, self.target())
            .with_style(style)
            .with_message(what.to_owned());
        if !spinner.is_hidden() {
            spinner.enable_steady_tick(Duration::from_millis(100));
        }
        spinner
    }

    fn target(&self) -> ProgressDrawTarget {
        let visible = !self.quiet && !self.json && std::io::stderr().is_terminal();
        if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
    }
}

/// An error with what is behind it, where its own words do not say so.
fn whole(error: &CliError) -> String {
    let mut message = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(behind) = source {
        let words = behind.to_string();
        if !message.contains(&words) {
            message.push_str(": ");
            message.push_str(&words);
        }
        source = behind.source();
    }
    message
}

/// A number of things in words: `1 signature`, `2 signatures`.
pub(crate) fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A line on stderr. Where that cannot be written there is nobody left to tell.
fn print_err(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
