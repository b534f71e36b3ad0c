//! Every tier gives the scalar tier's bits: for every encoding and function, at lengths around every boundary, on random and extreme
//! numbers, alone and in batches, under every executor, writing nowhere else.

mod common;

use common::{
    GUARD, KINDS, Kind, Random, activations, bits, columns, f16_offsets, guarded, others, scalar,
    weights,
};
use slm_format::{Coded, Encoding};
use slm_quant::{Inline, Kernels, QMatrix, QuantError, QuantizedRows, Tier, layout};

#[test]
fn products_agree() {
    let mut random = Random(1);
    for encoding in Encoding::all() {
        for cols in columns(encoding) {
            for kind in KINDS {
                for (rows, n_tokens) in [(1, 1), (7, 1), (8, 2), (17, 1), (9, 3), (35, 15)] {
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
    // The same matrix with its rows interleaved, at an odd address.
    let mut permuted = vec![0xa5; data.len() + 1];
    layout::interleave(encoding, rows, cols, &data, &mut permuted[1..]).unwrap();
    let strips = QMatrix::new_interleaved(encoding, rows, cols, &permuted[1..]).unwrap();
    strips.check_scales().unwrap();
    let name = |kernels: Kernels| {
        format!("{encoding} {rows}x{cols} {n_tokens} tokens, {kind:?}, {:?}", kernels.tier())
    };
    let mut decoded = Vec::new();
    for r in 0..rows {
        let row = guarded(&vec![GUARD; cols], |out| scalar().decode_row(out, &w, r));
        for kernels in others() {
            let other = guarded(&vec![GUARD; cols], |out| kernels.decode_row(out, &w, r));
            assert_eq!(other, row, "decoding of {}", name(kernels));
            let other = guarded(&vec![GUARD; cols], |out| kernels.decode_row(out, &strips, r));
            assert_eq!(other, row, "decoding of strips of {}", name(kernels));
        }
        decoded.push(row);
    }
    let empty = vec![GUARD; rows * n_tokens];
    for int8 in [false, true] {
        if int8 && !cols.is_multiple_of(32) {
            continue;
        }
        let run = |kernels: Kernels, w: &QMatrix, x: &[f32], out: &[f32]| {
            let mut xq = QuantizedRows::new();
            if int8 {
                xq.quantize(kernels, x, cols).unwrap();
            }
            let xq = int8.then_some(&xq);
            guarded(out, |out| kernels.matmul(&Inline, out, w, x, xq))
        };
        let expected = run(scalar(), &w, &x, &empty);
        for kernels in others() {
            for w in [&w, &strips] {
                let mine = run(kernels, w, &x, &empty);
                assert_eq!(mine, expected, "{} int8 {int8} {:?}", name(kernels), w.layout());
            }
            for (t, x) in x.chunks_exact(cols).enumerate() {
                let alone = run(kernels, &strips, x, &empty[..rows]);
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
