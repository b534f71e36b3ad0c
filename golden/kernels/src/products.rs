//! Products, decoders, quantized rows and up-projections.

use slm_format::Encoding;
use slm_quant::{DownMatrix, Inline, Kernels, QMatrix, QuantizedRows, Tier, UpMatrix, layout};

use crate::cases::{KINDS, Kind, activations, columns, weights};
use crate::checker::{Checker, GUARD, Mismatch, Summary, bits};
use crate::random::Random;

/// Rows and tokens: below, at and above the sizes of strips and of tiles of tokens.
const SHAPES: [(usize, usize); 6] = [(1, 1), (7, 1), (8, 2), (17, 1), (9, 3), (35, 15)];

/// Products with 8-bit and with f32 activations, and decoded rows, of every encoding in either layout; batches, and each token alone.
///
/// # Errors
/// The first result that has other bits than the scalar tier's.
pub fn check_products(tier: Tier) -> Result<Summary, Mismatch> {
    let mut checker = Checker::new(tier)?;
    let mut random = Random(1);
    for encoding in Encoding::all() {
        for cols in columns(encoding) {
            for kind in KINDS {
                for (rows, n_tokens) in SHAPES {
                    product(&mut checker, encoding, rows, cols, n_tokens, kind, &mut random)?;
                }
            }
        }
    }
    Ok(checker.summary())
}

fn product(
    checker: &mut Checker,
    encoding: Encoding,
    rows: usize,
    cols: usize,
    n_tokens: usize,
    kind: Kind,
    random: &mut Random,
) -> Result<(), Mismatch> {
    let data = weights(encoding, rows, cols, kind, random);
    let x = activations(n_tokens * cols, kind, random);
    // The same matrix with its rows interleaved, at an odd address.
    let mut permuted = vec![0xa5; data.len() + 1];
    let refused = |error: slm_quant::QuantError| Mismatch::new(error.to_string());
    layout::interleave(encoding, rows, cols, &data, &mut permuted[1..]).map_err(refused)?;
    let w = QMatrix::new(encoding, rows, cols, &data).map_err(refused)?;
    let strips = QMatrix::new_interleaved(encoding, rows, cols, &permuted[1..]).map_err(refused)?;
    w.check_scales().map_err(refused)?;
    strips.check_scales().map_err(refused)?;
    // The same strips as weights that no cache keeps: at a line, at half of one, and where no vector load is aligned.
    let mut placed = layout::AlignedBytes::zeroed(data.len() + 32);
    let mut half_placed = layout::AlignedBytes::zeroed(data.len() + 32);
    placed[..data.len()].copy_from_slice(&permuted[1..]);
    half_placed[32..].copy_from_slice(&permuted[1..]);
    let passing = [&placed[..data.len()], &half_placed[32..], &permuted[1..]]
        .map(|bytes| QMatrix::new_interleaved(encoding, rows, cols, bytes).map(QMatrix::read_once));

    let name =
        |what: &str| format!("{what} of {encoding} {rows}x{cols}, {n_tokens} tokens, {kind:?}");
    let mut decoded = Vec::new();
    let blank = vec![GUARD; cols];
    for r in 0..rows {
        let row = checker.reference(&blank, |k, out| k.decode_row(out, &w, r))?;
        for w in [&w, &strips] {
            let name = || name(&format!("decoding {:?} row {r}", w.layout()));
            checker.compare(name, &row, &blank, |k, out| k.decode_row(out, w, r))?;
        }
        decoded.push(row);
    }
    let blank = vec![GUARD; rows * n_tokens];
    for int8 in [false, true] {
        if int8 && !cols.is_multiple_of(32) {
            continue;
        }
        let expected = checker.reference(&blank, |k, out| run(k, out, &w, &x, int8))?;
        for w in [&w, &strips] {
            let name = || name(&format!("{:?} product, int8 {int8},", w.layout()));
            checker.compare(name, &expected, &blank, |k, out| run(k, out, w, &x, int8))?;
        }
        for (t, x) in x.chunks_exact(cols).enumerate() {
            let name = || name(&format!("product of token {t} alone, int8 {int8},"));
            let expected = &expected[t * rows..][..rows];
            checker.compare(name, expected, &blank[..rows], |k, out| {
                run(k, out, &strips, x, int8);
            })?;
            for passing in if int8 { &passing[..] } else { &[] } {
                let passing = passing.as_ref().map_err(|error| refused(error.clone()))?;
                checker.compare(name, expected, &blank[..rows], |k, out| {
                    run(k, out, passing, x, int8);
                })?;
            }
        }
        if !int8 && checker.tier.tier() == Tier::Scalar {
            // The contract's own words: decode, then dot16.
            for (t, x) in x.chunks_exact(cols).enumerate() {
                for r in 0..rows {
                    let row: Vec<f32> = decoded[r].iter().map(|&b| f32::from_bits(b)).collect();
                    let dot = checker.scalar.dot16(&row, x).to_bits();
                    checker.compare_bits(
                        || name("dot16"),
                        &expected[t * rows + r..][..1],
                        &[dot],
                    )?;
                }
            }
        }
    }
    Ok(())
}

fn run(kernels: Kernels, out: &mut [f32], w: &QMatrix, x: &[f32], int8: bool) {
    let mut xq = QuantizedRows::new();
    if int8 {
        xq.quantize(kernels, x, w.cols()).expect("BUG: finite whole rows");
    }
    kernels.matmul(&Inline, out, w, x, int8.then_some(&xq));
}

/// Activation rows in 8 bits: codes, scales and sums.
///
/// # Errors
/// The first result that has other bits than the scalar tier's.
pub fn check_quantized_rows(tier: Tier) -> Result<Summary, Mismatch> {
    let mut checker = Checker::new(tier)?;
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
                xq.quantize(kernels, &x, cols).expect("BUG: finite whole rows");
                let mut all = Vec::new();
                for r in 0..3 {
                    all.extend(xq.q(r).iter().map(|&q| q as u32));
                    all.extend(bits(xq.d(r)));
                    all.extend(xq.xsum(r).iter().map(|&sum| sum as u32));
                }
                all
            };
            checker.both_bits(|| format!("{kind:?} rows of {cols} in 8 bits"), rows)?;
        }
    }
    Ok(checker.summary())
}

/// The two halves of low-rank terms in the precisions of their factors.
///
/// # Errors
/// The first result that has other bits than the scalar tier's.
pub fn check_low_rank(tier: Tier) -> Result<Summary, Mismatch> {
    let mut checker = Checker::new(tier)?;
    let mut random = Random(5);
    let told = |error: slm_quant::QuantError| Mismatch::new(error.to_string());
    for encoding in [Encoding::F32, Encoding::F16, Encoding::BF16] {
        for (rank, cols) in [(1, 1), (3, 7), (8, 8), (8, 33), (16, 64), (5, 576), (7, 144)] {
            let data = weights(encoding, rank, cols, Kind::Random, &mut random);
            let mut packed = vec![0; data.len()];
            DownMatrix::pack(encoding, rank, cols, &data, &mut packed).map_err(told)?;
            let a = DownMatrix::new(encoding, rank, cols, &packed).map_err(told)?;
            let (z, x) = (random.floats(rank, 1.0), random.floats(cols, 1.0));
            let name = || format!("down-projection {encoding} {rank}x{cols}");
            checker.both(name, &z, |k, z| k.low_rank_down(&Inline, [z], [&a], &x))?;

            let data = weights(encoding, cols, rank, Kind::Random, &mut random);
            UpMatrix::pack(encoding, cols, rank, &data, &mut packed).map_err(told)?;
            let b = UpMatrix::new(encoding, cols, rank, &packed).map_err(told)?;
            for (first, n_tokens) in [(0, 1), (cols / 3, 1), (0, 5)] {
                let y = random.floats(n_tokens * (cols - first), 1.0);
                let z = random.floats(n_tokens * rank, 1.0);
                let name = || format!("up-projection {encoding} {cols}x{rank}, {n_tokens} tokens");
                checker.both(name, &y, |k, y| k.low_rank_up(y, 0.3, &b, first, &z, n_tokens))?;
            }
        }
    }
    Ok(checker.summary())
}
