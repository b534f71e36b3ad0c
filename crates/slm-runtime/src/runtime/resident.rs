//! What is in memory: a base or an adapter once, however many compositions use it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use slm_format::Digest;
use slm_manifest::{AdapterId, BaseId};
use slm_overlay::BoundAdapter;

use crate::load::Base;

/// Weak references: residency ends with the last composition that uses a thing.
#[derive(Default)]
pub(super) struct Resident {
    /// By blob, not by identity: a base may be stored with two tokenizers.
    bases: Mutex<HashMap<Digest, Weak<Base>>>,
    adapters: Mutex<HashMap<(BaseId, AdapterId, Digest), Weak<BoundAdapter>>>,
}

impl Resident {
    /// Bytes of all bases and of all adapters that are resident, whoever uses them.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        let live = bases.values().filter_map(Weak::upgrade);
        let base_bytes = live.map(|base| crate::budget::base_bytes(&base)).sum();
        drop(bases);
        let adapters = self.adapters.lock().unwrap_or_else(PoisonError::into_inner);
        let adapter_bytes = adapters.values().filter_map(Weak::upgrade).map(|a| a.bytes()).sum();
        (base_bytes, adapter_bytes)
    }

    pub(super) fn base(&self, blob: Digest) -> Option<Arc<Base>> {
        self.bases.lock().unwrap_or_else(PoisonError::into_inner).get(&blob)?.upgrade()
    }

    /// The blob that a resident base was opened from.
    pub(super) fn blob_of(&self, base: &Arc<Base>) -> Option<Digest> {
        let bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        let found = bases.iter().find(|(_, held)| std::ptr::eq(held.as_ptr(), Arc::as_ptr(base)));
        found.map(|(blob, _)| *blob)
    }

    pub(super) fn keep_base(&self, blob: Digest, base: &Arc<Base>) {
        let mut bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        bases.retain(|_, base| base.strong_count() > 0);
        bases.insert(blob, Arc::downgrade(base));
    }

    pub(super) fn adapter(
        &self,
        base: BaseId,
        id: AdapterId,
        blob: Digest,
    ) -> Option<Arc<BoundAdapter>> {
        self.adapters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&(base, id, blob))?
            .upgrade()
    }

    pub(super) fn keep_adapter(&self, base: BaseId, blob: Digest, adapter: &Arc<BoundAdapter>) {
        let mut adapters = self.adapters.lock().unwrap_or_else(PoisonError::into_inner);
        adapters.retain(|_, adapter| adapter.strong_count() > 0);
        adapters.insert((base, adapter.id(), blob), Arc::downgrade(adapter));
    }
}
