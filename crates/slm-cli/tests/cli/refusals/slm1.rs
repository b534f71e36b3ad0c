//! SLM1 files with one wrong field. No file of the format is public; these are written by our own writer, with numbers that mean nothing.

use slm_format::slm1::{
    RawHeader, ScaleOrder, Slm1Dtype, Slm1Header, Slm1Tensor, name_hash, write,
};

use super::{Imports, with};
use crate::common::Place;

/// So many tokens, 64 wide, one layer.
fn header(vocab_size: u32) -> RawHeader {
    RawHeader {
        flags: 0,
        vocab_size,
        special_token_count: 4,
        hidden_size: 64,
        layer_count: 1,
        head_count: 4,
        kv_head_count: 4,
        head_dim: 16,
        ffn_size: 96,
        max_context: 512,
        rope_theta: 10_000.0,
        rms_norm_epsilon: 1e-5,
        checksum: 0x1234_5678_9abc_def0,
    }
}

/// The names and shapes that the format requires.
fn names(vocab: u32) -> Vec<(&'static str, Vec<u32>)> {
    vec![
        ("tok_embeddings.weight", vec![vocab, 64]),
        ("layers.0.attn_norm.weight", vec![64]),
        ("layers.0.ffn_norm.weight", vec![64]),
        ("layers.0.wq.weight", vec![64, 64]),
        ("layers.0.wk.weight", vec![64, 64]),
        ("layers.0.wv.weight", vec![64, 64]),
        ("layers.0.wo.weight", vec![64, 64]),
        ("layers.0.w1.weight", vec![96, 64]),
        ("layers.0.w2.weight", vec![64, 96]),
        ("layers.0.w3.weight", vec![96, 64]),
        ("norm.weight", vec![64]),
        ("output.weight", vec![vocab, 64]),
    ]
}

/// A tokenizer of bytes: version, tokens, and the four special ones.
fn bytes_alone() -> Vec<u8> {
    let fields = [1u32, 260, 256, 257, 258, 259];
    [b"BTOK".to_vec(), fields.into_iter().flat_map(u32::to_le_bytes).collect()].concat()
}

/// A tokenizer of two merges: t + h → 260, 260 + e → 261.
fn merges() -> Vec<u8> {
    let mut bytes = b"BPE1".to_vec();
    let numbers = |bytes: &mut Vec<u8>, fields: &[u32]| {
        fields.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    };
    numbers(&mut bytes, &[1, 262, 256, 257, 258, 259, 2, 2]);
    for (id, text) in [(260, &b"th"[..]), (261, b"the")] {
        numbers(&mut bytes, &[id, text.len() as u32]);
        bytes.extend(text);
    }
    let (t, h, e) = (u32::from(b't'), u32::from(b'h'), u32::from(b'e'));
    numbers(&mut bytes, &[t, h, 260, 0, 260, e, 261, 1]);
    bytes
}

/// A file whose tensors are in this type, with so many tokens and a tokenizer section.
fn file(dtype: Slm1Dtype, vocab: u32, tokenizer: &[u8]) -> Vec<u8> {
    let owned: Vec<_> = names(vocab)
        .into_iter()
        .map(|(name, shape)| {
            let n: usize = shape.iter().map(|&dim| dim as usize).product();
            let cols = *shape.last().expect("a shape");
            let (values, scales, block): (Vec<u8>, Vec<u8>, u32) = match dtype {
                Slm1Dtype::F32 => {
                    let value = |i: usize| ((i % 17) as f32 / 64.0).to_le_bytes();
                    ((0..n).flat_map(value).collect(), Vec::new(), 0)
                }
                _ => {
                    let rows = n / cols as usize;
                    let scale = (0..rows).flat_map(|_| 0.01f32.to_le_bytes());
                    ((0..n).map(|i| (i % 31) as u8).collect(), scale.collect(), cols)
                }
            };
            (name_hash(name), shape, values, scales, block)
        })
        .collect();
    let tensors: Vec<Slm1Tensor<'_>> = owned
        .iter()
        .map(|(hash, shape, values, scales, block)| {
            let mut dims = [1; 4];
            dims[..shape.len()].copy_from_slice(shape);
            Slm1Tensor {
                name_hash: *hash,
                dtype,
                rank: shape.len() as u32,
                dims,
                block_size: *block,
                reserved: 0,
                values,
                scales,
            }
        })
        .collect();
    let header = Slm1Header::check(header(vocab)).expect("a header");
    let mut out = Vec::new();
    write(&mut out, &header, &[], tokenizer, &tensors, ScaleOrder::PerTensor).expect("written");
    out
}

#[test]
fn headers() {
    let place = Place::new();
    let mut imports = Imports::new(&place);
    let good = file(Slm1Dtype::Q8_0, 260, &bytes_alone());
    imports.accepted("good.slm1", &good);
    for (name, at, bytes) in [
        ("version-2", 4, &[2][..]),
        ("header-of-107", 8, &[107]),
        ("model-type-0", 12, &[0]),
        ("flag-2", 16, &[2]),
        ("259-tokens", 20, &[3, 1]),
        ("three-special", 24, &[3]),
        ("width-of-0", 28, &[0; 4]),
        ("three-kv-heads", 40, &[3]),
        ("theta-of-0", 56, &[0; 4]),
        ("tokenizer-far-away", 64, &u64::MAX.to_le_bytes()),
        ("tokenizer-in-the-header", 64, &[107]),
        ("tokenizer-shorter", 72, &[20]),
        ("directory-at-193", 80, &[193]),
        ("many-tensors", 88, &[0xff; 4]),
        ("data-at-65536", 92, &(1u64 << 16).to_le_bytes()),
        ("no-checksum", 100, &[0; 8]),
    ] {
        imports.refused(&format!("{name}.slm1"), &with(&good, at, bytes));
    }
    imports.refused("cut.slm1", &good[..60]);
    insta::assert_snapshot!(imports.finish());
}

#[test]
fn entries() {
    let place = Place::new();
    let mut imports = Imports::new(&place);
    let good = file(Slm1Dtype::Q8_0, 260, &bytes_alone());
    imports.accepted("good.slm1", &good);
    // The second entry: attn_norm, [64].
    let entry = 192 + 64;
    for (name, at, bytes) in [
        ("one-name-twice", 0, good[192..200].to_vec()),
        ("type-4", 8, vec![4]),
        ("rank-5", 12, vec![5]),
        ("dimension-of-0", 16, vec![0]),
        ("another-length", 40, vec![1]),
        ("no-scales", 48, vec![0; 8]),
        ("block-of-63", 56, vec![63]),
        ("far-away", 32, (1u64 << 40).to_le_bytes().to_vec()),
    ] {
        imports.refused(&format!("{name}.slm1"), &with(&good, entry + at, &bytes));
    }
    let huge = [16, 20, 24, 28, 56]
        .iter()
        .fold(with(&good, entry + 12, &[4]), |file, at| with(&file, entry + at, &[0xff; 4]));
    imports.refused("beyond-counting.slm1", &huge);
    let at = u64::from_le_bytes(good[192 + 48..192 + 56].try_into().expect("eight bytes"));
    let nan = f32::NAN.to_le_bytes();
    imports.refused("a-scale-of-nan.slm1", &with(&good, at as usize, &nan));
    // Plain floats have no scales: the numbers themselves are looked at.
    let plain = file(Slm1Dtype::F32, 260, &bytes_alone());
    imports.accepted("plain.slm1", &plain);
    let at = u64::from_le_bytes(plain[192 + 32..192 + 40].try_into().expect("eight bytes"));
    imports.refused("a-number-of-nan.slm1", &with(&plain, at as usize, &nan));
    insta::assert_snapshot!(imports.finish());
}

#[test]
fn tokenizers() {
    let place = Place::new();
    let mut imports = Imports::new(&place);
    let good = merges();
    let mut refused = |name: &str, tokenizer: &[u8]| {
        imports.refused(&format!("{name}.slm1"), &file(Slm1Dtype::Q8_0, 262, tokenizer));
    };
    for (name, at, value) in [
        ("version-2", 4, 2u32),
        ("a-record-of-token-262", 36, 262),
        ("another-output", 65, 261),
        ("one-rank-twice", 85, 0),
        ("a-merge-of-none", 57, 999),
    ] {
        refused(name, &with(&good, at, &value.to_le_bytes()));
    }
    refused("words", b"WORD");
    imports.accepted("good.slm1", &file(Slm1Dtype::Q8_0, 262, &good));
    insta::assert_snapshot!(imports.finish());
}
