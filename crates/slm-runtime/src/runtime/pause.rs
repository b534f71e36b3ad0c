//! How a draining switch waits.

use std::ops::ControlFlow;
use std::sync::Arc;

use slm_manifest::policy::DuringGeneration;
use slm_store::Storage;

use crate::runtime::Runtime;

/// Longest pause between two looks, in microseconds.
const LOOK_EVERY_US: u64 = 1_000;

/// Lets time pass. The library has no clock of its own but through this.
pub trait Pause: Send + Sync {
    /// Waits for about `at_most_us` microseconds, and says how many have passed.
    fn pause(&self, at_most_us: u64) -> u64;
}

/// Waits by the system's clock, on the calling thread.
#[cfg(feature = "clock")]
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemPause;

#[cfg(feature = "clock")]
impl Pause for SystemPause {
    fn pause(&self, at_most_us: u64) -> u64 {
        let began = std::time::Instant::now();
        std::thread::sleep(std::time::Duration::from_micros(at_most_us));
        u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX).max(1)
    }
}

/// The pause that a runtime has when nobody gave one: the system's, where the feature `clock` is on.
pub(super) fn usual() -> Option<Arc<dyn Pause>> {
    #[cfg(feature = "clock")]
    return Some(Arc::new(SystemPause));
    #[cfg(not(feature = "clock"))]
    None
}

/// For callers that will not wait: gives up at the first look.
pub fn no_patience() -> ControlFlow<()> {
    ControlFlow::Break(())
}

impl<S: Storage> Runtime<S> {
    /// The same runtime, which waits by `pause`.
    pub fn pausing_with(self, pause: Arc<dyn Pause>) -> Runtime<S> {
        Runtime { pause: Some(pause), ..self }
    }

    /// The wait that the policy in force asks of a switch: under `drain` looks about every millisecond until `switch.drain_wait_ms` is over, under the
    /// other policies, and without a [`Pause`], none. [`Runtime::activate_composition`], [`Runtime::rollback`] and [`Runtime::deactivate_adapter`]
    /// wait so.
    pub fn patience(&self) -> impl FnMut() -> ControlFlow<()> + use<S> {
        let switch = self.policy().switch;
        let drains = switch.during_generation == DuringGeneration::Drain;
        let mut left = if drains { switch.drain_wait_ms.saturating_mul(1_000) } else { 0 };
        let pause = self.pause.clone();
        move || match &pause {
            Some(pause) if left > 0 => {
                // A pause that says that no time has passed must not make the wait endless.
                left = left.saturating_sub(pause.pause(left.min(LOOK_EVERY_US)).max(1));
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Break(()),
        }
    }
}
