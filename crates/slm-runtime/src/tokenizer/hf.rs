//! The canonical document from Hugging Face's `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;
use slm_format::Limits;

use super::error::TokenizerError;
use super::gguf::{merge_ids, split_merge};
use super::pre_tokenizer::PreTokenizer;
use super::spec::{
    Algorithm, RawTokenizerSpec, SPACE_MARK, Stripping, Token, TokenKind, TokenizerSpec, byte_of,
    check_special, dense_ranks, excerpt, index, main_first, splits,
};

/// Highest id that is looked at before the vocabulary is known to have no holes.
const MAX_ID: u64 = 1 << 24;

#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    model: Model,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    dropout: Option<f32>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: HashMap<String, u32>,
    #[serde(default)]
    merges: Vec<Merge>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Line(String),
    Pair(String, String),
}

impl Merge {
    fn parts(&self, position: u32) -> Result<(&str, &str), TokenizerError> {
        match self {
            Merge::Line(line) => split_merge(position, line),
            Merge::Pair(left, right) => Ok((left, right)),
        }
    }
}

impl TokenizerSpec {
    /// The tokenizer of a Hugging Face folder. `tokenizer_config` names the special tokens and whether a beginning token is added;
    /// `generation_config` adds tokens that end a generation.
    ///
    /// Gives the same document as a GGUF made of the same tokenizer, except where a GGUF leaves something out (which tokens swallow
    /// white space, which id is unknown or pads).
    ///
    /// # Errors
    /// `tokenizer-bad-json`; `tokenizer-unknown-model`, `tokenizer-unknown-pre` and `tokenizer-unsupported` name a part that slm does not
    /// carry out exactly; `tokenizer-vocabulary-hole`; and those of [`TokenizerSpec::check`].
    pub fn from_hf(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&[u8]>,
        generation_config: Option<&[u8]>,
        limits: &Limits,
    ) -> Result<TokenizerSpec, TokenizerError> {
        let json: TokenizerJson = parse("tokenizer.json", tokenizer_json, limits)?;
        let config = tokenizer_config
            .map_or(Ok(Value::Null), |bytes| parse("tokenizer_config.json", bytes, limits))?;
        let generation = generation_config
            .map_or(Ok(Value::Null), |bytes| parse("generation_config.json", bytes, limits))?;
        check_model(&json.model)?;
        let byte_level = read_byte_level(&json)?;
        let tokens = read_tokens(&json, byte_level.is_some())?;
        let algorithm = match byte_level {
            Some(pre) => {
                let ids = index(&tokens)?;
                let merges =
                    (0u32..).zip(&json.model.merges).map(|(position, merge)| merge.parts(position));
                Algorithm::ByteLevelBpe { pre, merges: merge_ids(&ids, merges)? }
            }
            None => Algorithm::SentencePieceBpe {
                ranks: read_ranks(&json.model, &tokens)?,
                add_space_prefix: read_space_prefix(&json)?,
            },
        };
        let named = Named { config: &config, tokens: &tokens };
        let bos = named.token("bos_token")?;
        let mut eos: Vec<u32> = named.token("eos_token")?.into_iter().collect();
        eos.extend(generation_eos(&generation, tokens.len())?);
        let unk = match &json.model.unk_token {
            Some(text) => Some(named.id("unk_token", text)?),
            None => named.token("unk_token")?,
        };
        let pad = named.token("pad_token")?;
        let flag = |field: &str| config.get(field).and_then(Value::as_bool);
        let add_bos = flag("add_bos_token")
            .unwrap_or_else(|| template_begins_with(&json.post_processor, bos, &tokens));
        let mut stripping: Vec<Stripping> = json
            .added_tokens
            .iter()
            .filter(|added| added.lstrip || added.rstrip)
            .map(|added| Stripping { id: added.id, left: added.lstrip, right: added.rstrip })
            .collect();
        stripping.sort_unstable_by_key(|strip| strip.id);
        let raw = RawTokenizerSpec {
            algorithm,
            bos,
            eos: main_first(eos),
            unk,
            pad,
            add_bos: add_bos && bos.is_some(),
            add_eos: flag("add_eos_token").unwrap_or(false),
            stripping,
            tokens,
        };
        TokenizerSpec::check(raw, limits)
    }
}

fn parse<'a, T: Deserialize<'a>>(
    document: &'static str,
    bytes: &'a [u8],
    limits: &Limits,
) -> Result<T, TokenizerError> {
    let found = bytes.len() as u64;
    if found > limits.max_header_bytes {
        return Err(TokenizerError::TooLarge {
            field: document,
            found,
            limit: limits.max_header_bytes,
        });
    }
    serde_json::from_slice(bytes)
        .map_err(|error| TokenizerError::Json { document, message: error.to_string() })
}

fn unsupported(
    field: &'static str,
    found: &dyn core::fmt::Debug,
    expected: &'static str,
) -> TokenizerError {
    TokenizerError::Unsupported { field, found: excerpt(&format!("{found:?}")), expected }
}

fn check_model(model: &Model) -> Result<(), TokenizerError> {
    if let Some(found) = model.kind.as_deref().filter(|kind| *kind != "BPE") {
        return Err(TokenizerError::UnknownModel { found: excerpt(found) });
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(unsupported("model.dropout", &model.dropout, "none"));
    }
    for (field, affix) in [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if affix.as_ref().is_some_and(|affix| !affix.is_empty()) {
            return Err(unsupported(field, affix, "none"));
        }
    }
    Ok(())
}

/// The parts of a pre-tokenizer or normalizer: those of a sequence, or itself.
fn parts<'a>(value: &'a Value, list: &str) -> Vec<&'a Value> {
    match (value.get("type").and_then(Value::as_str), value.get(list).and_then(Value::as_array)) {
        (Some("Sequence"), Some(inner)) => inner.iter().collect(),
        _ if value.is_null() => Vec::new(),
        _ => vec![value],
    }
}

fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or("")
}

fn is_set(value: &Value, field: &str, default: bool) -> bool {
    value.get(field).and_then(Value::as_bool).unwrap_or(default)
}

/// The rule of a byte-level tokenizer, or nothing where the tokenizer is a SentencePiece one.
fn read_byte_level(json: &TokenizerJson) -> Result<Option<PreTokenizer>, TokenizerError> {
    let rules = parts(&json.pre_tokenizer, "pretokenizers");
    let Some((&last, first)) = rules.split_last().filter(|(last, _)| kind(last) == "ByteLevel")
    else {
        if json.model.byte_fallback {
            return Ok(None);
        }
        return Err(unknown_pre(&json.pre_tokenizer));
    };
    let uses_regex = is_set(last, "use_regex", true);
    let published = |rule: &Value| {
        let is_isolated = rule.get("behavior").and_then(Value::as_str) == Some("Isolated")
            && !is_set(rule, "invert", false);
        let pattern =
            rule.get("pattern").and_then(|pattern| pattern.get("Regex")).and_then(Value::as_str);
        pattern
            .filter(|_| is_isolated && kind(rule) == "Split")
            .and_then(PreTokenizer::from_pattern)
    };
    let pre = match first {
        [] if uses_regex => Some(PreTokenizer::Gpt2),
        [rule]
            if uses_regex && kind(rule) == "Digits" && is_set(rule, "individual_digits", false) =>
        {
            Some(PreTokenizer::Smollm)
        }
        [rule] if !uses_regex => published(rule),
        _ => None,
    };
    let pre = pre
        .filter(|_| !is_set(last, "add_prefix_space", false))
        .ok_or_else(|| unknown_pre(&json.pre_tokenizer))?;
    let normalizers = parts(&json.normalizer, "normalizers");
    let is_nfc = matches!(normalizers.as_slice(), [only] if kind(only) == "NFC");
    if is_nfc != pre.normalizes_nfc() || (!is_nfc && !normalizers.is_empty()) {
        return Err(unsupported(
            "normalizer",
            &json.normalizer.to_string(),
            "the one that goes with the pre-tokenizer",
        ));
    }
    if json.model.ignore_merges != pre.takes_whole_words() {
        let expected = "true with Llama 3's pre-tokenizer, else false";
        return Err(unsupported("model.ignore_merges", &json.model.ignore_merges, expected));
    }
    Ok(Some(pre))
}

fn unknown_pre(found: &Value) -> TokenizerError {
    TokenizerError::UnknownPre { found: excerpt(&found.to_string()), known: PreTokenizer::KNOWN }
}

/// Whether a SentencePiece tokenizer puts a space before text; refuses normalizers that do anything else than mark spaces.
fn read_space_prefix(json: &TokenizerJson) -> Result<bool, TokenizerError> {
    let (mut prefix, mut marks_spaces) = (false, false);
    for rule in parts(&json.normalizer, "normalizers") {
        let is = |field: &str, text: &str| rule.get(field).and_then(Value::as_str) == Some(text);
        let from_space =
            rule.get("pattern").and_then(|pattern| pattern.get("String")).and_then(Value::as_str)
                == Some(" ");
        match kind(rule) {
            "Prepend" if is("prepend", "▁") && !marks_spaces => prefix = true,
            "Replace" if from_space && is("content", "▁") => marks_spaces = true,
            _ => {
                return Err(unsupported(
                    "normalizer",
                    &rule.to_string(),
                    "Prepend ▁ and Replace of spaces by ▁",
                ));
            }
        }
    }
    for rule in parts(&json.pre_tokenizer, "pretokenizers") {
        let is = |field: &str, text: &str| rule.get(field).and_then(Value::as_str) == Some(text);
        let on_space =
            rule.get("pattern").and_then(|pattern| pattern.get("String")).and_then(Value::as_str)
                == Some(" ");
        match kind(rule) {
            // After the normalizer there is no space left to split at.
            "Split" if on_space && marks_spaces => {}
            "Metaspace"
                if is("replacement", "▁") && !is_set(rule, "split", true) && !marks_spaces =>
            {
                marks_spaces = true;
                prefix = is("prepend_scheme", "always");
                if is("prepend_scheme", "first") {
                    return Err(unsupported(
                        "pre_tokenizer.prepend_scheme",
                        &"first",
                        "always or never",
                    ));
                }
            }
            _ => return Err(unknown_pre(rule)),
        }
    }
    if !marks_spaces {
        return Err(unsupported(
            "normalizer",
            &json.normalizer.to_string(),
            "Replace of spaces by ▁",
        ));
    }
    Ok(prefix)
}

/// The vocabulary by id, added tokens laid over it.
fn read_tokens(json: &TokenizerJson, is_byte_level: bool) -> Result<Vec<Token>, TokenizerError> {
    let mut by_id: Vec<(u32, &str, TokenKind)> = Vec::with_capacity(json.model.vocab.len());
    let added: HashMap<u32, &AddedToken> =
        json.added_tokens.iter().map(|added| (added.id, added)).collect();
    for (text, &id) in &json.model.vocab {
        let is_byte = !is_byte_level && byte_of(text).is_some();
        let kind = if is_byte { TokenKind::Byte } else { TokenKind::Normal };
        match added.get(&id) {
            Some(added) if added.content == *text => {}
            Some(added) => {
                return Err(TokenizerError::DuplicateId {
                    id,
                    first: excerpt(text),
                    second: excerpt(&added.content),
                });
            }
            None => by_id.push((id, text, kind)),
        }
    }
    for added in &json.added_tokens {
        if added.single_word {
            return Err(unsupported("added_tokens.single_word", &added.content, "false"));
        }
        by_id.push((
            added.id,
            &added.content,
            if added.special { TokenKind::Control } else { TokenKind::UserDefined },
        ));
    }
    by_id.sort_unstable_by_key(|row| row.0);
    let highest = by_id.last().map_or(0, |row| row.0);
    if u64::from(highest) > MAX_ID {
        return Err(TokenizerError::TooLarge {
            field: "token id",
            found: u64::from(highest),
            limit: MAX_ID,
        });
    }
    let mut tokens: Vec<Token> = Vec::with_capacity(by_id.len());
    for (expected, &(id, text, kind)) in (0u32..).zip(&by_id) {
        if id < expected {
            return Err(TokenizerError::DuplicateId {
                id,
                first: excerpt(&tokens[tokens.len() - 1].text),
                second: excerpt(text),
            });
        }
        if id > expected {
            return Err(TokenizerError::VocabularyHole { id: expected, highest });
        }
        // SentencePiece's user-defined runs of spaces are written with marks, but are looked for in raw text.
        let is_marked_text = !is_byte_level && kind == TokenKind::UserDefined;
        let text = if is_marked_text { text.replace(SPACE_MARK, " ") } else { text.to_owned() };
        tokens.push(Token { text, kind });
    }
    Ok(tokens)
}

/// Ranks of the tokens that merges make. The list must be what a SentencePiece vocabulary gives: for each token, all of its splits.
fn read_ranks(model: &Model, tokens: &[Token]) -> Result<Vec<u32>, TokenizerError> {
    let ids = index(tokens)?;
    let is_normal = |id: u32| {
        usize::try_from(id)
            .ok()
            .and_then(|id| tokens.get(id))
            .is_some_and(|token| token.kind == TokenKind::Normal)
    };
    let mut first: HashMap<u32, u32> = HashMap::new();
    let (mut last, mut listed) = (None, 0u64);
    for (position, merge) in (0u32..).zip(&model.merges) {
        let (left, right) = merge.parts(position)?;
        let text = [left, right].concat();
        let id = |part: &str| {
            let missing =
                || TokenizerError::MergeUnknownToken { index: position, token: excerpt(part) };
            model.vocab.get(part).copied().ok_or_else(missing)
        };
        let (left, right, made) = (id(left)?, id(right)?, id(&text)?);
        // Merges of user-defined tokens are never reached: those are matched in raw text first.
        if !(is_normal(left) && is_normal(right) && is_normal(made)) {
            continue;
        }
        listed += 1;
        if last != Some(made) && first.insert(made, position).is_some() {
            return Err(unsupported(
                "model.merges",
                &text,
                "all merges that make one token in a row",
            ));
        }
        last = Some(made);
    }
    let ranks = dense_ranks(tokens, &ids, |id| first.get(&id).copied())?;
    let normal = tokens.iter().filter(|token| token.kind == TokenKind::Normal);
    let possible: usize = normal.map(|token| splits(tokens, &ids, &token.text).count()).sum();
    if listed != possible as u64 {
        return Err(unsupported(
            "model.merges",
            &model.merges.len(),
            "every split of every token, as SentencePiece merges",
        ));
    }
    Ok(ranks)
}

/// Looks up tokens that `tokenizer_config.json` names.
struct Named<'a> {
    config: &'a Value,
    tokens: &'a [Token],
}

impl Named<'_> {
    /// The token under `field`, given as its text or as an object with its content.
    fn token(&self, field: &'static str) -> Result<Option<u32>, TokenizerError> {
        let Some(value) = self.config.get(field) else { return Ok(None) };
        let text = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
        text.map(|text| self.id(field, text)).transpose()
    }

    fn id(&self, field: &'static str, text: &str) -> Result<u32, TokenizerError> {
        (0u32..)
            .zip(self.tokens)
            .find(|(_, token)| token.text == text)
            .map(|(id, _)| id)
            .ok_or_else(|| unsupported(field, &text, "a token of the vocabulary"))
    }
}

fn generation_eos(generation: &Value, vocab_size: usize) -> Result<Vec<u32>, TokenizerError> {
    let vocab_size = u32::try_from(vocab_size).unwrap_or(u32::MAX);
    let field = "eos_token_id";
    let one = |value: &Value| {
        let id =
            value.as_u64().ok_or_else(|| unsupported(field, &value.to_string(), "a token id"))?;
        check_special(field, id, vocab_size)
    };
    match generation.get(field) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(one).collect(),
        Some(value) => one(value).map(|id| vec![id]),
    }
}

/// Whether the template for one sequence begins with the beginning token.
fn template_begins_with(post_processor: &Value, bos: Option<u32>, tokens: &[Token]) -> bool {
    let processors = parts(post_processor, "processors");
    let template = processors.iter().find(|processor| kind(processor) == "TemplateProcessing");
    let first = template.and_then(|template| {
        template.get("single")?.get(0)?.get("SpecialToken")?.get("id")?.as_str()
    });
    let bos = bos.and_then(|bos| tokens.get(usize::try_from(bos).ok()?));
    matches!((first, bos), (Some(first), Some(bos)) if bos.text == first)
}
