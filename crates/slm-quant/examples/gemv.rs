//! GB/s of weight bytes per encoding, tier, layout and number of threads, with as many rows as make MEGABYTES; every product must have the
//! scalar tier's bits.
//!
//! `cargo run --release --example gemv [-- TOKENS [COLUMNS [MEGABYTES [ENCODING …]]]]`: 1 token, 1536 columns, 2 MB (a cache; 96 is
//! memory) and every encoding whose blocks divide the columns. With several tokens GB/s counts a weight byte once per token;
//! GMAC/s follows.

use std::time::Instant;

use slm_format::Encoding;
use slm_quant::{
    Executor, Inline, Kernels, Layout, QMatrix, QuantizedRows, RayonExecutor, Tier, codec, layout,
};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|n| n.parse::<usize>().ok());
    let (n_tokens, cols) = (number(0).unwrap_or(1), number(1).unwrap_or(1536));
    let bytes = number(2).unwrap_or(2) * 1_000_000;
    let x: Vec<f32> = (0..n_tokens * cols).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("two threads");
    let two = RayonExecutor::new(pool);
    println!("{cols} columns, {n_tokens} token(s), {bytes} bytes");
    println!(
        "encoding  kernel       layout       1 thread: GB/s  GMAC/s    2 threads: GB/s  GMAC/s"
    );
    for encoding in Encoding::all() {
        let wanted = arguments.len() < 4 || arguments[3..].iter().any(|a| a == encoding.name());
        let Some(row_bytes) = encoding.row_bytes(cols).filter(|_| wanted) else {
            continue;
        };
        let rows = (bytes / row_bytes).next_multiple_of(layout::STRIP_ROWS);
        let data = weights(encoding, rows, cols);
        let mut strips = layout::AlignedBytes::zeroed(data.len());
        layout::interleave(encoding, rows, cols, &data, &mut strips).expect("whole blocks");
        let plain = QMatrix::new(encoding, rows, cols, &data).expect("whole blocks");
        let fast = QMatrix::new_interleaved(encoding, rows, cols, &strips).expect("whole blocks");
        plain.check_scales().expect("finite scales");
        for int8 in [true, false] {
            let mut expected: Option<Vec<f32>> = None;
            for tier in Tier::available() {
                let kernels = Kernels::with_tier(tier).expect("an available tier");
                let kernel = kernels.kernel_name(encoding, int8);
                if int8 != kernel.ends_with("int8") {
                    continue;
                }
                let mut xq = QuantizedRows::new();
                xq.quantize(kernels, &x, cols).expect("finite activations");
                let xq = int8.then_some(&xq);
                for w in [&plain, &fast] {
                    if w.layout() == Layout::RowMajor && std::ptr::eq(w, &fast) {
                        continue;
                    }
                    let mut out = vec![0.0f32; n_tokens * rows];
                    let mut line =
                        format!("{:8}  {kernel:11}  {:11?}", encoding.name(), w.layout());
                    for exec in [&Inline as &dyn Executor, &two] {
                        let mut seconds = 0.0;
                        exec.enter(&mut || {
                            seconds = best(|| kernels.matmul(exec, &mut out, w, &x, xq));
                        });
                        let work = n_tokens as f64 / seconds / 1e9;
                        let (gb, gmac) = (data.len() as f64 * work, (rows * cols) as f64 * work);
                        line += &format!("  {gb:14.2} {gmac:7.1}");
                        let expected = expected.get_or_insert_with(|| out.clone());
                        let equal =
                            out.iter().zip(&*expected).all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(equal, "{encoding}: {kernel} differs from the scalar tier");
                    }
                    println!("{line}");
                }
            }
        }
    }
}

/// Encoded where there is an encoder; else arbitrary codes under small positive scales.
fn weights(encoding: Encoding, rows: usize, cols: usize) -> Vec<u8> {
    // A few rows, repeated: encoding them all would take longer than the measurement.
    let some = rows.min(64);
    let values: Vec<f32> = (0..some * cols).map(|i| ((i * 53 % 97) as f32 - 48.0) / 64.0).collect();
    let row_bytes = encoding.row_bytes(cols).expect("whole blocks");
    let mut bytes = codec::encode(encoding, &values, cols).unwrap_or_else(|_| {
        let mut bytes: Vec<u8> = (0..row_bytes * some).map(|i| (i * 151 % 251) as u8).collect();
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
    });
    while bytes.len() < row_bytes * rows {
        let more = bytes.len().min(row_bytes * rows - bytes.len());
        bytes.extend_from_within(..more);
    }
    bytes
}

/// The shortest of several rounds, in seconds per call.
fn best(mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    run();
    let first = start.elapsed().as_secs_f64().max(1e-9);
    let calls = (0.001 / first).ceil() as u32;
    // Slow kernels are not measured as often.
    let rounds = (0.5 / (first * f64::from(calls))).clamp(2.0, 40.0) as u32;
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..calls {
            run();
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(calls));
    }
    best
}
