//! PEFT's ways of naming modules, over the regular expressions that Python and slm read alike.

use regex_lite::{Regex, RegexBuilder};

use crate::OverlayError;

/// Longest pattern, in bytes.
const LONGEST: usize = 4096;
/// Largest compiled pattern, in bytes: bounds the work of a match.
const LARGEST: usize = 64 << 10;
/// Most patterns in one configuration.
pub(super) const MOST: usize = 8192;

/// What a string means to the two dialects differently; a pattern that has one is refused. Possessive and nested quantifiers, flags and
/// look-around, set operations and POSIX classes, word edges.
const NOT_COMMON: [&str; 16] = [
    "*+", "++", "?+", "}+", "**", "+*", "?*", "}*", "&&", "--", "~~", "[[", "[:", "\\<", "\\>",
    "\\b{",
];

/// How a pattern is laid against a module's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    /// The whole path, as `re.fullmatch`.
    Whole,
    /// The whole path or what follows one of its dots: `(.*\.)?(PATTERN)$`.
    Suffix,
    /// `.*\.PATTERN\.(\d+)\.` at the start of the path; gives the number.
    LayerOf,
}

/// A compiled pattern.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    text: String,
    regex: Regex,
}

impl Pattern {
    pub(super) fn new(
        field: &'static str,
        text: &str,
        anchor: Anchor,
    ) -> Result<Pattern, OverlayError> {
        let refuse = |reason: String| {
            Err(OverlayError::Pattern { field, pattern: text.chars().take(200).collect(), reason })
        };
        if text.len() > LONGEST {
            return refuse(format!("{} bytes, the limit is {LONGEST}", text.len()));
        }
        if let Some(found) = NOT_COMMON.iter().find(|&&found| text.contains(found)) {
            return refuse(format!(
                "{found:?} means different things to different regular expressions"
            ));
        }
        if let Some(group) =
            text.split("(?").skip(1).find(|rest| !rest.starts_with(':') && !rest.starts_with("P<"))
        {
            return refuse(format!(
                "the group \"(?{}\" is not supported",
                group.chars().take(1).collect::<String>()
            ));
        }
        if anchor == Anchor::LayerOf && text.contains(['(', '|']) {
            return refuse("groups and alternatives are not supported here".into());
        }
        // Alone first, so that no unbalanced bracket reaches into what is put around it.
        if let Err(error) = compile(text) {
            return refuse(error.to_string());
        }
        let anchored = match anchor {
            Anchor::Whole => format!("^(?:{text})$"),
            Anchor::Suffix => format!(r"^(?:.*\.)?(?:{text})$"),
            Anchor::LayerOf => format!(r"^.*\.{text}\.(\d+)\."),
        };
        match compile(&anchored) {
            Ok(regex) => Ok(Pattern { text: text.into(), regex }),
            Err(error) => refuse(error.to_string()),
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn matches(&self, path: &str) -> bool {
        self.regex.is_match(path)
    }

    /// The number of an [`Anchor::LayerOf`] pattern, where it matches.
    pub(super) fn layer(&self, path: &str) -> Option<u64> {
        self.regex.captures(path)?.get(1)?.as_str().parse().ok()
    }
}

fn compile(text: &str) -> Result<Regex, regex_lite::Error> {
    RegexBuilder::new(text).size_limit(LARGEST).nest_limit(32).build()
}

/// `target_modules` or `exclude_modules`.
#[derive(Debug, Clone)]
pub(super) enum Names {
    /// Every linear module of the blocks.
    AllLinear,
    /// A regular expression over the whole path.
    Regex(Pattern),
    /// Paths, or their ends after a dot.
    List(Vec<String>),
}

impl Names {
    /// The entries, as a report names them.
    pub(super) fn entries(&self) -> Vec<&str> {
        match self {
            Names::AllLinear => vec!["all-linear"],
            Names::Regex(pattern) => vec![pattern.text()],
            Names::List(names) => names.iter().map(String::as_str).collect(),
        }
    }

    /// Whether entry `index` matches.
    pub(super) fn entry_matches(&self, index: usize, path: &str, is_linear: bool) -> bool {
        match self {
            Names::AllLinear => is_linear,
            Names::Regex(pattern) => pattern.matches(path),
            Names::List(names) => is_or_ends_in(path, &names[index]),
        }
    }

    /// Whether any entry matches.
    pub(super) fn matches(&self, path: &str, is_linear: bool) -> bool {
        match self {
            Names::List(names) => names.iter().any(|name| is_or_ends_in(path, name)),
            _ => self.entry_matches(0, path, is_linear),
        }
    }

    /// Whether a list holds exactly this path.
    pub(super) fn has_path(&self, path: &str) -> bool {
        matches!(self, Names::List(names) if names.iter().any(|name| name == path))
    }
}

/// `path == name`, or `path` ends with `.name`.
fn is_or_ends_in(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use slm_format::Coded;

    use super::*;

    const PATH: &str = "model.layers.11.mlp.down_proj";

    fn pattern(text: &str, anchor: Anchor) -> Pattern {
        Pattern::new("field", text, anchor).unwrap()
    }

    #[test]
    fn patterns_are_anchored_as_in_python() {
        for (text, anchor, expected) in [
            (r".*\.(down|up)_proj", Anchor::Whole, true),
            (r"mlp\.down_proj", Anchor::Whole, false),
            ("x|.*down_proj", Anchor::Whole, true),
            ("down_proj", Anchor::Suffix, true),
            (r"layers\.11\.mlp.down_proj", Anchor::Suffix, true),
            (r"layers\.1\.mlp.down_proj", Anchor::Suffix, false),
            ("own_proj", Anchor::Suffix, false),
            (PATH, Anchor::Suffix, true),
            ("^model.*", Anchor::Suffix, true),
            ("^layers.*", Anchor::Suffix, false),
        ] {
            assert_eq!(pattern(text, anchor).matches(PATH), expected, "{text}");
        }
        assert_eq!(pattern("layers", Anchor::LayerOf).layer(PATH), Some(11));
        assert_eq!(pattern("blocks", Anchor::LayerOf).layer(PATH), None);
    }

    #[test]
    fn what_python_reads_otherwise_is_refused() {
        for text in [
            "a++",
            "(?=x)",
            "(?i)x",
            r"(x)\1",
            "(",
            "[a&&b]",
            "a)|(b",
            r"\Zx",
            "x{1,100000}",
            &"x".repeat(5000),
        ] {
            let error = Pattern::new("field", text, Anchor::Whole).unwrap_err();
            assert_eq!(error.code(), "adapter-pattern", "{text:.20}");
        }
        assert_eq!(
            Pattern::new("field", "(layers)", Anchor::LayerOf).unwrap_err().code(),
            "adapter-pattern"
        );
        for text in ["a+", "(?:x)", "(?P<n>x)", "(x)", "[ab]", "a|b", r"\.x", "x{1,100}"] {
            pattern(text, Anchor::Whole);
        }
    }

    #[test]
    fn list_entries_match_whole_segments() {
        assert!(
            is_or_ends_in(PATH, "down_proj")
                && is_or_ends_in(PATH, "mlp.down_proj")
                && is_or_ends_in(PATH, PATH)
        );
        assert!(!is_or_ends_in(PATH, "proj") && !is_or_ends_in(PATH, "up_proj"));
    }
}
