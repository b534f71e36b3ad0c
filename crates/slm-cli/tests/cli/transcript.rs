//! A transcript: commands, and what a person sees of them.
//!
//! Digests, times and places are left out, so that snapshots of transcripts change when the program's words do and never else.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::common::{Place, Ran, finish, finish_with, golden};

/// Commands and what came of them.
pub(crate) struct Transcript<'a> {
    place: &'a Place,
    text: String,
}

impl Transcript<'_> {
    pub(crate) fn new(place: &Place) -> Transcript<'_> {
        Transcript { place, text: String::new() }
    }

    /// Runs a command and writes down what a person sees, with the exit status where it is not 0.
    pub(crate) fn run(&mut self, args: &[&str]) -> Ran {
        let ran = finish(&mut self.place.command(args));
        self.write(args, &ran);
        ran
    }

    fn write(&mut self, args: &[&str], ran: &Ran) {
        let shown: Vec<String> = args.iter().map(|arg| shown(arg)).collect();
        let _ = writeln!(self.text, "$ slm {}", shown.join(" "));
        for line in ran.stdout.lines().chain(ran.stderr.lines()) {
            let _ = writeln!(self.text, "{line}");
        }
        if ran.exit != 0 {
            let _ = writeln!(self.text, "[exit {}]", ran.exit);
        }
    }

    /// A command that must be refused with this exit status, and must leave the store as it was.
    pub(crate) fn refused(&mut self, exit: i32, args: &[&str]) {
        let before = store(self.place);
        let ran = self.run(args);
        assert_eq!(ran.exit, exit, "{args:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}: no result beside an error");
        assert!(store(self.place) == before, "{args:?}: refused, and the store is another one");
    }

    /// As [`Transcript::refused`], for a command that is given `input`.
    pub(crate) fn refused_with(&mut self, exit: i32, args: &[&str], input: &str) {
        let ran = finish_with(&mut self.place.command(args), input);
        self.write(args, &ran);
        assert_eq!((ran.exit, ran.stdout.as_str()), (exit, ""), "{args:?}: {ran:?}");
    }

    /// A command that must be done: the twin of those that are refused. Only that it was is written down.
    pub(crate) fn accepted(&mut self, args: &[&str]) {
        let ran = finish(&mut self.place.command(args));
        assert_eq!(ran.exit, 0, "{args:?}: {ran:?}");
        let shown: Vec<String> = args.iter().map(|arg| shown(arg)).collect();
        let _ = writeln!(self.text, "$ slm {}\n[accepted]", shown.join(" "));
    }

    /// The text without what differs from run to run.
    pub(crate) fn finish(self) -> String {
        let place = self.place.dir.path().display().to_string();
        let text = self.text.replace(&place, "PLACE");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = text.replace(&sources.display().to_string(), "CRATES");
        let text = text.replace(&golden(""), "GOLDEN/");
        let text = match actor(self.place) {
            Some(actor) => text.replace(&format!(" by {actor}"), " by USER"),
            None => text,
        };
        text.split_inclusive(|c: char| c.is_whitespace()).map(without_chance).collect()
    }
}

/// Who runs the tests, as the log has it.
fn actor(place: &Place) -> Option<String> {
    let log = std::fs::read_to_string(place.store().join("audit.log")).ok()?;
    let first: serde_json::Value = serde_json::from_str(log.lines().next()?).ok()?;
    first["actor"].as_str().map(str::to_owned)
}

/// Every file but the log, which tells of refusals too.
fn store(place: &Place) -> Option<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = place.snapshot();
    if let Some(files) = &mut files {
        files.retain(|path, _| !path.ends_with("audit.log"));
    }
    files
}

/// The last part of a path, and any other argument as it is.
fn shown(arg: &str) -> String {
    match Path::new(arg).file_name() {
        Some(name) if Path::new(arg).is_absolute() => name.to_string_lossy().into_owned(),
        _ => arg.to_owned(),
    }
}

/// A word whose digest, time or measurement is replaced.
fn without_chance(word: &str) -> String {
    let is_hex = |text: &str| text.len() >= 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut shown = String::new();
    for part in word.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && !"-.".contains(c)) {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && !"-.".contains(c));
        let (part, rest) = part.split_at(end.unwrap_or(part.len()));
        let is_time =
            part.len() > 10 && part.as_bytes().get(4) == Some(&b'-') && part.contains('T');
        if is_hex(part) {
            shown.push_str("HEX");
        } else if is_time {
            shown.push_str("TIME");
        } else {
            shown.push_str(part);
        }
        shown.push_str(rest);
    }
    // The minutes and seconds of a time.
    if let Some(at) = shown.find("TIME:") {
        let end = shown[at..].find('Z').map_or(shown.len(), |end| at + end + 1);
        shown.replace_range(at..end, "TIME");
    }
    shown
}
