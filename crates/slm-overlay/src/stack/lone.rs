//! What stacks add for a lone token, whose down-projections are made by whichever thread comes to need them first.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

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
    /// Bits of the values: stack after stack, term after term.
    z: &'a [AtomicU32],
    n_sharers: usize,
    n_parts: usize,
    taken: Line,
    made: Line,
}

/// A count that threads change, in cache lines of its own: what stood beside it would be fetched anew after each change.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicUsize);

impl<'a> LoneDowns<'a> {
    /// Nothing is computed yet. `x` is `[in]`; `z` is scratch that grows when it has no room, and is the only thing that allocates. Large work is
    /// cut in shares for `n_workers` threads; any number may come.
    ///
    /// `None` where a stack has a term that is no plain low rank, or one of a rank above 256.
    pub fn new(
        stacks: &'a [TensorStack],
        x: &'a [f32],
        z: &'a mut Vec<AtomicU32>,
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
        let n_parts = pairs.map(|term| term.pair.n_parts(n_sharers)).sum();
        if z.len() < len {
            z.resize_with(len, AtomicU32::default);
        }
        let (taken, made) = (Line::default(), Line::default());
        Some(LoneDowns { stacks, x, z: &z[..len], n_sharers, n_parts, taken, made })
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
        let before = self.stacks[..which].iter().map(|stack| stack.scratch_len(1)).sum();
        let mut rest = &self.z[before..];
        for term in stack.terms.iter() {
            let (made, later) = rest.split_at(term.width());
            rest = later;
            if gates.waits(term, 0..1) > 0 {
                continue;
            }
            let mut z = [0.0; MAX_RANK];
            let z = &mut z[..made.len()];
            let values = made.iter().map(|bits| f32::from_bits(bits.load(Ordering::Relaxed)));
            z.iter_mut().zip(values).for_each(|(z, value)| *z = value);
            term.up(kernels, y, first_row, z, 1, 0..1);
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
        struct Made<'a>(&'a AtomicUsize, usize);
        impl Drop for Made<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(self.1, Ordering::Release);
            }
        }
        // A thread's share at once: to take costs what it takes to bring the count from another core.
        let share = self.n_parts.div_ceil(self.n_sharers);
        while self.taken.0.load(Ordering::Relaxed) < self.n_parts {
            let first = self.taken.0.fetch_add(share, Ordering::Relaxed);
            let parts = first..self.n_parts.min(first + share);
            if !parts.is_empty() {
                let _made = Made(&self.made.0, parts.len());
                parts.for_each(|part| self.part(kernels, part));
            }
        }
    }

    /// Takes shares until none is left, and returns when all are made.
    fn make(&self, kernels: &Kernels) {
        self.take(kernels);
        let mut rounds = 0u32;
        while self.made.0.load(Ordering::Acquire) < self.n_parts {
            rounds += 1;
            if rounds.is_multiple_of(PATIENCE) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    fn part(&self, kernels: &Kernels, mut part: usize) {
        let mut rest = self.z;
        for term in self.stacks.iter().flat_map(|stack| stack.terms.iter()).filter_map(Term::lora) {
            let (out, later) = rest.split_at(term.pair.rank());
            rest = later;
            let n_parts = term.pair.n_parts(self.n_sharers);
            if part >= n_parts {
                part -= n_parts;
                continue;
            }
            let (first, rows) = term.pair.down_part(part, self.n_sharers);
            let mut z = [0.0; MAX_RANK];
            let z = &mut z[..rows.rank()];
            kernels.low_rank_down(&Inline, [&mut *z], [&rows], self.x);
            let out = &out[first..];
            out.iter().zip(&*z).for_each(|(out, z)| out.store(z.to_bits(), Ordering::Relaxed));
            return;
        }
        unreachable!("BUG: a part of no down-projection");
    }
}
