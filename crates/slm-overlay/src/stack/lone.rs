//! What stacks add for a lone token, whose down-projections are made by whichever thread comes to need them first.

use std::sync::atomic::{AtomicU32, Ordering};

use slm_quant::{Inline, Kernels};

use super::TensorStack;
use super::tensor::Gates;
use super::term::Term;

/// The highest rank whose values stand on the stack.
const MAX_RANK: usize = 256;

/// Bytes of down-projections, times threads, up to which one thread makes them all. The others would have to bring the row from its core first, and
/// each its values from theirs; with two threads that costs more up to some 300 KiB, at ranks of 32 to 64 (`docs/performance.md`).
const ONE_THREAD_BYTES: usize = 512 << 10;

/// Rounds of waiting after which a thread lets others have its core once.
const PATIENCE: u32 = 1 << 14;

/// The down-projections of one token, for stacks that read the same row. The thread that begins the first piece of the base's product makes them, or,
/// where they are large, all threads take a share until none is left; each adds its piece's part of the sum once all are made: nothing is
/// handed over, and a thread waits only for what another is just computing.
///
/// Bits are those of [`TensorStack::apply`], whatever threads come in whatever order.
#[derive(Debug)]
pub struct LoneDowns<'a> {
    stacks: &'a [TensorStack],
    x: &'a [f32],
    scratch: &'a LoneScratch,
    n_sharers: usize,
    n_parts: u32,
    /// The counts of the scratch before any part of this.
    taken_before: u32,
    made_before: u32,
}

/// What threads change for each other: where the values of [`LoneDowns`] stand, and how far they are. Counts go on from one use to the next, because a
/// line that other cores have read is not written for nothing while one thread prepares the work of all.
#[derive(Debug, Default)]
pub struct LoneScratch {
    /// Parts that a thread took, ever.
    taken: Line,
    /// Parts that are made, ever; then the values' bits, stack after stack, term after term.
    made: Vec<Line>,
}

/// Numbers in cache lines of their own: what stood beside them would be fetched anew after each change.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line([AtomicU32; LINE]);

/// Numbers of a line.
const LINE: usize = 32;

impl LoneScratch {
    /// The count of parts that are made (0), or the bits of value `n - 1`.
    fn at(&self, n: usize) -> &AtomicU32 {
        &self.made[n / LINE].0[n % LINE]
    }
}

impl<'a> LoneDowns<'a> {
    /// Nothing is computed yet. `x` is `[in]`; `scratch` grows when it has no room, and is the only thing that allocates. Large work is cut in
    /// shares for `n_workers` threads; any number may come.
    ///
    /// `None` where a stack has a term that is no plain low rank, or one of a rank above 256.
    pub fn new(
        stacks: &'a [TensorStack],
        x: &'a [f32],
        scratch: &'a mut LoneScratch,
        n_workers: usize,
    ) -> Option<LoneDowns<'a>> {
        let (mut len, mut bytes) = (0, 0usize);
        for term in stacks.iter().flat_map(|stack| stack.terms.iter()) {
            let pair = &term.lora()?.pair;
            if pair.rank() > MAX_RANK {
                return None;
            }
            (len, bytes) = (len + pair.rank(), bytes + pair.down_matrix().data().len());
        }
        let small = bytes.saturating_mul(n_workers) <= ONE_THREAD_BYTES;
        let n_sharers = if small { 1 } else { n_workers.max(1) };
        let pairs = stacks.iter().flat_map(|stack| stack.terms.iter()).filter_map(Term::lora);
        let n_parts = pairs.map(|term| term.pair.n_parts(n_sharers) as u32).sum();
        let n_lines = (1 + len).div_ceil(LINE);
        if scratch.made.len() < n_lines {
            scratch.made.resize_with(n_lines, Line::default);
        }
        let taken_before = *scratch.taken.0[0].get_mut();
        let made_before = *scratch.made[0].0[0].get_mut();
        Some(LoneDowns { stacks, x, scratch, n_sharers, n_parts, taken_before, made_before })
    }

    /// Adds the share of stack `which` to a piece of its base's product: outputs `first_row ..` in `y`. Makes what is not made of the
    /// down-projections first. Allocates nothing.
    ///
    /// # Panics
    /// When the lengths do not fit each other.
    pub fn up(
        &self,
        kernels: &Kernels,
        y: &mut [f32],
        which: usize,
        first_row: usize,
        gates: Gates<'_>,
    ) {
        let stack = &self.stacks[which];
        if stack.is_empty() {
            return;
        }
        self.make(kernels);
        let before: usize = self.stacks[..which].iter().map(|stack| stack.scratch_len(1)).sum();
        let mut at = 1 + before;
        for term in stack.terms.iter() {
            let first = at;
            at += term.width();
            if gates.waits(term, 0..1) > 0 {
                continue;
            }
            on_stack(at - first, |z| {
                for (z, n) in z.iter_mut().zip(first..) {
                    *z = f32::from_bits(self.scratch.at(n).load(Ordering::Relaxed));
                }
                term.up(kernels, y, first_row, z, 1, 0..1);
            });
        }
    }

    /// Before a piece of the base's product, the first one or another: makes what the thread that begins it should. Waits for nothing; may be called
    /// any number of times, or never.
    ///
    /// # Panics
    /// When `x` is not as long as the stacks' rows.
    pub fn begin(&self, kernels: &Kernels, first: bool) {
        if first || self.n_sharers > 1 {
            self.take(kernels);
        }
    }

    /// Makes shares until none is left that no thread has taken.
    fn take(&self, kernels: &Kernels) {
        /// Counts parts as made, also when one panics: who waits for them must not wait for ever.
        struct Made<'a>(&'a LoneDowns<'a>, u32);
        impl Drop for Made<'_> {
            fn drop(&mut self) {
                let Made(LoneDowns { scratch, n_parts, made_before, .. }, n) = *self;
                if n == *n_parts {
                    // Nobody else counts, and an addition would wait until the values have left this core.
                    scratch.at(0).store(made_before.wrapping_add(n), Ordering::Release);
                } else {
                    scratch.at(0).fetch_add(n, Ordering::Release);
                }
            }
        }
        // A thread's share at once: to take costs what it takes to bring the count from another core.
        let share = self.n_parts.div_ceil(self.n_sharers as u32);
        let taken = &self.scratch.taken.0[0];
        while taken.load(Ordering::Relaxed).wrapping_sub(self.taken_before) < self.n_parts {
            let first = taken.fetch_add(share, Ordering::Relaxed).wrapping_sub(self.taken_before);
            let parts = first..self.n_parts.min(first + share);
            if !parts.is_empty() {
                let _made = Made(self, parts.end - parts.start);
                parts.for_each(|part| self.part(kernels, part as usize));
            }
        }
    }

    /// Takes shares until none is left, and returns when all are made.
    fn make(&self, kernels: &Kernels) {
        if self.is_made() {
            return;
        }
        self.take(kernels);
        let mut rounds = 0u32;
        while !self.is_made() {
            rounds += 1;
            if rounds.is_multiple_of(PATIENCE) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    fn is_made(&self) -> bool {
        let made = self.scratch.at(0).load(Ordering::Acquire);
        made.wrapping_sub(self.made_before) >= self.n_parts
    }

    fn part(&self, kernels: &Kernels, mut part: usize) {
        let mut at = 1;
        for term in self.stacks.iter().flat_map(|stack| stack.terms.iter()).filter_map(Term::lora) {
            let values = at;
            at += term.pair.rank();
            let n_parts = term.pair.n_parts(self.n_sharers);
            if part >= n_parts {
                part -= n_parts;
                continue;
            }
            let (first, rows) = term.pair.down_part(part, self.n_sharers);
            return on_stack(rows.rank(), |z| {
                kernels.low_rank_down(&Inline, [&mut *z], [&rows], self.x);
                for (z, n) in z.iter().zip(values + first..) {
                    self.scratch.at(n).store(z.to_bits(), Ordering::Relaxed);
                }
            });
        }
        unreachable!("BUG: a part of no down-projection");
    }
}

/// Calls `f` with zeros on the stack, up to [`MAX_RANK`]: a few where they do, as clearing all takes as long as a small factor.
#[inline(always)]
fn on_stack(n: usize, f: impl FnOnce(&mut [f32])) {
    const FEW: usize = 32;
    if n <= FEW { f(&mut [0.0; FEW][..n]) } else { f(&mut [0.0; MAX_RANK][..n]) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use slm_format::Encoding;
    use slm_manifest::BaseId;
    use slm_manifest::config::Architecture;

    use super::*;
    use crate::{Adapter, BaseShape, Factor, LoraModule, Stack};

    /// `y = y + 2 x` for one number.
    fn doubling() -> TensorStack {
        let (target, base) = ("blk.0.ffn_up.weight", BaseId::of_canonical(b"a base"));
        let shape = BaseShape {
            architecture: Architecture::Llama,
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 1,
            n_layers: 1,
            tied_embeddings: true,
            tensors: BTreeMap::from([(target.to_owned(), (1, 1))]),
            weights: None,
        };
        let one = || {
            let bytes = 1.0f32.to_le_bytes().to_vec();
            Factor::new("one", Encoding::F32, 1, 1, bytes.into()).unwrap()
        };
        let module = LoraModule { target: target.into(), scale: 2.0, a: one(), b: one() };
        let adapter = Arc::new(Adapter::lora(vec![module]).unwrap());
        let bound = Arc::new(adapter.bind(base, &shape).unwrap());
        Stack::new(base, vec![(bound, 1.0)]).unwrap().for_tensor(target)
    }

    #[test]
    fn counts_may_pass_their_end_and_parts_may_be_left_unmade() {
        let (stacks, kernels) = ([doubling(), doubling()], Kernels::detect());
        for n_workers in [1, 2] {
            let mut scratch = LoneScratch::default();
            *scratch.taken.0[0].get_mut() = u32::MAX - 4;
            scratch.made.push(Line::default());
            *scratch.made[0].0[0].get_mut() = u32::MAX - 2;
            for use_ in 0..10 {
                let x = [use_ as f32];
                let lone = LoneDowns::new(&stacks, &x, &mut scratch, n_workers).unwrap();
                // Nobody needs them, every third time.
                if use_ % 3 == 0 {
                    continue;
                }
                assert!(!lone.is_made());
                for which in [1, 0] {
                    let mut y = [1.0];
                    lone.up(&kernels, &mut y, which, 0, Gates::NONE);
                    assert_eq!(y, [1.0 + 2.0 * x[0]]);
                }
                assert!(lone.is_made());
            }
        }
    }
}
