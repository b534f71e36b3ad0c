//! The canonical document from the tokenizer section of an SLM1 file: `BTOK` or `BPE1`.
//!
//! `BTOK` is 28 bytes: magic, version 1, vocabulary size, and the ids of BOS, EOS, PAD and UNK, which are 256 to 259 behind one token per byte.
//! `BPE1` goes on with a token count and a merge count, token records (id, length, bytes) and merge records (left, right, output, rank). All numbers
//! are u32; for the token records that is our reading, since the format does not publish their widths. Text is merged whole, never cut into words
//! first. Source: the published layout (mirust.com, BTOK and BPE1 tokenizers).

use std::collections::{BTreeMap, HashMap};

use slm_format::{Limits, ReadError, Reader};

use super::byte_map::byte_to_char;
use super::error::TokenizerError;
use super::pre_tokenizer::PreTokenizer;
use super::spec::{Algorithm, RawTokenizerSpec, Token, TokenKind, TokenizerSpec, excerpt};

/// The ids of the special tokens, and how they read in text: the format gives them no text.
const SPECIALS: [(&str, u32, &str); 4] = [
    ("bos", 256, "<|bos|>"),
    ("eos", 257, "<|eos|>"),
    ("pad", 258, "<|pad|>"),
    ("unk", 259, "<|unk|>"),
];
/// The first id that is neither a byte nor special.
const FIRST_MERGED: u32 = 260;

impl TokenizerSpec {
    /// The tokenizer of an SLM1 file's tokenizer section, for an embedding table of `rows`: a section that claims another number is refused before
    /// anything is made of it, since 28 bytes can claim any. Prompts begin with BOS; the format adds an EOS too and drops it again before the model
    /// sees it, so none is added here. Ids that the section gives no token are unused.
    ///
    /// # Errors
    /// `tokenizer-unknown-model` for another magic; `vocabulary-mismatch`; `tokenizer-section` for a section of another length, another version, or counts that cannot
    /// be; `tokenizer-duplicate-id`, `tokenizer-token-length`, `tokenizer-id-out-of-range`, `tokenizer-bad-byte-token`,
    /// `tokenizer-special-out-of-range`, `tokenizer-merge-unknown-token`, `tokenizer-merge-output`, `tokenizer-duplicate-rank`, and those of
    /// [`TokenizerSpec::check`].
    pub fn from_slm1(
        section: &[u8],
        rows: u64,
        limits: &Limits,
    ) -> Result<TokenizerSpec, TokenizerError> {
        let mut reader = Reader::new(section);
        let magic = reader.array::<4>("magic").map_err(in_section)?;
        let is_bpe = match &magic {
            b"BTOK" => false,
            b"BPE1" => true,
            other => {
                let found = format!("{}", other.escape_ascii());
                return Err(TokenizerError::UnknownModel { found });
            }
        };
        let version = reader.u32("version").map_err(in_section)?;
        if version != 1 {
            return Err(refuse(format!("version {version}, expected 1")));
        }
        let vocab_size = reader.u32("vocab_size").map_err(in_section)?;
        if u64::from(vocab_size) != rows {
            let found = u64::from(vocab_size);
            return Err(TokenizerError::Vocabulary { found, expected: rows });
        }
        if vocab_size < FIRST_MERGED {
            return Err(refuse(format!("a vocabulary of {vocab_size}, expected at least 260")));
        }
        for (field, expected, _) in SPECIALS {
            let id = reader.u32(field).map_err(in_section)?;
            if id != expected {
                let id = u64::from(id);
                return Err(TokenizerError::SpecialOutOfRange { field, id, vocab_size });
            }
        }
        let (texts, merges) = match is_bpe {
            true => read_bpe(&mut reader, vocab_size)?,
            false => (BTreeMap::new(), Vec::new()),
        };
        reader.finish().map_err(in_section)?;
        let raw = RawTokenizerSpec {
            algorithm: Algorithm::ByteLevelBpe { pre: PreTokenizer::Whole, merges },
            tokens: (0..vocab_size).map(|id| token(id, &texts)).collect(),
            stripping: Vec::new(),
            bos: Some(SPECIALS[0].1),
            eos: vec![SPECIALS[1].1],
            pad: Some(SPECIALS[2].1),
            unk: Some(SPECIALS[3].1),
            add_bos: true,
            add_eos: false,
        };
        TokenizerSpec::check(raw, limits)
    }
}

/// Texts of the tokens from 260 on, and pairs that merge, first merged first.
type Bpe = (BTreeMap<u32, String>, Vec<(u32, u32)>);

fn read_bpe(reader: &mut Reader<'_>, vocab_size: u32) -> Result<Bpe, TokenizerError> {
    let n_tokens = reader.u32("token_count").map_err(in_section)?;
    let n_merges = reader.u32("merge_count").map_err(in_section)?;
    // A token record has at least nine bytes, a merge record sixteen; nothing is reserved before both were compared with what is left.
    let needed = u64::from(n_tokens) * 9 + u64::from(n_merges) * 16;
    if needed > reader.remaining() {
        let left = reader.remaining();
        return Err(refuse(format!("{n_tokens} tokens and {n_merges} merges in {left} bytes")));
    }
    let mut records: HashMap<u32, &[u8]> = HashMap::new();
    for _ in 0..n_tokens {
        let id = reader.u32("token id").map_err(in_section)?;
        let len = reader.u32("token length").map_err(in_section)?;
        let bytes = reader.take("token bytes", u64::from(len)).map_err(in_section)?;
        check_record(id, bytes, vocab_size)?;
        if let Some(first) = records.insert(id, bytes) {
            let (first, second) = (shown(first), shown(bytes));
            return Err(TokenizerError::DuplicateId { id, first, second });
        }
    }
    let texts: BTreeMap<u32, String> = records
        .into_iter()
        .filter(|&(id, _)| id >= FIRST_MERGED)
        .map(|(id, bytes)| (id, bytes.iter().map(|&byte| byte_to_char(byte)).collect()))
        .collect();
    let mut by_rank: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for index in 0..n_merges {
        let mut field = |name| reader.u32(name).map_err(in_section);
        let (left, right) = (field("merge left")?, field("merge right")?);
        let (output, rank) = (field("merge output")?, field("merge rank")?);
        check_merge(index, [left, right, output], &texts)?;
        if by_rank.insert(rank, (left, right)).is_some() {
            return Err(TokenizerError::DuplicateRank { index, rank });
        }
    }
    Ok((texts, by_rank.into_values().collect()))
}

/// The record of a byte's id must hold that byte; a special id may have any bytes.
fn check_record(id: u32, bytes: &[u8], vocab_size: u32) -> Result<(), TokenizerError> {
    if id >= vocab_size {
        return Err(TokenizerError::RecordOutOfRange { id, vocab_size });
    }
    if bytes.is_empty() {
        return Err(TokenizerError::TokenLength { id, found: 0, limit: u64::from(u32::MAX) });
    }
    match u8::try_from(id) {
        Ok(byte) if bytes != [byte] => Err(TokenizerError::BadByteToken { id, text: shown(bytes) }),
        _ => Ok(()),
    }
}

/// Both parts and the output are tokens, and the output is what the parts make.
fn check_merge(
    index: u32,
    [left, right, output]: [u32; 3],
    texts: &BTreeMap<u32, String>,
) -> Result<(), TokenizerError> {
    let text = |id: u32| match u8::try_from(id) {
        Ok(byte) => Ok(byte_to_char(byte).to_string()),
        Err(_) => texts.get(&id).cloned().ok_or_else(|| TokenizerError::MergeUnknownToken {
            index,
            token: format!("number {id}"),
        }),
    };
    let (expected, found) = ([text(left)?, text(right)?].concat(), text(output)?);
    match expected == found {
        true => Ok(()),
        false => Err(TokenizerError::MergeOutput {
            index,
            found: excerpt(&found),
            expected: excerpt(&expected),
        }),
    }
}

fn token(id: u32, texts: &BTreeMap<u32, String>) -> Token {
    if let Ok(byte) = u8::try_from(id) {
        return Token { text: byte_to_char(byte).to_string(), kind: TokenKind::Normal };
    }
    if let Some((_, _, text)) = SPECIALS.iter().find(|special| special.1 == id) {
        return Token { text: (*text).to_owned(), kind: TokenKind::Control };
    }
    match texts.get(&id) {
        Some(text) => Token { text: text.clone(), kind: TokenKind::Normal },
        None => Token { text: format!("<|unused {id}|>"), kind: TokenKind::Unused },
    }
}

fn shown(bytes: &[u8]) -> String {
    excerpt(&String::from_utf8_lossy(bytes))
}

fn refuse(reason: String) -> TokenizerError {
    TokenizerError::Section { reason }
}

fn in_section(error: ReadError) -> TokenizerError {
    refuse(error.to_string())
}

#[cfg(test)]
mod tests {
    use slm_format::Coded;

    use super::super::encode::{SpecialTokens, Tokenizer};
    use super::*;

    fn numbers(magic: &[u8; 4], fields: &[u32]) -> Vec<u8> {
        let mut bytes = magic.to_vec();
        fields.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes
    }

    fn bpe(vocab_size: u32, tokens: &[(u32, &[u8])], merges: &[[u32; 4]]) -> Vec<u8> {
        let (n_tokens, n_merges) = (tokens.len() as u32, merges.len() as u32);
        let mut bytes = numbers(b"BPE1", &[1, vocab_size, 256, 257, 258, 259, n_tokens, n_merges]);
        assert_eq!(bytes.len(), 36);
        for (id, token) in tokens {
            bytes.extend(id.to_le_bytes());
            bytes.extend((token.len() as u32).to_le_bytes());
            bytes.extend(*token);
        }
        merges.iter().flatten().for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes
    }

    fn read(section: &[u8]) -> Result<TokenizerSpec, TokenizerError> {
        let rows = section.get(8..12).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        TokenizerSpec::from_slm1(section, rows.into(), &Limits::STANDARD)
    }

    fn code(section: &[u8]) -> &'static str {
        read(section).map_or_else(|error| error.code(), |_| "accepted")
    }

    const TH: u32 = b't' as u32;
    const HE: u32 = b'h' as u32;
    const E: u32 = b'e' as u32;

    /// The format's published fixture: t + h → 260, 260 + e → 261, so that `the` is 256, 261 before generation.
    fn fixture() -> Vec<u8> {
        bpe(262, &[(260, b"th"), (261, b"the")], &[[TH, HE, 260, 0], [260, E, 261, 1]])
    }

    #[test]
    fn btok_is_one_token_per_byte() {
        let section = numbers(b"BTOK", &[1, 260, 256, 257, 258, 259]);
        assert_eq!(section.len(), 28);
        let spec = read(&section).expect("a tokenizer");
        let tokenizer = Tokenizer::new(&spec).expect("a tokenizer");
        let text = "the\n ½\0é";
        let ids = tokenizer.encode(text, SpecialTokens::AsText).expect("ids");
        assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>());
        assert_eq!(tokenizer.decode(&ids).expect("text"), text);
        assert_eq!((tokenizer.bos(), tokenizer.eos_ids()), (Some(256), &[257][..]));
        assert!(tokenizer.add_bos() && !tokenizer.add_eos());
        // More ids than the section's are unused, and another identity.
        let larger = read(&numbers(b"BTOK", &[1, 300, 256, 257, 258, 259])).expect("a tokenizer");
        assert_eq!(larger.tokens[299].kind, TokenKind::Unused);
        assert_ne!(larger.id(), spec.id());
    }

    #[test]
    fn bpe1_gives_the_published_ids() {
        let spec = read(&fixture()).expect("a tokenizer");
        let tokenizer = Tokenizer::new(&spec).expect("a tokenizer");
        let ids = |text: &str| tokenizer.encode(text, SpecialTokens::AsText).expect("ids");
        assert_eq!([&[256], &ids("the")[..]].concat(), [256, 261]);
        assert_eq!(ids("tthee"), [TH, 261, E]);
        assert_eq!(tokenizer.decode(&ids("tthee th e")).expect("text"), "tthee th e");
    }

    /// Merges run over the whole text: nothing cuts at a space or a digit.
    #[test]
    fn bpe1_merges_across_spaces_and_digits() {
        let (space, one) = (u32::from(b' '), u32::from(b'1'));
        let section = bpe(
            263,
            &[(260, b"e "), (261, b"e 1"), (262, b"\xff\xfe")],
            &[[260, one, 261, 7], [E, space, 260, 3], [255, 254, 262, 9]],
        );
        let tokenizer = Tokenizer::new(&read(&section).expect("one")).expect("one");
        assert_eq!(tokenizer.encode("e 1e ", SpecialTokens::AsText).expect("ids"), [261, 260]);
        assert_eq!(tokenizer.token_bytes(262).expect("bytes"), b"\xff\xfe");
        // Records of bytes and special ids may stand there too.
        let whole: Vec<(u32, Vec<u8>)> = (0..=255u8).map(|b| (u32::from(b), vec![b])).collect();
        let mut whole: Vec<(u32, &[u8])> = whole.iter().map(|(id, b)| (*id, &b[..])).collect();
        whole.extend([(256, &b"<s>"[..]), (260, b"th"), (261, b"the")]);
        let merges = [[TH, HE, 260, 0], [260, E, 261, 1]];
        let listed = read(&bpe(262, &whole, &merges)).expect("a tokenizer");
        assert_eq!(listed.id(), read(&fixture()).expect("a tokenizer").id());
    }

    #[test]
    fn every_rejection_of_the_list_has_its_code() {
        assert_eq!(code(&fixture()), "accepted");
        let with = |at: usize, value: u32| {
            let mut bent = fixture();
            bent[at..at + 4].copy_from_slice(&value.to_le_bytes());
            code(&bent)
        };
        // Version, vocabulary, the four special ids, the two counts.
        assert_eq!(with(4, 2), "tokenizer-section");
        assert_eq!(with(8, 259), "tokenizer-section");
        assert_eq!(with(8, 261), "tokenizer-record-out-of-range");
        // Whatever a section claims, rows back it or it is refused at once.
        let claimed = TokenizerSpec::from_slm1(&fixture(), 263, &Limits::STANDARD).unwrap_err();
        assert_eq!(claimed.code(), "vocabulary-mismatch");
        for at in [12, 16, 20, 24] {
            assert_eq!(with(at, 255), "tokenizer-special-out-of-range");
        }
        for at in [28, 32] {
            assert_eq!(with(at, u32::MAX), "tokenizer-section");
        }
        // A merge fewer leaves bytes; a token fewer makes its record a merge.
        assert_eq!(with(32, 1), "tokenizer-section");
        assert_eq!(with(28, 1), "tokenizer-merge-unknown-token");
        // The first record, at 36: id, length, bytes; the second at 46.
        assert_eq!(with(36, 261), "tokenizer-duplicate-id");
        assert_eq!(with(36, 262), "tokenizer-record-out-of-range");
        assert_eq!(with(36, 65), "tokenizer-bad-byte-token");
        assert_eq!(with(40, 0), "tokenizer-token-length");
        assert_eq!(with(40, u32::MAX), "tokenizer-section");
        // The merges, at 57: left, right, output, rank.
        assert_eq!(with(57, 256), "tokenizer-merge-unknown-token");
        assert_eq!(with(61, 4000), "tokenizer-merge-unknown-token");
        assert_eq!(with(65, 259), "tokenizer-merge-unknown-token");
        assert_eq!(with(65, 261), "tokenizer-merge-output");
        assert_eq!(with(85, 0), "tokenizer-duplicate-rank");
        let again = bpe(262, &[(260, b"th"), (261, b"th")], &[]);
        assert_eq!(code(&again), "tokenizer-duplicate-token");
        let repeated =
            bpe(262, &[(260, b"th"), (261, b"the")], &[[TH, HE, 260, 0], [TH, HE, 260, 1]]);
        assert_eq!(code(&repeated), "tokenizer-duplicate-merge");
        // Lengths.
        let good = fixture();
        for len in 0..good.len() {
            assert_eq!(code(&good[..len]), "tokenizer-section", "{len} bytes");
        }
        assert_eq!(code(&[&good[..], &[0]].concat()), "tokenizer-section");
        let btok = numbers(b"BTOK", &[1, 260, 256, 257, 258, 259]);
        assert_eq!(code(&btok), "accepted");
        assert_eq!(code(&[&btok[..], &[0]].concat()), "tokenizer-section");
        assert_eq!(code(&numbers(b"WORD", &[1])), "tokenizer-unknown-model");
    }

    #[test]
    fn a_changed_byte_is_refused_or_gives_a_whole_document() {
        let limits = Limits::STANDARD;
        let mut section = fixture();
        let (mut accepted, mut refused) = (0, 0);
        for at in 0..section.len() {
            let good = section[at];
            for value in (0..=255).filter(|&value| value != good) {
                section[at] = value;
                match TokenizerSpec::from_slm1(&section, 262, &limits) {
                    Ok(spec) => {
                        let again = TokenizerSpec::from_canonical(&spec.to_canonical(), &limits);
                        assert_eq!(again.as_ref(), Ok(&spec), "byte {at} is {value}");
                        Tokenizer::new(&spec).expect("a checked document compiles");
                        accepted += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            section[at] = good;
        }
        assert!(accepted > 100 && refused > 10_000, "{accepted} accepted, {refused} refused");
    }
}
