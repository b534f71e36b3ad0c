//! Properties, and traps that other tokenizers fell into.

use slm_format::{Coded, Limits};

use super::byte_map::byte_to_char;
use super::*;

fn token(text: &str, kind: TokenKind) -> Token {
    Token { text: text.into(), kind }
}

fn raw(algorithm: Algorithm, tokens: Vec<Token>) -> RawTokenizerSpec {
    RawTokenizerSpec {
        algorithm,
        tokens,
        stripping: vec![],
        bos: None,
        eos: vec![],
        unk: None,
        pad: None,
        add_bos: false,
        add_eos: false,
    }
}

fn compile(raw: RawTokenizerSpec) -> Tokenizer {
    let spec = TokenizerSpec::check(raw, &Limits::STANDARD).expect("agrees");
    Tokenizer::new(&spec).expect("compiles")
}

/// All bytes, then `marked`.
fn bytes_and(pre: PreTokenizer, marked: &[(&str, TokenKind)]) -> RawTokenizerSpec {
    let byte = |byte: u8| token(&byte_to_char(byte).to_string(), TokenKind::Normal);
    let mut tokens: Vec<Token> = (0..=u8::MAX).map(byte).collect();
    tokens.extend(marked.iter().map(|(text, kind)| token(text, *kind)));
    raw(Algorithm::ByteLevelBpe { pre, merges: vec![] }, tokens)
}

/// A SentencePiece vocabulary over three letters with ties in its ranks, and a control token.
fn pieces(add_space_prefix: bool) -> RawTokenizerSpec {
    let texts = ["▁", "a", "b", "c", "ab", "ba", "aa", "▁a", "aba", "abab", "▁ab", "bc", "cc"];
    let mut tokens: Vec<Token> = texts.iter().map(|text| token(text, TokenKind::Normal)).collect();
    tokens.push(token("<s>", TokenKind::Control));
    let ranks = vec![0, 0, 0, 0, 2, 1, 2, 3, 2, 5, 1, 4, 4, 0];
    raw(Algorithm::SentencePieceBpe { ranks, add_space_prefix }, tokens)
}

/// SentencePiece's rule in its plainest form: look at all neighbours, merge the best, again.
fn merged_plainly(spec: &RawTokenizerSpec, text: &str) -> Vec<String> {
    let Algorithm::SentencePieceBpe { ranks, .. } = &spec.algorithm else {
        panic!("no SentencePiece")
    };
    let rank = |piece: &str| {
        let id = spec.tokens.iter().position(|token| token.text == piece)?;
        Some(ranks[id]).filter(|rank| *rank > 0)
    };
    let mut parts: Vec<String> = text.replace(' ', "▁").chars().map(String::from).collect();
    loop {
        let pairs = parts.windows(2).enumerate();
        let ranked = pairs.filter_map(|(at, pair)| Some((rank(&pair.concat())?, at)));
        let Some((_, at)) = ranked.min() else { return parts };
        let right = parts.remove(at + 1);
        parts[at].push_str(&right);
    }
}

#[test]
fn merging_equals_the_plain_rule_on_every_short_text() {
    let spec = pieces(false);
    let tokenizer = compile(spec.clone());
    let text_of = |id: &u32| spec.tokens[usize::try_from(*id).expect("usize")].text.as_str();
    let mut texts = vec![String::new()];
    for _ in 0..7 {
        let longer = texts
            .iter()
            .flat_map(|text| [' ', 'a', 'b', 'c'].map(|letter| format!("{text}{letter}")));
        texts = longer.collect();
        for text in &texts {
            let ids = tokenizer.encode(text, SpecialTokens::Parse).expect("encodes");
            let found: Vec<&str> = ids.iter().map(text_of).collect();
            assert_eq!(found, merged_plainly(&spec, text), "{text:?}");
            assert_eq!(&tokenizer.decode(&ids).expect("decodes"), text);
        }
    }
}

#[test]
fn a_space_before_text_is_added_and_taken_away() {
    let tokenizer = compile(pieces(true));
    assert_eq!(tokenizer.encode("ab", SpecialTokens::Parse), Ok(vec![10]));
    assert_eq!(tokenizer.encode("ab<s>ab", SpecialTokens::Parse), Ok(vec![10, 13, 10]));
    for text in ["", "ab", " ab", "ab<s>ab", "<s> ab", "  "] {
        let ids = tokenizer.encode(text, SpecialTokens::Parse).expect("encodes");
        assert_eq!(tokenizer.decode(&ids).as_deref(), Ok(text));
    }
    // In the middle of an answer a space is a space.
    let mut stream = StreamDecoder::new(&tokenizer, SpecialText::Hide);
    assert_eq!((stream.push(10).as_deref(), stream.push(13).as_deref()), (Ok(" ab"), Ok("")));
}

#[test]
fn an_unknown_character_is_bytes_or_the_unknown_token_or_an_error() {
    let refused = compile(pieces(false)).encode("aX", SpecialTokens::AsText).expect_err("refused");
    assert_eq!(refused.code(), "tokenizer-unencodable");
    let mut spec = pieces(false);
    spec.unk = Some(3);
    assert_eq!(compile(spec).encode("aXYbZ", SpecialTokens::AsText), Ok(vec![1, 3, 2, 3]));
    let byte = |byte: u8| token(&format!("<0x{byte:02X}>"), TokenKind::Byte);
    let mut tokens: Vec<Token> = (0..=u8::MAX).map(byte).collect();
    tokens.push(token("<", TokenKind::Normal));
    let ranks = vec![0; tokens.len()];
    let tokenizer =
        compile(raw(Algorithm::SentencePieceBpe { ranks, add_space_prefix: false }, tokens));
    let text = "<0x0A>€";
    let ids = tokenizer.encode(text, SpecialTokens::Parse).expect("encodes");
    assert_eq!(
        (ids[0], ids.len(), ids.contains(&10)),
        (256, 9, false),
        "a typed <0x0A> is no byte token"
    );
    assert_eq!(tokenizer.decode(&ids).as_deref(), Ok(text));
}

#[test]
fn an_added_token_is_not_read_through_the_byte_map() {
    let tokenizer = compile(bytes_and(PreTokenizer::Gpt2, &[("čč", TokenKind::UserDefined)]));
    let ids = tokenizer.encode("ačč\r", SpecialTokens::AsText).expect("encodes");
    assert_eq!(ids, [97, 256, 13]);
    assert_eq!(tokenizer.decode(&ids).as_deref(), Ok("ačč\r"));
}

#[test]
fn merges_split_on_one_ascii_space_only() {
    assert_eq!(super::gguf::split_merge(0, "\u{a0} \u{a0}"), Ok(("\u{a0}", "\u{a0}")));
    for bad in ["", " ", "a", "a ", " a", "a  b", "a b c", "a\u{a0}b"] {
        let refused = super::gguf::split_merge(7, bad).expect_err("refused");
        assert_eq!(refused.code(), "tokenizer-bad-merge", "{bad:?}");
    }
}

#[test]
fn stripping_tokens_swallow_white_space() {
    let mut spec = bytes_and(PreTokenizer::Gpt2, &[("<m>", TokenKind::Control)]);
    spec.stripping = vec![Stripping { id: 256, left: true, right: true }];
    assert_eq!(
        compile(spec.clone()).encode("a \n<m>  b", SpecialTokens::Parse),
        Ok(vec![97, 256, 98])
    );
    spec.stripping = vec![Stripping { id: 257, left: true, right: true }];
    let refused = TokenizerSpec::check(spec, &Limits::STANDARD).expect_err("refused");
    assert_eq!(refused.code(), "tokenizer-special-out-of-range");
}

#[test]
fn qwen_composes_and_llama_takes_words_whole() {
    let qwen = compile(bytes_and(PreTokenizer::Qwen2, &[]));
    assert_eq!(qwen.encode("e\u{301}", SpecialTokens::AsText), Ok(vec![0xC3, 0xA9]));
    // No merge makes `abc`, yet it is a token.
    let whole = |pre| {
        let tokenizer =
            compile(bytes_and(pre, &[("abc", TokenKind::Normal), ("<e>", TokenKind::Control)]));
        tokenizer.encode("abc", SpecialTokens::AsText)
    };
    assert_eq!(whole(PreTokenizer::LlamaBpe), Ok(vec![256]));
    assert_eq!(whole(PreTokenizer::Gpt2), Ok(vec![97, 98, 99]));
}

#[test]
fn a_stream_yields_whole_characters_and_the_same_text() {
    let tokenizer = compile(bytes_and(PreTokenizer::Gpt2, &[("<e>", TokenKind::Control)]));
    let ids: Vec<u32> = "a€🙂".bytes().map(u32::from).chain([256]).collect();
    let mut stream = StreamDecoder::new(&tokenizer, SpecialText::Hide);
    let shown: Vec<String> = ids.iter().map(|&id| stream.push(id).expect("in range")).collect();
    assert_eq!(shown, ["a", "", "", "€", "", "", "", "🙂", ""]);
    assert_eq!(stream.finish(), "");
    // Every sequence of these bytes reads as `from_utf8_lossy` reads it.
    let bytes = [b'a', 0x80, 0xC3, 0xA9, 0xE2, 0x82, 0xF0, 0xFF];
    for code in 0..bytes.len().pow(4) {
        let chosen: Vec<u8> =
            (0..4u32).map(|at| bytes[code / bytes.len().pow(at) % bytes.len()]).collect();
        let ids: Vec<u32> = chosen.iter().map(|&byte| u32::from(byte)).collect();
        assert_eq!(
            tokenizer.decode(&ids).expect("decodes"),
            String::from_utf8_lossy(&chosen),
            "{chosen:x?}"
        );
    }
    assert_eq!(tokenizer.decode(&[257]).expect_err("refused").code(), "tokenizer-id-out-of-range");
    assert_eq!(tokenizer.token_bytes(0xE2), Ok(vec![0xE2]));
}

#[test]
fn long_texts_take_time_in_proportion() {
    // Megabytes without a digit or a space, and of short words: minutes, if anything were quadratic.
    let long = "ab".repeat(1 << 20);
    let ids = compile(pieces(false)).encode(&long, SpecialTokens::Parse).expect("encodes");
    assert_eq!(ids.len(), 1 << 20, "aba, then ba again and again, then b");
    let words = "ab ".repeat(1 << 19);
    let tokenizer = compile(bytes_and(PreTokenizer::Smollm, &[]));
    assert_eq!(tokenizer.encode(&words, SpecialTokens::Parse).expect("encodes").len(), 3 << 19);
}
