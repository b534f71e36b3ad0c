//! A stack put into weights: the same numbers as at run time, and a refusal for what no weights can do.

mod common;

use std::sync::Arc;

use common::{f32_bytes, ramp, tiny};
use slm_format::{Coded, Encoding};
use slm_manifest::BaseId;
use slm_overlay::{
    Adapter, BaseShape, BaseWeights, Delta, DenseDelta, Dora, Factor, Gates, Ia3, Loha, Lokr,
    LokrFactor, Lora, Module, RowOrder, Side, SparseDelta, Stack, Vera,
};
use slm_quant::{Inline, Kernels};

const TARGET: &str = "blk.1.attn_q.weight";
const N: usize = 256;

struct Ramp;

impl BaseWeights for Ramp {
    fn row(&self, _tensor: &str, row: usize, out: &mut [f32]) {
        out.copy_from_slice(&ramp(out.len() as u64, row as u64 + 17));
    }

    fn encoding(&self, _tensor: &str) -> Option<Encoding> {
        Some(Encoding::F32)
    }
}

fn factor(rows: u64, cols: u64, seed: u64) -> Factor {
    let bytes = f32_bytes(&ramp(rows * cols, seed));
    Factor::new("x", Encoding::F32, rows, cols, bytes.into()).unwrap()
}

fn adapter(delta: Delta) -> Adapter {
    Adapter::new(vec![Module { target: TARGET.into(), delta }]).unwrap()
}

fn lora(bias: Option<Factor>) -> Delta {
    Delta::Lora(Lora { scale: 0.02, a: factor(8, 256, 1), b: factor(256, 8, 2), bias })
}

/// One adapter of every kind on one tensor.
fn kinds() -> Vec<(&'static str, Adapter)> {
    let n = N as u64;
    let elements: Arc<[u64]> = (0..n).map(|at| at * 251).collect();
    let rows = RowOrder::Heads { head_dim: 32 };
    let low = LokrFactor::Low(factor(32, 4, 8), factor(4, 16, 9));
    vec![
        ("lora", adapter(lora(None))),
        (
            "dora",
            adapter(Delta::Dora(Dora {
                scale: 0.02,
                a: factor(8, n, 3),
                b: factor(n, 8, 4),
                magnitude: factor(1, n, 5),
            })),
        ),
        ("ia3-in", adapter(Delta::Ia3(Ia3 { side: Side::Input, l: factor(1, n, 6) }))),
        ("ia3-out", adapter(Delta::Ia3(Ia3 { side: Side::Output, l: factor(1, n, 7) }))),
        (
            "sparse",
            adapter(Delta::Sparse(SparseDelta {
                scale: 2.0,
                rows: 256,
                cols: 256,
                indices: elements,
                values: factor(1, n, 10),
            })),
        ),
        ("dense", adapter(Delta::Dense(DenseDelta { scale: 0.5, delta: factor(n, n, 11) }))),
        (
            "loha",
            adapter(Delta::Loha(Loha {
                scale: 0.02,
                w1_a: factor(n, 4, 12),
                w1_b: factor(4, n, 13),
                w2_a: factor(n, 4, 14),
                w2_b: factor(4, n, 15),
            })),
        ),
        (
            "lokr",
            adapter(Delta::Lokr(Lokr {
                scale: 0.02,
                w1: LokrFactor::Full(factor(8, 16, 16)),
                w2: low,
                rows,
            })),
        ),
        (
            "vera",
            adapter(Delta::Vera(Vera {
                lambda_b: factor(1, n, 17),
                lambda_d: factor(1, 8, 18),
                a: factor(8, n, 19),
                b: factor(n, 8, 20),
            })),
        ),
    ]
}

fn stack(adapters: &[(&Adapter, f32)]) -> Stack {
    let base = BaseShape { weights: Some(&Ramp), ..tiny() };
    let id = BaseId::of_canonical(b"a base");
    let bind = |(adapter, weight): &(&Adapter, f32)| {
        (Arc::new(Arc::new((*adapter).clone()).bind(id, &base).unwrap()), *weight)
    };
    Stack::new(id, adapters.iter().map(bind).collect()).unwrap()
}

/// The base's product of `x` under the stack as it runs, the base's own in f64.
fn at_run_time(stack: &Stack, x: &[f32]) -> Vec<f32> {
    let tensor = stack.for_tensor(TARGET);
    let (mut x, mut z) = (x.to_vec(), vec![0.0; tensor.scratch_len(1)]);
    let kernels = Kernels::detect();
    tensor.down_scaling(&kernels, &Inline, &mut z, &mut x, 1);
    let mut y: Vec<f32> = (0..N).map(|row| dot(&base_row(row), &x) as f32).collect();
    tensor.up(&kernels, &mut y, 0, &z, 1, 0..1, Gates::NONE);
    y
}

fn base_row(row: usize) -> Vec<f64> {
    let mut w = vec![0.0; N];
    Ramp.row(TARGET, row, &mut w);
    w.into_iter().map(f64::from).collect()
}

fn dot(w: &[f64], x: &[f32]) -> f64 {
    w.iter().zip(x).map(|(w, &x)| w * f64::from(x)).sum()
}

fn baked(stack: &Stack, x: &[f32]) -> Vec<f32> {
    let materialized = stack.materialize(TARGET).unwrap();
    let row = |row| {
        let mut w = base_row(row);
        materialized.row(row, &mut w);
        dot(&w, x) as f32
    };
    (0..N).map(row).collect()
}

fn error(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(a, b)| f64::from(a - b)));
    difference / norm(&mut expected.iter().map(|&v| f64::from(v)))
}

#[test]
fn every_kind_and_every_pair_is_what_it_is_at_run_time() {
    let kinds = kinds();
    let x = ramp(N as u64, 99);
    let plain = at_run_time(&stack(&[]), &x);
    for (name, one) in &kinds {
        let alone = stack(&[(one, 0.75)]);
        let (found, expected) = (baked(&alone, &x), at_run_time(&alone, &x));
        assert!(error(&found, &expected) < 2e-6, "{name}: {:e}", error(&found, &expected));
        assert!(error(&found, &plain) > 1e-3, "{name} changes nothing");
        for (other, two) in kinds.iter().filter(|(other, _)| other != name) {
            let both = stack(&[(one, 0.75), (two, -0.5)]);
            let error = error(&baked(&both, &x), &at_run_time(&both, &x));
            assert!(error < 4e-6, "{name} below {other}: {error:e}");
        }
    }
    // Left out, and untouched.
    assert!(stack(&[(&kinds[1].1, 0.0)]).materialize(TARGET).unwrap().is_empty());
    assert!(stack(&[(&kinds[1].1, 1.0)]).materialize("blk.2.attn_q.weight").unwrap().is_empty());
}

#[test]
fn what_is_no_change_of_weights_is_refused() {
    let code = |adapter: &Adapter, weight: f32, target: &str| {
        let made = stack(&[(adapter, weight)]).materialize(target);
        made.map(drop).map_err(|error| error.code())
    };
    let zeros = Factor::new("x", Encoding::F32, 1, 256, f32_bytes(&[0.0; 256]).into()).unwrap();
    assert_eq!(code(&adapter(lora(Some(factor(1, 256, 3)))), 1.0, TARGET), Err("bake-bias"));
    assert_eq!(code(&adapter(lora(Some(factor(1, 256, 3)))), 0.0, TARGET), Ok(()));
    assert_eq!(code(&adapter(lora(Some(zeros))), 1.0, TARGET), Ok(()));
    assert_eq!(code(&adapter(lora(None)), 1.0, TARGET), Ok(()));

    let module = || vec![Module { target: TARGET.into(), delta: lora(None) }];
    let waits = Adapter::with_invocation(module(), vec![5, 6]).unwrap();
    assert_eq!(code(&waits, 1.0, TARGET), Err("bake-waits"));
    // Whatever tensor is asked for first.
    assert_eq!(code(&waits, 1.0, "blk.0.attn_k.weight"), Err("bake-waits"));
    let always = Adapter::with_invocation(module(), Vec::new()).unwrap();
    assert_eq!(code(&always, 1.0, TARGET), Ok(()));
}
