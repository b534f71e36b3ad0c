//! The ordered stack, and what it adds to one tensor's product.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use slm_manifest::{AdapterId, BaseId};
use slm_quant::{Executor, Kernels};

use crate::{BoundAdapter, LoraModule, OverlayError};

/// Bytes that come from memory together.
const LINE: usize = 64;

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

    /// Values that `z` of [`TensorStack::down`] holds for so many tokens: each term's rank, for each token.
    pub fn scratch_len(&self, n_tokens: usize) -> usize {
        self.parts().map(|(_, module)| module.rank() as usize).sum::<usize>() * n_tokens
    }

    /// The first half of numerics 7, for all adapters of the stack: `z = A x` (16 lanes). `x` is `[n_tokens, in]`; `z` is
    /// [`TensorStack::scratch_len`] values, term after term, each `[n_tokens, rank]`. Allocates nothing.
    ///
    /// # Panics
    /// When the lengths do not fit each other.
    pub fn down(
        &self,
        kernels: &Kernels,
        exec: &dyn Executor,
        z: &mut [f32],
        x: &[f32],
        n_tokens: usize,
    ) {
        let mut rest = z;
        for term in self.terms.iter() {
            let a = term.bound.a(term.module);
            let (z, later) = rest.split_at_mut(n_tokens * a.rows());
            rest = later;
            kernels.matmul(exec, z, &a, x, None);
        }
        assert!(rest.is_empty(), "values of a stack's down-projections");
    }

    /// [`TensorStack::down`] of stacks that read the same rows, handed out together. `z` holds what each would have, one after the other.
    ///
    /// # Panics
    /// When the lengths do not fit each other.
    pub fn down_each<const N: usize>(
        stacks: &[TensorStack; N],
        kernels: &Kernels,
        exec: &dyn Executor,
        z: &mut [f32],
        x: &[f32],
        n_tokens: usize,
    ) {
        let mut rest = z;
        let mut parts = stacks.each_ref().map(|stack| {
            let (z, later) = std::mem::take(&mut rest).split_at_mut(stack.scratch_len(n_tokens));
            rest = later;
            z
        });
        assert!(rest.is_empty(), "values of the stacks' down-projections");
        let together = stacks.iter().all(|stack| stack.terms.len() == stacks[0].terms.len());
        if !together {
            for (stack, z) in stacks.iter().zip(parts) {
                stack.down(kernels, exec, z, x, n_tokens);
            }
            return;
        }
        for term in 0..stacks[0].terms.len() {
            let factors = stacks.each_ref().map(|stack| {
                let term = &stack.terms[term];
                term.bound.a(term.module)
            });
            let mut n = 0;
            let outs = parts.each_mut().map(|part| {
                let len = n_tokens * factors[n].rows();
                n += 1;
                let (z, later) = std::mem::take(part).split_at_mut(len);
                *part = later;
                z
            });
            kernels.matmul_each(exec, outs, factors.each_ref(), x, None, None, &|_, _| {});
        }
    }

    /// Asks for a share of the down-projections to be brought nearer: of all their bytes, those that `share` is of `n` in order. Asking for a
    /// little between other work is cheap, for all of it at once it is not.
    pub fn prefetch_down(stacks: &[TensorStack], kernels: &Kernels, share: Range<usize>, n: usize) {
        let factors = || {
            let terms = stacks.iter().flat_map(|stack| stack.terms.iter());
            terms.map(|term| term.bound.a_bytes(term.module))
        };
        let total: usize = factors().map(<[u8]>::len).sum();
        let line = |at: usize| total * at.min(n) / n / LINE * LINE;
        let (from, to) = (line(share.start), if share.end >= n { total } else { line(share.end) });
        let mut before = 0;
        for bytes in factors() {
            let start = from.max(before) - before;
            let end = to.min(before + bytes.len()).saturating_sub(before);
            if start < end {
                kernels.prefetch(&bytes[start..end]);
            }
            before += bytes.len();
        }
    }

    /// Asks for the columns of the up-projections that outputs `rows` need.
    pub fn prefetch_up(&self, kernels: &Kernels, rows: Range<usize>) {
        for term in self.terms.iter() {
            let b_transposed = term.bound.b_transposed(term.module);
            let row_bytes = b_transposed.data().len() / b_transposed.rows();
            let unit = row_bytes / b_transposed.cols();
            for row in b_transposed.data().chunks_exact(row_bytes) {
                kernels.prefetch(&row[rows.start * unit..rows.end * unit]);
            }
        }
    }

    /// The second half, for a piece of the base's product that is done: outputs `first_row ..` of tokens `first_token ..` in `y`
    /// (`[n, rows of the piece]`). For each adapter in order: `u = B z` (ascending rank), `y = y + s u`. `z` is what
    /// [`TensorStack::down`] made for all `n_tokens` tokens.
    ///
    /// Adding piece after piece gives the bits of adding all at once. Allocates nothing.
    ///
    /// # Panics
    /// When the lengths do not fit each other.
    pub fn up(
        &self,
        kernels: &Kernels,
        y: &mut [f32],
        first_row: usize,
        z: &[f32],
        n_tokens: usize,
        tokens: Range<usize>,
    ) {
        let mut rest = z;
        for term in self.terms.iter() {
            let b_transposed = term.bound.b_transposed(term.module);
            let rank = b_transposed.rows();
            let (z, later) = rest.split_at(n_tokens * rank);
            rest = later;
            let z = &z[tokens.start * rank..tokens.end * rank];
            kernels.lora_up(y, term.s, &b_transposed, first_row, z, tokens.len());
        }
    }

    /// Adds the stack's deltas to `y` (`[n_tokens, out]`), the base's product of `x` (`[n_tokens, in]`): [`TensorStack::down`], then
    /// [`TensorStack::up`] of everything.
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
        let Some(first) = self.terms.first() else { return };
        let cols = first.bound.a(first.module).cols();
        assert!(x.len().is_multiple_of(cols), "columns of the activations");
        let n_tokens = x.len() / cols;
        scratch.clear();
        scratch.resize(self.scratch_len(n_tokens), 0.0);
        self.down(kernels, exec, scratch, x, n_tokens);
        self.up(kernels, y, 0, scratch, n_tokens, 0..n_tokens);
    }
}
