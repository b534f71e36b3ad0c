//! A session: one composition, one cache, one position.

use std::collections::BTreeMap;
use std::sync::Arc;

use slm_kv::{KvCache, KvGeometry};
use slm_manifest::{Activations, ExecutionId, ExecutionProfile, KvType};
use slm_quant::{Executor, Kernels};

use crate::budget::{BudgetError, Component, Reservation, Workload, scratch_bytes};
use crate::composition::Composition;
use crate::error::{RequestError, RuntimeError};
use crate::graph::{Lane, Overlays, Pass, Rope, Scratch, Wanted};

/// Positions per page of the cache.
pub(crate) const PAGE_LEN: u32 = 64;

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
    /// Where each adapter of the stack starts that waits for an invocation; fixed by the tokens taken at position 0.
    starts: Vec<Option<usize>>,
    rope: Rope,
    rope_local: Rope,
    cache: KvCache,
    scratch: Scratch,
    context_length: u32,
    kv_budget: Option<u64>,
    scratch_budget: Option<u64>,
    /// What a runtime has set aside for it, for as long as it lives.
    held: Option<Reservation>,
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

/// Tokens for one of several sessions that take a pass together.
#[derive(Debug)]
pub struct Step<'a> {
    /// The session.
    pub session: &'a mut Session,
    /// Its next tokens.
    pub tokens: &'a [u32],
}

impl Session {
    /// A session at position 0.
    ///
    /// The cache's pages are allocated as positions are used, up to the profile's context length or the model's.
    ///
    /// # Errors
    /// `profile-contradicts` for f32 activations over an f16 cache: f32 implies an f32 cache; a cache geometry that overflows.
    pub fn new(
        composition: Arc<Composition>,
        profile: ExecutionProfile,
        engine: Engine,
    ) -> Result<Session, RuntimeError> {
        if (profile.activations, profile.kv) == (Activations::F32, KvType::F16) {
            let (setting, with) = ("an f16 cache", "f32 activations");
            return Err(RequestError::Profile { setting, with }.into());
        }
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
            starts: Vec::new(),
            rope,
            rope_local,
            cache,
            scratch: Scratch::default(),
            context_length,
            kv_budget: None,
            scratch_budget: None,
            held: None,
        })
    }

    /// Bounds the bytes that the cache's pages may have; `None` leaves only the context length.
    pub fn set_kv_budget(&mut self, bytes: Option<u64>) {
        self.kv_budget = bytes;
    }

    /// Bounds the bytes of a pass's buffers; `None` leaves them to what a call asks for.
    pub fn set_scratch_budget(&mut self, bytes: Option<u64>) {
        self.scratch_budget = bytes;
    }

    /// Keeps what was set aside for this session until it ends.
    pub(crate) fn hold(&mut self, reservation: Reservation) {
        self.held = Some(reservation);
    }

    /// What this session runs.
    pub fn composition(&self) -> &Arc<Composition> {
        &self.composition
    }

    /// How it runs where that changes bits.
    pub fn profile(&self) -> &ExecutionProfile {
        &self.profile
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

    /// Takes `tokens` in passes of at most `chunk`, and returns the logits of the last one, `[vocab_size]`. Adapters that wait for an
    /// invocation look for it in the tokens of the call at position 0, which is the whole prompt; later calls change nothing about that.
    ///
    /// # Errors
    /// No tokens; an id outside the vocabulary; more positions than the context; `over-budget-kv` and `over-budget-scratch` before anything is
    /// allocated, where there is such a budget; a value that is not finite. After an error the session stands where it stood before the call.
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

    /// Makes room for `n_tokens` more positions now, so that taking them one by one allocates nothing, the first one included.
    ///
    /// # Errors
    /// [`RequestError::ContextFull`]; `over-budget-kv` and `over-budget-scratch`; no memory for the cache's pages.
    pub fn reserve(&mut self, n_tokens: usize) -> Result<(), RuntimeError> {
        let needed = u64::from(self.cache.len()) + n_tokens as u64;
        self.check_room(needed)?;
        self.check_scratch(needed, 1, false)?;
        self.cache.reserve(n_tokens as u32)?;
        let n_adapters = self.composition.stack().entries().len();
        self.starts.reserve(n_adapters.saturating_sub(self.starts.len()));
        let (kernels, n_workers) = (self.engine.kernels, self.engine.exec.n_workers());
        let config = self.composition.base().config();
        self.scratch.reserve(config, &self.overlays, kernels, n_workers, needed as usize);
        Ok(())
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
        let positions = u64::from(self.cache.len()) + tokens.len() as u64;
        self.check_scratch(positions, chunk.min(tokens.len()), wanted == Wanted::All)?;
        self.fix_starts(tokens);
        let start = self.cache.len();
        let chunk = chunk.max(1);
        let n_passes = tokens.len().div_ceil(chunk);
        for (n, part) in tokens.chunks(chunk).enumerate() {
            let wanted =
                if wanted == Wanted::Last && n + 1 < n_passes { Wanted::None } else { wanted };
            let pass = Pass {
                base: self.composition.base(),
                activations: self.profile.activations,
                kernels: self.engine.kernels,
                exec: &*self.engine.exec,
            };
            let mut lanes = [Lane {
                first_row: 0,
                first_position: self.cache.len() as usize,
                cache: &mut self.cache,
                overlays: &self.overlays,
                rope: &self.rope,
                rope_local: &self.rope_local,
                execution: self.execution,
                tokens: part,
                starts: &self.starts,
                wanted,
            }];
            // Inside the executor's own threads, so that no product has to enter them anew.
            let scratch = &mut self.scratch;
            let mut outcome = Ok(());
            self.engine.exec.enter(&mut || {
                let on_logits = &mut |_, position, logits: &[f32]| on_logits(position, logits);
                outcome = pass.run(&mut lanes, scratch, on_logits);
            });
            if let Err(error) = outcome {
                self.cache.truncate(start);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes each step's tokens in one pass and gives its last logits to `on_logits` with the step's index.
    ///
    /// Each session's bits are those it has alone, whatever the others are: other adapters, other lengths, another cache type. All
    /// multiply with the engine of the first. The matrices are read once for all.
    ///
    /// # Errors
    /// As [`Session::advance`] for any of them, and [`RequestError::MixedStep`] for a session on another base or with other activations
    /// than the first. After an error every session stands where it stood before the call.
    pub fn advance_together(
        steps: &mut [Step<'_>],
        on_logits: &mut (dyn FnMut(usize, &[f32]) + Send),
    ) -> Result<(), RuntimeError> {
        let Some(Step { session: first, .. }) = steps.first_mut() else { return Ok(()) };
        let (composition, engine) = (Arc::clone(&first.composition), first.engine.clone());
        let activations = first.profile.activations;
        let mut scratch = std::mem::take(&mut first.scratch);
        let outcome = Session::check_together(steps, &composition, activations).and_then(|()| {
            let mut first_row = 0;
            let mut lanes: Vec<Lane<'_>> = Vec::with_capacity(steps.len());
            for Step { session, tokens } in &mut *steps {
                session.fix_starts(tokens);
                lanes.push(Lane {
                    first_row,
                    first_position: session.cache.len() as usize,
                    cache: &mut session.cache,
                    overlays: &session.overlays,
                    rope: &session.rope,
                    rope_local: &session.rope_local,
                    execution: session.execution,
                    tokens,
                    starts: &session.starts,
                    wanted: Wanted::Last,
                });
                first_row += tokens.len();
            }
            let (base, kernels) = (composition.base(), engine.kernels);
            let pass = Pass { base, activations, kernels, exec: &*engine.exec };
            let mut outcome = Ok(());
            engine.exec.enter(&mut || {
                let on_logits = &mut |lane, _, logits: &[f32]| on_logits(lane, logits);
                outcome = pass.run(&mut lanes, &mut scratch, on_logits);
            });
            if outcome.is_err() {
                for lane in lanes {
                    lane.cache.truncate(lane.first_position as u32);
                }
            }
            outcome
        });
        steps[0].session.scratch = scratch;
        outcome
    }

    /// Adapters that wait act from their invocation's last occurrence in the prompt on: in all the tokens that a call brings to position 0.
    fn fix_starts(&mut self, prompt: &[u32]) {
        if self.cache.is_empty() {
            self.composition.stack().starts(prompt, &mut self.starts);
        }
    }

    fn check_together(
        steps: &[Step<'_>],
        first: &Composition,
        activations: Activations,
    ) -> Result<(), RuntimeError> {
        for (index, Step { session, tokens }) in steps.iter().enumerate() {
            session.check(tokens)?;
            let positions = u64::from(session.cache.len()) + tokens.len() as u64;
            session.check_scratch(positions, tokens.len(), false)?;
            let what = if session.composition.base().id() != first.base().id() {
                "base"
            } else if session.profile.activations != activations {
                "activations"
            } else {
                continue;
            };
            return Err(RequestError::MixedStep { index, what }.into());
        }
        Ok(())
    }

    fn check(&self, tokens: &[u32]) -> Result<(), RuntimeError> {
        if tokens.is_empty() {
            return Err(RequestError::EmptyPrompt.into());
        }
        let vocab_size = self.composition.base().config().vocab_size;
        if let Some(at) = tokens.iter().position(|&id| id >= vocab_size) {
            return Err(RequestError::TokenOutOfRange {
                id: tokens[at],
                position: at as u64,
                vocab_size,
            }
            .into());
        }
        self.check_room(u64::from(self.cache.len()) + tokens.len() as u64)
    }

    /// Whether so many positions may be held; before any page of them is made.
    fn check_room(&self, positions: u64) -> Result<(), RuntimeError> {
        let context_length = self.context_length;
        if positions > u64::from(context_length) {
            return Err(RequestError::ContextFull { needed: positions, context_length }.into());
        }
        if let Some(budget) = self.kv_budget {
            let geometry = self.cache.geometry();
            let position = geometry.bytes(self.profile.kv) / u64::from(context_length);
            let in_pages = positions.next_multiple_of(u64::from(PAGE_LEN));
            let needed = position * in_pages.min(u64::from(context_length));
            if needed > budget {
                return Err(BudgetError { component: Component::Kv, needed, budget }.into());
            }
        }
        Ok(())
    }

    /// Whether the buffers of such passes may be had; before any of them is made.
    fn check_scratch(&self, positions: u64, chunk: usize, all: bool) -> Result<(), RuntimeError> {
        let Some(budget) = self.scratch_budget else { return Ok(()) };
        let positions = u32::try_from(positions).unwrap_or(u32::MAX);
        let work = Workload { positions, chunk, all_logits: all };
        let needed = scratch_bytes(&self.composition, self.engine.exec.n_workers(), work);
        if needed > budget {
            return Err(BudgetError { component: Component::Scratch, needed, budget }.into());
        }
        Ok(())
    }
}
