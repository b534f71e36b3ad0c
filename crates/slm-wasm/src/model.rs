//! One open model, its adapters, and the stack that runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use slm_format::Limits;
use slm_manifest::{Activations, AdapterId, CompositionId, ExecutionId, ExecutionProfile, KvType};
use slm_overlay::BoundAdapter;
use slm_overlay::peft::PeftLora;
use slm_quant::{Inline, Kernels, Tier};
use slm_runtime::audit::{LogitsDigest, LogitsHasher};
use slm_runtime::load::Base;
use slm_runtime::{Composition, Engine, Session};

use crate::error::WasmError;

/// Limits of every decode, as in the program.
const LIMITS: Limits = Limits::STANDARD;

/// How logits are computed; other bits for each, and another execution id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// Activations in 8-bit blocks, or in f32.
    pub activations: Activations,
    /// How K and V are stored.
    pub kv: KvType,
}

impl Mode {
    /// The mode that these words ask for, as on the command line: `int8` (the default) or `f32`; `f16` or `f32`, by default the one that goes
    /// with the activations.
    ///
    /// # Errors
    /// [`WasmError::Value`] for another word.
    pub fn parse(activations: Option<&str>, kv: Option<&str>) -> Result<Mode, WasmError> {
        let activations = match activations {
            None | Some("int8") => Activations::Int8,
            Some("f32") => Activations::F32,
            Some(other) => return Err(unexpected("activations", other, "int8 or f32")),
        };
        let kv = match (kv, activations) {
            (Some("f16"), _) | (None, Activations::Int8) => KvType::F16,
            (Some("f32"), _) | (None, Activations::F32) => KvType::F32,
            (Some(other), _) => return Err(unexpected("kv", other, "f16 or f32")),
        };
        Ok(Mode { activations, kv })
    }

    fn profile(self) -> ExecutionProfile {
        let Mode { activations, kv } = self;
        ExecutionProfile { activations, kv, ..ExecutionProfile::DEFAULT }
    }
}

impl Default for Mode {
    fn default() -> Mode {
        Mode { activations: Activations::Int8, kv: KvType::F16 }
    }
}

/// What ran, and what its logits hashed to: the fields of `slm logits --json` that two machines compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    /// Base, tokenizer and stack.
    pub composition: CompositionId,
    /// The composition under the mode: the key of bits.
    pub execution: ExecutionId,
    /// The hashes.
    pub logits: LogitsDigest,
    /// Which kernel multiplied each encoding of the model; the one field that may differ between machines.
    pub kernels: BTreeMap<&'static str, &'static str>,
}

/// A verified model, the adapters added to it, and the stack that is composed: at first the bare base.
#[derive(Debug)]
pub struct Model {
    engine: Engine,
    base: Arc<Base>,
    adapters: BTreeMap<String, Arc<BoundAdapter>>,
    composition: Arc<Composition>,
}

impl Model {
    /// Opens a model from the bytes of a GGUF or `.slm` file; everything is checked and every tensor hashed.
    ///
    /// `kernel` is one of [`Model::tiers`], by default the last; it changes no bit. The weights are copied into the order that kernels read
    /// fastest, so that `bytes` need not stay.
    ///
    /// # Errors
    /// The first thing found wrong in the file; an unknown kernel.
    pub fn open(bytes: &[u8], kernel: Option<&str>) -> Result<Model, WasmError> {
        let kernels = match kernel {
            None => Kernels::detect(),
            Some(name) => Tier::from_name(name).and_then(Kernels::with_tier).ok_or_else(|| {
                unexpected("kernel", name, &format!("one of {}", Model::tiers().join(", ")))
            })?,
        };
        let engine = Engine { kernels, exec: Arc::new(Inline) };
        let base = Arc::new(Base::load(bytes, &LIMITS, kernels, &*engine.exec, &|_| {})?);
        let composition = Arc::new(Composition::bare(Arc::clone(&base))?);
        Ok(Model { engine, base, adapters: BTreeMap::new(), composition })
    }

    /// Adds a PEFT adapter from the bytes of `adapter_config.json` and `adapter_model.safetensors`, checked against the base. It runs once it
    /// is composed. A name that was taken means the new adapter from now on; what is composed stays.
    ///
    /// # Errors
    /// Files that are no adapter, or one that does not fit the base; nothing is added then.
    pub fn add_adapter(
        &mut self,
        name: &str,
        config: &[u8],
        weights: &[u8],
    ) -> Result<AdapterId, WasmError> {
        let shape = self.base.shape();
        let (adapter, _report) = PeftLora::parse(config, weights, &LIMITS)?.resolve(&shape)?;
        let bound = Arc::new(Arc::new(adapter).bind(self.base.id(), &shape)?);
        let id = bound.id();
        self.adapters.insert(name.to_owned(), bound);
        Ok(id)
    }

    /// Stacks adapters (name, weight; bottom first) on the base; an empty stack is the bare base. Each weight becomes the nearest f32.
    ///
    /// # Errors
    /// A name that was not added, an adapter twice, a weight that is not finite or that is too small for an f32; what was composed stays.
    pub fn compose(&mut self, stack: &[(&str, f64)]) -> Result<CompositionId, WasmError> {
        let mut entries = Vec::with_capacity(stack.len());
        for &(name, weight) in stack {
            let adapter = self
                .adapters
                .get(name)
                .ok_or_else(|| WasmError::NoAdapter { name: name.chars().take(80).collect() })?;
            let rounded = weight as f32;
            if rounded == 0.0 && weight != 0.0 {
                // It would silently be none.
                let reason = "too small for a weight".to_owned();
                return Err(WasmError::value("weight", &weight.to_string(), reason));
            }
            entries.push((name.to_owned(), Arc::clone(adapter), rounded));
        }
        self.composition = Arc::new(Composition::new(Arc::clone(&self.base), entries)?);
        Ok(self.composition.id())
    }

    /// Runs `tokens` from position 0 in passes of at most `chunk`, and hashes every position's logits. `chunk` changes no bit.
    ///
    /// # Errors
    /// No tokens; an id outside the vocabulary; more positions than the context; a value that is not finite.
    pub fn logits_digest(
        &self,
        tokens: &[u32],
        chunk: usize,
        mode: Mode,
    ) -> Result<Digest, WasmError> {
        let composition = Arc::clone(&self.composition);
        let mut session = Session::new(composition, mode.profile(), self.engine.clone())?;
        let mut hasher = LogitsHasher::new();
        session.advance_all(tokens, chunk, &mut |_, logits| hasher.update(logits))?;
        Ok(Digest {
            composition: self.composition.id(),
            execution: session.execution_id(),
            logits: hasher.finish(),
            kernels: session.kernels(),
        })
    }

    /// The kernel tiers that run here, slowest first.
    pub fn tiers() -> Vec<&'static str> {
        Tier::available().into_iter().map(Tier::name).collect()
    }
}

fn unexpected(option: &'static str, value: &str, expected: &str) -> WasmError {
    WasmError::value(option, value, format!("expected {expected}"))
}
