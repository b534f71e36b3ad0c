//! Functions, up-projections and executors give the scalar tier's bits on every tier, at lengths around every boundary, writing nowhere else.

mod common;

use common::{GUARD, Kind, Random, bits, guarded, others, scalar, weights};
use slm_format::{Coded, Encoding};
use slm_quant::{Inline, Kernels, QMatrix, Queries};

#[test]
fn functions_agree() {
    let mut random = Random(3);
    for n in [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 576] {
        for scale in [1.0, 60.0, 1e-40, 3e4] {
            let (x, y) = (random.floats(n, scale), random.floats(n, 2.0));
            let mut halves = vec![0u16; n];
            scalar().to_f16(&mut halves, &random.floats(n, 2.0));
            let s = random.unit();
            let max = scalar().max(&x);
            let run = |k: Kernels| -> Vec<(&str, Vec<u32>)> {
                let mut narrow = vec![0u16; n];
                k.to_f16(&mut narrow, &x);
                vec![
                    ("dot16", bits(&[k.dot16(&x, &y)])),
                    ("dot16_f16", bits(&[k.dot16_f16(&x, &halves)])),
                    ("sum16", bits(&[k.sum16(&x)])),
                    ("max", bits(&[k.max(&x)])),
                    ("axpy", guarded(&y, |y| k.axpy(y, s, &x))),
                    ("axpy_f16", guarded(&y, |y| k.axpy_f16(y, s, &halves))),
                    ("add", guarded(&y, |y| k.add(y, &x))),
                    ("scale", guarded(&y, |y| k.scale(y, s))),
                    ("div", guarded(&y, |y| k.div(y, s))),
                    ("exp_sub", guarded(&x, |x| k.exp_sub(x, max))),
                    ("silu_mul", guarded(&x, |x| k.silu_mul(x, &y))),
                    ("gelu_mul", guarded(&x, |x| k.gelu_mul(x, &y))),
                    ("rms_norm", guarded(&vec![GUARD; n], |o| k.rms_norm(o, &x, &y, 1e-5))),
                    ("to_f16", narrow.iter().map(|&h| u32::from(h)).collect()),
                ]
            };
            let expected = run(scalar());
            for kernels in others() {
                for (mine, theirs) in run(kernels).iter().zip(&expected) {
                    assert_eq!(mine, theirs, "{n} elements times {scale}, {:?}", kernels.tier());
                }
            }
        }
    }
}

/// One position after the other gives the same bits, whatever the run is cut into.
#[test]
fn attention_agrees() {
    let mut random = Random(8);
    for head_dim in [1, 8, 16, 24, 32, 64, 72, 80, 96, 128, 256] {
        for (n, stride) in
            [(0, 0), (1, head_dim), (7, head_dim), (8, 3 * head_dim), (16, head_dim + 5)]
                .into_iter()
                .chain([(17, 2 * head_dim), (33, head_dim), (64, head_dim), (70, 3 * head_dim)])
        {
            let len = n * stride + head_dim;
            let (q, e) = (random.floats(head_dim, 2.0), random.floats(n, 1.0));
            let (kv, before) = (random.floats(len, 3.0), random.floats(head_dim, 1.0));
            let mut halves = vec![0u16; len];
            scalar().to_f16(&mut halves, &kv);
            // As long as needed, no longer.
            let used = n.saturating_sub(1) * stride + head_dim * n.min(1);
            let (kv, halves) = (&kv[..used], &halves[..used]);
            let mut dots = [vec![0.0f32; n], vec![0.0f32; n]];
            let mut sums = [before.clone(), before.clone()];
            for i in 0..n {
                let rows = i * stride..i * stride + head_dim;
                dots[0][i] = scalar().dot16(&q, &kv[rows.clone()]);
                dots[1][i] = scalar().dot16_f16(&q, &halves[rows.clone()]);
                scalar().axpy(&mut sums[0], e[i], &kv[rows.clone()]);
                scalar().axpy_f16(&mut sums[1], e[i], &halves[rows]);
            }
            let empty = vec![GUARD; n];
            for k in others() {
                let name = format!("{head_dim} x {n}, stride {stride}, {:?}", k.tier());
                let plain = guarded(&empty, |out| k.dots16(out, &q, kv, stride));
                assert_eq!(plain, bits(&dots[0]), "{name}");
                let narrow = guarded(&empty, |out| k.dots16_f16(out, &q, halves, stride));
                assert_eq!(narrow, bits(&dots[1]), "{name}");
                let plain = guarded(&before, |out| k.weighted_sum(out, &e, kv, stride));
                assert_eq!(plain, bits(&sums[0]), "{name}");
                let narrow = guarded(&before, |out| k.weighted_sum_f16(out, &e, halves, stride));
                assert_eq!(narrow, bits(&sums[1]), "{name}");
            }
        }
    }
}

/// Several queries at once give each one's bits alone, and nothing between them is written.
#[test]
fn queries_agree() {
    let mut random = Random(9);
    for head_dim in [1, 16, 24, 64, 80, 128] {
        for n_queries in [0, 1, 2, 3, 4, 5, 7] {
            for n_positions in [0, 1, 3, 4, 18, 35] {
                let (query_stride, score_stride) = (head_dim + 3, n_positions + 2);
                let kv_stride = 2 * head_dim;
                let shape = Queries {
                    n_queries,
                    n_positions,
                    head_dim,
                    query_stride,
                    score_stride,
                    kv_stride,
                };
                let needed = |n: usize, stride, len| n.saturating_sub(1) * stride + len * n.min(1);
                let q = random.floats(needed(n_queries, query_stride, head_dim), 2.0);
                let e = random.floats(needed(n_queries, score_stride, n_positions), 1.0);
                let kv = random.floats(needed(n_positions, kv_stride, head_dim), 3.0);
                let mut halves = vec![0u16; kv.len()];
                scalar().to_f16(&mut halves, &kv);
                let (mut scores, mut sums) = ([e.clone(), e.clone()], [q.clone(), q.clone()]);
                for t in 0..n_queries {
                    let weights = t * score_stride..t * score_stride + n_positions;
                    let query = t * query_stride..t * query_stride + head_dim;
                    let (w, x) = (weights.clone(), query.clone());
                    scalar().dots16(&mut scores[0][w.clone()], &q[x.clone()], &kv, kv_stride);
                    scalar().dots16_f16(
                        &mut scores[1][w.clone()],
                        &q[x.clone()],
                        &halves,
                        kv_stride,
                    );
                    scalar().weighted_sum(&mut sums[0][x.clone()], &e[w.clone()], &kv, kv_stride);
                    scalar().weighted_sum_f16(&mut sums[1][x], &e[w], &halves, kv_stride);
                }
                for k in others() {
                    let name = format!("{shape:?} {:?}", k.tier());
                    let plain = guarded(&e, |out| k.query_dots(out, &q, &kv, shape));
                    assert_eq!(plain, bits(&scores[0]), "{name}");
                    let narrow = guarded(&e, |out| k.query_dots_f16(out, &q, &halves, shape));
                    assert_eq!(narrow, bits(&scores[1]), "{name}");
                    let plain = guarded(&q, |out| k.query_sums(out, &e, &kv, shape));
                    assert_eq!(plain, bits(&sums[0]), "{name}");
                    let narrow = guarded(&q, |out| k.query_sums_f16(out, &e, &halves, shape));
                    assert_eq!(narrow, bits(&sums[1]), "{name}");
                }
            }
        }
    }
}

#[test]
fn rope_agrees() {
    let mut random = Random(4);
    for pairs in [1, 3, 4, 5, 7, 8, 9, 16, 32, 33] {
        let x = random.floats(2 * pairs, 3.0);
        let (cos, sin) = (random.floats(pairs, 1.0), random.floats(pairs, 1.0));
        let interleaved = guarded(&x, |x| scalar().rope_interleaved(x, &cos, &sin));
        let half = guarded(&x, |x| scalar().rope_half(x, &cos, &sin));
        for kernels in others() {
            assert_eq!(guarded(&x, |x| kernels.rope_interleaved(x, &cos, &sin)), interleaved);
            assert_eq!(guarded(&x, |x| kernels.rope_half(x, &cos, &sin)), half);
        }
    }
}

#[test]
fn extremes_of_the_functions() {
    let edges = [
        0.0,
        -0.0,
        1e-45,
        -87.33654,
        -87.336_55,
        -88.0,
        88.37626,
        88.376_27,
        89.0,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        0.346_573_6,
        -0.346_573_6,
    ];
    let expected = guarded(&edges, |x| scalar().exp_sub(x, 0.0));
    assert_eq!(expected[0], 1.0f32.to_bits());
    assert_eq!(expected[9], 0, "exp(-inf) is +0.0");
    assert!(f32::from_bits(expected[8]).is_finite() && expected[8] == expected[6]);
    let ups = [1.0; 14];
    // Infinite gates lie outside the contract.
    let gates: Vec<f32> = edges.iter().copied().filter(|x| x.is_finite()).collect();
    for kernels in others() {
        assert_eq!(guarded(&edges, |x| kernels.exp_sub(x, 0.0)), expected);
        for f in [Kernels::silu_mul, Kernels::gelu_mul] {
            let plain = guarded(&gates, |x| f(&scalar(), x, &ups[..gates.len()]));
            assert_eq!(guarded(&gates, |x| f(&kernels, x, &ups[..gates.len()])), plain);
        }
        assert_eq!(kernels.max(&[]).to_bits(), f32::NEG_INFINITY.to_bits());
        for zeros in [[-0.0f32; 9].as_slice(), &[-0.0, 0.0], &[0.0, -0.0]] {
            assert_eq!(kernels.max(zeros).to_bits(), 0);
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 7, 8, 16] {
                let mut x = [f32::MAX; 17];
                assert!(kernels.is_finite(&x));
                x[at] = bad;
                assert!(!kernels.is_finite(&x));
            }
        }
    }
}

/// Every f16 there is, both ways, but for NaN.
#[test]
fn all_halves_agree() {
    let finite: Vec<u16> = (0..=u16::MAX).filter(|h| h & 0x7c00 != 0x7c00).collect();
    let wide: Vec<f32> = finite.iter().map(|&h| half::f16::from_bits(h).to_f32()).collect();
    for kernels in others() {
        let mut back = vec![0u16; finite.len()];
        kernels.to_f16(&mut back, &wide);
        assert_eq!(back, finite);
        let mut widened = vec![-0.0f32; finite.len()];
        kernels.axpy_f16(&mut widened, 1.0, &finite);
        assert_eq!(bits(&widened), bits(&wide));
        // Halfway cases and their neighbours, subnormal results, overflow.
        let between: Vec<f32> = wide
            .windows(2)
            .map(|w| (w[0] + w[1]) * 0.5)
            .flat_map(|x| [x, x.next_up(), x.next_down()])
            .chain([65519.9, 65520.0, 1e9, -1e9, 1e-30])
            .collect();
        let (mut mine, mut plain) = (vec![0u16; between.len()], vec![0u16; between.len()]);
        kernels.to_f16(&mut mine, &between);
        scalar().to_f16(&mut plain, &between);
        assert_eq!(mine, plain);
    }
}

#[test]
fn exp_is_close() {
    let mut worst = 0.0f64;
    let inputs: Vec<f32> = (0..200_000).map(|i| -87.3 + i as f32 * (175.6 / 200_000.0)).collect();
    let mut out = inputs.clone();
    Kernels::detect().exp_sub(&mut out, 0.0);
    for (x, y) in inputs.iter().zip(&out) {
        let exact = libm::exp(f64::from(*x));
        worst = worst.max(((f64::from(*y) - exact) / exact).abs());
    }
    assert!(worst < 2.5e-7, "relative error {worst:e}");
}

#[test]
fn lora_agrees() {
    let mut random = Random(5);
    for encoding in [Encoding::F32, Encoding::F16, Encoding::BF16] {
        for (rank, cols) in [(1, 1), (3, 7), (8, 8), (8, 33), (16, 64), (5, 576)] {
            for n_tokens in [1, 2, 5] {
                let data = weights(encoding, rank, cols, Kind::Random, &mut random);
                let bt = QMatrix::new(encoding, rank, cols, &data).unwrap();
                bt.check_lora_factor().unwrap();
                let (y, z) =
                    (random.floats(n_tokens * cols, 1.0), random.floats(n_tokens * rank, 1.0));
                let run =
                    |k: Kernels| guarded(&y, |y| k.lora_up(&Inline, y, 0.3, &bt, &z, n_tokens));
                let expected = run(scalar());
                for kernels in others() {
                    assert_eq!(run(kernels), expected, "{encoding} {rank}x{cols} {n_tokens}");
                }
                // The contract's own words.
                let mut b = vec![vec![0.0; cols]; rank];
                for (r, row) in b.iter_mut().enumerate() {
                    scalar().decode_row(row, &bt, r);
                }
                for t in 0..n_tokens {
                    for o in 0..cols {
                        let mut u = 0.0f32;
                        for r in 0..rank {
                            u += b[r][o] * z[t * rank + r];
                        }
                        let product = 0.3 * u;
                        let y = y[t * cols + o] + product;
                        assert_eq!(expected[t * cols + o], y.to_bits());
                    }
                }
            }
        }
    }
    let data = [0u8; 34];
    let quantized = QMatrix::new(Encoding::Q8_0, 1, 32, &data).unwrap();
    assert_eq!(quantized.check_lora_factor().unwrap_err().code(), "quant-unusable");
}

#[cfg(feature = "rayon")]
#[test]
fn executors_agree() {
    use slm_quant::{QuantizedRows, layout};

    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let two = slm_quant::RayonExecutor::new(pool);
    let mut random = Random(6);
    // 300 rows and more: several jobs of 64 KiB.
    for (encoding, rows, cols) in
        [(Encoding::Q4_1, 1003, 576), (Encoding::Q6_K, 700, 512), (Encoding::F16, 333, 300)]
    {
        let data = weights(encoding, rows, cols, Kind::Random, &mut random);
        let mut permuted = vec![0; data.len()];
        layout::interleave(encoding, rows, cols, &data, &mut permuted).unwrap();
        let plain = QMatrix::new(encoding, rows, cols, &data).unwrap();
        let strips = QMatrix::new_interleaved(encoding, rows, cols, &permuted).unwrap();
        for (n_tokens, w) in [1, 5, 16, 33].into_iter().flat_map(|n| [(n, plain), (n, strips)]) {
            let x = random.floats(n_tokens * cols, 1.0);
            for kernels in others() {
                let mut xq = QuantizedRows::new();
                let xq = cols.is_multiple_of(32).then(|| {
                    xq.quantize(kernels, &x, cols).unwrap();
                    &xq
                });
                let empty = vec![GUARD; rows * n_tokens];
                let one = guarded(&empty, |out| kernels.matmul(&Inline, out, &plain, &x, xq));
                let both = guarded(&empty, |out| kernels.matmul(&two, out, &w, &x, xq));
                assert_eq!(one, both, "{encoding} {n_tokens} {:?}", w.layout());
            }
        }
    }
    let (rank, cols) = (16, 5000);
    let data = weights(Encoding::F16, rank, cols, Kind::Random, &mut random);
    let bt = QMatrix::new(Encoding::F16, rank, cols, &data).unwrap();
    for n_tokens in [1, 9] {
        let (y, z) = (random.floats(n_tokens * cols, 1.0), random.floats(n_tokens * rank, 1.0));
        for kernels in others() {
            let one = guarded(&y, |y| kernels.lora_up(&Inline, y, 2.0, &bt, &z, n_tokens));
            let both = guarded(&y, |y| kernels.lora_up(&two, y, 2.0, &bt, &z, n_tokens));
            assert_eq!(one, both);
        }
    }
}

/// Every chunk once, with its own index, in step over two buffers.
#[test]
fn executors_cut_in_step() {
    let check = |exec: &dyn slm_quant::Executor| {
        assert!(exec.n_workers() >= 1);
        let mut entered = Vec::new();
        exec.enter(&mut || {
            let mut a = [0.0f32; 5];
            exec.for_each_chunk(&mut a, 1, &|i, a| a[0] = i as f32);
            entered.push(a);
        });
        assert_eq!(entered, [[0.0, 1.0, 2.0, 3.0, 4.0]]);
        for n in [0, 1, 5, 6, 7, 60, 61] {
            let (mut a, mut b) = (vec![0.0f32; 3 * n], vec![0.0f32; 2 * n]);
            exec.for_each_chunk_pair(&mut a, 15, &mut b, 10, &|i, a, b| {
                assert_eq!(a.len() * 2, b.len() * 3);
                for (y, x) in a.iter_mut().map(|y| (y, 1)).chain(b.iter_mut().map(|y| (y, 2))) {
                    *y += (i * 10 + x) as f32;
                }
            });
            assert!(a.iter().enumerate().all(|(at, &y)| y == (at / 15 * 10 + 1) as f32));
            assert!(b.iter().enumerate().all(|(at, &y)| y == (at / 10 * 10 + 2) as f32));
            exec.for_each_chunk(&mut a, 4, &|i, a| a.fill(i as f32));
            assert!(a.iter().enumerate().all(|(at, &y)| y == (at / 4) as f32));
        }
    };
    check(&Inline);
    #[cfg(feature = "rayon")]
    check(&slm_quant::RayonExecutor::new(
        rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap(),
    ));
}
