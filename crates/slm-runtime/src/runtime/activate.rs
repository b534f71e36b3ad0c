//! The switch by name, and what is active.

use std::ops::ControlFlow;
use std::sync::Arc;

use slm_manifest::ExecutionProfile;
use slm_store::Storage;

use crate::budget::Workload;
use crate::composition::Composition;
use crate::error::{ActivationError, RuntimeError};
use crate::runtime::machine::{Committed, Prepared, Request, RolledBack, missing_is_damage};
use crate::runtime::{Activation, Active, HistoryEntry, Reference, Runtime, Slot, Status};
use crate::session::Session;

/// Generations that `history` walks at most.
pub(super) const HISTORY_LIMIT: usize = 1_000;

impl<S: Storage> Runtime<S> {
    /// Validates a composition and makes it the active one.
    ///
    /// Activating the active composition changes nothing, and the rollback target stays.
    ///
    /// # Errors
    /// As [`Runtime::switch`], with the policy's own wait.
    pub fn activate_composition(
        &self,
        reference: &Reference,
        now: &str,
    ) -> Result<Activation, RuntimeError> {
        self.switch_waiting(&Request::Activate(reference.clone()), now, None)
    }

    /// Goes back to the parent of the active generation, through the same validation.
    ///
    /// # Errors
    /// Nothing is active; `no-parent`; as [`Runtime::switch`], with the policy's own wait.
    pub fn rollback(&self, now: &str) -> Result<Activation, RuntimeError> {
        self.switch_waiting(&Request::Rollback, now, None)
    }

    /// Activates the active stack without one adapter, given by name or id. An adapter that is not in the stack changes nothing.
    ///
    /// # Errors
    /// Nothing is active; as [`Runtime::switch`], with the policy's own wait.
    pub fn deactivate_adapter(&self, adapter: &str, now: &str) -> Result<Activation, RuntimeError> {
        self.switch_waiting(&Request::Deactivate(adapter.to_owned()), now, None)
    }

    /// The whole machine at once: [`Runtime::lock`], [`Runtime::prepare`], then [`crate::runtime::Staged::swap`]. `now` is the time to record; under the policy `drain`, `wait` is called
    /// between looks at the running generations, and ends the waiting by [`ControlFlow::Break`].
    ///
    /// # Errors
    /// No such composition; anything wrong with the manifest, a blob or a binding; a budget; `store-busy`; `generation-running`, `drain-timeout`, `switch-running`. On any error the old composition is active, but for one case: the system
    /// fails to sync the record after its bytes arrived. [`Runtime::status`] says which it is.
    pub fn switch(
        &self,
        request: &Request,
        now: &str,
        wait: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Activation, RuntimeError> {
        self.switch_waiting(request, now, Some(wait))
    }

    /// As [`Runtime::switch`]; without a wait of the caller's, by the policy's, as it is under the lock.
    fn switch_waiting(
        &self,
        request: &Request,
        now: &str,
        wait: Option<&mut dyn FnMut() -> ControlFlow<()>>,
    ) -> Result<Activation, RuntimeError> {
        let mut lock = match self.can_be(request) {
            Ok(()) => self.lock(now)?,
            // The lock makes a store where there is none: what cannot be is refused without a trace then.
            Err(error) if !self.store.exists()? => return Err(error),
            // Looked at once more under the lock, and the refusal told to the log; where there can be no lock, this is what the caller must hear.
            Err(error) => self.lock(now).map_err(|_| error)?,
        };
        match self.prepare(&mut lock, request, now)? {
            Prepared::Unchanged(activation) => Ok(activation),
            Prepared::Staged(staged) => {
                let done = match wait {
                    Some(wait) => staged.swap(wait),
                    None => staged.swap(&mut self.patience()),
                };
                done.map(Committed::into_activation).map_err(RolledBack::into_error)
            }
        }
    }

    /// Whether a request may succeed, by a look without the lock.
    fn can_be(&self, request: &Request) -> Result<(), RuntimeError> {
        match request {
            Request::Activate(reference) => self.manifest_by_reference(reference).map(drop),
            Request::Rollback | Request::Deactivate(_) => {
                Ok(self.store.active()?.ok_or(ActivationError::NoneActive).map(drop)?)
            }
        }
    }

    /// What is active.
    ///
    /// # Errors
    /// `none-active`; a damaged record.
    pub fn status(&self) -> Result<Status, RuntimeError> {
        let active = self.store.active()?.ok_or(ActivationError::NoneActive)?;
        let manifest = self.stored_manifest(active.record.manifest).map_err(missing_is_damage)?;
        Ok(Status {
            composition: active.record.composition,
            generation: active.record.number,
            manifest_digest: active.record.manifest,
            manifest,
            fault: active.fault,
        })
    }

    /// The active generation and its ancestors, newest first.
    ///
    /// # Errors
    /// A damaged record.
    pub fn history(&self) -> Result<Vec<HistoryEntry>, RuntimeError> {
        let mut entries = Vec::new();
        for (_, generation) in self.store.history(HISTORY_LIMIT)? {
            entries.push(HistoryEntry {
                generation: generation.number,
                composition: generation.composition,
                manifest: generation.manifest,
                time: generation.time,
            });
        }
        Ok(entries)
    }

    /// The active composition, opened and verified at the first call after a switch.
    ///
    /// # Errors
    /// `none-active`; what opening refuses; a budget.
    pub fn active_composition(&self) -> Result<Arc<Composition>, RuntimeError> {
        let slot = self.active_slot(self.shared.board.draw_epoch())?;
        Ok(Arc::clone(&slot.value.composition))
    }

    /// A session on the active composition. It is held to what running generations have left of the budgets for the cache and the buffers, and does not count as one of them: no switch waits
    /// for it or ends it. It goes on with what it started with.
    ///
    /// # Errors
    /// As [`Runtime::active_composition`].
    pub fn session(&self, profile: ExecutionProfile) -> Result<Session, RuntimeError> {
        let budgets = self.shared.followed()?.budgets;
        let mut session = Session::new(self.active_composition()?, profile, self.engine.clone())?;
        let reserved = self.memory();
        let left = |budget: u64, reserved| budget.saturating_sub(reserved);
        session.set_kv_budget(budgets.kv.map(|budget| left(budget, reserved.kv)));
        session.set_scratch_budget(budgets.scratch.map(|budget| left(budget, reserved.scratch)));
        Ok(session)
    }

    /// A session on any composition for work that is known, such as logits of given tokens or an evaluation: cache and buffers for it are set aside
    /// before anything of them is allocated, and for as long as the session lives. It does not count as a generation.
    ///
    /// # Errors
    /// A component that is over its budget, with everything that is resident or set aside for others; as [`Session::new`].
    pub fn session_for(
        &self,
        composition: Arc<Composition>,
        profile: ExecutionProfile,
        work: Workload,
    ) -> Result<Session, RuntimeError> {
        let budgets = self.shared.followed()?.budgets;
        let (plan, own) = self.shared.plan_of(&composition, &profile, &self.engine, work)?;
        let reservation = self.shared.ledger.reserve(&budgets, &plan)?;
        let mut session = Session::new(composition, profile, self.engine.clone())?;
        session.set_kv_budget(budgets.kv.map(|_| own.kv));
        session.set_scratch_budget(budgets.scratch.map(|_| own.scratch));
        session.hold(reservation);
        Ok(session)
    }

    /// What the medium says is active: as memory has it, or opened and offered to memory. `epoch` was drawn before.
    pub(super) fn active_slot(&self, epoch: u64) -> Result<Arc<Slot<Active>>, RuntimeError> {
        let active = self.store.active()?.ok_or(ActivationError::NoneActive)?;
        let board = &self.shared.board;
        if let Some(slot) = board.slot()
            && slot.value.generation == active.generation
        {
            return Ok(slot);
        }
        let composition = self.opened(active.record.manifest, active.record.composition)?;
        Ok(board.offer(epoch, Active { generation: active.generation, composition }))
    }
}
