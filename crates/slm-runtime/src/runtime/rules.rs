//! The local rules: whose they are, and which are in force.

use std::sync::Arc;

use slm_format::Limits;
use slm_manifest::policy::{LocalPolicy, PolicyError};
use slm_store::{MAX_POLICY, Storage, Store, StoreError, WriteLock};

use crate::budget::Budgets;
use crate::error::RuntimeError;
use crate::runtime::Runtime;

/// Where the rules come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The caller gave them, and they stay.
    Caller,
    /// The store's own document, read again under every lock.
    Store,
}

/// The rules in force, or why there are none.
#[derive(Debug)]
pub(super) struct Rules {
    policy: Arc<LocalPolicy>,
    budgets: Budgets,
    fault: Option<Fault>,
}

/// Why the store's document cannot be followed.
#[derive(Debug, Clone)]
enum Fault {
    Store(StoreError),
    Policy(PolicyError),
}

impl From<LocalPolicy> for Rules {
    fn from(policy: LocalPolicy) -> Rules {
        Rules { budgets: Budgets::from(policy.budget), policy: Arc::new(policy), fault: None }
    }
}

impl From<Fault> for RuntimeError {
    fn from(fault: Fault) -> RuntimeError {
        match fault {
            Fault::Store(error) => error.into(),
            Fault::Policy(error) => error.into(),
        }
    }
}

impl Rules {
    /// What the store's document says; the defaults where there is none.
    pub(super) fn of_store<S: Storage>(store: &Store<S>) -> Rules {
        let limits = Limits { max_header_bytes: MAX_POLICY as u64, ..Limits::STANDARD };
        let read = store.policy().map_err(Fault::Store).and_then(|document| match document {
            Some(bytes) => LocalPolicy::from_bytes(&bytes, &limits).map_err(Fault::Policy),
            None => Ok(LocalPolicy::default()),
        });
        match read {
            Ok(policy) => policy.into(),
            Err(fault) => Rules { fault: Some(fault), ..LocalPolicy::default().into() },
        }
    }

    /// These, if they can be followed.
    fn followed(self: &Arc<Rules>) -> Result<Arc<Rules>, RuntimeError> {
        match &self.fault {
            None => Ok(Arc::clone(self)),
            Some(fault) => Err(fault.clone().into()),
        }
    }
}

impl<S: Storage> Runtime<S> {
    /// The local rules in force. Where [`Runtime::policy_fault`] says that the store's document cannot be followed, these are the defaults, and nothing
    /// is done under them.
    pub fn policy(&self) -> Arc<LocalPolicy> {
        Arc::clone(&self.shared.rules.load().policy)
    }

    /// Why the store's policy cannot be followed, where that is so. Looking at the store goes on; every change, and everything that would be brought
    /// into memory, is refused with this.
    pub fn policy_fault(&self) -> Option<RuntimeError> {
        self.shared.rules.load().fault.clone().map(RuntimeError::from)
    }

    /// How much memory it may use.
    pub fn budgets(&self) -> Budgets {
        self.shared.rules.load().budgets
    }

    /// Takes the store's lock at `now`, which is the time to record, and reads the store's policy again where that is in force: what another process
    /// has changed since binds what is done under this lock.
    ///
    /// # Errors
    /// `store-busy`; `bad-timestamp`; what the storage returns; a damaged log.
    pub fn lock(&self, now: &str) -> Result<WriteLock, RuntimeError> {
        let lock = self.store.lock_at(now)?;
        if self.policy_of == Source::Store {
            self.shared.rules.store(Arc::new(Rules::of_store(&self.store)));
        }
        Ok(lock)
    }

    /// As [`Runtime::lock`], for a change that is not made under rules that cannot be followed.
    pub(super) fn lock_to_change(&self, now: &str) -> Result<WriteLock, RuntimeError> {
        let lock = self.lock(now)?;
        self.shared.followed()?;
        Ok(lock)
    }
}

impl super::Core {
    /// The rules, if they can be followed.
    pub(super) fn followed(&self) -> Result<Rulebook, RuntimeError> {
        let rules = self.rules.load_full().followed()?;
        Ok(Rulebook { policy: Arc::clone(&rules.policy), budgets: rules.budgets })
    }
}

/// Rules that can be followed.
#[derive(Debug)]
pub(super) struct Rulebook {
    pub(super) policy: Arc<LocalPolicy>,
    pub(super) budgets: Budgets,
}
