//! Reference forward pass, vectors and the embedded tiny model.
//!
//! * [`mod@reference`] is what slm computes, in plain loops and without dependencies; read it beside `docs/numerics.md`.
//! * [`TINY_Q8_0`] and its adapters are a model small enough to embed: tests and `slm demo` need no file.
//! * [`vectors`] are the logits that the reference pass gives for it; the fast code must give the same bits.
//!
//! `generate` writes the model and the vectors; see `golden/README.md`.
//!
//! ```
//! use slm_golden::{TINY_Q8_0, TRIG, load, reference};
//!
//! let model = load::gguf_model(TINY_Q8_0);
//! let options = reference::Options { int8: true, kv_f16: true, trig: TRIG };
//! let logits = reference::logits(&model, &[], &[1, 2, 3], options)?;
//! assert_eq!((logits.len(), logits[0].len()), (3, 1024));
//! # Ok::<(), reference::ReferenceError>(())
//! ```

#[path = "../reference/lib.rs"]
pub mod reference;

pub mod load;
pub mod vectors;

use std::path::{Path, PathBuf};

/// RoPE's functions from the `libm` crate, as `docs/numerics.md` names it.
pub const TRIG: reference::Trig =
    reference::Trig { pow: libm::pow, cos: libm::cos, sin: libm::sin };

/// The tiny model as a GGUF file: llama architecture, 3.4 million parameters, matrices Q8_0, norms F32, byte-level BPE.
pub const TINY_Q8_0: &[u8] = include_bytes!("../files/tiny-q8_0.gguf");

/// `adapter_config.json` of the King James Bible adapter: LoRA, rank 8, every linear layer.
pub const TINY_KJV_CONFIG: &[u8] = include_bytes!("../files/tiny-kjv/adapter_config.json");

/// `adapter_model.safetensors` of the King James Bible adapter.
pub const TINY_KJV_WEIGHTS: &[u8] = include_bytes!("../files/tiny-kjv/adapter_model.safetensors");

/// `adapter_config.json` of the Python adapter: rsLoRA, rank 16, all linear layers but k and o.
pub const TINY_PYTHON_CONFIG: &[u8] = include_bytes!("../files/tiny-python/adapter_config.json");

/// `adapter_model.safetensors` of the Python adapter.
pub const TINY_PYTHON_WEIGHTS: &[u8] =
    include_bytes!("../files/tiny-python/adapter_model.safetensors");

/// The path of a file in `golden/`, for tests on the machine that built them: `files/tiny` is the tiny model's Hugging Face folder,
/// `files/tiny-kjv` and `files/tiny-python` the adapters' PEFT folders, `files/tiny-q8_0.gguf` the embedded model, `vectors/hf` the logits
/// that HF transformers computed.
pub fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}
