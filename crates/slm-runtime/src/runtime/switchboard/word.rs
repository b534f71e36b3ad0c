//! The atomic parts: the machine's, and in the tests the model checker's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

/// An atomic 64-bit word. Every operation is sequentially consistent: there are a handful for each token, and none of them waits.
pub(crate) trait Word: Send + Sync {
    fn new(value: u64) -> Self;
    fn load(&self) -> u64;
    /// Whether `current` was there and `new` is now.
    fn compare_exchange(&self, current: u64, new: u64) -> bool;
    fn fetch_add(&self, n: u64) -> u64;
    fn fetch_sub(&self, n: u64);
    fn fetch_and(&self, mask: u64);
    fn fetch_max(&self, value: u64);
}

/// An atomic pointer that may be empty.
pub(crate) trait Pointer<T>: Send + Sync {
    fn new() -> Self;
    fn load(&self) -> Option<Arc<T>>;
    /// Stores `new` where nothing is, or where `older` says so of what is there.
    fn replace_if(&self, new: &Arc<T>, older: &dyn Fn(&T) -> bool);
}

impl Word for AtomicU64 {
    fn new(value: u64) -> AtomicU64 {
        AtomicU64::new(value)
    }

    fn load(&self) -> u64 {
        self.load(Ordering::SeqCst)
    }

    fn compare_exchange(&self, current: u64, new: u64) -> bool {
        self.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn fetch_add(&self, n: u64) -> u64 {
        self.fetch_add(n, Ordering::SeqCst)
    }

    fn fetch_sub(&self, n: u64) {
        self.fetch_sub(n, Ordering::SeqCst);
    }

    fn fetch_and(&self, mask: u64) {
        self.fetch_and(mask, Ordering::SeqCst);
    }

    fn fetch_max(&self, value: u64) {
        self.fetch_max(value, Ordering::SeqCst);
    }
}

impl<T: Send + Sync> Pointer<T> for ArcSwapOption<T> {
    fn new() -> ArcSwapOption<T> {
        ArcSwapOption::empty()
    }

    fn load(&self) -> Option<Arc<T>> {
        self.load_full()
    }

    fn replace_if(&self, new: &Arc<T>, older: &dyn Fn(&T) -> bool) {
        self.rcu(|current| match current {
            Some(current) if !older(current) => Some(Arc::clone(current)),
            _ => Some(Arc::clone(new)),
        });
    }
}
