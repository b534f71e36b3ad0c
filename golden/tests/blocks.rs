//! Blocks, quantized products and reductions against other people's programs.

mod common;

use std::borrow::Cow;

use common::{golden, read};
use safetensors::SafeTensors;
use slm_golden::load::floats;
use slm_golden::reference::{
    Encoding, Offset, Tensor, decode_row, dot_quantized, dot16, exp, f16_to_f32, f32_to_f16,
    quantize_row, sum16, unpack_row,
};

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

/// `vectors/quant/`: quantized by ggml, decoded by gguf-py.
#[test]
fn decoded_rows_have_gguf_py_bits() {
    let mut decoded = 0;
    for encoding in Encoding::all().filter(|&encoding| encoding != Encoding::F32) {
        let name = encoding.name();
        let path = golden("vectors/quant").join(format!("{}.safetensors", name.to_lowercase()));
        let bytes = read(&path);
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        let blocks = file.tensor("blocks").expect("blocks");
        let expected = file.tensor("dequantized").expect("dequantized");
        let (rows, cols) = (expected.shape()[0], expected.shape()[1]);
        let tensor = Tensor { encoding, rows, cols, bytes: Cow::Borrowed(blocks.data()) };
        let expected = floats(expected.dtype(), expected.data());
        for (row, expected) in expected.chunks_exact(cols).enumerate() {
            assert_eq!(bits(&decode_row(&tensor, row)), bits(expected), "{name} row {row}");
            decoded += 1;
        }
    }
    assert_eq!(decoded, 8 * 14);
}

/// `vectors/numerics/`: an independent NumPy float32 program.
#[test]
fn quantized_products_have_the_contracts_bits() {
    let mut products = 0;
    for name in ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"] {
        let path = golden("vectors/numerics").join(format!("{}.safetensors", name.to_lowercase()));
        let bytes = read(&path);
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        let encoding = Encoding::from_name(name).expect("an encoding");
        let blocks = file.tensor("blocks").expect("blocks");
        let (rows, cols) = (blocks.shape()[0], 576);
        let tensor = Tensor { encoding, rows, cols, bytes: Cow::Borrowed(blocks.data()) };
        for kind in ["normal", "half", "extreme"] {
            let get = |prefix: &str| {
                let view = file.tensor(&format!("{prefix}_{kind}")).expect("a vector");
                floats(view.dtype(), view.data())
            };
            let x = quantize_row(&get("x")).expect("finite");
            let y: Vec<f32> =
                (0..rows).map(|row| dot_quantized(&unpack_row(&tensor, row), &x)).collect();
            assert_eq!(bits(&y), bits(&get("y")), "{name} {kind}");
            products += rows;
        }
    }
    assert_eq!(products, 5 * 3 * 37);
}

#[test]
fn sums_over_sixteen_lanes_have_the_contracts_bits() {
    let bytes = read(&golden("vectors/numerics/reduce16.safetensors"));
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let get = |name: String| {
        let view = file.tensor(&name).expect("a vector");
        floats(view.dtype(), view.data())
    };
    let mut cases = 0;
    for name in file.names() {
        let Some(n) = name.strip_prefix("a_") else { continue };
        let (a, b) = (get(format!("a_{n}")), get(format!("b_{n}")));
        assert_eq!(bits(&[dot16(&a, &b)]), bits(&get(format!("dot_{n}"))), "dot {n}");
        assert_eq!(bits(&[sum16(&a)]), bits(&get(format!("sum_{n}"))), "sum {n}");
        cases += 1;
    }
    assert_eq!(cases, 7);
}

/// The `half` crate is the witness.
#[test]
fn halves_round_as_the_half_crate_does() {
    for code in 0..=u16::MAX {
        let (ours, theirs) = (f16_to_f32(code), half::f16::from_bits(code).to_f32());
        assert!(
            ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
            "{code:#x}"
        );
    }
    // Every exponent and sign, with mantissas around each place where f16 rounds.
    for high in 0..=u16::MAX {
        for low in [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0xffff]
        {
            let x = f32::from_bits(u32::from(high) << 16 | low);
            if !x.is_nan() {
                assert_eq!(f32_to_f16(x), half::f16::from_f32(x).to_bits(), "{:#x}", x.to_bits());
            }
        }
    }
}

/// The contract's exponential at its borders, and within 1e-6 relative of f64's between them.
#[test]
fn exp_is_close_and_never_leaves_its_exponents() {
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
    assert_eq!(exp(-87.33655).to_bits(), 0);
    assert!(exp(f32::MAX).is_finite());
    for i in -873_365..=883_762 {
        let x = i as f32 / 10_000.0;
        let exact = f64::from(x).exp();
        let error = (f64::from(exp(x)) - exact).abs() / exact;
        assert!(error < 2e-7, "exp({x}) is off by {error:e}");
    }
}

/// No one else has vectors for the K types, so their product is held against f64 over the decoded values: within f32 rounding of it.
#[test]
fn quantized_products_are_products_of_the_decoded_values() {
    for encoding in Encoding::all().filter(|encoding| encoding.is_integer()) {
        let name = encoding.name();
        let path = golden("vectors/quant").join(format!("{}.safetensors", name.to_lowercase()));
        let bytes = read(&path);
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        let blocks = file.tensor("blocks").expect("blocks");
        let (rows, cols) = (8, 512);
        let tensor = Tensor { encoding, rows, cols, bytes: Cow::Borrowed(blocks.data()) };
        // Sevens of a prime: no block repeats another.
        let x: Vec<f32> = (0..cols).map(|i| ((i * 7) % 251) as f32 / 40.0 - 3.0).collect();
        let x8 = quantize_row(&x).expect("finite");
        let x: Vec<f64> = x8
            .iter()
            .flat_map(|block| block.q.map(|q| f64::from(block.d) * f64::from(q)))
            .collect();
        for row in 0..rows {
            let w = decode_row(&tensor, row);
            let terms: Vec<f64> = w.iter().zip(&x).map(|(w, x)| f64::from(*w) * x).collect();
            let exact: f64 = terms.iter().sum();
            // Minima are taken off after the sums, so terms as large as the weights' range cancel.
            let size: f64 = terms.iter().map(|t| t.abs()).sum::<f64>() + 1e-6;
            let got = f64::from(dot_quantized(&unpack_row(&tensor, row), &x8));
            assert!((got - exact).abs() <= size * 1e-5, "{name} row {row}: {got} and {exact}");
        }
    }
}

/// The largest integers a block can hold: their conversion to f32 stays exact.
#[test]
fn integer_sums_stay_exact_at_their_extremes() {
    let mut largest = (0, 0);
    for encoding in Encoding::all().filter(|encoding| encoding.is_integer()) {
        let (cols, block_bytes) = encoding.block();
        for fill in [0x00, 0xff] {
            for scale_fill in [0x7f, 0x80, 0xff] {
                let mut bytes = vec![fill; block_bytes];
                match encoding {
                    Encoding::Q4_K | Encoding::Q5_K => bytes[4..16].fill(scale_fill),
                    Encoding::Q6_K => bytes[192..208].fill(scale_fill),
                    Encoding::Q3_K => bytes[96..108].fill(scale_fill),
                    Encoding::IQ4_XS => bytes[2..8].fill(scale_fill),
                    _ => {}
                }
                let tensor = Tensor { encoding, rows: 1, cols, bytes: Cow::Borrowed(&bytes) };
                for block in unpack_row(&tensor, 0) {
                    let term = |i: usize| i64::from((block.scale[i / 16] * block.q[i]).abs());
                    largest.0 = largest.0.max((0..32).map(term).sum::<i64>() * 127);
                    if let Offset::Minus { min, .. } = block.offset {
                        largest.1 = largest.1.max(i64::from(min[0] + min[1]) * 16 * 127);
                    }
                }
            }
        }
    }
    // Q6_K: 32 weights of -32 under scales of -128. Q4_K and Q5_K: minima of 63.
    assert_eq!(largest, (128 * 32 * 127 * 32, 63 * 127 * 32));
    assert!(largest.0 < 1 << 24);
}

/// §2 by hand: halves go to the even integer, a block of zeros and one whose inverse scale overflows count as zero, infinities are refused.
#[test]
fn activation_rows_follow_the_contract_at_its_edges() {
    let mut x = [0.0f32; 32];
    x[..8].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127.0]);
    let block = &quantize_row(&x).expect("finite")[0];
    assert_eq!((block.d, &block.q[..8]), (1.0, &[127, 0, 2, 2, 0, -2, -2, -127][..]));

    // 127 / amax overflows below 127 / f32::MAX.
    for (amax, zero) in [(0.0, true), (3.7e-37, true), (3.8e-37, false)] {
        x = [0.0; 32];
        x[3] = -amax;
        let block = &quantize_row(&x).expect("finite")[0];
        let expected = if zero { (0.0, 0) } else { (amax / 127.0, -127) };
        assert_eq!((block.d, block.q[3]), expected, "amax {amax}");
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        x[31] = bad;
        assert_eq!(quantize_row(&x), None);
    }
}
