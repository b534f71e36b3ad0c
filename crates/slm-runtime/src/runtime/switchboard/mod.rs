//! The pointer to what is active, the count of those who use it, and how a switch gets past them.
//!
//! ```text
//! gate    CLOSED bit | number of running generations     one word, changed by compare-and-exchange
//! slot    (epoch, value)                                 one pointer, replaced as a whole
//! ended   the greatest epoch whose generations shall end one word, only ever raised
//! ```
//!
//! A generation *enters*: it raises the count unless the gate is closed, draws an epoch, and then looks at what is active. A switch *closes* the
//! gate, under `reject` only if nobody is inside, under `drain` it then waits until nobody is; it writes to the medium, replaces the pointer, under
//! `abort` raises `ended`, and opens. So no generation begins while a switch is between its check and its pointer, and each has one slot for
//! all of its tokens.
//!
//! The words and the pointer are parameters, so that the very code that runs is also what the model checker in the tests explores.

mod word;

#[cfg(test)]
mod model;

use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;

pub(super) use word::{Pointer, Word};

use slm_manifest::policy::DuringGeneration;

use crate::error::SwitchError;

/// The gate is closed: a switch is on its way.
const CLOSED: u64 = 1 << 63;

/// What is active, as of an epoch.
#[derive(Debug)]
pub(super) struct Slot<T> {
    pub(super) epoch: u64,
    pub(super) value: T,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Switchboard<T, W, P> {
    gate: W,
    epochs: W,
    ended: W,
    slot: P,
    value: PhantomData<fn() -> T>,
}

/// Somebody who is inside; leaving is dropping it.
#[derive(Debug)]
pub(super) struct User<T, W: Word, P: Pointer<Slot<T>>> {
    board: Arc<Switchboard<T, W, P>>,
    /// Drawn when it entered, before it looked at what is active.
    epoch: u64,
}

/// A switch that has the gate; it opens when this is dropped, whatever happened.
#[derive(Debug)]
pub(super) struct Closed<'a, T, W: Word, P: Pointer<Slot<T>>> {
    board: &'a Switchboard<T, W, P>,
    policy: DuringGeneration,
}

impl<T, W: Word, P: Pointer<Slot<T>>> Switchboard<T, W, P> {
    pub(super) fn new() -> Self {
        Switchboard {
            gate: W::new(0),
            epochs: W::new(1),
            ended: W::new(0),
            slot: P::new(),
            value: PhantomData,
        }
    }

    /// What is active, if anything is in memory. One load; no lock.
    pub(super) fn slot(&self) -> Option<Arc<Slot<T>>> {
        self.slot.load()
    }

    /// Number of generations that run.
    pub(super) fn running(&self) -> u64 {
        self.gate.load() & !CLOSED
    }

    /// An epoch for something that will be looked up after this call.
    pub(super) fn draw_epoch(&self) -> u64 {
        self.epochs.fetch_add(1)
    }

    /// Whether generations of `epoch` shall end. One load.
    pub(super) fn has_ended(&self, epoch: u64) -> bool {
        epoch <= self.ended.load()
    }

    /// Puts what was found on the medium in place, unless something newer is there.
    pub(super) fn offer(&self, epoch: u64, value: T) -> Arc<Slot<T>> {
        let slot = Arc::new(Slot { epoch, value });
        self.slot.replace_if(&slot, &|current| current.epoch < epoch);
        slot
    }

    /// Counts a generation in. While a switch has the gate, `wait` is asked whether to look again.
    ///
    /// # Errors
    /// [`SwitchError::Switching`] when `wait` gives up.
    pub(super) fn enter(
        self: &Arc<Self>,
        wait: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<User<T, W, P>, SwitchError> {
        loop {
            let gate = self.gate.load();
            if gate & CLOSED != 0 {
                if wait().is_break() {
                    return Err(SwitchError::Switching);
                }
            } else if self.gate.compare_exchange(gate, gate + 1) {
                return Ok(User { board: Arc::clone(self), epoch: self.draw_epoch() });
            }
        }
    }

    /// Takes the gate for a switch.
    ///
    /// # Errors
    /// [`SwitchError::Switching`] where another switch has it; under `reject` [`SwitchError::Running`] while anybody is inside; under `drain`
    /// [`SwitchError::NotDrained`] when `wait` gives up before everybody has left. The gate is then as open as before.
    pub(super) fn close(
        &self,
        policy: DuringGeneration,
        wait: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Closed<'_, T, W, P>, SwitchError> {
        loop {
            let gate = self.gate.load();
            if gate & CLOSED != 0 {
                return Err(SwitchError::Switching);
            }
            if policy == DuringGeneration::Reject && gate != 0 {
                return Err(SwitchError::Running { running: gate });
            }
            if self.gate.compare_exchange(gate, gate | CLOSED) {
                break;
            }
        }
        let closed = Closed { board: self, policy };
        while policy == DuringGeneration::Drain && self.running() > 0 {
            if wait().is_break() {
                let running = self.running();
                if running > 0 {
                    return Err(SwitchError::NotDrained { running });
                }
            }
        }
        Ok(closed)
    }
}

impl<T, W: Word, P: Pointer<Slot<T>>> User<T, W, P> {
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether this generation shall end. One load.
    pub(super) fn has_ended(&self) -> bool {
        self.board.has_ended(self.epoch)
    }
}

impl<T, W: Word, P: Pointer<Slot<T>>> Drop for User<T, W, P> {
    fn drop(&mut self) {
        self.board.gate.fetch_sub(1);
    }
}

impl<T, W: Word, P: Pointer<Slot<T>>> Closed<'_, T, W, P> {
    /// Replaces the pointer, which cannot fail, and under `abort` tells everybody who entered before this to end.
    pub(super) fn swap(self, value: T) {
        let epoch = self.board.draw_epoch();
        let slot = Arc::new(Slot { epoch, value });
        self.board.slot.replace_if(&slot, &|_| true);
        if self.policy == DuringGeneration::Abort {
            self.board.ended.fetch_max(epoch - 1);
        }
    }
}

impl<T, W: Word, P: Pointer<Slot<T>>> Drop for Closed<'_, T, W, P> {
    fn drop(&mut self) {
        self.board.gate.fetch_and(!CLOSED);
    }
}
