//! One head over a run of cached positions (numerics 5): row `i` of `k` and `v` starts at `i * stride`.

use super::float::{axpy, axpy_f16, dot16, dot16_f16};
use crate::queries::Queries;

pub(crate) fn dots16(out: &mut [f32], q: &[f32], k: &[f32], stride: usize) {
    for (i, y) in out.iter_mut().enumerate() {
        *y = dot16(q, &k[i * stride..][..q.len()]);
    }
}

pub(crate) fn dots16_f16(out: &mut [f32], q: &[f32], k: &[u16], stride: usize) {
    for (i, y) in out.iter_mut().enumerate() {
        *y = dot16_f16(q, &k[i * stride..][..q.len()]);
    }
}

pub(crate) fn weighted_sum(out: &mut [f32], e: &[f32], v: &[f32], stride: usize) {
    for (i, &e) in e.iter().enumerate() {
        axpy(out, e, &v[i * stride..][..out.len()]);
    }
}

pub(crate) fn weighted_sum_f16(out: &mut [f32], e: &[f32], v: &[u16], stride: usize) {
    for (i, &e) in e.iter().enumerate() {
        axpy_f16(out, e, &v[i * stride..][..out.len()]);
    }
}

pub(crate) fn query_dots(out: &mut [f32], q: &[f32], k: &[f32], shape: Queries) {
    shape.each(|t, score, n| {
        dots16(&mut out[score..][..n], &q[t..][..shape.head_dim], k, shape.kv_stride);
    });
}

pub(crate) fn query_dots_f16(out: &mut [f32], q: &[f32], k: &[u16], shape: Queries) {
    shape.each(|t, score, n| {
        dots16_f16(&mut out[score..][..n], &q[t..][..shape.head_dim], k, shape.kv_stride);
    });
}

pub(crate) fn query_sums(out: &mut [f32], e: &[f32], v: &[f32], shape: Queries) {
    shape.each(|t, score, n| {
        weighted_sum(&mut out[t..][..shape.head_dim], &e[score..][..n], v, shape.kv_stride);
    });
}

pub(crate) fn query_sums_f16(out: &mut [f32], e: &[f32], v: &[u16], shape: Queries) {
    shape.each(|t, score, n| {
        weighted_sum_f16(&mut out[t..][..shape.head_dim], &e[score..][..n], v, shape.kv_stride);
    });
}
