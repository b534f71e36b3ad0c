//! The tiny model's shape, the reference adapters, and adapters made to order.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use slm_format::Limits;
use slm_format::safetensors::{Dtype, TensorSource, write};
use slm_manifest::config::Architecture;
use slm_overlay::peft::{BindingReport, PeftLora};
use slm_overlay::{Adapter, BaseShape, OverlayError};

/// A tensor to put in an adapter: name, type, shape, bytes.
pub(crate) type Tensor = (String, Dtype, Vec<u64>, Vec<u8>);

pub(crate) fn read(path: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn config(name: &str) -> String {
    String::from_utf8(read(&format!("{name}/adapter_config.json"))).unwrap()
}

pub(crate) fn weights(name: &str) -> Vec<u8> {
    read(&format!("{name}/adapter_model.safetensors"))
}

/// hidden 256, ffn 768, 8 heads of 32, 4 of them for K and V, 4 layers, vocabulary 1024, tied.
pub(crate) fn tiny() -> BaseShape<'static> {
    tiny_as(Architecture::Llama)
}

pub(crate) fn tiny_as(architecture: Architecture) -> BaseShape<'static> {
    let mut tensors = BTreeMap::from([("token_embd.weight".to_owned(), (1024, 256))]);
    for layer in 0..4 {
        for (name, shape) in [
            ("attn_q", (256, 256)),
            ("attn_k", (128, 256)),
            ("attn_v", (128, 256)),
            ("attn_output", (256, 256)),
            ("ffn_gate", (768, 256)),
            ("ffn_up", (768, 256)),
            ("ffn_down", (256, 768)),
        ] {
            tensors.insert(format!("blk.{layer}.{name}.weight"), shape);
        }
    }
    BaseShape {
        architecture,
        n_heads: 8,
        n_kv_heads: 4,
        head_dim: 32,
        n_layers: 4,
        tied_embeddings: true,
        tensors,
        weights: None,
    }
}

pub(crate) fn resolve(
    config: &str,
    weights: &[u8],
) -> Result<(Adapter, BindingReport), OverlayError> {
    PeftLora::parse(config.as_bytes(), weights, &Limits::STANDARD)?.resolve(&tiny())
}

/// A configuration with one field set to a JSON value; the field is put at the end when it is not there.
pub(crate) fn with(config: &str, field: &str, value: &str) -> String {
    let start = format!("\"{field}\": ");
    match config.find(&start) {
        Some(at) => {
            let from = at + start.len();
            let to = from + value_len(&config[from..]);
            format!("{}{value}{}", &config[..from], &config[to..])
        }
        None => format!(
            "{},\n{start}{value}\n}}",
            config.trim_end().strip_suffix('}').unwrap().trim_end()
        ),
    }
}

/// Length of the JSON value at the start of `text`.
fn value_len(text: &str) -> usize {
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' if depth > 0 => depth -= 1,
            b',' | b'}' | b'\n' if depth == 0 => return at,
            _ => {}
        }
    }
    text.len()
}

pub(crate) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Small values that differ from place to place.
pub(crate) fn ramp(len: u64, seed: u64) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// Both factors of a module, F32.
pub(crate) fn pair(path: &str, rank: u64, (rows, cols): (u64, u64)) -> Vec<Tensor> {
    let name = |half: &str| format!("base_model.model.{path}.{half}.weight");
    let seed = path.len() as u64;
    vec![
        (name("lora_A"), Dtype::F32, vec![rank, cols], f32_bytes(&ramp(rank * cols, seed))),
        (name("lora_B"), Dtype::F32, vec![rows, rank], f32_bytes(&ramp(rows * rank, seed + 1))),
    ]
}

pub(crate) fn file(tensors: &[Tensor]) -> Vec<u8> {
    let sources: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, data)| TensorSource { name, dtype: *dtype, shape, data })
        .collect();
    let mut out = Vec::new();
    write(&mut out, &sources, &BTreeMap::new()).unwrap();
    out
}

/// q and v of all four layers at rank 8, as the configuration `lora-qv` asks for.
pub(crate) fn qv_tensors() -> Vec<Tensor> {
    (0..4)
        .flat_map(|layer| {
            let mut tensors =
                pair(&format!("model.layers.{layer}.self_attn.q_proj"), 8, (256, 256));
            tensors.extend(pair(&format!("model.layers.{layer}.self_attn.v_proj"), 8, (128, 256)));
            tensors
        })
        .collect()
}
