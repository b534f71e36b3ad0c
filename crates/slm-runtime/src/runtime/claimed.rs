//! A tokenizer beside an adapter: what it says of the base's tokens, and of how text becomes them.

use serde_json::{Map, Value};
use slm_format::Limits;

use crate::error::{ActivationError, ModelError, RuntimeError};
use crate::load::Base;
use crate::tokenizer::{Algorithm, SPACE_MARK, Token, TokenKind, TokenizerError, TokenizerSpec};

/// What files beside an adapter say of its tokenizer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimedTokens {
    /// The tokenizer, where `tokenizer.json` is there.
    tokenizer: Option<TokenizerSpec>,
    /// Tokens of `added_tokens.json` and of the configuration, with their ids.
    added: Vec<(u64, String)>,
}

impl ClaimedTokens {
    /// What `tokenizer.json`, `added_tokens.json` and `tokenizer_config.json` (its `added_tokens_decoder`) say, where they are there.
    ///
    /// # Errors
    /// A file that is no such document; `tokenizer-mismatch` where the tokenizer is none that a base here could have: its rules are not
    /// carried out by any.
    pub fn read(
        tokenizer: Option<&[u8]>,
        added_tokens: Option<&[u8]>,
        tokenizer_config: Option<&[u8]>,
    ) -> Result<ClaimedTokens, RuntimeError> {
        let read = |bytes| TokenizerSpec::from_hf(bytes, None, None, &Limits::STANDARD);
        let tokenizer = tokenizer.map(read).transpose().map_err(|error| match error {
            TokenizerError::Unsupported { .. }
            | TokenizerError::UnknownModel { .. }
            | TokenizerError::UnknownPre { .. } => {
                RuntimeError::from(ActivationError::AdapterTokenizerRules(Box::new(error)))
            }
            error => error.into(),
        })?;
        let mut added = Vec::new();
        if let Some(bytes) = added_tokens {
            let file = "added_tokens.json";
            for (text, id) in object(file, bytes)? {
                added.push((id.as_u64().ok_or_else(|| content(file))?, text));
            }
        }
        if let Some(bytes) = tokenizer_config {
            let file = "tokenizer_config.json";
            if let Some(Value::Object(decoder)) = object(file, bytes)?.get("added_tokens_decoder") {
                for (id, token) in decoder {
                    let text = token.get("content").and_then(Value::as_str);
                    let both = id.parse().ok().zip(text).ok_or_else(|| content(file))?;
                    added.push((both.0, both.1.to_owned()));
                }
            }
        }
        Ok(ClaimedTokens { tokenizer, added })
    }

    /// Refuses a tokenizer that is not the base's: an adapter made with it would be given other words than it learned. Tokens, the rules that
    /// cut text, merges, and which tokens swallow white space are compared; which tokens begin and end a text is not, for the base's own
    /// are used. A base may have more tokens that nothing makes.
    ///
    /// # Errors
    /// `tokenizer-mismatch` with the first thing that differs.
    pub fn check(&self, base: &Base) -> Result<(), RuntimeError> {
        Ok(self.compare(base.tokenizer_spec())?)
    }

    fn compare(&self, base: &TokenizerSpec) -> Result<(), ActivationError> {
        for (id, text) in &self.added {
            let known = usize::try_from(*id).ok().and_then(|id| base.tokens.get(id));
            // Runs of spaces are written with marks by those that do not look for them in raw text.
            let spaced = text.replace(SPACE_MARK, " ");
            if known.is_none_or(|token| token.text != *text && token.text != spaced) {
                return Err(other_token(*id, Some(text), known));
            }
        }
        self.tokenizer.as_ref().map_or(Ok(()), |own| same_tokens(own, base))
    }
}

/// Whether text becomes the same ids.
fn same_tokens(own: &TokenizerSpec, base: &TokenizerSpec) -> Result<(), ActivationError> {
    let most = own.tokens.len().max(base.tokens.len());
    for id in 0..most {
        let (claimed, known) = (own.tokens.get(id), base.tokens.get(id));
        match (claimed, known) {
            // A table of embeddings is filled up to a round number of rows.
            (None, Some(token)) if token.kind == TokenKind::Unused => {}
            (Some(a), Some(b)) if a.text == b.text => {
                if way(a.kind) != way(b.kind) {
                    let (claimed, found) = (format!("{:?}", a.kind), format!("{:?}", b.kind));
                    return Err(differs("kind of token", id as u64, claimed, found));
                }
            }
            (claimed, known) => {
                return Err(other_token(id as u64, claimed.map(|token| &token.text), known));
            }
        }
    }
    match (&own.algorithm, &base.algorithm) {
        (
            Algorithm::ByteLevelBpe { pre, merges },
            Algorithm::ByteLevelBpe { pre: base_pre, merges: base_merges },
        ) => {
            if pre != base_pre {
                let (claimed, found) = (format!("{pre:?}"), format!("{base_pre:?}"));
                return Err(differs("rule that cuts text", 0, claimed, found));
            }
            same_list("merge", merges, base_merges)?;
        }
        (
            Algorithm::SentencePieceBpe { ranks, add_space_prefix },
            Algorithm::SentencePieceBpe { ranks: base_ranks, add_space_prefix: base_prefix },
        ) => {
            if add_space_prefix != base_prefix {
                let (claimed, found) = (add_space_prefix.to_string(), base_prefix.to_string());
                return Err(differs("space before text", 0, claimed, found));
            }
            // Further tokens of the base are made by nothing, so they have no rank.
            same_list("rank of token", ranks, base_ranks.get(..ranks.len()).unwrap_or(base_ranks))?;
            // Text that no token covers becomes it.
            if own.unk.is_some() && own.unk != base.unk {
                let (claimed, found) = (format!("{:?}", own.unk), format!("{:?}", base.unk));
                return Err(differs("unknown token", 0, claimed, found));
            }
        }
        (own, base) => {
            let name = |algorithm: &Algorithm| match algorithm {
                Algorithm::ByteLevelBpe { .. } => "bytes".to_owned(),
                Algorithm::SentencePieceBpe { .. } => "characters".to_owned(),
            };
            return Err(differs("unit of merging", 0, name(own), name(base)));
        }
    }
    same_list("token that swallows white space", &own.stripping, &base.stripping)
}

/// How text becomes a token of a kind. Control and user-defined tokens are both looked for whole; writers tell them apart as they like.
fn way(kind: TokenKind) -> TokenKind {
    if kind == TokenKind::UserDefined { TokenKind::Control } else { kind }
}

fn same_list<T: PartialEq + core::fmt::Debug>(
    part: &'static str,
    own: &[T],
    base: &[T],
) -> Result<(), ActivationError> {
    let most = own.len().max(base.len());
    let shown = |entry: Option<&T>| entry.map_or("none".to_owned(), |entry| format!("{entry:?}"));
    match (0..most).find(|&at| own.get(at) != base.get(at)) {
        None => Ok(()),
        Some(at) => Err(differs(part, at as u64, shown(own.get(at)), shown(base.get(at)))),
    }
}

fn other_token(id: u64, claimed: Option<&String>, known: Option<&Token>) -> ActivationError {
    let excerpt = |text: &String| text.chars().take(80).collect::<String>();
    let found = known.map(|token| excerpt(&token.text));
    ActivationError::AdapterTokens { id, claimed: claimed.map(excerpt), found }
}

fn differs(part: &'static str, at: u64, claimed: String, found: String) -> ActivationError {
    ActivationError::AdapterTokenizer { part, at, claimed, found }
}

fn object(file: &'static str, bytes: &[u8]) -> Result<Map<String, Value>, ModelError> {
    serde_json::from_slice(bytes).map_err(|_| content(file))
}

fn content(section: &'static str) -> ModelError {
    ModelError::SectionContent { section }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use slm_format::Coded;
    use slm_format::gguf::Gguf;

    use super::*;

    const TINY: &[u8] = include_bytes!("../../tests/data/tokenizer/tiny/tokenizer.json");

    /// A tokenizer of characters in the form that Llama 2 and Gemma have.
    fn of_characters() -> Value {
        json!({
            "added_tokens": [
                { "id": 0, "content": "<unk>", "special": true },
                { "id": 8, "content": "▁▁", "special": false },
            ],
            "normalizer": { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
            "model": {
                "type": "BPE", "unk_token": "<unk>", "byte_fallback": true,
                "vocab": {
                    "<unk>": 0, "<0x0A>": 1, "▁": 2, "a": 3, "b": 4, "ab": 5, "▁a": 6, "▁ab": 7, "▁▁": 8,
                },
                "merges": ["a b", "▁ a", "▁ ab", "▁a b"],
            },
        })
    }

    fn spec(document: &[u8]) -> TokenizerSpec {
        TokenizerSpec::from_hf(document, None, None, &Limits::STANDARD).expect("a tokenizer")
    }

    fn verdict(own: Option<&[u8]>, added: Option<&[u8]>, base: &TokenizerSpec) -> String {
        let checked = ClaimedTokens::read(own, added, None)
            .and_then(|claimed| claimed.compare(base).map_err(RuntimeError::from));
        checked.map_or_else(|error| format!("{}: {error}", error.code()), |()| "accepted".into())
    }

    /// What is said of the tiny tokenizer with one thing changed, beside the tiny tokenizer as the base's.
    fn changed(change: impl Fn(&mut Value)) -> String {
        let mut document: Value = serde_json::from_slice(TINY).expect("JSON");
        change(&mut document);
        verdict(Some(document.to_string().as_bytes()), None, &spec(TINY))
    }

    fn merges(document: &mut Value) -> &mut Vec<Value> {
        document["model"]["merges"].as_array_mut().expect("merges")
    }

    #[test]
    fn one_tokenizer_however_it_is_written_is_accepted() {
        assert_eq!(changed(|_| {}), "accepted");
        let as_lines = |document: &mut Value| {
            for merge in merges(document) {
                *merge = json!(format!("{} {}", merge[0].as_str()?, merge[1].as_str()?));
            }
            Some(())
        };
        assert_eq!(changed(|d| as_lines(d).expect("pairs")), "accepted");
        // What is left out is what stands there, and what does not change ids.
        let strip_defaults = |document: &mut Value| {
            let root = document.as_object_mut().expect("an object");
            for field in ["version", "truncation", "padding", "normalizer", "decoder"] {
                root.remove(field);
            }
            let model = root.get_mut("model").and_then(Value::as_object_mut).expect("an object");
            model.retain(|field, _| ["vocab", "merges"].contains(&field.as_str()));
            root["pre_tokenizer"] = json!({ "type": "ByteLevel", "add_prefix_space": false });
            let token = root["added_tokens"][0].as_object_mut().expect("an object");
            token.retain(|field, _| ["id", "content", "special"].contains(&field.as_str()));
        };
        assert_eq!(changed(strip_defaults), "accepted");
        let sequence = |d: &mut Value| {
            d["pre_tokenizer"] =
                json!({ "type": "Sequence", "pretokenizers": [d["pre_tokenizer"].clone()] });
            d["normalizer"] = json!({ "type": "Sequence", "normalizers": [] });
        };
        assert_eq!(changed(sequence), "accepted");
        assert_eq!(changed(|d| d["added_tokens"][0]["special"] = json!(false)), "accepted");
        assert_eq!(changed(|d| d["truncation"] = json!({ "max_length": 8 })), "accepted");
        // The same tokenizer of a GGUF file, which says less of it.
        let file = Gguf::parse(slm_golden::TINY_Q8_0, &Limits::STANDARD).expect("a file");
        let gguf = TokenizerSpec::from_gguf(file.metadata(), &Limits::STANDARD).expect("tokens");
        assert_eq!(verdict(Some(TINY), None, &gguf), "accepted");
        // Rows that fill up the base's table.
        let mut filled = (*spec(TINY)).clone();
        filled.tokens.push(Token { text: "[PAD1024]".into(), kind: TokenKind::Unused });
        let filled = TokenizerSpec::check(filled, &Limits::STANDARD).expect("a tokenizer");
        assert_eq!(verdict(Some(TINY), None, &filled), "accepted");
    }

    #[test]
    fn another_tokenizer_is_refused_whatever_differs() {
        let refused = |said: String, part: &str| {
            assert!(said.starts_with("tokenizer-mismatch: ") && said.contains(part), "{said}");
        };
        refused(changed(|d| merges(d).swap(0, 1)), "merge 0");
        refused(changed(|d| drop(merges(d).pop())), "none");
        refused(changed(|d| merges(d).clear()), "merge 0");
        for normalizer in ["Lowercase", "NFC", "NFKC"] {
            refused(changed(|d| d["normalizer"] = json!({ "type": normalizer })), "normalizer");
        }
        let digits = json!({ "type": "Sequence", "pretokenizers": [
            { "type": "Digits", "individual_digits": true },
            { "type": "ByteLevel", "add_prefix_space": false, "use_regex": true },
        ] });
        refused(changed(|d| d["pre_tokenizer"] = digits.clone()), "rule that cuts text");
        refused(changed(|d| d["pre_tokenizer"]["add_prefix_space"] = json!(true)), "pre");
        refused(changed(|d| d["model"]["ignore_merges"] = json!(true)), "ignore_merges");
        refused(changed(|d| d["model"]["type"] = json!("Unigram")), "Unigram");
        for (flag, part) in [("lstrip", "white"), ("rstrip", "white"), ("single_word", "single")] {
            refused(changed(|d| d["added_tokens"][0][flag] = json!(true)), part);
        }
        // Matched whole by one, merged by the other.
        refused(changed(|d| d["added_tokens"] = json!([])), "kind of token");
        let added = |id: u64, text: &str| {
            changed(|d| {
                let list = d["added_tokens"].as_array_mut().expect("a list");
                list.push(json!({ "id": id, "content": text, "special": true }));
            })
        };
        refused(added(1024, "<new>"), "1024");
        let other = |d: &mut Value| {
            d["added_tokens"][0]["content"] = json!("<other>");
            let vocab = d["model"]["vocab"].as_object_mut().expect("a vocabulary");
            vocab.remove("<|endoftext|>");
        };
        refused(changed(other), "<other>");
        // A document that cannot be is said to be none.
        let twice = changed(|d| d["added_tokens"][0]["content"] = json!("<other>"));
        assert!(twice.starts_with("tokenizer-duplicate-id"), "{twice}");
    }

    #[test]
    fn a_tokenizer_of_characters_is_compared_by_its_ranks_and_spaces() {
        let base = spec(of_characters().to_string().as_bytes());
        let said = |change: &dyn Fn(&mut Value)| {
            let mut document = of_characters();
            change(&mut document);
            verdict(Some(document.to_string().as_bytes()), None, &base)
        };
        let refused = |said: String, part: &str| {
            assert!(said.starts_with("tokenizer-mismatch: ") && said.contains(part), "{said}");
        };
        assert_eq!(said(&|_| {}), "accepted");
        // Both splits of a token stand in a row in either order: the rank is the token's.
        assert_eq!(said(&|d| merges(d).swap(2, 3)), "accepted");
        assert_eq!(said(&|d| d["model"]["unk_token"] = Value::Null), "accepted");
        let metaspace = json!({
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": false,
        });
        let by_metaspace = said(&|d| {
            d["normalizer"] = Value::Null;
            d["pre_tokenizer"] = metaspace.clone();
        });
        assert_eq!(by_metaspace, "accepted");
        assert_eq!(verdict(None, Some("{\"▁▁\": 8}".as_bytes()), &base), "accepted");

        refused(said(&|d| merges(d).swap(0, 1)), "rank of token");
        let prepend = json!({ "type": "Prepend", "prepend": "▁" });
        refused(
            said(&|d| {
                let rules = json!([prepend, d["normalizer"]]);
                d["normalizer"] = json!({ "type": "Sequence", "normalizers": rules });
            }),
            "space before text",
        );
        refused(said(&|d| d["model"]["unk_token"] = json!("▁▁")), "▁▁");
        refused(verdict(Some(TINY), None, &base), "id 0");
    }

    #[test]
    fn added_tokens_are_read_of_both_files_and_compared() {
        let base = spec(TINY);
        let of_config = |config: &[u8]| {
            ClaimedTokens::read(None, None, Some(config))
                .and_then(|claimed| claimed.compare(&base).map_err(RuntimeError::from))
                .map_err(|error| error.code())
        };
        let added = |document: &str| verdict(None, Some(document.as_bytes()), &base);
        assert_eq!(added(r#"{"<|endoftext|>": 0}"#), "accepted");
        assert!(added(r#"{"<|endoftext|>": 1}"#).starts_with("tokenizer-mismatch"));
        assert!(added(r#"{"<new>": 1024}"#).starts_with("tokenizer-mismatch"));
        assert_eq!(of_config(b"{}"), Ok(()));
        let decoder = |id: &str, text: &str| {
            let token = json!({ "content": text });
            json!({ "added_tokens_decoder": { id: token } }).to_string().into_bytes()
        };
        assert_eq!(of_config(&decoder("0", "<|endoftext|>")), Ok(()));
        assert_eq!(of_config(&decoder("1024", "<new>")), Err("tokenizer-mismatch"));
        assert_eq!(of_config(&decoder("x", "<new>")), Err("section-content"));

        let bad = |tokenizer: Option<&[u8]>, added: Option<&[u8]>| {
            ClaimedTokens::read(tokenizer, added, None).map_err(|error| error.code())
        };
        assert_eq!(bad(Some(b"\x80\x02"), None), Err("tokenizer-bad-json"));
        assert_eq!(bad(Some(b"{}"), None), Err("tokenizer-bad-json"));
        assert_eq!(bad(None, Some(b"[]")), Err("section-content"));
        assert_eq!(bad(None, Some(br#"{"<new>": "5"}"#)), Err("section-content"));
        assert_eq!(bad(None, None), Ok(ClaimedTokens::default()));
    }
}
