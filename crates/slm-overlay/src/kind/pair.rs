//! The two matrices of a low-rank module in the form the kernels read.

use std::sync::Arc;

use slm_format::Encoding;
use slm_quant::layout::AlignedBytes;
use slm_quant::{DownMatrix, Executor, Kernels, QMatrix, UpMatrix};

use crate::bind::{Place, pair};
use crate::shape::EMBEDDING;
use crate::{BoundAdapter, Factor};

/// A module's down-projection and its up-projection. What a token needs of them stands here: looking it up costs as much as a short row.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    bound: Arc<BoundAdapter>,
    /// Index of the module.
    module: usize,
    working: Arc<AlignedBytes>,
    place: Place,
    rank: usize,
    cols: usize,
    rows: usize,
    /// Of A, and of B.
    encodings: [Encoding; 2],
    /// Rows of A that one of several threads takes at a time: whole groups, and bytes that are worth taking.
    part_rows: usize,
}

/// Bytes of a down-projection that are worth taking: with 2 KiB two threads were slower.
const PART_BYTES: usize = 8 << 10;

impl Pair {
    pub(crate) fn new(bound: &Arc<BoundAdapter>, module: usize) -> Pair {
        let (a, b) = pair(bound.module(module)).expect("BUG: a pair of a module that has none");
        let row_bytes = a.data().len() / a.rows() as usize;
        let worthwhile = PART_BYTES.div_ceil(row_bytes.max(1));
        Pair {
            bound: Arc::clone(bound),
            module,
            working: Arc::clone(bound.working()),
            place: bound.place(module),
            rank: a.rows() as usize,
            cols: a.cols() as usize,
            rows: b.rows() as usize,
            encodings: [a.encoding(), b.encoding()],
            part_rows: worthwhile.next_multiple_of(DownMatrix::GROUP_ROWS),
        }
    }

    /// Rank: values between the two.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// The bytes of [`Pair::down_matrix`].
    pub(crate) fn down_bytes(&self) -> &[u8] {
        &self.working[self.place.a.clone()]
    }

    /// A, `[rank, in]`, as one token reads it.
    pub(crate) fn down_matrix(&self) -> DownMatrix<'_> {
        let a = DownMatrix::new(self.encodings[0], self.rank, self.cols, self.down_bytes());
        a.expect("BUG: a factor of the wrong length")
    }

    /// Parts of [`Pair::down_matrix`] where so many threads share it.
    pub(crate) fn n_parts(&self, n_sharers: usize) -> usize {
        self.rank.div_ceil(self.part_rows(n_sharers))
    }

    /// Such a part, and its first row.
    pub(crate) fn down_part(&self, part: usize, n_sharers: usize) -> (usize, DownMatrix<'_>) {
        let part_rows = self.part_rows(n_sharers);
        let first = part * part_rows;
        (first, self.down_matrix().groups(first, part_rows.min(self.rank - first)))
    }

    /// A thread that is alone takes all: it is one run of addresses.
    fn part_rows(&self, n_sharers: usize) -> usize {
        if n_sharers == 1 { self.rank } else { self.part_rows }
    }

    /// A, `[rank, in]`, row after row, as many tokens read it.
    pub(crate) fn a(&self) -> QMatrix<'_> {
        let data = self.factors().0.data();
        let a = QMatrix::new(self.encodings[0], self.rank, self.cols, data);
        a.expect("BUG: a factor of the wrong length")
    }

    /// B, `[out, rank]`.
    pub(crate) fn up_matrix(&self) -> UpMatrix<'_> {
        let data = &self.working[self.place.b.clone()];
        let b = UpMatrix::new(self.encodings[1], self.rows, self.rank, data);
        b.expect("BUG: a factor of the wrong length")
    }

    /// `z = A x`, `[n_tokens, rank]`.
    pub(crate) fn down(&self, kernels: &Kernels, exec: &dyn Executor, z: &mut [f32], x: &[f32]) {
        match z.len() == self.rank {
            true => kernels.low_rank_down(exec, [z], [&self.down_matrix()], x),
            false => kernels.matmul(exec, z, &self.a(), x, None),
        }
    }

    /// `y = y + s * (B z)`: `y` is outputs `first_row ..` of each token, `[n_tokens, n]`, `z` is `[n_tokens, rank]`.
    pub(crate) fn up(
        &self,
        kernels: &Kernels,
        y: &mut [f32],
        s: f32,
        first_row: usize,
        z: &[f32],
        n_tokens: usize,
    ) {
        kernels.low_rank_up(y, s, &self.up_matrix(), first_row, z, n_tokens);
    }

    /// Adds what the pair adds to row `id` of an embedding table: `y = y + s * (B_id A)`. `z` is scratch of [`Pair::rank`] values.
    pub(crate) fn add_row(
        &self,
        kernels: &Kernels,
        y: &mut [f32],
        s: f32,
        id: usize,
        z: &mut [f32],
    ) {
        debug_assert_eq!(self.bound.module(self.module).target, EMBEDDING);
        self.factors().1.row_into(id, z);
        let a = UpMatrix::new(self.encodings[0], self.cols, self.rank, self.down_bytes());
        kernels.low_rank_up(y, s, &a.expect("BUG: a factor of the wrong length"), 0, z, 1);
    }

    fn factors(&self) -> (&Factor, &Factor) {
        pair(self.bound.module(self.module)).expect("BUG: a pair of a module that has none")
    }
}
