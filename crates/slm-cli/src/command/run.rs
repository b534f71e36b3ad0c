//! `run`.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use serde_json::json;
use slm_manifest::ExecutionProfile;
use slm_runtime::budget::Workload;
use slm_runtime::chat::ChatMessage;
use slm_runtime::generate::{GenerateOptions, generate};
use slm_runtime::sample::Sampling;
use slm_runtime::tokenizer::{SpecialText, SpecialTokens, StreamDecoder, Tokenizer};
use slm_runtime::{Composition, Session};

use crate::args::{RunArgs, SamplingArgs};
use crate::command::compose::weight_of;
use crate::error::CliError;
use crate::model::{check_budget, composition, engine_of, profile};
use crate::world::{World, now, read_bounded, text};

/// Generates text, streaming it.
pub(crate) fn run(world: &World, args: RunArgs) -> Result<(), CliError> {
    sampling(&args.sampling).check()?;
    let started = Instant::now();
    let engine = engine_of(&args.engine)?;
    let profile: ExecutionProfile = profile(&args.engine);
    let composition = composition(world, &args.model, &engine)?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    if args.system.is_some() && !args.chat {
        return Err(CliError::Missing { option: "--chat" });
    }
    let prompt = match args.prompt {
        Some(prompt) => prompt,
        None => read_stdin()?,
    };
    let prompt_ids = if args.chat {
        let mut messages = Vec::new();
        if let Some(system) = args.system {
            messages.push(ChatMessage::new("system", system));
        }
        messages.push(ChatMessage::new("user", prompt));
        chat_ids(&composition, &messages)?
    } else {
        text_ids(&composition, &prompt)?
    };
    let positions = prompt_ids.len().saturating_add(args.sampling.max_tokens);
    let context_length = composition.base().config().context_length;
    let work = Workload {
        positions: u32::try_from(positions).unwrap_or(u32::MAX).min(context_length),
        chunk: args.engine.chunk,
        all_logits: false,
    };
    check_budget(world, &args.model, &composition, &engine, &profile, work)?;
    let mut session = Session::new(composition.clone(), profile, engine.clone())?;
    let tokenizer = composition.base().tokenizer()?;
    let options = options(&args.sampling, args.engine.chunk, tokenizer)?;
    let mut decoder = StreamDecoder::new(tokenizer, SpecialText::Hide);
    let mut text = String::new();
    let mut emit = |piece: &str| {
        if !world.output.json {
            world.output.print(piece);
        }
        text.push_str(piece);
    };
    let prefill_started = Instant::now();
    let mut prefill_done = None;
    let (tokens, stop) = generate(
        &mut session,
        engine.kernels,
        &[],
        &prompt_ids,
        &options,
        &mut || prefill_done = Some(Instant::now()),
        &mut |token| {
            emit(&decoder.push(token).expect("BUG: a chosen token is outside the vocabulary"));
            ControlFlow::Continue(())
        },
    )?;
    emit(&decoder.finish());
    let prefill_done = prefill_done.unwrap_or(prefill_started);
    let prompt_s = (prefill_done - prefill_started).as_secs_f64();
    let decode_s = prefill_done.elapsed().as_secs_f64();
    // The first token comes from the prompt's own pass.
    let decoded = tokens.len().saturating_sub(1);
    let stats = json!({
        "load_ms": load_ms,
        "prompt_tokens": prompt_ids.len(),
        "prompt_tokens_per_s": rate(prompt_ids.len(), prompt_s),
        "decode_tokens": decoded,
        "decode_tokens_per_s": rate(decoded, decode_s),
        "kv_bytes": session.kv_bytes(),
        "peak_rss_bytes": super::bench::peak_rss_bytes(),
    });
    if world.output.json {
        let object = json!({
            "text": text,
            "tokens": tokens,
            "prompt_tokens": prompt_ids,
            "composition": composition.id(),
            "execution": session.execution_id(),
            "base": composition.base_id(),
            "adapters": adapters(&composition),
            "stop": stop.name(),
            "stats": stats,
            "kernels": session.kernels(),
        });
        world.output.result(object, &[]);
    } else {
        world.output.print("\n");
        if args.stats {
            world.output.note(&format!(
                "composition {}\nexecution {}\nprompt {} tokens at {:.1}/s, {} decoded at {:.1}/s, loaded in {:.0} ms, {}",
                composition.id(),
                session.execution_id(),
                prompt_ids.len(),
                rate(prompt_ids.len(), prompt_s),
                decoded,
                rate(decoded, decode_s),
                load_ms,
                stop.name(),
            ));
        }
    }
    Ok(())
}

/// The stack of a composition, for a program.
pub(crate) fn adapters(composition: &Composition) -> Vec<serde_json::Value> {
    composition
        .adapters()
        .iter()
        .map(|a| json!({ "name": a.name, "adapter": a.adapter, "weight": weight_of(a.weight) }))
        .collect()
}

/// A user's text as ids: special tokens in it stay text, and BOS stands before it where the model wants one.
pub(crate) fn text_ids(composition: &Composition, text: &str) -> Result<Vec<u32>, CliError> {
    let tokenizer = composition.base().tokenizer()?;
    let mut ids = tokenizer.encode(text, SpecialTokens::AsText)?;
    if tokenizer.add_bos()
        && let Some(bos) = tokenizer.bos()
    {
        ids.insert(0, bos);
    }
    Ok(ids)
}

/// Messages in the model's chat template as ids.
pub(crate) fn chat_ids(
    composition: &Composition,
    messages: &[ChatMessage],
) -> Result<Vec<u32>, CliError> {
    let base = composition.base();
    let template = base.chat_template()?;
    let today = now();
    Ok(slm_runtime::chat::render_to_ids(
        &template,
        base.tokenizer()?,
        messages,
        true,
        Some(&today[..10]),
    )?)
}

/// What to generate, as options say it.
pub(crate) fn options(
    args: &SamplingArgs,
    chunk: usize,
    tokenizer: &Tokenizer,
) -> Result<GenerateOptions, CliError> {
    let sampling = sampling(args);
    sampling.check()?;
    let stop_ids = if args.ignore_eos { Vec::new() } else { tokenizer.eos_ids().to_vec() };
    Ok(GenerateOptions { max_tokens: args.max_tokens, sampling, stop_ids, chunk })
}

/// Sampling options as the runtime takes them.
pub(crate) fn sampling(args: &SamplingArgs) -> Sampling {
    Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repeat_penalty: args.repeat_penalty,
        seed: args.seed,
    }
}

/// Items per second; 0 where no time passed.
pub(crate) fn rate(n: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { n as f64 / seconds } else { 0.0 }
}

fn read_stdin() -> Result<String, CliError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(CliError::Missing { option: "PROMPT" });
    }
    let path = Path::new("standard input");
    text(read_bounded(stdin.lock(), path)?, path)
}
