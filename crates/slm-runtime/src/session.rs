//! A session: one composition, one cache, one position.

use std::collections::BTreeMap;
use std::sync::Arc;

use slm_kv::{KvCache, KvGeometry};
use slm_manifest::{Activations, ExecutionId, ExecutionProfile};
use slm_quant::{Executor, Kernels};

use crate::composition::Composition;
use crate::error::{RequestError, RuntimeError};
use crate::graph::{Overlays, Pass, Rope, Scratch, Wanted};

/// Positions per page of the cache.
const PAGE_LEN: u32 = 64;

/// How a session runs; none of it changes a bit.
#[derive(Clone)]
pub struct Engine {
    /// The kernels, chosen once.
    pub kernels: Kernels,
    /// Where rows and heads are split over threads.
    pub exec: Arc<dyn Executor + Send + Sync>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({}, {} workers)", self.kernels.tier().name(), self.exec.n_workers())
    }
}

impl Engine {
    /// The best kernels of this machine on the calling thread.
    pub fn inline() -> Engine {
        Engine { kernels: Kernels::detect(), exec: Arc::new(slm_quant::Inline) }
    }
}

/// One stream of tokens under one composition. It holds its own reference to the composition: whatever becomes active meanwhile, a session
/// goes on with what it started with.
pub struct Session {
    composition: Arc<Composition>,
    profile: ExecutionProfile,
    execution: ExecutionId,
    engine: Engine,
    overlays: Overlays,
    rope: Rope,
    rope_local: Rope,
    cache: KvCache,
    scratch: Scratch,
    context_length: u32,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("execution", &self.execution)
            .field("position", &self.position())
            .field("context_length", &self.context_length)
            .finish()
    }
}

impl Session {
    /// A session at position 0.
    ///
    /// The cache's pages are allocated as positions are used, up to the profile's context length or the model's.
    ///
    /// # Errors
    /// A cache geometry that overflows.
    pub fn new(
        composition: Arc<Composition>,
        profile: ExecutionProfile,
        engine: Engine,
    ) -> Result<Session, RuntimeError> {
        let base = composition.base();
        let config = base.config();
        let execution = composition.execution_id(&profile);
        let context_length = profile.context_length.unwrap_or(config.context_length);
        let widths = vec![config.n_kv_heads * config.head_dim; config.n_layers as usize];
        let geometry = KvGeometry::new(widths, PAGE_LEN, context_length)?;
        let cache = KvCache::new(execution, geometry, profile.kv)?;
        let overlays = Overlays::new(base, composition.stack());
        let theta = profile.rope_theta_bits.map_or(config.rope_theta, f32::from_bits);
        let (rope, rope_local) = (Rope::global(config, theta), Rope::local(config));
        Ok(Session {
            composition,
            profile,
            execution,
            engine,
            overlays,
            rope,
            rope_local,
            cache,
            scratch: Scratch::default(),
            context_length,
        })
    }

    /// What this session runs.
    pub fn composition(&self) -> &Arc<Composition> {
        &self.composition
    }

    /// The key of this session's bits.
    pub fn execution_id(&self) -> ExecutionId {
        self.execution
    }

    /// Tokens taken so far; the position of the next one.
    pub fn position(&self) -> usize {
        self.cache.len() as usize
    }

    /// Positions there are.
    pub fn context_length(&self) -> u32 {
        self.context_length
    }

    /// Tokens of the vocabulary; the length of a logit vector.
    pub fn vocab_size(&self) -> usize {
        self.composition.base().config().vocab_size as usize
    }

    /// Bytes that the cache holds now.
    pub fn kv_bytes(&self) -> u64 {
        self.cache.bytes_reserved()
    }

    /// Which kernel multiplies each encoding of this model under this profile.
    pub fn kernels(&self) -> BTreeMap<&'static str, &'static str> {
        let int8 = self.profile.activations == Activations::Int8;
        self.composition
            .base()
            .quantization()
            .into_iter()
            .map(|(encoding, _)| (encoding.name(), self.engine.kernels.kernel_name(encoding, int8)))
            .collect()
    }

    /// Takes `tokens` in passes of at most `chunk`, and returns the logits of the last one, `[vocab_size]`.
    ///
    /// # Errors
    /// No tokens; an id outside the vocabulary; more positions than the context; a value that is not finite. After an error the session
    /// stands where it stood before the call.
    pub fn advance(&mut self, tokens: &[u32], chunk: usize) -> Result<Vec<f32>, RuntimeError> {
        let mut last = Vec::new();
        self.passes(tokens, chunk, Wanted::Last, &mut |_, logits| last = logits.to_vec())?;
        Ok(last)
    }

    /// As [`Session::advance`], into a buffer of the caller's: with one token nothing is allocated once buffers have their size.
    ///
    /// # Errors
    /// As [`Session::advance`].
    pub fn advance_into(
        &mut self,
        out: &mut Vec<f32>,
        tokens: &[u32],
        chunk: usize,
    ) -> Result<(), RuntimeError> {
        self.passes(tokens, chunk, Wanted::Last, &mut |_, logits| {
            out.clear();
            out.extend_from_slice(logits);
        })
    }

    /// Takes `tokens` and gives every position's logits to `on_logits`, ascending.
    ///
    /// # Errors
    /// As [`Session::advance`].
    pub fn advance_all(
        &mut self,
        tokens: &[u32],
        chunk: usize,
        on_logits: &mut (dyn FnMut(usize, &[f32]) + Send),
    ) -> Result<(), RuntimeError> {
        self.passes(tokens, chunk, Wanted::All, on_logits)
    }

    /// Goes back to `position` by forgetting what came after; no arithmetic undoes anything.
    /// A position ahead of the session changes nothing.
    pub fn truncate(&mut self, position: usize) {
        self.cache.truncate(u32::try_from(position).unwrap_or(u32::MAX));
    }

    fn passes(
        &mut self,
        tokens: &[u32],
        chunk: usize,
        wanted: Wanted,
        on_logits: &mut (dyn FnMut(usize, &[f32]) + Send),
    ) -> Result<(), RuntimeError> {
        self.check(tokens)?;
        let start = self.cache.len();
        let chunk = chunk.max(1);
        let n_passes = tokens.len().div_ceil(chunk);
        for (n, part) in tokens.chunks(chunk).enumerate() {
            let wanted =
                if wanted == Wanted::Last && n + 1 < n_passes { Wanted::None } else { wanted };
            let pass = Pass {
                base: self.composition.base(),
                overlays: &self.overlays,
                rope: &self.rope,
                rope_local: &self.rope_local,
                execution: self.execution,
                activations: self.profile.activations,
                kernels: self.engine.kernels,
                exec: &*self.engine.exec,
            };
            // Inside the executor's own threads, so that no product has to enter them anew.
            let (cache, scratch) = (&mut self.cache, &mut self.scratch);
            let mut outcome = Ok(());
            self.engine
                .exec
                .enter(&mut || outcome = pass.run(cache, scratch, part, wanted, on_logits));
            if let Err(error) = outcome {
                self.cache.truncate(start);
                return Err(error);
            }
        }
        Ok(())
    }

    fn check(&self, tokens: &[u32]) -> Result<(), RequestError> {
        if tokens.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        let vocab_size = self.composition.base().config().vocab_size;
        if let Some(at) = tokens.iter().position(|&id| id >= vocab_size) {
            return Err(RequestError::TokenOutOfRange {
                id: tokens[at],
                position: at as u64,
                vocab_size,
            });
        }
        let needed = u64::from(self.cache.len()) + tokens.len() as u64;
        if needed > u64::from(self.context_length) {
            return Err(RequestError::ContextFull { needed, context_length: self.context_length });
        }
        Ok(())
    }
}
