//! Who runs the pieces of a product. Bits never depend on it.

#[cfg(feature = "rayon")]
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs independent pieces of work over disjoint slices.
///
/// Implementations may use any number of threads and any order; every result of this crate has the same bits under all of them.
pub trait Executor: Sync {
    /// How many pieces can run at once; at least 1.
    fn n_workers(&self) -> usize;

    /// Calls `f` once, there where handing out pieces is cheapest. Whoever makes many products in a row does so inside one call.
    fn enter(&self, f: &mut (dyn FnMut() + Send)) {
        f();
    }

    /// Cuts `out` in chunks of `chunk_len` (the last may be shorter) and calls `f(chunk_index, chunk)` once for each, in any order, on
    /// any thread.
    fn for_each_chunk(
        &self,
        out: &mut [f32],
        chunk_len: usize,
        f: &(dyn Fn(usize, &mut [f32]) + Sync),
    );

    /// As [`Executor::for_each_chunk`] over two buffers cut in step: chunk `i` of `a` comes with chunk `i` of `b`.
    ///
    /// Both must give the same number of chunks.
    #[allow(clippy::type_complexity, reason = "one closure type, spelled out once for callers")]
    fn for_each_chunk_pair(
        &self,
        a: &mut [f32],
        a_len: usize,
        b: &mut [f32],
        b_len: usize,
        f: &(dyn Fn(usize, &mut [f32], &mut [f32]) + Sync),
    );

    /// [`Executor::for_each_chunk`] over three buffers, handed out together: chunk `i` of `outs[n]`, which is cut by `lens[n]`, is given to
    /// `f(n, i, chunk)`. Buffers may be empty.
    fn for_each_chunk_of(
        &self,
        outs: [&mut [f32]; 3],
        lens: [usize; 3],
        f: &(dyn Fn(usize, usize, &mut [f32]) + Sync),
    ) {
        for (n, (out, len)) in outs.into_iter().zip(lens).enumerate() {
            if !out.is_empty() {
                self.for_each_chunk(out, len, &|index, chunk| f(n, index, chunk));
            }
        }
    }
}

/// The calling thread, chunks ascending. Never allocates.
#[derive(Debug, Clone, Copy, Default)]
pub struct Inline;

impl Executor for Inline {
    fn n_workers(&self) -> usize {
        1
    }

    fn for_each_chunk(
        &self,
        out: &mut [f32],
        chunk_len: usize,
        f: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        for (index, chunk) in out.chunks_mut(chunk_len).enumerate() {
            f(index, chunk);
        }
    }

    fn for_each_chunk_pair(
        &self,
        a: &mut [f32],
        a_len: usize,
        b: &mut [f32],
        b_len: usize,
        f: &(dyn Fn(usize, &mut [f32], &mut [f32]) + Sync),
    ) {
        assert_eq!(a.len().div_ceil(a_len), b.len().div_ceil(b_len), "BUG: unequal chunk counts");
        for (index, (a, b)) in a.chunks_mut(a_len).zip(b.chunks_mut(b_len)).enumerate() {
            f(index, a, b);
        }
    }
}

/// The threads of a rayon pool that the caller built.
///
/// Calls from inside the pool run in place; calls from outside wait for the pool. Within [`Executor::enter`] the other threads stay awake
/// and look for pieces: taking one over then costs a fraction of a microsecond instead of the waking of a thread.
#[cfg(feature = "rayon")]
#[derive(Debug)]
pub struct RayonExecutor {
    pool: rayon::ThreadPool,
}

/// Rounds without work after which a thread that stays awake lets others have its core once.
#[cfg(feature = "rayon")]
const PATIENCE: u32 = 1 << 14;

#[cfg(feature = "rayon")]
impl RayonExecutor {
    /// An executor over `pool`.
    pub fn new(pool: rayon::ThreadPool) -> RayonExecutor {
        RayonExecutor { pool }
    }

    /// The pool.
    pub fn pool(&self) -> &rayon::ThreadPool {
        &self.pool
    }
}

#[cfg(feature = "rayon")]
impl Executor for RayonExecutor {
    fn n_workers(&self) -> usize {
        self.pool.current_num_threads()
    }

    fn enter(&self, f: &mut (dyn FnMut() + Send)) {
        /// Lets the other threads go, also when `f` panics.
        struct Finish<'a>(&'a AtomicBool);
        impl Drop for Finish<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        if self.pool.current_thread_index().is_some() || self.n_workers() == 1 {
            return self.pool.install(f);
        }
        let finished = AtomicBool::new(false);
        let others = self.n_workers() - 1;
        self.pool.install(|| {
            let caller = rayon::current_thread_index();
            beside(others, &|| stay_awake(&finished, caller), &mut || {
                let _finish = Finish(&finished);
                f();
            });
        });
    }

    fn for_each_chunk(
        &self,
        out: &mut [f32],
        chunk_len: usize,
        f: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        if out.len() <= chunk_len {
            return Inline.for_each_chunk(out, chunk_len, f);
        }
        self.pool.install(|| halve(out, chunk_len, 0, f));
    }

    fn for_each_chunk_pair(
        &self,
        a: &mut [f32],
        a_len: usize,
        b: &mut [f32],
        b_len: usize,
        f: &(dyn Fn(usize, &mut [f32], &mut [f32]) + Sync),
    ) {
        if a.len() <= a_len {
            return Inline.for_each_chunk_pair(a, a_len, b, b_len, f);
        }
        assert_eq!(a.len().div_ceil(a_len), b.len().div_ceil(b_len), "BUG: unequal chunk counts");
        self.pool.install(|| halve_pair(a, a_len, b, b_len, 0, f));
    }

    fn for_each_chunk_of(
        &self,
        outs: [&mut [f32]; 3],
        lens: [usize; 3],
        f: &(dyn Fn(usize, usize, &mut [f32]) + Sync),
    ) {
        self.pool.install(|| halve_three(outs, lens, [0; 3], f));
    }
}

/// Runs `f`, and offers `company` to `n` other threads meanwhile.
#[cfg(feature = "rayon")]
fn beside(n: usize, company: &(dyn Fn() + Sync), f: &mut (dyn FnMut() + Send)) {
    match n.checked_sub(1) {
        None => f(),
        Some(n) => drop(rayon::join(|| beside(n, company, f), company)),
    }
}

/// Runs pieces of work as they come until `finished`. The thread `caller`, which meets this while it waits for a piece, has better to do.
#[cfg(feature = "rayon")]
fn stay_awake(finished: &AtomicBool, caller: Option<usize>) {
    if rayon::current_thread_index() == caller {
        return;
    }
    let mut idle = 0u32;
    while !finished.load(Ordering::Acquire) {
        if rayon::yield_now() == Some(rayon::Yield::Executed) {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle.is_multiple_of(PATIENCE) {
            std::thread::yield_now();
        }
        core::hint::spin_loop();
    }
}

/// The chunks from `first` on, half of them offered to another thread.
#[cfg(feature = "rayon")]
fn halve(out: &mut [f32], chunk_len: usize, first: usize, f: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    let n = out.len().div_ceil(chunk_len);
    if n <= 1 {
        return f(first, out);
    }
    let half = n.div_ceil(2);
    let (here, there) = out.split_at_mut(half * chunk_len);
    rayon::join(|| halve(here, chunk_len, first, f), || halve(there, chunk_len, first + half, f));
}

/// As [`halve`] over two buffers.
#[cfg(feature = "rayon")]
#[allow(clippy::type_complexity, reason = "one closure type, spelled out as the trait does")]
fn halve_pair(
    a: &mut [f32],
    a_len: usize,
    b: &mut [f32],
    b_len: usize,
    first: usize,
    f: &(dyn Fn(usize, &mut [f32], &mut [f32]) + Sync),
) {
    let n = a.len().div_ceil(a_len);
    if n <= 1 {
        return f(first, a, b);
    }
    let half = n.div_ceil(2);
    let (a, a_rest) = a.split_at_mut(half * a_len);
    let (b, b_rest) = b.split_at_mut(half * b_len);
    rayon::join(
        || halve_pair(a, a_len, b, b_len, first, f),
        || halve_pair(a_rest, a_len, b_rest, b_len, first + half, f),
    );
}

/// As [`halve`] over three buffers, one after the other.
#[cfg(feature = "rayon")]
fn halve_three(
    outs: [&mut [f32]; 3],
    lens: [usize; 3],
    firsts: [usize; 3],
    f: &(dyn Fn(usize, usize, &mut [f32]) + Sync),
) {
    let mut chunks = [0; 3];
    for n in 0..3 {
        chunks[n] = if outs[n].is_empty() { 0 } else { outs[n].len().div_ceil(lens[n]) };
    }
    let total: usize = chunks.iter().sum();
    if total <= 1 {
        for (n, out) in outs.into_iter().enumerate().filter(|(_, out)| !out.is_empty()) {
            f(n, firsts[n], out);
        }
        return;
    }
    let mut half = total.div_ceil(2);
    let mut firsts_there = firsts;
    let mut n = 0;
    let parts = outs.map(|out| {
        let here = half.min(chunks[n]);
        half -= here;
        firsts_there[n] += here;
        let at = (here * lens[n]).min(out.len());
        n += 1;
        out.split_at_mut(at)
    });
    let [(a, a_rest), (b, b_rest), (c, c_rest)] = parts;
    rayon::join(
        || halve_three([a, b, c], lens, firsts, f),
        || halve_three([a_rest, b_rest, c_rest], lens, firsts_there, f),
    );
}
