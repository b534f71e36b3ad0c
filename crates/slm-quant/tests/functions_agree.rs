//! What functions must give by the contract, and executors: on every tier.

mod common;

use common::{Kind, Random, bits, guarded, others, scalar, weights};
use slm_format::Encoding;
use slm_quant::{Inline, Kernels, QMatrix};

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

#[cfg(feature = "rayon")]
#[test]
fn executors_agree() {
    use common::GUARD;
    use slm_quant::{Piece, QuantizedRows, layout};

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
                // Three together, and two in step, are each alone; every piece is finished once.
                let twice = |_: Piece, out: &mut [f32]| out.iter_mut().for_each(|y| *y *= 2.0);
                let (mut a, mut b, mut c) = (empty.clone(), empty.clone(), empty.clone());
                let outs = [&mut a[..], &mut b[..], &mut c[..]];
                kernels.matmul_each(&two, outs, [&w, &plain, &w], &x, xq, Some(&|_| &data), &twice);
                let doubled: Vec<u32> =
                    one.iter().map(|&y| (f32::from_bits(y) * 2.0).to_bits()).collect();
                for out in [&a, &b, &c] {
                    assert_eq!(bits(out), doubled, "{encoding} {n_tokens} of three");
                }
                let outs = [&mut a[..], &mut b[..]];
                kernels.matmul_pair(
                    &two,
                    outs,
                    [&w, &plain],
                    &x,
                    xq,
                    Some(&|_| &data),
                    &|piece, a, b| {
                        assert_eq!(a.len(), piece.n_rows * piece.n_tokens);
                        a.iter_mut().zip(b).for_each(|(a, b)| *a += *b);
                    },
                );
                assert_eq!(bits(&a), doubled, "{encoding} {n_tokens} in step");
            }
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
