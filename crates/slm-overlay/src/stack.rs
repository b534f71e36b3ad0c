//! The ordered stack, and what it adds to one tensor's product.

use std::collections::BTreeSet;
use std::sync::Arc;

use slm_manifest::{AdapterId, BaseId};
use slm_quant::{Executor, Inline, Kernels};

use crate::{BoundAdapter, LoraModule, OverlayError};

/// Bound adapters with their weights, bottom first. Cloning shares the adapters; a shorter stack is another stack over the same base.
#[derive(Debug, Clone)]
pub struct Stack {
    base: BaseId,
    entries: Vec<(Arc<BoundAdapter>, f32)>,
}

/// What a stack adds to one tensor's product. It owns what it needs, and cloning it is one reference count.
#[derive(Debug, Clone)]
pub struct TensorStack {
    terms: Arc<[Term]>,
}

/// One adapter's part.
#[derive(Debug)]
struct Term {
    bound: Arc<BoundAdapter>,
    module: usize,
    /// `weight * scale`.
    s: f32,
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
            let scales = bound.adapter().modules().iter().map(|module| weight * module.scale);
            if let Some(scale) =
                std::iter::once(weight).chain(scales).find(|scale| !scale.is_finite())
            {
                return Err(OverlayError::Weight { adapter, weight, scale });
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

    /// What the stack adds to the product of `tensor` (canonical name). Adapters of weight zero are left out: nothing is added for them.
    pub fn for_tensor(&self, tensor: &str) -> TensorStack {
        let terms = self.entries.iter().filter(|(_, weight)| *weight != 0.0).filter_map(
            |(bound, weight)| {
                let module = bound.position(tensor)?;
                let s = weight * bound.module(module).scale;
                Some(Term { bound: Arc::clone(bound), module, s })
            },
        );
        TensorStack { terms: terms.collect() }
    }
}

impl TensorStack {
    /// Whether nothing is added.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The parts, in stack order: `weight * scale`, and the module.
    pub fn parts(&self) -> impl Iterator<Item = (f32, &LoraModule)> {
        self.terms.iter().map(|term| (term.s, term.bound.module(term.module)))
    }

    /// Values that `scratch` must have room for, so that [`TensorStack::apply`] allocates nothing for so many tokens.
    pub fn scratch_len(&self, n_tokens: usize) -> usize {
        self.parts().map(|(_, module)| module.rank() as usize).max().unwrap_or(0) * n_tokens
    }

    /// Adds the stack's deltas to `y` (`[n_tokens, out]`), the base's product of `x` (`[n_tokens, in]`), by numerics 7: for each adapter
    /// in order, `z = A x` (16 lanes), `u = B z` (ascending rank), `y = y + s u`.
    ///
    /// The bits are the same for every executor and tier, and those that each token has alone. Allocates nothing when `scratch` has room
    /// for [`TensorStack::scratch_len`] values; its contents before and after mean nothing.
    ///
    /// # Panics
    /// When the lengths do not fit each other.
    pub fn apply(
        &self,
        kernels: &Kernels,
        exec: &dyn Executor,
        y: &mut [f32],
        x: &[f32],
        scratch: &mut Vec<f32>,
    ) {
        for term in self.terms.iter() {
            let (a, b_transposed) =
                (term.bound.a(term.module), term.bound.b_transposed(term.module));
            let (rank, cols) = (a.rows(), a.cols());
            assert!(x.len().is_multiple_of(cols), "columns of the activations");
            let n_tokens = x.len() / cols;
            scratch.clear();
            scratch.resize(n_tokens * rank, 0.0);
            if n_tokens == 1 {
                kernels.matmul(exec, scratch, &a, x, None);
            } else if n_tokens > 1 {
                // Split over tokens: A is small and stays in the cache, and one token's product needs no buffer.
                let tokens = n_tokens.div_ceil(exec.n_workers().max(1));
                exec.for_each_chunk(scratch, tokens * rank, &|chunk, z| {
                    let x = &x[chunk * tokens * cols..];
                    for (z, x) in z.chunks_exact_mut(rank).zip(x.chunks_exact(cols)) {
                        kernels.matmul(&Inline, z, &a, x, None);
                    }
                });
            }
            kernels.lora_up(exec, y, term.s, &b_transposed, scratch, n_tokens);
        }
    }
}
