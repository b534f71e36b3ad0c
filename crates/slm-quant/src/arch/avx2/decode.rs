//! Decoders: whole groups of eight blocks through the same unpacking as the products.

use slm_format::Encoding;

use super::group::{self, Form, Group, nibbles, table};
use super::{Avx2, F, I, chunk};
use crate::arch::{MXFP4_VALUES, NF4_VALUES, e8m0_half, scalar};

/// As [`scalar::decode_row`].
pub(crate) fn decode_row(s: Avx2, encoding: Encoding, out: &mut [f32], row: &[u8]) {
    assert_eq!(encoding.row_bytes(out.len()), Some(row.len()), "bytes of the row");
    s.run(
        #[inline(always)]
        move || decode_piece(s, encoding, out, row),
    );
}

/// Whole blocks; `bytes` are those of `out`.
#[inline(always)]
pub(in crate::arch) fn decode_piece(s: Avx2, encoding: Encoding, out: &mut [f32], bytes: &[u8]) {
    match encoding {
        Encoding::F32 => widen::<0>(s, out, bytes),
        Encoding::F16 => widen::<1>(s, out, bytes),
        Encoding::BF16 => widen::<2>(s, out, bytes),
        Encoding::NF4 => nf4(s, out, bytes),
        Encoding::MXFP4 => mxfp4(s, out, bytes),
        Encoding::Q4_0 => groups::<group::Q4_0>(s, out, bytes),
        Encoding::Q4_1 => groups::<group::Q4_1>(s, out, bytes),
        Encoding::Q5_0 => groups::<group::Q5_0>(s, out, bytes),
        Encoding::Q5_1 => groups::<group::Q5_1>(s, out, bytes),
        Encoding::Q8_0 => groups::<group::Q8_0>(s, out, bytes),
        Encoding::IQ4_NL => groups::<group::Iq4Nl>(s, out, bytes),
        Encoding::Q2_K => groups::<group::Q2K>(s, out, bytes),
        Encoding::Q3_K => groups::<group::Q3K>(s, out, bytes),
        Encoding::Q4_K => groups::<group::Q4K>(s, out, bytes),
        Encoding::Q5_K => groups::<group::Q5K>(s, out, bytes),
        Encoding::Q6_K => groups::<group::Q6K>(s, out, bytes),
        Encoding::IQ4_XS => groups::<group::Iq4Xs>(s, out, bytes),
        _ => scalar::decode_row(encoding, out, bytes),
    }
}

/// Eight plain floats widened: F32 (0), F16 (1), BF16 (2).
#[inline(always)]
pub(super) fn widen8<const TYPE: usize>(s: Avx2, bytes: &[u8], at: usize) -> F {
    match TYPE {
        0 => pulp::cast(chunk::<u8, 32>(bytes, at)),
        1 => s.widen_f16(s.load16(bytes, at)),
        _ => s.widen_bf16(s.load16(bytes, at)),
    }
}

#[inline(always)]
fn widen<const TYPE: usize>(s: Avx2, out: &mut [f32], bytes: &[u8]) {
    let unit = if TYPE == 0 { 4 } else { 2 };
    let (head, tail) = out.as_chunks_mut::<8>();
    for (i, y) in head.iter_mut().enumerate() {
        s.store(y, widen8::<TYPE>(s, bytes, 8 * unit * i));
    }
    let encoding = [Encoding::F32, Encoding::F16, Encoding::BF16][TYPE];
    if !tail.is_empty() {
        scalar::decode_row(encoding, tail, &bytes[8 * unit * head.len()..]);
    }
}

#[inline(always)]
fn groups<K: Group>(s: Avx2, out: &mut [f32], bytes: &[u8]) {
    let (head, tail) = out.as_chunks_mut::<256>();
    for (g, y) in head.iter_mut().enumerate() {
        group256::<K>(s, y, &bytes[g * K::BYTES..][..K::BYTES]);
    }
    if !tail.is_empty() {
        let (mut padded, mut decoded) = ([0u8; 8 * 34], [0.0f32; 256]);
        let bytes = &bytes[head.len() * K::BYTES..];
        padded[..bytes.len()].copy_from_slice(bytes);
        group256::<K>(s, &mut decoded, &padded[..K::BYTES]);
        tail.copy_from_slice(&decoded[..tail.len()]);
    }
}

#[inline(always)]
fn group256<K: Group>(s: Avx2, out: &mut [f32; 256], bytes: &[u8]) {
    let w = K::unpack(s, bytes);
    let scale = |h: usize| if K::SCALED { s.mul(w.d, s.to_f32(w.sc[h])) } else { w.d };
    let minimum = |h: usize| match K::FORM {
        Form::ScaleMinK => s.mul(w.m, s.to_f32(w.mn[h])),
        _ => w.m,
    };
    let (scales, minima) = ([scale(0), scale(1)], [minimum(0), minimum(1)]);
    let offset = s.bytes1(K::OFFSET as u8);
    for i in 0..8 {
        let codes: [i8; 32] = pulp::cast(s.avx2._mm256_sub_epi8(w.w[i], offset));
        let lane = s.avx._mm256_set1_epi32(i as i32);
        for v in 0..4 {
            let d = s.avx2._mm256_permutevar8x32_ps(scales[v / 2], lane);
            let m = s.avx2._mm256_permutevar8x32_ps(minima[v / 2], lane);
            let scaled = s.mul(d, eight(s, &codes, 8 * v));
            let value = match K::FORM {
                Form::Scale => scaled,
                Form::ScaleMin => s.add(scaled, m),
                Form::ScaleMinK => s.sub(scaled, m),
            };
            let y: &mut [f32; 8] =
                out[32 * i + 8 * v..].first_chunk_mut().expect("BUG: 256 elements");
            s.store(y, value);
        }
    }
}

/// Eight signed bytes from `at` to f32.
#[inline(always)]
fn eight(s: Avx2, codes: &[i8; 32], at: usize) -> F {
    let low: [i8; 8] = chunk(codes, at);
    let wide = [i64::from_le_bytes(low.map(|q| q as u8)), 0];
    s.to_f32(s.avx2._mm256_cvtepi8_epi32(pulp::cast(wide)))
}

#[inline(always)]
fn mxfp4(s: Avx2, out: &mut [f32], bytes: &[u8]) {
    let (blocks, _) = out.as_chunks_mut::<32>();
    for (b, y) in blocks.iter_mut().enumerate() {
        let block = &bytes[17 * b..][..17];
        let d = s.set1(e8m0_half(block[0]));
        let codes: [i8; 32] = pulp::cast(table(s, &MXFP4_VALUES, nibbles(s, block, 1)));
        let (vectors, _) = y.as_chunks_mut::<8>();
        for (v, y) in vectors.iter_mut().enumerate() {
            s.store(y, s.mul(eight(s, &codes, 8 * v), d));
        }
    }
}

#[inline(always)]
fn nf4(s: Avx2, out: &mut [f32], bytes: &[u8]) {
    let low = s.load(&chunk(&NF4_VALUES, 0));
    let high = s.load(&chunk(&NF4_VALUES, 8));
    let shifts = s.i32s([4, 0, 12, 8, 20, 16, 28, 24]);
    let (blocks, _) = out.as_chunks_mut::<64>();
    for (b, y) in blocks.iter_mut().enumerate() {
        let block = &bytes[36 * b..][..36];
        let absmax = s.set1(f32::from_le_bytes(chunk(block, 0)));
        let (vectors, _) = y.as_chunks_mut::<8>();
        for (v, y) in vectors.iter_mut().enumerate() {
            let codes = s.avx._mm256_set1_epi32(i32::from_le_bytes(chunk(block, 4 + 4 * v)));
            // Bits above the nibble do not matter: permutes look at three, the blend at the fourth moved to the top.
            let codes: I = s.avx2._mm256_srlv_epi32(codes, shifts);
            let a = s.avx2._mm256_permutevar8x32_ps(low, codes);
            let b = s.avx2._mm256_permutevar8x32_ps(high, codes);
            let upper: F = pulp::cast(s.avx2._mm256_slli_epi32::<28>(codes));
            s.store(y, s.mul(s.avx._mm256_blendv_ps(a, b, upper), absmax));
        }
    }
}
