//! A Rust source, split into what the compiler reads as code and what it does not.

use std::ops::Range;

/// A source whose comments and literals are told apart from its code, byte for byte at the same places.
pub(crate) struct Source {
    /// The text with every comment and every literal's content replaced by blanks; line ends are kept.
    pub(crate) code: String,
    /// Where each string literal's content stands, and the content.
    pub(crate) strings: Vec<(usize, String)>,
    /// What stands under `#[cfg(test)]`.
    pub(crate) tests: Vec<Range<usize>>,
}

impl Source {
    /// Splits `text`. Text that is not Rust gives some split, never a panic.
    pub(crate) fn new(text: &str) -> Source {
        let (code, strings) = blank(text);
        let tests = test_ranges(&code);
        Source { code, strings, tests }
    }

    /// The line of a byte, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        1 + self.code.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count()
    }

    /// Whether a byte stands under `#[cfg(test)]`.
    pub(crate) fn is_test(&self, at: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&at))
    }

    /// Where `needle` stands in code as whole words.
    pub(crate) fn find_all(&self, needle: &str) -> Vec<usize> {
        let is_word =
            |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
        let bytes = self.code.as_bytes();
        self.code
            .match_indices(needle)
            .map(|(at, _)| at)
            .filter(|at| {
                let begins = !is_word(needle.as_bytes().first())
                    || !is_word(at.checked_sub(1).and_then(|before| bytes.get(before)));
                let ends =
                    !is_word(needle.as_bytes().last()) || !is_word(bytes.get(at + needle.len()));
                begins && ends
            })
            .collect()
    }

    /// Every attribute, from its `#` to its closing bracket.
    pub(crate) fn attributes(&self) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        for (at, _) in self.code.match_indices('#') {
            let rest = &self.code[at + 1..];
            let open = at + 1 + usize::from(rest.starts_with('!'));
            if self.code[open..].starts_with('[')
                && let Some(end) = closing(&self.code, open)
            {
                found.push(at..end);
            }
        }
        found
    }

    /// The body of every `fn NAME` outside tests.
    pub(crate) fn bodies_of(&self, name: &str) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        for at in self.find_all(&format!("fn {name}")) {
            let rest = &self.code[at..];
            let Some(open) = rest.find(['{', ';']).map(|offset| at + offset) else { continue };
            if self.code.as_bytes()[open] == b'{'
                && !self.is_test(at)
                && let Some(end) = closing(&self.code, open)
            {
                found.push(open..end);
            }
        }
        found
    }
}

/// One past the bracket that closes the one at `open`.
fn closing(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (offset, byte) in code.as_bytes()[open..].iter().enumerate() {
        match byte {
            b'{' | b'[' | b'(' => depth += 1,
            b'}' | b']' | b')' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(open + offset + 1);
                }
            }
            _ => {}
        }
    }
    None
}

fn test_ranges(code: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    for (at, attribute) in code.match_indices("#[cfg(test)]") {
        let after = at + attribute.len();
        let Some(open) = code[after..].find(['{', ';']).map(|offset| after + offset) else {
            continue;
        };
        let end = if code.as_bytes()[open] == b'{' { closing(code, open) } else { Some(open + 1) };
        ranges.push(at..end.unwrap_or(code.len()));
    }
    ranges
}

fn blank(text: &str) -> (String, Vec<(usize, String)>) {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut strings = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let token = if rest.starts_with(b"//") {
            let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            Token { hidden: 0..end, len: end, is_string: false }
        } else if rest.starts_with(b"/*") {
            let end = block_comment(rest);
            Token { hidden: 0..end, len: end, is_string: false }
        } else if let Some(token) = literal(bytes, at) {
            token
        } else {
            at += 1;
            continue;
        };
        let hidden = at + token.hidden.start..at + token.hidden.end;
        if token.is_string {
            strings
                .push((hidden.start, String::from_utf8_lossy(&bytes[hidden.clone()]).into_owned()));
        }
        for byte in &mut code[hidden] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at += token.len;
    }
    (String::from_utf8_lossy(&code).into_owned(), strings)
}

/// A comment or literal, in offsets from where it begins.
struct Token {
    hidden: Range<usize>,
    len: usize,
    is_string: bool,
}

fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn literal(bytes: &[u8], at: usize) -> Option<Token> {
    let rest = &bytes[at..];
    let follows_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    match rest[0] {
        b'"' => {
            let end = quoted_end(rest, b'"');
            Some(Token { hidden: 1..end.max(2) - 1, len: end, is_string: true })
        }
        b'\'' => {
            // A lifetime is a quote and a name without a quote behind its first character.
            let window = String::from_utf8_lossy(&rest[1..rest.len().min(9)]);
            let is_char = rest.get(1) == Some(&b'\\') || window.chars().nth(1) == Some('\'');
            is_char.then(|| {
                let end = quoted_end(rest, b'\'');
                Token { hidden: 1..end.max(2) - 1, len: end, is_string: false }
            })
        }
        b'r' | b'b' | b'c' if !follows_word => {
            let prefix = rest.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
            let is_raw = matches!(&rest[..prefix], b"r" | b"br" | b"cr");
            if !is_raw {
                return None;
            }
            let hashes = rest[prefix..].iter().take_while(|byte| **byte == b'#').count();
            let open = prefix + hashes;
            if rest.get(open) != Some(&b'"') {
                return None;
            }
            let mut close = vec![b'"'];
            close.resize(1 + hashes, b'#');
            let body = &rest[open + 1..];
            let length = body.windows(close.len()).position(|window| window == close)?;
            Some(Token {
                hidden: open + 1..open + 1 + length,
                len: open + 1 + length + close.len(),
                is_string: true,
            })
        }
        _ => None,
    }
}

/// One past the closing quote, backslashes respected.
fn quoted_end(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_in_place() {
        let text = "let a = \"un/*safe\"; // unsafe\n/* unsafe /* nested */ */ let b = 'x'; let c: &'static str = r#\"un\"safe\"#;";
        let source = Source::new(text);
        assert_eq!(source.code.len(), text.len());
        assert!(!source.code.contains("safe"), "{}", source.code);
        assert!(source.code.contains("&'static str"), "{}", source.code);
        let contents: Vec<&str> = source.strings.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(contents, ["un/*safe", "un\"safe"]);
    }

    #[test]
    fn quotes_in_characters_do_not_open_strings() {
        let source =
            Source::new("match c { '\"' => 1, '\\'' => 2, 'é' => 3, _ => unsafe_name } unsafe");
        assert_eq!(source.find_all("unsafe").len(), 1);
        assert!(source.strings.is_empty());
    }

    #[test]
    fn tests_and_bodies_are_found() {
        let text = "impl Coded for E { fn code(&self) -> &'static str { match self { E::A => \"a-b\" } } }\n#[cfg(test)]\nmod tests { fn code() { \"not-this\" } }\nfn last() {}";
        let source = Source::new(text);
        let bodies = source.bodies_of("code");
        assert_eq!(bodies.len(), 1);
        let inside: Vec<&str> = source
            .strings
            .iter()
            .filter(|(at, _)| bodies[0].contains(at))
            .map(|(_, text)| text.as_str())
            .collect();
        assert_eq!(inside, ["a-b"]);
        assert!(!source.is_test(text.find("fn last").expect("it stands there")));
        assert_eq!(source.line(text.find("fn last").expect("it stands there")), 4);
    }

    #[test]
    fn attributes_end_at_their_bracket() {
        let text = "#![allow(dead_code, reason = \"[x]\")]\n#[expect(unused)] fn f(a: [u8; 2]) {}";
        let source = Source::new(text);
        let found: Vec<&str> = source.attributes().into_iter().map(|range| &text[range]).collect();
        assert_eq!(found, ["#![allow(dead_code, reason = \"[x]\")]", "#[expect(unused)]"]);
    }
}
