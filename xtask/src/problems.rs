//! What a check found: a list, so that one run shows everything.

/// Ok, or everything that is wrong.
pub(crate) type Outcome = Result<(), Problems>;

/// At least one finding, each a line or more of text.
#[derive(Debug)]
pub(crate) struct Problems(Vec<String>);

impl Problems {
    /// A single finding.
    pub(crate) fn one(text: impl Into<String>) -> Problems {
        Problems(vec![text.into()])
    }

    /// Ok if nothing was found.
    pub(crate) fn none_or(found: Vec<String>) -> Outcome {
        if found.is_empty() { Ok(()) } else { Err(Problems(found)) }
    }

    /// Writes every finding to stderr.
    pub(crate) fn print(&self) {
        for problem in &self.0 {
            eprintln!("xtask: {problem}");
        }
    }
}

impl From<std::io::Error> for Problems {
    fn from(error: std::io::Error) -> Problems {
        Problems::one(error.to_string())
    }
}
