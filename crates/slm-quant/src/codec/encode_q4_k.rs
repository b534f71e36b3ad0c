//! The encoder of Q4_K: its own search of scales by least squares, then integer scales, then codes.
//!
//! Candidates stand side by side, one to a lane: each lane's sums run over the weights in their order, so a vector of lanes
//! gives the bits that one candidate after the other would.

use super::encode::put_f16;
use crate::arch::scalar::{ScaleMin, k4_scale_min};

/// Super-block: 8 blocks of 32, `x ≈ (d*sc)*q - dmin*mn`, codes 0 ..= 15, `sc` and `mn` of 6 bits.
pub(super) fn q4_k(x: &[f32], out: &mut Vec<u8>) {
    let (blocks, _) = x.as_chunks::<BLOCK>();
    let mut fits = [Fit::FLAT; 8];
    for (fit, x) in fits.iter_mut().zip(blocks) {
        *fit = fit_scale_min(x);
    }
    let top = |of: fn(&Fit) -> f32| fits.iter().map(of).fold(0.0, larger);
    let (d, dmin) = (rounded(top(|f| f.scale) / 63.0), rounded(top(|f| f.min) / 63.0));
    let mut scales = [ScaleMin { sc: 0, mn: 0 }; 8];
    let mut codes = [[0u8; BLOCK]; 8];
    for (b, x) in blocks.iter().enumerate() {
        (scales[b], codes[b]) = refine(x, fits[b], d, dmin);
    }
    put_f16(out, d);
    put_f16(out, dmin);
    out.extend(pack_scale_min(&scales));
    for [low, high] in codes.as_chunks::<2>().0 {
        out.extend((0..BLOCK).map(|l| low[l] | high[l] << 4));
    }
}

/// The larger one, of zeros the first: `f32::max` may give either, and the sign of a zero is among the bytes that are stored.
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Rounded to f16 first, so that codes are fitted to the scale that is stored.
pub(super) fn rounded(value: f32) -> f32 {
    half::f16::from_f32_const(value).to_f32_const()
}

const BLOCK: usize = 32;
/// The highest code.
const TOP: f32 = 15.0;
/// Starting scales of the sweep, and how often each is tried: as it is, then bettered.
const STARTS: usize = 25;
const ROUNDS: usize = 3;
/// Candidates whose sums stay in registers together: as many as the narrowest vectors hold.
const LANES: usize = 4;

/// `x ≈ scale*q - min`, both non-negative.
#[derive(Clone, Copy)]
struct Fit {
    scale: f32,
    min: f32,
}

impl Fit {
    const FLAT: Fit = Fit { scale: 0.0, min: 0.0 };
}

/// Fits side by side, and what the codes `q` of each come to: the squares of its errors, and the sums that its least-squares line needs.
#[derive(Clone, Copy)]
struct Group {
    scale: [f32; LANES],
    min: [f32; LANES],
    error: [f32; LANES],
    q1: [f32; LANES],
    q2: [f32; LANES],
    xq: [f32; LANES],
}

/// The best of a sweep of starting scales, each followed by the least-squares line through its codes.
fn fit_scale_min(x: &[f32; BLOCK]) -> Fit {
    let low = -x.iter().map(|x| -x).fold(0.0, larger);
    let high = x.iter().copied().fold(f32::MIN, larger);
    if high <= low {
        return Fit { scale: 0.0, min: -low };
    }
    let full = (high - low) / TOP;
    let x1 = x.iter().fold(0.0, |sum, x| sum + x);
    let mut rounds = [[Group::NONE; STARTS.div_ceil(LANES)]; ROUNDS];
    for start in 0..STARTS {
        let scale = full * (0.7 + 0.02 * start as f32);
        rounds[0][start / LANES].set(start % LANES, Fit { scale, min: -low });
    }
    for at in 0..STARTS.div_ceil(LANES) {
        rounds[0][at].sum::<true>(x);
        rounds[1][at] = rounds[0][at].lines(x1);
        rounds[1][at].sum::<true>(x);
        rounds[2][at] = rounds[1][at].lines(x1);
        rounds[2][at].sum::<false>(x);
    }
    // The first of equals, start by start.
    let (mut best, mut least) = (Fit { scale: full, min: -low }, f32::INFINITY);
    for start in 0..STARTS {
        for round in &rounds {
            let group = &round[start / LANES];
            if group.error[start % LANES] < least {
                (best, least) = (group.fit(start % LANES), group.error[start % LANES]);
            }
        }
    }
    best
}

impl Group {
    /// No fit in any lane: its error is below none.
    const NONE: Group = Group {
        scale: [f32::NAN; LANES],
        min: [0.0; LANES],
        error: [f32::NAN; LANES],
        q1: [0.0; LANES],
        q2: [0.0; LANES],
        xq: [0.0; LANES],
    };

    fn fit(&self, l: usize) -> Fit {
        Fit { scale: self.scale[l], min: self.min[l] }
    }

    fn set(&mut self, l: usize, fit: Fit) {
        (self.scale[l], self.min[l]) = (fit.scale, fit.min);
    }

    /// Every sum in the order of `x`; those for a line only if it is wanted. Not inlined, where the compiler mixes lanes and loses their vectors.
    #[inline(never)]
    fn sum<const LINE: bool>(&mut self, x: &[f32; BLOCK]) {
        let (scale, min) = (self.scale, self.min);
        let divisor = scale.map(divisor);
        let [mut error, mut q1, mut q2, mut xq] = [[0.0f32; LANES]; 4];
        for &x in x {
            for l in 0..LANES {
                let q = code((x + min[l]) / divisor[l]);
                let off = x - (scale[l] * q - min[l]);
                error[l] += off * off;
                if LINE {
                    q1[l] += q;
                    q2[l] += q * q;
                    xq[l] += x * q;
                }
            }
        }
        (self.error, self.q1, self.q2, self.xq) = (error, q1, q2, xq);
    }

    /// The lines through the codes, `x1` the sum of the weights; none where codes are all equal or the slope is not positive.
    fn lines(&self, x1: f32) -> Group {
        let mut lines = Group::NONE;
        for l in 0..LANES {
            let (q1, q2, xq) = (self.q1[l], self.q2[l], self.xq[l]);
            let n = BLOCK as f32;
            let det = n * q2 - q1 * q1;
            if det <= 0.0 {
                continue;
            }
            let (scale, min) = ((n * xq - q1 * x1) / det, -(q2 * x1 - q1 * xq) / det);
            // A minimum above zero cannot be stored: the line then goes through the origin.
            let line =
                if min < 0.0 { Fit { scale: xq / q2, min: 0.0 } } else { Fit { scale, min } };
            if line.scale > 0.0 && line.scale.is_finite() {
                lines.set(l, line);
            }
        }
        lines
    }
}

/// What gives code 0 for every weight where there is no scale.
fn divisor(scale: f32) -> f32 {
    if scale <= 0.0 { f32::INFINITY } else { scale }
}

/// Rounded to even between two codes. Under 2^22, adding and taking off 1.5 * 2^23 rounds as `round_ties_even` does, which is a
/// call for each lane on a CPU without SSE4.1.
#[inline(always)]
fn code(steps: f32) -> f32 {
    const ROUNDS: f32 = 12_582_912.0;
    let q = (steps + ROUNDS) - ROUNDS;
    let q = if q < 0.0 { 0.0 } else { q };
    if q > TOP { TOP } else { q }
}

/// The integer scale and minimum near `fit` with the least error under `d` and `dmin`, and the codes under them.
fn refine(x: &[f32; BLOCK], fit: Fit, d: f32, dmin: f32) -> (ScaleMin, [u8; BLOCK]) {
    let near = |value: f32, unit: f32| if unit == 0.0 { 0.0 } else { (value / unit).round() };
    let around = |at: f32| [at - 1.0, at, at + 1.0].map(|at| at.clamp(0.0, 63.0));
    let (scs, mns) = (around(near(fit.scale, d)), around(near(fit.min, dmin)));
    let fit = |sc: f32, mn: f32| Fit { scale: d * sc, min: dmin * mn };
    let mut groups = [Group::NONE; 9usize.div_ceil(LANES)];
    for at in 0..9 {
        groups[at / LANES].set(at % LANES, fit(scs[at / 3], mns[at % 3]));
    }
    groups.iter_mut().for_each(|group| group.sum::<false>(x));
    let (mut best, mut least) = ((0.0, 0.0), f32::INFINITY);
    for at in 0..9 {
        let error = groups[at / LANES].error[at % LANES];
        if error < least {
            (best, least) = ((scs[at / 3], mns[at % 3]), error);
        }
    }
    let Fit { scale, min } = fit(best.0, best.1);
    let divisor = divisor(scale);
    let codes = x.map(|x| code((x + min) / divisor) as u8);
    (ScaleMin { sc: best.0 as u8, mn: best.1 as u8 }, codes)
}

/// The 12 bytes that [`k4_scale_min`] reads.
fn pack_scale_min(scales: &[ScaleMin; 8]) -> [u8; 12] {
    let mut packed = [0u8; 12];
    for b in 0..4 {
        let (low, high) = (scales[b], scales[b + 4]);
        packed[b] = low.sc | high.sc >> 4 << 6;
        packed[b + 4] = low.mn | high.mn >> 4 << 6;
        packed[b + 8] = high.sc & 15 | high.mn << 4;
    }
    debug_assert!((0..8).all(|b| k4_scale_min(&packed, b) == scales[b]), "BUG: packing");
    packed
}
