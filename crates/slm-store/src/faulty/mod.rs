//! Media for tests: one that fails, and one that forgets at a power cut what was not synced.

mod crashing;
mod failing;
mod medium;
#[cfg(feature = "fs")]
mod strace;

pub use crashing::{CrashFile, CrashLease, CrashLock, CrashStorage};
pub use failing::{FailingFile, FailingStorage, Failure};
pub use medium::{Event, Image};
#[cfg(feature = "fs")]
pub use strace::{TRACED_CALLS, traced_steps};
