//! Nanoseconds per call of the functions of f32 rows and of one head's attention, per tier.
//!
//! `cargo run --release --example functions`: 1536 elements; one head of 64 channels over 256 positions, three heads to a row.

use std::time::Instant;

use slm_quant::{Kernels, QuantizedRows, Queries, Tier};

const N: usize = 1536;
const HEAD: usize = 64;
const POSITIONS: usize = 256;
const STRIDE: usize = 3 * HEAD;

fn main() {
    let x: Vec<f32> = (0..N).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let cache: Vec<f32> = (0..POSITIONS * STRIDE).map(|i| (i % 97) as f32 / 97.0).collect();
    for tier in Tier::available() {
        let k = Kernels::with_tier(tier).expect("an available tier");
        let (mut y, mut halves) = (x.clone(), vec![0u16; cache.len()]);
        k.to_f16(&mut halves, &cache);
        let (q, mut scores, mut out) = (&x[..HEAD], vec![0.0f32; POSITIONS], vec![0.0f32; HEAD]);
        let mut xq = QuantizedRows::new();
        let mut line = format!("{:7}", tier.name());
        let mut say = |name: &str, ns: f64| line += &format!("  {name} {ns:.0}");
        say("quantize", best(|| xq.quantize(k, &x, N).expect("finite")));
        say("rms_norm", best(|| k.rms_norm(&mut y, &x, &x, 1e-5)));
        say("silu_mul", best(|| k.silu_mul(&mut y, &x)));
        say("exp_sub", best(|| k.exp_sub(&mut y, 1.0)));
        y.copy_from_slice(&x);
        say("axpy", best(|| k.axpy(&mut y, 1e-9, &x)));
        say("dot16", best(|| scores[0] = k.dot16(&x, &x)));
        let one_by_one = best(|| {
            for (i, score) in scores.iter_mut().enumerate() {
                *score = k.dot16_f16(q, &halves[i * STRIDE..][..HEAD]);
            }
        });
        say("256 × dot16_f16", one_by_one);
        say("dots16_f16", best(|| k.dots16_f16(&mut scores, q, &halves, STRIDE)));
        let one_by_one = best(|| {
            for (i, &score) in scores.iter().enumerate() {
                k.axpy_f16(&mut out, score, &halves[i * STRIDE..][..HEAD]);
            }
        });
        say("256 × axpy_f16", one_by_one);
        out.fill(0.0);
        say("weighted_sum_f16", best(|| k.weighted_sum_f16(&mut out, &scores, &halves, STRIDE)));
        let shape = Queries {
            n_queries: 4,
            n_positions: POSITIONS,
            head_dim: HEAD,
            query_stride: HEAD,
            score_stride: POSITIONS,
            kv_stride: STRIDE,
        };
        let (mut scores, mut out) = (vec![0.0f32; 4 * POSITIONS], vec![0.0f32; 4 * HEAD]);
        let q = &x[..4 * HEAD];
        say("4 × query_dots_f16", best(|| k.query_dots_f16(&mut scores, q, &halves, shape)));
        say("4 × query_sums_f16", best(|| k.query_sums_f16(&mut out, &scores, &halves, shape)));
        println!("{line}");
    }
}

/// The shortest of several rounds, in nanoseconds per call.
fn best(mut run: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..100 {
        let start = Instant::now();
        for _ in 0..20 {
            run();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / 20.0);
    }
    best
}
