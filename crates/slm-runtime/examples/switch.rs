//! The whole way: a base and two adapters into a store, a composition, the switch, and back, with the bits to prove it.
//!
//! Run it with `cargo run -p slm-runtime --example switch`. Everything is in memory; the model is the project's own, small enough to embed.

use slm_format::Limits;
use slm_golden::{
    TINY_KJV_CONFIG, TINY_KJV_WEIGHTS, TINY_PYTHON_CONFIG, TINY_PYTHON_WEIGHTS, TINY_Q8_0,
};
use slm_manifest::ExecutionProfile;
use slm_overlay::BaseShape;
use slm_overlay::peft::PeftLora;
use slm_runtime::load::Base;
use slm_runtime::runtime::{Reference, ResolvedAdapter};
use slm_runtime::{Engine, Runtime, RuntimeError};
use slm_store::{MemStorage, Store};

const PROMPT: &str = "In the beginning";

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A store on any medium; `slm_store::FsStorage` is one on a folder.
    let engine = Engine::inline();
    let limits = Limits::STANDARD;
    let runtime = Runtime::new(Store::open(MemStorage::new())?, engine.clone(), limits);
    // The library does not know clocks: times come from the caller.
    let now = "2026-07-21T00:00:00Z";

    // load_base: opened, checked and hashed, then stored under a name.
    let bytes = std::sync::Arc::new(TINY_Q8_0);
    let base = Base::open(bytes, &limits, engine.kernels, &*engine.exec)?;
    let imported = runtime.load_base(&base, &"tiny".parse()?, now, false)?;
    println!("base         {}", imported.base);
    drop(base);

    // load_adapter: resolved against the base, so that one that does not fit is refused here.
    for (name, config, weights) in [
        ("kjv", TINY_KJV_CONFIG, TINY_KJV_WEIGHTS),
        ("python", TINY_PYTHON_CONFIG, TINY_PYTHON_WEIGHTS),
    ] {
        let read = |shape: &BaseShape| peft(config, weights, shape);
        let adapter = runtime.load_adapter(&read, "tiny", &name.parse()?, now, false)?;
        println!("adapter      {} {name}", adapter.adapter);
    }

    // Compositions get an identity before they run: order and weights count.
    let bare = runtime.compose(&"bare".parse()?, "tiny", &[], now, false)?;
    let stack = [("kjv", 0.7), ("python", 0.3)];
    let pair = runtime.compose(&"pair".parse()?, "tiny", &stack, now, false)?;
    println!("composition  {} pair", pair.composition);

    // activate_composition: everything is verified first; any failure leaves the old composition active.
    runtime.activate_composition(&Reference::Text("bare".to_owned()), now)?;
    let before = logits(&runtime)?;
    let activation = runtime.activate_composition(&Reference::Text("pair".to_owned()), now)?;
    assert_eq!(activation.previous, Some(bare.composition));
    let under_pair = logits(&runtime)?;
    assert_ne!(under_pair, before);

    // query_tokenizer_info: what a caller needs to prepare text.
    let tokenizer = runtime.query_tokenizer_info()?;
    println!("tokenizer    {} of {} tokens", tokenizer.tokenizer, tokenizer.vocab_size);
    assert_eq!(tokenizer.vocab_size, 1024);

    // deactivate_adapter: the stack without one of its adapters is another composition.
    let without = runtime.deactivate_adapter("python", now)?;
    assert!(without.composition != pair.composition && without.composition != bare.composition);
    assert_ne!(logits(&runtime)?, under_pair);

    // rollback: generation by generation, to the same bits.
    assert_eq!(runtime.rollback(now)?.composition, pair.composition);
    assert_eq!(logits(&runtime)?, under_pair);
    assert_eq!(runtime.rollback(now)?.composition, bare.composition);
    assert_eq!(logits(&runtime)?, before);

    // The weights in memory are what they were: hashing them again gives the same identity.
    let composition = runtime.active_composition()?;
    assert_eq!(composition.base().rehash(&*engine.exec), imported.base);
    println!("rolled back  to {}, bit for bit", composition.id());
    Ok(())
}

/// The bits of the logits after the prompt, under what is active.
fn logits(runtime: &Runtime<MemStorage>) -> Result<Vec<u32>, RuntimeError> {
    let mut session = runtime.session(ExecutionProfile::DEFAULT)?;
    let tokenizer = session.composition().base().tokenizer()?;
    let tokens = tokenizer.encode(PROMPT, slm_runtime::tokenizer::SpecialTokens::AsText)?;
    Ok(session.advance(&tokens, 64)?.into_iter().map(f32::to_bits).collect())
}

/// Reads a PEFT folder's two files.
fn peft(config: &[u8], weights: &[u8], shape: &BaseShape) -> Result<ResolvedAdapter, RuntimeError> {
    let (adapter, report) = PeftLora::parse(config, weights, &Limits::STANDARD)?.resolve(shape)?;
    Ok(ResolvedAdapter { adapter, report, bound_to: None, tokens: Default::default() })
}
