//! Single elements of a weight matrix: `y_o = y_o + s * Σ value * x_i` over the elements of row `o`, ascending.

use std::sync::Arc;

use super::{AdapterKind, Kind, expect_scale, expect_shape, is_zero, len};
use crate::{Factor, OverlayError};

/// Elements added to one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct SparseDelta {
    /// What every value is multiplied by.
    pub scale: f32,
    /// Outputs of the tensor.
    pub rows: u32,
    /// Inputs of the tensor.
    pub cols: u32,
    /// `row * cols + column` of every value, ascending, each once; rows in the base's order.
    pub indices: Arc<[u64]>,
    /// The values, `[1, n]`.
    pub values: Factor,
}

impl Kind for SparseDelta {
    const KIND: AdapterKind = AdapterKind::Sparse;

    fn numbers(&self) -> Vec<u32> {
        vec![self.scale.to_bits(), self.rows, self.cols]
    }

    fn factors(&self) -> Vec<(&'static str, &Factor)> {
        vec![("values", &self.values)]
    }

    fn indices(&self) -> &[u64] {
        &self.indices
    }

    fn from_parts(numbers: &[u32], indices: Vec<u64>, factors: Vec<Factor>) -> Option<SparseDelta> {
        let &[scale, rows, cols] = numbers else { return None };
        let [values] = <[Factor; 1]>::try_from(factors).ok()?;
        Some(SparseDelta {
            scale: f32::from_bits(scale),
            rows,
            cols,
            indices: indices.into(),
            values,
        })
    }

    fn check(&self, target: &str) -> Result<(), OverlayError> {
        expect_shape(target, "values", &self.values, 1, self.indices.len() as u64)?;
        let end = u64::from(self.rows) * u64::from(self.cols);
        let order = self.indices.windows(2).position(|pair| pair[0] >= pair[1]);
        let outside = self.indices.iter().position(|&index| index >= end);
        if let Some(at) = order.map(|at| at + 1).or(outside) {
            let (tensor, index) = (target.into(), self.indices[at]);
            return Err(OverlayError::SparseIndex { tensor, at: at as u64, index, end });
        }
        expect_scale(target, self.scale, 0)
    }

    fn fits(&self, target: &str, rows: u64, cols: u64) -> Result<(), OverlayError> {
        let found = vec![u64::from(self.rows), u64::from(self.cols)];
        match found == [rows, cols] {
            true => Ok(()),
            false => Err(OverlayError::Shape {
                tensor: format!("{target}.values"),
                found,
                expected: vec![rows, cols],
            }),
        }
    }

    fn is_nothing(&self) -> bool {
        self.scale == 0.0 || is_zero(&self.values)
    }

    fn macs(&self) -> u64 {
        len(&self.values)
    }

    fn scratch_values(&self) -> u64 {
        let cols = u64::from(self.cols);
        let row = |index: &u64| index / cols;
        let starts = self.indices.windows(2).filter(|pair| row(&pair[0]) != row(&pair[1]));
        starts.count() as u64 + u64::from(!self.indices.is_empty())
    }

    fn scale(&self) -> f32 {
        self.scale
    }
}

/// The elements row by row, only rows that have any.
#[derive(Debug)]
pub(crate) struct Csr {
    /// Row, and where its elements start.
    rows: Vec<(u32, usize)>,
    /// Column and value.
    elements: Vec<(u32, f32)>,
}

impl Csr {
    pub(crate) fn new(sparse: &SparseDelta) -> Csr {
        let (mut rows, mut elements) = (Vec::<(u32, usize)>::new(), Vec::new());
        for (&index, value) in sparse.indices.iter().zip(sparse.values.values()) {
            let cols = u64::from(sparse.cols);
            // Both below 2^32: the index was checked against rows * cols.
            let (row, col) = ((index / cols) as u32, (index % cols) as u32);
            if rows.last().is_none_or(|last| last.0 != row) {
                rows.push((row, elements.len()));
            }
            elements.push((col, value));
        }
        Csr { rows, elements }
    }

    pub(crate) fn bytes(&self) -> u64 {
        (size_of_val(&self.rows[..]) + size_of_val(&self.elements[..])) as u64
    }

    /// Row `row` of the matrix, whole.
    pub(crate) fn fill(&self, row: usize, out: &mut [f32]) {
        out.fill(0.0);
        if let Ok(at) = self.rows.binary_search_by_key(&row, |known| known.0 as usize) {
            self.row(at).iter().for_each(|&(col, value)| out[col as usize] = value);
        }
    }

    fn row(&self, at: usize) -> &[(u32, f32)] {
        let end = self.rows.get(at + 1).map_or(self.elements.len(), |next| next.1);
        &self.elements[self.rows[at].1..end]
    }
}

/// One adapter's part in a product.
#[derive(Debug)]
pub(crate) struct SparseTerm {
    pub(crate) csr: Arc<Csr>,
    /// `weight * scale`.
    pub(crate) s: f32,
}

impl SparseTerm {
    /// Sums per token: one for each row that has elements.
    pub(crate) fn width(&self) -> usize {
        self.csr.rows.len()
    }

    pub(crate) fn down(&self, z: &mut [f32], x: &[f32], n_tokens: usize) {
        let (width, cols) = (self.width(), x.len() / n_tokens);
        for (z, x) in z.chunks_exact_mut(width).zip(x.chunks_exact(cols)) {
            for (at, z) in z.iter_mut().enumerate() {
                let mut sum = 0.0;
                for &(col, value) in self.csr.row(at) {
                    sum += value * x[col as usize];
                }
                *z = sum;
            }
        }
    }

    /// `z` is `[n_tokens, width]` of just these tokens.
    pub(crate) fn up(&self, y: &mut [f32], first_row: usize, z: &[f32], n_tokens: usize) {
        let n_rows = y.len() / n_tokens;
        let from = self.csr.rows.partition_point(|row| (row.0 as usize) < first_row);
        let to = self.csr.rows.partition_point(|row| (row.0 as usize) < first_row + n_rows);
        for (y, z) in y.chunks_exact_mut(n_rows).zip(z.chunks_exact(self.width())) {
            for at in from..to {
                y[self.csr.rows[at].0 as usize - first_row] += self.s * z[at];
            }
        }
    }
}
