//! GB/s of weight bytes per encoding and tier, on the calling thread, from cache; every tier must give the scalar tier's bits.
//!
//! `cargo run --release --example gemv [-- TOKENS [COLUMNS]]`; an encoding whose blocks do not divide the columns is left out.

use std::time::Instant;

use slm_format::Encoding;
use slm_quant::{Inline, Kernels, QMatrix, QuantizedRows, Tier, codec};

const ROWS: usize = 512;

fn main() {
    let number = |at: usize| std::env::args().nth(at).and_then(|n| n.parse::<usize>().ok());
    let (n_tokens, cols) = (number(1).unwrap_or(1), number(2).unwrap_or(1536));
    let x: Vec<f32> = (0..n_tokens * cols).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    println!("{ROWS} x {cols}, {n_tokens} token(s): GB/s of weights times tokens");
    for encoding in Encoding::all() {
        if encoding.row_bytes(cols).is_none() {
            continue;
        }
        let data = weights(encoding, cols);
        let w = QMatrix::new(encoding, ROWS, cols, &data).expect("whole blocks");
        w.check_scales().expect("finite scales");
        for int8 in [true, false] {
            let mut line = format!("{:8}", encoding.name());
            let mut expected: Option<Vec<f32>> = None;
            for tier in Tier::available() {
                let kernels = Kernels::with_tier(tier).expect("an available tier");
                let mut xq = QuantizedRows::new();
                xq.quantize(kernels, &x, cols).expect("finite activations");
                let xq = int8.then_some(&xq);
                let mut out = vec![0.0f32; n_tokens * ROWS];
                let seconds = best(|| kernels.matmul(&Inline, &mut out, &w, &x, xq));
                let rate = (data.len() * n_tokens) as f64 / seconds / 1e9;
                line += &format!("  {:12} {rate:7.2}", kernels.kernel_name(encoding, int8));
                let expected = expected.get_or_insert_with(|| out.clone());
                let equal =
                    out.iter().zip(expected.iter()).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(equal, "{encoding}: {} differs from the scalar tier", tier.name());
            }
            println!("{line}");
        }
    }
}

/// Encoded where there is an encoder; else arbitrary codes under small positive scales.
fn weights(encoding: Encoding, cols: usize) -> Vec<u8> {
    let values: Vec<f32> = (0..ROWS * cols).map(|i| ((i * 53 % 97) as f32 - 48.0) / 64.0).collect();
    if let Ok(bytes) = codec::encode(encoding, &values, cols) {
        return bytes;
    }
    let len = encoding.row_bytes(cols).expect("whole blocks") * ROWS;
    let mut bytes: Vec<u8> = (0..len).map(|i| (i * 151 % 251) as u8).collect();
    let scales: &[usize] = match encoding {
        Encoding::Q2_K => &[80, 82],
        Encoding::Q3_K => &[108],
        Encoding::Q5_K => &[0, 2],
        _ => &[0],
    };
    for block in bytes.chunks_exact_mut(encoding.block_bytes()) {
        for &at in scales {
            block[at..at + 2].copy_from_slice(&[0x12, 0x20]);
        }
    }
    bytes
}

/// The shortest of several rounds, in seconds per call.
fn best(mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    run();
    let calls = (0.001 / start.elapsed().as_secs_f64().max(1e-9)).ceil() as u32;
    let mut best = f64::INFINITY;
    for _ in 0..40 {
        let start = Instant::now();
        for _ in 0..calls {
            run();
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(calls));
    }
    best
}
