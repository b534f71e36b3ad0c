//! `logits`: the audit command.

use serde_json::json;
use slm_format::safetensors::{Dtype, TensorSource};
use slm_runtime::Session;
use slm_runtime::audit::{LogitsHasher, hex};
use slm_runtime::budget::Workload;

use crate::args::LogitsArgs;
use crate::command::run::text_ids;
use crate::error::CliError;
use crate::model::{check_budget, composition, engine_of, profile};
use crate::outfile::OutFile;
use crate::world::World;

/// Computes every position's logits and prints their hashes.
pub(crate) fn logits(world: &World, args: LogitsArgs) -> Result<(), CliError> {
    let engine = engine_of(&args.engine)?;
    let composition = composition(world, &args.model, &engine)?;
    let tokens = match (args.tokens, args.text) {
        (Some(tokens), _) => tokens,
        (None, Some(text)) => text_ids(&composition, &text)?,
        (None, None) => return Err(CliError::Missing { option: "--text or --tokens" }),
    };
    let profile = profile(&args.engine);
    let context_length = composition.base().config().context_length;
    let work = Workload {
        positions: u32::try_from(tokens.len()).unwrap_or(u32::MAX).clamp(1, context_length),
        chunk: args.engine.chunk.min(tokens.len().max(1)),
        all_logits: true,
    };
    check_budget(world, &args.model, &composition, &engine, &profile, work)?;
    let mut session = Session::new(composition.clone(), profile, engine)?;
    let out = args.out.as_deref().map(OutFile::create).transpose()?;
    let mut hasher = LogitsHasher::new();
    let mut last = Vec::new();
    let mut kept: Vec<u8> = Vec::new();
    let progress = world.output.progress(tokens.len() as u64, "positions");
    session.advance_all(&tokens, args.engine.chunk, &mut |_, logits| {
        hasher.update(logits);
        if out.is_some() {
            kept.extend_from_slice(hasher.last_bytes());
        }
        last.clear();
        last.extend_from_slice(logits);
        progress.inc(1);
    })?;
    progress.finish_and_clear();
    if let Some(out) = out {
        let shape = [tokens.len() as u64, session.vocab_size() as u64];
        let tensor = TensorSource { name: "logits", dtype: Dtype::F32, shape: &shape, data: &kept };
        out.write(&mut |mut out| {
            slm_format::safetensors::write(&mut out, &[tensor], &Default::default())?;
            Ok(())
        })?;
    }
    let digest = hasher.finish();
    let (logits_blake3, all_blake3) = (hex(digest.last), hex(digest.all));
    let top = top(&last, args.top);
    let object = json!({
        "composition": composition.id(),
        "execution": session.execution_id(),
        "base": composition.base_id(),
        "tokens": tokens,
        "logits_blake3": logits_blake3,
        "all_blake3": all_blake3,
        "top": top.iter().map(|&(id, logit)| json!({ "id": id, "logit": logit })).collect::<Vec<_>>(),
        "kernels": session.kernels(),
    });
    let mut lines = vec![
        format!("composition   {}", composition.id()),
        format!("execution     {}", session.execution_id()),
        format!(
            "tokens        {}",
            tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
        ),
        format!("logits_blake3 {logits_blake3}"),
        format!("all_blake3    {all_blake3}"),
    ];
    lines.extend(top.iter().map(|(id, logit)| format!("{id:>8}  {logit}")));
    world.output.result(object, &lines);
    Ok(())
}

/// The `n` largest, the lower id first among equals.
fn top(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> =
        logits.iter().enumerate().map(|(id, &logit)| (id as u32, logit)).collect();
    all.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(n);
    all
}
