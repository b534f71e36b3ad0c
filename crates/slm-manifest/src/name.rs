//! Names that people give to bases, adapters and compositions.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};
use slm_format::Coded;

/// A name: 1 to 128 of `A-Z a-z 0-9 . _ @ + -`, not starting with a dot.
///
/// So it is a file name on every system, never a path, and never hidden. Names are outside every identity.
///
/// ```
/// use slm_manifest::Name;
///
/// let name: Name = "smollm2-135m.Q4_0".parse().unwrap();
/// assert_eq!(name.as_str(), "smollm2-135m.Q4_0");
/// assert!("../escape".parse::<Name>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// A text that is not a [`Name`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error(
    "{text:?} is not a name: expected 1 to 128 of A-Z a-z 0-9 . _ @ + -, not starting with a dot"
)]
pub struct NameError {
    /// What was given, cut to 80 characters.
    pub text: String,
}

impl Coded for NameError {
    fn code(&self) -> &'static str {
        "bad-name"
    }
}

impl Name {
    /// Most bytes in a name.
    pub const MAX_BYTES: usize = 128;

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let fits = (1..=Name::MAX_BYTES).contains(&text.len()) && !text.starts_with('.');
        if fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._@+-".contains(&byte))
        {
            Ok(Name(text.to_owned()))
        } else {
            Err(NameError { text: text.chars().take(80).collect() })
        }
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Name, NameError> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_file_name_and_never_a_path() {
        let longest = "a".repeat(128);
        for good in ["a", "A-b_c.d@e+f", "-x", "0", longest.as_str()] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        let too_long = "a".repeat(129);
        for bad in [
            "",
            ".",
            "..",
            ".a",
            "a/b",
            "a\\b",
            "a b",
            "a\0",
            "a\n",
            "é",
            "a:b",
            "a%2e",
            too_long.as_str(),
        ] {
            let error = bad.parse::<Name>().unwrap_err();
            assert_eq!(error.code(), "bad-name", "{bad:?}");
        }
        assert!(serde_json::from_str::<Name>("\"a/b\"").is_err());
        assert_eq!(serde_json::from_str::<Name>("\"a\"").unwrap().as_str(), "a");
    }
}
