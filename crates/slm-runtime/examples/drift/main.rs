//! How far ways of adapting a quantized model end from the model that was meant: the numbers of `docs/drift.md`, as JSON.
//!
//! `cargo run --release -p slm-runtime --example drift -- MODEL ADAPTER_A ADAPTER_B THREADS TOKENS [TYPE …]` where MODEL is a HF folder, whose weights are the clean
//! base, or a GGUF file in types of 32-blocks. Such a file's weights lie on its own grid, which would make its own type lossless here; so each
//! is moved by an even draw within half a step, the same on every machine, and that is the clean base. `cargo xtask drift` calls this.
//!
//! Weights are put together by [`slm_overlay::Materialized`] in f64 and encoded by [`slm_quant::codec`]; logits are those of a [`Session`] with
//! f32 activations, so that nothing but the weights differs. The oracle is the clean base with both deltas added in f64 and rounded to f32.

mod clean;
mod kl;
mod rows;

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use slm_format::{Encoding, Limits};
use slm_overlay::peft::PeftAdapter;
use slm_quant::{Kernels, RayonExecutor};
use slm_runtime::bake::{Bake, BakeEncoding, BakeOptions};
use slm_runtime::load::Base;
use slm_runtime::{Composition, Engine};

use kl::{Oracle, logits};
use rows::{Made, SNAPSHOTS, Study};

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const TEXT: &str = include_str!("text.txt");

/// The types that are studied, and for tensors whose rows are no whole blocks the one that llama.cpp's quantizer takes then.
const TYPES: [(Encoding, Encoding); 7] = [
    (Encoding::Q4_0, Encoding::Q4_0),
    (Encoding::Q4_1, Encoding::Q4_1),
    (Encoding::Q5_0, Encoding::Q5_0),
    (Encoding::Q5_1, Encoding::Q5_1),
    (Encoding::Q8_0, Encoding::Q8_0),
    (Encoding::NF4, Encoding::NF4),
    (Encoding::Q4_K, Encoding::Q5_0),
];

/// Cycles after which logits of the merged state are taken as well.
const MERGED_AT: [usize; 3] = [1, 10, 100];

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, a, b, threads, n_tokens, types @ ..] = arguments.as_slice() else {
        return Err("MODEL ADAPTER_A ADAPTER_B THREADS TOKENS [TYPE ...]".into());
    };
    let n_tokens: usize = n_tokens.parse()?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.parse()?).build()?;
    let engine = Engine { kernels: Kernels::detect(), exec: Arc::new(RayonExecutor::new(pool)) };
    let clean = Arc::new(clean::base(Path::new(model), &engine)?);
    let tokens = clean.tokenizer()?.encode(TEXT, slm_runtime::tokenizer::SpecialTokens::AsText)?;
    let tokens: Vec<u32> = tokens.into_iter().take(n_tokens).collect();
    assert_eq!(tokens.len(), n_tokens, "the text is too short");

    let oracle = |adapters: &[&str]| -> Outcome<Oracle> {
        let composition = composition(&clean, adapters)?;
        let options = BakeOptions { encoding: BakeEncoding::F32, untie: false };
        let base = Bake::new(&composition, options)?.to_base(engine.kernels, &*engine.exec)?;
        Ok(Oracle::new(logits(bare(base)?, &engine, &tokens)?, clean.config().vocab_size))
    };
    let (bare_oracle, a_oracle, ab_oracle) = (oracle(&[])?, oracle(&[a])?, oracle(&[a, b])?);
    let study = Study::new(composition(&clean, &[a])?, composition(&clean, &[b])?);
    let wanted = |(encoding, _): &(Encoding, Encoding)| {
        types.is_empty() || types.iter().any(|name| name == encoding.name())
    };
    let mut studied = Vec::new();
    for (encoding, fallback) in TYPES.into_iter().filter(wanted) {
        let done = one_type(
            &study,
            &clean,
            &engine,
            &tokens,
            (encoding, fallback),
            [a, b],
            [&bare_oracle, &a_oracle, &ab_oracle],
        )?;
        // A long way: what is done is told at once.
        eprintln!("{done}");
        studied.push(done);
    }
    let head = json!({
        "model": clean.name(),
        "tokens": tokens.len(),
        "adapter_a": study.summary(0),
        "adapter_b": study.summary(1),
        "effect_of_a": short(a_oracle.kl(&bare_oracle.logits)),
        "effect_of_a_and_b": short(ab_oracle.kl(&bare_oracle.logits)),
        "snapshots": SNAPSHOTS,
        "merged_at": MERGED_AT,
    });
    // A line for each type, so that a change shows where it is.
    let types: Vec<String> = studied.iter().map(Value::to_string).collect();
    println!("{{\"head\":{head},\n\"types\":[\n{}\n]}}", types.join(",\n"));
    Ok(())
}

/// Four digits: more say nothing, and differ from machine to machine.
pub(crate) fn short(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Everything about one type.
fn one_type(
    study: &Study,
    clean: &Arc<Base>,
    engine: &Engine,
    tokens: &[u32],
    (encoding, fallback): (Encoding, Encoding),
    [a, b]: [&str; 2],
    [bare_oracle, a_oracle, ab_oracle]: [&Oracle; 3],
) -> Outcome<Value> {
    let Made { base, fit, states, weights } = study.make(clean, engine, encoding, fallback)?;
    let base = Arc::new(base);
    let kl = |oracle: &Oracle, composition: Arc<Composition>| -> Outcome<f64> {
        Ok(short(oracle.kl(&logits(composition, engine, tokens)?)))
    };
    let state = |name: &str| -> Outcome<Arc<Composition>> {
        let state =
            states.iter().find(|state| state.name == name).ok_or("a state that was not made")?;
        bare(base.with_tensors(state.tensors.clone(), engine.kernels, &*engine.exec)?)
    };
    let over = |adapters: &[&str]| composition(&base, adapters).map(Arc::new);
    let mut unmerged_kl = Vec::new();
    for n in SNAPSHOTS {
        unmerged_kl.push(kl(bare_oracle, state(&format!("unmerged {n}"))?)?);
    }
    let mut merged_kl = Vec::new();
    for n in MERGED_AT {
        merged_kl.push(kl(a_oracle, state(&format!("merged {n}"))?)?);
    }
    // An overlay that was there and is gone: the same bytes, and the same bits.
    let before = logits(over(&[])?, engine, tokens)?;
    let overlay_kl = kl(a_oracle, over(&[a])?)?;
    assert!(logits(over(&[])?, engine, tokens)? == before, "an overlay left a trace");
    assert_eq!(base.rehash(&*engine.exec), base.id(), "an overlay wrote to the base");
    Ok(json!({
        "type": encoding.name(),
        "fallback": fallback.name(),
        "fit": fit,
        "weights": weights,
        "kl": {
            "base": short(bare_oracle.kl(&before)),
            "overlay": overlay_kl,
            "merge": kl(a_oracle, state("merge")?)?,
            "unmerged": unmerged_kl,
            "merged": merged_kl,
            "overlay_ab": kl(ab_oracle, over(&[a, b])?)?,
            "overlay_ba": kl(ab_oracle, over(&[b, a])?)?,
            "joint": kl(ab_oracle, state("joint")?)?,
            "sequential_ab": kl(ab_oracle, state("ab")?)?,
            "sequential_ba": kl(ab_oracle, state("ba")?)?,
        },
    }))
}

fn bare(base: Base) -> Outcome<Arc<Composition>> {
    Ok(Arc::new(Composition::bare(Arc::new(base))?))
}

fn composition(base: &Arc<Base>, folders: &[&str]) -> Outcome<Composition> {
    let mut stack = Vec::new();
    for folder in folders {
        let read = |file: &str| std::fs::read(Path::new(folder).join(file));
        let (config, weights) = (read("adapter_config.json")?, read("adapter_model.safetensors")?);
        let parsed = PeftAdapter::parse(&config, &weights, &Limits::STANDARD)?;
        let adapter = Arc::new(parsed.resolve(&base.shape())?.0);
        let bound = adapter.bind(base.id(), &base.shape())?;
        stack.push(((*folder).to_owned(), Arc::new(bound), 1.0));
    }
    Ok(Composition::new(Arc::clone(base), stack)?)
}
