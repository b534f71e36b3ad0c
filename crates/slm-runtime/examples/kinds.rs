//! What each kind of adapter, and each rank of LoRA, costs in decode, beside the same change baked into the base.
//!
//! `cargo run --release -p slm-runtime --example kinds -- MODEL.gguf THREADS ROUNDS TOKENS` prints a Markdown table. The adapters are made here, on all
//! linear layers. Everything runs in one process over the same weights: in each round, each adapter's turn stands beside one of the baked base, and
//! the median of the rounds' ratios counts. What is timed is checked: in f32 each overlay has the logits of its own baked base.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use slm_format::{Encoding, Limits};
use slm_manifest::ExecutionProfile;
use slm_overlay::{
    Adapter, BaseWeights as _, Delta, DenseDelta, Dora, Factor, Ia3, Loha, Lokr, LokrFactor, Lora,
    Module, RowOrder, Side, SparseDelta, Vera,
};
use slm_quant::{Inline, Kernels, RayonExecutor};
use slm_runtime::bake::{Bake, BakeEncoding, BakeOptions};
use slm_runtime::load::Base;
use slm_runtime::sample::argmax;
use slm_runtime::{Composition, Engine, Session};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Tokens that are in the context before anything is timed.
const PROMPT: [u32; 8] = [504, 1021, 2033, 377, 9411, 281, 260, 1125];

/// One tensor that every adapter touches.
struct Linear {
    name: String,
    rows: u64,
    cols: u64,
}

struct Runner {
    name: String,
    /// Bytes of the factors as given, and of everything that is resident.
    bytes: [u64; 2],
    session: Session,
    tokens: Vec<u32>,
    /// Seconds per token, and their ratio to the baked base's turn beside it, one for each round.
    seconds: Vec<f64>,
    ratios: Vec<f64>,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, threads, rounds, n_tokens] = arguments.as_slice() else {
        return Err("MODEL.gguf THREADS ROUNDS TOKENS".into());
    };
    let (threads, rounds, n_tokens) = (threads.parse()?, rounds.parse()?, n_tokens.parse()?);
    let engine = engine(threads)?;
    let file = std::fs::read(model)?;
    let base = Base::load(&file, &Limits::STANDARD, engine.kernels, &*engine.exec, &|_| {})?;
    let base = Arc::new(base);
    drop(file);
    let linears: Vec<Linear> = base
        .shape()
        .tensors
        .iter()
        .filter(|(name, _)| name.starts_with("blk."))
        .map(|(name, &(rows, cols))| Linear { name: name.clone(), rows, cols })
        .collect();

    let one = compose(&base, &linears, "LoRA r 8", lora(&linears, 8)?)?;
    let keep = BakeOptions { encoding: BakeEncoding::Keep, untie: false };
    let baked = Bake::new(&one, keep)?.to_base(engine.kernels, &*engine.exec)?;
    let mut baked =
        runner("LoRA r 8, baked", [0; 2], Composition::bare(Arc::new(baked))?, &engine)?;
    let mut runners = vec![runner(
        "the base, no adapter",
        [0; 2],
        Composition::bare(Arc::clone(&base))?,
        &engine,
    )?];
    for rank in [1, 2, 4, 8, 16, 32, 64] {
        let adapter = lora(&linears, rank)?;
        let half = adapter.with_factors_f16()?;
        for (name, adapter) in [
            (format!("LoRA r {rank}, f32 factors"), adapter),
            (format!("LoRA r {rank}, f16 factors"), half),
        ] {
            runners.push(checked(&base, &linears, &name, adapter, &engine, rank == 8)?);
        }
    }
    for (name, adapter) in kinds(&base, &linears)? {
        runners.push(checked(&base, &linears, name, adapter, &engine, true)?);
    }
    for round in 0..=rounds {
        for n in 0..runners.len() {
            let at = (n + round) % runners.len();
            let beside = generate(&mut baked, n_tokens)?;
            let own = generate(&mut runners[at], n_tokens)?;
            // The first round warms caches and settles the clock.
            if round > 0 {
                baked.seconds.push(beside);
                runners[at].seconds.push(own);
                runners[at].ratios.push(own / beside);
            }
        }
        eprintln!("round {round} of {rounds}");
    }
    report(&base, &baked, &runners, threads, rounds, n_tokens);
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

/// Values of both signs that differ from place to place, up to `size`.
fn factor(rows: u64, cols: u64, size: f32, around: f32, seed: u64) -> Outcome<Factor> {
    let value = |at: u64| {
        let mut z = (at + (seed << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        around + size * ((z >> 40) as f32 / (1 << 23) as f32 - 1.0)
    };
    let bytes: Vec<u8> = (0..rows * cols).flat_map(|at| value(at).to_le_bytes()).collect();
    Ok(Factor::new("x", Encoding::F32, rows, cols, bytes.into())?)
}

/// An adapter with what `make` gives for each linear layer and its number.
fn each(linears: &[Linear], make: impl Fn(&Linear, u64) -> Outcome<Delta>) -> Outcome<Adapter> {
    let module = |(linear, n): (&Linear, u64)| -> Outcome<Module> {
        Ok(Module { target: linear.name.clone(), delta: make(linear, n)? })
    };
    let modules = linears.iter().zip(0..).map(module).collect::<Outcome<_>>()?;
    Ok(Adapter::new(modules)?)
}

fn lora(linears: &[Linear], rank: u64) -> Outcome<Adapter> {
    each(linears, |linear, n| {
        let (a, b) =
            (factor(rank, linear.cols, 0.05, 0.0, n)?, factor(linear.rows, rank, 0.02, 0.0, !n)?);
        Ok(Delta::Lora(Lora { scale: 1.0, a, b, bias: None }))
    })
}

fn kinds(base: &Base, linears: &[Linear]) -> Outcome<Vec<(&'static str, Adapter)>> {
    let dora = each(linears, |linear, n| {
        let mut row = vec![0.0; linear.cols as usize];
        let lengths = (0..linear.rows as usize).flat_map(|at| {
            base.row(&linear.name, at, &mut row);
            row.iter().map(|w| w * w).sum::<f32>().sqrt().to_le_bytes()
        });
        let lengths: Vec<u8> = lengths.collect();
        Ok(Delta::Dora(Dora {
            scale: 1.0,
            a: factor(8, linear.cols, 0.05, 0.0, n)?,
            b: factor(linear.rows, 8, 0.02, 0.0, !n)?,
            magnitude: Factor::new("x", Encoding::F32, 1, linear.rows, lengths.into())?,
        }))
    })?;
    let ia3 = each(linears, |linear, n| {
        let (side, len) = match linear.name.contains("ffn_down") {
            true => (Side::Input, linear.cols),
            false => (Side::Output, linear.rows),
        };
        Ok(Delta::Ia3(Ia3 { side, l: factor(1, len, 0.02, 1.0, n)? }))
    })?;
    let loha = each(linears, |linear, n| {
        Ok(Delta::Loha(Loha {
            scale: 1.0,
            w1_a: factor(linear.rows, 8, 0.05, 0.0, n)?,
            w1_b: factor(8, linear.cols, 0.05, 0.0, n + 1000)?,
            w2_a: factor(linear.rows, 8, 0.5, 0.0, n + 2000)?,
            w2_b: factor(8, linear.cols, 0.5, 0.0, n + 3000)?,
        }))
    })?;
    let lokr = each(linears, |linear, n| {
        let ((o1, o2), (i1, i2)) = (halves(linear.rows), halves(linear.cols));
        Ok(Delta::Lokr(Lokr {
            scale: 1.0,
            w1: LokrFactor::Full(factor(o1, i1, 0.05, 0.0, n)?),
            w2: LokrFactor::Low(
                factor(o2, 8, 0.05, 0.0, n + 1000)?,
                factor(8, i2, 0.05, 0.0, n + 2000)?,
            ),
            rows: RowOrder::Base,
        }))
    })?;
    let sparse = each(linears, |linear, n| {
        let indices: Arc<[u64]> =
            (0..linear.rows * linear.cols / 100).map(|at| at * 100 + (at * 37 + n) % 100).collect();
        let values = factor(1, indices.len() as u64, 0.05, 0.0, n)?;
        let (rows, cols) = (linear.rows as u32, linear.cols as u32);
        Ok(Delta::Sparse(SparseDelta { scale: 1.0, rows, cols, indices, values }))
    })?;
    let dense = each(linears, |linear, n| {
        Ok(Delta::Dense(DenseDelta {
            scale: 1.0,
            delta: factor(linear.rows, linear.cols, 0.002, 0.0, n)?,
        }))
    })?;
    Ok(vec![
        ("DoRA r 8", dora),
        ("IA3", ia3),
        ("VeRA r 256", vera(linears)?),
        ("LoKr r 8", lokr),
        ("LoHa r 8", loha),
        ("sparse, 1 %", sparse),
        ("dense, f32", dense.clone()),
        ("dense, f16", dense.with_factors_f16()?),
    ])
}

/// Projections of one length are one.
fn vera(linears: &[Linear]) -> Outcome<Adapter> {
    let (mut downs, mut ups) = (BTreeMap::new(), BTreeMap::new());
    for Linear { rows, cols, .. } in linears {
        if !downs.contains_key(cols) {
            downs.insert(*cols, factor(256, *cols, 0.05, 0.0, *cols)?);
        }
        if !ups.contains_key(rows) {
            ups.insert(*rows, factor(*rows, 256, 0.05, 0.0, !*rows)?);
        }
    }
    each(linears, |linear, n| {
        Ok(Delta::Vera(Vera {
            lambda_b: factor(1, linear.rows, 0.4, 0.0, n)?,
            lambda_d: factor(1, 256, 0.4, 0.0, n + 1000)?,
            a: downs[&linear.cols].clone(),
            b: ups[&linear.rows].clone(),
        }))
    })
}

/// The two factors nearest to each other, the smaller one first, as LoKr splits by itself.
fn halves(n: u64) -> (u64, u64) {
    let small =
        (1..=n).take_while(|f| f * f <= n).filter(|f| n.is_multiple_of(*f)).last().unwrap_or(1);
    (small, n / small)
}

fn compose(
    base: &Arc<Base>,
    linears: &[Linear],
    name: &str,
    adapter: Adapter,
) -> Outcome<Composition> {
    assert_eq!(adapter.modules().len(), linears.len());
    let bound = Arc::new(adapter).bind(base.id(), &base.shape())?;
    Ok(Composition::new(Arc::clone(base), vec![(name.to_owned(), Arc::new(bound), 1.0)])?)
}

/// A runner whose overlay has, in f32, the logits of its own baked base, and others than the bare base.
fn checked(
    base: &Arc<Base>,
    linears: &[Linear],
    name: &str,
    adapter: Adapter,
    engine: &Engine,
    check: bool,
) -> Outcome<Runner> {
    let composition = compose(base, linears, name, adapter)?;
    let stack = composition.stack();
    let bytes = [stack.entries()[0].0.adapter().bytes(), stack.bytes()];
    if check {
        let options = BakeOptions { encoding: BakeEncoding::F32, untie: false };
        let baked = Bake::new(&composition, options)?.to_base(engine.kernels, &*engine.exec)?;
        let logits = |composition: Composition| {
            let composition = Arc::new(composition);
            Session::new(composition, ExecutionProfile::ORACLE, engine.clone())?.advance(&PROMPT, 8)
        };
        let (baked, bare) = (
            logits(Composition::bare(Arc::new(baked))?)?,
            logits(Composition::bare(Arc::clone(base))?)?,
        );
        let (near, far) = (error(&logits(again(&composition)?)?, &baked), error(&bare, &baked));
        assert!(
            near < 1e-5 && near < 0.01 * far,
            "{name}: {near:e} from the baked base, which is {far:e} from the bare one"
        );
        eprintln!("{name}: {near:.1e} from the baked base, which is {far:.1e} from the bare one");
    }
    runner(name, bytes, composition, engine)
}

fn again(composition: &Composition) -> Outcome<Composition> {
    let stack = composition.stack().entries().iter();
    let stack = stack.map(|(bound, weight)| ("again".to_owned(), Arc::clone(bound), *weight));
    Ok(Composition::new(Arc::clone(composition.base()), stack.collect())?)
}

fn error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let difference: f64 =
        found.iter().zip(expected).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    (difference / expected.iter().map(|&b| square(f64::from(b))).sum::<f64>()).sqrt()
}

fn runner(
    name: &str,
    bytes: [u64; 2],
    composition: Composition,
    engine: &Engine,
) -> Outcome<Runner> {
    let mut session =
        Session::new(Arc::new(composition), ExecutionProfile::DEFAULT, engine.clone())?;
    session.advance(&PROMPT, 8)?;
    let (tokens, seconds, ratios) = (Vec::new(), Vec::new(), Vec::new());
    Ok(Runner { name: name.to_owned(), bytes, session, tokens, seconds, ratios })
}

/// Seconds per token; every turn of a runner gives the same tokens.
fn generate(runner: &mut Runner, n_tokens: usize) -> Outcome<f64> {
    runner.session.truncate(PROMPT.len() - 1);
    let mut logits = runner.session.advance(&PROMPT[PROMPT.len() - 1..], 1)?;
    let mut tokens = Vec::with_capacity(n_tokens);
    let started = Instant::now();
    for _ in 0..n_tokens {
        tokens.push(argmax(&logits));
        runner.session.advance_into(&mut logits, &tokens[tokens.len() - 1..], 1)?;
    }
    let seconds = started.elapsed().as_secs_f64() / n_tokens as f64;
    assert!(runner.tokens.is_empty() || runner.tokens == tokens, "{}: other tokens", runner.name);
    runner.tokens = tokens;
    Ok(seconds)
}

fn report(
    base: &Base,
    baked: &Runner,
    runners: &[Runner],
    threads: usize,
    rounds: usize,
    n_tokens: usize,
) {
    let quartile = |of: &[f64], n: usize| {
        let mut sorted = of.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[n * (sorted.len() - 1) / 4]
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{}, {} MiB of weights, {threads} threads, {rounds} rounds of {n_tokens} tokens. The baked base takes {:.2} ms a token.\n",
        base.name(),
        base.weight_bytes() >> 20,
        quartile(&baked.seconds, 2) * 1e3,
    );
    println!(
        "| adapter on all linear layers | ms a token | decode, baked = 1 | quartiles | factors, MiB | resident, MiB |"
    );
    println!("|---|---:|---:|---|---:|---:|");
    for Runner { name, bytes, seconds, ratios, .. } in runners {
        println!(
            "| {name} | {:.2} | {:.3} | {:.3}–{:.3} | {:.1} | {:.1} |",
            quartile(seconds, 2) * 1e3,
            quartile(ratios, 2),
            quartile(ratios, 1),
            quartile(ratios, 3),
            mib(bytes[0]),
            mib(bytes[1]),
        );
    }
}
