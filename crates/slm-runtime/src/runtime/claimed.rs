//! A tokenizer beside an adapter: what it says of the base's tokens.

use serde_json::Value;

use crate::error::{ActivationError, ModelError, RuntimeError};
use crate::load::Base;

/// Tokens that files beside an adapter name, with their ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimedTokens(Vec<(u64, String)>);

impl ClaimedTokens {
    /// What `tokenizer.json` and `added_tokens.json` name, where they are there.
    ///
    /// # Errors
    /// A file that is no such document.
    pub fn read(
        tokenizer: Option<&[u8]>,
        added_tokens: Option<&[u8]>,
    ) -> Result<ClaimedTokens, RuntimeError> {
        let mut claimed = Vec::new();
        let parse = |file: &'static str, bytes: &[u8]| -> Result<Value, RuntimeError> {
            serde_json::from_slice(bytes)
                .map_err(|_| ModelError::SectionContent { section: file }.into())
        };
        if let Some(bytes) = tokenizer {
            let document = parse("tokenizer.json", bytes)?;
            match &document["model"]["vocab"] {
                Value::Object(vocab) => claimed.extend(by_text(vocab)),
                Value::Array(vocab) => {
                    let texts = vocab.iter().enumerate();
                    claimed.extend(texts.filter_map(|(id, entry)| {
                        Some((id as u64, entry[0].as_str()?.to_owned()))
                    }));
                }
                _ => {}
            }
            let added = document["added_tokens"].as_array().into_iter().flatten();
            claimed.extend(added.filter_map(|token| {
                Some((token["id"].as_u64()?, token["content"].as_str()?.to_owned()))
            }));
        }
        if let Some(bytes) = added_tokens
            && let Value::Object(added) = parse("added_tokens.json", bytes)?
        {
            claimed.extend(by_text(&added));
        }
        Ok(ClaimedTokens(claimed))
    }

    /// Refuses tokens that are not the base's: an adapter made with them would be given other words than it learned.
    ///
    /// # Errors
    /// `tokenizer-mismatch` with the first token that differs.
    pub fn check(&self, base: &Base) -> Result<(), RuntimeError> {
        let tokens = &base.tokenizer_spec().tokens;
        for (id, text) in &self.0 {
            let known = usize::try_from(*id).ok().and_then(|id| tokens.get(id));
            if known.is_none_or(|token| token.text != *text) {
                let excerpt = |text: &str| text.chars().take(80).collect::<String>();
                return Err(ActivationError::AdapterTokens {
                    id: *id,
                    claimed: excerpt(text),
                    found: known.map(|token| excerpt(&token.text)),
                }
                .into());
            }
        }
        Ok(())
    }
}

fn by_text(entries: &serde_json::Map<String, Value>) -> impl Iterator<Item = (u64, String)> + '_ {
    entries.iter().filter_map(|(text, id)| Some((id.as_u64()?, text.clone())))
}
