//! What a composition needs in memory, and what a caller allows.
//!
//! A [`MemoryPlan`] adds up base, adapters as they are resident, the buffers of a pass, the pages of the cache and an allowance for everything
//! else; [`Budgets`] are numbers that the caller gives, and are compared with a plan *before* anything of it is allocated.
//!
//! Two components of other designs are zero here. No matrix is ever dequantized as a whole: the quantized product reads the blocks as they are
//! stored. And nothing is ever requantized: an adapter's part is added to the product, not to the weights.
//!
//! ```
//! use slm_runtime::budget::{Budgets, MemoryPlan, formula};
//!
//! let needed = MemoryPlan { base: 90_000_000, adapters: 19_600_000, ..MemoryPlan::default() };
//! let budgets = Budgets { adapters: Some(10_000_000), ..Budgets::UNLIMITED };
//! let error = budgets.check(&needed).unwrap_err();
//! assert_eq!(slm_format::Coded::code(&error), "over-budget-adapters");
//! assert_eq!(formula::low_rank_bytes(16, 576, 576, 4), 73_728);
//! ```

pub mod formula;

mod ledger;
mod plan;

use std::fmt;

use slm_format::{Coded, ErrorClass};
use slm_manifest::policy::BudgetPolicy;

pub use ledger::{Ledger, Reservation};
pub use plan::{AdapterCost, MemoryPlan, Workload};
pub(crate) use plan::{base_bytes, scratch_bytes};

/// What a budget is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Component {
    /// The weights of bases.
    Base,
    /// Adapters in their working form.
    Adapters,
    /// Pages of caches.
    Kv,
    /// Buffers of passes.
    Scratch,
    /// Everything, the overhead included.
    Total,
}

impl Component {
    /// All of them, in the order in which they are checked.
    pub const ALL: [Component; 5] =
        [Component::Base, Component::Adapters, Component::Kv, Component::Scratch, Component::Total];

    /// The name, as codes and policies spell it.
    pub fn name(self) -> &'static str {
        match self {
            Component::Base => "base",
            Component::Adapters => "adapters",
            Component::Kv => "kv",
            Component::Scratch => "scratch",
            Component::Total => "total",
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The most bytes that each component may have; `None` where the caller sets no bound. Local: no package says anything about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budgets {
    /// Weights of bases.
    pub base: Option<u64>,
    /// Adapters in their working form.
    pub adapters: Option<u64>,
    /// Pages of caches.
    pub kv: Option<u64>,
    /// Buffers of passes.
    pub scratch: Option<u64>,
    /// Everything, the overhead included.
    pub total: Option<u64>,
}

impl Budgets {
    /// No bound.
    pub const UNLIMITED: Budgets =
        Budgets { base: None, adapters: None, kv: None, scratch: None, total: None };

    /// The bound of a component.
    pub fn of(&self, component: Component) -> Option<u64> {
        match component {
            Component::Base => self.base,
            Component::Adapters => self.adapters,
            Component::Kv => self.kv,
            Component::Scratch => self.scratch,
            Component::Total => self.total,
        }
    }

    /// Compares what is needed with what is allowed; what is exactly allowed fits.
    ///
    /// # Errors
    /// The first component that is over, in the order of [`Component::ALL`].
    pub fn check(&self, needed: &MemoryPlan) -> Result<(), BudgetError> {
        for component in Component::ALL {
            let bytes = needed.of(component);
            if let Some(budget) = self.of(component)
                && bytes > budget
            {
                return Err(BudgetError { component, needed: bytes, budget });
            }
        }
        Ok(())
    }
}

impl From<BudgetPolicy> for Budgets {
    fn from(policy: BudgetPolicy) -> Budgets {
        let BudgetPolicy { base, adapters, kv, scratch, total } = policy;
        Budgets { base, adapters, kv, scratch, total }
    }
}

/// More memory would be needed than the caller allows. Nothing of it was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{component}: {needed} bytes are needed, the budget is {budget}")]
pub struct BudgetError {
    /// What there is too little for.
    pub component: Component,
    /// Bytes that would be in use, with what is resident already.
    pub needed: u64,
    /// Bytes that are allowed.
    pub budget: u64,
}

impl Coded for BudgetError {
    fn code(&self) -> &'static str {
        match self.component {
            Component::Base => "over-budget-base",
            Component::Adapters => "over-budget-adapters",
            Component::Kv => "over-budget-kv",
            Component::Scratch => "over-budget-scratch",
            Component::Total => "over-budget-total",
        }
    }

    fn class(&self) -> ErrorClass {
        ErrorClass::Budget
    }

    fn hint(&self) -> Option<String> {
        Some("see slm plan; raise the budget, or ask for less: a shorter context, smaller factors, fewer adapters".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_component_is_held_to_its_own_budget_and_what_just_fits_is_accepted() {
        let needed = MemoryPlan {
            base: 100,
            adapters: 20,
            scratch: 7,
            kv: 30,
            overhead: 3,
            ..MemoryPlan::default()
        };
        let exact = Budgets {
            base: Some(100),
            adapters: Some(20),
            kv: Some(30),
            scratch: Some(7),
            total: Some(160),
        };
        assert_eq!(exact.check(&needed), Ok(()));
        assert_eq!(Budgets::UNLIMITED.check(&needed), Ok(()));
        for component in Component::ALL {
            let mut tight = exact;
            let bound = match component {
                Component::Base => &mut tight.base,
                Component::Adapters => &mut tight.adapters,
                Component::Kv => &mut tight.kv,
                Component::Scratch => &mut tight.scratch,
                Component::Total => &mut tight.total,
            };
            *bound = bound.map(|bytes| bytes - 1);
            let error = tight.check(&needed).unwrap_err();
            assert_eq!(error.code(), format!("over-budget-{component}"));
            assert_eq!(error.class(), ErrorClass::Budget);
            assert_eq!((error.component, error.needed), (component, needed.of(component)));
            assert_eq!(error.budget + 1, error.needed);
        }
    }
}
