//! Low-rank factors: the sixteen lanes of a row, are two vectors; outputs have a lane each.

use slm_format::Encoding;

use super::Avx2;
use super::decode::widen8;
use crate::arch::{scalar, x86_cpu};
use crate::low_rank::{DownMatrix, GROUP_COLS, GROUP_ROWS, UP_ROWS, UpMatrix, ask_distance};

/// Whether a factor's bytes are asked for past the caches: where processors like to be asked, two-byte elements are sooner there so, four-byte ones not.
pub(in crate::arch) fn passes<const TYPE: usize>() -> bool {
    TYPE != 0 && x86_cpu::runs_are_asked_for()
}

impl Avx2 {
    /// Asks ahead for as many bytes of a factor as `values` are.
    #[inline(always)]
    pub(in crate::arch) fn ask_for_factor(self, values: &[u8], unit: usize, passing: bool) {
        match passing {
            true => self.prefetch_passing_after(values, ask_distance(unit)),
            false => self.prefetch_after(values, ask_distance(unit)),
        }
    }
}

/// As [`scalar::low_rank_down`].
pub(crate) fn low_rank_down(s: Avx2, z: &mut [f32], a: &DownMatrix<'_>, x: &[f32]) {
    if !x.len().is_multiple_of(GROUP_COLS) {
        return scalar::low_rank_down(z, a, x);
    }
    match a.encoding() {
        Encoding::F32 => groups::<0>(s, z, a.data(), x),
        Encoding::F16 => groups::<1>(s, z, a.data(), x),
        _ => groups::<2>(s, z, a.data(), x),
    }
}

fn groups<const TYPE: usize>(s: Avx2, z: &mut [f32], a: &[u8], x: &[f32]) {
    let passing = passes::<TYPE>();
    s.run(
        #[inline(always)]
        move || {
            let len = GROUP_ROWS * x.len() * if TYPE == 0 { 4 } else { 2 };
            for (z, a) in z.chunks_mut(GROUP_ROWS).zip(a.chunks(len)) {
                match z.len() {
                    1 => group::<TYPE, 1>(s, z, a, x, passing),
                    2 => group::<TYPE, 2>(s, z, a, x, passing),
                    3 => group::<TYPE, 3>(s, z, a, x, passing),
                    _ => group::<TYPE, 4>(s, z, a, x, passing),
                }
            }
        },
    );
}

/// `R` rows.
#[inline(always)]
fn group<const TYPE: usize, const R: usize>(
    s: Avx2,
    z: &mut [f32],
    a: &[u8],
    x: &[f32],
    passing: bool,
) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let mut lanes = [[s.set1(0.0); 2]; R];
    for (a, x) in a.chunks_exact(R * GROUP_COLS * unit).zip(x.as_chunks::<8>().0.chunks_exact(2)) {
        let x = [s.load(&x[0]), s.load(&x[1])];
        s.ask_for_factor(a, unit, passing);
        for n in 0..R {
            for half in 0..2 {
                let a = widen8::<TYPE>(s, a, (GROUP_COLS * n + 8 * half) * unit);
                lanes[n][half] = s.add(lanes[n][half], s.mul(a, x[half]));
            }
        }
    }
    for n in 0..R {
        z[n] = s.sum_lanes(lanes[n][0], lanes[n][1]);
    }
}

/// As [`scalar::low_rank_up`].
pub(crate) fn low_rank_up(
    s: Avx2,
    y: &mut [f32],
    f: f32,
    b: &UpMatrix<'_>,
    z: &[f32],
    first: usize,
) {
    match b.encoding() {
        Encoding::F32 => strips::<0>(s, y, f, b, z, first),
        Encoding::F16 => strips::<1>(s, y, f, b, z, first),
        _ => strips::<2>(s, y, f, b, z, first),
    }
}

fn strips<const TYPE: usize>(
    s: Avx2,
    y: &mut [f32],
    f: f32,
    b: &UpMatrix<'_>,
    z: &[f32],
    first: usize,
) {
    let passing = passes::<TYPE>();
    s.run(
        #[inline(always)]
        || {
            let mut rest = &mut *y;
            for mut strip in b.strips(first, rest.len()) {
                let (mut y, later) = rest.split_at_mut(strip.n_rows);
                rest = later;
                if y.len() == UP_ROWS {
                    piece::<TYPE, 8>(s, y, f, strip.bytes, UP_ROWS, 0, z, passing);
                    continue;
                }
                // Half a strip is what is left of one where a product was cut in two.
                if y.len() >= 32 {
                    let (head, tail) = std::mem::take(&mut y).split_at_mut(32);
                    piece::<TYPE, 4>(s, head, f, strip.bytes, strip.stride, strip.skip, z, passing);
                    (y, strip.skip) = (tail, strip.skip + 32);
                }
                while y.len() >= 8 {
                    let (head, tail) = std::mem::take(&mut y).split_at_mut(8);
                    piece::<TYPE, 1>(s, head, f, strip.bytes, strip.stride, strip.skip, z, passing);
                    (y, strip.skip) = (tail, strip.skip + 8);
                }
                scalar::low_rank_strip(y, f, b.encoding(), strip, z);
            }
        },
    );
}

/// `8 * V` outputs of a strip, from element `skip` of each column on.
#[inline(always)]
fn piece<const TYPE: usize, const V: usize>(
    s: Avx2,
    y: &mut [f32],
    f: f32,
    strip: &[u8],
    stride: usize,
    skip: usize,
    z: &[f32],
    passing: bool,
) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let mut u = [s.set1(0.0); V];
    for (column, &z) in strip.chunks(stride * unit).zip(z) {
        let column = &column[skip * unit..][..8 * V * unit];
        let z = s.set1(z);
        s.ask_for_factor(column, unit, passing);
        for v in 0..V {
            u[v] = s.add(u[v], s.mul(z, widen8::<TYPE>(s, column, 8 * v * unit)));
        }
    }
    let f = s.set1(f);
    for (y, u) in y.as_chunks_mut::<8>().0.iter_mut().zip(u) {
        s.store(y, s.add(s.load(y), s.mul(f, u)));
    }
}
