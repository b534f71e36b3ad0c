//! What adapters cost in decode: the bare base and each adapter take turns within one process, over the same weights in memory.
//!
//! `cargo run --release -p slm-runtime --example overhead -- MODEL.gguf THREADS ROUNDS DEPTH TOKENS ADAPTER_FOLDER[@f16] …`
//!
//! Prints the median time of a token of each, and over the rounds the median (and the quartiles) of its ratio to the base's. A round
//! generates `TOKENS` tokens of each after `DEPTH` positions. Every round of a composition must give the same tokens.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use slm_format::Limits;
use slm_manifest::ExecutionProfile;
use slm_overlay::peft::PeftLora;
use slm_quant::{Inline, Kernels, RayonExecutor};
use slm_runtime::load::Base;
use slm_runtime::sample::argmax;
use slm_runtime::{Composition, Engine, Session};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

struct Runner {
    name: String,
    session: Session,
    tokens: Vec<u32>,
    /// Seconds per token, one for each round.
    seconds: Vec<f64>,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, threads, rounds, depth, n_tokens, adapters @ ..] = arguments.as_slice() else {
        return Err("MODEL.gguf THREADS ROUNDS DEPTH TOKENS ADAPTER_FOLDER[@f16] ...".into());
    };
    let (threads, rounds, depth) = (threads.parse()?, rounds.parse()?, depth.parse()?);
    let n_tokens = n_tokens.parse()?;
    let engine = engine(threads)?;
    let file = std::fs::read(model)?;
    let base = Base::load(&file, &Limits::STANDARD, engine.kernels, &*engine.exec, &|_| {})?;
    let base = Arc::new(base);
    let mut runners = vec![runner("the base", Composition::bare(Arc::clone(&base))?, &engine)?];
    for adapter in adapters {
        runners.push(runner(adapter, composition(&base, adapter)?, &engine)?);
    }
    for runner in &mut runners {
        fill(&mut runner.session, depth, n_tokens)?;
    }
    for round in 0..=rounds {
        for n in 0..runners.len() {
            let at = (n + round) % runners.len();
            generate(&mut runners[at], depth, n_tokens, round > 0)?;
        }
    }
    report(&runners, threads, depth);
    Ok(())
}

fn engine(threads: usize) -> Outcome<Engine> {
    let kernels = Kernels::detect();
    if threads == 1 {
        return Ok(Engine { kernels, exec: Arc::new(Inline) });
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    Ok(Engine { kernels, exec: Arc::new(RayonExecutor::new(pool)) })
}

fn composition(base: &Arc<Base>, adapter: &str) -> Outcome<Composition> {
    let (folder, half) = match adapter.strip_suffix("@f16") {
        Some(folder) => (folder, true),
        None => (adapter, false),
    };
    let read = |file: &str| std::fs::read(Path::new(folder).join(file));
    let (config, weights) = (read("adapter_config.json")?, read("adapter_model.safetensors")?);
    let parsed = PeftLora::parse(&config, &weights, &Limits::STANDARD)?;
    let (mut parsed, _) = parsed.resolve(&base.shape())?;
    if half {
        parsed = parsed.with_factors_f16()?;
    }
    let bound = Arc::new(parsed).bind(base.id(), &base.shape())?;
    Ok(Composition::new(Arc::clone(base), vec![(adapter.to_owned(), Arc::new(bound), 1.0)])?)
}

fn runner(name: &str, composition: Composition, engine: &Engine) -> Outcome<Runner> {
    let profile = ExecutionProfile::DEFAULT;
    let session = Session::new(Arc::new(composition), profile, engine.clone())?;
    Ok(Runner { name: name.to_owned(), session, tokens: Vec::new(), seconds: Vec::new() })
}

fn fill(session: &mut Session, depth: usize, n_tokens: usize) -> Outcome<()> {
    let tokens: Vec<u32> = (0..depth as u32).map(|n| 1_000 + n).collect();
    if depth > 0 {
        session.advance(&tokens, 256)?;
    }
    session.reserve(n_tokens + 1)?;
    Ok(())
}

fn generate(runner: &mut Runner, depth: usize, n_tokens: usize, counted: bool) -> Outcome<()> {
    runner.session.truncate(depth);
    let mut logits = runner.session.advance(&[504], 1)?;
    let mut tokens = Vec::with_capacity(n_tokens);
    let started = Instant::now();
    for _ in 0..n_tokens {
        tokens.push(argmax(&logits));
        runner.session.advance_into(&mut logits, &tokens[tokens.len() - 1..], 1)?;
    }
    let seconds = started.elapsed().as_secs_f64() / n_tokens as f64;
    if counted {
        assert_eq!(runner.tokens, tokens, "{}: other tokens than before", runner.name);
        runner.seconds.push(seconds);
    }
    runner.tokens = tokens;
    Ok(())
}

fn report(runners: &[Runner], threads: usize, depth: usize) {
    println!("{threads} threads, after {depth} positions:");
    let base = &runners[0].seconds;
    for Runner { name, seconds, .. } in runners {
        let mut ratios: Vec<f64> = seconds.iter().zip(base).map(|(a, b)| a / b).collect();
        ratios.sort_by(f64::total_cmp);
        let mut sorted = seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let quartile = |of: &[f64], n: usize| of[n * (of.len() - 1) / 4];
        println!(
            "{:8.3} ms, lower quarter {:.3}, shortest {:.3}; {:.3} ({:.3}-{:.3}) of the base's: {name}",
            quartile(&sorted, 2) * 1e3,
            quartile(&sorted, 1) * 1e3,
            sorted[0] * 1e3,
            quartile(&ratios, 2),
            quartile(&ratios, 1),
            quartile(&ratios, 3),
        );
    }
}
