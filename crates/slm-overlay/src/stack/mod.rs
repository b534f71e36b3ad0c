//! The ordered stack, and what it adds to one tensor's product.

mod lone;
mod tensor;
mod term;

use std::collections::BTreeSet;
use std::sync::Arc;

use slm_manifest::{AdapterId, BaseId};

pub use lone::{LoneDowns, LoneScratch};
pub use tensor::{Gates, TensorStack};

use crate::{BoundAdapter, OverlayError};
use term::{Part, Term};

/// Bound adapters with their weights, bottom first. Cloning shares the adapters; a shorter stack is another stack over the same base.
#[derive(Debug, Clone)]
pub struct Stack {
    base: BaseId,
    entries: Vec<(Arc<BoundAdapter>, f32)>,
}

impl Stack {
    /// The stack of these adapters on `base_id`, bottom first.
    ///
    /// # Errors
    /// [`OverlayError::BaseMismatch`] for an adapter bound to another base, [`OverlayError::DuplicateAdapter`] for one that stands twice,
    /// whatever its weights, [`OverlayError::Weight`] for a weight that is not finite or makes a scale that is not.
    pub fn new(
        base_id: BaseId,
        entries: Vec<(Arc<BoundAdapter>, f32)>,
    ) -> Result<Stack, OverlayError> {
        let mut seen = BTreeSet::new();
        for (bound, weight) in &entries {
            let (adapter, weight) = (bound.id(), *weight);
            if bound.base_id() != base_id {
                return Err(OverlayError::BaseMismatch {
                    adapter,
                    found: bound.base_id(),
                    expected: base_id,
                });
            }
            if !seen.insert(adapter) {
                return Err(OverlayError::DuplicateAdapter { adapter });
            }
            let scales = bound.adapter().modules().iter().map(|module| weight * module.scale());
            if let Some(scale) =
                std::iter::once(weight).chain(scales).find(|scale| !scale.is_finite())
            {
                return Err(OverlayError::Weight { adapter, weight, scale });
            }
            // So that looking a tensor up cannot fail.
            if weight != 0.0 {
                (0..bound.adapter().modules().len())
                    .try_for_each(|at| Term::new(bound, at, weight, 0).map(drop))?;
            }
        }
        // -0.0 and 0.0 are one weight and must be one identity.
        let entries = entries.into_iter().map(|(bound, weight)| (bound, weight + 0.0)).collect();
        Ok(Stack { base: base_id, entries })
    }

    /// No adapters on `base_id`.
    pub fn empty(base_id: BaseId) -> Stack {
        Stack { base: base_id, entries: Vec::new() }
    }

    /// The base.
    pub fn base_id(&self) -> BaseId {
        self.base
    }

    /// Adapters and weights, bottom first.
    pub fn entries(&self) -> &[(Arc<BoundAdapter>, f32)] {
        &self.entries
    }

    /// What a composition id covers of the stack: adapters and weights, bottom first. A zero weight is never negative.
    pub fn id_parts(&self) -> Vec<(AdapterId, f32)> {
        self.entries.iter().map(|(bound, weight)| (bound.id(), *weight)).collect()
    }

    /// Bytes resident beside the base.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|(bound, _)| bound.bytes()).sum()
    }

    /// What the stack does to the product of `tensor` (canonical name). Adapters of weight zero are left out: nothing is added for them.
    pub fn for_tensor(&self, tensor: &str) -> TensorStack {
        let terms: Arc<[Term]> = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, (_, weight))| *weight != 0.0)
            .filter_map(|(at, (bound, weight))| {
                let module = bound.position(tensor)?;
                let term = Term::new(bound, module, *weight, at);
                Some(term.expect("BUG: a stack was made of an adapter that gives no finite gains"))
            })
            .collect();
        let scales_input = terms.iter().any(|term| matches!(term.part, Part::Input(_)));
        TensorStack { terms, scales_input }
    }

    /// Writes to `starts`, in the place of what it holds, where each adapter that waits for its invocation starts in a sequence that begins with
    /// `prompt`: at the start of the last occurrence. `None` where it does not occur, and for adapters that always act. Nothing where none waits.
    /// Allocates only when `starts` has no room for the whole stack.
    pub fn starts(&self, prompt: &[u32], starts: &mut Vec<Option<usize>>) {
        starts.clear();
        if !self.waits() {
            return;
        }
        starts.extend(self.entries.iter().map(|(bound, _)| {
            let invocation = bound.adapter().invocation();
            match invocation.is_empty() {
                true => None,
                false => prompt.windows(invocation.len()).rposition(|window| window == invocation),
            }
        }));
    }

    /// Whether any adapter of the stack waits for its invocation.
    pub fn waits(&self) -> bool {
        self.entries.iter().any(|(bound, _)| !bound.adapter().invocation().is_empty())
    }
}
