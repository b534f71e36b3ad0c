//! A running generation: a session that switches know of, within the budgets.

use std::ops::ControlFlow;
use std::sync::Arc;

use slm_manifest::ExecutionProfile;
use slm_store::Storage;

use crate::budget::{Reservation, Workload};
use crate::composition::Composition;
use crate::error::RuntimeError;
use crate::generate::{GenerateOptions, Stop, generate_while};
use crate::runtime::{BoardUser, Core, Runtime};
use crate::session::{Engine, Session};

/// A stream of tokens that counts as running until it is dropped: a switch is refused beside it, ends it, or waits for it, as the runtime's policy
/// says. All of its tokens come from the one composition that was active when it began.
pub struct Generation {
    session: Session,
    engine: Engine,
    user: BoardUser,
    shared: Arc<Core>,
    reserved: Option<Reservation>,
}

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation").field("session", &self.session).finish()
    }
}

impl<S: Storage> Runtime<S> {
    /// Begins a generation on the active composition. While a switch is on its way, `wait` is asked whether to look again.
    ///
    /// A switch under the policy `abort` that completes while this begins may end the generation at its first token, although it has the new composition already.
    ///
    /// # Errors
    /// `switch-running` when `wait` gives up; as [`Runtime::active_composition`].
    pub fn generation(
        &self,
        profile: ExecutionProfile,
        wait: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Generation, RuntimeError> {
        let user = self.shared.board.enter(wait)?;
        let slot = self.active_slot(user.epoch())?;
        self.generation_of(user, Arc::clone(&slot.value.composition), profile)
    }

    /// Begins a generation on a composition that need not be the active one, such as [`Runtime::open_composition`] gives. Switches deal with it like with any other.
    ///
    /// # Errors
    /// As [`Runtime::generation`].
    pub fn generation_on(
        &self,
        composition: Arc<Composition>,
        profile: ExecutionProfile,
        wait: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Generation, RuntimeError> {
        let user = self.shared.board.enter(wait)?;
        self.generation_of(user, composition, profile)
    }

    fn generation_of(
        &self,
        user: BoardUser,
        composition: Arc<Composition>,
        profile: ExecutionProfile,
    ) -> Result<Generation, RuntimeError> {
        let engine = self.engine.clone();
        let session = Session::new(composition, profile, engine.clone())?;
        let mut generation =
            Generation { session, engine, user, shared: Arc::clone(&self.shared), reserved: None };
        // A generation that would not even have its first page is refused now.
        let least = Workload { positions: 1, chunk: 1, all_logits: false };
        generation.reserve(least)?;
        Ok(generation)
    }
}

impl Generation {
    /// The composition that all tokens come from.
    pub fn composition(&self) -> &Arc<Composition> {
        self.session.composition()
    }

    /// The session. Its cache and its buffers are held to what was reserved, where there is a budget for them.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Whether a switch under the policy `abort` has ended this: what is generated from here on comes from a composition that is no longer active. One load.
    pub fn has_ended(&self) -> bool {
        self.user.has_ended()
    }

    /// Reserves memory for `work` in place of what was reserved before.
    ///
    /// # Errors
    /// A component that is over its budget, with everything that is resident or reserved by others. What was reserved before stays.
    pub fn reserve(&mut self, work: Workload) -> Result<(), RuntimeError> {
        let (composition, profile) = (self.session.composition(), self.session.profile());
        let (plan, own) = self.shared.plan_of(composition, profile, &self.engine, work)?;
        let budgets = self.shared.followed()?.budgets;
        self.shared.ledger.exchange(&budgets, &mut self.reserved, &plan)?;
        self.session.set_kv_budget(budgets.kv.map(|_| own.kv));
        self.session.set_scratch_budget(budgets.scratch.map(|_| own.scratch));
        Ok(())
    }

    /// [`crate::generate::generate`], within the budgets and until a switch ends it ([`Stop::Switched`]).
    ///
    /// # Errors
    /// Before anything is allocated, a component that is over its budget; as [`crate::generate::generate`].
    pub fn generate(
        &mut self,
        history: &[u32],
        prompt: &[u32],
        options: &GenerateOptions,
        on_prefill: &mut dyn FnMut(),
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<(Vec<u32>, Stop), RuntimeError> {
        let positions =
            self.session.position() as u64 + prompt.len() as u64 + options.max_tokens as u64;
        let positions = positions.min(u64::from(self.session.context_length())) as u32;
        let chunk = options.chunk.min(prompt.len().max(1));
        self.reserve(Workload { positions, chunk, all_logits: false })?;
        let Generation { session, engine, user, .. } = self;
        generate_while(
            &|| !user.has_ended(),
            session,
            engine.kernels,
            history,
            prompt,
            options,
            on_prefill,
            on_token,
        )
    }
}
