//! Who runs the pieces of a product. Bits never depend on it.

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
/// Calls from inside the pool run in place; calls from outside wait for the pool.
#[cfg(feature = "rayon")]
#[derive(Debug)]
pub struct RayonExecutor {
    pool: rayon::ThreadPool,
}

#[cfg(feature = "rayon")]
impl RayonExecutor {
    /// An executor over `pool`.
    pub fn new(pool: rayon::ThreadPool) -> RayonExecutor {
        RayonExecutor { pool }
    }

    /// The pool, for example to run a whole forward pass inside it and spare every product the entry.
    pub fn pool(&self) -> &rayon::ThreadPool {
        &self.pool
    }
}

#[cfg(feature = "rayon")]
impl Executor for RayonExecutor {
    fn n_workers(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// On a thread of the pool: products made there start without waking one first.
    fn enter(&self, f: &mut (dyn FnMut() + Send)) {
        self.pool.install(f);
    }

    fn for_each_chunk(
        &self,
        out: &mut [f32],
        chunk_len: usize,
        f: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        use rayon::prelude::*;
        if out.len() <= chunk_len {
            return Inline.for_each_chunk(out, chunk_len, f);
        }
        self.pool.install(|| {
            out.par_chunks_mut(chunk_len).enumerate().for_each(|(index, chunk)| f(index, chunk));
        });
    }

    fn for_each_chunk_pair(
        &self,
        a: &mut [f32],
        a_len: usize,
        b: &mut [f32],
        b_len: usize,
        f: &(dyn Fn(usize, &mut [f32], &mut [f32]) + Sync),
    ) {
        use rayon::prelude::*;
        if a.len() <= a_len {
            return Inline.for_each_chunk_pair(a, a_len, b, b_len, f);
        }
        assert_eq!(a.len().div_ceil(a_len), b.len().div_ceil(b_len), "BUG: unequal chunk counts");
        self.pool.install(|| {
            a.par_chunks_mut(a_len)
                .zip(b.par_chunks_mut(b_len))
                .enumerate()
                .for_each(|(index, (a, b))| f(index, a, b));
        });
    }
}
