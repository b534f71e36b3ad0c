//! SLM1 bases run: bit-equal to the reference pass over weights that this test decodes by itself.
//!
//! No public file exists, so the weights are pseudo-random. Encoder and decoder here share no code with the crate.

mod common;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use common::{LIMITS, bits, code, engine, open};
use slm_format::Encoding;
use slm_format::slm1::{
    RawHeader, ScaleOrder, Slm1Dtype, Slm1Header, Slm1Tensor, TIED_OUTPUT, name_hash, write,
};
use slm_golden::{TRIG, reference};
use slm_manifest::ExecutionProfile;
use slm_quant::Tier;
use slm_runtime::load::{Base, ModelFormat};
use slm_runtime::tokenizer::SpecialTokens;
use slm_runtime::{Composition, Engine, Session};

/// One matrix in the file and decoded.
struct Matrix {
    theirs: String,
    ours: String,
    shape: Vec<u32>,
    dtype: Slm1Dtype,
    block: u32,
    values: Vec<u8>,
    scales: Vec<u8>,
    decoded: Vec<f32>,
}

fn header(tied: bool) -> RawHeader {
    RawHeader {
        flags: if tied { TIED_OUTPUT } else { 0 },
        vocab_size: 262,
        special_token_count: 4,
        hidden_size: 64,
        layer_count: 2,
        head_count: 4,
        kv_head_count: 2,
        head_dim: 16,
        ffn_size: 96,
        max_context: 64,
        rope_theta: 10_000.0,
        rms_norm_epsilon: 1e-5,
        checksum: 7,
    }
}

/// (their name, our name, shape)
fn names(h: &RawHeader) -> Vec<(String, String, Vec<u32>)> {
    let (v, d, f, kv) = (h.vocab_size, h.hidden_size, h.ffn_size, h.kv_head_count * h.head_dim);
    let mut all = vec![("tok_embeddings.weight".into(), "token_embd.weight".into(), vec![v, d])];
    for n in 0..h.layer_count {
        for (theirs, ours, shape) in [
            ("attn_norm", "attn_norm", vec![d]),
            ("ffn_norm", "ffn_norm", vec![d]),
            ("wq", "attn_q", vec![d, d]),
            ("wk", "attn_k", vec![kv, d]),
            ("wv", "attn_v", vec![kv, d]),
            ("wo", "attn_output", vec![d, d]),
            ("w1", "ffn_gate", vec![f, d]),
            ("w2", "ffn_down", vec![d, f]),
            ("w3", "ffn_up", vec![f, d]),
        ] {
            let (theirs, ours) =
                (format!("layers.{n}.{theirs}.weight"), format!("blk.{n}.{ours}.weight"));
            all.push((theirs, ours, shape));
        }
    }
    all.push(("norm.weight".into(), "output_norm.weight".into(), vec![d]));
    if h.flags & TIED_OUTPUT == 0 {
        all.push(("output.weight".into(), "output.weight".into(), vec![v, d]));
    }
    all
}

/// Quantizes pseudo-random weights, and says what they are again.
fn matrix(
    (theirs, ours, shape): (String, String, Vec<u32>),
    dtype: Slm1Dtype,
    seed: u32,
) -> Matrix {
    let n: u32 = shape.iter().product();
    let cols = *shape.last().expect("a shape");
    let is_norm = shape.len() == 1;
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let weights: Vec<f32> = (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let unit = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
            if is_norm { 1.0 + 0.2 * unit } else { 0.4 * unit }
        })
        .collect();
    let block = match dtype {
        Slm1Dtype::F32 => 0,
        Slm1Dtype::Q8_0 => cols,
        Slm1Dtype::Q4_0 => 32,
    };
    let mut values = Vec::new();
    let mut scales = Vec::new();
    let mut decoded = Vec::new();
    if dtype == Slm1Dtype::F32 {
        values.extend(weights.iter().flat_map(|w| w.to_le_bytes()));
        decoded = weights;
    } else {
        let mut nibbles = Vec::new();
        for part in weights.chunks(block as usize) {
            let max = part.iter().fold(1e-6f32, |max, w| max.max(w.abs()));
            let scale = max / if dtype == Slm1Dtype::Q8_0 { 127.0 } else { 7.0 };
            scales.extend(scale.to_le_bytes());
            for w in part {
                let q = (w / scale).round() as i8;
                decoded.push(q as f32 * scale);
                if dtype == Slm1Dtype::Q8_0 {
                    values.push(q.to_le_bytes()[0]);
                } else {
                    assert!((-8..8).contains(&q));
                    nibbles.push((q & 15) as u8);
                }
            }
        }
        values.extend(nibbles.chunks(2).map(|pair| pair[0] | pair[1] << 4));
    }
    Matrix { theirs, ours, shape, dtype, block, values, scales, decoded }
}

fn matrices(h: &RawHeader, dtype: Slm1Dtype) -> Vec<Matrix> {
    (1u32..).zip(names(h)).map(|(seed, named)| matrix(named, dtype, seed)).collect()
}

/// BPE1 with the format's published merges: t + h → 260, 260 + e → 261.
fn bpe() -> Vec<u8> {
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

fn file(h: RawHeader, matrices: &[Matrix], tokenizer: &[u8]) -> Vec<u8> {
    let tensors: Vec<Slm1Tensor<'_>> = matrices
        .iter()
        .map(|m| {
            let mut dims = [1; 4];
            dims[..m.shape.len()].copy_from_slice(&m.shape);
            Slm1Tensor {
                name_hash: name_hash(&m.theirs),
                dtype: m.dtype,
                rank: m.shape.len() as u32,
                dims,
                block_size: m.block,
                reserved: 0,
                values: &m.values,
                scales: &m.scales,
            }
        })
        .collect();
    let header = Slm1Header::check(h).expect("a header");
    let mut out = Vec::new();
    write(&mut out, &header, &[], tokenizer, &tensors, ScaleOrder::PerTensor).expect("written");
    out
}

fn expected(h: &RawHeader, matrices: &[Matrix], tokens: &[u32], int8: bool) -> Vec<Vec<f32>> {
    let config = reference::Config {
        architecture: reference::Architecture::Llama,
        n_layers: h.layer_count as usize,
        n_embd: h.hidden_size as usize,
        n_heads: h.head_count as usize,
        n_kv_heads: h.kv_head_count as usize,
        head_dim: h.head_dim as usize,
        rms_norm_eps: h.rms_norm_epsilon,
        rope_theta: h.rope_theta,
        rope_linear_factor: 1.0,
        rope_theta_local: h.rope_theta,
        sliding_window: None,
        sliding_window_pattern: 1,
    };
    let tensors: BTreeMap<String, reference::Tensor<'_>> = matrices
        .iter()
        .map(|m| {
            let cols = *m.shape.last().expect("a shape") as usize;
            let bytes: Vec<u8> = m.decoded.iter().flat_map(|w| w.to_le_bytes()).collect();
            let (rows, encoding) = (m.decoded.len() / cols, reference::Encoding::F32);
            (m.ours.clone(), reference::Tensor { encoding, rows, cols, bytes: Cow::Owned(bytes) })
        })
        .collect();
    let options = reference::Options { int8, kv_f16: int8, trig: TRIG };
    reference::logits(&reference::Model { config, tensors }, &[], tokens, options).expect("logits")
}

#[test]
fn bits_are_those_of_the_reference_pass() {
    let tokens: Vec<u32> = [256, 261, 32, 99, 97, 116, 255, 0, 260, 1].into();
    for dtype in [Slm1Dtype::F32, Slm1Dtype::Q8_0, Slm1Dtype::Q4_0] {
        for tied in [false, true] {
            let h = header(tied);
            let matrices = matrices(&h, dtype);
            let bytes = file(h, &matrices, &bpe());
            assert_eq!(ModelFormat::detect(&bytes).expect("a format"), ModelFormat::Slm1);
            let base = Arc::new(open(&bytes).expect("a base"));
            assert_eq!(base.quantization(), [(Encoding::F32, matrices.len() as u32)]);
            assert_eq!(base.config().tied_embeddings, tied);
            for (int8, profile) in
                [(true, ExecutionProfile::DEFAULT), (false, ExecutionProfile::ORACLE)]
            {
                let expected = expected(&h, &matrices, &tokens, int8);
                let last: Vec<u32> =
                    expected.last().expect("a row").iter().map(|v| v.to_bits()).collect();
                for tier in Tier::available() {
                    let composition = composition(&base);
                    let mut session =
                        Session::new(composition, profile, engine(tier, 1)).expect("a session");
                    let found = bits(&mut session, &tokens, 3);
                    assert_eq!(found.last, last, "{dtype:?}, tied {tied}, int8 {int8}, {tier:?}");
                }
            }
            // Read into memory, and by way of our own container: the same base.
            let engine = Engine::inline();
            let loaded = Base::load(&bytes, &LIMITS, engine.kernels, &*engine.exec, &|_| {});
            assert_eq!(loaded.expect("a base").id(), base.id());
            let mut stored = Vec::new();
            base.write_slm(&mut stored).expect("written");
            let stored = open(&stored).expect("a base");
            assert_eq!((stored.id(), stored.tokenizer_id()), (base.id(), base.tokenizer_id()));
        }
    }
}

fn composition(base: &Arc<Base>) -> Arc<Composition> {
    common::composition(base, &[])
}

#[test]
fn the_tokenizer_is_the_sections() {
    let h = header(true);
    let matrices = matrices(&h, Slm1Dtype::Q8_0);
    let base = open(&file(h, &matrices, &bpe())).expect("a base");
    let tokenizer = base.tokenizer().expect("a tokenizer");
    assert_eq!(tokenizer.encode("the", SpecialTokens::AsText).expect("ids"), [261]);
    assert_eq!((tokenizer.bos(), tokenizer.eos_ids()), (Some(256), &[257][..]));
    // Another tokenizer is another identity beside the same weights.
    let mut btok = b"BTOK".to_vec();
    [1u32, 262, 256, 257, 258, 259].iter().for_each(|field| btok.extend(field.to_le_bytes()));
    let bytes = open(&file(h, &matrices, &btok)).expect("a base");
    assert_eq!(bytes.id(), base.id());
    assert_ne!(bytes.tokenizer_id(), base.tokenizer_id());
}

#[test]
fn what_does_not_fit_the_graph_is_refused() {
    let h = header(true);
    let read = |h: RawHeader, matrices: &[Matrix], tokenizer: &[u8]| {
        open(&file(h, matrices, tokenizer)).map_or_else(|e| code::<()>(Err(e)), |_| "accepted")
    };
    let all = || matrices(&h, Slm1Dtype::Q8_0);
    assert_eq!(read(h, &all(), &bpe()), "accepted");
    let mut fewer = all();
    fewer.pop();
    assert_eq!(read(h, &fewer, &bpe()), "tensor-missing");
    // The same tensors in a file that says its head is its own: it lacks one. With the tensor, in a tied file: it would be ignored.
    assert_eq!(read(RawHeader { flags: 0, ..h }, &all(), &bpe()), "tensor-missing");
    let untied = matrices(&header(false), Slm1Dtype::Q8_0);
    assert_eq!(read(header(false), &untied, &bpe()), "accepted");
    assert_eq!(read(h, &untied, &bpe()), "tensor-unknown");
    let mut misnamed = all();
    misnamed[3].theirs.push('s');
    assert_eq!(read(h, &misnamed, &bpe()), "tensor-unknown");
    let mut turned = all();
    let wk = turned.iter_mut().find(|m| m.theirs == "layers.0.wk.weight").expect("wk");
    let reshaped = ("layers.0.wk.weight".into(), String::new(), vec![64, 32]);
    *wk = matrix(reshaped, Slm1Dtype::Q8_0, 1);
    assert_eq!(read(h, &turned, &bpe()), "tensor-shape");
    assert_eq!(read(RawHeader { head_dim: 15, ..h }, &all(), &bpe()), "config-heads");
    let larger = RawHeader { vocab_size: 263, ..h };
    let tensors = matrices(&larger, Slm1Dtype::Q8_0);
    assert_eq!(read(larger, &tensors, &bpe()), "vocabulary-mismatch");
    assert_eq!(read(h, &all(), b"WORD"), "tokenizer-unknown-model");
    for (bad, expected) in [(f32::NAN, "tensor-value"), (3.5, "accepted")] {
        let mut odd = matrices(&h, Slm1Dtype::F32);
        odd[0].values[40..44].copy_from_slice(&bad.to_le_bytes());
        assert_eq!(read(h, &odd, &bpe()), expected);
    }
    for (scale, expected) in [(f32::MAX, "tensor-value"), (1e-3, "accepted")] {
        let mut huge = all();
        huge[0].scales[..4].copy_from_slice(&scale.to_le_bytes());
        assert_eq!(read(h, &huge, &bpe()), expected);
    }
}
