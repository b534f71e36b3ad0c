//! Low-rank factors: the sixteen lanes of a row, are two vectors; outputs have a lane each.

use slm_format::Encoding;

use super::Avx2;
use super::decode::widen8;
use crate::arch::{scalar, x86_cpu};
use crate::low_rank::{DownMatrix, GROUP_COLS, GROUP_ROWS, UP_ROWS, UpMatrix};

/// How a kernel asks for the bytes of a factor ahead of its loads, and past its end for what lies behind it: factors lie in the order of a pass.
#[derive(Clone, Copy)]
pub(in crate::arch) struct Asking {
    /// Past the caches.
    passing: bool,
    /// Bytes.
    distance: usize,
}

impl Asking {
    /// By what was measured (`docs/performance.md`).
    pub(in crate::arch) fn of<const TYPE: usize>(read_once: bool) -> Asking {
        let passing = read_once && x86_cpu::runs_are_asked_for();
        let distance = match (TYPE, passing) {
            (0, false) => 3 << 10,
            (0, true) => 4 << 10,
            _ => 8 << 10,
        };
        Asking { passing, distance }
    }
}

impl Avx2 {
    /// Asks ahead for as many bytes of a factor as `values` are.
    #[inline(always)]
    pub(in crate::arch) fn ask_for_factor(self, values: &[u8], asking: Asking) {
        match asking.passing {
            true => self.prefetch_passing_after(values, asking.distance),
            false => self.prefetch_after(values, asking.distance),
        }
    }
}

/// As [`scalar::low_rank_down`].
pub(crate) fn low_rank_down(s: Avx2, z: &mut [f32], a: &DownMatrix<'_>, x: &[f32]) {
    if !x.len().is_multiple_of(GROUP_COLS) {
        return scalar::low_rank_down(z, a, x);
    }
    match a.encoding() {
        Encoding::F32 => groups::<0>(s, z, a, x),
        Encoding::F16 => groups::<1>(s, z, a, x),
        _ => groups::<2>(s, z, a, x),
    }
}

fn groups<const TYPE: usize>(s: Avx2, z: &mut [f32], a: &DownMatrix<'_>, x: &[f32]) {
    let asking = Asking::of::<TYPE>(a.is_read_once());
    s.run(
        #[inline(always)]
        move || {
            let len = GROUP_ROWS * x.len() * if TYPE == 0 { 4 } else { 2 };
            for (z, a) in z.chunks_mut(GROUP_ROWS).zip(a.data().chunks(len)) {
                match z.len() {
                    1 => group::<TYPE, 1>(s, z, a, x, asking),
                    2 => group::<TYPE, 2>(s, z, a, x, asking),
                    3 => group::<TYPE, 3>(s, z, a, x, asking),
                    _ => group::<TYPE, 4>(s, z, a, x, asking),
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
    asking: Asking,
) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let mut lanes = [[s.set1(0.0); 2]; R];
    for (a, x) in a.chunks_exact(R * GROUP_COLS * unit).zip(x.as_chunks::<8>().0.chunks_exact(2)) {
        let x = [s.load(&x[0]), s.load(&x[1])];
        s.ask_for_factor(a, asking);
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
    let asking = Asking::of::<TYPE>(b.is_read_once());
    s.run(
        #[inline(always)]
        || {
            let mut rest = &mut *y;
            for mut strip in b.strips(first, rest.len()) {
                let (mut y, later) = rest.split_at_mut(strip.n_rows);
                rest = later;
                if y.len() == UP_ROWS {
                    piece::<TYPE, 8>(s, y, f, strip.bytes, UP_ROWS, 0, z, asking);
                    continue;
                }
                // Half a strip is what is left of one where a product was cut in two.
                if y.len() >= 32 {
                    let (head, tail) = std::mem::take(&mut y).split_at_mut(32);
                    piece::<TYPE, 4>(s, head, f, strip.bytes, strip.stride, strip.skip, z, asking);
                    (y, strip.skip) = (tail, strip.skip + 32);
                }
                while y.len() >= 8 {
                    let (head, tail) = std::mem::take(&mut y).split_at_mut(8);
                    piece::<TYPE, 1>(s, head, f, strip.bytes, strip.stride, strip.skip, z, asking);
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
    asking: Asking,
) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let mut u = [s.set1(0.0); V];
    for (column, &z) in strip.chunks(stride * unit).zip(z) {
        let column = &column[skip * unit..][..8 * V * unit];
        let z = s.set1(z);
        s.ask_for_factor(column, asking);
        for v in 0..V {
            u[v] = s.add(u[v], s.mul(z, widen8::<TYPE>(s, column, 8 * v * unit)));
        }
    }
    let f = s.set1(f);
    for (y, u) in y.as_chunks_mut::<8>().0.iter_mut().zip(u) {
        s.store(y, s.add(s.load(y), s.mul(f, u)));
    }
}
