//! The bytes of Q4_K's encoder: recorded when each candidate was still tried on its own, one weight after the other, so that a faster search is held
//! to the same choice among them, ties included. The kind "small" alone was recorded after the search was made faster.

mod common;

use std::path::Path;

use common::{bytes, file, floats, shape};
use slm_format::{Coded, Digest, Encoding};
use slm_quant::codec;

/// A block that begins at an element of the draws.
type Block = fn(u64) -> Vec<f32>;

/// Kinds of blocks, and the digest of their bytes.
const RECORDED: [(&str, Block, &str); 16] = [
    (
        "even",
        |at| each(at, even),
        "9e51e2a9d4144abaa97dee31be04949e7177c2bb8687e1896bee4b6accb8afbc",
    ),
    (
        "bell",
        |at| each(at, |at| 0.02 * bell(at)),
        "eba2ce4d1e01bdc26e70ad410d1cdbbf4deb5fb551644963a8be83694c8d5e84",
    ),
    (
        "heavy tails",
        |at| each(at, |at| bell(at).powi(3)),
        "f87e0daab654bf5f5dd1e922a63be8d00f3c86e478c6f40b1e6f0df3221f6d16",
    ),
    (
        "positive",
        |at| each(at, |at| 1.0 + even(at)),
        "96863aecabd6e35c8448339f46e2f074b70db89d1f6de802953b34df98f1da2c",
    ),
    (
        "negative",
        |at| each(at, |at| even(at) - 3.0),
        "d16b410f71a95f2dfb9c5c95aebe04a0b3ee31150a69fc2feb5d7cd01d66083f",
    ),
    (
        "outliers",
        |at| {
            each(
                at,
                |at| if word(at).is_multiple_of(40) { 20.0 * even(at) } else { 0.1 * even(at) },
            )
        },
        "40a6bc0014e75c5fd25e44cdd7e0ec5991565447c21bfab9ca94963525640305",
    ),
    (
        "sparse",
        |at| each(at, |at| if word(at).is_multiple_of(9) { even(at) } else { 0.0 }),
        "c777220250016657f453d4b8a57748e276bbd44fc5498bc79d70af52e7aff271",
    ),
    (
        "constant",
        |at| vec![even(at); 256],
        "c87a0a8cf6871c6820ee84335b2a69ea3fe7311cb771d1794e24bef82a191261",
    ),
    (
        "constant for 32",
        |at| (0..256).map(|i| even(at + i / 32)).collect(),
        "02425809fdbea75f634744d63b8a575bc55042a0bb6c6fe536463052a272d80f",
    ),
    (
        "zero",
        |at| vec![if at.is_multiple_of(512) { 0.0 } else { -0.0 }; 256],
        "19a9b0eb3572bcbee480f15089a756416b5ec8619f8f95fc78658f727be4fbf9",
    ),
    (
        "huge",
        |at| each(at, |at| 2e6 * even(at)),
        "aa34aa8ad10781040103c1495c945844655ba79c1eed8c2809e3e3386220f646",
    ),
    (
        "small",
        |at| each(at, |at| 2e-4 * even(at)),
        "fe623c0a5667fbfbb7d90b23edfbc93a72591d7d27e583ecdc9490458e4a6960",
    ),
    (
        "tiny",
        |at| each(at, |at| 2e-6 * even(at)),
        "d2582db4437d7af96941ff7ac87195f2ee900eda0b0416e05bbd8d9266563c2a",
    ),
    (
        "denormal",
        |at| each(at, |at| f32::from_bits(word(at) as u32 & 0x8000_00ff)),
        "19a9b0eb3572bcbee480f15089a756416b5ec8619f8f95fc78658f727be4fbf9",
    ),
    (
        "halves",
        |at| each(at, |at| (word(at) % 32) as f32 * 0.5 - 4.0),
        "1708c4ace8339e80b174fa3801ba3d939e03f16a908d517d2014e06ce1d8c154",
    ),
    (
        "many sizes",
        |at| {
            (0..256).map(|i| even(at + i) * 0.25f32.powi((word(at + i / 32) % 12) as i32)).collect()
        },
        "90fc28f7079d895c8b485bd4c956c189aa8694e04da1f7e9321b0a3b47887538",
    ),
];

#[test]
fn made_blocks_have_the_recorded_bytes() {
    for (name, block, recorded) in RECORDED {
        let x: Vec<f32> = (0..200).flat_map(|n| block(256 * n)).collect();
        assert_eq!(digest(&x, 256), recorded, "{name}");
    }
}

/// What merging into quantized weights asks for: weights on a grid of their own, moved a little.
#[test]
fn moved_blocks_have_the_recorded_bytes() {
    let x: Vec<f32> = (0..51_200).map(|at| 0.02 * bell(at)).collect();
    let on_grid = decoded(&codec::encode(Encoding::Q4_K, &x, 256).unwrap());
    let moved: Vec<f32> = (0..).zip(&on_grid).map(|(at, x)| x + 0.0005 * bell(!at)).collect();
    assert_eq!(
        digest(&on_grid, 256),
        "c6c9272d15a30c8db57ba7e7e1e496bd0f7965f2d1de6782c53dcdd57b8e6099"
    );
    assert_eq!(
        digest(&moved, 256),
        "1e25237326ea42307896283648aaadd763562b6130f56879a0db8a4f9540cc2f"
    );
}

#[test]
fn a_models_blocks_have_the_recorded_bytes() {
    let source = file("quant/q4_k.safetensors");
    assert_eq!(
        digest(&floats(&source, "source"), shape(&source, "source")[1]),
        "5a0a9204a01ade7d47b59dd355b9bd0890c1081cfdcd093dcce83de910a218f3"
    );
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/files/tiny/model.safetensors");
    let model = std::fs::read(&path).unwrap();
    for (name, recorded) in [
        (
            "model.layers.0.self_attn.k_proj.weight",
            "77266fa86e8669cc377f14f4420f7f624e5542d245e8a838bd7fc1c403885d85",
        ),
        (
            "model.layers.3.mlp.down_proj.weight",
            "8d9f7eceb28a4be16a56ecc00636b5f9ac7a432d3967c8f1464fb44b38dc074f",
        ),
    ] {
        let wide = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
        let x: Vec<f32> = bytes(&model, name).chunks_exact(2).map(wide).collect();
        assert_eq!(digest(&x, shape(&model, name)[1]), recorded, "{name}");
    }
}

#[test]
fn scales_beyond_f16_are_refused_and_those_below_are_not() {
    for (largest, code) in [
        (4e6, None),
        (1e9, Some("non-finite-activation")),
        (f32::MAX, Some("non-finite-activation")),
    ] {
        let mut x = vec![0.0; 256];
        (x[7], x[200]) = (largest, -largest);
        let found = codec::encode(Encoding::Q4_K, &x, 256).err();
        assert_eq!(found.map(|error| error.code()), code, "{largest}");
    }
}

fn digest(x: &[f32], cols: usize) -> String {
    Digest::of(&codec::encode(Encoding::Q4_K, x, cols).unwrap()).hex()
}

fn decoded(blocks: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; blocks.len() / 144 * 256];
    codec::decode(Encoding::Q4_K, blocks, &mut out).unwrap();
    out
}

fn each(at: u64, element: impl Fn(u64) -> f32) -> Vec<f32> {
    (at..at + 256).map(element).collect()
}

/// SplitMix64.
fn word(at: u64) -> u64 {
    let mut z = at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// From -1 to 1.
fn even(at: u64) -> f32 {
    (word(at) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Near a normal draw.
fn bell(at: u64) -> f32 {
    (0..12).map(|n| even(at.wrapping_mul(12).wrapping_add(n))).sum::<f32>() * 0.5
}
