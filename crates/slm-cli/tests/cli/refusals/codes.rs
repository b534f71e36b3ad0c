//! The list of all codes, held against the transcripts.
//!
//! A code stands in a transcript, where a person can read what the program says of it and what its twin is; or in `unreachable.txt` with the reason why no
//! command line leads to it and the test that does. A code that is in neither place, or in both, fails here; so does a test that is not there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every code of `docs/errors.md`, with its class.
fn codes() -> BTreeMap<String, String> {
    read(&root().join("docs/errors.md"))
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            let code = cells.next()?.strip_suffix('`')?;
            Some((code.to_owned(), cells.next()?.to_owned()))
        })
        .collect()
}

/// The codes that transcripts show: of errors, and of what `verify` found.
fn shown() -> BTreeSet<String> {
    let mut shown = BTreeSet::new();
    for folder in ["tests/cli/snapshots", "tests/cli/refusals/snapshots"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in std::fs::read_dir(&folder).expect("the snapshots") {
            for line in read(&entry.expect("an entry").path()).lines() {
                let error = line.strip_prefix("error[").and_then(|rest| rest.split(']').next());
                // `verify`: place, code, words.
                let finding = line.split(": ").nth(1).filter(|_| error.is_none());
                shown.extend(error.or(finding).map(str::to_owned));
            }
        }
    }
    shown
}

/// Why no command line leads to a code, and where it is tested.
struct Unreachable {
    reason: String,
    /// A file below the root, a test in it, and what of the code stands there; none for what guards against our own mistakes, which no input
    /// is known to reach.
    test: Option<(String, String, String)>,
}

/// `code: reason | file::test`, a line each, with `::Variant` where the test names the error's variant and not the code; `code: a guard: reason`;
/// lines that begin with `#` are for the reader.
fn unreachable() -> BTreeMap<String, Unreachable> {
    include_str!("unreachable.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (code, rest) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
            let Some((reason, place)) = rest.split_once(" | ") else {
                assert!(rest.starts_with("a guard: "), "a test is missing: {line}");
                return (code.to_owned(), Unreachable { reason: rest.to_owned(), test: None });
            };
            let mut place = place.split("::").map(str::to_owned);
            let (file, test) = (place.next().unwrap_or_default(), place.next().unwrap_or_default());
            let names = place.next().unwrap_or_else(|| format!("\"{code}\""));
            let test = Some((file, test, names));
            (code.to_owned(), Unreachable { reason: reason.to_owned(), test })
        })
        .collect()
}

#[test]
fn every_code_is_in_a_transcript_or_has_a_reason_and_a_test() {
    let (codes, shown, unreachable) = (codes(), shown(), unreachable());
    assert!(codes.len() > 300, "the list was read: {}", codes.len());
    let mut wrong = Vec::new();
    for code in codes.keys() {
        match (shown.contains(code), unreachable.contains_key(code)) {
            (true, false) | (false, true) => {}
            (true, true) => {
                wrong.push(format!("{code}: shown, though it is listed as unreachable"))
            }
            (false, false) => wrong.push(format!("{code}: neither shown nor explained")),
        }
    }
    for (code, entry) in &unreachable {
        if !codes.contains_key(code) {
            wrong.push(format!("{code}: explained, and no code"));
        }
        if entry.reason.len() < 10 {
            wrong.push(format!("{code}: no reason"));
        }
        let Some((file, test, names)) = &entry.test else { continue };
        let text = read(&root().join(file));
        if !text.contains(&format!("fn {test}(")) && !text.contains(&format!("fn {test}<")) {
            wrong.push(format!("{code}: {file} has no test {test}"));
        } else if !text.contains(names) {
            wrong.push(format!("{code}: {file} does not name {names}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
