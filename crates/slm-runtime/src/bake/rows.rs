//! The rows of one baked tensor: made, encoded, hashed in ggml order, and handed out piece by piece.

use std::ops::Range;

use slm_format::{ContentHash, ContentHasher, Encoding};
use slm_quant::{Executor, Kernels, QuantError, codec};

use crate::bake::{Bake, BakeError, Planned};
use crate::error::RuntimeError;
use crate::load::MatrixRef;
use crate::parallel::parallel_for;

/// Elements of a piece, about: 1 MiB in f32.
const PIECE: usize = 1 << 18;

/// Some rows as they are stored.
struct Rows {
    bytes: Vec<u8>,
    /// Squares of what encoding lost, and of what was encoded.
    lost: f64,
    whole: f64,
}

impl Bake<'_> {
    /// Hands the bytes of tensor `at` to `put`, in ggml order or with rows of q and k as the framework has them, and gives their hash in ggml order
    /// and the relative error of encoding them.
    pub(super) fn tensor(
        &self,
        at: usize,
        encoding: Encoding,
        exec: &dyn Executor,
        framework_order: bool,
        put: &mut dyn FnMut(&[u8]) -> Result<(), RuntimeError>,
    ) -> Result<(ContentHash, f64), RuntimeError> {
        let (planned, base) = (&self.tensors[at], self.base());
        let source = &base.tensors()[planned.source];
        let heads = framework_order && is_permuted(&planned.name);
        if planned.change.is_empty() && encoding == source.encoding() && !heads {
            put(&base.tensor_bytes(planned.source))?;
            return Ok((source.content(), 0.0));
        }
        let matrix = base.matrix(MatrixRef(planned.source));
        let (n_rows, cols) = (matrix.rows(), matrix.cols());
        let head_dim = self.config.head_dim as usize;
        // Whole heads where rows change places.
        let unit = if heads { head_dim } else { 1 };
        let piece = (PIECE / cols / unit).max(1) * unit;
        let n_pieces = n_rows.div_ceil(piece);
        let row_bytes = encoding.row_bytes(cols).unwrap_or(0);
        let mut hasher = ContentHasher::new();
        let (mut lost, mut whole) = (0.0, 0.0);
        let mut first = 0;
        while first < n_pieces {
            let n = exec.n_workers().clamp(1, n_pieces - first);
            let made = parallel_for(exec, n, &|at| {
                let from = (first + at) * piece;
                self.rows(planned, encoding, from..(from + piece).min(n_rows))
            });
            for rows in made {
                let rows = rows?;
                hasher.update(&rows.bytes);
                lost += rows.lost;
                whole += rows.whole;
                match heads {
                    true => put(&framework_rows(&rows.bytes, head_dim, row_bytes))?,
                    false => put(&rows.bytes)?,
                }
            }
            first += n;
        }
        let error = if whole > 0.0 { (lost / whole).sqrt() } else { 0.0 };
        Ok((hasher.finish(), error))
    }

    fn rows(
        &self,
        planned: &Planned,
        encoding: Encoding,
        rows: Range<usize>,
    ) -> Result<Rows, BakeError> {
        let matrix = self.base().matrix(MatrixRef(planned.source));
        let cols = matrix.cols();
        let kernels = Kernels::detect();
        let range = |row: usize, column: usize, value: f64| {
            let (tensor, row, column) = (planned.name.clone(), row as u64, column as u64);
            BakeError::Range { tensor, row, column, value, encoding: encoding.name() }
        };
        let mut values = vec![0.0f32; rows.len() * cols];
        let mut wide = vec![0.0f64; cols];
        let mut whole = 0.0;
        for (row, values) in rows.clone().zip(values.chunks_exact_mut(cols)) {
            kernels.decode_row(values, &matrix, row);
            wide.iter_mut().zip(&*values).for_each(|(wide, value)| *wide = f64::from(*value));
            planned.change.row(row, &mut wide);
            for (column, (value, &wide)) in values.iter_mut().zip(&wide).enumerate() {
                *value = wide as f32;
                if !value.is_finite() {
                    return Err(range(row, column, wide));
                }
                whole += wide * wide;
            }
        }
        let bytes = codec::encode(encoding, &values, cols).map_err(|error| match error {
            QuantError::NonFinite { row, index } => {
                range(rows.start + row, index, f64::from(values[row * cols + index]))
            }
            _ => BakeError::Encoder { tensor: planned.name.clone(), encoding: encoding.name() },
        })?;
        let mut stored = vec![0.0f32; values.len()];
        codec::decode(encoding, &bytes, &mut stored)
            .expect("BUG: what was encoded does not decode");
        let lost = values.iter().zip(&stored).map(|(&value, &stored)| {
            let error = f64::from(value) - f64::from(stored);
            error * error
        });
        Ok(Rows { lost: lost.sum(), whole, bytes })
    }
}

/// Whether a tensor's rows stand in another order in a framework's file.
fn is_permuted(name: &str) -> bool {
    name.ends_with(".attn_q.weight") || name.ends_with(".attn_k.weight")
}

/// The rows of whole heads, brought back into the framework's order: its row `i * d/2 + j` of a head is ggml's row `2j + i`.
fn framework_rows(bytes: &[u8], head_dim: usize, row_bytes: usize) -> Vec<u8> {
    let half = head_dim / 2;
    let mut out = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact(head_dim * row_bytes) {
        for within in 0..head_dim {
            let row = within % half * 2 + within / half;
            out.extend_from_slice(&head[row * row_bytes..][..row_bytes]);
        }
    }
    out
}
