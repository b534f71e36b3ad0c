//! Low-rank factors: the sixteen lanes of a row, are four vectors; outputs have a lane each.

use slm_format::Encoding;

use super::Lanes;
use super::float::sum_lanes;
use super::plain::widen4;
use crate::arch::scalar;
use crate::low_rank::{DownMatrix, GROUP_COLS, GROUP_ROWS, Strip, UpMatrix};

/// As [`scalar::low_rank_down`].
pub(crate) fn low_rank_down<L: Lanes>(s: L, z: &mut [f32], a: &DownMatrix<'_>, x: &[f32]) {
    if !x.len().is_multiple_of(GROUP_COLS) {
        return scalar::low_rank_down(z, a, x);
    }
    match a.encoding() {
        Encoding::F32 => groups::<L, 0>(s, z, a.data(), x),
        Encoding::F16 => groups::<L, 1>(s, z, a.data(), x),
        _ => groups::<L, 2>(s, z, a.data(), x),
    }
}

fn groups<L: Lanes, const TYPE: usize>(s: L, z: &mut [f32], a: &[u8], x: &[f32]) {
    let len = GROUP_ROWS * x.len() * if TYPE == 0 { 4 } else { 2 };
    for (z, a) in z.chunks_mut(GROUP_ROWS).zip(a.chunks(len)) {
        match z.len() {
            1 => group::<L, TYPE, 1>(s, z, a, x),
            2 => group::<L, TYPE, 2>(s, z, a, x),
            3 => group::<L, TYPE, 3>(s, z, a, x),
            _ => group::<L, TYPE, 4>(s, z, a, x),
        }
    }
}

/// `R` rows.
#[inline(always)]
fn group<L: Lanes, const TYPE: usize, const R: usize>(s: L, z: &mut [f32], a: &[u8], x: &[f32]) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let mut lanes = [[s.splat(0.0); 4]; R];
    for (a, x) in a.chunks_exact(R * GROUP_COLS * unit).zip(x.as_chunks::<4>().0.chunks_exact(4)) {
        for quarter in 0..4 {
            let x = s.load(&x[quarter]);
            for n in 0..R {
                let a = widen4::<L, TYPE>(s, a, (GROUP_COLS * n + 4 * quarter) * unit);
                lanes[n][quarter] = s.add(lanes[n][quarter], s.mul(a, x));
            }
        }
    }
    for n in 0..R {
        z[n] = sum_lanes(s, lanes[n]);
    }
}

/// As [`scalar::low_rank_up`].
pub(crate) fn low_rank_up<L: Lanes>(
    s: L,
    y: &mut [f32],
    f: f32,
    b: &UpMatrix<'_>,
    z: &[f32],
    first: usize,
) {
    match b.encoding() {
        Encoding::F32 => strips::<L, 0>(s, y, f, b, z, first),
        Encoding::F16 => strips::<L, 1>(s, y, f, b, z, first),
        _ => strips::<L, 2>(s, y, f, b, z, first),
    }
}

fn strips<L: Lanes, const TYPE: usize>(
    s: L,
    y: &mut [f32],
    f: f32,
    b: &UpMatrix<'_>,
    z: &[f32],
    first: usize,
) {
    let mut rest = y;
    for mut strip in b.strips(first, rest.len()) {
        let (mut y, later) = rest.split_at_mut(strip.n_rows);
        rest = later;
        while y.len() >= 32 {
            let (head, tail) = std::mem::take(&mut y).split_at_mut(32);
            piece::<L, TYPE, 8>(s, head, f, &strip, z);
            (y, strip.skip) = (tail, strip.skip + 32);
        }
        while y.len() >= 4 {
            let (head, tail) = std::mem::take(&mut y).split_at_mut(4);
            piece::<L, TYPE, 1>(s, head, f, &strip, z);
            (y, strip.skip) = (tail, strip.skip + 4);
        }
        scalar::low_rank_strip(y, f, b.encoding(), strip, z);
    }
}

/// `4 * V` outputs of a strip.
#[inline(always)]
fn piece<L: Lanes, const TYPE: usize, const V: usize>(
    s: L,
    y: &mut [f32],
    f: f32,
    strip: &Strip<'_>,
    z: &[f32],
) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let mut u = [s.splat(0.0); V];
    for (column, &z) in strip.bytes.chunks(strip.stride * unit).zip(z) {
        let column = &column[strip.skip * unit..][..4 * V * unit];
        let z = s.splat(z);
        for v in 0..V {
            u[v] = s.add(u[v], s.mul(z, widen4::<L, TYPE>(s, column, 4 * v * unit)));
        }
    }
    let f = s.splat(f);
    for (y, u) in y.as_chunks_mut::<4>().0.iter_mut().zip(u) {
        s.store(y, s.add(s.load(y), s.mul(f, u)));
    }
}
