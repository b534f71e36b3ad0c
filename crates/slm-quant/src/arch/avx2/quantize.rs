//! Activation rows to 8 bits, eight blocks at a time.

use core::arch::x86_64::{_CMP_LT_OQ, _CMP_NEQ_OQ};

use super::product::half_sums;
use super::{Avx2, F, I, chunk};
use crate::rows::BLOCK;

/// As [`crate::arch::scalar::quantize_row`].
pub(crate) fn quantize_row(
    s: Avx2,
    x: &[f32],
    q: &mut [i8],
    d: &mut [f32],
    xsum: &mut [i32],
    half: &mut [i32],
) {
    let groups = d.len() / 8;
    s.run(
        #[inline(always)]
        || {
            let (x, _) = x.as_chunks::<256>();
            let (q, _) = q.as_chunks_mut::<256>();
            let (d, _) = d.as_chunks_mut::<8>();
            let (xsum, _) = xsum.as_chunks_mut::<8>();
            let (half, _) = half.as_chunks_mut::<8>();
            for g in 0..groups {
                let (scales, low, total) = quantize_eight(s, &x[g], &mut q[g]);
                s.store(&mut d[g], scales);
                (half[g], xsum[g]) = (pulp::cast(low), pulp::cast(total));
            }
        },
    );
    // One to seven blocks: as a group with zeros behind.
    let (done, left) = (groups * 8, d.len() % 8);
    if left > 0 {
        s.run(
            #[inline(always)]
            || {
                let (mut all, mut codes) = ([0.0f32; 256], [0i8; 256]);
                for b in 0..left {
                    let from: [f32; BLOCK] = chunk(x, (done + b) * BLOCK);
                    all[b * BLOCK..][..BLOCK].copy_from_slice(&from);
                }
                let (scales, low, total) = quantize_eight(s, &all, &mut codes);
                let (scales, low, total): ([f32; 8], [i32; 8], [i32; 8]) =
                    (pulp::cast(scales), pulp::cast(low), pulp::cast(total));
                d[done..].copy_from_slice(&scales[..left]);
                half[done..].copy_from_slice(&low[..left]);
                xsum[done..].copy_from_slice(&total[..left]);
                q[done * BLOCK..].copy_from_slice(&codes[..left * BLOCK]);
            },
        );
    }
}

/// Scales, sums of the first halves and whole sums of eight blocks.
#[inline(always)]
fn quantize_eight(s: Avx2, x: &[f32; 256], q: &mut [i8; 256]) -> (F, I, I) {
    let avx = s.avx;
    let sign = s.set1(-0.0);
    let mut most = [sign; 8];
    for b in 0..8 {
        let magnitude = |i: usize| avx._mm256_andnot_ps(sign, s.load(&chunk(x, 32 * b + 8 * i)));
        let low = avx._mm256_max_ps(magnitude(0), magnitude(1));
        most[b] = avx._mm256_max_ps(low, avx._mm256_max_ps(magnitude(2), magnitude(3)));
    }
    let amax = greatest(s, &most);
    let id = avx._mm256_div_ps(s.set1(127.0), amax);
    // Neither zero nor so small that its inverse overflows; infinity is not less than itself.
    let nonzero = avx._mm256_cmp_ps::<_CMP_NEQ_OQ>(amax, s.set1(0.0));
    let finite = avx._mm256_cmp_ps::<_CMP_LT_OQ>(id, s.set1(f32::INFINITY));
    let used = avx._mm256_and_ps(nonzero, finite);
    let id: [f32; 8] = pulp::cast(avx._mm256_and_ps(id, used));
    let scales = avx._mm256_and_ps(avx._mm256_div_ps(amax, s.set1(127.0)), used);
    // Packing works in halves: quads of bytes 0 4 1 5 2 6 3 7 back in order.
    let order = s.i32s([0, 4, 1, 5, 2, 6, 3, 7]);
    let mut sums = [order; 8];
    for b in 0..8 {
        let factor = s.set1(id[b]);
        // Rounds to nearest even, the mode every thread starts in.
        let wide =
            |i: usize| avx._mm256_cvtps_epi32(s.mul(s.load(&chunk(x, 32 * b + 8 * i)), factor));
        let low = s.avx2._mm256_packs_epi32(wide(0), wide(1));
        let high = s.avx2._mm256_packs_epi32(wide(2), wide(3));
        let bytes = s.avx2._mm256_packs_epi16(low, high);
        let bytes = s.avx2._mm256_permutevar8x32_epi32(bytes, order);
        let codes: [i8; BLOCK] = pulp::cast(bytes);
        q[b * BLOCK..][..BLOCK].copy_from_slice(&codes);
        sums[b] = s.avx2._mm256_maddubs_epi16(s.bytes1(1), bytes);
    }
    let [low, high] = half_sums(s, &sums);
    (scales, low, s.avx2._mm256_add_epi32(low, high))
}

/// The greatest lane of each of eight vectors.
#[inline(always)]
fn greatest(s: Avx2, x: &[F; 8]) -> F {
    let avx = s.avx;
    let mut four = [x[0]; 4];
    for i in 0..4 {
        let (a, b) = (x[2 * i], x[2 * i + 1]);
        let upper = avx._mm256_permute2f128_ps::<0x31>(a, b);
        four[i] = avx._mm256_max_ps(avx._mm256_permute2f128_ps::<0x20>(a, b), upper);
    }
    let two = |a: F, b: F| {
        let upper = avx._mm256_shuffle_ps::<0xee>(a, b);
        avx._mm256_max_ps(avx._mm256_shuffle_ps::<0x44>(a, b), upper)
    };
    let (a, b) = (two(four[0], four[1]), two(four[2], four[3]));
    let upper = avx._mm256_shuffle_ps::<0xdd>(a, b);
    let most = avx._mm256_max_ps(avx._mm256_shuffle_ps::<0x88>(a, b), upper);
    s.avx2._mm256_permutevar8x32_ps(most, s.i32s([0, 4, 1, 5, 2, 6, 3, 7]))
}
