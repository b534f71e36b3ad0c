//! What JavaScript sees.

use js_sys::{Array, Error, Object, Reflect};
use slm_format::Coded;
use slm_runtime::audit::hex;
use wasm_bindgen::prelude::*;

use crate::error::WasmError;
use crate::model::{Digest, Mode, Model};

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** What every method throws: `code` is stable and listed in docs/errors.md. */
export interface SlmError extends Error {
  code: string;
  hint?: string;
}

/** How logits are computed. By default int8 activations over an f16 cache; f32 activations over an f32 cache. */
export interface Options {
  activations?: "int8" | "f32";
  kv?: "f16" | "f32";
}

/** The fields of `slm logits --json` under the same names. All but `kernels` are equal on every machine. */
export interface LogitsDigest {
  composition: string;
  execution: string;
  logits_blake3: string;
  all_blake3: string;
  kernels: Record<string, string>;
}
"#;

#[wasm_bindgen]
extern "C" {
    /// [`Mode`] in JavaScript's words; a field that is absent reads as `undefined`.
    #[wasm_bindgen(typescript_type = "Options")]
    pub type Options;
}

/// `Model` in JavaScript: [`Model`] with errors as exceptions.
#[wasm_bindgen(js_name = Model)]
#[derive(Debug)]
pub struct JsModel(Model);

#[wasm_bindgen(js_class = Model)]
impl JsModel {
    /// `new Model(bytes, kernel?)`: opens the bytes of a GGUF or `.slm` file. See [`Model::open`].
    ///
    /// # Errors
    /// As [`Model::open`], thrown.
    #[wasm_bindgen(constructor)]
    pub fn new(bytes: &[u8], kernel: Option<String>) -> Result<JsModel, JsValue> {
        Model::open(bytes, kernel.as_deref()).map(JsModel).map_err(exception)
    }

    /// `addAdapter(name, config, weights)`: the bytes of a PEFT folder's two files; returns the adapter's id. See [`Model::add_adapter`].
    ///
    /// # Errors
    /// As [`Model::add_adapter`], thrown.
    #[wasm_bindgen(js_name = addAdapter)]
    pub fn add_adapter(
        &mut self,
        name: &str,
        config: &[u8],
        weights: &[u8],
    ) -> Result<String, JsValue> {
        let id = self.0.add_adapter(name, config, weights).map_err(exception)?;
        Ok(id.to_string())
    }

    /// `compose([[name, weight], …])`, bottom first; returns the composition's id. See [`Model::compose`].
    ///
    /// # Errors
    /// As [`Model::compose`], thrown; `option-value` for an entry that is no pair of a string and a number.
    pub fn compose(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "[name: string, weight: number][]")] stack: &JsValue,
    ) -> Result<String, JsValue> {
        let pairs = pairs(stack).map_err(exception)?;
        let pairs: Vec<(&str, f64)> = pairs.iter().map(|(name, w)| (name.as_str(), *w)).collect();
        let id = self.0.compose(&pairs).map_err(exception)?;
        Ok(id.to_string())
    }

    /// `logitsDigest(tokens, chunk, options?)`: hashes of every position's logits, equal to those of `slm logits --json`. See
    /// [`Model::logits_digest`].
    ///
    /// # Errors
    /// As [`Model::logits_digest`], thrown; `option-value` for an option that is none of those named.
    #[wasm_bindgen(js_name = logitsDigest, unchecked_return_type = "LogitsDigest")]
    pub fn logits_digest(
        &self,
        tokens: &[u32],
        chunk: usize,
        options: Option<Options>,
    ) -> Result<JsValue, JsValue> {
        let options = options.map_or(JsValue::UNDEFINED, JsValue::from);
        let mode = mode(&options).map_err(exception)?;
        let digest = self.0.logits_digest(tokens, chunk, mode).map_err(exception)?;
        Ok(object(&digest))
    }

    /// `Model.kernels()`: the kernel tiers that run here, slowest first.
    pub fn kernels() -> Vec<String> {
        Model::tiers().into_iter().map(str::to_owned).collect()
    }
}

fn pairs(stack: &JsValue) -> Result<Vec<(String, f64)>, WasmError> {
    let wrong = |value: &JsValue| {
        let value = format!("{value:?}");
        WasmError::value("stack", &value, "expected [[name, weight], …]".to_owned())
    };
    if !Array::is_array(stack) {
        return Err(wrong(stack));
    }
    Array::from(stack)
        .iter()
        .map(|entry| {
            if !Array::is_array(&entry) {
                return Err(wrong(&entry));
            }
            let pair = Array::from(&entry);
            match (pair.length(), pair.get(0).as_string(), pair.get(1).as_f64()) {
                (2, Some(name), Some(weight)) => Ok((name, weight)),
                _ => Err(wrong(&entry)),
            }
        })
        .collect()
}

fn mode(options: &JsValue) -> Result<Mode, WasmError> {
    if options.is_undefined() || options.is_null() {
        return Ok(Mode::default());
    }
    let wrong = || {
        let value = format!("{options:?}");
        WasmError::value("options", &value, "expected an object".to_owned())
    };
    let keys = options.dyn_ref::<Object>().map(Object::keys).ok_or_else(wrong)?;
    for key in keys.iter().filter_map(|key| key.as_string()) {
        if key != "activations" && key != "kv" {
            let reason = "expected activations or kv".to_owned();
            return Err(WasmError::value("options", &key, reason));
        }
    }
    let word = |name: &'static str| -> Result<Option<String>, WasmError> {
        let value = Reflect::get(options, &name.into()).map_err(|_| wrong())?;
        if value.is_undefined() {
            return Ok(None);
        }
        let text = value.as_string();
        text.map(Some).ok_or_else(|| {
            WasmError::value(name, &format!("{value:?}"), "expected a string".to_owned())
        })
    };
    Mode::parse(word("activations")?.as_deref(), word("kv")?.as_deref())
}

fn object(digest: &Digest) -> JsValue {
    let kernels = Object::new();
    for (encoding, kernel) in &digest.kernels {
        set(&kernels, encoding, kernel);
    }
    let object = Object::new();
    set(&object, "composition", &digest.composition.to_string());
    set(&object, "execution", &digest.execution.to_string());
    set(&object, "logits_blake3", &hex(digest.logits.last));
    set(&object, "all_blake3", &hex(digest.logits.all));
    set_value(&object, "kernels", &kernels);
    object.into()
}

/// An `Error` with the stable code.
fn exception(error: WasmError) -> JsValue {
    let exception = Error::new(&error.to_string());
    set(&exception, "code", error.code());
    if let Some(hint) = error.hint() {
        set(&exception, "hint", &hint);
    }
    exception.into()
}

fn set(object: &JsValue, name: &str, text: &str) {
    set_value(object, name, &JsValue::from_str(text));
}

fn set_value(object: &JsValue, name: &str, value: &JsValue) {
    let set = Reflect::set(object, &JsValue::from_str(name), value);
    assert_eq!(set, Ok(true), "BUG: an object of our own took no property");
}
