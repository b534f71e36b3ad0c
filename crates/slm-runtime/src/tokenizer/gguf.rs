//! The canonical document from GGUF metadata.

use core::cmp::Reverse;
use std::collections::HashMap;

use slm_format::Limits;
use slm_format::gguf::Metadata;

use super::error::TokenizerError;
use super::pre_tokenizer::PreTokenizer;
use super::spec::{
    Algorithm, RawTokenizerSpec, Token, TokenKind, TokenizerSpec, check_special, dense_ranks,
    excerpt, index, main_first,
};

impl TokenizerSpec {
    /// The tokenizer that a GGUF file's `tokenizer.ggml.*` entries state. What a file leaves out is as in llama.cpp: SentencePiece
    /// vocabularies add a beginning token and a leading space, byte-level ones do neither.
    ///
    /// # Errors
    /// `tokenizer-unknown-model` and `tokenizer-unknown-pre` name what is not known; `tokenizer-special-out-of-range`,
    /// `tokenizer-length-mismatch`, `tokenizer-bad-score`, `tokenizer-bad-merge` and the errors of [`TokenizerSpec::check`].
    pub fn from_gguf(
        metadata: &Metadata<'_>,
        limits: &Limits,
    ) -> Result<TokenizerSpec, TokenizerError> {
        let model = metadata.require_str("tokenizer.ggml.model")?;
        let is_byte_level = match model {
            "gpt2" => true,
            "llama" => false,
            other => return Err(TokenizerError::UnknownModel { found: excerpt(other) }),
        };
        let tokens = read_tokens(metadata, is_byte_level)?;
        let (add_bos_default, algorithm) = if is_byte_level {
            let pre = read_pre(metadata)?;
            let merges = read_merges(metadata, &tokens)?;
            (pre == PreTokenizer::LlamaBpe, Algorithm::ByteLevelBpe { pre, merges })
        } else {
            let ranks = read_ranks(metadata, &tokens)?;
            let add_space_prefix =
                metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
            (true, Algorithm::SentencePieceBpe { ranks, add_space_prefix })
        };
        let vocab_size = tokens.len();
        let special = |field: &'static str| match metadata.u32(field)? {
            // llama.cpp writes 2^32 - 1 for "none".
            None | Some(u32::MAX) => Ok(None),
            Some(id) => {
                check_special(field, u64::from(id), u32::try_from(vocab_size).unwrap_or(u32::MAX))
                    .map(Some)
            }
        };
        let mut eos: Vec<u32> = Vec::new();
        for field in [
            "tokenizer.ggml.eos_token_id",
            "tokenizer.ggml.eot_token_id",
            "tokenizer.ggml.eom_token_id",
        ] {
            eos.extend(special(field)?);
        }
        let bos = special("tokenizer.ggml.bos_token_id")?;
        let add_bos = metadata
            .bool("tokenizer.ggml.add_bos_token")?
            .unwrap_or(add_bos_default && bos.is_some());
        let raw = RawTokenizerSpec {
            algorithm,
            tokens,
            stripping: Vec::new(),
            bos,
            eos: main_first(eos),
            unk: special("tokenizer.ggml.unknown_token_id")?,
            pad: special("tokenizer.ggml.padding_token_id")?,
            add_bos,
            add_eos: metadata.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
        };
        TokenizerSpec::check(raw, limits)
    }
}

/// Splits a merge line on its one ASCII space; parts may hold any other space (U+00A0 stands for a byte in some vocabularies).
pub(crate) fn split_merge(position: u32, line: &str) -> Result<(&str, &str), TokenizerError> {
    match line.split_once(' ') {
        Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
            Ok((left, right))
        }
        _ => Err(TokenizerError::BadMerge { index: position, line: excerpt(line) }),
    }
}

/// Ids of merges given as texts.
pub(crate) fn merge_ids<'a>(
    ids: &HashMap<&str, u32>,
    merges: impl Iterator<Item = Result<(&'a str, &'a str), TokenizerError>>,
) -> Result<Vec<(u32, u32)>, TokenizerError> {
    let mut pairs = Vec::new();
    for (position, merge) in (0u32..).zip(merges) {
        let (left, right) = merge?;
        let id = |part: &str| {
            let missing =
                || TokenizerError::MergeUnknownToken { index: position, token: excerpt(part) };
            ids.get(part).copied().ok_or_else(missing)
        };
        pairs.push((id(left)?, id(right)?));
    }
    Ok(pairs)
}

fn read_tokens(metadata: &Metadata<'_>, is_byte_level: bool) -> Result<Vec<Token>, TokenizerError> {
    let texts = metadata.require_str_array("tokenizer.ggml.tokens")?;
    let types = metadata.i32_array("tokenizer.ggml.token_type")?;
    if let Some(types) = &types {
        check_len("tokenizer.ggml.token_type", types.len(), texts.len())?;
    }
    let mut tokens = Vec::with_capacity(texts.len());
    for (id, &text) in (0u32..).zip(texts) {
        let found = types.as_ref().map_or(1, |types| types[tokens.len()]);
        let kind = match found {
            1 => TokenKind::Normal,
            2 | 3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 if !is_byte_level => TokenKind::Byte,
            6 => TokenKind::Normal,
            _ => return Err(TokenizerError::UnknownTokenType { id, found }),
        };
        tokens.push(Token { text: text.to_owned(), kind });
    }
    Ok(tokens)
}

fn read_pre(metadata: &Metadata<'_>) -> Result<PreTokenizer, TokenizerError> {
    let name = metadata.str("tokenizer.ggml.pre")?.unwrap_or("");
    PreTokenizer::from_gguf_name(name).ok_or_else(|| TokenizerError::UnknownPre {
        found: excerpt(name),
        known: PreTokenizer::KNOWN,
    })
}

/// Merges between known tokens. One whose result is no token is left out: llama.cpp merges the pair and then finds no token for it, so
/// that its parts come out, and Hugging Face refuses such a list.
fn read_merges(
    metadata: &Metadata<'_>,
    tokens: &[Token],
) -> Result<Vec<(u32, u32)>, TokenizerError> {
    let lines = metadata.str_array("tokenizer.ggml.merges")?.unwrap_or(&[]);
    let ids = index(tokens)?;
    let parts = (0u32..).zip(lines).map(|(position, line)| split_merge(position, line));
    let pairs = merge_ids(&ids, parts)?;
    let makes_token = |line: &&str| ids.contains_key(line.replacen(' ', "", 1).as_str());
    Ok(pairs
        .into_iter()
        .zip(lines)
        .filter(|(_, line)| makes_token(line))
        .map(|(pair, _)| pair)
        .collect())
}

fn read_ranks(metadata: &Metadata<'_>, tokens: &[Token]) -> Result<Vec<u32>, TokenizerError> {
    let scores = metadata.require_f32_array("tokenizer.ggml.scores")?;
    check_len("tokenizer.ggml.scores", scores.len(), tokens.len())?;
    for (id, &score) in (0u32..).zip(&scores) {
        if !score.is_finite() {
            return Err(TokenizerError::BadScore { id, score });
        }
    }
    dense_ranks(tokens, &index(tokens)?, |id| {
        let score = scores.get(usize::try_from(id).ok()?)?;
        Some(Reverse(ordered(*score)))
    })
}

/// An integer that orders as finite floats do; both zeros are one.
fn ordered(score: f32) -> i64 {
    let magnitude = i64::from(score.abs().to_bits());
    if score < 0.0 { -magnitude } else { magnitude }
}

fn check_len(field: &'static str, found: usize, expected: usize) -> Result<(), TokenizerError> {
    if found != expected {
        return Err(TokenizerError::LengthMismatch {
            field,
            found: found as u64,
            expected: expected as u64,
        });
    }
    Ok(())
}
