//! `bench`: the very forward pass of `run` and `logits`, timed.

use std::time::Instant;

use serde_json::json;
use slm_runtime::Session;
use slm_runtime::audit::{LogitsHasher, hex};
use slm_runtime::error::RequestError;
use slm_runtime::sample::argmax;

use crate::args::BenchArgs;
use crate::command::run::rate;
use crate::error::CliError;
use crate::model::{composition, engine_of, profile};
use crate::world::World;

/// Times a prompt and a generation, as llama-bench does; every run must give the same logits.
pub(crate) fn bench(world: &World, args: BenchArgs) -> Result<(), CliError> {
    for (option, value) in [("--prompt", args.prompt), ("--runs", args.runs)] {
        if value == 0 {
            return Err(CliError::Value {
                option,
                value: "0".to_owned(),
                reason: "expected 1 or more".to_owned(),
            });
        }
    }
    let started = Instant::now();
    let engine = engine_of(&args.engine)?;
    let composition = composition(world, &args.model, &engine)?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    let mut session = Session::new(composition.clone(), profile(&args.engine), engine)?;
    let needed =
        (args.depth as u64).saturating_add(args.prompt as u64).saturating_add(args.generate as u64);
    let context_length = session.context_length();
    if needed > u64::from(context_length) {
        return Err(RequestError::ContextFull { needed, context_length }.into());
    }
    let vocab_size = composition.base().config().vocab_size;
    // Ids all over the vocabulary.
    let id = |n: usize| (n as u32).wrapping_mul(7_919).wrapping_add(13) % vocab_size;
    let before: Vec<u32> = (0..args.depth).map(id).collect();
    let prompt: Vec<u32> = (args.depth..args.depth + args.prompt).map(id).collect();
    if !before.is_empty() {
        session.advance(&before, args.engine.chunk)?;
    }
    let progress = world.output.progress(args.runs as u64 + 1, "runs");
    let mut first_hash: Option<String> = None;
    let (mut prompt_rates, mut decode_rates) = (Vec::new(), Vec::new());
    // One run more than asked for: the first warms caches and is not counted.
    for n in 0..=args.runs {
        session.truncate(args.depth);
        let started = Instant::now();
        let mut logits = session.advance(&prompt, args.engine.chunk)?;
        let prompt_s = started.elapsed().as_secs_f64();
        let mut hasher = LogitsHasher::new();
        hasher.update(&logits);
        let mut decode_s = 0.0;
        for _ in 0..args.generate {
            let token = argmax(&logits);
            let started = Instant::now();
            session.advance_into(&mut logits, &[token], 1)?;
            decode_s += started.elapsed().as_secs_f64();
            hasher.update(&logits);
        }
        let hash = hex(hasher.finish().all);
        match &first_hash {
            Some(first) if *first != hash => {
                return Err(CliError::Disagree { first: first.clone(), other: hash });
            }
            _ => first_hash = Some(hash),
        }
        if n > 0 {
            prompt_rates.push(rate(args.prompt, prompt_s));
            decode_rates.push(rate(args.generate, decode_s));
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    let (prompt_rate, decode_rate) = (median(&mut prompt_rates), median(&mut decode_rates));
    let hash = first_hash.unwrap_or_default();
    let object = json!({
        "depth": args.depth,
        "prompt_tokens": args.prompt,
        "prompt_tokens_per_s": prompt_rate,
        "generate_tokens": args.generate,
        "decode_tokens_per_s": decode_rate,
        "runs": args.runs,
        "kv_bytes": session.kv_bytes(),
        "peak_rss_bytes": peak_rss_bytes(),
        "load_ms": load_ms,
        "logits_blake3": hash,
        "composition": composition.id(),
        "execution": session.execution_id(),
        "kernels": session.kernels(),
    });
    let lines = [
        format!("prompt  {:>5} tokens  {prompt_rate:>8.1}/s", args.prompt),
        format!("decode  {:>5} tokens  {decode_rate:>8.1}/s", args.generate),
        format!("loaded in {load_ms:.0} ms; logits {hash}"),
    ];
    world.output.result(object, &lines);
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Peak resident bytes of this process, where the system tells.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
