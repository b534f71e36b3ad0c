//! What several test files use.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use slm_format::Digest;
use slm_manifest::CompositionId;
use slm_store::{Generation, Storage, Store, WriteLock};

/// The callers' clock.
pub const NOW: &str = "2026-07-21T00:00:00Z";

/// A generation whose manifest is a blob of the store.
pub fn generation<S: Storage>(
    store: &Store<S>,
    lock: &WriteLock,
    number: u64,
    parent: Option<Digest>,
) -> Generation {
    let manifest = store.put_bytes(lock, format!("manifest {number}").as_bytes()).unwrap();
    Generation {
        number,
        composition: CompositionId::of_canonical(&number.to_le_bytes()),
        manifest,
        parent,
        time: NOW.to_owned(),
    }
}
