//! What stacks add for a lone token, whose product several threads make.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use slm_quant::{Inline, Kernels};

use super::TensorStack;
use super::tensor::Gates;
use super::term::Term;

/// The highest rank whose values stand on the stack.
const MAX_RANK: usize = 256;

/// Bytes of down-projections, times threads, up to which one thread makes them all. To share them costs each other thread the transfer of the row;
/// with two that is more than it saves at rank 32 (216 KiB), and not at 64 (`docs/performance.md`).
const ONE_THREAD_BYTES: usize = 512 << 10;

/// Rounds of waiting after which a thread lets others have its core once.
const PATIENCE: u32 = 1 << 14;

/// The down-projections of one token, for stacks that read the same row. The thread that begins the first piece of the base's product makes them, or,
/// where they are large, all threads take a share until none is left; each adds its piece's part of the sum once all are made: nothing is
/// handed over, and a thread waits only for what another is just computing. Who needs them first makes them where nobody began.
///
/// Bits are those of [`TensorStack::apply`], whatever threads come in whatever order.
#[derive(Debug)]
pub struct LoneDowns<'a> {
    stacks: &'a [TensorStack],
    x: &'a [f32],
    scratch: &'a LoneScratch,
    n_sharers: usize,
    n_parts: u32,
    read_once: bool,
    /// The counts of the scratch before any part of this.
    taken_before: u32,
    made_before: u32,
}

/// What threads change for each other: where the values of [`LoneDowns`] stand, and how far they are. Counts go on from one use to the next: to clear
/// lines that other cores have read would keep the hand-over of the work waiting.
#[derive(Debug, Default)]
pub struct LoneScratch(Vec<Line>);

/// Numbers in cache lines of their own: what stood beside them would be fetched anew after each change.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line([AtomicU32; LINE]);

/// Numbers of a line.
const LINE: usize = 32;

/// The count of parts that a thread took, ever: it has the first line to itself.
const TAKEN: usize = 0;
/// The count of parts that are made, ever. Behind it the bits of the values: stack after stack, term after term.
const MADE: usize = LINE;

impl LoneScratch {
    /// Makes room for `n_values`: the ranks of all terms of stacks that read the same row.
    pub fn reserve(&mut self, n_values: usize) {
        let n_lines = if n_values == 0 { 0 } else { (MADE + 1 + n_values).div_ceil(LINE) };
        if self.0.len() < n_lines {
            self.0.resize_with(n_lines, Line::default);
        }
    }

    fn at(&self, n: usize) -> &AtomicU32 {
        &self.0[n / LINE].0[n % LINE]
    }

    /// A count, which nobody is changing.
    fn count(&mut self, n: usize) -> u32 {
        self.0.get_mut(n / LINE).map_or(0, |line| *line.0[n % LINE].get_mut())
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
        let (mut len, mut bytes, mut n_terms) = (0, 0usize, 0);
        for term in stacks.iter().flat_map(|stack| stack.terms.iter()) {
            let pair = &term.lora()?.pair;
            if pair.rank() > MAX_RANK {
                return None;
            }
            (len, bytes) = (len + pair.rank(), bytes + pair.down_bytes().len());
            n_terms += 1;
        }
        let small = bytes.saturating_mul(n_workers) <= ONE_THREAD_BYTES;
        let (n_sharers, n_parts) = if small {
            // Whoever is alone takes a down-projection as one part.
            (1, n_terms)
        } else {
            let n = n_workers.min(u32::MAX as usize);
            let pairs = stacks.iter().flat_map(|stack| stack.terms.iter()).filter_map(Term::lora);
            (n, pairs.map(|term| term.pair.n_parts(n) as u32).sum())
        };
        scratch.reserve(len);
        let (taken_before, made_before) = (scratch.count(TAKEN), scratch.count(MADE));
        Some(LoneDowns {
            stacks,
            x,
            scratch,
            n_sharers,
            n_parts,
            read_once: false,
            taken_before,
            made_before,
        })
    }

    /// Says that no cache will still have the factors when the next token reads them, the base being so large. Bits never depend on it.
    pub fn read_once(self) -> LoneDowns<'a> {
        LoneDowns { read_once: true, ..self }
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
        let mut at = MADE + 1 + before;
        for term in stack.terms.iter() {
            let lora = term.lora().expect("BUG: another kind for a lone token");
            let first = at;
            at += lora.pair.rank();
            if gates.waits(term, 0..1) > 0 {
                continue;
            }
            on_stack(at - first, |z| {
                for (z, n) in z.iter_mut().zip(first..) {
                    *z = f32::from_bits(self.scratch.at(n).load(Ordering::Relaxed));
                }
                let b = lora.pair.up_matrix();
                let b = if self.read_once { b.read_once() } else { b };
                lora.up(kernels, y, &b, first_row, z, 1);
            });
        }
    }

    /// Before a piece of the base's product: makes what the thread that begins it should; `first` says that the piece is the first of all. Waits for
    /// nothing; may be called any number of times, or never.
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
                    scratch.at(MADE).store(made_before.wrapping_add(n), Ordering::Release);
                } else {
                    scratch.at(MADE).fetch_add(n, Ordering::Release);
                }
            }
        }
        if self.n_parts == 0 {
            // The scratch need not have room for a count.
            return;
        }
        // A thread's share at once: to take costs what it takes to bring the count from another core.
        let share = self.n_parts.div_ceil(self.n_sharers as u32);
        let taken = self.scratch.at(TAKEN);
        while taken.load(Ordering::Relaxed).wrapping_sub(self.taken_before) < self.n_parts {
            let first = taken.fetch_add(share, Ordering::Relaxed).wrapping_sub(self.taken_before);
            let parts = first..self.n_parts.min(first + share);
            if !parts.is_empty() {
                let _made = Made(self, parts.end - parts.start);
                self.parts(kernels, parts.start as usize..parts.end as usize);
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
        let made = self.scratch.at(MADE).load(Ordering::Acquire);
        made.wrapping_sub(self.made_before) >= self.n_parts
    }

    /// Makes these parts, counted over the terms of all stacks.
    fn parts(&self, kernels: &Kernels, parts: Range<usize>) {
        let (mut values, mut passed) = (MADE + 1, 0);
        for term in self.stacks.iter().flat_map(|stack| stack.terms.iter()).filter_map(Term::lora) {
            if passed >= parts.end {
                return;
            }
            let n_parts = term.pair.n_parts(self.n_sharers);
            for part in parts.start.max(passed)..parts.end.min(passed + n_parts) {
                let (first, rows) = term.pair.down_part(part - passed, self.n_sharers);
                let rows = if self.read_once { rows.read_once() } else { rows };
                on_stack(rows.rank(), |z| {
                    kernels.low_rank_down(&Inline, [&mut *z], [&rows], self.x);
                    for (z, n) in z.iter().zip(values + first..) {
                        self.scratch.at(n).store(z.to_bits(), Ordering::Relaxed);
                    }
                });
            }
            (values, passed) = (values + term.pair.rank(), passed + n_parts);
        }
    }
}

/// Calls `f` with `n` zeros on the stack, at most [`MAX_RANK`]. Few are made where they do, so that there is less to clear.
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

    /// `y = y + 2 rank x` for one number.
    fn doubling(rank: u64) -> TensorStack {
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
        let ones = |rows, cols| {
            let bytes = [1.0f32.to_le_bytes(); 40][..rank as usize].concat();
            Factor::new("ones", Encoding::F32, rows, cols, bytes.into()).unwrap()
        };
        let (a, b) = (ones(rank, 1), ones(1, rank));
        let module = LoraModule { target: target.into(), scale: 2.0, a, b };
        let adapter = Arc::new(Adapter::lora(vec![module]).unwrap());
        let bound = Arc::new(adapter.bind(base, &shape).unwrap());
        Stack::new(base, vec![(bound, 1.0)]).unwrap().for_tensor(target)
    }

    #[test]
    fn counts_may_pass_their_end_and_parts_may_be_left_unmade() {
        let kernels = Kernels::detect();
        let (few, many) = ([doubling(1), doubling(1)], [doubling(40), doubling(1)]);
        let mut scratch = LoneScratch::default();
        scratch.reserve(2);
        *scratch.0[0].0[0].get_mut() = u32::MAX - 4;
        *scratch.0[1].0[0].get_mut() = u32::MAX - 2;
        let mut shared = 0;
        for round in 0..24u32 {
            // One thread makes all, or so many share that each takes a part.
            let n_workers = [1, 1 << 17][round as usize / 3 % 2];
            let (stacks, rank) = if round < 12 { (&few, 1.0) } else { (&many, 40.0) };
            let x = [round as f32];
            let lone = LoneDowns::new(stacks, &x, &mut scratch, n_workers).unwrap();
            shared += u32::from(lone.n_sharers > 1 && lone.n_parts == 2);
            // Nobody needs them, every third time.
            if round % 3 == 0 {
                continue;
            }
            assert!(!lone.is_made());
            for (which, rank) in [(1, 1.0), (0, rank)] {
                let mut y = [1.0];
                lone.up(&kernels, &mut y, which, 0, Gates::NONE);
                assert_eq!(y, [1.0 + 2.0 * rank * x[0]]);
            }
            assert!(lone.is_made());
        }
        assert_eq!(shared, 12);
        let [taken, made] = [TAKEN, MADE].map(|n| scratch.count(n));
        assert!(taken < 100 && made < 100, "the counts went past their end: {taken}, {made}");
    }

    #[test]
    fn a_part_that_another_thread_took_is_waited_for() {
        let (stacks, kernels) = ([doubling(1), doubling(1)], Kernels::detect());
        let mut scratch = LoneScratch::default();
        let lone = LoneDowns::new(&stacks, &[3.0], &mut scratch, 1 << 17).unwrap();
        // This thread has the first part, and does not make it yet.
        assert_eq!(lone.scratch.at(TAKEN).fetch_add(1, Ordering::Relaxed), 0);
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| {
                let mut y = [1.0];
                lone.up(&kernels, &mut y, 0, 0, Gates::NONE);
                y
            });
            while lone.scratch.at(MADE).load(Ordering::Acquire) < 1 {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waits.is_finished());
            lone.parts(&kernels, 0..1);
            lone.scratch.at(MADE).fetch_add(1, Ordering::Release);
            assert_eq!(waits.join().unwrap(), [7.0]);
        });
    }

    #[test]
    fn nothing_to_make_needs_no_room() {
        let stacks = [Stack::new(BaseId::of_canonical(b"a base"), vec![]).unwrap().for_tensor("a")];
        let mut scratch = LoneScratch::default();
        let lone = LoneDowns::new(&stacks, &[1.0], &mut scratch, 2).unwrap();
        lone.begin(&Kernels::detect(), true);
        let mut y = [1.0];
        lone.up(&Kernels::detect(), &mut y, 0, 0, Gates::NONE);
        assert_eq!((y, scratch.0.capacity()), ([1.0], 0));
    }
}
