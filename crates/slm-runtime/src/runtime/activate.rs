//! The switch by name, and what is active.

use std::ops::ControlFlow;
use std::sync::Arc;

use slm_manifest::ExecutionProfile;
use slm_store::Storage;

use crate::composition::Composition;
use crate::error::{ActivationError, RuntimeError};
use crate::runtime::machine::{Prepared, Request, missing_is_damage};
use crate::runtime::{Activation, Active, HistoryEntry, Reference, Runtime, Slot, Status};
use crate::session::Session;

/// Generations that `history` walks at most.
pub(super) const HISTORY_LIMIT: usize = 1_000;

/// For callers that will not wait: gives up at the first look.
pub fn no_patience() -> ControlFlow<()> {
    ControlFlow::Break(())
}

impl<S: Storage> Runtime<S> {
    /// Validates a composition and makes it the active one.
    ///
    /// Activating the active composition changes nothing, and the rollback target stays.
    ///
    /// # Errors
    /// As [`Runtime::switch`], without waiting.
    pub fn activate_composition(
        &self,
        reference: &Reference,
        now: &str,
    ) -> Result<Activation, RuntimeError> {
        self.switch(&Request::Activate(reference.clone()), now, &mut no_patience)
    }

    /// Goes back to the parent of the active generation, through the same validation.
    ///
    /// # Errors
    /// Nothing is active; `no-parent`; as [`Runtime::switch`], without waiting.
    pub fn rollback(&self, now: &str) -> Result<Activation, RuntimeError> {
        self.switch(&Request::Rollback, now, &mut no_patience)
    }

    /// Activates the active stack without one adapter, given by name or id. An adapter that is not in the stack changes nothing.
    ///
    /// # Errors
    /// Nothing is active; as [`Runtime::switch`], without waiting.
    pub fn deactivate_adapter(&self, adapter: &str, now: &str) -> Result<Activation, RuntimeError> {
        self.switch(&Request::Deactivate(adapter.to_owned()), now, &mut no_patience)
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
        // Before the lock, which makes a store where there is none: what cannot be is refused without a trace.
        match request {
            Request::Activate(reference) => drop(self.manifest_by_reference(reference)?),
            Request::Rollback | Request::Deactivate(_) => {
                self.store.active()?.ok_or(ActivationError::NoneActive)?;
            }
        }
        let mut lock = self.lock(now)?;
        match self.prepare(&mut lock, request, now)? {
            Prepared::Unchanged(activation) => Ok(activation),
            Prepared::Staged(staged) => match staged.swap(wait) {
                Ok(committed) => Ok(committed.into_activation()),
                Err(rolled_back) => Err(rolled_back.into_error()),
            },
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

    /// A session on the active composition. It is held to the budget for the cache that running generations have left, and does not count as one of them: no switch waits
    /// for it or ends it. It goes on with what it started with.
    ///
    /// # Errors
    /// As [`Runtime::active_composition`].
    pub fn session(&self, profile: ExecutionProfile) -> Result<Session, RuntimeError> {
        let mut session = Session::new(self.active_composition()?, profile, self.engine.clone())?;
        let reserved = self.memory().kv;
        session.set_kv_budget(self.budgets().kv.map(|budget| budget.saturating_sub(reserved)));
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
