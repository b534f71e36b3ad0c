//! Every tier gives the scalar tier's bits, and the scalar tier those that it has on every machine; what is no number is refused.

mod common;

use common::{Kind, Random, f16_offsets, guarded, others, scalar, weights};
use slm_format::{Coded, Encoding};
use slm_kernel_checks::{CHECKS, Summary};
use slm_quant::{Inline, Kernels, QMatrix, QuantError, QuantizedRows, Tier, layout};

/// Cases and numbers compared on a tier other than scalar, and the digest of every bit that the scalar tier gives: computed by it, natively
/// on x86-64, under an emulator of aarch64 and as WASM. Another digest is another arithmetic.
const EXPECTED: [(u64, u64, u64); CHECKS.len()] = [
    (59, 1_679, 0xb5fe_cfc8_0641_a8df),
    (229_386, 76_014_402, 0x74d5_b894_d460_7d7c),
    (30, 23_256, 0xb15b_d7c4_fb7a_8f03),
    (84, 16_809, 0xd58b_d609_f6d4_2a6f),
    (560, 36_720, 0x5b45_29c6_c930_dac8),
    (26, 80, 0x16c7_4a47_a74c_3b65),
    (4, 380_935, 0x95dc_bcde_d582_85fb),
    (1, 200_000, 0x12fc_e7c5_58e9_bcb8),
    (20, 472, 0x1181_fb33_41fd_ff7e),
    (396, 18_738, 0xb35a_22e6_9130_98c8),
    (1_680, 603_870, 0x144f_3702_3234_b3c4),
];

#[test]
fn every_tier_has_the_scalar_bits() {
    for tier in Tier::available() {
        for ((name, check), (cases, values, digest)) in CHECKS.into_iter().zip(EXPECTED) {
            let summary = check(tier).unwrap_or_else(|mismatch| panic!("{name}: {mismatch}"));
            assert_eq!(summary.digest, digest, "{name} on {tier:?}");
            if tier != Tier::Scalar {
                assert_eq!(summary, Summary { cases, values, digest }, "{name} on {tier:?}");
            }
        }
    }
}

/// Blocks of a prompt, several tiles of eight among them, with strips that are asked for while those before are multiplied.
#[test]
fn many_tokens_with_strips_have_the_scalar_bits() {
    let mut random = Random(23);
    for encoding in Encoding::all().filter(|&encoding| layout::is_interleavable(encoding)) {
        let (rows, cols) = (50, 3 * encoding.block_elements().max(64));
        let data = weights(encoding, rows, cols, Kind::Random, &mut random);
        let mut strips = layout::AlignedBytes::zeroed(data.len());
        layout::interleave(encoding, rows, cols, &data, &mut strips).unwrap();
        let strips = QMatrix::new_interleaved(encoding, rows, cols, &strips).unwrap();
        let plain = QMatrix::new(encoding, rows, cols, &data).unwrap();
        for n_tokens in [1, 2, 4, 8, 16, 23, 35] {
            let x = random.floats(n_tokens * cols, 1.0);
            let product = |kernels: Kernels, w: &QMatrix<'_>| {
                let mut xq = QuantizedRows::new();
                xq.quantize(kernels, &x, cols).unwrap();
                guarded(&vec![7.0; n_tokens * rows], |y| {
                    kernels.matmul(&Inline, y, w, &x, Some(&xq));
                })
            };
            let expected = product(scalar(), &plain);
            for kernels in others() {
                assert_eq!(product(kernels, &strips), expected, "{encoding}, {n_tokens} tokens");
            }
        }
    }
}

/// A minimum that is 0 times a negative sum may be -0 in f32, beside a term that is 0 too.
#[test]
fn a_sum_of_zeros_is_zero_and_not_minus_zero() {
    for encoding in [Encoding::Q4_K, Encoding::Q5_K] {
        let (rows, cols) = (16, 256);
        let unit = encoding.block_bytes();
        let mut data = vec![0; rows * unit];
        for block in data.chunks_exact_mut(unit) {
            // d = -1, dmin = 1; all scales, minima and codes are 0.
            block[..4].copy_from_slice(&[0x00, 0xbc, 0x00, 0x3c]);
        }
        let mut strips = layout::AlignedBytes::zeroed(data.len());
        layout::interleave(encoding, rows, cols, &data, &mut strips).unwrap();
        let w = QMatrix::new_interleaved(encoding, rows, cols, &strips).unwrap();
        for n_tokens in [1, 2, 4, 8] {
            let x = vec![-1.0; n_tokens * cols];
            for kernels in others() {
                let mut xq = QuantizedRows::new();
                xq.quantize(kernels, &x, cols).unwrap();
                let y = guarded(&vec![7.0; n_tokens * rows], |y| {
                    kernels.matmul(&Inline, y, &w, &x, Some(&xq));
                });
                assert!(y.iter().all(|&bits| bits == 0), "{encoding}: {y:x?}");
            }
        }
    }
}

#[test]
fn ties_go_to_even_and_vanishing_blocks_to_zero() {
    let mut x = vec![1e-42f32; 64];
    for (i, x) in x[32..].iter_mut().enumerate() {
        *x = i as f32 - 15.5;
    }
    x[32] = 127.0;
    for kernels in others() {
        let mut xq = QuantizedRows::new();
        xq.quantize(kernels, &x, 64).unwrap();
        assert!(xq.q(0)[..32].iter().all(|&q| q == 0) && xq.d(0)[0].to_bits() == 0);
        assert_eq!(&xq.q(0)[33..37], &[-14, -14, -12, -12]);
    }
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
        // The same rows again and again: the first is found in strips as well.
        let data: Vec<u8> = data.iter().copied().cycle().take(data.len() * 9).collect();
        let mut permuted = vec![0; data.len()];
        layout::interleave(encoding, 18, cols, &data, &mut permuted).unwrap();
        let strips = QMatrix::new_interleaved(encoding, 18, cols, &permuted).unwrap();
        assert_eq!(strips.check_scales().unwrap_err(), error);
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
