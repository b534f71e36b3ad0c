//! A parallel loop over an [`Executor`].

use std::sync::OnceLock;

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
