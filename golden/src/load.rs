//! Model files and adapter folders as the reference pass wants them.
//!
//! A second reader beside those of `slm-format` and `slm-overlay`, small because it reads files that this project knows: it panics
//! on anything else. Use it in tests and in the generator, never on input.

use std::borrow::Cow;
use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value as Json;

use crate::reference::{Architecture, Config, Encoding, Factors, Lora, Model, Tensor, f16_to_f32};

/// A metadata value of a GGUF file; integers of every width are one kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any integer, or a truth value as 0 and 1.
    Int(i64),
    /// f32 or f64.
    Float(f64),
    /// Text.
    Text(String),
    /// An array.
    Array(Vec<Value>),
}

/// A parsed GGUF file: metadata and tensors, the latter still in the file's bytes.
#[derive(Debug, Clone)]
pub struct Gguf<'a> {
    /// Key to value.
    pub metadata: BTreeMap<String, Value>,
    /// Name to tensor.
    pub tensors: BTreeMap<String, Tensor<'a>>,
}

/// Reads a GGUF file of version 3.
///
/// # Panics
/// On anything that is not well formed or not of this project.
pub fn gguf(bytes: &[u8]) -> Gguf<'_> {
    let mut cursor = Cursor { bytes, at: 0 };
    assert_eq!(cursor.take(4), b"GGUF");
    assert_eq!(cursor.u32(), 3, "GGUF version");
    let (n_tensors, n_pairs) = (cursor.u64(), cursor.u64());
    let mut metadata = BTreeMap::new();
    for _ in 0..n_pairs {
        let key = cursor.text();
        let kind = cursor.u32();
        metadata.insert(key, cursor.value(kind));
    }
    let mut infos = Vec::new();
    for _ in 0..n_tensors {
        let name = cursor.text();
        let dims: Vec<usize> = (0..cursor.u32()).map(|_| cursor.u64() as usize).collect();
        let encoding = cursor.u32();
        let encoding = Encoding::from_ggml_type(encoding)
            .unwrap_or_else(|| panic!("{name} has ggml type {encoding}"));
        infos.push((name, dims, encoding, cursor.u64() as usize));
    }
    let alignment = match metadata.get("general.alignment") {
        Some(Value::Int(alignment)) => *alignment as usize,
        _ => 32,
    };
    let start = cursor.at.next_multiple_of(alignment);
    let tensors = infos
        .into_iter()
        .map(|(name, dims, encoding, offset)| {
            let (cols, rows) = (dims[0], dims[1..].iter().product());
            let (elements, block_bytes) = encoding.block();
            let len = rows * (cols / elements * block_bytes);
            let bytes = Cow::Borrowed(&bytes[start + offset..start + offset + len]);
            (name, Tensor { encoding, rows, cols, bytes })
        })
        .collect();
    Gguf { metadata, tensors }
}

/// The model in a GGUF file of the `llama` or `gemma3` architecture.
///
/// # Panics
/// As [`gguf`], and where a key is missing.
pub fn gguf_model(bytes: &[u8]) -> Model<'_> {
    let Gguf { metadata, tensors } = gguf(bytes);
    let Some(Value::Text(name)) = metadata.get("general.architecture") else {
        panic!("general.architecture is missing")
    };
    let architecture = match name.as_str() {
        "llama" => Architecture::Llama,
        "gemma3" => Architecture::Gemma3,
        other => panic!("architecture {other}"),
    };
    let get = |key: &str| metadata.get(&format!("{name}.{key}"));
    let int = |key: &str| match get(key) {
        Some(Value::Int(value)) => Some(*value as usize),
        _ => None,
    };
    let float = |key: &str| match get(key) {
        Some(Value::Float(value)) => Some(*value as f32),
        _ => None,
    };
    let n_embd = int("embedding_length").expect("embedding_length");
    let n_heads = int("attention.head_count").expect("head_count");
    let rope_theta = float("rope.freq_base").unwrap_or(10000.0);
    let gemma = architecture == Architecture::Gemma3;
    let config = Config {
        architecture,
        n_layers: int("block_count").expect("block_count"),
        n_embd,
        n_heads,
        n_kv_heads: int("attention.head_count_kv").unwrap_or(n_heads),
        head_dim: int("attention.key_length").unwrap_or(n_embd / n_heads),
        rms_norm_eps: float("attention.layer_norm_rms_epsilon").expect("rms_norm_eps"),
        rope_theta,
        rope_linear_factor: float("rope.scaling.factor").unwrap_or(1.0),
        rope_theta_local: if gemma { 10000.0 } else { rope_theta },
        sliding_window: int("attention.sliding_window"),
        sliding_window_pattern: if gemma { 6 } else { 1 },
    };
    Model { config, tensors }
}

/// The llama or Gemma 3 model in a Hugging Face folder, given its `config.json` and `model.safetensors`, in GGUF's form: its names, its
/// row order of q and k, and Gemma's norms with the one added.
///
/// # Panics
/// On anything that is not well formed or not of this project.
pub fn hf_model<'a>(config: &str, weights: &'a [u8]) -> Model<'a> {
    let json: Json = serde_json::from_str(config).expect("config.json");
    let int = |key: &str| json[key].as_u64().unwrap_or_else(|| panic!("{key}")) as usize;
    let float = |json: &Json| json.as_f64().expect("a number") as f32;
    let rope = &json["rope_parameters"];
    let mut config = Config {
        architecture: Architecture::Llama,
        n_layers: int("num_hidden_layers"),
        n_embd: int("hidden_size"),
        n_heads: int("num_attention_heads"),
        n_kv_heads: int("num_key_value_heads"),
        head_dim: int("head_dim"),
        rms_norm_eps: float(&json["rms_norm_eps"]),
        rope_theta: 0.0,
        rope_linear_factor: 1.0,
        rope_theta_local: 0.0,
        sliding_window: None,
        sliding_window_pattern: 1,
    };
    match json["model_type"].as_str() {
        Some("llama") => {
            assert_eq!(rope["rope_type"], "default");
            config.rope_theta = float(&rope["rope_theta"]);
            config.rope_theta_local = config.rope_theta;
        }
        Some("gemma3_text") => {
            config.architecture = Architecture::Gemma3;
            config.rope_theta = float(&rope["full_attention"]["rope_theta"]);
            config.rope_theta_local = float(&rope["sliding_attention"]["rope_theta"]);
            config.sliding_window = Some(int("sliding_window"));
            config.sliding_window_pattern = int("_sliding_window_pattern");
            assert_eq!(int("query_pre_attn_scalar"), config.head_dim);
        }
        other => panic!("model type {other:?}"),
    }
    let file = SafeTensors::deserialize(weights).expect("safetensors");
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let module = name.strip_suffix(".weight").expect("a weight");
        let name = gguf_name(module, config.architecture);
        let mut encoding = match view.dtype() {
            Dtype::F32 => Encoding::F32,
            Dtype::F16 => Encoding::F16,
            Dtype::BF16 => Encoding::BF16,
            other => panic!("{name} is {other:?}"),
        };
        let (rows, cols) = match *view.shape() {
            [cols] => (1, cols),
            [rows, cols] => (rows, cols),
            ref other => panic!("{name} has shape {other:?}"),
        };
        let gemma_norm = config.architecture == Architecture::Gemma3 && rows == 1;
        let bytes = if is_interleaved(&name, &config) {
            Cow::Owned(permute(view.data(), rows, config.head_dim))
        } else if gemma_norm {
            encoding = Encoding::F32;
            let values = floats(view.dtype(), view.data());
            Cow::Owned(values.iter().flat_map(|v| (1.0 + v).to_le_bytes()).collect())
        } else {
            Cow::Borrowed(view.data())
        };
        tensors.insert(name, Tensor { encoding, rows, cols, bytes });
    }
    Model { config, tensors }
}

/// The plain or rsLoRA adapter in a PEFT folder, given its two files, for a base of configuration `base`.
///
/// # Panics
/// On anything that is not well formed or not of this project.
pub fn peft(config: &str, weights: &[u8], base: &Config) -> Lora {
    let json: Json = serde_json::from_str(config).expect("adapter_config.json");
    assert_eq!(json["peft_type"], "LORA");
    assert_eq!(json["use_dora"], false);
    assert!(json["rank_pattern"].as_object().expect("rank_pattern").is_empty());
    assert!(json["alpha_pattern"].as_object().expect("alpha_pattern").is_empty());
    let (r, alpha) = (json["r"].as_f64().expect("r"), json["lora_alpha"].as_f64().expect("alpha"));
    let divisor = if json["use_rslora"] == true { libm::sqrt(r) } else { r };
    let scale = (alpha / divisor) as f32;

    let file = SafeTensors::deserialize(weights).expect("safetensors");
    let factor = |key: &str| {
        let view = file.tensor(key).expect("a factor");
        (floats(view.dtype(), view.data()), view.shape().to_vec())
    };
    let mut targets = BTreeMap::new();
    for key in file.names() {
        let Some(module) = key.strip_suffix(".lora_A.weight") else { continue };
        let (a, a_shape) = factor(key);
        let (b, b_shape) = factor(&format!("{module}.lora_B.weight"));
        assert_eq!([a_shape[0], b_shape[1]], [r as usize; 2], "{key}");
        let name = gguf_name(
            module.strip_prefix("base_model.model.").expect("PEFT's prefix"),
            base.architecture,
        );
        let b = match is_interleaved(&name, base) {
            true => {
                let bytes: Vec<u8> = b.iter().flat_map(|v| v.to_le_bytes()).collect();
                floats(Dtype::F32, &permute(&bytes, b_shape[0], base.head_dim))
            }
            false => b,
        };
        targets.insert(name, Factors { r: r as usize, a, b, scale });
    }
    assert_eq!(targets.len() * 2, file.len(), "every tensor is half of a pair");
    Lora { targets }
}

/// Every element of a safetensors tensor in f32.
///
/// # Panics
/// On an element type that is not a float of 16 or 32 bits.
pub fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let half = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    match dtype {
        Dtype::F32 => {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        Dtype::F16 => bytes.chunks_exact(2).map(|b| f16_to_f32(half(b))).collect(),
        Dtype::BF16 => {
            bytes.chunks_exact(2).map(|b| f32::from_bits(u32::from(half(b)) << 16)).collect()
        }
        other => panic!("{other:?} are not floats"),
    }
}

/// A Hugging Face module path as GGUF's tensor name.
fn gguf_name(module: &str, architecture: Architecture) -> String {
    let fixed = match module {
        "model.embed_tokens" => Some("token_embd"),
        "model.norm" => Some("output_norm"),
        "lm_head" => Some("output"),
        _ => None,
    };
    if let Some(fixed) = fixed {
        return format!("{fixed}.weight");
    }
    let rest = module.strip_prefix("model.layers.").unwrap_or_else(|| panic!("module {module}"));
    let (layer, part) = rest.split_once('.').expect("a layer's part");
    let gemma = architecture == Architecture::Gemma3;
    let part = match part {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" if gemma => "attn_q_norm",
        "self_attn.k_norm" if gemma => "attn_k_norm",
        "post_attention_layernorm" if gemma => "post_attention_norm",
        "pre_feedforward_layernorm" if gemma => "ffn_norm",
        "post_feedforward_layernorm" if gemma => "post_ffw_norm",
        "post_attention_layernorm" => "ffn_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        other => panic!("part {other}"),
    };
    format!("blk.{layer}.{part}.weight")
}

/// Whether RoPE turns the rows of this tensor in pairs of neighbours.
fn is_interleaved(name: &str, config: &Config) -> bool {
    let turned = name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight");
    turned && config.architecture == Architecture::Llama
}

/// Within each head of d rows, Hugging Face's row i * d/2 + j becomes GGUF's row 2j + i.
fn permute(bytes: &[u8], rows: usize, d: usize) -> Vec<u8> {
    let row_bytes = bytes.len() / rows;
    let mut out = Vec::with_capacity(bytes.len());
    for row in 0..rows {
        let (head, within) = (row / d, row % d);
        let source = head * d + within % 2 * (d / 2) + within / 2;
        out.extend_from_slice(&bytes[source * row_bytes..(source + 1) * row_bytes]);
    }
    out
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().expect("BUG: take returned another length")
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn text(&mut self) -> String {
        let len = self.u64() as usize;
        String::from_utf8(self.take(len).to_vec()).expect("UTF-8")
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 | 7 => Value::Int(i64::from(self.array::<1>()[0])),
            1 => Value::Int(i64::from(self.array::<1>()[0] as i8)),
            2 => Value::Int(i64::from(u16::from_le_bytes(self.array()))),
            3 => Value::Int(i64::from(i16::from_le_bytes(self.array()))),
            4 => Value::Int(i64::from(self.u32())),
            5 => Value::Int(i64::from(i32::from_le_bytes(self.array()))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.array()))),
            8 => Value::Text(self.text()),
            9 => {
                let kind = self.u32();
                Value::Array((0..self.u64()).map(|_| self.value(kind)).collect())
            }
            10 | 11 => Value::Int(i64::from_le_bytes(self.array())),
            12 => Value::Float(f64::from_le_bytes(self.array())),
            other => panic!("metadata type {other}"),
        }
    }
}
