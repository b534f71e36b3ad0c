//! A parallel loop over an [`Executor`].

use std::sync::{Mutex, OnceLock, PoisonError};

use slm_quant::Executor;

/// `f(0) … f(n - 1)`, each once, on the executor's threads; results in order.
pub(crate) fn parallel_for<T: Send + Sync>(
    exec: &dyn Executor,
    n: usize,
    f: &(dyn Fn(usize) -> T + Sync),
) -> Vec<T> {
    let results: Vec<OnceLock<T>> = (0..n).map(|_| OnceLock::new()).collect();
    // The executor cuts a buffer; one element stands for one job.
    let mut jobs = vec![0.0f32; n];
    exec.for_each_chunk(&mut jobs, 1, &|at, _| {
        let fresh = results[at].set(f(at)).is_ok();
        assert!(fresh, "BUG: an executor ran a job twice");
    });
    results
        .into_iter()
        .map(|result| result.into_inner().expect("BUG: an executor left a job out"))
        .collect()
}

/// What both give, side by side where the executor has threads.
pub(crate) fn join<A: Send + Sync, B: Send + Sync>(
    exec: &dyn Executor,
    a: impl FnOnce() -> A + Send,
    b: impl FnOnce() -> B + Send,
) -> (A, B) {
    fn once<F: FnOnce() -> T, T>(f: &Mutex<Option<F>>) -> T {
        let f = f.lock().unwrap_or_else(PoisonError::into_inner).take();
        f.expect("BUG: an executor ran a job twice")()
    }
    let (a, b) = (Mutex::new(Some(a)), Mutex::new(Some(b)));
    let mut results = parallel_for(exec, 2, &|n| match n {
        0 => (Some(once(&a)), None),
        _ => (None, Some(once(&b))),
    });
    let second = results.pop().and_then(|(_, b)| b);
    let first = results.pop().and_then(|(a, _)| a);
    first.zip(second).expect("BUG: an executor left a job out")
}
