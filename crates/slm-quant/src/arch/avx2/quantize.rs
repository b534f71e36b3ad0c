//! Activation rows to 8 bits.

use super::{Avx2, F, chunk};
use crate::rows::BLOCK;

/// As [`scalar::quantize_row`].
pub(crate) fn quantize_row(s: Avx2, x: &[f32], q: &mut [i8], d: &mut [f32], xsum: &mut [i32]) {
    s.run(
        #[inline(always)]
        move || {
            for (b, (x, q)) in x.chunks_exact(BLOCK).zip(q.chunks_exact_mut(BLOCK)).enumerate() {
                let x: [F; 4] = pulp::cast(chunk::<f32, 32>(x, 0));
                let (scale, codes, sum) = quantize_block(s, &x);
                (d[b], xsum[b]) = (scale, sum);
                q.copy_from_slice(&codes);
            }
        },
    );
}

#[inline(always)]
fn quantize_block(s: Avx2, x: &[F; 4]) -> (f32, [i8; 32], i32) {
    let sign = s.set1(-0.0);
    let mut most = s.avx._mm256_andnot_ps(sign, x[0]);
    for i in 1..4 {
        most = s.avx._mm256_max_ps(most, s.avx._mm256_andnot_ps(sign, x[i]));
    }
    let most: [f32; 8] = pulp::cast(most);
    let mut amax = most[0];
    for i in 1..8 {
        amax = if most[i] > amax { most[i] } else { amax };
    }
    let id = 127.0 / amax;
    if amax == 0.0 || !id.is_finite() {
        return (0.0, [0; 32], 0);
    }
    let factor = s.set1(id);
    // Rounds to nearest even, the mode every thread starts in.
    let mut wide = [s.bytes1(0); 4];
    for i in 0..4 {
        wide[i] = s.avx._mm256_cvtps_epi32(s.mul(x[i], factor));
    }
    let total = s.avx2._mm256_add_epi32(
        s.avx2._mm256_add_epi32(wide[0], wide[1]),
        s.avx2._mm256_add_epi32(wide[2], wide[3]),
    );
    let total: [i32; 8] = pulp::cast(total);
    let mut sum = 0;
    for i in 0..8 {
        sum += total[i];
    }
    let low = s.avx2._mm256_packs_epi32(wide[0], wide[1]);
    let high = s.avx2._mm256_packs_epi32(wide[2], wide[3]);
    let bytes = s.avx2._mm256_packs_epi16(low, high);
    // Packing works in halves: quads of bytes 0 4 1 5 2 6 3 7 back in order.
    let order = s.i32s([0, 4, 1, 5, 2, 6, 3, 7]);
    let bytes = s.avx2._mm256_permutevar8x32_epi32(bytes, order);
    (amax / 127.0, pulp::cast(bytes), sum)
}
