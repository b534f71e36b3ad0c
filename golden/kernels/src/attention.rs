//! Scores and weighted sums over cached positions.

use slm_quant::{Queries, Tier};

use crate::checker::{Checker, GUARD, Mismatch, Summary, bits};
use crate::random::Random;

/// One head over runs of positions: each call gives what one position after the other gives on the scalar tier.
///
/// # Errors
/// The first result that has other bits than the scalar tier's.
pub fn check_attention(tier: Tier) -> Result<Summary, Mismatch> {
    let mut checker = Checker::new(tier)?;
    let scalar = checker.scalar;
    let mut random = Random(8);
    for head_dim in [1usize, 8, 16, 24, 32, 64, 72, 80, 96, 128, 256] {
        for (n, stride) in
            [(0usize, 0), (1, head_dim), (7, head_dim), (8, 3 * head_dim), (16, head_dim + 5)]
                .into_iter()
                .chain([(17, 2 * head_dim), (33, head_dim), (64, head_dim), (70, 3 * head_dim)])
        {
            // As long as needed, no longer.
            let len = n.saturating_sub(1) * stride + head_dim * n.min(1);
            let (q, e) = (random.floats(head_dim, 2.0), random.floats(n, 1.0));
            let (kv, before) = (random.floats(len, 3.0), random.floats(head_dim, 1.0));
            let mut halves = vec![0u16; len];
            scalar.to_f16(&mut halves, &kv);
            let mut dots = [vec![0.0f32; n], vec![0.0f32; n]];
            let mut sums = [before.clone(), before.clone()];
            for i in 0..n {
                let rows = i * stride..i * stride + head_dim;
                dots[0][i] = scalar.dot16(&q, &kv[rows.clone()]);
                dots[1][i] = scalar.dot16_f16(&q, &halves[rows.clone()]);
                scalar.axpy(&mut sums[0], e[i], &kv[rows.clone()]);
                scalar.axpy_f16(&mut sums[1], e[i], &halves[rows]);
            }
            let [dots, dots_f16] = dots.map(|x| bits(&x));
            let [sums, sums_f16] = sums.map(|x| bits(&x));
            for all in [&dots, &dots_f16, &sums, &sums_f16] {
                checker.digest(all);
            }
            let blank = vec![GUARD; n];
            let name = |what: &str| format!("{what} of {head_dim} x {n}, stride {stride}");
            checker.compare(
                || name("dots16"),
                &dots,
                &blank,
                |k, out| {
                    k.dots16(out, &q, &kv, stride);
                },
            )?;
            checker.compare(
                || name("dots16_f16"),
                &dots_f16,
                &blank,
                |k, out| {
                    k.dots16_f16(out, &q, &halves, stride);
                },
            )?;
            checker.compare(
                || name("weighted_sum"),
                &sums,
                &before,
                |k, out| {
                    k.weighted_sum(out, &e, &kv, stride);
                },
            )?;
            checker.compare(
                || name("weighted_sum_f16"),
                &sums_f16,
                &before,
                |k, out| {
                    k.weighted_sum_f16(out, &e, &halves, stride);
                },
            )?;
        }
    }
    Ok(checker.summary())
}

/// Several queries at once: each one's bits alone, and nothing between them is written.
///
/// # Errors
/// The first result that has other bits than the scalar tier's.
pub fn check_queries(tier: Tier) -> Result<Summary, Mismatch> {
    let mut checker = Checker::new(tier)?;
    let scalar = checker.scalar;
    let mut random = Random(9);
    for head_dim in [1usize, 16, 24, 64, 80, 128, 256] {
        for n_queries in [0, 1, 2, 3, 4, 5, 7, 8, 13, 32] {
            for n_positions in [0, 1, 3, 4, 18, 35] {
                let (query_stride, score_stride) = (head_dim + 3, n_positions + 2);
                let kv_stride = 2 * head_dim;
                let shape = Queries {
                    n_queries,
                    n_positions,
                    head_dim,
                    query_stride,
                    score_stride,
                    kv_stride,
                };
                let needed = |n: usize, stride, len| n.saturating_sub(1) * stride + len * n.min(1);
                let q = random.floats(needed(n_queries, query_stride, head_dim), 2.0);
                let e = random.floats(needed(n_queries, score_stride, n_positions), 1.0);
                let kv = random.floats(needed(n_positions, kv_stride, head_dim), 3.0);
                let mut halves = vec![0u16; kv.len()];
                scalar.to_f16(&mut halves, &kv);
                let (mut scores, mut sums) = ([e.clone(), e.clone()], [q.clone(), q.clone()]);
                for t in 0..n_queries {
                    let w = t * score_stride..t * score_stride + n_positions;
                    let x = t * query_stride..t * query_stride + head_dim;
                    let (query, weights) = (&q[x.clone()], &e[w.clone()]);
                    scalar.dots16(&mut scores[0][w.clone()], query, &kv, kv_stride);
                    scalar.dots16_f16(&mut scores[1][w], query, &halves, kv_stride);
                    scalar.weighted_sum(&mut sums[0][x.clone()], weights, &kv, kv_stride);
                    scalar.weighted_sum_f16(&mut sums[1][x], weights, &halves, kv_stride);
                }
                let [scores, scores_f16] = scores.map(|x| bits(&x));
                let [sums, sums_f16] = sums.map(|x| bits(&x));
                for all in [&scores, &scores_f16, &sums, &sums_f16] {
                    checker.digest(all);
                }
                let name = |what: &str| format!("{what} of {shape:?}");
                checker.compare(
                    || name("query_dots"),
                    &scores,
                    &e,
                    |k, out| {
                        k.query_dots(out, &q, &kv, shape);
                    },
                )?;
                checker.compare(
                    || name("query_dots_f16"),
                    &scores_f16,
                    &e,
                    |k, out| {
                        k.query_dots_f16(out, &q, &halves, shape);
                    },
                )?;
                checker.compare(
                    || name("query_sums"),
                    &sums,
                    &q,
                    |k, out| {
                        k.query_sums(out, &e, &kv, shape);
                    },
                )?;
                checker.compare(
                    || name("query_sums_f16"),
                    &sums_f16,
                    &q,
                    |k, out| {
                        k.query_sums_f16(out, &e, &halves, shape);
                    },
                )?;
            }
        }
    }
    Ok(checker.summary())
}
