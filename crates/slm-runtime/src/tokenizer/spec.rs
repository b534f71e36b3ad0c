//! The canonical document: everything that decides text → ids → text.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use slm_format::Limits;
use slm_manifest::TokenizerId;

use super::error::TokenizerError;
use super::pre_tokenizer::PreTokenizer;

/// Longest normal token of a SentencePiece vocabulary; every split of each is looked at. Trained vocabularies end at 16 characters.
const MAX_PIECE_BYTES: usize = 256;

/// Most bytes of all control and user-defined tokens together, which are searched for in every text.
const MAX_MARKED_BYTES: u64 = 4 << 20;

/// Stands for a space in SentencePiece vocabularies.
pub(crate) const SPACE_MARK: char = '▁';

/// What a token is, which decides when text becomes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TokenKind {
    /// Made by merging.
    Normal,
    /// Made from text only on request: `<|im_start|>`, `<bos>`; and the unknown token.
    Control,
    /// Matched in raw text before anything else, always.
    UserDefined,
    /// Never made.
    Unused,
    /// One raw byte, `<0x0A>`, where nothing else stands for it.
    Byte,
}

/// One token, with a text of its own or one that lies elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token<T = String> {
    /// Normal tokens as the vocabulary writes them (byte map, or `▁` for a space); control and user-defined tokens as they stand in text.
    pub text: T,
    /// What it is.
    pub kind: TokenKind,
}

/// A control or user-defined token that swallows white space beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stripping {
    /// The token.
    pub id: u32,
    /// White space before it is dropped.
    pub left: bool,
    /// White space after it is dropped.
    pub right: bool,
}

/// How words become tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Algorithm {
    /// Words, cut by a rule, become bytes, and pairs are merged in the order of a list.
    ByteLevelBpe {
        /// How text is cut.
        pre: PreTokenizer,
        /// Pairs of ids, first merged first.
        merges: Vec<(u32, u32)>,
    },
    /// Characters, spaces written `▁`, are merged: the pair whose token ranks first, leftmost among equals. Characters outside the
    /// vocabulary become byte tokens.
    SentencePieceBpe {
        /// For each token: 0 where no merge makes it, else its rank, 1 first. Dense: scores in files decide nothing but this order.
        ranks: Vec<u32>,
        /// A space is put before text at the start and after a control token.
        add_space_prefix: bool,
    },
}

/// A tokenizer as a file states it, before [`TokenizerSpec::check`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawTokenizerSpec<T = String> {
    /// How words become tokens.
    pub algorithm: Algorithm,
    /// The vocabulary; a token's position is its id.
    pub tokens: Vec<Token<T>>,
    /// Control and user-defined tokens that swallow white space, by id.
    pub stripping: Vec<Stripping>,
    /// Begins a sequence.
    pub bos: Option<u32>,
    /// Each ends a generation; the first is the file's main one, the rest is sorted.
    pub eos: Vec<u32>,
    /// Stands for text that no token covers.
    pub unk: Option<u32>,
    /// Fills batches.
    pub pad: Option<u32>,
    /// Whether prompts begin with `bos`.
    pub add_bos: bool,
    /// Whether prompts end with the main `eos`.
    pub add_eos: bool,
}

/// A tokenizer whose parts agree with each other. Fields are read through [`core::ops::Deref`]; none can be changed.
///
/// Two files that tokenize alike give equal specs, whatever format they are in: scores become ranks, names of rules become rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerSpec {
    raw: RawTokenizerSpec,
    id: TokenizerId,
}

impl TokenizerSpec {
    /// Checks `raw`: at least one token, texts unique and within their bounds, every id in range, merges between known tokens, no merge
    /// that makes a control token.
    ///
    /// # Errors
    /// [`TokenizerError`] names the first thing that is wrong.
    pub fn check(raw: RawTokenizerSpec, limits: &Limits) -> Result<TokenizerSpec, TokenizerError> {
        check(&raw, limits)?;
        let id = TokenizerId::of_canonical(&canonical(&raw));
        Ok(TokenizerSpec { raw, id })
    }

    /// The encoding that a [`TokenizerId`] covers and that the store keeps; the same spec gives the same bytes on every machine.
    pub fn to_canonical(&self) -> Vec<u8> {
        canonical(&self.raw)
    }

    /// Reads what [`TokenizerSpec::to_canonical`] wrote, and checks it as any other input.
    ///
    /// # Errors
    /// `tokenizer-not-canonical` where `bytes` are not exactly such an encoding, else as [`TokenizerSpec::check`].
    pub fn from_canonical(bytes: &[u8], limits: &Limits) -> Result<TokenizerSpec, TokenizerError> {
        Ok(Document::check(bytes.to_vec(), limits)?.spec())
    }

    /// The identity of this tokenizer.
    pub fn id(&self) -> TokenizerId {
        self.id
    }

    /// How many tokens there are; ids are below this.
    pub fn vocab_size(&self) -> u32 {
        u32::try_from(self.raw.tokens.len()).expect("BUG: a checked vocabulary has 2^32 tokens")
    }
}

impl core::ops::Deref for TokenizerSpec {
    type Target = RawTokenizerSpec;

    fn deref(&self) -> &RawTokenizerSpec {
        &self.raw
    }
}

/// A canonical document that was checked, for whoever needs its identity and nothing else: the texts of the tokens stay in it.
#[derive(Debug)]
pub(crate) struct Document {
    bytes: Vec<u8>,
    id: TokenizerId,
    vocab_size: u32,
}

impl Document {
    /// As [`TokenizerSpec::from_canonical`].
    pub(crate) fn check(bytes: Vec<u8>, limits: &Limits) -> Result<Document, TokenizerError> {
        let found = bytes.len() as u64;
        if found > limits.max_header_bytes {
            return Err(TokenizerError::TooLarge {
                field: "tokenizer document bytes",
                found,
                limit: limits.max_header_bytes,
            });
        }
        let (format, raw): (u32, RawTokenizerSpec<&str>) = postcard::from_bytes(&bytes)
            .map_err(|error| TokenizerError::NotCanonical { message: error.to_string() })?;
        if format != FORMAT {
            return Err(TokenizerError::NotCanonical {
                message: format!("format {format}, expected {FORMAT}"),
            });
        }
        let vocab_size = check(&raw, limits)?;
        // One value has one encoding: trailing bytes and padded integers are refused here.
        let same = postcard::serialize_with_flavor(&(FORMAT, &raw), Compared(&bytes));
        if !matches!(same, Ok(true)) {
            return Err(TokenizerError::NotCanonical {
                message: "the bytes are not the shortest encoding of their value".into(),
            });
        }
        let id = TokenizerId::of_canonical(&bytes);
        Ok(Document { bytes, id, vocab_size })
    }

    /// The identity of the tokenizer.
    pub(crate) fn id(&self) -> TokenizerId {
        self.id
    }

    /// How many tokens there are.
    pub(crate) fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// The tokenizer.
    pub(crate) fn spec(&self) -> TokenizerSpec {
        let (_, raw): (u32, RawTokenizerSpec) =
            postcard::from_bytes(&self.bytes).expect("BUG: a checked tokenizer could not be read");
        TokenizerSpec { raw, id: self.id }
    }
}

/// Takes an encoding and compares it with these bytes, piece by piece.
struct Compared<'a>(&'a [u8]);

impl postcard::ser_flavors::Flavor for Compared<'_> {
    type Output = bool;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        // That there is no room is how an encoder is told to stop.
        self.0 = self.0.strip_prefix(bytes).ok_or(postcard::Error::SerializeBufferFull)?;
        Ok(())
    }

    fn finalize(self) -> postcard::Result<bool> {
        Ok(self.0.is_empty())
    }
}

/// Version of the canonical encoding.
const FORMAT: u32 = 1;

/// Most tokens; ids and rows of the embedding are counted by the same bound.
const MAX_VOCAB: u64 = 1 << 24;

/// The canonical encoding.
fn canonical(raw: &RawTokenizerSpec) -> Vec<u8> {
    postcard::to_stdvec(&(FORMAT, raw)).expect("BUG: a tokenizer could not be encoded")
}

/// Whether the parts agree with each other; the number of tokens.
fn check<T: AsRef<str>>(raw: &RawTokenizerSpec<T>, limits: &Limits) -> Result<u32, TokenizerError> {
    let vocab_size = check_vocabulary(&raw.tokens, limits)?;
    let ids = index(&raw.tokens)?;
    let specials = [("bos", raw.bos), ("unk", raw.unk), ("pad", raw.pad)];
    let specials = specials.into_iter().filter_map(|(field, id)| Some((field, id?)));
    for (field, id) in specials.chain(raw.eos.iter().map(|&id| ("eos", id))) {
        check_special(field, u64::from(id), vocab_size)?;
    }
    if main_first(raw.eos.clone()) != raw.eos {
        return Err(TokenizerError::NotCanonical {
            message: "further eos ids are not sorted or repeat".into(),
        });
    }
    for (present, field) in
        [(raw.add_bos && raw.bos.is_none(), "bos"), (raw.add_eos && raw.eos.is_empty(), "eos")]
    {
        if present {
            return Err(TokenizerError::Missing { field });
        }
    }
    if raw.stripping.iter().zip(raw.stripping.iter().skip(1)).any(|(a, b)| a.id >= b.id) {
        return Err(TokenizerError::NotCanonical {
            message: "stripping tokens are not sorted or repeat".into(),
        });
    }
    for strip in &raw.stripping {
        check_special("stripping token", u64::from(strip.id), vocab_size)?;
    }
    match &raw.algorithm {
        Algorithm::ByteLevelBpe { merges, .. } => check_merges(&raw.tokens, &ids, merges, limits)?,
        Algorithm::SentencePieceBpe { ranks, .. } => check_ranks(&raw.tokens, &ids, ranks)?,
    }
    Ok(vocab_size)
}

fn check_vocabulary<T: AsRef<str>>(
    tokens: &[Token<T>],
    limits: &Limits,
) -> Result<u32, TokenizerError> {
    let (found, limit) = (tokens.len() as u64, limits.max_array_len.min(MAX_VOCAB));
    if found == 0 {
        return Err(TokenizerError::Missing { field: "tokens" });
    }
    if found > limit {
        return Err(TokenizerError::TooLarge { field: "vocabulary", found, limit });
    }
    let mut marked = 0u64;
    for (id, token) in (0u32..).zip(tokens) {
        let found = token.text.as_ref().len() as u64;
        if found == 0 || found > limits.max_string_bytes {
            return Err(TokenizerError::TokenLength { id, found, limit: limits.max_string_bytes });
        }
        match token.kind {
            TokenKind::Control | TokenKind::UserDefined => marked += found,
            TokenKind::Byte if byte_of(token.text.as_ref()).is_none() => {
                return Err(TokenizerError::BadByteToken {
                    id,
                    text: excerpt(token.text.as_ref()),
                });
            }
            TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => {}
        }
    }
    if marked > MAX_MARKED_BYTES {
        return Err(TokenizerError::TooLarge {
            field: "bytes of control and user-defined tokens",
            found: marked,
            limit: MAX_MARKED_BYTES,
        });
    }
    Ok(u32::try_from(found).expect("BUG: the limit is below 2^32"))
}

/// Refuses an id of a special token that the vocabulary does not have.
pub(crate) fn check_special(
    field: &'static str,
    id: u64,
    vocab_size: u32,
) -> Result<u32, TokenizerError> {
    u32::try_from(id).ok().filter(|&id| id < vocab_size).ok_or(TokenizerError::SpecialOutOfRange {
        field,
        id,
        vocab_size,
    })
}

/// Ids by text.
pub(crate) fn index<T: AsRef<str>>(
    tokens: &[Token<T>],
) -> Result<HashMap<&str, u32>, TokenizerError> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, token) in (0u32..).zip(tokens) {
        if let Some(first) = ids.insert(token.text.as_ref(), id) {
            return Err(TokenizerError::DuplicateToken {
                text: excerpt(token.text.as_ref()),
                first,
                second: id,
            });
        }
    }
    Ok(ids)
}

/// The value of a token `<0xXX>`.
pub(crate) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_plain =
        digits.len() == 2 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F'));
    u8::from_str_radix(digits, 16).ok().filter(|_| is_plain)
}

/// The token that a merge makes; errors name merge `index`.
pub(crate) fn merged<T: AsRef<str>>(
    tokens: &[Token<T>],
    ids: &HashMap<&str, u32>,
    index: u32,
    pair: (u32, u32),
) -> Result<u32, TokenizerError> {
    merged_into(tokens, ids, index, pair, &mut String::new())
}

/// As [`merged`]; `text` becomes the token's text, in memory that it may have already.
fn merged_into<T: AsRef<str>>(
    tokens: &[Token<T>],
    ids: &HashMap<&str, u32>,
    index: u32,
    (left, right): (u32, u32),
    text: &mut String,
) -> Result<u32, TokenizerError> {
    let part = |id: u32| {
        usize::try_from(id)
            .ok()
            .and_then(|id| tokens.get(id))
            .map(|token| token.text.as_ref())
            .ok_or_else(|| TokenizerError::MergeUnknownToken {
                index,
                token: format!("number {id}"),
            })
    };
    text.clear();
    text.push_str(part(left)?);
    text.push_str(part(right)?);
    let id = *ids
        .get(text.as_str())
        .ok_or_else(|| TokenizerError::MergeUnknownToken { index, token: excerpt(text) })?;
    let kind = tokens[to_index(id)].kind;
    match kind {
        TokenKind::Normal | TokenKind::UserDefined => Ok(id),
        TokenKind::Control | TokenKind::Unused | TokenKind::Byte => {
            Err(TokenizerError::MergeMakesSpecial { index, token: excerpt(text) })
        }
    }
}

/// Every split of the text of a normal token into two normal tokens, shortest left part first.
pub(crate) fn splits<'a, T: AsRef<str>>(
    tokens: &'a [Token<T>],
    ids: &'a HashMap<&str, u32>,
    text: &'a str,
) -> impl Iterator<Item = (u32, u32)> + 'a {
    let normal = |part: &str| {
        let id = *ids.get(part)?;
        (tokens[usize::try_from(id).ok()?].kind == TokenKind::Normal).then_some(id)
    };
    text.char_indices().skip(1).filter_map(move |(at, _)| {
        let (left, right) = text.split_at(at);
        Some((normal(left)?, normal(right)?))
    })
}

/// Every split, as [`splits`], of each of these tokens in turn.
pub(crate) fn every_split<T: AsRef<str>>(
    tokens: &[Token<T>],
    of: impl Iterator<Item = usize>,
) -> Vec<(u32, u32)> {
    let ids = index(tokens).expect("BUG: a checked vocabulary repeats a text");
    of.flat_map(|id| splits(tokens, &ids, tokens[id].text.as_ref()).collect::<Vec<_>>()).collect()
}

/// Dense ranks from an order of tokens: 0 for tokens that no split makes; `key` smaller ranks earlier, equal keys share a rank.
pub(crate) fn dense_ranks<T: AsRef<str>, K: Ord + Copy>(
    tokens: &[Token<T>],
    ids: &HashMap<&str, u32>,
    key: impl Fn(u32) -> Option<K>,
) -> Result<Vec<u32>, TokenizerError> {
    let mut order: Vec<(K, u32)> = Vec::new();
    for (id, token) in (0u32..).zip(tokens) {
        check_piece(id, token)?;
        let is_made = token.kind == TokenKind::Normal
            && splits(tokens, ids, token.text.as_ref()).next().is_some();
        if let (true, Some(key)) = (is_made, key(id)) {
            order.push((key, id));
        }
    }
    order.sort_unstable();
    let mut ranks = vec![0u32; tokens.len()];
    let (mut rank, mut last) = (0, None);
    for (key, id) in order {
        if last != Some(key) {
            (rank, last) = (rank + 1, Some(key));
        }
        ranks[to_index(id)] = rank;
    }
    Ok(ranks)
}

fn to_index(id: u32) -> usize {
    usize::try_from(id).expect("BUG: an id does not fit")
}

/// The first id first, the others sorted, each once.
pub(crate) fn main_first(ids: Vec<u32>) -> Vec<u32> {
    let Some((&main, rest)) = ids.split_first() else { return ids };
    let mut rest: Vec<u32> = rest.iter().copied().filter(|&id| id != main).collect();
    rest.sort_unstable();
    rest.dedup();
    rest.insert(0, main);
    rest
}

/// At most the first 64 characters, for messages.
pub(crate) fn excerpt(text: &str) -> String {
    let mut shown: String = text.chars().take(64).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

fn check_piece<T: AsRef<str>>(id: u32, token: &Token<T>) -> Result<(), TokenizerError> {
    if token.kind == TokenKind::Normal && token.text.as_ref().len() > MAX_PIECE_BYTES {
        return Err(TokenizerError::TokenLength {
            id,
            found: token.text.as_ref().len() as u64,
            limit: MAX_PIECE_BYTES as u64,
        });
    }
    Ok(())
}

fn check_merges<T: AsRef<str>>(
    tokens: &[Token<T>],
    ids: &HashMap<&str, u32>,
    merges: &[(u32, u32)],
    limits: &Limits,
) -> Result<(), TokenizerError> {
    let (found, limit) = (merges.len() as u64, limits.max_array_len.min(MAX_VOCAB));
    if found > limit {
        return Err(TokenizerError::TooLarge { field: "merges", found, limit });
    }
    // Equal pairs make the same token, and few merges do: those before are looked through, the last one first. Different pairs that make one token
    // cut its text at different places, so that there are no more of them than it has bytes.
    let mut last = vec![None; tokens.len()];
    let mut before: Vec<Option<u32>> = Vec::with_capacity(merges.len());
    let mut text = String::new();
    for (index, &(left, right)) in (0u32..).zip(merges) {
        let id = merged_into(tokens, ids, index, (left, right), &mut text)?;
        let last = &mut last[to_index(id)];
        let mut other = *last;
        while let Some(at) = other.map(to_index) {
            if merges[at] == (left, right) {
                return Err(TokenizerError::DuplicateMerge { index, left, right });
            }
            other = before[at];
        }
        before.push(last.replace(index));
    }
    Ok(())
}

/// Ranks must be what [`dense_ranks`] gives, so that one order has one encoding.
fn check_ranks<T: AsRef<str>>(
    tokens: &[Token<T>],
    ids: &HashMap<&str, u32>,
    ranks: &[u32],
) -> Result<(), TokenizerError> {
    let (found, expected) = (ranks.len() as u64, tokens.len() as u64);
    if found != expected {
        return Err(TokenizerError::LengthMismatch { field: "ranks", found, expected });
    }
    let rank_of = |id: u32| usize::try_from(id).ok().and_then(|id| ranks.get(id).copied());
    if dense_ranks(tokens, ids, rank_of)? != ranks {
        return Err(TokenizerError::NotCanonical {
            message: "ranks are not dense, or rank a token that no merge makes".into(),
        });
    }
    Ok(())
}
