//! How a byte-level tokenizer cuts text into words before merging.

use std::sync::OnceLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

/// A rule that cuts text into words; merges never cross a cut. A closed set: an unknown rule is refused, because its ids would be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PreTokenizer {
    /// GPT-2: contractions, letters, numbers, other signs, each with one leading space.
    Gpt2,
    /// SmolLM, StarCoder and Granite: each numeric character alone, then GPT-2's rule in between.
    Smollm,
    /// Llama 3: numbers in groups of up to three.
    LlamaBpe,
    /// Qwen 2 to 3: each number alone; text is brought to NFC first.
    Qwen2,
    /// No cut: the whole text is one word (SLM1).
    Whole,
}

/// GPT-2's pattern. Its last two alternatives, `\s+(?!\S)|\s+`, are one here: [`Words`] does the look-ahead.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const LLAMA_BPE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";

/// Stands in front of the last alternative in published patterns.
const LOOK_AHEAD: &str = r"\s+(?!\S)|\s+";

impl PreTokenizer {
    /// The names of [`PreTokenizer::from_gguf_name`], for messages.
    pub(crate) const KNOWN: &'static str = "gpt-2, smollm, starcoder, refact, llama-bpe, qwen2";

    /// The rule that GGUF's `tokenizer.ggml.pre` names.
    ///
    /// ```
    /// use slm_runtime::tokenizer::PreTokenizer;
    ///
    /// assert_eq!(PreTokenizer::from_gguf_name("smollm"), Some(PreTokenizer::Smollm));
    /// assert_eq!(PreTokenizer::from_gguf_name("default"), None);
    /// ```
    pub fn from_gguf_name(name: &str) -> Option<PreTokenizer> {
        match name {
            "gpt-2" | "gpt2" => Some(PreTokenizer::Gpt2),
            "smollm" | "starcoder" | "refact" => Some(PreTokenizer::Smollm),
            "llama-bpe" | "llama3" | "llama-v3" => Some(PreTokenizer::LlamaBpe),
            "qwen2" => Some(PreTokenizer::Qwen2),
            _ => None,
        }
    }

    /// The rule of a published pattern, as `tokenizer.json` writes it out in full.
    pub(crate) fn from_pattern(pattern: &str) -> Option<PreTokenizer> {
        let head = pattern.strip_suffix(LOOK_AHEAD)?;
        [
            (GPT2, PreTokenizer::Gpt2),
            (LLAMA_BPE, PreTokenizer::LlamaBpe),
            (QWEN2, PreTokenizer::Qwen2),
        ]
        .into_iter()
        .find(|(ours, _)| ours.strip_suffix(r"\s+") == Some(head))
        .map(|(_, rule)| rule)
    }

    /// The pattern as `tokenizer.json` writes it out in full; `None` for a rule that has none.
    pub(crate) fn published_pattern(self) -> Option<String> {
        let ours = match self {
            PreTokenizer::Gpt2 | PreTokenizer::Smollm => GPT2,
            PreTokenizer::LlamaBpe => LLAMA_BPE,
            PreTokenizer::Qwen2 => QWEN2,
            PreTokenizer::Whole => return None,
        };
        let head = ours.strip_suffix(r"\s+").expect("BUG: a pattern of another end");
        Some([head, LOOK_AHEAD].concat())
    }

    /// Whether text is brought to Unicode's NFC before it is cut.
    pub fn normalizes_nfc(self) -> bool {
        self == PreTokenizer::Qwen2
    }

    /// Whether a word that is itself a token is taken whole, before any merge.
    pub fn takes_whole_words(self) -> bool {
        self == PreTokenizer::LlamaBpe
    }

    /// The words of `text`, which they cover without gap.
    pub(crate) fn words(self, text: &str) -> Words<'_> {
        Words { rule: self, text, at: 0, stretch_end: 0 }
    }

    fn pattern(self) -> &'static Regex {
        static COMPILED: [OnceLock<Regex>; 3] = [const { OnceLock::new() }; 3];
        let (slot, pattern) = match self {
            // The last is never asked for its pattern.
            PreTokenizer::Gpt2 | PreTokenizer::Smollm | PreTokenizer::Whole => (0, GPT2),
            PreTokenizer::LlamaBpe => (1, LLAMA_BPE),
            PreTokenizer::Qwen2 => (2, QWEN2),
        };
        COMPILED[slot]
            .get_or_init(|| Regex::new(pattern).expect("BUG: a fixed pattern does not compile"))
    }
}

/// Iterator over the words of a text.
pub(crate) struct Words<'a> {
    rule: PreTokenizer,
    text: &'a str,
    at: usize,
    /// Where the next numeric character stands; kept so that a long text without digits is searched once.
    stretch_end: usize,
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        let first = rest.chars().next()?;
        let len = if self.rule == PreTokenizer::Whole {
            rest.len()
        } else if self.rule != PreTokenizer::Smollm {
            self.word_len(rest)
        } else if first.is_numeric() {
            first.len_utf8()
        } else {
            if self.stretch_end <= self.at {
                self.stretch_end = self.at + rest.find(char::is_numeric).unwrap_or(rest.len());
            }
            // A digit ends the stretch that GPT-2's rule sees, so that its look-ahead stops there too.
            self.word_len(&rest[..self.stretch_end - self.at])
        };
        self.at += len;
        Some(&rest[..len])
    }
}

impl Words<'_> {
    /// Length of the first word of `rest`, which is not empty.
    fn word_len(&self, rest: &str) -> usize {
        let Some(found) = self.rule.pattern().find(rest) else { return rest.len() };
        if found.start() > 0 {
            // Not reached by these patterns, which match any character; a gap would be a word of its own.
            return found.start();
        }
        let word = found.as_str();
        let is_spaces = word.chars().all(char::is_whitespace);
        let newline_rule = self.rule != PreTokenizer::Gpt2
            && self.rule != PreTokenizer::Smollm
            && word.ends_with(['\r', '\n']);
        if is_spaces && !newline_rule && found.end() < rest.len() {
            // `\s+(?!\S)`: spaces in front of a word leave it their last one, unless they are only one.
            let last = word.chars().next_back().map_or(0, char::len_utf8);
            if word.len() > last {
                return word.len() - last;
            }
        }
        word.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(rule: PreTokenizer, text: &str) -> Vec<&str> {
        rule.words(text).collect()
    }

    #[test]
    fn gpt2_leaves_a_word_its_last_space() {
        assert_eq!(cut(PreTokenizer::Gpt2, "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(
            cut(PreTokenizer::Gpt2, "a \nb\u{3000}\u{3000}c"),
            ["a", " ", "\n", "b", "\u{3000}", "\u{3000}", "c"]
        );
        assert_eq!(cut(PreTokenizer::Gpt2, "don't 123!"), ["don", "'t", " 123", "!"]);
    }

    #[test]
    fn smollm_cuts_every_numeric_character_before_the_byte_map() {
        assert_eq!(cut(PreTokenizer::Smollm, "a1b22"), ["a", "1", "b", "2", "2"]);
        assert_eq!(
            cut(PreTokenizer::Smollm, "½ x² Ⅷ٣٤가1"),
            ["½", " x", "²", " ", "Ⅷ", "٣", "٤", "가", "1"]
        );
        // Spaces before a digit end their stretch, so none of them is kept back.
        assert_eq!(cut(PreTokenizer::Smollm, "a   1"), ["a", "   ", "1"]);
        assert_eq!(cut(PreTokenizer::Gpt2, "a   1"), ["a", "  ", " 1"]);
    }

    #[test]
    fn llama_and_qwen_group_numbers_and_newlines() {
        assert_eq!(cut(PreTokenizer::LlamaBpe, "12345 I'LL"), ["123", "45", " I", "'LL"]);
        assert_eq!(
            cut(PreTokenizer::Qwen2, "123 \n\n  x;\n"),
            ["1", "2", "3", " \n\n", " ", " x", ";\n"]
        );
    }

    #[test]
    fn every_text_is_covered_without_gap() {
        let text = "\u{0}\u{85} \u{2028}a\u{301}'S ½\t\t\r\n٣x🙂 \u{a0}";
        for rule in
            [PreTokenizer::Gpt2, PreTokenizer::Smollm, PreTokenizer::LlamaBpe, PreTokenizer::Qwen2]
        {
            assert_eq!(cut(rule, text).concat(), text);
        }
        assert_eq!(cut(PreTokenizer::Whole, text), [text]);
        assert!(cut(PreTokenizer::Whole, "").is_empty());
    }

    #[test]
    fn published_patterns_are_recognised() {
        let gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
        assert_eq!(PreTokenizer::from_pattern(gpt2), Some(PreTokenizer::Gpt2));
        let qwen2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        assert_eq!(PreTokenizer::from_pattern(qwen2), Some(PreTokenizer::Qwen2));
        assert_eq!(
            PreTokenizer::from_pattern(&qwen2.replace(r"\p{N}|", r"\p{N}{1,3}|")),
            Some(PreTokenizer::LlamaBpe)
        );
        assert_eq!(PreTokenizer::from_pattern(&qwen2.replace("'d", "")), None);
    }
}
