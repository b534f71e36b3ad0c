//! The compiled tokenizer, and text to ids.

use std::collections::HashMap;

use unicode_normalization::UnicodeNormalization;

use super::byte_map::{byte_to_char, char_to_byte};
use super::error::TokenizerError;
use super::marked::Marked;
use super::pairs::{Merger, NONE, PairTable};
use super::pre_tokenizer::PreTokenizer;
use super::spec::{
    Algorithm, SPACE_MARK, Stripping, Token, TokenKind, TokenizerSpec, byte_of, excerpt,
};

/// Longest text of one call, in bytes.
const MAX_TEXT_BYTES: u64 = 1 << 28;

/// What becomes of the text of a control token, as `<|im_start|>`, inside a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// It becomes that token: for templates and for text that the program itself wrote.
    Parse,
    /// It stays text: for everything a user wrote.
    AsText,
}

/// A tokenizer, ready to use from any thread. Holds about 2 bytes a letter of the vocabulary, 8 a token and 12 a merge.
///
/// ```
/// use slm_format::Limits;
/// use slm_runtime::tokenizer::{
///     Algorithm, PreTokenizer, RawTokenizerSpec, SpecialTokens, Token, TokenKind, Tokenizer, TokenizerSpec,
/// };
///
/// let token = |text: &str, kind| Token { text: text.into(), kind };
/// let raw = RawTokenizerSpec {
///     algorithm: Algorithm::ByteLevelBpe { pre: PreTokenizer::Gpt2, merges: vec![(0, 1)] },
///     tokens: vec![
///         token("h", TokenKind::Normal),
///         token("i", TokenKind::Normal),
///         token("hi", TokenKind::Normal),
///         token("<hi>", TokenKind::Control),
///     ],
///     stripping: vec![],
///     bos: None,
///     eos: vec![3],
///     unk: None,
///     pad: None,
///     add_bos: false,
///     add_eos: false,
/// };
/// let tokenizer = Tokenizer::new(&TokenizerSpec::check(raw, &Limits::STANDARD)?)?;
/// let ids = tokenizer.encode("hihih<hi>", SpecialTokens::Parse)?;
/// assert_eq!(ids, [2, 2, 0, 3]);
/// assert_eq!(tokenizer.decode(&ids)?, "hihih<hi>");
/// assert!(tokenizer.encode("<hi>", SpecialTokens::AsText).is_err(), "this vocabulary has no `<`");
/// # Ok::<(), slm_runtime::tokenizer::TokenizerError>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    pub(crate) engine: Engine,
    pairs: PairTable,
    /// What every token stands for, end to end; token `t` ends at `ends[t]`.
    bytes: Vec<u8>,
    ends: Vec<u32>,
    kinds: Vec<TokenKind>,
    /// Tokens found in raw text when special tokens are parsed, and when they are not.
    parsed: Marked,
    user_defined: Marked,
    stripping: Vec<Stripping>,
    unk: Option<u32>,
    bos: Option<u32>,
    eos: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
}

#[derive(Debug)]
pub(crate) enum Engine {
    ByteLevel {
        pre: PreTokenizer,
        /// The token of each byte, or [`NONE`].
        byte_ids: Box<[u32; 256]>,
        /// Normal tokens ordered by their bytes, where words are looked up whole; else empty.
        whole: Vec<u32>,
    },
    SentencePiece {
        char_ids: HashMap<char, u32>,
        /// The byte token of each byte, or [`NONE`].
        byte_ids: Box<[u32; 256]>,
        add_space_prefix: bool,
    },
}

impl Tokenizer {
    /// Compiles `spec`. For Gemma's 262 144 tokens this takes a fraction of a second; `docs/tokenizers.md` has figures.
    ///
    /// # Errors
    /// `limit-exceeded` where the marked tokens are too many for one automaton.
    pub fn new(spec: &TokenizerSpec) -> Result<Tokenizer, TokenizerError> {
        let is_byte_level = matches!(spec.algorithm, Algorithm::ByteLevelBpe { .. });
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(spec.tokens.len());
        for token in &spec.tokens {
            push_token_bytes(&mut bytes, token, is_byte_level);
            let found = bytes.len() as u64;
            let limit = u64::from(u32::MAX);
            let end = u32::try_from(found).map_err(|_| TokenizerError::TooLarge {
                field: "bytes of the vocabulary",
                found,
                limit,
            })?;
            ends.push(end);
        }
        bytes.shrink_to_fit();
        let mut tokenizer = Tokenizer {
            engine: Engine::new(spec),
            pairs: PairTable::new(spec)?,
            bytes,
            ends,
            kinds: spec.tokens.iter().map(|token| token.kind).collect(),
            parsed: Marked::new(spec, |kind| {
                matches!(kind, TokenKind::Control | TokenKind::UserDefined)
            })?,
            user_defined: Marked::new(spec, |kind| kind == TokenKind::UserDefined)?,
            stripping: spec.stripping.clone(),
            unk: spec.unk,
            bos: spec.bos,
            eos: spec.eos.clone(),
            add_bos: spec.add_bos,
            add_eos: spec.add_eos,
        };
        tokenizer.index_whole_words();
        Ok(tokenizer)
    }

    /// The ids of `text`. Nothing is added at either end; see [`Tokenizer::add_bos`].
    ///
    /// # Errors
    /// `limit-exceeded` over 256 MiB; `tokenizer-unencodable` where a byte-level vocabulary lacks a byte (SmolLM2's lacks 21), because
    /// its unknown token is a control token, which text must not become.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, TokenizerError> {
        let marked = match special {
            SpecialTokens::Parse => &self.parsed,
            SpecialTokens::AsText => &self.user_defined,
        };
        self.encode_marked(text, |at| marked.find(text, at), None)
    }

    /// As [`Tokenizer::encode`] with parsing, but a control token right behind a `guard` stays text; guards themselves vanish.
    pub(crate) fn encode_guarded(
        &self,
        text: &str,
        guard: char,
    ) -> Result<Vec<u32>, TokenizerError> {
        let find = |mut at: usize| {
            loop {
                let (start, end, id) = self.parsed.find(text, at)?;
                if !text[..start].ends_with(guard) || self.kind(id) != Some(TokenKind::Control) {
                    return Some((start, end, id));
                }
                match self.user_defined.find(text, start) {
                    Some(found) if found.0 == start => return Some(found),
                    _ => at = start + text[start..].chars().next().map_or(1, char::len_utf8),
                }
            }
        };
        self.encode_marked(text, find, Some(guard))
    }

    /// The texts of all control tokens.
    pub(crate) fn control_texts(&self) -> impl Iterator<Item = &str> {
        let controls = (0u32..).zip(&self.kinds).filter(|(_, kind)| **kind == TokenKind::Control);
        controls.filter_map(|(id, _)| core::str::from_utf8(self.stands_for(id)?).ok())
    }

    /// How many tokens there are; ids are below this.
    pub fn vocab_size(&self) -> u32 {
        u32::try_from(self.ends.len()).expect("BUG: a checked vocabulary has 2^32 tokens")
    }

    /// The token that begins a sequence, if the vocabulary has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The tokens that end a generation, the main one first.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos
    }

    /// Whether prompts of this model begin with [`Tokenizer::bos`]. A template may have printed it already: look before adding.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether sequences of this model end with the main end token.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    /// Bytes of heap that the tables hold, without the automata of marked tokens and the map of characters.
    pub fn table_bytes(&self) -> u64 {
        let pairs = self.pairs.len() as u64 * 12 + self.ends.len() as u64 * 4;
        self.bytes.capacity() as u64 + self.ends.len() as u64 * 5 + pairs
    }

    /// What token `id` stands for, or nothing outside the vocabulary.
    pub(crate) fn stands_for(&self, id: u32) -> Option<&[u8]> {
        let at = usize::try_from(id).ok()?;
        let end = *self.ends.get(at)?;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        Some(&self.bytes[usize::try_from(start).ok()?..usize::try_from(end).ok()?])
    }

    pub(crate) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(usize::try_from(id).ok()?).copied()
    }

    /// Encodes the text between the tokens that `find(at)` gives, as (start, end, id), and these.
    fn encode_marked(
        &self,
        text: &str,
        find: impl Fn(usize) -> Option<(usize, usize, u32)>,
        guard: Option<char>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let found = text.len() as u64;
        if found > MAX_TEXT_BYTES {
            return Err(TokenizerError::TooLarge {
                field: "text bytes",
                found,
                limit: MAX_TEXT_BYTES,
            });
        }
        let mut work = Work::default();
        let mut at = 0;
        while let Some((start, end, id)) = find(at) {
            let strip = self
                .stripping
                .binary_search_by_key(&id, |strip| strip.id)
                .ok()
                .map(|found| self.stripping[found]);
            let before = &text[at..start];
            let before =
                if strip.is_some_and(|strip| strip.left) { before.trim_end() } else { before };
            self.encode_unguarded(before, guard, &mut work)?;
            work.ids.push(id);
            at = end;
            if strip.is_some_and(|strip| strip.right) {
                at = text.len() - text[end..].trim_start().len();
            }
        }
        self.encode_unguarded(&text[at..], guard, &mut work)?;
        Ok(work.ids)
    }

    fn encode_unguarded(
        &self,
        text: &str,
        guard: Option<char>,
        work: &mut Work,
    ) -> Result<(), TokenizerError> {
        match guard {
            Some(guard) if text.contains(guard) => {
                self.encode_plain(&text.replace(guard, ""), work)
            }
            _ => self.encode_plain(text, work),
        }
    }

    fn encode_plain(&self, text: &str, work: &mut Work) -> Result<(), TokenizerError> {
        if text.is_empty() {
            return Ok(());
        }
        match &self.engine {
            Engine::ByteLevel { pre, byte_ids, whole } => {
                let composed: String;
                let mut text = text;
                if pre.normalizes_nfc() && !text.is_ascii() {
                    composed = text.nfc().collect();
                    text = &composed;
                }
                for word in pre.words(text) {
                    match self.whole_word(whole, word) {
                        Some(id) => work.ids.push(id),
                        None => self.encode_word(word, byte_ids, work)?,
                    }
                }
                Ok(())
            }
            Engine::SentencePiece { char_ids, byte_ids, add_space_prefix } => {
                let prefix = add_space_prefix.then_some(SPACE_MARK);
                let marks = text
                    .chars()
                    .map(|character| if character == ' ' { SPACE_MARK } else { character });
                work.chars.clear();
                work.chars.extend(prefix.into_iter().chain(marks));
                self.encode_pieces(char_ids, byte_ids, work)
            }
        }
    }

    fn encode_word(
        &self,
        word: &str,
        byte_ids: &[u32; 256],
        work: &mut Work,
    ) -> Result<(), TokenizerError> {
        work.symbols.clear();
        for byte in word.bytes() {
            let id = byte_ids[usize::from(byte)];
            if id == NONE {
                return Err(TokenizerError::Unencodable {
                    what: format!("byte {byte:#04x}"),
                    text: excerpt(word),
                });
            }
            work.symbols.push(id);
        }
        let ids = &mut work.ids;
        work.merger.merge(&self.pairs, &work.symbols, |_, id| ids.push(id));
        Ok(())
    }

    fn encode_pieces(
        &self,
        char_ids: &HashMap<char, u32>,
        byte_ids: &[u32; 256],
        work: &mut Work,
    ) -> Result<(), TokenizerError> {
        work.symbols.clear();
        work.symbols.extend(
            work.chars.iter().map(|character| char_ids.get(character).copied().unwrap_or(NONE)),
        );
        let (ids, chars, unk) = (&mut work.ids, &work.chars, self.unk);
        let mut missing = None;
        let mut after_unknown = false;
        work.merger.merge(&self.pairs, &work.symbols, |at, id| {
            if id != NONE {
                ids.push(id);
                after_unknown = false;
                return;
            }
            let character = chars[at];
            let mut buffer = [0; 4];
            let bytes = character.encode_utf8(&mut buffer).as_bytes();
            let tokens = bytes.iter().map(|&byte| byte_ids[usize::from(byte)]);
            if tokens.clone().all(|id| id != NONE) {
                ids.extend(tokens);
                after_unknown = false;
            } else if let Some(unk) = unk {
                // Characters in a row without a token are one unknown token.
                if !after_unknown {
                    ids.push(unk);
                }
                after_unknown = true;
            } else {
                missing = missing.or(Some(character));
            }
        });
        match missing {
            None => Ok(()),
            Some(character) => {
                let what = format!("character {character:?}");
                Err(TokenizerError::Unencodable {
                    what,
                    text: excerpt(&work.chars.iter().collect::<String>()),
                })
            }
        }
    }

    fn whole_word(&self, whole: &[u32], word: &str) -> Option<u32> {
        let found =
            whole.binary_search_by(|&id| self.stands_for(id).cmp(&Some(word.as_bytes()))).ok()?;
        Some(whole[found])
    }

    fn index_whole_words(&mut self) {
        let Engine::ByteLevel { pre, .. } = self.engine else { return };
        if !pre.takes_whole_words() {
            return;
        }
        let mut order: Vec<u32> = (0u32..)
            .zip(&self.kinds)
            .filter(|(_, kind)| **kind == TokenKind::Normal)
            .map(|(id, _)| id)
            .collect();
        order.sort_by(|&a, &b| self.stands_for(a).cmp(&self.stands_for(b)));
        if let Engine::ByteLevel { whole, .. } = &mut self.engine {
            *whole = order;
        }
    }
}

/// Buffers of one call.
#[derive(Default)]
struct Work {
    ids: Vec<u32>,
    symbols: Vec<u32>,
    chars: Vec<char>,
    merger: Merger,
}

impl Engine {
    fn new(spec: &TokenizerSpec) -> Engine {
        let mut byte_ids = Box::new([NONE; 256]);
        let mut char_ids = HashMap::new();
        let of_kind =
            |kind| (0u32..).zip(&spec.tokens).filter(move |(_, token)| token.kind == kind);
        for (id, token) in of_kind(TokenKind::Normal) {
            let mut chars = token.text.chars();
            if let (Some(character), None) = (chars.next(), chars.next()) {
                char_ids.insert(character, id);
            }
        }
        match spec.algorithm {
            Algorithm::ByteLevelBpe { pre, .. } => {
                for byte in 0..=u8::MAX {
                    if let Some(&id) = char_ids.get(&byte_to_char(byte)) {
                        byte_ids[usize::from(byte)] = id;
                    }
                }
                Engine::ByteLevel { pre, byte_ids, whole: Vec::new() }
            }
            Algorithm::SentencePieceBpe { add_space_prefix, .. } => {
                for (id, token) in of_kind(TokenKind::Byte) {
                    let byte =
                        byte_of(&token.text).expect("BUG: a checked byte token names no byte");
                    byte_ids[usize::from(byte)] = id;
                }
                char_ids.shrink_to_fit();
                Engine::SentencePiece { char_ids, byte_ids, add_space_prefix }
            }
        }
    }
}

/// Appends what `token` stands for in text.
fn push_token_bytes(bytes: &mut Vec<u8>, token: &Token, is_byte_level: bool) {
    match token.kind {
        TokenKind::Byte => bytes.extend(byte_of(&token.text)),
        TokenKind::Normal if is_byte_level => {
            let mapped: Option<Vec<u8>> = token.text.chars().map(char_to_byte).collect();
            match mapped {
                Some(mapped) => bytes.extend(mapped),
                // A token that the byte map cannot have written stands for its own text.
                None => bytes.extend(token.text.as_bytes()),
            }
        }
        TokenKind::Normal => {
            let mut buffer = [0; 4];
            for character in token.text.chars() {
                let shown = if character == SPACE_MARK { ' ' } else { character };
                bytes.extend(shown.encode_utf8(&mut buffer).as_bytes());
            }
        }
        // Not through the byte map: an added token `č` is that letter, not the byte it would stand for.
        TokenKind::Control | TokenKind::UserDefined | TokenKind::Unused => {
            bytes.extend(token.text.as_bytes())
        }
    }
}
