//! Many queries over one run of cached positions: a tile of the cache is widened once, in the form that needs no work across lanes, and stays
//! in the first cache while all queries pass.

use core::arch::x86_64::__m512d;

use super::attention::{Value, rounds};
use super::{Avx512, F};
use crate::queries::Queries;

/// Queries from which a tile is worth making.
const MIN_QUERIES: usize = 8;
/// Longest row of a head.
const MAX_DIM: usize = 256;
/// Floats of a tile of values: half of a first cache.
const TILE: usize = 4096;

/// As [`super::attention::query_dots`], for the first positions; gives how many positions it did, a multiple of sixteen.
///
/// The keys of sixteen positions are transposed, so that a position is a lane and each of the contract's sixteen virtual lanes is a vector:
/// their sums are plain additions.
pub(super) fn many_dots<V: Value>(
    s: Avx512,
    out: &mut [f32],
    q: &[f32],
    k: &[V],
    shape: Queries,
) -> usize {
    if shape.n_queries < MIN_QUERIES || !is_tiled(shape.head_dim) {
        return 0;
    }
    match shape.head_dim {
        64 => dots::<V, 4>(s, out, q, k, shape),
        128 => dots::<V, 8>(s, out, q, k, shape),
        256 => dots::<V, 16>(s, out, q, k, shape),
        _ => dots::<V, 0>(s, out, q, k, shape),
    }
}

/// As [`super::attention::query_sums`], for the first queries and all positions; gives how many queries it did, a multiple of eight.
pub(super) fn many_sums<V: Value>(
    s: Avx512,
    out: &mut [f32],
    e: &[f32],
    v: &[V],
    shape: Queries,
) -> usize {
    if shape.n_queries < MIN_QUERIES
        || !is_tiled(shape.head_dim)
        || !shape.head_dim.is_multiple_of(32)
    {
        return 0;
    }
    let whole = shape.n_queries / 8 * 8;
    let n_rounds = shape.head_dim / 16;
    let tile_positions = TILE / shape.head_dim;
    s.run(
        #[inline(always)]
        || {
            let mut tile = [[0.0f32; 16]; TILE / 16];
            let mut first = 0;
            while first < shape.n_positions {
                let n = tile_positions.min(shape.n_positions - first);
                for i in 0..n {
                    let row = rounds(&v[(first + i) * shape.kv_stride..], n_rounds);
                    for (to, x) in tile[i * n_rounds..][..n_rounds].iter_mut().zip(row) {
                        *to = pulp::cast(V::load16(s, x));
                    }
                }
                let tile = &tile[..n * n_rounds];
                for query in (0..whole).step_by(8) {
                    let mut weights: [&[f32]; 8] = [&[]; 8];
                    for t in 0..8 {
                        weights[t] = &e[(query + t) * shape.score_stride + first..][..n];
                    }
                    for at in (0..n_rounds).step_by(2) {
                        let first_place = query * shape.query_stride + 16 * at;
                        let mut acc = [[s.set1(0.0); 2]; 8];
                        for t in 0..8 {
                            let sums = rounds(&out[first_place + t * shape.query_stride..], 2);
                            acc[t] = [pulp::cast(sums[0]), pulp::cast(sums[1])];
                        }
                        for (i, row) in tile.chunks_exact(n_rounds).enumerate() {
                            let x: [F; 2] = [pulp::cast(row[at]), pulp::cast(row[at + 1])];
                            for t in 0..8 {
                                let e = s.set1(weights[t][i]);
                                for c in 0..2 {
                                    acc[t][c] = s.add(acc[t][c], s.mul(e, x[c]));
                                }
                            }
                        }
                        for t in 0..8 {
                            let lanes: [f32; 32] = pulp::cast(acc[t]);
                            out[first_place + t * shape.query_stride..][..32]
                                .copy_from_slice(&lanes);
                        }
                    }
                }
                first += n;
            }
        },
    );
    whole
}

fn is_tiled(head_dim: usize) -> bool {
    head_dim > 0 && head_dim <= MAX_DIM && head_dim.is_multiple_of(16)
}

/// `R` rounds of the sixteen lanes in a head, 0 where that is not known here.
fn dots<V: Value, const R: usize>(
    s: Avx512,
    out: &mut [f32],
    q: &[f32],
    k: &[V],
    shape: Queries,
) -> usize {
    let n_rounds = if R == 0 { shape.head_dim / 16 } else { R };
    let whole = shape.n_positions / 16 * 16;
    s.run(
        #[inline(always)]
        || {
            let mut short = [[0.0f32; 16]; 64];
            let mut long = [[0.0f32; 16]; MAX_DIM];
            let tile: &mut [[f32; 16]] = if R == 4 { &mut short } else { &mut long };
            for first in (0..whole).step_by(16) {
                for round in 0..n_rounds {
                    let mut rows = [s.set1(0.0); 16];
                    for r in 0..16 {
                        let row = &k[(first + r) * shape.kv_stride + 16 * round..];
                        rows[r] = V::load16(s, &rounds(row, 1)[0]);
                    }
                    transpose(s, &mut rows);
                    for (to, column) in tile[16 * round..][..16].iter_mut().zip(rows) {
                        *to = pulp::cast(column);
                    }
                }
                let tile = &tile[..16 * n_rounds];
                let mut query = 0;
                while query < shape.n_queries {
                    let (q, out) = (
                        &q[query * shape.query_stride..],
                        &mut out[query * shape.score_stride + first..],
                    );
                    if query + 4 <= shape.n_queries {
                        dots_of::<R, 4>(s, out, q, tile, n_rounds, shape);
                        query += 4;
                    } else {
                        dots_of::<R, 1>(s, out, q, tile, n_rounds, shape);
                        query += 1;
                    }
                }
            }
        },
    );
    whole
}

/// `N` queries with the sixteen positions of a tile.
#[inline(always)]
fn dots_of<const R: usize, const N: usize>(
    s: Avx512,
    out: &mut [f32],
    q: &[f32],
    tile: &[[f32; 16]],
    n_rounds: usize,
    shape: Queries,
) {
    let n_rounds = if R == 0 { n_rounds } else { R };
    let mut queries: [&[[f32; 16]]; N] = [&[]; N];
    for t in 0..N {
        queries[t] = rounds(&q[t * shape.query_stride..], n_rounds);
    }
    let tile = &tile[..16 * n_rounds];
    // Lanes l and l+8, then l+4, l+2, l+1: the pairs of the contract. A loop of four: all of it at once needs more registers
    // than there are, and eight sums are a memory that is cleared each time.
    let mut sums = [[s.set1(0.0); N]; 4];
    for l in 0..4 {
        let low =
            add(s, lane::<R, N>(s, l, &queries, tile), lane::<R, N>(s, l + 8, &queries, tile));
        let high = lane::<R, N>(s, l + 4, &queries, tile);
        let high = add(s, high, lane::<R, N>(s, l + 12, &queries, tile));
        sums[l] = add(s, low, high);
    }
    let dots = add(s, add(s, sums[0], sums[2]), add(s, sums[1], sums[3]));
    for t in 0..N {
        let dots: [f32; 16] = pulp::cast(dots[t]);
        out[t * shape.score_stride..][..16].copy_from_slice(&dots);
    }
}

/// One of the sixteen virtual lanes, of every position.
#[inline(always)]
fn lane<const R: usize, const N: usize>(
    s: Avx512,
    l: usize,
    queries: &[&[[f32; 16]]; N],
    tile: &[[f32; 16]],
) -> [F; N] {
    let n_rounds = if R == 0 { tile.len() / 16 } else { R };
    let mut sums = [s.set1(0.0); N];
    for round in 0..n_rounds {
        let k: F = pulp::cast(tile[16 * round + l]);
        for t in 0..N {
            sums[t] = s.add(sums[t], s.mul(s.set1(queries[t][round][l]), k));
        }
    }
    sums
}

#[inline(always)]
fn add<const N: usize>(s: Avx512, a: [F; N], b: [F; N]) -> [F; N] {
    let mut sums = a;
    for t in 0..N {
        sums[t] = s.add(a[t], b[t]);
    }
    sums
}

/// Rows to columns.
#[inline(always)]
fn transpose(s: Avx512, rows: &mut [F; 16]) {
    let f = s.avx512f;
    let (mut a, mut b) = ([s.set1(0.0); 16], [s.set1(0.0); 16]);
    // Pairs of rows, element by element within 128 bits.
    for i in 0..8 {
        a[2 * i] = f._mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        a[2 * i + 1] = f._mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    // Fours of rows: b[4i + j] has column 4m + j of rows 4i .. 4i+3 in its m-th 128 bits.
    for i in 0..4 {
        let low: [__m512d; 2] = [pulp::cast(a[4 * i]), pulp::cast(a[4 * i + 2])];
        let high: [__m512d; 2] = [pulp::cast(a[4 * i + 1]), pulp::cast(a[4 * i + 3])];
        b[4 * i] = pulp::cast(f._mm512_unpacklo_pd(low[0], low[1]));
        b[4 * i + 1] = pulp::cast(f._mm512_unpackhi_pd(low[0], low[1]));
        b[4 * i + 2] = pulp::cast(f._mm512_unpacklo_pd(high[0], high[1]));
        b[4 * i + 3] = pulp::cast(f._mm512_unpackhi_pd(high[0], high[1]));
    }
    // The 128-bit pieces of four vectors, themselves transposed.
    for j in 0..4 {
        let low = f._mm512_shuffle_f32x4::<0x88>(b[j], b[4 + j]);
        let high = f._mm512_shuffle_f32x4::<0xdd>(b[j], b[4 + j]);
        let low_more = f._mm512_shuffle_f32x4::<0x88>(b[8 + j], b[12 + j]);
        let high_more = f._mm512_shuffle_f32x4::<0xdd>(b[8 + j], b[12 + j]);
        rows[j] = f._mm512_shuffle_f32x4::<0x88>(low, low_more);
        rows[8 + j] = f._mm512_shuffle_f32x4::<0xdd>(low, low_more);
        rows[4 + j] = f._mm512_shuffle_f32x4::<0x88>(high, high_more);
        rows[12 + j] = f._mm512_shuffle_f32x4::<0xdd>(high, high_more);
    }
}
