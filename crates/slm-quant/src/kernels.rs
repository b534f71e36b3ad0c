//! Every kernel by name.

use slm_format::Encoding;

use crate::arch::{is_integer_coded, scalar};
use crate::layout::BLOCK_BYTES;
use crate::matmul::{self, Ahead, Rows, Then, ThenPair};
use crate::queries::{Queries, check_rows};
use crate::{DownMatrix, Executor, QMatrix, QuantizedRows, Tier, UpMatrix, low_rank};

#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
use crate::arch::neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use crate::arch::simd128;
#[cfg(target_arch = "x86_64")]
use crate::arch::{avx2, avx512};

/// The kernels of one tier. Copying it is free.
///
/// Slices that belong together must have the lengths stated; a mismatch is the caller's bug and panics.
#[derive(Debug, Clone, Copy)]
pub struct Kernels {
    pub(crate) token: Token,
}

/// Proof that a tier can run here.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Token {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
    Neon(neon::Neon),
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Simd128(simd128::Simd128),
}

/// Calls the function of this name in the tier's module.
macro_rules! tier_call {
    ($self:expr, $name:ident($($arg:expr),* $(,)?)) => {
        match $self.token {
            $crate::kernels::Token::Scalar => $crate::arch::scalar::$name($($arg),*),
            #[cfg(target_arch = "x86_64")]
            $crate::kernels::Token::Avx2(token) => $crate::arch::avx2::$name(token, $($arg),*),
            #[cfg(target_arch = "x86_64")]
            $crate::kernels::Token::Avx512(token) => $crate::arch::avx512::$name(token, $($arg),*),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            $crate::kernels::Token::Neon(token) => $crate::arch::neon::$name(token, $($arg),*),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            $crate::kernels::Token::Simd128(token) => $crate::arch::simd128::$name(token, $($arg),*),
        }
    };
}
pub(crate) use tier_call;

impl Kernels {
    /// The kernels of the fastest tier this CPU can run.
    pub fn detect() -> Kernels {
        let fastest = Tier::ALL.into_iter().rev().find_map(Kernels::with_tier);
        fastest.unwrap_or(Kernels { token: Token::Scalar })
    }

    /// The kernels of `tier`; `None` when this CPU cannot run it.
    pub fn with_tier(tier: Tier) -> Option<Kernels> {
        match tier {
            Tier::Scalar => Some(Kernels { token: Token::Scalar }),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => avx2::Avx2::try_new().map(|token| Kernels { token: Token::Avx2(token) }),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 => {
                avx512::Avx512::try_new().map(|token| Kernels { token: Token::Avx512(token) })
            }
            #[cfg(not(target_arch = "x86_64"))]
            Tier::Avx2 | Tier::Avx512 => None,
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Tier::Neon => Some(Kernels { token: Token::Neon(neon::Neon::detect()) }),
            #[cfg(not(all(
                target_arch = "aarch64",
                target_feature = "neon",
                target_endian = "little"
            )))]
            Tier::Neon => None,
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Tier::Simd128 => Some(Kernels { token: Token::Simd128(simd128::Simd128) }),
            #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
            Tier::Simd128 => None,
        }
    }

    /// The tier of these kernels.
    pub fn tier(self) -> Tier {
        match self.token {
            Token::Scalar => Tier::Scalar,
            #[cfg(target_arch = "x86_64")]
            Token::Avx2(_) => Tier::Avx2,
            #[cfg(target_arch = "x86_64")]
            Token::Avx512(_) => Tier::Avx512,
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Token::Neon(_) => Tier::Neon,
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Token::Simd128(_) => Tier::Simd128,
        }
    }

    /// The kernel that [`Kernels::matmul`] uses for weights of `encoding`, for reports: tier and arithmetic, for example `avx2-int8`.
    ///
    /// `int8` says whether quantized activations are given; types that are not integer-coded are multiplied in f32 all the same.
    pub fn kernel_name(&self, encoding: Encoding, int8: bool) -> &'static str {
        match (self.tier(), int8 && is_integer_coded(encoding)) {
            (Tier::Scalar, true) => "scalar-int8",
            (Tier::Scalar, false) => "scalar-f32",
            (Tier::Avx2, true) => "avx2-int8",
            (Tier::Avx2, false) => "avx2-f32",
            (Tier::Avx512, true) => "avx512-int8",
            (Tier::Avx512, false) => "avx512-f32",
            (Tier::Neon, true) if self.has_dotprod() => "neon-dotprod-int8",
            (Tier::Neon, true) => "neon-int8",
            (Tier::Neon, false) => "neon-f32",
            (Tier::Simd128, true) => "simd128-int8",
            (Tier::Simd128, false) => "simd128-f32",
        }
    }

    fn has_dotprod(self) -> bool {
        #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
        if let Token::Neon(token) = self.token {
            return token.has_dotprod();
        }
        false
    }

    /// `out` (`[n_tokens, w.rows()]`) = `x` (`[n_tokens, w.cols()]`) · Wᵀ.
    ///
    /// With `xq` (the same rows in 8 bits) and an integer-coded type this is the int8 product of numerics 3, and `x` is not read; else the
    /// decoded product of numerics 4. One token, and a few, are split over `exec` by rows of `w`; sixteen and more by tokens. No heap
    /// allocation once a thread has made such products of that size before. A row's bits are those it has alone, whatever the layout of `w`.
    ///
    /// # Panics
    /// When the lengths do not fit each other.
    pub fn matmul(
        &self,
        exec: &dyn Executor,
        out: &mut [f32],
        w: &QMatrix,
        x: &[f32],
        xq: Option<&QuantizedRows>,
    ) {
        matmul::matmul(*self, exec, out, w, Rows { x, xq });
    }

    /// The int8 product of an interleaved matrix on this thread with fused multiply-adds: **not the contract's bits**. For measuring what
    /// they cost; `None` where this tier has no such kernel.
    #[cfg(feature = "free-order")]
    #[doc(hidden)]
    pub fn matmul_free_order(
        &self,
        out: &mut [f32],
        w: &QMatrix,
        xq: &QuantizedRows,
    ) -> Option<()> {
        #[cfg(target_arch = "x86_64")]
        if let Token::Avx512(token) = self.token {
            let (n_rows, n_tokens) = (w.rows(), xq.n_rows());
            assert_eq!(out.len(), n_rows * n_tokens, "output of the product");
            assert!(n_rows.is_multiple_of(crate::layout::STRIP_ROWS), "whole strips");
            assert_eq!(w.layout(), crate::Layout::Interleaved, "layout");
            let part = matmul::Part {
                first_row: 0,
                n_rows,
                first_token: 0,
                n_tokens,
                stride: n_rows,
                ahead: &[],
            };
            avx512::int8_free_order(token, out, w, part, xq);
            return Some(());
        }
        let _ = (out, w, xq);
        None
    }

    /// Up to three products of the same rows as [`Kernels::matmul`] makes them, handed out to `exec` together; `then` sees every finished
    /// piece once, on the thread that computed it; `ahead` tells what a lone token reads after a piece.
    ///
    /// No heap allocation once a thread has made such products of that size before.
    ///
    /// # Panics
    /// When the lengths do not fit each other.
    ///
    /// ```
    /// use slm_format::Encoding;
    /// use slm_quant::{Inline, Kernels, QMatrix, codec};
    ///
    /// let bytes = codec::encode(Encoding::F32, &[1.0, 2.0, 3.0, 4.0], 2)?;
    /// let (q, k) = (QMatrix::new(Encoding::F32, 2, 2, &bytes)?, QMatrix::new(Encoding::F32, 1, 2, &bytes[8..])?);
    /// let (mut a, mut b) = ([0.0; 2], [0.0; 1]);
    /// let outs = [&mut a[..], &mut b[..]];
    /// Kernels::detect().matmul_each(&Inline, outs, [&q, &k], &[1.0, 10.0], None, None, &|piece, out| {
    ///     if piece.product == 1 {
    ///         out[0] = -out[0];
    ///     }
    /// });
    /// assert_eq!((a, b), ([21.0, 43.0], [-43.0]));
    /// # Ok::<(), slm_quant::QuantError>(())
    /// ```
    pub fn matmul_each<const N: usize>(
        &self,
        exec: &dyn Executor,
        outs: [&mut [f32]; N],
        ws: [&QMatrix; N],
        x: &[f32],
        xq: Option<&QuantizedRows>,
        ahead: Option<Ahead<'_>>,
        then: Then<'_>,
    ) {
        const { assert!(N <= 3, "at most three products together") };
        let mut three: [&mut [f32]; 3] = [&mut [], &mut [], &mut []];
        let mut matrices = [None; 3];
        for (n, (out, w)) in outs.into_iter().zip(ws).enumerate() {
            three[n] = out;
            matrices[n] = Some(w);
        }
        matmul::matmul_each(*self, exec, three, matrices, Rows { x, xq }, ahead, then);
    }

    /// Two products of one shape and the same rows, in step: `then` sees the same piece of both. Else as [`Kernels::matmul_each`].
    ///
    /// # Panics
    /// When the lengths do not fit each other.
    pub fn matmul_pair(
        &self,
        exec: &dyn Executor,
        outs: [&mut [f32]; 2],
        ws: [&QMatrix; 2],
        x: &[f32],
        xq: Option<&QuantizedRows>,
        ahead: Option<Ahead<'_>>,
        then: ThenPair<'_>,
    ) {
        matmul::matmul_pair(*self, exec, outs, ws, Rows { x, xq }, ahead, then);
    }

    /// Down-projections of one token's `x`: `z_r = dot16(a_r, x)` of each matrix, handed out to `exec` where they are large. The bits of
    /// [`Kernels::matmul`] with the same rows. No heap allocation.
    ///
    /// # Panics
    /// When the lengths do not fit each other.
    pub fn low_rank_down<const N: usize>(
        &self,
        exec: &dyn Executor,
        outs: [&mut [f32]; N],
        matrices: [&DownMatrix<'_>; N],
        x: &[f32],
    ) {
        low_rank::down(*self, exec, outs, matrices, x);
    }

    /// For every token `t` and output `o` of `y` (`[n_tokens, n]`): `u = Σ_r b[first + o, r] * z[t, r]` from +0.0, `r` ascending; then
    /// `y[t, o] = y[t, o] + s * u`.
    ///
    /// `b` is the up-projection of an adapter; `y` may be any run of its rows, and is fastest in strips of 64 from a multiple of that on; `z` is
    /// `[n_tokens, b.rank()]`. No heap allocation.
    ///
    /// # Panics
    /// When the lengths do not fit each other.
    pub fn low_rank_up(
        &self,
        y: &mut [f32],
        s: f32,
        b: &UpMatrix<'_>,
        first: usize,
        z: &[f32],
        n_tokens: usize,
    ) {
        low_rank::up(*self, y, s, b, first, z, n_tokens);
    }

    /// Asks for `values` to be brought nearer while something else is computed. Changes nothing but time; does nothing on tiers without the
    /// instruction.
    pub fn prefetch<T>(&self, values: &[T]) {
        #[cfg(target_arch = "x86_64")]
        match self.token {
            Token::Avx2(token) => token.prefetch(values),
            Token::Avx512(token) => token.prefetch(values),
            _ => {}
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = values;
    }

    /// Row `row` of `w` decoded to f32, bit for bit as the encoding's own definition says. `out` is `[w.cols()]`.
    pub fn decode_row(&self, out: &mut [f32], w: &QMatrix, row: usize) {
        assert_eq!(out.len(), w.cols(), "columns of the matrix");
        if w.strip_of(row).is_none() {
            return tier_call!(self, decode_row(w.encoding(), out, w.row_bytes(row)));
        }
        let mut buffer = [0u8; BLOCK_BYTES];
        let unit = w.encoding().block_elements();
        for (piece, out) in out.chunks_mut(256).enumerate() {
            let bytes = w.blocks(row, piece * 256 / unit, out.len() / unit, &mut buffer);
            tier_call!(self, decode_row(w.encoding(), out, bytes));
        }
    }

    /// The 16-lane dot product (numerics 1).
    ///
    /// ```
    /// let kernels = slm_quant::Kernels::detect();
    /// assert_eq!(kernels.dot16(&[1.0, 2.0], &[3.0, 4.0]), 11.0);
    /// ```
    pub fn dot16(&self, a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len(), "lengths");
        tier_call!(self, dot16(a, b))
    }

    /// [`Kernels::dot16`] with `b` in f16 bits, widened exactly.
    pub fn dot16_f16(&self, a: &[f32], b: &[u16]) -> f32 {
        assert_eq!(a.len(), b.len(), "lengths");
        tier_call!(self, dot16_f16(a, b))
    }

    /// The 16-lane sum (numerics 1).
    pub fn sum16(&self, a: &[f32]) -> f32 {
        tier_call!(self, sum16(a))
    }

    /// `y_i = y_i + s * x_i`, the product rounded first.
    pub fn axpy(&self, y: &mut [f32], s: f32, x: &[f32]) {
        assert_eq!(y.len(), x.len(), "lengths");
        tier_call!(self, axpy(y, s, x))
    }

    /// [`Kernels::axpy`] with `x` in f16 bits, widened exactly.
    pub fn axpy_f16(&self, y: &mut [f32], s: f32, x: &[u16]) {
        assert_eq!(y.len(), x.len(), "lengths");
        tier_call!(self, axpy_f16(y, s, x))
    }

    /// The scores of one head over a run of positions: `out_i = dot16(q, k_i)`, where `k_i` is `k[i * stride..]`, as long as `q`.
    ///
    /// The same bits as one [`Kernels::dot16`] after the other.
    ///
    /// # Panics
    /// When the last row does not lie within `k`.
    pub fn dots16(&self, out: &mut [f32], q: &[f32], k: &[f32], stride: usize) {
        check_rows(out.len(), q.len(), k.len(), stride);
        tier_call!(self, dots16(out, q, k, stride))
    }

    /// [`Kernels::dots16`] with `k` in f16 bits, widened exactly.
    ///
    /// # Panics
    /// When the last row does not lie within `k`.
    pub fn dots16_f16(&self, out: &mut [f32], q: &[f32], k: &[u16], stride: usize) {
        check_rows(out.len(), q.len(), k.len(), stride);
        tier_call!(self, dots16_f16(out, q, k, stride))
    }

    /// Goes on with the weighted sum of one head over a run of positions: for `i` ascending, `out = out + e_i * v_i`, where `v_i` is
    /// `v[i * stride..]`, as long as `out`.
    ///
    /// The same bits as one [`Kernels::axpy`] after the other.
    ///
    /// # Panics
    /// When the last row does not lie within `v`.
    ///
    /// ```
    /// let kernels = slm_quant::Kernels::detect();
    /// let (mut out, v) = ([1.0, 0.0], [1.0, 2.0, 9.0, 3.0, 4.0, 9.0]);
    /// kernels.weighted_sum(&mut out, &[10.0, 100.0], &v, 3);
    /// assert_eq!(out, [311.0, 420.0]);
    /// ```
    pub fn weighted_sum(&self, out: &mut [f32], e: &[f32], v: &[f32], stride: usize) {
        check_rows(e.len(), out.len(), v.len(), stride);
        tier_call!(self, weighted_sum(out, e, v, stride))
    }

    /// [`Kernels::weighted_sum`] with `v` in f16 bits, widened exactly.
    ///
    /// # Panics
    /// When the last row does not lie within `v`.
    pub fn weighted_sum_f16(&self, out: &mut [f32], e: &[f32], v: &[u16], stride: usize) {
        check_rows(e.len(), out.len(), v.len(), stride);
        tier_call!(self, weighted_sum_f16(out, e, v, stride))
    }

    /// [`Kernels::dots16`] of several queries with the same positions: query `t` starts at `q[t * query_stride]`, its scores at
    /// `out[t * score_stride]`. The same bits as one query after the other; each cached number is loaded once for up to four queries.
    ///
    /// # Panics
    /// When a query, a row or a score would lie outside its slice.
    pub fn query_dots(&self, out: &mut [f32], q: &[f32], k: &[f32], shape: Queries) {
        shape.check(q.len(), out.len(), k.len());
        tier_call!(self, query_dots(out, q, k, shape))
    }

    /// [`Kernels::query_dots`] with `k` in f16 bits, widened exactly.
    ///
    /// # Panics
    /// When a query, a row or a score would lie outside its slice.
    pub fn query_dots_f16(&self, out: &mut [f32], q: &[f32], k: &[u16], shape: Queries) {
        shape.check(q.len(), out.len(), k.len());
        tier_call!(self, query_dots_f16(out, q, k, shape))
    }

    /// [`Kernels::weighted_sum`] of several queries over the same positions: the sums of query `t` start at `out[t * query_stride]`, its
    /// weights at `e[t * score_stride]`. The same bits as one query after the other.
    ///
    /// # Panics
    /// When a sum, a row or a weight would lie outside its slice.
    pub fn query_sums(&self, out: &mut [f32], e: &[f32], v: &[f32], shape: Queries) {
        shape.check(out.len(), e.len(), v.len());
        tier_call!(self, query_sums(out, e, v, shape))
    }

    /// [`Kernels::query_sums`] with `v` in f16 bits, widened exactly.
    ///
    /// # Panics
    /// When a sum, a row or a weight would lie outside its slice.
    pub fn query_sums_f16(&self, out: &mut [f32], e: &[f32], v: &[u16], shape: Queries) {
        shape.check(out.len(), e.len(), v.len());
        tier_call!(self, query_sums_f16(out, e, v, shape))
    }

    /// `y_i = y_i + x_i`.
    pub fn add(&self, y: &mut [f32], x: &[f32]) {
        assert_eq!(y.len(), x.len(), "lengths");
        tier_call!(self, add(y, x))
    }

    /// `y_i = y_i * s`.
    pub fn scale(&self, y: &mut [f32], s: f32) {
        tier_call!(self, scale(y, s))
    }

    /// `y_i = y_i / s`.
    pub fn div(&self, y: &mut [f32], s: f32) {
        tier_call!(self, div(y, s))
    }

    /// The greatest element, +0.0 for either zero; -inf for none. `x` holds no NaN.
    pub fn max(&self, x: &[f32]) -> f32 {
        tier_call!(self, max(x))
    }

    /// Whether every element is finite.
    pub fn is_finite(&self, x: &[f32]) -> bool {
        tier_call!(self, is_finite(x))
    }

    /// `x_i = exp(x_i - m)` (numerics 5).
    pub fn exp_sub(&self, x: &mut [f32], m: f32) {
        tier_call!(self, exp_sub(x, m))
    }

    /// `gate_i = silu(gate_i) * up_i` (numerics 5).
    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "lengths");
        tier_call!(self, silu_mul(gate, up))
    }

    /// `gate_i = gelu(gate_i) * up_i` (numerics 5).
    pub fn gelu_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "lengths");
        tier_call!(self, gelu_mul(gate, up))
    }

    /// One row normalised by its root mean square and multiplied by `w` (numerics 5).
    pub fn rms_norm(&self, out: &mut [f32], x: &[f32], w: &[f32], eps: f32) {
        assert_eq!(out.len(), x.len(), "lengths");
        assert_eq!(w.len(), x.len(), "lengths");
        tier_call!(self, rms_norm(out, x, w, eps))
    }

    /// Turns the pairs `(2j, 2j+1)` of one head by the angles whose cosines and sines are given, `x.len() / 2` of each.
    pub fn rope_interleaved(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert_eq!(x.len(), 2 * cos.len(), "two elements per angle");
        assert_eq!(cos.len(), sin.len(), "lengths");
        tier_call!(self, rope_interleaved(x, cos, sin))
    }

    /// Turns the pairs `(j, j + d/2)` of one head; else as [`Kernels::rope_interleaved`].
    pub fn rope_half(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert_eq!(x.len(), 2 * cos.len(), "two elements per angle");
        assert_eq!(cos.len(), sin.len(), "lengths");
        tier_call!(self, rope_half(x, cos, sin))
    }

    /// `x` rounded to f16 bits, to nearest even.
    pub fn to_f16(self, out: &mut [u16], x: &[f32]) {
        assert_eq!(out.len(), x.len(), "lengths");
        tier_call!(self, to_f16(out, x))
    }

    /// The greatest magnitudes that the integer sums `(I, M)` of one int8 block can take for `encoding` (numerics 3): both below 2^24, so
    /// their conversion to f32 is exact. Zeros for types that are not integer-coded.
    pub fn integer_bounds(encoding: Encoding) -> (i64, i64) {
        scalar::integer_bounds(encoding)
    }

    /// One finite row to 8 bits (numerics 2).
    pub(crate) fn quantize_row(
        self,
        x: &[f32],
        q: &mut [i8],
        d: &mut [f32],
        xsum: &mut [i32],
        half: &mut [i32],
    ) {
        tier_call!(self, quantize_row(x, q, d, xsum, half))
    }
}
