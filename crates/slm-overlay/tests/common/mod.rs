//! The tiny model's shape, the reference adapters, and adapters made to order.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use slm_format::safetensors::{Dtype, SafeTensors, TensorSource, write};
use slm_format::{Encoding, Limits};
use slm_manifest::BaseId;
use slm_manifest::config::Architecture;
use slm_overlay::peft::{BindingReport, PeftAdapter, PeftLora};
use slm_overlay::{Adapter, BaseShape, BaseWeights, Gates, OverlayError, Stack};
use slm_quant::{Inline, Kernels};

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

/// A base whose embedding table is the copy that the embedding adapter carries, in f32, and that is small numbers elsewhere.
pub(crate) struct Weights(pub(crate) Vec<f32>);

impl Weights {
    pub(crate) fn new() -> Weights {
        let bytes = weights("lora-embed");
        let file = SafeTensors::parse(&bytes, &Limits::STANDARD).unwrap();
        let copy = file.get("base_model.model.model.embed_tokens.base_layer.weight").unwrap();
        let value = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        Weights(copy.data.chunks_exact(4).map(value).collect())
    }
}

impl BaseWeights for Weights {
    fn row(&self, tensor: &str, row: usize, out: &mut [f32]) {
        match tensor {
            "token_embd.weight" => out.copy_from_slice(&self.0[row * out.len()..][..out.len()]),
            _ => out.copy_from_slice(&ramp(out.len() as u64, row as u64)),
        }
    }

    fn encoding(&self, _tensor: &str) -> Option<Encoding> {
        Some(Encoding::F32)
    }
}

pub(crate) fn on<'a>(weights: &'a Weights) -> BaseShape<'a> {
    BaseShape { weights: Some(weights), ..tiny() }
}

pub(crate) fn folder(name: &str, base: &BaseShape<'_>) -> Adapter {
    let parsed = PeftAdapter::parse(config(name).as_bytes(), &weights(name), &Limits::STANDARD);
    parsed
        .and_then(|parsed| parsed.resolve(base))
        .unwrap_or_else(|error| panic!("{name}: {error}"))
        .0
}

/// What an adapter makes of a row, from a base's product of zeros.
pub(crate) fn product(
    adapter: &Adapter,
    target: &str,
    base: &BaseShape<'_>,
    rows: usize,
    x: &[f32],
) -> Vec<f32> {
    let id = BaseId::of_canonical(b"a base");
    let bound = Arc::new(Arc::new(adapter.clone()).bind(id, base).unwrap());
    let stack = Stack::new(id, vec![(bound, 1.0)]).unwrap().for_tensor(target);
    let mut y = vec![0.0; rows];
    stack.apply(&Kernels::detect(), &Inline, &mut y, x, &mut Vec::new(), 1, Gates::NONE);
    y
}
