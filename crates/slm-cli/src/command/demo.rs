//! `demo`: the whole way on the embedded tiny model, in memory, with no file and no network.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use slm_manifest::ExecutionProfile;
use slm_runtime::audit::{LogitsHasher, hex};
use slm_runtime::generate::{GenerateOptions, generate};
use slm_runtime::load::Base;
use slm_runtime::runtime::{Reference, ResolvedAdapter};
use slm_runtime::sample::Sampling;
use slm_runtime::tokenizer::{SpecialText, SpecialTokens, StreamDecoder};
use slm_runtime::{Engine, Runtime};
use slm_store::{MemStorage, Store};

use crate::error::CliError;
use crate::model::{engine, name};
use crate::world::{LIMITS, World, now};

/// What each step generates from.
const PROMPT: &str = "In the beginning";
/// Tokens that each step generates.
const TOKENS: usize = 40;

/// What one step showed.
struct Shown {
    composition: String,
    text: String,
    logits_blake3: String,
    weights: String,
}

/// Imports the tiny model and two adapters, and goes base → kjv → python → rollback → rollback.
pub(crate) fn demo(world: &World) -> Result<(), CliError> {
    let started = Instant::now();
    let engine = engine(None, None)?;
    let runtime = Runtime::new(Store::open(MemStorage::new())?, engine.clone(), LIMITS);
    let base = Base::open(Arc::new(slm_golden::TINY_Q8_0), &LIMITS, engine.kernels, &*engine.exec)?;
    let tiny = name("NAME", "tiny")?;
    runtime.load_base(&base, &tiny, &now(), false)?;
    say(world, &format!("imported the embedded tiny model: {}", base.id()));
    for (name, config, weights) in [
        ("kjv", slm_golden::TINY_KJV_CONFIG, slm_golden::TINY_KJV_WEIGHTS),
        ("python", slm_golden::TINY_PYTHON_CONFIG, slm_golden::TINY_PYTHON_WEIGHTS),
    ] {
        let read = |shape: &slm_overlay::BaseShape| {
            let (adapter, report) =
                slm_overlay::peft::PeftLora::parse(config, weights, &LIMITS)?.resolve(shape)?;
            Ok(ResolvedAdapter { adapter, report, bound_to: None, tokens: Default::default() })
        };
        let name = crate::model::name("NAME", name)?;
        let imported = runtime.load_adapter(&read, "tiny", &name, &now(), false)?;
        say(
            world,
            &format!(
                "imported {name}: {} ({} tensors)",
                imported.adapter,
                imported.report.targets.len()
            ),
        );
        runtime.compose(&name, "tiny", &[(name.as_str(), 1.0)], &now(), false)?;
    }
    runtime.compose(&name("NAME", "base")?, "tiny", &[], &now(), false)?;

    let mut steps = Vec::new();
    for step in ["base", "kjv", "python", "rollback", "rollback"] {
        if step == "rollback" {
            runtime.rollback(&now())?;
        } else {
            runtime.activate_composition(&Reference::Text(step.to_owned()), &now())?;
        }
        let shown = show(&runtime, &engine)?;
        say(world, &format!("\n{step}\n  composition {}", shown.composition));
        say(world, &format!("  logits      blake3:{}", shown.logits_blake3));
        say(world, &format!("  weights     {}", shown.weights));
        say(world, &format!("  {:?}", shown.text));
        steps.push((step, shown));
    }
    let same = |a: usize, b: usize| {
        let (a, b) = (&steps[a].1, &steps[b].1);
        a.composition == b.composition && a.logits_blake3 == b.logits_blake3 && a.text == b.text
    };
    let weights_equal = steps.iter().all(|step| step.1.weights == steps[0].1.weights);
    let texts_differ = steps[0].1.text != steps[1].1.text && steps[1].1.text != steps[2].1.text;
    let equal_on_return = same(1, 3) && same(0, 4) && weights_equal && texts_differ;
    say(world, "");
    say(world, &format!("after the first rollback, kjv again to the bit: {}", yes(same(1, 3))));
    say(world, &format!("after the second, the base again to the bit:    {}", yes(same(0, 4))));
    say(world, &format!("the base's weights never changed:               {}", yes(weights_equal)));
    say(world, &format!("the adapters change the text:                   {}", yes(texts_differ)));
    say(world, &format!("{:.1} s", started.elapsed().as_secs_f64()));
    if world.output.json {
        let rows: Vec<Value> = steps
            .iter()
            .map(|(step, s)| {
                json!({
                    "step": step, "composition": s.composition, "text": s.text,
                    "logits_blake3": s.logits_blake3, "weights": s.weights,
                })
            })
            .collect();
        world.output.result(json!({ "steps": rows, "equal_on_return": equal_on_return }), &[]);
    }
    if equal_on_return {
        Ok(())
    } else {
        Err(CliError::Disagree {
            first: steps[0].1.logits_blake3.clone(),
            other: steps[4].1.logits_blake3.clone(),
        })
    }
}

fn show(runtime: &Runtime<MemStorage>, engine: &Engine) -> Result<Shown, CliError> {
    let composition = runtime.active_composition()?;
    let mut session = runtime.session(ExecutionProfile::DEFAULT)?;
    let tokenizer = composition.base().tokenizer()?;
    let prompt = tokenizer.encode(PROMPT, SpecialTokens::AsText)?;
    let mut hasher = LogitsHasher::new();
    session.advance_all(&prompt, prompt.len(), &mut |_, logits| hasher.update(logits))?;
    session.truncate(0);
    let options = GenerateOptions {
        max_tokens: TOKENS,
        sampling: Sampling::GREEDY,
        stop_ids: Vec::new(),
        chunk: prompt.len(),
    };
    let mut decoder = StreamDecoder::new(tokenizer, SpecialText::Hide);
    let mut text = PROMPT.to_owned();
    generate(&mut session, engine.kernels, &[], &prompt, &options, &mut || {}, &mut |token| {
        text.push_str(&decoder.push(token).expect("BUG: a chosen token is outside the vocabulary"));
        ControlFlow::Continue(())
    })?;
    text.push_str(&decoder.finish());
    Ok(Shown {
        composition: composition.id().to_string(),
        text,
        logits_blake3: hex(hasher.finish().all),
        weights: composition.base().rehash(&*engine.exec).to_string(),
    })
}

fn say(world: &World, line: &str) {
    if !world.output.json {
        world.output.print(&format!("{line}\n"));
    }
}

fn yes(yes: bool) -> &'static str {
    if yes { "yes" } else { "NO" }
}
