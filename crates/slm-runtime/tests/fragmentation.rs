//! Thousands of switches in one process leave its memory where it was. One test, alone in its process.

#![cfg(target_os = "linux")]

mod common;

use common::{Choices, LOG, Medium as _, NOW, compose, runtime, stocked};
use slm_runtime::runtime::Reference;
use slm_store::{MemStorage, Storage as _};

/// Of different sizes: nothing, 0.6 MB, 1 MB, both.
const STACKS: [(&str, &[(&str, f32)]); 5] = [
    ("bare", &[]),
    ("k", &[("kjv", 1.0)]),
    ("p", &[("python", 1.0)]),
    ("kp", &[("kjv", 0.5), ("python", 1.0)]),
    ("pk", &[("python", 1.0), ("kjv", 0.5)]),
];

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("the system tells");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number of pages") * 4096
}

/// Thousands of switches among adapters of different sizes: memory stays where it was after warm-up.
#[test]
fn switches_do_not_fragment_memory() {
    let n = if cfg!(debug_assertions) { 600 } else { 10_000 };
    let storage = MemStorage::new();
    let (first, _) = stocked(storage.clone());
    for (name, stack) in &STACKS[1..] {
        compose(&first, name, stack);
    }
    drop(first);
    let runtime = runtime(storage.clone());
    let mut choices = Choices(0xf2a6);
    let stored = |storage: &MemStorage| -> u64 {
        let paths = storage.paths();
        let sizes = paths
            .iter()
            .map(|path| storage.open(path).expect("memory").map_or(0, |file| file.len()));
        sizes.sum::<usize>() as u64
    };
    let mut active = 0;
    let mut go = |n: usize| {
        for at in 0..n {
            // In memory a log is copied for each record, and a generation is left for each switch: they would be all that is measured.
            if at % 200 == 0 {
                storage.delete(LOG);
                runtime.gc(10, NOW).expect("a sweep");
            }
            // Never the one that is active: each is a switch.
            active = (active + 1 + choices.below(STACKS.len() - 1)) % STACKS.len();
            let reference = Reference::Text(STACKS[active].0.to_owned());
            let done = runtime.activate_composition(&reference, NOW).expect("active");
            assert!(done.changed, "{}: no switch", STACKS[active].0);
        }
    };
    go(n / 2);
    let (warm, warm_stored) = (resident_bytes(), stored(&storage));
    go(n);
    let (end, grown) = (resident_bytes(), stored(&storage).saturating_sub(warm_stored));
    let growth = end.saturating_sub(warm).saturating_sub(grown);
    println!(
        "{n} switches: resident {warm} bytes after warm-up, {end} at the end; {grown} bytes more in the store; {growth} bytes ({:.2} %) unexplained",
        growth as f64 * 100.0 / warm as f64
    );
    assert!(growth * 20 <= warm, "{growth} bytes more than {warm} after {n} switches");
}
