//! Vectors of the tiny model: tokens in, a digest of every logit out.
//!
//! They are computed by the reference pass over [`crate::TINY_Q8_0`], never by the fast code, and compiled in, so that they can be compared
//! on targets without files.

use serde::{Deserialize, Serialize};

use crate::load::{gguf_model, peft};
use crate::reference::{Config, Lora, Options, logits};
use crate::{TINY_KJV_CONFIG, TINY_KJV_WEIGHTS, TINY_PYTHON_CONFIG, TINY_PYTHON_WEIGHTS, TRIG};

/// `vectors/tiny-q8_0-int8.json`: 8-bit activations over an f16 cache, the default path.
pub const TINY_Q8_0_INT8: &str = include_str!("../vectors/tiny-q8_0-int8.json");

/// `vectors/tiny-q8_0-f32.json`: f32 activations over an f32 cache, the oracle mode.
pub const TINY_Q8_0_F32: &str = include_str!("../vectors/tiny-q8_0-f32.json");

/// `vectors/real-models.json`: the two real models, whose files are too large to be here.
pub const REAL_MODELS: &str = include_str!("../vectors/real-models.json");

/// One file of vectors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VectorFile {
    /// What the file holds and who computed it.
    pub comment: String,
    /// `int8` or `f32`, as the command line spells activations.
    pub activations: String,
    /// `f16` or `f32`, as the command line spells the KV cache.
    pub kv: String,
    /// The vectors.
    pub vectors: Vec<Vector>,
}

/// The logits of one prompt under one stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// A name for messages.
    pub name: String,
    /// The stack, bottom first.
    pub stack: Vec<StackEntry>,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// BLAKE3 in hex over the logits of all positions in order, each an f32 in little-endian bytes.
    pub all_blake3: String,
    /// The bits of the last position's first eight logits, in hex.
    pub last_bits: [String; 8],
}

/// One adapter of a stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackEntry {
    /// Its name: `tiny-kjv` or `tiny-python` for the tiny model.
    pub adapter: String,
    /// Its weight in the stack.
    pub weight: f32,
}

/// The file of the real models' vectors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RealModelFile {
    /// What the file holds and who computed it.
    pub comment: String,
    /// `int8` or `f32`, as the command line spells activations.
    pub activations: String,
    /// `f16` or `f32`, as the command line spells the KV cache.
    pub kv: String,
    /// The vectors.
    pub records: Vec<RealModelVector>,
}

/// The logits of one prompt under one stack of a real model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RealModelVector {
    /// A name for messages.
    pub name: String,
    /// The name of the model's file.
    pub gguf: String,
    /// BLAKE3 in hex over the file: with another file the logits mean nothing.
    pub gguf_blake3: String,
    /// The stack, bottom first; adapters are names of PEFT folders.
    pub stack: Vec<StackEntry>,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// BLAKE3 in hex over the logits of all positions in order, each an f32 in little-endian bytes.
    pub all_blake3: String,
}

/// The vectors of the real models.
///
/// # Panics
/// Never: a test reads the file.
pub fn real_models() -> RealModelFile {
    serde_json::from_str(REAL_MODELS).expect("BUG: vectors/real-models.json is not well formed")
}

/// The vectors in the text of a file.
///
/// # Panics
/// When the text is not one of this crate's files.
pub fn parse(text: &str) -> VectorFile {
    serde_json::from_str(text).expect("a file of vectors")
}

/// The text of a file with these vectors.
///
/// # Panics
/// Never: the value has a JSON form.
pub fn format(file: &VectorFile) -> String {
    let mut text = serde_json::to_string_pretty(file).expect("BUG: vectors have no JSON form");
    text.push('\n');
    text
}

/// Computes the vectors of one mode from the reference pass over `gguf`, the bytes of the tiny model.
///
/// # Panics
/// When the reference pass refuses the model.
pub fn compute(gguf: &[u8], int8: bool) -> VectorFile {
    let model = gguf_model(gguf);
    let options = Options { int8, kv_f16: int8, trig: TRIG };
    let mut vectors = Vec::new();
    for (stack_name, entries) in STACKS {
        let loras: Vec<Lora> =
            entries.iter().map(|&(name, _)| adapter(name, &model.config)).collect();
        let stack: Vec<(&Lora, f32)> =
            loras.iter().zip(entries).map(|(lora, entry)| (lora, entry.1)).collect();
        for (prompt_name, tokens) in PROMPTS {
            let rows = logits(&model, &stack, tokens, options).expect("the reference pass");
            let mut hasher = blake3::Hasher::new();
            for logit in rows.iter().flatten() {
                hasher.update(&logit.to_le_bytes());
            }
            let last = rows.last().expect("BUG: a prompt is empty");
            vectors.push(Vector {
                name: format!("{stack_name}, {prompt_name}"),
                stack: entries
                    .iter()
                    .map(|&(adapter, weight)| StackEntry { adapter: adapter.to_string(), weight })
                    .collect(),
                tokens: tokens.to_vec(),
                all_blake3: hasher.finalize().to_hex().to_string(),
                last_bits: std::array::from_fn(|i| format!("{:08x}", last[i].to_bits())),
            });
        }
    }
    let (activations, kv) = if int8 { ("int8", "f16") } else { ("f32", "f32") };
    VectorFile {
        comment: format!(
            "Logits of files/tiny-q8_0.gguf with {activations} activations and {kv} KV, computed by \
             golden/reference/lib.rs. all_blake3 is BLAKE3 over the logits of all positions in order, \
             f32 little-endian; last_bits are the first eight logits of the last position."
        ),
        activations: activations.to_string(),
        kv: kv.to_string(),
        vectors,
    }
}

/// The adapter of this name in `files/`, for a base of configuration `base`.
///
/// # Panics
/// For a name other than `tiny-kjv` and `tiny-python`.
pub fn adapter(name: &str, base: &Config) -> Lora {
    let (config, weights) = match name {
        "tiny-kjv" => (TINY_KJV_CONFIG, TINY_KJV_WEIGHTS),
        "tiny-python" => (TINY_PYTHON_CONFIG, TINY_PYTHON_WEIGHTS),
        other => panic!("{other} is no adapter of this crate"),
    };
    peft(std::str::from_utf8(config).expect("UTF-8"), weights, base)
}

const STACKS: [(&str, &[(&str, f32)]); 4] = [
    ("base", &[]),
    ("kjv", &[("tiny-kjv", 1.0)]),
    ("python", &[("tiny-python", 1.0)]),
    ("kjv@0.7+python@0.3", &[("tiny-kjv", 0.7), ("tiny-python", 0.3)]),
];

/// "In the beginning", and an odd number of tokens that is long enough to be split into chunks and pages.
const PROMPTS: [(&str, &[u32]); 2] =
    [("in the beginning", &TOKENS_SHORT), ("chat template", &TOKENS_LONG)];

const TOKENS_SHORT: [u32; 7] = [767, 261, 305, 71, 266, 78, 298];

const TOKENS_LONG: [u32; 99] = [
    28, 92, 311, 63, 307, 506, 92, 30, 83, 89, 307, 499, 199, 961, 494, 260, 267, 1019, 973, 302,
    41, 393, 83, 649, 482, 290, 329, 289, 408, 77, 594, 44, 45, 12, 274, 342, 266, 289, 451, 517,
    85, 71, 71, 298, 842, 65, 334, 28, 92, 311, 63, 643, 92, 30, 199, 28, 92, 311, 63, 307, 506,
    92, 30, 471, 265, 199, 46, 411, 259, 820, 605, 311, 288, 89, 282, 594, 443, 83, 14, 28, 92,
    311, 63, 643, 92, 30, 199, 28, 92, 311, 63, 307, 506, 92, 30, 512, 649, 482, 199,
];
