//! `eval ppl`.

use std::path::Path;

use serde_json::json;
use slm_runtime::Session;
use slm_runtime::eval::perplexity;
use slm_runtime::tokenizer::SpecialTokens;

use crate::args::{EngineArgs, ModelArgs};
use crate::command::record::{self, Measured};
use crate::error::CliError;
use crate::model::{composition, engine_of, profile};
use crate::world::{World, read_text};

/// Perplexity of a text file.
pub(crate) fn ppl(
    world: &World,
    file: &Path,
    ctx: usize,
    limit: Option<usize>,
    record: bool,
    model: &ModelArgs,
    engine: &EngineArgs,
) -> Result<(), CliError> {
    if record && model.model.is_some() {
        let reason = "a model that is no store's has no place for a record".to_owned();
        return Err(CliError::Value { option: "--record", value: "--model".to_owned(), reason });
    }
    let text = read_text(file)?;
    let built = engine_of(engine)?;
    let composition = composition(world, model, &built)?;
    let tokenizer = composition.base().tokenizer()?;
    let mut ids = tokenizer.encode(&text, SpecialTokens::AsText)?;
    ids.truncate(limit.unwrap_or(usize::MAX));
    let bos = if tokenizer.add_bos() { tokenizer.bos() } else { None };
    let mut session = Session::new(composition.clone(), profile(engine), built.clone())?;
    let progress = world.output.progress(ids.len().div_ceil(ctx.max(1)) as u64, "windows");
    let result =
        perplexity(&mut session, &ids, ctx, bos, engine.chunk, &mut |_, _| progress.inc(1))?;
    progress.finish_and_clear();
    let recorded = match record {
        false => None,
        true => Some(record::perplexity(
            &world.runtime(built.clone())?,
            &Measured {
                composition: model.composition.as_deref(),
                session: &session,
                threads: built.exec.n_workers(),
                kernel: built.kernels.tier().name(),
                data: text.as_bytes(),
                limit,
                context: ctx,
                add_bos: bos.is_some(),
            },
            &result,
        )?),
    };
    let object = json!({
        "record": recorded,
        "perplexity": result.perplexity,
        "low": result.low,
        "high": result.high,
        "tokens": result.tokens,
        "ctx": ctx,
        "composition": composition.id(),
        "execution": session.execution_id(),
        "kernels": session.kernels(),
    });
    let mut lines = vec![format!(
        "perplexity {:.4} ({:.4} to {:.4}, 95 %) over {} tokens in windows of {ctx}",
        result.perplexity, result.low, result.high, result.tokens
    )];
    lines.extend(recorded.map(|digest| format!("recorded as {digest}")));
    world.output.result(object, &lines);
    Ok(())
}
