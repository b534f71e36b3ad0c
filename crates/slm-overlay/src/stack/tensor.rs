//! What a stack does to one tensor's product, in two halves: before the base's product and after it.

use std::ops::Range;
use std::sync::Arc;

use slm_quant::{Executor, Kernels};

use super::term::{Part, Term};
use crate::kind::Pair;

/// What a stack does to one tensor's product. It owns what it needs, and cloning it is one reference count.
#[derive(Debug, Clone)]
pub struct TensorStack {
    pub(super) terms: Arc<[Term]>,
    pub(super) scales_input: bool,
}

/// From which position on the adapters of a sequence act that wait for their invocation.
#[derive(Debug, Clone, Copy)]
pub struct Gates<'a> {
    /// Position of the first token that a call is about.
    pub first_position: usize,
    /// By place in the stack, where such an adapter starts; `None` where its invocation did not occur. Adapters that always act are not asked
    /// for.
    pub starts: &'a [Option<usize>],
}

impl TensorStack {
    /// Whether nothing is added.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Asks for what a token reads of the stack besides factors. Changes nothing but time.
    pub fn ask(&self, kernels: &Kernels) {
        kernels.prefetch(&self.terms);
    }

    /// Whether the stack multiplies what the tensor is multiplied with, so that base and adapters below must read other rows.
    pub fn scales_input(&self) -> bool {
        self.scales_input
    }

    /// Values that `z` of [`TensorStack::down`] holds for so many tokens: each term's rank, or outputs, for each token.
    pub fn scratch_len(&self, n_tokens: usize) -> usize {
        self.terms.iter().map(Term::width).sum::<usize>() * n_tokens
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
        assert!(!self.scales_input, "a stack that multiplies its input");
        let mut rest = z;
        for term in self.terms.iter() {
            let (z, later) = rest.split_at_mut(n_tokens * term.width());
            rest = later;
            term.down(kernels, exec, z, x, n_tokens);
        }
        assert!(rest.is_empty(), "values of a stack's down-projections");
    }

    /// [`TensorStack::down`] of a stack that multiplies its input. An adapter wraps what stands below it: from the top down, each term reads
    /// `x` as the ones above leave it, and an input's multiplier changes it for those below. At the end `x` is what the base reads.
    ///
    /// # Panics
    /// When the lengths do not fit each other.
    pub fn down_scaling(
        &self,
        kernels: &Kernels,
        exec: &dyn Executor,
        z: &mut [f32],
        x: &mut [f32],
        n_tokens: usize,
    ) {
        let mut rest = z;
        for term in self.terms.iter().rev() {
            let (earlier, z) = rest.split_at_mut(rest.len() - n_tokens * term.width());
            rest = earlier;
            match &term.part {
                Part::Input(factors) => {
                    for x in x.chunks_exact_mut(factors.len()) {
                        x.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
                    }
                }
                _ => term.down(kernels, exec, z, x, n_tokens),
            }
        }
        assert!(rest.is_empty(), "values of a stack's down-projections");
    }

    /// Adds the stack's deltas to one row of an embedding table's output: row `id` of each `B`, times `A`. Allocates nothing for ranks up to 256.
    ///
    /// # Panics
    /// When the lengths do not fit each other, or a term is not plain low rank.
    pub fn add_embedding(&self, kernels: &Kernels, y: &mut [f32], id: usize) {
        for term in self.terms.iter() {
            let term = term.lora().expect("BUG: another kind on the embedding table");
            let rank = term.pair.rank();
            let (mut few, mut many) = ([0.0; 256], Vec::new());
            let z = match few.get_mut(..rank) {
                Some(z) => z,
                None => {
                    many.resize(rank, 0.0);
                    &mut many[..]
                }
            };
            term.pair.add_row(kernels, y, term.s, id, z);
        }
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
        let plain = |stack: &TensorStack| stack.terms.iter().all(|term| term.lora().is_some());
        let together =
            stacks.iter().all(|stack| stack.terms.len() == stacks[0].terms.len() && plain(stack));
        if !together {
            for (stack, z) in stacks.iter().zip(parts) {
                stack.down(kernels, exec, z, x, n_tokens);
            }
            return;
        }
        for term in 0..stacks[0].terms.len() {
            let pairs = stacks.each_ref().map(|stack| {
                let term = stack.terms[term].lora().expect("BUG: looked at above");
                &term.pair
            });
            let mut n = 0;
            let outs = parts.each_mut().map(|part| {
                let len = n_tokens * pairs[n].rank();
                n += 1;
                let (z, later) = std::mem::take(part).split_at_mut(len);
                *part = later;
                z
            });
            if n_tokens == 1 {
                let factors = pairs.map(Pair::down_matrix);
                kernels.low_rank_down(exec, outs, factors.each_ref(), x);
            } else {
                let factors = pairs.map(Pair::a);
                kernels.matmul_each(exec, outs, factors.each_ref(), x, None, None, &|_, _| {});
            }
        }
    }

    /// The first KiB that a lone token reads of the bottom adapter's down-projections of stacks that read the same row, this being the first
    /// of them. Once a run of addresses is begun, a processor follows it by itself. Nothing where that adapter is of no low rank.
    pub fn downs_begin(&self) -> &[u8] {
        let pair = self.terms.first().and_then(Term::lora).map(|term| &term.pair);
        pair.map_or(&[], |pair| beginning(pair.down_bytes()))
    }

    /// [`TensorStack::downs_begin`] of this stack's up-projection, for outputs `first_row ..`.
    pub fn up_begins(&self, first_row: usize) -> &[u8] {
        let pair = self.terms.first().and_then(Term::lora).map(|term| &term.pair);
        pair.map_or(&[], |pair| beginning(pair.up_matrix().data_from(first_row)))
    }

    /// The second half, for a piece of the base's product that is done: outputs `first_row ..` of tokens `first_token ..` in `y`
    /// (`[n, rows of the piece]`). For each adapter in order: `u = B z` (ascending rank), `y = y + s u`. `z` is what
    /// [`TensorStack::down`] made for all `n_tokens` tokens, and `gates` is about the first of them. Other kinds do what they do to an output in
    /// the same place.
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
        gates: Gates<'_>,
    ) {
        let n_rows = y.len() / tokens.len();
        let mut rest = z;
        for term in self.terms.iter() {
            let (z, later) = rest.split_at(n_tokens * term.width());
            rest = later;
            let waits = gates.waits(term, tokens.clone());
            if waits < tokens.len() {
                let y = &mut y[waits * n_rows..];
                term.up(kernels, y, first_row, z, n_tokens, tokens.start + waits..tokens.end);
            }
        }
    }

    /// What the stack does to `y` (`[n_tokens, out]`), the base's product of `x` (`[n_tokens, in]`): [`TensorStack::down`], then
    /// [`TensorStack::up`] of everything. Adapters that wait for an invocation are taken as if it had never come.
    ///
    /// The bits are the same for every executor and tier, and those that each token has alone. Allocates nothing when `scratch` has room
    /// for [`TensorStack::scratch_len`] values; its contents before and after mean nothing.
    ///
    /// # Panics
    /// When the lengths do not fit each other, and for a stack that multiplies its input.
    pub fn apply(
        &self,
        kernels: &Kernels,
        exec: &dyn Executor,
        y: &mut [f32],
        x: &[f32],
        scratch: &mut Vec<f32>,
        n_tokens: usize,
        gates: Gates<'_>,
    ) {
        if self.terms.is_empty() || n_tokens == 0 {
            return;
        }
        scratch.clear();
        scratch.resize(self.scratch_len(n_tokens), 0.0);
        self.down(kernels, exec, scratch, x, n_tokens);
        self.up(kernels, y, 0, scratch, n_tokens, 0..n_tokens, gates);
    }
}

impl Gates<'_> {
    /// For stacks in which no adapter waits.
    pub const NONE: Gates<'static> = Gates { first_position: 0, starts: &[] };

    /// How many of `tokens` a term lets pass before it acts.
    #[inline]
    pub(super) fn waits(&self, term: &Term, tokens: Range<usize>) -> usize {
        let Some(at) = term.gate else { return 0 };
        let Some(start) = self.starts.get(at).copied().flatten() else { return tokens.len() };
        start.saturating_sub(self.first_position + tokens.start).min(tokens.len())
    }
}

/// What is asked for of a run of addresses: to ask for all of it costs the base's product more than it gains.
fn beginning(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(1024)]
}
