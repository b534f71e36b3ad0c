//! How fast this machine reads memory and multiplies int8: what a decoded token and a prompt's token are limited by.
//!
//! `cargo run --release -p slm-quant --example bandwidth [-- THREADS …]`: 1 and 2 threads. Prints `read THREADS MEGABYTES GB/s` for buffers of
//! 1, 16, 96 and 256 MB, which the threads share, and `int8 THREADS GMAC/s`: the fastest product of this crate on a matrix that stays
//! in a core's cache, which is a lower bound of what the instructions can do.

use std::time::{Duration, Instant};

use slm_format::Encoding;
use slm_quant::{Executor, Inline, Kernels, QMatrix, QuantizedRows, RayonExecutor, codec, layout};

const MEGABYTES: [usize; 4] = [1, 16, 96, 256];

/// Rounds of one measurement go on for as long, and the fastest counts.
const PATIENCE: Duration = Duration::from_millis(800);

fn main() {
    let mut threads: Vec<usize> =
        std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    threads.retain(|&n_threads| n_threads > 0);
    if threads.is_empty() {
        threads = vec![1, 2];
    }
    for n_threads in threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().expect("a pool");
        for megabytes in MEGABYTES {
            let rate = pool.install(|| read(n_threads, megabytes * 1_000_000));
            println!("read {n_threads} {megabytes} {rate:.1}");
        }
        let exec: Box<dyn Executor> = match n_threads {
            1 => Box::new(Inline),
            _ => Box::new(RayonExecutor::new(pool)),
        };
        println!("int8 {n_threads} {:.1}", multiply(&*exec));
    }
}

/// GB/s of reading a buffer from front to back, each thread its part. The memory is of the kind that weights are kept in.
fn read(n_threads: usize, bytes: usize) -> f64 {
    let mut buffer = layout::AlignedBytes::zeroed(bytes);
    for (at, byte) in buffer.iter_mut().enumerate() {
        *byte = at as u8;
    }
    let part = buffer.len().div_ceil(n_threads);
    let mut expected = None;
    // Small buffers are read several times between two looks at the clock.
    let passes = (64_000_000 / bytes).max(1);
    let seconds = best(|| {
        for _ in 0..passes {
            let sum = sum_of_parts(std::hint::black_box(&buffer), part);
            assert_eq!(*expected.get_or_insert(sum), sum, "memory changed");
        }
    });
    (bytes * passes) as f64 / seconds / 1e9
}

fn sum_of_parts(bytes: &[u8], part: usize) -> u64 {
    match bytes.split_at_checked(part) {
        Some((first, rest)) if !rest.is_empty() => {
            let (a, b) = rayon::join(|| sum(first), || sum_of_parts(rest, part));
            a.wrapping_add(b)
        }
        _ => sum(bytes),
    }
}

/// Independent sums side by side, which compilers turn into vectors; one chain of additions would be slower than memory.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 32];
    for block in bytes.as_chunks::<256>().0 {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.iter().fold(0, |total, sum| total.wrapping_add(*sum))
}

/// GMAC/s of the fastest encoding on 256 KB of weights and 64 tokens.
fn multiply(exec: &dyn Executor) -> f64 {
    let (cols, n_tokens) = (576, 64);
    let kernels = Kernels::detect();
    let x: Vec<f32> = (0..n_tokens * cols).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let mut xq = QuantizedRows::new();
    xq.quantize(kernels, &x, cols).expect("finite activations");
    let mut fastest = 0.0f64;
    for encoding in [Encoding::Q4_0, Encoding::Q4_1, Encoding::Q8_0] {
        let row_bytes = encoding.row_bytes(cols).expect("whole blocks");
        let rows = (256_000 / row_bytes).next_multiple_of(layout::STRIP_ROWS);
        let values: Vec<f32> =
            (0..rows * cols).map(|i| ((i * 53 % 97) as f32 - 48.0) / 64.0).collect();
        let data = codec::encode(encoding, &values, cols).expect("an encoding with an encoder");
        let mut strips = layout::AlignedBytes::zeroed(data.len());
        layout::interleave(encoding, rows, cols, &data, &mut strips).expect("whole blocks");
        let w = QMatrix::new_interleaved(encoding, rows, cols, &strips).expect("whole blocks");
        let mut out = vec![0.0f32; n_tokens * rows];
        exec.enter(&mut || {
            let seconds = best(|| kernels.matmul(exec, &mut out, &w, &x, Some(&xq)));
            fastest = fastest.max((rows * cols * n_tokens) as f64 / seconds / 1e9);
        });
    }
    fastest
}

/// The shortest round, in seconds.
fn best(mut run: impl FnMut()) -> f64 {
    run();
    let (started, mut best) = (Instant::now(), f64::INFINITY);
    while started.elapsed() < PATIENCE {
        let round = Instant::now();
        run();
        best = best.min(round.elapsed().as_secs_f64());
    }
    best
}
