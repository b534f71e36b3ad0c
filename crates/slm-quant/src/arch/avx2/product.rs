//! Products. The f32 sum of an output element is one lane: eight rows run together, each adding its blocks' terms in order.

use slm_format::Encoding;

use super::decode::{decode_piece, widen8};
use super::float::dot_more;
use super::group::{self, Form, Group, Weights};
use super::{Avx2, F, I, chunk};
use crate::arch::scalar;
use crate::rows::BLOCK;
use crate::{QMatrix, QuantizedRows};

/// Rows that run together.
const ROWS: usize = 8;
/// Groups of eight blocks whose terms are kept before they are added: a row is read in runs of this length.
const RUN: usize = 8;

/// As [`scalar::int8_strip`].
pub(crate) fn int8_strip(
    s: Avx2,
    out: &mut [f32],
    w: &QMatrix,
    first_row: usize,
    xq: &QuantizedRows,
) {
    match w.encoding() {
        Encoding::Q4_0 => strip::<group::Q4_0>(s, out, w, first_row, xq),
        Encoding::Q4_1 => strip::<group::Q4_1>(s, out, w, first_row, xq),
        Encoding::Q5_0 => strip::<group::Q5_0>(s, out, w, first_row, xq),
        Encoding::Q5_1 => strip::<group::Q5_1>(s, out, w, first_row, xq),
        Encoding::Q8_0 => strip::<group::Q8_0>(s, out, w, first_row, xq),
        Encoding::IQ4_NL => strip::<group::Iq4Nl>(s, out, w, first_row, xq),
        Encoding::Q2_K => strip::<group::Q2K>(s, out, w, first_row, xq),
        Encoding::Q3_K => strip::<group::Q3K>(s, out, w, first_row, xq),
        Encoding::Q4_K => strip::<group::Q4K>(s, out, w, first_row, xq),
        Encoding::Q5_K => strip::<group::Q5K>(s, out, w, first_row, xq),
        Encoding::Q6_K => strip::<group::Q6K>(s, out, w, first_row, xq),
        Encoding::IQ4_XS => strip::<group::Iq4Xs>(s, out, w, first_row, xq),
        _ => scalar::int8_strip(out, w, first_row, xq),
    }
}

fn strip<K: Group>(s: Avx2, out: &mut [f32], w: &QMatrix, first_row: usize, xq: &QuantizedRows) {
    let n_tokens = xq.n_rows();
    let mut token = 0;
    while token < n_tokens {
        // All rows of the strip under one tile of tokens: the strip stays in the cache.
        let tile = match n_tokens - token {
            4.. => 4,
            2..4 => 2,
            _ => 1,
        };
        match tile {
            4 => tile_of::<K, 4>(s, out, w, first_row, xq, token),
            2 => tile_of::<K, 2>(s, out, w, first_row, xq, token),
            _ => tile_of::<K, 1>(s, out, w, first_row, xq, token),
        }
        token += tile;
    }
}

fn tile_of<K: Group, const T: usize>(
    s: Avx2,
    out: &mut [f32],
    w: &QMatrix,
    first_row: usize,
    xq: &QuantizedRows,
    token: usize,
) {
    s.run(
        #[inline(always)]
        move || {
            let n_tokens = xq.n_rows();
            for (r, out) in out.chunks_mut(ROWS * n_tokens).enumerate() {
                rows::<K, T>(s, out, w, first_row + r * ROWS, xq, token);
            }
        },
    );
}

/// Up to eight rows with `T` tokens from `token` on.
#[inline(always)]
fn rows<K: Group, const T: usize>(
    s: Avx2,
    out: &mut [f32],
    w: &QMatrix,
    first_row: usize,
    xq: &QuantizedRows,
    token: usize,
) {
    let n_tokens = xq.n_rows();
    let n_rows = out.len() / n_tokens;
    let n_blocks = w.cols() / BLOCK;
    let n_groups = n_blocks.div_ceil(8);
    let tokens: Tokens<T> = core::array::from_fn(|t| xq.padded(token + t));
    let mut acc = [s.set1(0.0); T];
    let mut terms = [[[s.set1(0.0); ROWS]; RUN]; T];
    let mut first = 0;
    while first < n_groups {
        let run = RUN.min(n_groups - first);
        for r in 0..n_rows {
            let row = w.row_bytes(first_row + r);
            for g in 0..run {
                let group = first + g;
                let bytes = &row[group * K::BYTES..];
                match n_blocks - group * 8 {
                    8.. => put::<K, T, 8>(s, &mut terms, g, r, bytes, &tokens, group),
                    n => {
                        // The last blocks of the row, padded: no read past the end.
                        let mut padded = [0u8; 8 * 34];
                        padded[..n * K::UNIT].copy_from_slice(&bytes[..n * K::UNIT]);
                        if n <= 2 {
                            put::<K, T, 2>(s, &mut terms, g, r, &padded, &tokens, group);
                        } else if n <= 4 {
                            put::<K, T, 4>(s, &mut terms, g, r, &padded, &tokens, group);
                        } else {
                            put::<K, T, 8>(s, &mut terms, g, r, &padded, &tokens, group);
                        }
                    }
                }
            }
        }
        for t in 0..T {
            for g in 0..run {
                let columns = transpose(s, &terms[t][g]);
                let n = (n_blocks - (first + g) * 8).min(8);
                if n == 8 {
                    for b in 0..8 {
                        acc[t] = s.add(acc[t], columns[b]);
                    }
                } else {
                    for b in 0..n {
                        acc[t] = s.add(acc[t], columns[b]);
                    }
                }
            }
        }
        first += run;
    }
    for t in 0..T {
        let lanes: [f32; 8] = pulp::cast(acc[t]);
        for r in 0..n_rows {
            out[r * n_tokens + token + t] = lanes[r];
        }
    }
}

/// Codes, scales and sums of each token of a tile, padded to whole groups.
type Tokens<'a, const T: usize> = [(&'a [i8], &'a [f32], &'a [i32]); T];

/// The terms of one row's group for `T` tokens.
#[inline(always)]
fn put<K: Group, const T: usize, const N: usize>(
    s: Avx2,
    terms: &mut [[[F; ROWS]; RUN]; T],
    g: usize,
    r: usize,
    bytes: &[u8],
    tokens: &Tokens<T>,
    group: usize,
) {
    let bytes = &bytes[..K::BYTES];
    let weights = K::unpack::<N>(s, bytes);
    for t in 0..T {
        let (q, d, xsum) = tokens[t];
        let q: &[i8; 256] = q[group * 256..].first_chunk().expect("BUG: padded to groups");
        let d = s.load(d[group * 8..].first_chunk().expect("BUG: padded to groups"));
        let xsum = s.i32s(chunk(xsum, group * 8));
        terms[t][g & (RUN - 1)][r & (ROWS - 1)] = term::<K, N>(s, &weights, q, d, xsum);
    }
}

/// The terms of eight blocks, by the contract's formula.
#[inline(always)]
fn term<K: Group, const N: usize>(s: Avx2, w: &Weights, q: &[i8; 256], dx: F, xsum: I) -> F {
    let mut sums = [s.bytes1(0); 8];
    for i in 0..N {
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
                for i in 0..N {
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
fn half_sums(s: Avx2, sums: &[I; 8]) -> [I; 2] {
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

/// As [`scalar::float_strip`].
pub(crate) fn float_strip(
    s: Avx2,
    out: &mut [f32],
    w: &QMatrix,
    first_row: usize,
    x: &[f32],
    n_tokens: usize,
) {
    s.run(
        #[inline(always)]
        move || {
            for (r, out) in out.chunks_exact_mut(n_tokens).enumerate() {
                let row = w.row_bytes(first_row + r);
                let cols = w.cols();
                let mut token = 0;
                while token + 4 <= n_tokens {
                    float_row::<4>(
                        s,
                        &mut out[token..],
                        w.encoding(),
                        row,
                        &x[token * cols..],
                        cols,
                    );
                    token += 4;
                }
                while token < n_tokens {
                    float_row::<1>(
                        s,
                        &mut out[token..],
                        w.encoding(),
                        row,
                        &x[token * cols..],
                        cols,
                    );
                    token += 1;
                }
            }
        },
    );
}

/// One row with `T` tokens.
#[inline(always)]
fn float_row<const T: usize>(
    s: Avx2,
    out: &mut [f32],
    encoding: Encoding,
    row: &[u8],
    x: &[f32],
    cols: usize,
) {
    /// Decoded at a time: whole blocks of every encoding, and whole rounds of the 16 lanes.
    const PIECE: usize = 256;
    let piece_bytes = PIECE / encoding.block_elements() * encoding.block_bytes();
    let mut decoded = [0.0f32; PIECE];
    let mut lanes = [[s.set1(0.0); 2]; T];
    for (p, bytes) in row.chunks(piece_bytes).enumerate() {
        let n = PIECE.min(cols - p * PIECE);
        decode_piece(s, encoding, &mut decoded[..n], bytes);
        for t in 0..T {
            dot_more(s, &mut lanes[t], &decoded[..n], &x[t * cols + p * PIECE..][..n]);
        }
    }
    for t in 0..T {
        out[t] = s.sum_lanes(lanes[t][0], lanes[t][1]);
    }
}

/// As [`scalar::lora_strip`].
pub(crate) fn lora_strip(s: Avx2, y: &mut [f32], f: f32, bt: &QMatrix, z: &[f32], first: usize) {
    let whole = y.len() / 8 * 8;
    let (head, tail) = y.split_at_mut(whole);
    match bt.encoding() {
        Encoding::F32 => lora_head::<0>(s, head, f, bt, z, first),
        Encoding::F16 => lora_head::<1>(s, head, f, bt, z, first),
        _ => lora_head::<2>(s, head, f, bt, z, first),
    }
    scalar::lora_strip(tail, f, bt, z, first + whole);
}

fn lora_head<const TYPE: usize>(
    s: Avx2,
    y: &mut [f32],
    f: f32,
    bt: &QMatrix,
    z: &[f32],
    first: usize,
) {
    s.run(
        #[inline(always)]
        move || {
            let wide = y.len() / 32 * 32;
            for at in (0..wide).step_by(32) {
                lora_piece::<TYPE, 4>(s, &mut y[at..], f, bt, z, first + at);
            }
            for at in (wide..y.len()).step_by(8) {
                lora_piece::<TYPE, 1>(s, &mut y[at..], f, bt, z, first + at);
            }
        },
    );
}

/// `8 * V` outputs.
#[inline(always)]
fn lora_piece<const TYPE: usize, const V: usize>(
    s: Avx2,
    y: &mut [f32],
    f: f32,
    bt: &QMatrix,
    z: &[f32],
    at: usize,
) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let mut u = [s.set1(0.0); V];
    for (r, &z) in z.iter().enumerate() {
        let row = &bt.row_bytes(r)[at * unit..][..8 * V * unit];
        let z = s.set1(z);
        for v in 0..V {
            u[v] = s.add(u[v], s.mul(z, widen8::<TYPE>(s, row, 8 * v * unit)));
        }
    }
    let f = s.set1(f);
    for v in 0..V {
        let y: &mut [f32; 8] = y[8 * v..].first_chunk_mut().expect("BUG: whole vectors");
        s.store(y, s.add(s.load(y), s.mul(f, u[v])));
    }
}

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
