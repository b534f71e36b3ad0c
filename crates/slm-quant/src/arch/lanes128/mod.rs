//! The kernels of the tiers with 128-bit vectors, once for all of them: what a tier adds is [`Lanes`] and [`Dots`].
//!
//! Four f32, or sixteen bytes, are a vector. A reduction of the contract has its sixteen lanes in four vectors; a strip of sixteen
//! interleaved rows is four groups of four rows, lane `r` of a vector being row `4g + r`'s.
//!
//! Everything below a public function is `#[inline(always)]`: the CPU features that are not everybody's hold only inside [`Dots::run`].

mod attention;
mod float;
mod interleaved;
mod low_rank;
mod plain;
mod quantize;
mod strips;

pub(crate) use attention::{
    dots16, dots16_f16, query_dots, query_dots_f16, query_sums, query_sums_f16, weighted_sum,
    weighted_sum_f16,
};
pub(crate) use float::*;
pub(crate) use interleaved::int8_interleaved;
pub(crate) use low_rank::{low_rank_down, low_rank_up};
pub(crate) use plain::{decode_row, float_strip};
pub(crate) use quantize::quantize_row;

use crate::matmul::Part;
use crate::{QMatrix, QuantizedRows};

/// Rows by themselves are few (what is left over after the strips): the scalar form.
pub(crate) fn int8_strip<L: Lanes>(
    _: L,
    out: &mut [f32],
    w: &QMatrix,
    part: Part<'_>,
    xq: &QuantizedRows,
) {
    super::scalar::int8_strip(out, w, part, xq);
}

/// What a tier can do with vectors of four f32 and vectors of four i32, or sixteen bytes.
///
/// Each arithmetic operation on f32 rounds once, to nearest even; integers wrap. Lane 0 is the first in memory.
pub(crate) trait Lanes: Copy {
    /// Four f32.
    type F: Copy;
    /// Four i32, or sixteen bytes.
    type I: Copy;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, x: &[f32; 4]) -> Self::F;
    fn store(self, to: &mut [f32; 4], x: Self::F);
    /// Four f16, the first in the lowest bits, widened exactly, subnormals and infinities included.
    fn widen_f16(self, x: u64) -> Self::F;
    /// Four f32, none a NaN, rounded to f16, to nearest even.
    fn narrow_f16(self, x: Self::F) -> [u16; 4];

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; which of two zeros is not said. No operand is a NaN; so for `max`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    fn abs(self, x: Self::F) -> Self::F;
    fn neg(self, x: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    fn round(self, x: Self::F) -> Self::F;
    /// All ones where `a < b`, else zeros.
    fn less(self, a: Self::F, b: Self::F) -> Self::I;
    /// Whether every bit is set.
    fn all(self, x: Self::I) -> bool;

    /// `a0 b0 a1 b1` and `a2 b2 a3 b3`.
    fn zip(self, a: Self::F, b: Self::F) -> [Self::F; 2];
    /// `a0 a2 b0 b2` and `a1 a3 b1 b3`.
    fn unzip(self, a: Self::F, b: Self::F) -> [Self::F; 2];
    /// Lane `j` of vector `i` to lane `i` of vector `j`.
    fn transpose(self, x: [Self::F; 4]) -> [Self::F; 4];

    /// Integers of magnitude below 2^31; what else becomes is not said.
    fn to_i32(self, x: Self::F) -> Self::I;
    /// Exact for magnitudes up to 2^24.
    fn to_f32(self, x: Self::I) -> Self::F;
    fn bits(self, x: Self::F) -> Self::I;
    fn floats(self, x: Self::I) -> Self::F;

    fn splat_i32(self, x: i32) -> Self::I;
    fn splat_u8(self, x: u8) -> Self::I;
    fn load_bytes(self, x: &[u8; 16]) -> Self::I;
    fn store_bytes(self, to: &mut [i8; 16], x: Self::I);
    /// Four u16, the first in the lowest bits, to i32.
    fn widen_u16(self, x: u64) -> Self::I;
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a` without the bits of `b`.
    fn without(self, a: Self::I, b: Self::I) -> Self::I;
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I;
    fn mul_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// Shifts of i32 lanes by a constant below 32: left, right with zeros, right with the sign.
    fn shl(self, x: Self::I, by: u32) -> Self::I;
    fn shr(self, x: Self::I, by: u32) -> Self::I;
    fn sar(self, x: Self::I, by: u32) -> Self::I;
    /// Each byte's upper four bits, as a number.
    fn high_nibbles(self, x: Self::I) -> Self::I;
    /// All ones in every byte of `x` that has a bit in common with `bits`, else zeros.
    fn tested(self, x: Self::I, bits: Self::I) -> Self::I;
    /// Byte `K` of each i32 lane in all four bytes of that lane.
    fn spread<const K: usize>(self, x: Self::I) -> Self::I;
    /// Sixteen i32, each an i8, to bytes.
    fn narrow(self, x: [Self::I; 4]) -> Self::I;
    /// The sum of the sixteen signed bytes.
    fn sum_i8(self, x: Self::I) -> i32;
}

/// Products of signed bytes, four of which are summed in each i32 lane; and the CPU features that they need.
pub(crate) trait Dots: Copy {
    type Lanes: Lanes;
    /// Sixteen elements of each of four rows.
    type Codes: Copy;
    /// Sixteen elements of one row of activations, each four for all lanes.
    type Quads: Copy;
    /// Sums that may still be spread.
    type Sums: Copy;

    fn lanes(self) -> Self::Lanes;
    /// Runs `f`, which must be `#[inline(always)]`, with the features on.
    fn run<R>(self, f: impl FnMut() -> R) -> R;
    /// `w[k]` holds elements `4k ..= 4k+3` of each of four rows.
    fn codes(self, w: [IntsOf<Self>; 4]) -> Self::Codes;
    fn quads(self, q: &[i8; 16]) -> Self::Quads;
    fn none(self) -> Self::Sums;
    /// Goes on with sixteen products for each row. Of those of one element in four, `FIT` (4 or 2) fit i16 together.
    fn dot<const FIT: usize>(
        self,
        sums: Self::Sums,
        w: &Self::Codes,
        q: &Self::Quads,
    ) -> Self::Sums;
    fn total(self, sums: Self::Sums) -> IntsOf<Self>;
}

type FloatsOf<D> = <<D as Dots>::Lanes as Lanes>::F;
type IntsOf<D> = <<D as Dots>::Lanes as Lanes>::I;

/// A number in memory.
trait Value: Copy + Default {
    /// Four of them widened.
    fn load4<L: Lanes>(s: L, x: &[Self; 4]) -> L::F;
}

impl Value for f32 {
    #[inline(always)]
    fn load4<L: Lanes>(s: L, x: &[f32; 4]) -> L::F {
        s.load(x)
    }
}

impl Value for u16 {
    #[inline(always)]
    fn load4<L: Lanes>(s: L, x: &[u16; 4]) -> L::F {
        let [a, b, c, d] = x.map(u64::from);
        s.widen_f16(a | b << 16 | c << 32 | d << 48)
    }
}

/// `N` elements from `at`; the length check folds where both are constants.
#[inline(always)]
fn chunk<T, const N: usize>(x: &[T], at: usize) -> &[T; N] {
    x[at..].first_chunk().expect("BUG: a chunk past the end")
}

/// As [`chunk`].
#[inline(always)]
fn chunk_mut<T, const N: usize>(x: &mut [T], at: usize) -> &mut [T; N] {
    x[at..].first_chunk_mut().expect("BUG: a chunk past the end")
}

/// A body once for each number below a constant bound: what is indexed by it stays in registers, which a loop does not promise.
macro_rules! unrolled {
    ($name:ident in $($n:literal)*; if $condition:expr, $body:block) => {
        $({
            const $name: usize = $n;
            if $condition $body
        })*
    };
}
use unrolled;
