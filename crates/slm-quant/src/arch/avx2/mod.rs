//! x86-64 with AVX2 and F16C.
use crate::arch::scalar;
use crate::{QMatrix, QuantizedRows};
use slm_format::Encoding;
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());
impl Avx2 {
    pub(crate) fn try_new() -> Option<Avx2> {
        None
    }
}
macro_rules! plain {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        $(pub(crate) fn $name(_: Avx2, $($arg: $ty),*) $(-> $ret)? { scalar::$name($($arg),*) })*
    };
}
plain! {
    quantize_row(x: &[f32], q: &mut [i8], d: &mut [f32], xsum: &mut [i32]);
    int8_strip(out: &mut [f32], w: &QMatrix, first_row: usize, xq: &QuantizedRows);
    float_strip(out: &mut [f32], w: &QMatrix, first_row: usize, x: &[f32], n_tokens: usize);
    lora_strip(y: &mut [f32], s: f32, bt: &QMatrix, z: &[f32], first: usize);
    decode_row(encoding: Encoding, out: &mut [f32], row: &[u8]);
    dot16(a: &[f32], b: &[f32]) -> f32;
    dot16_f16(a: &[f32], b: &[u16]) -> f32;
    sum16(a: &[f32]) -> f32;
    axpy(y: &mut [f32], s: f32, x: &[f32]);
    axpy_f16(y: &mut [f32], s: f32, x: &[u16]);
    add(y: &mut [f32], x: &[f32]);
    scale(y: &mut [f32], s: f32);
    div(y: &mut [f32], s: f32);
    max(x: &[f32]) -> f32;
    is_finite(x: &[f32]) -> bool;
    exp_sub(x: &mut [f32], m: f32);
    silu_mul(gate: &mut [f32], up: &[f32]);
    gelu_mul(gate: &mut [f32], up: &[f32]);
    rms_norm(out: &mut [f32], x: &[f32], w: &[f32], eps: f32);
    rope_interleaved(x: &mut [f32], cos: &[f32], sin: &[f32]);
    rope_half(x: &mut [f32], cos: &[f32], sin: &[f32]);
    to_f16(out: &mut [u16], x: &[f32]);
}
