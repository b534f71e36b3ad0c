//! A memory plan beside what is allocated, counted by the allocator itself, component by component.

use std::alloc::System;
use std::sync::Arc;

use slm_manifest::ExecutionProfile;
use slm_quant::{Inline, Kernels};
use slm_runtime::budget::{MemoryPlan, Workload};
use slm_runtime::load::Base;
use slm_runtime::{Composition, Engine, Session};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use super::{LIMITS, resolve};

/// Counts everything that the process allocates.
pub static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How far a plan may be from the truth, in percent of the plan: what is allocated is never more than planned, and at least so much less.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub base: u64,
    pub adapters: u64,
    pub scratch: u64,
    pub total: u64,
}

/// Bytes that what `f` returns keeps: of the allocator, and in huge pages, which do not come from it.
pub fn kept<T>(f: impl FnOnce() -> T) -> (T, u64) {
    let pages = huge_pages();
    let region = Region::new(COUNTING);
    let value = f();
    let change = region.change();
    let allocated = change.bytes_allocated - change.bytes_deallocated;
    (value, allocated as u64 + (huge_pages() - pages))
}

/// Resident bytes of the mappings that asked for huge pages, as the system counts them: every byte of a weight's or a factor's memory that was written to, up
/// to the end of its last page.
#[cfg(target_os = "linux")]
fn huge_pages() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("the system tells");
    let (mut resident, mut bytes) = (0, 0);
    for line in maps.lines() {
        if let Some(size) = line.strip_prefix("Rss:") {
            let size = size.trim().strip_suffix(" kB").and_then(|size| size.parse::<u64>().ok());
            resident = size.expect("a size") * 1024;
        } else if line.strip_prefix("VmFlags:").is_some_and(|flags| flags.contains(" hg")) {
            bytes += resident;
        }
    }
    bytes
}

/// Elsewhere everything comes from the allocator.
#[cfg(not(target_os = "linux"))]
fn huge_pages() -> u64 {
    0
}

/// What the end of one mapping's last page can add: where the system grants huge pages, it is whole. It does not always.
const HUGE_PAGE: u64 = 2 << 20;

/// `found` bytes are what was planned, to so many percent on either side; above, beside the ends of so many mappings.
fn near(what: &str, found: u64, planned: u64, percent: u64, mappings: u64) {
    let share = found as f64 / planned as f64 * 100.0;
    println!("{what:<12} planned {planned:>11}, allocated {found:>11}: {share:.1} %");
    let (least, most) = (planned * (100 - percent) / 100, planned * (100 + percent) / 100);
    assert!(
        (least..=most + mappings * HUGE_PAGE).contains(&found),
        "{what}: {found} bytes, planned {planned}, allowed {percent} % and {mappings} huge pages"
    );
}

/// Loads, composes and runs, and holds each component against its plan.
pub fn check(model: &[u8], adapters: &[(&str, &[u8], &[u8])], works: &[Workload], bounds: Bounds) {
    let (bytes, counted) = kept(|| vec![1u8; 1000]);
    assert_eq!(counted, 1000, "the counter counts");
    drop(bytes);
    let (pages, counted) = kept(|| {
        let mut pages = slm_quant::layout::AlignedBytes::zeroed(8 << 20);
        pages.fill(1);
        pages
    });
    assert!((8 << 20..=10 << 20).contains(&counted), "{counted}: the counter sees huge pages");
    drop(pages);
    let load = || Base::load(model, &LIMITS, Kernels::detect(), &Inline, &|_| {});
    let (base, base_bytes) = kept(|| Arc::new(load().expect("a model")));
    let (_, tokenizer_bytes) = kept(|| base.tokenizer().expect("a tokenizer").bos());
    let (stack, adapter_bytes) = kept(|| {
        let bind = |&(name, config, weights): &(&str, &[u8], &[u8])| {
            let resolved = resolve(config, weights, &base.shape()).expect("an adapter");
            let bound = Arc::new(resolved.adapter).bind(base.id(), &base.shape());
            (name.to_owned(), Arc::new(bound.expect("a binding")), 1.0)
        };
        adapters.iter().map(bind).collect::<Vec<_>>()
    });
    let composition = Composition::new(Arc::clone(&base), stack).expect("a composition");
    let composition = Arc::new(composition);
    for &work in works {
        let Workload { positions, chunk, all_logits } = work;
        let profile = ExecutionProfile::DEFAULT;
        let plan = MemoryPlan::of_session(&composition, &profile, 1, work).expect("a plan");
        let vocab_size = base.config().vocab_size;
        let tokens: Vec<u32> = (0..positions).map(|n| n * 7 % vocab_size).collect();
        println!("{positions} positions, passes of {chunk}, all logits: {all_logits}");
        let (mut session, small) = kept(|| {
            Session::new(Arc::clone(&composition), profile, Engine::inline()).expect("a session")
        });
        let (last, grown) = kept(|| {
            let mut last = Vec::new();
            if all_logits {
                let each = &mut |_, logits: &[f32]| {
                    last.clear();
                    last.extend_from_slice(logits);
                };
                session.advance_all(&tokens, chunk, each).expect("passes");
            } else {
                last = session.advance(&tokens, chunk).expect("passes");
            }
            last
        });
        assert_eq!((last.len(), session.kv_bytes()), (vocab_size as usize, plan.kv));
        near("  scratch", grown - plan.kv, plan.scratch, bounds.scratch, 0);
        println!("  cache        planned {:>11}, allocated the same", plan.kv);
        let whole = base_bytes + tokenizer_bytes + adapter_bytes + small + grown;
        near("  total", whole, plan.total(), bounds.total, 0);
        // What is planned is enough: what is small has its allowance.
        assert!(whole <= plan.total(), "{whole} bytes, planned {}", plan.total());
        assert_eq!(plan.requantization, 0);
    }
    let plan = MemoryPlan::of_session(&composition, &ExecutionProfile::DEFAULT, 1, works[0]);
    let plan = plan.expect("a plan");
    // The weights are one mapping, the factors of each adapter another.
    near("base", base_bytes, plan.base, bounds.base, 1);
    near("adapters", adapter_bytes, plan.adapters, bounds.adapters, adapters.len() as u64);
    println!("tokenizer    {tokenizer_bytes:>11} of an allowance of {}", plan.overhead);
    assert_eq!(plan.adapters, 2 * plan.extra_bytes);
}
