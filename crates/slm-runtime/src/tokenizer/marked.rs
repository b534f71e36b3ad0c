//! Tokens that are looked for in the raw text, before anything else.

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};

use super::error::TokenizerError;
use super::spec::{TokenKind, TokenizerSpec};

/// Tokens that are found in raw text, longest first at each place.
#[derive(Debug)]
pub(super) struct Marked {
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl Marked {
    /// Those of `spec` whose kind `is_marked` names.
    pub(super) fn new(
        spec: &TokenizerSpec,
        is_marked: impl Fn(TokenKind) -> bool,
    ) -> Result<Marked, TokenizerError> {
        let chosen = (0u32..).zip(&spec.tokens).filter(|(_, token)| is_marked(token.kind));
        let (ids, texts): (Vec<u32>, Vec<&str>) =
            chosen.map(|(id, token)| (id, token.text.as_str())).unzip();
        if ids.is_empty() {
            return Ok(Marked { automaton: None, ids });
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(&texts)
            .map_err(|_| TokenizerError::TooLarge {
                field: "control and user-defined tokens",
                found: ids.len() as u64,
                limit: u64::from(u32::MAX >> 1),
            })?;
        Ok(Marked { automaton: Some(automaton), ids })
    }

    /// The first marked token at or after `at`: start, end and id.
    pub(super) fn find(&self, text: &str, at: usize) -> Option<(usize, usize, u32)> {
        let found = self.automaton.as_ref()?.find(Input::new(text).span(at..text.len()))?;
        Some((found.start(), found.end(), self.ids[found.pattern().as_usize()]))
    }
}
