//! Activation rows to 8 bits.

use super::{Lanes, chunk, chunk_mut};
use crate::rows::BLOCK;

/// As [`crate::arch::scalar::quantize_row`].
pub(crate) fn quantize_row<L: Lanes>(
    s: L,
    x: &[f32],
    q: &mut [i8],
    d: &mut [f32],
    xsum: &mut [i32],
    half: &mut [i32],
) {
    let (x, _) = x.as_chunks::<BLOCK>();
    let (q, _) = q.as_chunks_mut::<BLOCK>();
    for (b, (x, q)) in x.iter().zip(q).enumerate() {
        let amax = greatest_magnitude(s, x);
        let id = 127.0 / amax;
        if amax == 0.0 || !id.is_finite() {
            (d[b], xsum[b], half[b]) = (0.0, 0, 0);
            q.fill(0);
            continue;
        }
        d[b] = amax / 127.0;
        let id = s.splat(id);
        let code = |at: usize| s.to_i32(s.round(s.mul(s.load(chunk(x, at)), id)));
        let sixteen = |at: usize| s.narrow([code(at), code(at + 4), code(at + 8), code(at + 12)]);
        let (low, high) = (sixteen(0), sixteen(16));
        s.store_bytes(chunk_mut(q, 0), low);
        s.store_bytes(chunk_mut(q, 16), high);
        half[b] = s.sum_i8(low);
        xsum[b] = half[b] + s.sum_i8(high);
    }
}

#[inline(always)]
fn greatest_magnitude<L: Lanes>(s: L, x: &[f32; BLOCK]) -> f32 {
    let magnitude = |at: usize| s.abs(s.load(chunk(x, at)));
    let mut most = magnitude(0);
    for at in (4..BLOCK).step_by(4) {
        most = s.max(most, magnitude(at));
    }
    let mut lanes = [0.0; 4];
    s.store(&mut lanes, most);
    lanes[0].max(lanes[1]).max(lanes[2].max(lanes[3]))
}
