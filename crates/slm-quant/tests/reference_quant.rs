//! Blocks made by ggml and bitsandbytes, their values by gguf-py 0.19 and bitsandbytes 0.50.2: decoding bit for bit, encoding byte for
//! byte (K types: by error).

mod common;

use common::{bits, bytes, file, floats, shape};
use slm_format::{Coded, Encoding};
use slm_quant::codec::{self, nf4};
use slm_quant::{Kernels, QMatrix, QuantError, Tier};

const GGML: [Encoding; 15] = [
    Encoding::F16,
    Encoding::BF16,
    Encoding::Q4_0,
    Encoding::Q4_1,
    Encoding::Q5_0,
    Encoding::Q5_1,
    Encoding::Q8_0,
    Encoding::Q2_K,
    Encoding::Q3_K,
    Encoding::Q4_K,
    Encoding::Q5_K,
    Encoding::Q6_K,
    Encoding::IQ4_NL,
    Encoding::IQ4_XS,
    Encoding::MXFP4,
];

fn reference(encoding: Encoding) -> Vec<u8> {
    file(&format!("quant/{}.safetensors", encoding.name().to_lowercase()))
}

fn rmse(a: &[f32], b: &[f32]) -> f64 {
    let sum: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    (sum / a.len() as f64).sqrt()
}

#[test]
fn every_ggml_type_decodes_bit_for_bit_on_every_tier() {
    for encoding in GGML {
        let file = reference(encoding);
        let (blocks, expected) = (bytes(&file, "blocks"), floats(&file, "dequantized"));
        let (rows, cols) = (shape(&file, "dequantized")[0], shape(&file, "dequantized")[1]);
        let w = QMatrix::new(encoding, rows, cols, &blocks).unwrap();
        w.check_scales().unwrap();
        let mut out = vec![0.0; rows * cols];
        codec::decode(encoding, &blocks, &mut out).unwrap();
        assert_eq!(bits(&out), bits(&expected), "{encoding}");
        for tier in Tier::available() {
            let kernels = Kernels::with_tier(tier).unwrap();
            let mut row = vec![f32::NAN; cols];
            for r in 0..rows {
                kernels.decode_row(&mut row, &w, r);
                assert_eq!(bits(&row), bits(&expected[r * cols..][..cols]), "{encoding} {tier:?}");
            }
        }
    }
}

#[test]
fn encoders_give_ggmls_bytes() {
    for encoding in &GGML[..7] {
        let file = reference(*encoding);
        let cols = shape(&file, "source")[1];
        let mine = codec::encode(*encoding, &floats(&file, "source"), cols).unwrap();
        let theirs = bytes(&file, "blocks");
        let different = mine.iter().zip(&theirs).filter(|(a, b)| a != b).count();
        assert_eq!((mine.len(), different), (theirs.len(), 0), "{encoding}");
    }
}

#[test]
fn k_encoders_are_as_good_as_ggmls() {
    let info: serde_json::Value = serde_json::from_slice(&file("quant/info.json")).unwrap();
    for encoding in [Encoding::Q4_K, Encoding::Q6_K] {
        let file = reference(encoding);
        let (source, cols) = (floats(&file, "source"), shape(&file, "source")[1]);
        let mine = codec::encode(encoding, &source, cols).unwrap();
        let mut out = vec![0.0; source.len()];
        codec::decode(encoding, &mine, &mut out).unwrap();
        let theirs = info[encoding.name()]["rmse"].as_f64().unwrap();
        let mine = rmse(&out, &source);
        assert!(mine <= theirs * 1.01, "{encoding}: {mine} against {theirs}");
    }
}

#[test]
fn bitsandbytes_tensors_convert_exactly() {
    for nested in [false, true] {
        let name = if nested { "nf4_double" } else { "nf4" };
        let file = file(&format!("quant/{name}.safetensors"));
        assert_eq!(bits(&floats(&file, "code")), bits(nf4::code()));
        let absmax = if nested {
            let (absmax, code) = (bytes(&file, "absmax"), floats(&file, "nested_code"));
            let (nested_absmax, offset) =
                (floats(&file, "nested_absmax"), floats(&file, "nested_offset")[0]);
            let nested = nf4::Nested {
                absmax: &absmax,
                code: &code,
                nested_absmax: &nested_absmax,
                blocksize: 256,
                offset,
            };
            nf4::undo_nested(&nested).unwrap()
        } else {
            floats(&file, "absmax")
        };
        let packed = bytes(&file, "blocks");
        let blocks = nf4::blocks(&packed, &absmax).unwrap();
        let expected = floats(&file, "dequantized");
        let mut out = vec![0.0; expected.len()];
        codec::decode(Encoding::NF4, &blocks, &mut out).unwrap();
        assert_eq!(bits(&out), bits(&expected), "{name}");
        assert_eq!(nf4::blocks(&packed[1..], &absmax).unwrap_err().code(), "quant-length");
        assert_eq!(nf4::blocks(&packed, &absmax[1..]).unwrap_err().code(), "quant-length");
        if !nested {
            let mine = codec::encode(Encoding::NF4, &floats(&file, "source"), 512).unwrap();
            assert_eq!(mine, blocks);
        }
    }
}

#[test]
fn nf4_ties_go_to_the_lower_code() {
    assert_eq!(nf4::nearest(1.0), 15);
    assert_eq!(nf4::nearest(-1.0), 0);
    for (i, pair) in nf4::code().windows(2).enumerate() {
        assert_eq!(usize::from(nf4::nearest((pair[0] + pair[1]) * 0.5)), i);
        assert_eq!(usize::from(nf4::nearest(pair[1])), i + 1);
    }
}

#[test]
fn encoders_refuse_what_they_cannot_hold() {
    for encoding in Encoding::all() {
        let cols = encoding.block_elements() * 2;
        let mut x: Vec<f32> = (0..2 * cols).map(|i| (i % 13) as f32 - 6.0).collect();
        let Ok(bytes) = codec::encode(encoding, &x, cols) else {
            let error = codec::encode(encoding, &x, cols).unwrap_err();
            assert_eq!(error.code(), "no-encoder", "{encoding}");
            continue;
        };
        let w = QMatrix::new(encoding, 2, cols, &bytes).unwrap();
        w.check_scales().unwrap();
        assert_eq!(codec::encode(encoding, &x[1..], cols).unwrap_err().code(), "quant-length");
        if encoding.block_elements() > 1 {
            let error = codec::encode(encoding, &x, cols - 1).unwrap_err();
            assert_eq!(error.code(), "quant-shape", "{encoding}");
        }
        assert_eq!(codec::encode(encoding, &x, 0).unwrap_err().code(), "quant-shape");
        let last = x.len() - 1;
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            x[last] = bad;
            let error = codec::encode(encoding, &x, cols).unwrap_err();
            assert_eq!(error, QuantError::NonFinite { row: 1, index: cols - 1 }, "{encoding}");
        }
        // Greater than any f16 scale can carry; the float types of 32 bits of range take it.
        x[last] = 3e38;
        let wide = matches!(encoding, Encoding::F32 | Encoding::BF16 | Encoding::NF4);
        let result = codec::encode(encoding, &x, cols);
        assert_eq!(result.is_ok(), wide, "{encoding}");
        if !wide {
            assert_eq!(result.unwrap_err().code(), "non-finite-activation");
        }
    }
}

#[test]
fn decoding_checks_its_lengths() {
    let bytes = [0u8; 34];
    let mut out = [1.0f32; 32];
    codec::decode(Encoding::Q8_0, &bytes, &mut out).unwrap();
    assert_eq!(out, [0.0; 32]);
    let error = codec::decode(Encoding::Q8_0, &bytes[1..], &mut out).unwrap_err();
    assert_eq!(error, QuantError::Length { what: "block bytes", needed: 34, given: 33 });
    let error = codec::decode(Encoding::Q8_0, &bytes, &mut out[1..]).unwrap_err();
    assert_eq!(error.code(), "quant-shape");
}
