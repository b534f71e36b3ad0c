//! What compilers do not check about sources and pages.

use std::collections::BTreeMap;

use crate::problems::{Outcome, Problems};
use crate::source::Source;
use crate::{dependencies_doc, errors_doc, policy_doc, run};

/// A source longer than this is listed.
const LONG: usize = 500;

/// A source longer than this is refused.
const TOO_LONG: usize = 700;

/// Sources that are one file on purpose, however long.
const WHOLE: &[&str] = &["golden/reference/lib.rs"];

/// The addresses of unsafe code.
const UNSAFE: &[&str] = &["crates/slm-quant/src/arch/", "crates/slm-store/src/fs/mmap.rs"];

/// Folders whose names begin a path of somebody's machine.
const MACHINE_FOLDERS: &[&str] = &["work", "root", "tmp", "home", "Users"];

/// Checks every file of the project.
pub(crate) fn check() -> Outcome {
    let root = run::root();
    let mut found = Vec::new();
    let mut codes = BTreeMap::new();
    let mut sources = 0;
    for path in run::project_files()? {
        // Files that are not text have neither lines nor paths to check.
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else { continue };
        if path != "Cargo.lock" {
            found.extend(machine_paths(&path, &text));
        }
        if path.ends_with(".rs") {
            sources += 1;
            let source = Source::new(&text);
            found.extend(rust_file(&path, &text, &source));
            if is_shipped(&path) {
                for code in errors_doc::codes_in(&source) {
                    codes.entry(code).or_insert_with(|| path.clone());
                }
            }
        }
    }
    found.extend(errors_doc::differences(&run::read(errors_doc::PAGE)?, &codes));
    found.extend(policy_doc::differences(&run::read(policy_doc::PAGE)?));
    found.extend(dependencies_doc::check()?);
    println!("tidy: {sources} sources, {} error codes", codes.len());
    Problems::none_or(found)
}

fn rust_file(path: &str, text: &str, source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let mut report = |at: usize, what: String| {
        found.push(format!("tidy: {path}:{}: {what}", source.line(at)));
    };
    if !text.starts_with("//! ") {
        report(0, "the file does not begin with a line that says what the module is".to_owned());
    }
    let lines = text.lines().count();
    if lines > TOO_LONG && !WHOLE.contains(&path) {
        report(0, format!("{lines} lines; split the file (at most {TOO_LONG}, better {LONG})"));
    } else if lines > LONG {
        println!("tidy: {path} has {lines} lines");
    }
    if is_shipped(path) {
        for at in source.find_all(".unwrap()") {
            if !source.is_test(at) {
                report(
                    at,
                    "`unwrap()`; return an error, or `expect(\"BUG: …\")` for our own invariant"
                        .to_owned(),
                );
            }
        }
    }
    for range in source.attributes() {
        let attribute = &source.code[range.clone()];
        let silences = attribute.contains("allow(") || attribute.contains("expect(");
        if silences && !attribute.contains("reason") {
            report(range.start, format!("no reason is given: {}", &text[range]));
        } else if attribute.starts_with("#[ignore") {
            report(range.start, "an ignored test; mend it or delete it".to_owned());
        }
    }
    if !UNSAFE.iter().any(|address| path.starts_with(address)) {
        for at in source.find_all("unsafe") {
            report(at, format!("`unsafe` outside its addresses ({})", UNSAFE.join(", ")));
        }
    }
    for word in [concat!("TO", "DO"), concat!("FIX", "ME")] {
        if let Some(at) = text.find(word) {
            report(at, format!("`{word}`: finish it, or file it"));
        }
    }
    found
}

/// Whether a source is part of a crate as shipped: not a test, example or bench.
fn is_shipped(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("crates")
        && parts.nth(1) == Some("src")
        && !path.ends_with("/tests.rs")
        && !path.contains("/tests/")
}

fn machine_paths(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for folder in MACHINE_FOLDERS {
            let needle = format!("/{folder}/");
            let is_path = line.match_indices(&needle).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                let after = line[at + needle.len()..].chars().next();
                before.is_none_or(|c| !c.is_alphanumeric() && !"_-.)}>*".contains(c))
                    && after.is_some_and(|c| c.is_ascii_alphanumeric())
            });
            if is_path {
                found.push(format!(
                    "tidy: {path}:{}: a path of one machine ({needle}…)",
                    number + 1
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let mut found = rust_file(path, text, &Source::new(text));
        found.extend(machine_paths(path, text));
        found
    }

    #[test]
    fn each_rule_finds_its_culprit_and_passes_its_twin() {
        let shipped = "crates/slm-kv/src/page.rs";
        let arch = "crates/slm-quant/src/arch/avx2.rs";
        let folder = "home";
        let long = |lines: usize| format!("//! Long.\n{}", "\n".repeat(lines - 1));
        let cases: &[(&str, String, bool)] = &[
            (shipped, "//! A page.\nfn f() {}\n".into(), true),
            (shipped, "fn f() {}\n".into(), false),
            (shipped, "// A page.\nfn f() {}\n".into(), false),
            (shipped, long(700), true),
            (shipped, long(701), false),
            (shipped, "//! A.\nfn f() { g().unwrap() }\n".into(), false),
            (shipped, "//! A.\nfn f() { g().unwrap_or(0) }\n".into(), true),
            (shipped, "//! A.\n/// ```\n/// g().unwrap();\n/// ```\nfn f() {}\n".into(), true),
            (shipped, "//! A.\n#[cfg(test)]\nmod tests { fn f() { g().unwrap() } }\n".into(), true),
            ("crates/slm-kv/tests/t.rs", "//! A.\nfn f() { g().unwrap() }\n".into(), true),
            (shipped, "//! A.\n#[allow(unused)]\nfn f() {}\n".into(), false),
            (shipped, "//! A.\n#[cfg_attr(x, expect(unused))]\nfn f() {}\n".into(), false),
            (shipped, "//! A.\n#[allow(unused, reason = \"b\")]\nfn f() {}\n".into(), true),
            (shipped, "//! A.\nunsafe fn f() {}\n".into(), false),
            (shipped, "//! A.\n#![forbid(unsafe_code)]\n".into(), true),
            (arch, "//! A.\nunsafe fn f() {}\n".into(), true),
            (shipped, "//! A.\n#[ignore = \"slow\"]\nfn f() {}\n".into(), false),
            (shipped, format!("//! A.\n// {}: more\n", concat!("TO", "DO")), false),
            (shipped, format!("//! A.\nconst P: &str = \"/{folder}/me/models\";\n"), false),
            (shipped, format!("//! A.\nconst P: &str = \"docs/{folder}/me\";\n"), true),
        ];
        for (path, text, expected) in cases {
            let found = findings(path, text);
            assert_eq!(found.is_empty(), *expected, "{path}\n{text}\n{found:?}");
        }
    }
}
