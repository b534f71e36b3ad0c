//! An adapter that waits, and one on the head of a tied base, against logits that PEFT computed (`data/peft-0.11.1/README.md`).

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{HfFolder, LIMITS, session, tokens_and_logits};
use slm_manifest::ExecutionProfile;
use slm_overlay::Adapter;
use slm_overlay::peft::PeftAdapter;
use slm_runtime::Composition;
use slm_runtime::load::Base;

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn data() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/peft-0.11.1"))
}

fn adapter(folder: &Path, base: &Base) -> Adapter {
    let config = read(&folder.join("adapter_config.json"));
    let weights = read(&folder.join("adapter_model.safetensors"));
    let parsed = PeftAdapter::parse(&config, &weights, &LIMITS).expect("a folder");
    parsed.resolve(&base.shape()).expect("an adapter").0
}

/// The norm-wise relative error of each position under `adapter`, with f32 activations.
fn errors(base: &Arc<Base>, adapter: Adapter, expected: &(Vec<u32>, Vec<f32>)) -> Vec<f64> {
    let (tokens, logits) = expected;
    let bound = Arc::new(Arc::new(adapter).bind(base.id(), &base.shape()).expect("a binding"));
    let stack = vec![("x".to_owned(), bound, 1.0)];
    let stack = Arc::new(Composition::new(Arc::clone(base), stack).expect("a composition"));
    let mut found = Vec::new();
    session(&stack, ExecutionProfile::ORACLE)
        .advance_all(tokens, 64, &mut |_, logits| found.extend_from_slice(logits))
        .expect("a pass");
    let n = logits.len() / tokens.len();
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let of = |(a, b): (&[f32], &[f32])| {
        let apart = norm(&mut a.iter().zip(b).map(|(&a, &b)| f64::from(a) - f64::from(b)));
        apart / norm(&mut b.iter().map(|&b| f64::from(b)))
    };
    found.chunks_exact(n).zip(logits.chunks_exact(n)).map(of).collect()
}

#[test]
fn what_waits_acts_from_the_last_invocation_on() {
    let base = Arc::new(HfFolder::tiny().open().expect("the tiny folder"));
    let expected = tokens_and_logits(&read(&data().join("waiting.expected.safetensors")));
    let plain = adapter(&slm_golden::path("files/adapters/lora-qv"), &base);
    let waiting = |tokens: &[u32]| {
        Adapter::with_invocation(plain.modules().to_vec(), tokens.to_vec()).expect("an adapter")
    };
    let found = errors(&base, waiting(&[261, 305]), &expected);
    assert!(found.iter().all(|&error| error <= 1e-4), "{found:?}");
    // From the invocation's first token on, not from its last, and neither always nor from the first occurrence at 1.
    for (other, from) in [(waiting(&[305, 92]), 6), (waiting(&[78]), 5), (plain.clone(), 0)] {
        let found = errors(&base, other, &expected);
        assert!(found[from] > 1e-3, "{from}: {found:?}");
    }
    let first = waiting(&[261, 305, 71]);
    assert!(errors(&base, first, &expected)[1] > 1e-3);
}

#[test]
fn the_head_of_a_tied_base_is_adapted_alone() {
    let base = Arc::new(HfFolder::tiny().open().expect("the tiny folder"));
    let expected = tokens_and_logits(&read(&data().join("head/expected.safetensors")));
    let whole = adapter(&data().join("head"), &base);
    let found = errors(&base, whole.clone(), &expected);
    assert!(found.iter().all(|&error| error <= 1e-4), "{found:?}");
    let without_head = whole.modules().iter().filter(|module| module.target != "output.weight");
    let without_head: Vec<_> = without_head.cloned().collect();
    assert_eq!(without_head.len() + 1, whole.modules().len());
    let found = errors(&base, Adapter::new(without_head).expect("an adapter"), &expected);
    assert!(found.iter().all(|&error| error > 1e-3), "{found:?}");
}
