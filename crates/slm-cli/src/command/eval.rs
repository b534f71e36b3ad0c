//! `eval ppl`.

use std::path::Path;

use serde_json::json;
use slm_runtime::Session;
use slm_runtime::eval::perplexity;
use slm_runtime::tokenizer::SpecialTokens;

use crate::args::{EngineArgs, ModelArgs};
use crate::error::CliError;
use crate::model::{composition, engine_of, profile};
use crate::world::{World, read_text};

/// Perplexity of a text file.
pub(crate) fn ppl(
    world: &World,
    file: &Path,
    ctx: usize,
    limit: Option<usize>,
    model: &ModelArgs,
    engine: &EngineArgs,
) -> Result<(), CliError> {
    let text = read_text(file)?;
    let built = engine_of(engine)?;
    let composition = composition(world, model, &built)?;
    let tokenizer = composition.base().tokenizer()?;
    let mut ids = tokenizer.encode(&text, SpecialTokens::AsText)?;
    ids.truncate(limit.unwrap_or(usize::MAX));
    let bos = if tokenizer.add_bos() { tokenizer.bos() } else { None };
    let mut session = Session::new(composition.clone(), profile(engine), built)?;
    let progress = world.output.progress(ids.len().div_ceil(ctx.max(1)) as u64, "windows");
    let result =
        perplexity(&mut session, &ids, ctx, bos, engine.chunk, &mut |_, _| progress.inc(1))?;
    progress.finish_and_clear();
    let object = json!({
        "perplexity": result.perplexity,
        "low": result.low,
        "high": result.high,
        "tokens": result.tokens,
        "ctx": ctx,
        "composition": composition.id(),
        "execution": session.execution_id(),
        "kernels": session.kernels(),
    });
    let lines = [format!(
        "perplexity {:.4} ({:.4} to {:.4}, 95 %) over {} tokens in windows of {ctx}",
        result.perplexity, result.low, result.high, result.tokens
    )];
    world.output.result(object, &lines);
    Ok(())
}
