//! What the contract's bits cost: the int8 product of numerics 3 against the same sums with fused multiply-adds, A B A B, one thread.
//!
//! `cargo run --release --example exactness --features free-order [-- COLUMNS]`: for each encoding, one token from a cache (2 MB) and from
//! memory (96 MB), eight and thirty-two tokens from a cache. Times are the shortest of the rounds; the ratio is contract / fused.

use std::time::Instant;

use slm_format::Encoding;
use slm_quant::{Inline, Kernels, QMatrix, QuantizedRows, codec, layout};

fn main() {
    let cols: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1536);
    let kernels = Kernels::detect();
    println!(
        "encoding  tokens  MB   contract GB/s  fused GB/s  time contract/fused  greatest difference"
    );
    let encodings = [
        Encoding::Q4_0,
        Encoding::Q4_1,
        Encoding::Q5_0,
        Encoding::Q8_0,
        Encoding::Q4_K,
        Encoding::Q6_K,
    ];
    for encoding in encodings {
        for (n_tokens, megabytes) in [(1, 2), (1, 96), (8, 2), (32, 2)] {
            let Some(row_bytes) = encoding.row_bytes(cols) else { continue };
            let rows = (megabytes * 1_000_000 / row_bytes).next_multiple_of(layout::STRIP_ROWS);
            let data = weights(encoding, rows, cols);
            let mut strips = layout::AlignedBytes::zeroed(data.len());
            layout::interleave(encoding, rows, cols, &data, &mut strips).expect("whole blocks");
            let w = QMatrix::new_interleaved(encoding, rows, cols, &strips).expect("whole blocks");
            // As decode has it.
            let w = if megabytes > 64 { w.read_once() } else { w };
            let x: Vec<f32> =
                (0..n_tokens * cols).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
            let mut xq = QuantizedRows::new();
            xq.quantize(kernels, &x, cols).expect("finite");
            let (mut exact, mut fused) =
                (vec![0.0f32; n_tokens * rows], vec![0.0; n_tokens * rows]);
            if kernels.matmul_free_order(&mut fused, &w, &xq).is_none() {
                println!("{}: no fused kernel", kernels.tier().name());
                return;
            }
            let (mut best_exact, mut best_fused) = (f64::INFINITY, f64::INFINITY);
            let calls = (20_000_000 / (data.len() * n_tokens)).max(1);
            for _ in 0..40 {
                best_exact = best_exact.min(time(calls, || {
                    kernels.matmul(&Inline, &mut exact, &w, &x, Some(&xq));
                }));
                best_fused = best_fused.min(time(calls, || {
                    kernels.matmul_free_order(&mut fused, &w, &xq);
                }));
            }
            let size = exact.iter().fold(0.0f32, |max, y| max.max(y.abs()));
            let difference =
                exact.iter().zip(&fused).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
            assert!(difference <= size * 1e-4, "{encoding}: {difference} of {size}");
            let speed = |seconds: f64| (data.len() * n_tokens) as f64 / seconds / 1e9;
            println!(
                "{:8}  {n_tokens:6}  {megabytes:3}  {:13.1}  {:10.1}  {:19.3}  {difference:e} of {size}",
                encoding.name(),
                speed(best_exact),
                speed(best_fused),
                best_exact / best_fused,
            );
        }
    }
}

/// Seconds per call.
fn time(calls: usize, mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        run();
    }
    start.elapsed().as_secs_f64() / calls as f64
}

/// A few encoded rows, repeated.
fn weights(encoding: Encoding, rows: usize, cols: usize) -> Vec<u8> {
    let some = rows.min(64);
    let values: Vec<f32> = (0..some * cols).map(|i| ((i * 53 % 97) as f32 - 48.0) / 64.0).collect();
    let bytes = codec::encode(encoding, &values, cols).expect("an encoder");
    bytes.iter().copied().cycle().take(rows * bytes.len() / some).collect()
}
