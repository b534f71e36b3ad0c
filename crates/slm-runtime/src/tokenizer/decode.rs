//! Ids to text.

use super::encode::{Engine, Tokenizer};
use super::error::TokenizerError;
use super::spec::TokenKind;

/// Whether control tokens are shown when ids become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialText {
    /// As their text, so that encoding with parsing gives the ids again.
    Show,
    /// Not at all: what a reader of the answer wants.
    Hide,
}

impl Tokenizer {
    /// The text of `ids`, control tokens shown. Bytes that are not UTF-8 become U+FFFD; all else is exact, so that decoding what
    /// [`Tokenizer::encode`] gave returns the text (for rules that normalize: the normalized text).
    ///
    /// # Errors
    /// `tokenizer-id-out-of-range`.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_with(ids, SpecialText::Show)
    }

    /// As [`Tokenizer::decode`], control tokens shown or not.
    ///
    /// # Errors
    /// `tokenizer-id-out-of-range`.
    pub fn decode_with(&self, ids: &[u32], special: SpecialText) -> Result<String, TokenizerError> {
        let mut stream =
            StreamDecoder { tokenizer: self, special, pending: Vec::new(), after_edge: true };
        let mut text = String::new();
        for &id in ids {
            text.push_str(&stream.push(id)?);
        }
        text.push_str(&stream.finish());
        Ok(text)
    }

    /// The bytes that token `id` stands for; often not whole characters. Control tokens give their text.
    ///
    /// # Errors
    /// `tokenizer-id-out-of-range`.
    pub fn token_bytes(&self, id: u32) -> Result<Vec<u8>, TokenizerError> {
        self.stands_for(id)
            .map(<[u8]>::to_vec)
            .ok_or_else(|| TokenizerError::IdOutOfRange { id, vocab_size: self.vocab_size() })
    }

    fn strips_edge_space(&self) -> bool {
        matches!(self.engine, Engine::SentencePiece { add_space_prefix: true, .. })
    }
}

/// Turns ids into text one by one and yields only whole characters; a character may need several tokens.
///
/// All pieces together, with [`StreamDecoder::finish`], are the text of the ids.
#[derive(Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    special: SpecialText,
    pending: Vec<u8>,
    /// The next space is the one that encoding puts before text.
    after_edge: bool,
}

impl<'a> StreamDecoder<'a> {
    /// A decoder for ids that continue a prompt, so that a leading space is a space.
    pub fn new(tokenizer: &'a Tokenizer, special: SpecialText) -> StreamDecoder<'a> {
        StreamDecoder { tokenizer, special, pending: Vec::new(), after_edge: false }
    }

    /// The characters that `id` completes; empty where more tokens are needed.
    ///
    /// # Errors
    /// `tokenizer-id-out-of-range`.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        let tokenizer = self.tokenizer;
        let out_of_range = TokenizerError::IdOutOfRange { id, vocab_size: tokenizer.vocab_size() };
        let Some(mut bytes) = tokenizer.stands_for(id) else { return Err(out_of_range) };
        let kind = tokenizer.kind(id);
        let is_marked = matches!(kind, Some(TokenKind::Control | TokenKind::UserDefined));
        if tokenizer.strips_edge_space() && self.after_edge && !is_marked {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.after_edge = is_marked;
        if kind != Some(TokenKind::Control) || self.special == SpecialText::Show {
            self.pending.extend_from_slice(bytes);
        }
        Ok(self.take_whole())
    }

    /// What is left: U+FFFD for a character that never became whole.
    pub fn finish(mut self) -> String {
        let mut text = self.take_whole();
        if !self.pending.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
        text
    }

    /// Takes whole characters from the front of `pending`, as `String::from_utf8_lossy` would read them.
    fn take_whole(&mut self) -> String {
        let mut text = String::new();
        let mut at = 0;
        loop {
            let rest = &self.pending[at..];
            let (valid, skip) = match core::str::from_utf8(rest) {
                Ok(valid) => (valid, None),
                Err(error) => {
                    let valid = core::str::from_utf8(&rest[..error.valid_up_to()])
                        .expect("BUG: valid bytes are not UTF-8");
                    (valid, error.error_len())
                }
            };
            text.push_str(valid);
            at += valid.len();
            match skip {
                Some(skip) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    at += skip;
                }
                None => break,
            }
        }
        self.pending.drain(..at);
        text
    }
}
