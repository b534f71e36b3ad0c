//! What a switch costs, in each of its parts.
//!
//! `cargo run --release -p slm-runtime --example activation` measures the tiny model on memory storage and on files;
//! `… --example activation -- MODEL.gguf PEFT_FOLDER` measures a model of yours on files as well: the first line is the cold start, everything read,
//! hashed and bound, from whatever the page cache holds.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slm_format::Limits;
use slm_overlay::peft::PeftLora;
use slm_quant::{Kernels, RayonExecutor};
use slm_runtime::load::Base;
use slm_runtime::runtime::{Prepared, Reference, Request, ResolvedAdapter, no_patience};
use slm_runtime::{Engine, Runtime};
use slm_store::faulty::CrashStorage;
use slm_store::{FsStorage, MemStorage, Storage, Store};

type Failure = Box<dyn std::error::Error>;

const NOW: &str = "2026-07-21T00:00:00Z";
const LIMITS: Limits = Limits::STANDARD;

/// A model and an adapter, as files.
struct Files {
    model: Vec<u8>,
    config: Vec<u8>,
    weights: Vec<u8>,
}

fn main() -> Result<(), Failure> {
    let pool = rayon::ThreadPoolBuilder::new().build()?;
    let engine = Engine { kernels: Kernels::detect(), exec: Arc::new(RayonExecutor::new(pool)) };
    let tiny = Files {
        model: slm_golden::TINY_Q8_0.to_vec(),
        config: slm_golden::TINY_KJV_CONFIG.to_vec(),
        weights: slm_golden::TINY_KJV_WEIGHTS.to_vec(),
    };
    println!("the tiny model, on memory");
    stocked(MemStorage::new(), &engine, &tiny)?;
    switches(MemStorage::new(), &engine, &tiny, 5_000)?;
    syncs(&engine, &tiny)?;
    let folder = tempfile::tempdir()?;
    println!("\nthe tiny model, on files");
    let path = folder.path().join("tiny");
    stocked(FsStorage::open(&path), &engine, &tiny)?;
    cold(&path, &engine)?;
    switches(FsStorage::open(folder.path().join("tiny-switches")), &engine, &tiny, 500)?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [model, adapter] = &args[..] {
        let read = |name: &str| std::fs::read(Path::new(adapter).join(name));
        let files = Files {
            model: std::fs::read(model)?,
            config: read("adapter_config.json")?,
            weights: read("adapter_model.safetensors")?,
        };
        println!("\n{model} and {adapter}, on files");
        let path = folder.path().join("model");
        stocked(FsStorage::open(&path), &engine, &files)?;
        for _ in 0..5 {
            cold(&path, &engine)?;
        }
        switches(FsStorage::open(folder.path().join("model-switches")), &engine, &files, 50)?;
    }
    Ok(())
}

/// A store with the model as `m`, the adapter as `a`, and both stacks composed.
fn stocked<S: Storage>(storage: S, engine: &Engine, files: &Files) -> Result<Runtime<S>, Failure> {
    let runtime = Runtime::new(Store::open(storage)?, engine.clone(), LIMITS);
    let base = Base::load(&files.model, &LIMITS, engine.kernels, &*engine.exec, &|_| {})?;
    runtime.load_base(&base, &"m".parse()?, NOW, false)?;
    let read = |shape: &slm_overlay::BaseShape| {
        let parsed = PeftLora::parse(&files.config, &files.weights, &LIMITS)?;
        let (adapter, report) = parsed.resolve(shape)?;
        Ok(ResolvedAdapter { adapter, report, bound_to: None, tokens: Default::default() })
    };
    runtime.load_adapter(&read, "m", &"a".parse()?, NOW, false)?;
    runtime.compose(&"bare".parse()?, "m", &[], NOW, false)?;
    runtime.compose(&"with".parse()?, "m", &[("a", 1.0)], NOW, false)?;
    runtime.activate_composition(&Reference::Text("with".to_owned()), NOW)?;
    Ok(runtime)
}

/// A process that starts: the active composition is read, hashed and bound.
fn cold(path: &Path, engine: &Engine) -> Result<(), Failure> {
    for in_place in [true, false] {
        let start = Instant::now();
        let store = Store::open(FsStorage::open(path))?;
        let runtime = Runtime::new(store, engine.clone(), LIMITS);
        let runtime = if in_place { runtime.in_place() } else { runtime };
        let composition = runtime.active_composition()?;
        let took = start.elapsed();
        let weights = if in_place { "weights where they are" } else { "weights into memory" };
        println!("  cold, verified, {weights:<22} {:>9.3} ms  ({})", ms(took), composition.id());
    }
    Ok(())
}

/// There and back: what validating and staging take, and the swap alone.
fn switches<S: Storage>(
    storage: S,
    engine: &Engine,
    files: &Files,
    n: usize,
) -> Result<(), Failure> {
    let runtime = stocked(storage, engine, files)?;
    let (mut prepare, mut swap) = (Vec::new(), Vec::new());
    // Both stay in memory, so that the weights are hashed again and read from nowhere.
    let mut kept = Vec::new();
    for at in 0..n {
        let request = Request::Activate(Reference::Text(["bare", "with"][at % 2].to_owned()));
        let mut lock = runtime.lock(NOW)?;
        let start = Instant::now();
        let Prepared::Staged(staged) = runtime.prepare(&mut lock, &request, NOW)? else {
            return Err("nothing was to do".into());
        };
        if kept.len() < 2 {
            kept.push(Arc::clone(staged.composition()));
        }
        let ready = Instant::now();
        staged.swap(&mut no_patience)?;
        let done = Instant::now();
        prepare.push(ready - start);
        swap.push(done - ready);
    }
    for (what, mut times) in [("validate and stage", prepare), ("swap", swap)] {
        times.sort_unstable();
        let at = |share: f64| ms(times[((times.len() - 1) as f64 * share) as usize]);
        println!(
            "  {what:<18} of {n:>5}  median {:>9.4} ms, p99 {:>9.4} ms, worst {:>9.4} ms",
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    Ok(())
}

/// Syncs of one activation, by what they are for.
fn syncs(engine: &Engine, files: &Files) -> Result<(), Failure> {
    let storage = CrashStorage::new();
    let runtime = stocked(storage.clone(), engine, files)?;
    let count =
        || storage.events().iter().filter(|event| event.to_string().starts_with("sync")).count();
    let before = count();
    let request = Request::Activate(Reference::Text("bare".to_owned()));
    let mut lock = runtime.lock(NOW)?;
    let Prepared::Staged(staged) = runtime.prepare(&mut lock, &request, NOW)? else {
        return Err("nothing was to do".into());
    };
    let ready = count();
    staged.swap(&mut no_patience)?;
    println!("  syncs: {} until it is staged, {} in the swap", ready - before, count() - ready);
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
