//! docs/errors.md lists exactly the codes that the crates return.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

/// The page's path.
pub(crate) const PAGE: &str = "docs/errors.md";

/// Every code that a `fn code` of this source returns, outside tests.
pub(crate) fn codes_in(source: &Source) -> Vec<String> {
    let bodies = source.bodies_of("code");
    source
        .strings
        .iter()
        .filter(|(at, text)| bodies.iter().any(|body| body.contains(at)) && is_code(text))
        .map(|(_, text)| text.clone())
        .collect()
}

/// What the page and the sources do not agree on. `returned` maps a code to the file that returns it.
pub(crate) fn differences(page: &str, returned: &BTreeMap<String, String>) -> Vec<String> {
    let mut listed = BTreeSet::new();
    let mut found = Vec::new();
    for line in page.lines() {
        let Some(code) = line.strip_prefix("| `").and_then(|rest| rest.split('`').next()) else {
            continue;
        };
        if !listed.insert(code.to_owned()) {
            found.push(format!("tidy: {PAGE} lists `{code}` twice"));
        }
    }
    for (code, file) in returned {
        if !listed.contains(code) {
            found.push(format!("tidy: {PAGE} does not list `{code}`, which {file} returns"));
        }
    }
    for code in &listed {
        if !returned.contains_key(code) {
            found.push(format!("tidy: {PAGE} lists `{code}`, which no `fn code` returns"));
        }
    }
    found
}

fn is_code(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && !text.ends_with('-')
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_are_compared() {
        let page =
            "# Codes\n\n| code | class |\n|---|---|\n| `a-b` | refused |\n| `gone` | refused |\n";
        let text = "fn code(&self) -> &'static str { match self { A => \"a-b\", B => \"new-one\", C(inner) => inner.code() } }";
        let returned: BTreeMap<String, String> = codes_in(&Source::new(text))
            .into_iter()
            .map(|code| (code, "lib.rs".to_owned()))
            .collect();
        let found = differences(page, &returned);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("`new-one`") && found[1].contains("`gone`"), "{found:?}");
        let mended = page.replace("`gone`", "`new-one`");
        assert_eq!(differences(&mended, &returned), Vec::<String>::new());
    }
}
