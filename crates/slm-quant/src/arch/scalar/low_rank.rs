//! Low-rank factors, by definition.

use slm_format::Encoding;

use super::float::Lanes;
use super::{axpy, decode_row};
use crate::low_rank::{DownMatrix, GROUP_COLS, GROUP_ROWS, Strip, UP_ROWS, UpMatrix};

/// `z_r = Σ_i a[r, i] * x[i]` in the sixteen lanes.
pub(crate) fn low_rank_down(z: &mut [f32], a: &DownMatrix<'_>, x: &[f32]) {
    let (encoding, width) = (a.encoding(), a.encoding().block_bytes());
    let row_bytes = x.len() * width;
    let mut decoded = [0.0f32; GROUP_COLS];
    for (z, mut group) in z.chunks_mut(GROUP_ROWS).zip(a.data().chunks(GROUP_ROWS * row_bytes)) {
        let mut lanes = [Lanes::ZERO; GROUP_ROWS];
        for x in x.chunks(GROUP_COLS) {
            for lanes in &mut lanes[..z.len()] {
                let (row, rest) = group.split_at(x.len() * width);
                group = rest;
                decode_row(encoding, &mut decoded[..x.len()], row);
                lanes.dot(&decoded[..x.len()], x);
            }
        }
        for (z, lanes) in z.iter_mut().zip(&lanes) {
            *z = lanes.sum();
        }
    }
}

/// `u_o = Σ_r b[o, r] * z[r]` from +0.0, `r` ascending; then `y_o = y_o + s * u_o`: for the outputs from `first` on.
pub(crate) fn low_rank_up(y: &mut [f32], s: f32, b: &UpMatrix<'_>, z: &[f32], first: usize) {
    let mut rest = y;
    for strip in b.strips(first, rest.len()) {
        let (y, later) = rest.split_at_mut(strip.n_rows);
        rest = later;
        low_rank_strip(y, s, b.encoding(), strip, z);
    }
}

/// The outputs of one strip; none where the caller computed all of them.
pub(crate) fn low_rank_strip(
    y: &mut [f32],
    s: f32,
    encoding: Encoding,
    strip: Strip<'_>,
    z: &[f32],
) {
    if y.is_empty() {
        return;
    }
    let width = encoding.block_bytes();
    let (mut u, mut column) = ([0.0f32; UP_ROWS], [0.0f32; UP_ROWS]);
    let (u, column) = (&mut u[..y.len()], &mut column[..y.len()]);
    for (r, &z) in z.iter().enumerate() {
        let at = (r * strip.stride + strip.skip) * width;
        decode_row(encoding, column, &strip.bytes[at..][..column.len() * width]);
        axpy(u, z, column);
    }
    axpy(y, s, u);
}
