//! What an executor costs per product, outside and within [`Executor::enter`]: empty pieces, then pieces that share 10 and 50 µs of work.
//!
//! `cargo run --release --example forkjoin`

use std::time::Instant;

use slm_quant::{Executor, Inline, RayonExecutor};

fn main() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("two threads");
    let two = RayonExecutor::new(pool);
    let per_step = best(&|| work(1000)) * 100.0 / 1000.0;
    for micros in [0.0, 10.0, 50.0] {
        let steps = (micros / per_step) as usize;
        for (name, exec) in [("inline", &Inline as &dyn Executor), ("rayon", &two)] {
            for chunks in [1, 2, 4, 8] {
                let run = || call(exec, chunks, steps);
                let outside = best(&run);
                let mut inside = f64::INFINITY;
                exec.enter(&mut || inside = best(&run));
                println!(
                    "{micros:3} µs of work, {name:8} {chunks} chunks: {outside:7.2} µs, {inside:7.2} µs within enter"
                );
            }
        }
    }
}

/// 100 products of `steps` in all.
fn call(exec: &dyn Executor, chunks: usize, steps: usize) {
    let mut out = vec![0.0f32; 64 * chunks];
    for _ in 0..100 {
        exec.for_each_chunk(&mut out, 64, &|_, out| {
            work(steps / chunks);
            out.fill(1.0);
        });
    }
}

fn work(steps: usize) {
    for step in 0..steps {
        std::hint::black_box(step);
    }
}

/// The shortest of several rounds, in microseconds per product.
fn best(run: &(dyn Fn() + Sync)) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..200 {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / 100.0);
    }
    best
}
