//! Products of matrices whose stacks multiply what they read: each matrix has its own rows then, and the base reads them as the stack leaves
//! them.

use slm_overlay::{Gates, TensorStack};
use slm_quant::QuantizedRows;

use crate::error::RuntimeError;
use crate::graph::block::{Block, Pick};
use crate::graph::forward::Lane;
use crate::graph::scratch::sized;
use crate::load::MatrixRef;

impl Block<'_> {
    /// Whether any sequence of the block has such a stack.
    pub(super) fn scales_input<const N: usize>(&self, stacks: Pick<N>) -> bool {
        self.parts().any(|(lane, _)| {
            stacks(&lane.overlays.layers[self.n]).iter().any(TensorStack::scales_input)
        })
    }

    /// [`Block::project`], matrix by matrix. Each has a copy of `x`, behind the values of its stacks in `z`.
    pub(super) fn project_scaled<const N: usize>(
        &self,
        outs: [&mut [f32]; N],
        matrices: [MatrixRef; N],
        stacks: Pick<N>,
        x: &[f32],
        rows: &mut QuantizedRows,
        z: &mut Vec<f32>,
    ) -> Result<(), RuntimeError> {
        let width = x.len() / self.rows.len();
        for (n, (out, matrix)) in outs.into_iter().zip(matrices).enumerate() {
            let parts = || {
                self.parts()
                    .map(|(lane, tokens)| (lane, tokens, &stacks(&lane.overlays.layers[self.n])[n]))
            };
            let needed: usize =
                parts().map(|(_, tokens, stack)| stack.scratch_len(tokens.len())).sum();
            let (z, copy) = sized(z, needed + x.len()).split_at_mut(needed);
            copy.copy_from_slice(x);
            let x = copy;
            let mut rest = &mut *z;
            for (_, tokens, stack) in parts() {
                let (z, later) = rest.split_at_mut(stack.scratch_len(tokens.len()));
                rest = later;
                let x = &mut x[tokens.start * width..tokens.end * width];
                stack.down_scaling(&self.kernels, self.exec, z, x, tokens.len());
            }
            let xq = self.quantize(rows, x, &[matrix])?;
            self.kernels.matmul(self.exec, out, &self.matrix(matrix), x, xq);
            let n_rows = out.len() / self.rows.len();
            let mut rest = &*z;
            for (lane, tokens, stack) in parts() {
                let n = tokens.len();
                let (z, later) = rest.split_at(stack.scratch_len(n));
                rest = later;
                let out = &mut out[tokens.start * n_rows..tokens.end * n_rows];
                let gates = self.gates(lane, tokens.start);
                stack.up(&self.kernels, out, 0, z, n, 0..n, gates);
            }
        }
        Ok(())
    }

    /// Where the adapters of `lane` act that wait, for tokens from `token` of the block on.
    pub(super) fn gates<'l>(&self, lane: &Lane<'l>, token: usize) -> Gates<'l> {
        let row = self.rows.start + token;
        Gates { first_position: lane.first_position + row - lane.first_row, starts: lane.starts }
    }
}
