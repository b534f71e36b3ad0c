//! The terms of one block of sixteen rows with several tokens, by the contract's formulas; fused where the contract does not matter.

use super::strips::{self, Form, Strip, Weights};
use super::{Avx512, F, I, chunk};
use crate::arch::avx2::unrolled;
use crate::rows::{BLOCK, BlockSums};

/// Adds a block's terms to the sums of `T` tokens.
#[inline(always)]
pub(super) fn add_terms<K: Strip, const FUSED: bool, const T: usize>(
    s: Avx512,
    acc: &mut [F; T],
    w: &Weights,
    codes: &[[i8; BLOCK]; T],
    sums: &[BlockSums; T],
) {
    let (mut low, mut high) = ([s.i32s1(0); T], [s.i32s1(0); T]);
    unrolled!(N in 0 1 2 3 4 5 6 7; if N < T, {
        let less = if K::HALVES { sums[N].less_32 } else { [sums[N].less(K::OFFSET), 0] };
        (low[N], high[N]) = (s.i32s1(less[0]), s.i32s1(less[1]));
    });
    unrolled!(Q in 0 4 1 5 2 6 3 7; if true, {
        // A lone sum waits for itself: two do half as long.
        let apart = K::HALVES || T == 1;
        let half = if Q / 4 == 1 && apart { &mut high } else { &mut low };
        unrolled!(N in 0 1 2 3 4 5 6 7; if N < T, {
            half[N] = s.dot4(half[N], w.w[Q], quad(s, &codes[N], Q));
        });
    });
    unrolled!(N in 0 1 2 3 4 5 6 7; if N < T, {
        let total = if K::HALVES {
            add(s, mul(s, low[N], w.sc[0]), mul(s, high[N], w.sc[1]))
        } else {
            let total = if T == 1 { add(s, low[N], high[N]) } else { low[N] };
            scaled::<K>(s, w, total)
        };
        acc[N] = plus_term::<K, FUSED>(s, acc[N], w, total, &sums[N]);
    });
}

/// A block whose products with eight tokens are summed and whose terms are not yet added.
pub(super) struct Begun<'a> {
    w: Weights,
    totals: [I; 8],
    sums: &'a [BlockSums; 8],
}

impl<'a> Begun<'a> {
    /// What comes before the first block: its terms are 0.
    #[inline(always)]
    pub(super) fn nothing(s: Avx512) -> Begun<'static> {
        static NONE: [BlockSums; 8] = [BlockSums::NONE; 8];
        Begun { w: strips::plain(s), totals: [s.i32s1(0); 8], sums: &NONE }
    }

    /// Begins the next block, and ends this one meanwhile: products and sums have units of their own, and no term waits for its products.
    #[inline(always)]
    pub(super) fn next<K: Strip, const FUSED: bool>(
        self,
        s: Avx512,
        acc: &mut [F; 8],
        w: Weights,
        codes: &[[i8; BLOCK]; 8],
        sums: &'a [BlockSums; 8],
    ) -> Begun<'a> {
        let mut totals = [s.i32s1(0); 8];
        unrolled!(N in 0 1 2 3 4 5 6 7; if true, {
            totals[N] = s.i32s1(sums[N].less(K::OFFSET));
        });
        // One vector of weights with all tokens before the next; those of 4-bit types are two halves of the same bytes.
        unrolled!(Q in 0 4 1 5 2 6 3 7; if true, {
            unrolled!(N in 0 1 2 3 4 5 6 7; if true, {
                totals[N] = s.dot4(totals[N], w.w[Q], quad(s, &codes[N], Q));
            });
            acc[Q] = self.plus::<K, FUSED>(s, acc[Q], Q);
        });
        Begun { w, totals, sums }
    }

    /// Ends the last block.
    #[inline(always)]
    pub(super) fn end<K: Strip, const FUSED: bool>(self, s: Avx512, acc: &mut [F; 8]) {
        unrolled!(N in 0 1 2 3 4 5 6 7; if true, {
            acc[N] = self.plus::<K, FUSED>(s, acc[N], N);
        });
    }

    #[inline(always)]
    fn plus<K: Strip, const FUSED: bool>(&self, s: Avx512, acc: F, token: usize) -> F {
        let total = scaled::<K>(s, &self.w, self.totals[token]);
        plus_term::<K, FUSED>(s, acc, &self.w, total, &self.sums[token])
    }
}

/// Four codes of a token, for all rows.
#[inline(always)]
fn quad(s: Avx512, codes: &[i8; BLOCK], n: usize) -> I {
    s.i32s1(pulp::cast(chunk::<i8, 4>(codes, 4 * n)))
}

#[inline(always)]
fn scaled<K: Strip>(s: Avx512, w: &Weights, total: I) -> I {
    if K::SCALED { mul(s, total, w.sc[0]) } else { total }
}

#[inline(always)]
fn plus_term<K: Strip, const FUSED: bool>(
    s: Avx512,
    acc: F,
    w: &Weights,
    total: I,
    sums: &BlockSums,
) -> F {
    let (dx, total) = (s.set1(sums.d), s.to_f32(total));
    let d = s.mul(w.d, dx);
    let minima = || s.mul(w.mn, s.set1(sums.xsum));
    if FUSED {
        let fused = |a, b, c| s.avx512f._mm512_fmadd_ps(a, b, c);
        let acc = fused(d, total, acc);
        return match K::FORM {
            Form::Scale => acc,
            Form::ScaleMin => fused(w.m, s.set1(sums.sx), acc),
            Form::ScaleMinK => s.avx512f._mm512_fnmadd_ps(s.mul(w.m, dx), minima(), acc),
        };
    }
    let scaled = s.mul(d, total);
    let term = match K::FORM {
        Form::Scale => scaled,
        Form::ScaleMin => s.add(scaled, s.mul(w.m, s.set1(sums.sx))),
        Form::ScaleMinK => s.sub(scaled, s.mul(s.mul(w.m, dx), minima())),
    };
    s.add(acc, term)
}

#[inline(always)]
fn add(s: Avx512, a: I, b: I) -> I {
    s.avx512f._mm512_add_epi32(a, b)
}

#[inline(always)]
fn mul(s: Avx512, a: I, b: I) -> I {
    s.avx512f._mm512_mullo_epi32(a, b)
}
