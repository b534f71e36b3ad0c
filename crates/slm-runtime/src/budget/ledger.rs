//! What running sessions have reserved of a runtime's budgets.

use std::sync::{Arc, Mutex, PoisonError};

use crate::budget::{BudgetError, Budgets, MemoryPlan};

/// Cache pages and buffers that running sessions may allocate, added up. Cloning shares the sums.
#[derive(Debug, Clone, Default)]
pub struct Ledger(Arc<Mutex<Sums>>);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    kv: u64,
    scratch: u64,
}

impl Sums {
    fn without(self, share: Sums) -> Sums {
        Sums {
            kv: self.kv.saturating_sub(share.kv),
            scratch: self.scratch.saturating_sub(share.scratch),
        }
    }

    fn added_to(self, plan: MemoryPlan) -> MemoryPlan {
        MemoryPlan {
            kv: plan.kv.saturating_add(self.kv),
            scratch: plan.scratch.saturating_add(self.scratch),
            ..plan
        }
    }
}

/// A session's share. Dropping it gives it back.
#[derive(Debug)]
pub struct Reservation {
    ledger: Ledger,
    share: Sums,
}

impl Ledger {
    /// `plan` with what is reserved by others.
    pub fn with_reserved(&self, plan: MemoryPlan) -> MemoryPlan {
        let sums = *self.sums();
        sums.added_to(plan)
    }

    /// Reserves in place of `before`, which stays if this is refused.
    ///
    /// # Errors
    /// As [`Ledger::reserve`].
    pub fn exchange(
        &self,
        budgets: &Budgets,
        before: &mut Option<Reservation>,
        plan: &MemoryPlan,
    ) -> Result<(), BudgetError> {
        let mut sums = self.sums();
        let given = before.as_ref().map_or(Sums::default(), |before| before.share);
        let others = sums.without(given);
        let share = Sums { kv: plan.kv, scratch: plan.scratch };
        let whole = others.added_to(*plan);
        budgets.check(&whole.with_overhead())?;
        *sums = Sums { kv: whole.kv, scratch: whole.scratch };
        drop(sums);
        // The sums are right; the old share must not be given back a second time.
        match before {
            Some(reservation) => reservation.share = share,
            None => *before = Some(Reservation { ledger: self.clone(), share }),
        }
        Ok(())
    }

    /// Reserves the cache and the buffers of `plan`, if with everything reserved by others it fits. Two callers at once cannot both get what is
    /// there once.
    ///
    /// # Errors
    /// The first component that is over; nothing is reserved then.
    pub fn reserve(
        &self,
        budgets: &Budgets,
        plan: &MemoryPlan,
    ) -> Result<Reservation, BudgetError> {
        let mut reservation = None;
        self.exchange(budgets, &mut reservation, plan)?;
        Ok(reservation.expect("BUG: a reservation that was made is not there"))
    }

    // No code panics while it holds the mutex.
    fn sums(&self) -> std::sync::MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut sums = self.ledger.sums();
        *sums = sums.without(self.share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_counts_until_it_is_given_back() {
        let (ledger, one) = (Ledger::default(), MemoryPlan { kv: 60, ..MemoryPlan::default() });
        let budgets = Budgets { kv: Some(100), ..Budgets::UNLIMITED };
        let first = ledger.reserve(&budgets, &one).expect("room");
        let refused = ledger.reserve(&budgets, &one).unwrap_err();
        assert_eq!((refused.needed, refused.budget), (120, 100));
        assert_eq!(ledger.with_reserved(MemoryPlan::default()).kv, 60);
        drop(first);
        assert_eq!(ledger.with_reserved(MemoryPlan::default()).kv, 0);
        let mut held = Some(ledger.reserve(&budgets, &one).expect("room again"));
        // In place of the old share, not beside it.
        let more = MemoryPlan { kv: 90, ..MemoryPlan::default() };
        ledger.exchange(&budgets, &mut held, &more).expect("room");
        assert_eq!(ledger.with_reserved(MemoryPlan::default()).kv, 90);
        let most = MemoryPlan { kv: 101, ..MemoryPlan::default() };
        assert!(ledger.exchange(&budgets, &mut held, &most).is_err());
        assert_eq!(ledger.with_reserved(MemoryPlan::default()).kv, 90);
        drop(held);
        assert_eq!(ledger.with_reserved(MemoryPlan::default()).kv, 0);
    }
}
