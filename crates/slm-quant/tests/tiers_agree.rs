//! Every tier gives the scalar tier's bits: for every encoding and function, at lengths around every boundary, on random and extreme
//! numbers, alone and in batches, under every executor, writing nowhere else.

mod common;

use common::{Random, bits};
use slm_format::{Coded, Encoding};
use slm_quant::{Inline, Kernels, QMatrix, QuantError, QuantizedRows, Tier};

/// What a guard zone holds: a NaN that no kernel produces.
const GUARD: f32 = f32::from_bits(0x7fa5_a5a5);
const GUARDS: usize = 16;

/// Runs `f` on a copy of `out` between guard zones and gives the bits of the result.
fn guarded(out: &[f32], f: impl FnOnce(&mut [f32])) -> Vec<u32> {
    let mut all = vec![GUARD; out.len() + 2 * GUARDS];
    all[GUARDS..][..out.len()].copy_from_slice(out);
    f(&mut all[GUARDS..][..out.len()]);
    for guard in all[..GUARDS].iter().chain(&all[GUARDS + out.len()..]) {
        assert_eq!(guard.to_bits(), GUARD.to_bits(), "written outside the output");
    }
    bits(&all[GUARDS..][..out.len()])
}

fn scalar() -> Kernels {
    Kernels::with_tier(Tier::Scalar).unwrap()
}

fn others() -> impl Iterator<Item = Kernels> {
    Tier::available().into_iter().map(|tier| Kernels::with_tier(tier).unwrap())
}

/// How the weights and activations of a case are made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Random,
    /// Every byte of codes and scales 0x80 (for Q8_0: -128), activations ± their greatest.
    Lowest,
    /// Every byte 0x7f.
    Highest,
    /// Every byte 0xff.
    Ones,
    Zero,
    /// Subnormal scales on both sides.
    Tiny,
}

const KINDS: [Kind; 6] =
    [Kind::Random, Kind::Lowest, Kind::Highest, Kind::Ones, Kind::Zero, Kind::Tiny];

/// Where the f16 scales of a block stand.
fn f16_offsets(encoding: Encoding) -> &'static [usize] {
    match encoding {
        Encoding::Q4_0 | Encoding::Q5_0 | Encoding::Q8_0 | Encoding::IQ4_NL | Encoding::IQ4_XS => {
            &[0]
        }
        Encoding::Q4_1 | Encoding::Q5_1 | Encoding::Q4_K | Encoding::Q5_K => &[0, 2],
        Encoding::Q2_K => &[80, 82],
        Encoding::Q3_K => &[108],
        Encoding::Q6_K => &[208],
        _ => &[],
    }
}

fn weights(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    kind: Kind,
    random: &mut Random,
) -> Vec<u8> {
    let len = encoding.row_bytes(cols).unwrap() * rows;
    let mut bytes: Vec<u8> = (0..len)
        .map(|_| match kind {
            Kind::Random | Kind::Tiny => random.next() as u8,
            Kind::Lowest => 0x80,
            Kind::Highest => 0x7f,
            Kind::Ones => 0xff,
            Kind::Zero => 0,
        })
        .collect();
    for block in bytes.chunks_exact_mut(encoding.block_bytes()) {
        let value = match kind {
            Kind::Random => random.unit(),
            Kind::Tiny => random.unit() * 1e-6,
            Kind::Zero => 0.0,
            _ => 65504.0,
        };
        match encoding {
            Encoding::F32 | Encoding::NF4 => {
                let value = if kind == Kind::Tiny { value * 1e-34 } else { value };
                block[..4].copy_from_slice(&value.to_le_bytes());
            }
            Encoding::F16 => block.copy_from_slice(&half(value)),
            Encoding::BF16 => {
                let value = if kind == Kind::Tiny { value * 1e-34 } else { value };
                block.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes());
            }
            Encoding::MXFP4 => {
                block[0] = match kind {
                    Kind::Random => 120 + (random.next() % 16) as u8,
                    Kind::Tiny => (random.next() % 4) as u8,
                    Kind::Zero => 0,
                    _ => 140,
                }
            }
            _ => {
                for &at in f16_offsets(encoding) {
                    block[at..at + 2].copy_from_slice(&half(value));
                }
            }
        }
    }
    bytes
}

fn half(value: f32) -> [u8; 2] {
    half::f16::from_f32(value).to_le_bytes()
}

fn activations(n: usize, kind: Kind, random: &mut Random) -> Vec<f32> {
    let scale = match kind {
        Kind::Tiny => 1e-37,
        Kind::Lowest | Kind::Highest | Kind::Ones => 3e4,
        _ => 1.0,
    };
    match kind {
        Kind::Random | Kind::Tiny => random.floats(n, scale),
        Kind::Zero => (0..n).map(|i| if i % 2 == 0 { 0.0 } else { -0.0 }).collect(),
        // Whole blocks of one sign, so that the sums reach their extremes.
        _ => (0..n).map(|i| if i / 32 % 2 == 0 { scale } else { -scale }).collect(),
    }
}

/// Column counts at, below and above the boundaries of blocks, groups of eight blocks and runs of 64.
fn columns(encoding: Encoding) -> Vec<usize> {
    match encoding.block_elements() {
        1 => vec![1, 15, 16, 17, 31, 255, 256, 257, 300],
        32 => vec![32, 64, 96, 128, 160, 192, 224, 256, 288, 576, 2048, 2080],
        64 => vec![64, 192, 256, 320],
        _ => vec![256, 512, 2048, 2304],
    }
}

#[test]
fn products_agree() {
    let mut random = Random(1);
    for encoding in Encoding::all() {
        for cols in columns(encoding) {
            for kind in KINDS {
                for (rows, n_tokens) in [(1, 1), (7, 1), (8, 2), (17, 1), (9, 3), (10, 7)] {
                    case(encoding, rows, cols, n_tokens, kind, &mut random);
                }
            }
        }
    }
}

fn case(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    n_tokens: usize,
    kind: Kind,
    random: &mut Random,
) {
    let data = weights(encoding, rows, cols, kind, random);
    let w = QMatrix::new(encoding, rows, cols, &data).unwrap();
    w.check_scales().unwrap();
    let x = activations(n_tokens * cols, kind, random);
    let name = |kernels: Kernels| {
        format!("{encoding} {rows}x{cols} {n_tokens} tokens, {kind:?}, {:?}", kernels.tier())
    };
    let mut decoded = Vec::new();
    for r in 0..rows {
        let row = guarded(&vec![GUARD; cols], |out| scalar().decode_row(out, &w, r));
        for kernels in others() {
            let other = guarded(&vec![GUARD; cols], |out| kernels.decode_row(out, &w, r));
            assert_eq!(other, row, "decoding of {}", name(kernels));
        }
        decoded.push(row);
    }
    let empty = vec![GUARD; rows * n_tokens];
    for int8 in [false, true] {
        if int8 && !cols.is_multiple_of(32) {
            continue;
        }
        let run = |kernels: Kernels, x: &[f32], out: &[f32]| {
            let mut xq = QuantizedRows::new();
            if int8 {
                xq.quantize(kernels, x, cols).unwrap();
            }
            let xq = int8.then_some(&xq);
            guarded(out, |out| kernels.matmul(&Inline, out, &w, x, xq))
        };
        let expected = run(scalar(), &x, &empty);
        for kernels in others() {
            assert_eq!(run(kernels, &x, &empty), expected, "{} int8 {int8}", name(kernels));
            for (t, x) in x.chunks_exact(cols).enumerate() {
                let alone = run(kernels, x, &empty[..rows]);
                assert_eq!(alone, expected[t * rows..][..rows], "{} token {t}", name(kernels));
            }
        }
        if !int8 {
            // The contract's own words: decode, then dot16.
            for (t, x) in x.chunks_exact(cols).enumerate() {
                for r in 0..rows {
                    let row: Vec<f32> = decoded[r].iter().map(|&b| f32::from_bits(b)).collect();
                    assert_eq!(expected[t * rows + r], scalar().dot16(&row, x).to_bits());
                }
            }
        }
    }
}

#[test]
fn quantized_rows_agree() {
    let mut random = Random(2);
    for cols in [32, 64, 256, 288, 576] {
        for kind in KINDS {
            let mut x = activations(3 * cols, kind, &mut random);
            // A block whose inverse scale overflows, ties of the rounding, and a lone maximum.
            x[..32].fill(1e-42);
            for (i, x) in x[cols..cols + 32].iter_mut().enumerate() {
                *x = i as f32 - 15.5;
            }
            x[cols] = 127.0;
            let rows = |kernels: Kernels| {
                let mut xq = QuantizedRows::new();
                xq.quantize(kernels, &x, cols).unwrap();
                (0..3)
                    .map(|r| (xq.q(r).to_vec(), bits(xq.d(r)), xq.xsum(r).to_vec()))
                    .collect::<Vec<_>>()
            };
            let expected = rows(scalar());
            assert!(expected[0].0[..32].iter().all(|&q| q == 0) && expected[0].1[0] == 0);
            assert_eq!(&expected[1].0[1..5], &[-14, -14, -12, -12], "ties go to even");
            for kernels in others() {
                assert_eq!(rows(kernels), expected, "{kind:?} {:?}", kernels.tier());
            }
        }
    }
}

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
fn integer_sums_are_exact_in_f32() {
    for encoding in Encoding::all() {
        let (i, m) = Kernels::integer_bounds(encoding);
        assert!(i < 1 << 24 && m < 1 << 24, "{encoding}: {i} {m}");
    }
    assert_eq!(Kernels::integer_bounds(Encoding::Q6_K).0, 32 * 32 * 127 * 128);
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
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let two = slm_quant::RayonExecutor::new(pool);
    let mut random = Random(6);
    // 300 rows and more: several jobs of 64 KiB.
    for (encoding, rows, cols) in
        [(Encoding::Q4_1, 1003, 576), (Encoding::Q6_K, 700, 512), (Encoding::F16, 333, 300)]
    {
        let data = weights(encoding, rows, cols, Kind::Random, &mut random);
        let w = QMatrix::new(encoding, rows, cols, &data).unwrap();
        for n_tokens in [1, 5, 33] {
            let x = random.floats(n_tokens * cols, 1.0);
            for kernels in others() {
                let mut xq = QuantizedRows::new();
                let xq = cols.is_multiple_of(32).then(|| {
                    xq.quantize(kernels, &x, cols).unwrap();
                    &xq
                });
                let empty = vec![GUARD; rows * n_tokens];
                let one = guarded(&empty, |out| kernels.matmul(&Inline, out, &w, &x, xq));
                let both = guarded(&empty, |out| kernels.matmul(&two, out, &w, &x, xq));
                assert_eq!(one, both, "{encoding} {n_tokens}");
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

#[test]
fn non_finite_is_refused() {
    for kernels in others() {
        let mut xq = QuantizedRows::new();
        let mut x = vec![1.0f32; 128];
        xq.quantize(kernels, &x, 64).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            x[64 + 35] = bad;
            let error = xq.quantize(kernels, &x, 64).unwrap_err();
            assert_eq!(error, QuantError::NonFinite { row: 1, index: 35 });
            assert_eq!(error.code(), "non-finite-activation");
            assert_eq!(xq.n_rows(), 0);
        }
        assert_eq!(xq.quantize(kernels, &[1.0; 33], 33).unwrap_err().code(), "quant-length");
        assert_eq!(xq.quantize(kernels, &[1.0; 33], 32).unwrap_err().code(), "quant-length");
    }
    let mut random = Random(7);
    for encoding in Encoding::all() {
        let cols = encoding.block_elements() * 3;
        let mut data = weights(encoding, 2, cols, Kind::Random, &mut random);
        QMatrix::new(encoding, 2, cols, &data).unwrap().check_scales().unwrap();
        let block = encoding.block_bytes();
        // Row 1, block 2, the last scale of the block.
        let at = 5 * block;
        match encoding {
            Encoding::F32 | Encoding::NF4 => {
                data[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
            }
            Encoding::BF16 => data[at..at + 2].copy_from_slice(&[0x80, 0x7f]),
            Encoding::F16 => data[at..at + 2].copy_from_slice(&[0x00, 0x7c]),
            Encoding::MXFP4 => data[at] = 255,
            _ => {
                let at = at + f16_offsets(encoding).last().unwrap();
                data[at..at + 2].copy_from_slice(&[0x00, 0xfc]);
            }
        }
        let error = QMatrix::new(encoding, 2, cols, &data).unwrap().check_scales().unwrap_err();
        assert_eq!(error, QuantError::NonFiniteScale { encoding, row: 1, block: 2 });
        assert_eq!(error.code(), "non-finite-scale");
    }
}

#[test]
fn shapes_are_refused() {
    let data = [0u8; 68];
    assert!(QMatrix::new(Encoding::Q8_0, 2, 32, &data).is_ok());
    for (rows, cols, code) in [
        (2, 33, "quant-shape"),
        (2, 0, "quant-shape"),
        (usize::MAX, 32, "quant-shape"),
        (1, 32, "quant-length"),
        (3, 32, "quant-length"),
    ] {
        let error = QMatrix::new(Encoding::Q8_0, rows, cols, &data).unwrap_err();
        assert_eq!(error.code(), code, "{rows} {cols}");
    }
}

#[test]
fn tiers_have_names() {
    for tier in Tier::available() {
        assert_eq!(Tier::from_name(tier.name()), Some(tier));
        let kernels = Kernels::with_tier(tier).unwrap();
        assert_eq!(kernels.tier(), tier);
        assert!(kernels.kernel_name(Encoding::Q4_1, true).starts_with(tier.name()));
        assert!(kernels.kernel_name(Encoding::Q4_1, true).ends_with("int8"));
        assert!(kernels.kernel_name(Encoding::Q4_1, false).ends_with("f32"));
        assert!(kernels.kernel_name(Encoding::F16, true).ends_with("f32"));
    }
    assert_eq!(Tier::from_name("avx1024"), None);
    assert_eq!(Tier::available()[0], Tier::Scalar);
    assert_eq!(Tier::detect(), *Tier::available().last().unwrap());
}
