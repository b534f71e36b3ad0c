//! `tokenize` and `detokenize`.

use std::path::PathBuf;

use serde_json::json;
use slm_runtime::tokenizer::SpecialTokens;

use crate::args::ModelArgs;
use crate::error::CliError;
use crate::model::{composition, engine};
use crate::world::{World, read_text};

/// Text to ids: special tokens are parsed, no BOS is added.
pub(crate) fn tokenize(
    world: &World,
    text: Option<String>,
    file: Option<PathBuf>,
    model: &ModelArgs,
) -> Result<(), CliError> {
    let composition = composition(world, model, &engine(None, None)?)?;
    let text = match (text, file) {
        (Some(text), _) => text,
        (None, Some(path)) => read_text(&path)?,
        (None, None) => return Err(CliError::Missing { option: "TEXT or --file" }),
    };
    let tokenizer = composition.base().tokenizer()?;
    let ids = tokenizer.encode(&text, SpecialTokens::Parse)?;
    let mut pieces = Vec::new();
    for &id in &ids {
        pieces.push(String::from_utf8_lossy(&tokenizer.token_bytes(id)?).into_owned());
    }
    let lines: Vec<String> =
        ids.iter().zip(&pieces).map(|(id, piece)| format!("{id:>8}  {piece:?}")).collect();
    world.output.result(
        json!({ "ids": ids, "pieces": pieces, "tokenizer": composition.base().tokenizer_id() }),
        &lines,
    );
    Ok(())
}

/// Ids to text.
pub(crate) fn detokenize(world: &World, ids: &[String], model: &ModelArgs) -> Result<(), CliError> {
    let mut parsed = Vec::new();
    for part in ids
        .iter()
        .flat_map(|ids| ids.split(|c: char| c == ',' || c.is_whitespace()))
        .filter(|s| !s.is_empty())
    {
        parsed.push(part.parse::<u32>().map_err(|error| CliError::Value {
            option: "IDS",
            value: part.to_owned(),
            reason: error.to_string(),
        })?);
    }
    let composition = composition(world, model, &engine(None, None)?)?;
    if parsed.is_empty() {
        return Err(CliError::Missing { option: "IDS" });
    }
    let text = composition.base().tokenizer()?.decode(&parsed)?;
    world.output.result(json!({ "text": text, "ids": parsed }), std::slice::from_ref(&text));
    Ok(())
}
