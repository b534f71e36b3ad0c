//! The shape of attention's kernels.

/// Several queries over one run of cached positions; strides in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queries {
    /// Queries: the heads of a group, or a head's tokens.
    pub n_queries: usize,
    /// Cached positions.
    pub n_positions: usize,
    /// Elements of a query, of a row of the cache and of a sum.
    pub head_dim: usize,
    /// From one query, or one sum, to the next.
    pub query_stride: usize,
    /// From one query's scores, or weights, to the next's.
    pub score_stride: usize,
    /// From one position's row to the next.
    pub kv_stride: usize,
}

impl Queries {
    pub(crate) fn check(&self, queries: usize, scores: usize, cached: usize) {
        check_rows(self.n_queries, self.head_dim, queries, self.query_stride);
        check_rows(self.n_queries, self.n_positions, scores, self.score_stride);
        check_rows(self.n_positions, self.head_dim, cached, self.kv_stride);
    }

    /// For each query, where it starts, where its scores start and how many they are.
    #[inline(always)]
    pub(crate) fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        for t in 0..self.n_queries {
            f(t * self.query_stride, t * self.score_stride, self.n_positions);
        }
    }
}

/// `n` rows of `len` elements, `stride` apart, within `given` elements.
pub(crate) fn check_rows(n: usize, len: usize, given: usize, stride: usize) {
    let end = n.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(len));
    assert!(end.is_some_and(|end| end <= given), "{n} rows {stride} apart: {given} elements");
}
