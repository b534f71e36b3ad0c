//! `eval ppl`.

use std::path::Path;

use serde_json::json;
use slm_runtime::Session;
use slm_runtime::budget::Workload;
use slm_runtime::eval::{perplexity, workload};
use slm_runtime::tokenizer::SpecialTokens;

use crate::args::{EngineArgs, ModelArgs};
use crate::command::record::{self, Measured};
use crate::error::CliError;
use crate::model::{check_budget, composition, engine_of, profile};
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
    // What is recorded names the manifest that was opened, whatever another process makes active meanwhile.
    let (composition, recorder) = match record {
        false => (composition(world, model, &built)?, None),
        true => {
            let runtime = world.runtime(built.clone())?;
            let manifest = record::manifest(&runtime, model.composition.as_deref())?;
            (runtime.composition_of(&manifest)?, Some((runtime, manifest)))
        }
    };
    let tokenizer = composition.base().tokenizer()?;
    let mut ids = tokenizer.encode(&text, SpecialTokens::AsText)?;
    ids.truncate(limit.unwrap_or(usize::MAX));
    let bos = if tokenizer.add_bos() { tokenizer.bos() } else { None };
    let profile = profile(engine);
    let context_length = composition.base().config().context_length;
    let work = workload(ids.len(), ctx, bos.is_some(), engine.chunk);
    let positions = work.positions.clamp(1, context_length);
    let work = Workload { positions, chunk: work.chunk.max(1), ..work };
    check_budget(world, model, &composition, &built, &profile, work)?;
    let mut session = Session::new(composition.clone(), profile, built.clone())?;
    let progress = world.output.progress(ids.len().div_ceil(ctx.max(1)) as u64, "windows");
    let result =
        perplexity(&mut session, &ids, ctx, bos, engine.chunk, &mut |_, _| progress.inc(1))?;
    progress.finish_and_clear();
    let recorded = match &recorder {
        None => None,
        Some((runtime, manifest)) => Some(record::perplexity(
            runtime,
            &Measured {
                manifest,
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
