//! Low-rank factors: the sixteen lanes of a row are one vector; outputs have a lane each. Those in f16 are the AVX2 tier's.

use slm_format::Encoding;

use super::plain::widen16;
use super::{Avx512, F, chunk};
use crate::arch::{avx2, scalar};
use crate::low_rank::{DownMatrix, GROUP_COLS, GROUP_ROWS, UP_ROWS, UpMatrix, ask_distance};

/// As [`scalar::low_rank_down`].
pub(crate) fn low_rank_down(s: Avx512, z: &mut [f32], a: &DownMatrix<'_>, x: &[f32]) {
    if !x.len().is_multiple_of(GROUP_COLS) {
        return scalar::low_rank_down(z, a, x);
    }
    match a.encoding() {
        Encoding::F32 => groups::<0>(s, z, a.data(), x),
        // Eight at a time are widened faster than sixteen.
        Encoding::F16 => avx2::low_rank_down(s.avx2(), z, a, x),
        _ => groups::<2>(s, z, a.data(), x),
    }
}

fn groups<const TYPE: usize>(s: Avx512, z: &mut [f32], a: &[u8], x: &[f32]) {
    s.run(
        #[inline(always)]
        move || {
            let len = GROUP_ROWS * x.len() * if TYPE == 0 { 4 } else { 2 };
            for (z, a) in z.chunks_mut(GROUP_ROWS).zip(a.chunks(len)) {
                match z.len() {
                    1 => group::<TYPE, 1>(s, z, a, x),
                    2 => group::<TYPE, 2>(s, z, a, x),
                    3 => group::<TYPE, 3>(s, z, a, x),
                    _ => group::<TYPE, 4>(s, z, a, x),
                }
            }
        },
    );
}

/// `R` rows.
#[inline(always)]
fn group<const TYPE: usize, const R: usize>(s: Avx512, z: &mut [f32], a: &[u8], x: &[f32]) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let mut lanes = [s.set1(0.0); R];
    for (a, x) in a.chunks_exact(R * GROUP_COLS * unit).zip(x.as_chunks::<GROUP_COLS>().0) {
        let x: F = pulp::cast(*x);
        s.avx2().prefetch_after(a, ask_distance(unit));
        for n in 0..R {
            let a = widen16::<TYPE>(s, a, GROUP_COLS * n * unit);
            lanes[n] = s.add(lanes[n], s.mul(a, x));
        }
    }
    for n in 0..R {
        z[n] = s.sum_lanes(lanes[n]);
    }
}

/// As [`scalar::low_rank_up`].
pub(crate) fn low_rank_up(
    s: Avx512,
    y: &mut [f32],
    f: f32,
    b: &UpMatrix<'_>,
    z: &[f32],
    first: usize,
) {
    match b.encoding() {
        Encoding::F32 => strips::<0>(s, y, f, b, z, first),
        // Eight at a time are widened faster than sixteen.
        Encoding::F16 => avx2::low_rank_up(s.avx2(), y, f, b, z, first),
        _ => strips::<2>(s, y, f, b, z, first),
    }
}

fn strips<const TYPE: usize>(
    s: Avx512,
    y: &mut [f32],
    f: f32,
    b: &UpMatrix<'_>,
    z: &[f32],
    first: usize,
) {
    s.run(
        #[inline(always)]
        || {
            let mut rest = &mut *y;
            for mut strip in b.strips(first, rest.len()) {
                let (mut y, later) = rest.split_at_mut(strip.n_rows);
                rest = later;
                if y.len() == UP_ROWS {
                    piece::<TYPE, 4>(s, y, f, strip.bytes, UP_ROWS, 0, z);
                    continue;
                }
                // Half a strip is what is left of one where a product was cut in two.
                if y.len() >= 32 {
                    let (head, tail) = std::mem::take(&mut y).split_at_mut(32);
                    piece::<TYPE, 2>(s, head, f, strip.bytes, strip.stride, strip.skip, z);
                    (y, strip.skip) = (tail, strip.skip + 32);
                }
                while y.len() >= 16 {
                    let (head, tail) = std::mem::take(&mut y).split_at_mut(16);
                    piece::<TYPE, 1>(s, head, f, strip.bytes, strip.stride, strip.skip, z);
                    (y, strip.skip) = (tail, strip.skip + 16);
                }
                scalar::low_rank_strip(y, f, b.encoding(), strip, z);
            }
        },
    );
}

/// `16 * V` outputs of a strip, from element `skip` of each column on.
#[inline(always)]
fn piece<const TYPE: usize, const V: usize>(
    s: Avx512,
    y: &mut [f32],
    f: f32,
    strip: &[u8],
    stride: usize,
    skip: usize,
    z: &[f32],
) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let mut u = [s.set1(0.0); V];
    for (column, &z) in strip.chunks(stride * unit).zip(z) {
        let column = &column[skip * unit..][..16 * V * unit];
        let z = s.set1(z);
        s.avx2().prefetch_after(column, ask_distance(unit));
        for v in 0..V {
            u[v] = s.add(u[v], s.mul(z, widen16::<TYPE>(s, column, 16 * v * unit)));
        }
    }
    let f = s.set1(f);
    for v in 0..V {
        let before: F = pulp::cast(chunk::<f32, 16>(y, 16 * v));
        let after: [f32; 16] = pulp::cast(s.add(before, s.mul(f, u[v])));
        y[16 * v..][..16].copy_from_slice(&after);
    }
}
