//! Low-rank factors: the sixteen lanes of a row are one vector; outputs have a lane each. Where f16 is widened faster in halves of that, those are the
//! AVX2 tier's.

use slm_format::Encoding;

use super::plain::widen16;
use super::{Avx512, F, chunk};
use crate::arch::avx2::Asking;
use crate::arch::{avx2, scalar, x86_cpu};
use crate::low_rank::{DownMatrix, GROUP_COLS, GROUP_ROWS, UP_ROWS, UpMatrix};

/// As [`scalar::low_rank_down`].
pub(crate) fn low_rank_down(s: Avx512, z: &mut [f32], a: &DownMatrix<'_>, x: &[f32]) {
    if !x.len().is_multiple_of(GROUP_COLS) {
        return scalar::low_rank_down(z, a, x);
    }
    match a.encoding() {
        Encoding::F32 => groups::<0>(s, z, a, x),
        Encoding::F16 if x86_cpu::widens_in_halves() => avx2::low_rank_down(s.avx2(), z, a, x),
        Encoding::F16 => groups::<1>(s, z, a, x),
        _ => groups::<2>(s, z, a, x),
    }
}

fn groups<const TYPE: usize>(s: Avx512, z: &mut [f32], a: &DownMatrix<'_>, x: &[f32]) {
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
    s: Avx512,
    z: &mut [f32],
    a: &[u8],
    x: &[f32],
    asking: Asking,
) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let mut lanes = [s.set1(0.0); R];
    for (a, x) in a.chunks_exact(R * GROUP_COLS * unit).zip(x.as_chunks::<GROUP_COLS>().0) {
        let x: F = pulp::cast(*x);
        s.avx2().ask_for_factor(a, asking);
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
        Encoding::F16 if x86_cpu::widens_in_halves() => {
            avx2::low_rank_up(s.avx2(), y, f, b, z, first);
        }
        Encoding::F16 => strips::<1>(s, y, f, b, z, first),
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
    let asking = Asking::of::<TYPE>(b.is_read_once());
    s.run(
        #[inline(always)]
        || {
            let mut rest = &mut *y;
            for mut strip in b.strips(first, rest.len()) {
                let (mut y, later) = rest.split_at_mut(strip.n_rows);
                rest = later;
                if y.len() == UP_ROWS {
                    piece::<TYPE, 4>(s, y, f, strip.bytes, UP_ROWS, 0, z, asking);
                    continue;
                }
                // Half a strip is what is left of one where a product was cut in two.
                if y.len() >= 32 {
                    let (head, tail) = std::mem::take(&mut y).split_at_mut(32);
                    piece::<TYPE, 2>(s, head, f, strip.bytes, strip.stride, strip.skip, z, asking);
                    (y, strip.skip) = (tail, strip.skip + 32);
                }
                while y.len() >= 16 {
                    let (head, tail) = std::mem::take(&mut y).split_at_mut(16);
                    piece::<TYPE, 1>(s, head, f, strip.bytes, strip.stride, strip.skip, z, asking);
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
    asking: Asking,
) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let mut u = [s.set1(0.0); V];
    for (column, &z) in strip.chunks(stride * unit).zip(z) {
        let column = &column[skip * unit..][..16 * V * unit];
        let z = s.set1(z);
        s.avx2().ask_for_factor(column, asking);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_in_whole_vectors_and_in_halves_has_the_scalar_bits() {
        let Some(s) = Avx512::try_new() else {
            // The features are the machine's; every other tier is compared elsewhere.
            return;
        };
        // Numbers below 2, subnormal ones too.
        let halves = |n: usize| -> Vec<u8> {
            let bits = (0..n as u32).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 16) as u16);
            bits.flat_map(|bits| (bits & !(1 << 14)).to_le_bytes()).collect()
        };
        let floats = |n: usize| -> Vec<f32> { (0..n).map(|n| (n as f32 * 0.7).sin()).collect() };
        let bits = |values: &[f32]| -> Vec<u32> { values.iter().map(|v| v.to_bits()).collect() };
        for (rank, n) in [(1, 16), (3, 96), (8, 112), (16, 592)] {
            let (bytes, x) = (halves(rank * n), floats(n));
            let a = DownMatrix::new(Encoding::F16, rank, n, &bytes).unwrap();
            for a in [a, a.read_once()] {
                let mut made = [(); 3].map(|()| vec![0.0; rank]);
                scalar::low_rank_down(&mut made[0], &a, &x);
                groups::<1>(s, &mut made[1], &a, &x);
                avx2::low_rank_down(s.avx2(), &mut made[2], &a, &x);
                assert_eq!(bits(&made[1]), bits(&made[0]), "A, {rank} x {n}");
                assert_eq!(bits(&made[2]), bits(&made[0]), "A, {rank} x {n}");
            }

            let b = UpMatrix::new(Encoding::F16, n, rank, &bytes).unwrap();
            for (first, b) in [(0, b), (n / 2, b.read_once())] {
                let (z, y) = (floats(rank), floats(n - first));
                let mut made = [(); 3].map(|()| y.clone());
                scalar::low_rank_up(&mut made[0], 0.7, &b, &z, first);
                strips::<1>(s, &mut made[1], 0.7, &b, &z, first);
                avx2::low_rank_up(s.avx2(), &mut made[2], 0.7, &b, &z, first);
                assert_eq!(bits(&made[1]), bits(&made[0]), "B, {n} x {rank} from {first}");
                assert_eq!(bits(&made[2]), bits(&made[0]), "B, {n} x {rank} from {first}");
            }
        }
    }
}
