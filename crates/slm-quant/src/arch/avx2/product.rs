//! Int8 products. The f32 sum of an output element is one lane: eight rows run together, each adding its blocks' terms in order.

use slm_format::Encoding;

use super::group::{self, Form, Group, Weights};
use super::{Avx2, F, I, chunk};
use crate::arch::scalar;
use crate::matmul::Part;
use crate::rows::BLOCK;
use crate::{QMatrix, QuantizedRows};

/// Rows that run together.
const ROWS: usize = 8;
/// Groups of eight blocks whose terms are kept before they are added: a row is read in runs of this length.
const RUN: usize = 8;

/// As [`scalar::int8_strip`], for rows that stand by themselves.
pub(crate) fn int8_strip(
    s: Avx2,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
    xq: &QuantizedRows,
) {
    match w.encoding() {
        Encoding::Q4_0 => strip::<group::Q4_0>(s, out, w, part, xq),
        Encoding::Q4_1 => strip::<group::Q4_1>(s, out, w, part, xq),
        Encoding::Q5_0 => strip::<group::Q5_0>(s, out, w, part, xq),
        Encoding::Q5_1 => strip::<group::Q5_1>(s, out, w, part, xq),
        Encoding::Q8_0 => strip::<group::Q8_0>(s, out, w, part, xq),
        Encoding::IQ4_NL => strip::<group::Iq4Nl>(s, out, w, part, xq),
        Encoding::Q2_K => strip::<group::Q2K>(s, out, w, part, xq),
        Encoding::Q3_K => strip::<group::Q3K>(s, out, w, part, xq),
        Encoding::Q4_K => strip::<group::Q4K>(s, out, w, part, xq),
        Encoding::Q5_K => strip::<group::Q5K>(s, out, w, part, xq),
        Encoding::Q6_K => strip::<group::Q6K>(s, out, w, part, xq),
        Encoding::IQ4_XS => strip::<group::Iq4Xs>(s, out, w, part, xq),
        _ => scalar::int8_strip(out, w, part, xq),
    }
}

fn strip<K: Group>(s: Avx2, out: &mut [f32], w: &QMatrix, part: Part<'_>, xq: &QuantizedRows) {
    let mut token = 0;
    while token < part.n_tokens {
        // All rows of the part under one tile of tokens: the part stays in the cache.
        let tile = match part.n_tokens - token {
            4.. => 4,
            2..4 => 2,
            _ => 1,
        };
        match tile {
            4 => tile_of::<K, 4>(s, out, w, part, xq, token),
            2 => tile_of::<K, 2>(s, out, w, part, xq, token),
            _ => tile_of::<K, 1>(s, out, w, part, xq, token),
        }
        token += tile;
    }
}

fn tile_of<K: Group, const T: usize>(
    s: Avx2,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
    xq: &QuantizedRows,
    token: usize,
) {
    s.run(
        #[inline(always)]
        move || {
            let mut tokens: Tokens<T> = [(&[], &[], &[]); T];
            for t in 0..T {
                tokens[t] = xq.padded(part.first_token + token + t);
            }
            let last = Last::new(w.cols() / BLOCK, &tokens);
            let mut first = 0;
            while first < part.n_rows {
                let n_rows = ROWS.min(part.n_rows - first);
                let acc = rows::<K, T>(s, w, part.first_row + first, n_rows, &tokens, &last);
                for t in 0..T {
                    let lanes: [f32; 8] = pulp::cast(acc[t]);
                    let at = (token + t) * part.stride + first;
                    out[at..][..n_rows].copy_from_slice(&lanes[..n_rows]);
                }
                first += n_rows;
            }
        },
    );
}

/// Up to eight rows with `T` tokens.
#[inline(always)]
fn rows<K: Group, const T: usize>(
    s: Avx2,
    w: &QMatrix,
    first_row: usize,
    n_rows: usize,
    tokens: &Tokens<T>,
    last: &Last<T>,
) -> [F; T] {
    let n_blocks = w.cols() / BLOCK;
    let n_groups = n_blocks / 8;
    let mut acc = [s.set1(0.0); T];
    let mut terms = [[[s.set1(0.0); ROWS]; RUN]; T];
    let mut first = 0;
    while first < n_groups {
        let run = RUN.min(n_groups - first);
        for r in 0..n_rows {
            let row = w.row_bytes(first_row + r);
            for g in 0..run {
                let at = first + g;
                let weights = K::unpack(s, &row[at * K::BYTES..][..K::BYTES]);
                for t in 0..T {
                    let (q, d, xsum) = tokens[t];
                    let q = q[at * 256..].first_chunk().expect("BUG: padded to groups");
                    let d = s.load(&chunk(d, at * 8));
                    let xsum = s.i32s(chunk(xsum, at * 8));
                    terms[t][g & (RUN - 1)][r & (ROWS - 1)] = term::<K>(s, &weights, q, d, xsum);
                }
            }
        }
        for t in 0..T {
            for g in 0..run {
                let columns = transpose(s, &terms[t][g]);
                for b in 0..8 {
                    acc[t] = s.add(acc[t], columns[b]);
                }
            }
        }
        first += run;
    }
    if !n_blocks.is_multiple_of(8) {
        last_blocks::<K, T>(s, &mut acc, w, first_row, n_rows, last);
    }
    acc
}

/// Codes, scales and sums of each token of a tile, padded to whole groups.
type Tokens<'a, const T: usize> = [(&'a [i8], &'a [f32], &'a [i32]); T];

/// The activation blocks after the last whole group, once for each row of weights that shares a group.
struct Last<const T: usize> {
    q: [[i8; 256]; T],
    d: [[f32; 8]; T],
    xsum: [[i32; 8]; T],
}

impl<const T: usize> Last<T> {
    #[inline(always)]
    fn new(n_blocks: usize, tokens: &Tokens<T>) -> Last<T> {
        let mut last = Last { q: [[0; 256]; T], d: [[0.0; 8]; T], xsum: [[0; 8]; T] };
        let (start, n) = (n_blocks / 8 * 8, n_blocks % 8);
        let together = 8usize.checked_div(n).unwrap_or(0);
        for t in 0..T {
            for i in 0..together * n {
                let from = start + i % n;
                let codes: [i8; BLOCK] = chunk(tokens[t].0, from * BLOCK);
                last.q[t][i * BLOCK..][..BLOCK].copy_from_slice(&codes);
                last.d[t][i] = tokens[t].1[from];
                last.xsum[t][i] = tokens[t].2[from];
            }
        }
        last
    }
}

/// The one to seven blocks after the last whole group: those of as many rows as fit share a group.
#[inline(always)]
fn last_blocks<K: Group, const T: usize>(
    s: Avx2,
    acc: &mut [F; T],
    w: &QMatrix,
    first_row: usize,
    n_rows: usize,
    last: &Last<T>,
) {
    let n_blocks = w.cols() / BLOCK;
    let (start, n) = (n_blocks / 8 * 8, n_blocks % 8);
    let together = 8 / n;
    let mut columns = [[[0.0f32; ROWS]; 8]; T];
    let mut bytes = [0u8; 8 * 34];
    for r0 in (0..n_rows).step_by(together) {
        let rows = together.min(n_rows - r0);
        for r in 0..rows {
            let row = &w.row_bytes(first_row + r0 + r)[start * K::UNIT..];
            for b in 0..n {
                // One block at a time: a copy of constant length.
                bytes[(r * n + b) * K::UNIT..][..K::UNIT]
                    .copy_from_slice(&row[b * K::UNIT..][..K::UNIT]);
            }
        }
        let weights = K::unpack(s, &bytes[..K::BYTES]);
        for t in 0..T {
            let terms =
                term::<K>(s, &weights, &last.q[t], s.load(&last.d[t]), s.i32s(last.xsum[t]));
            let terms: [f32; 8] = pulp::cast(terms);
            for r in 0..rows {
                for b in 0..n {
                    columns[t][b][r0 + r] = terms[r * n + b];
                }
            }
        }
    }
    for t in 0..T {
        for b in 0..n {
            acc[t] = s.add(acc[t], s.load(&columns[t][b]));
        }
    }
}

/// The terms of eight blocks, by the contract's formula.
#[inline(always)]
fn term<K: Group>(s: Avx2, w: &Weights, q: &[i8; 256], dx: F, xsum: I) -> F {
    let mut sums = [s.bytes1(0); 8];
    for i in 0..8 {
        let q: I = pulp::cast(chunk::<i8, 32>(q, 32 * i));
        // |w| reaches 128 as an unsigned byte and |q| only 127, so a pair is at most 32512: no saturation.
        sums[i] = if K::SIGNED {
            let magnitude = s.avx2._mm256_abs_epi8(w.w[i]);
            s.avx2._mm256_maddubs_epi16(magnitude, s.avx2._mm256_sign_epi8(q, w.w[i]))
        } else {
            s.avx2._mm256_maddubs_epi16(w.w[i], q)
        };
    }
    let [low, high] = if K::FOUR_FIT { half_sums(s, &sums) } else { half_sums_wide(s, &sums) };
    let mut total = if K::HALVES {
        let low = s.avx2._mm256_mullo_epi32(low, w.sc[0]);
        let high = s.avx2._mm256_mullo_epi32(high, w.sc[1]);
        s.avx2._mm256_add_epi32(low, high)
    } else {
        s.avx2._mm256_add_epi32(low, high)
    };
    match K::OFFSET {
        8 => total = s.avx2._mm256_sub_epi32(total, s.avx2._mm256_slli_epi32::<3>(xsum)),
        16 => total = s.avx2._mm256_sub_epi32(total, s.avx2._mm256_slli_epi32::<4>(xsum)),
        _ => {}
    }
    if K::SCALED && !K::HALVES {
        total = s.avx2._mm256_mullo_epi32(total, w.sc[0]);
    }
    let scaled = s.mul(s.mul(w.d, dx), s.to_f32(total));
    match K::FORM {
        Form::Scale => scaled,
        Form::ScaleMin => s.add(scaled, s.mul(w.m, s.mul(dx, s.to_f32(xsum)))),
        Form::ScaleMinK => {
            let minima = if K::HALVES {
                for i in 0..8 {
                    let q: I = pulp::cast(chunk::<i8, 32>(q, 32 * i));
                    sums[i] = s.avx2._mm256_maddubs_epi16(s.bytes1(1), q);
                }
                let [low, high] = half_sums(s, &sums);
                let low = s.avx2._mm256_mullo_epi32(low, w.mn[0]);
                let high = s.avx2._mm256_mullo_epi32(high, w.mn[1]);
                s.avx2._mm256_add_epi32(low, high)
            } else {
                s.avx2._mm256_mullo_epi32(xsum, w.mn[0])
            };
            s.sub(scaled, s.mul(s.mul(w.m, dx), s.to_f32(minima)))
        }
    }
}

/// Eight vectors of i16 sums of pairs to the sums of their lower and of their upper halves, one lane per vector.
///
/// Two vectors are added as i16 first: two pairs must fit.
#[inline(always)]
pub(super) fn half_sums(s: Avx2, sums: &[I; 8]) -> [I; 2] {
    let ones = s.avx._mm256_set1_epi16(1);
    let mut two = [ones; 4];
    for i in 0..4 {
        let (a, b) = (sums[2 * i], sums[2 * i + 1]);
        let low = s.avx2._mm256_unpacklo_epi32(a, b);
        let high = s.avx2._mm256_unpackhi_epi32(a, b);
        two[i] = s.avx2._mm256_madd_epi16(s.avx2._mm256_add_epi16(low, high), ones);
    }
    quarter_sums(s, &two)
}

/// As [`half_sums`], widened to i32 before anything is added.
#[inline(always)]
fn half_sums_wide(s: Avx2, sums: &[I; 8]) -> [I; 2] {
    let ones = s.avx._mm256_set1_epi16(1);
    let mut two = [ones; 4];
    for i in 0..4 {
        let a = s.avx2._mm256_madd_epi16(sums[2 * i], ones);
        let b = s.avx2._mm256_madd_epi16(sums[2 * i + 1], ones);
        let low = s.avx2._mm256_unpacklo_epi32(a, b);
        let high = s.avx2._mm256_unpackhi_epi32(a, b);
        two[i] = s.avx2._mm256_add_epi32(low, high);
    }
    quarter_sums(s, &two)
}

/// From i32 `[a b a b | a b a b]` and so on (each half of a block still apart) to one lane per block.
#[inline(always)]
fn quarter_sums(s: Avx2, two: &[I; 4]) -> [I; 2] {
    let mut four = [two[0]; 2];
    for i in 0..2 {
        let low = s.avx2._mm256_unpacklo_epi64(two[2 * i], two[2 * i + 1]);
        let high = s.avx2._mm256_unpackhi_epi64(two[2 * i], two[2 * i + 1]);
        four[i] = s.avx2._mm256_add_epi32(low, high);
    }
    [
        s.avx2._mm256_permute2x128_si256::<0x20>(four[0], four[1]),
        s.avx2._mm256_permute2x128_si256::<0x31>(four[0], four[1]),
    ]
}

/// Rows of terms (a lane per block) to blocks of terms (a lane per row).
#[inline(always)]
fn transpose(s: Avx2, rows: &[F; 8]) -> [F; 8] {
    let [a, b, c, d, e, f, g, h] = *rows;
    let avx = s.avx;
    let (ab0, ab1) = (avx._mm256_unpacklo_ps(a, b), avx._mm256_unpackhi_ps(a, b));
    let (cd0, cd1) = (avx._mm256_unpacklo_ps(c, d), avx._mm256_unpackhi_ps(c, d));
    let (ef0, ef1) = (avx._mm256_unpacklo_ps(e, f), avx._mm256_unpackhi_ps(e, f));
    let (gh0, gh1) = (avx._mm256_unpacklo_ps(g, h), avx._mm256_unpackhi_ps(g, h));
    let four = [
        avx._mm256_shuffle_ps::<0x44>(ab0, cd0),
        avx._mm256_shuffle_ps::<0xee>(ab0, cd0),
        avx._mm256_shuffle_ps::<0x44>(ab1, cd1),
        avx._mm256_shuffle_ps::<0xee>(ab1, cd1),
    ];
    let next = [
        avx._mm256_shuffle_ps::<0x44>(ef0, gh0),
        avx._mm256_shuffle_ps::<0xee>(ef0, gh0),
        avx._mm256_shuffle_ps::<0x44>(ef1, gh1),
        avx._mm256_shuffle_ps::<0xee>(ef1, gh1),
    ];
    let mut columns = [s.set1(0.0); 8];
    for i in 0..4 {
        columns[i] = avx._mm256_permute2f128_ps::<0x20>(four[i], next[i]);
        columns[i + 4] = avx._mm256_permute2f128_ps::<0x31>(four[i], next[i]);
    }
    columns
}
