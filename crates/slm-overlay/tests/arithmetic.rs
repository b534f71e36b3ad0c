//! What a stack adds to a product: the contract's section 7, bit for bit.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{f32_bytes, ramp, tiny};
use half::{bf16, f16};
use slm_format::{Coded, Encoding};
use slm_manifest::BaseId;
use slm_overlay::{
    Adapter, BaseShape, BoundAdapter, Factor, Gates, LoneDowns, LoneScratch, LoraModule, Stack,
    TensorStack,
};
use slm_quant::{Executor, Inline, Kernels, RayonExecutor, Tier};

fn base_id() -> BaseId {
    BaseId::of_canonical(b"a base")
}

fn shape(rows: u64, cols: u64) -> BaseShape<'static> {
    BaseShape {
        tensors: BTreeMap::from([("blk.0.ffn_up.weight".to_owned(), (rows, cols))]),
        ..tiny()
    }
}

fn factor(encoding: Encoding, rows: u64, cols: u64, values: &[f32]) -> Factor {
    let bytes = match encoding {
        Encoding::F16 => {
            values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect()
        }
        Encoding::BF16 => {
            values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect()
        }
        _ => f32_bytes(values),
    };
    Factor::new("a factor", encoding, rows, cols, bytes.into()).unwrap()
}

fn bound(scale: f32, a: Factor, b: Factor) -> Arc<BoundAdapter> {
    let shape = shape(b.rows().into(), a.cols().into());
    let module = LoraModule { target: "blk.0.ffn_up.weight".into(), scale, a, b };
    Arc::new(Arc::new(Adapter::lora(vec![module]).unwrap()).bind(base_id(), &shape).unwrap())
}

fn apply(entries: &[(&Arc<BoundAdapter>, f32)], y: &[f32], x: &[f32]) -> Vec<f32> {
    let entries = entries.iter().map(|&(adapter, weight)| (Arc::clone(adapter), weight)).collect();
    let stack = Stack::new(base_id(), entries).unwrap().for_tensor("blk.0.ffn_up.weight");
    let mut y = y.to_vec();
    stack.apply(&Kernels::detect(), &Inline, &mut y, x, &mut Vec::new(), 1, Gates::NONE);
    y
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn ones_give_64_and_not_512() {
    // x = ones(4), A = ones(8, 4), B = ones(4, 8), alpha 16, r 8.
    let adapter = bound(
        16.0 / 8.0,
        factor(Encoding::F32, 8, 4, &[1.0; 32]),
        factor(Encoding::F32, 4, 8, &[1.0; 32]),
    );
    assert_eq!(apply(&[(&adapter, 1.0)], &[0.0; 4], &[1.0; 4]), [64.0; 4]);
}

#[test]
fn two_scalar_adapters_add_up() {
    let scalar = |value: f32| factor(Encoding::F32, 1, 1, &[value]);
    let (first, second) =
        (bound(1.0, scalar(10.0), scalar(0.1)), bound(1.0, scalar(2.0), scalar(0.2)));
    let y = apply(&[(&first, 0.3), (&second, 0.7)], &[0.0], &[5.0]);
    assert!((y[0] - 2.9).abs() < 1e-6, "{y:?}");
}

#[test]
fn minus_one_is_exactly_minus_the_delta_and_zero_is_nothing() {
    let a = factor(Encoding::F32, 3, 40, &ramp(120, 1));
    let adapter = bound(1.7, a, factor(Encoding::F32, 50, 3, &ramp(150, 2)));
    let x = ramp(40, 3);
    let plus = apply(&[(&adapter, 1.0)], &[0.0; 50], &x);
    let minus = apply(&[(&adapter, -1.0)], &[0.0; 50], &x);
    assert!(plus.iter().any(|&value| value != 0.0));
    assert_eq!(minus, plus.iter().map(|value| -value).collect::<Vec<_>>());
    // Adding even +0.0 would turn -0.0 into +0.0.
    for zero in [0.0, -0.0] {
        assert_eq!(bits(&apply(&[(&adapter, zero)], &[-0.0; 50], &x)), bits(&[-0.0; 50]));
        let stack = Stack::new(base_id(), vec![(Arc::clone(&adapter), zero)]).unwrap();
        assert!(stack.for_tensor("blk.0.ffn_up.weight").is_empty());
        assert_eq!(stack.id_parts()[0].1.to_bits(), 0);
    }
    assert!(Stack::empty(base_id()).for_tensor("blk.0.ffn_up.weight").is_empty());
    let stack = Stack::new(base_id(), vec![(adapter, 1.0)]).unwrap();
    assert!(
        stack.for_tensor("another").is_empty()
            && !stack.for_tensor("blk.0.ffn_up.weight").is_empty()
    );
}

/// Sixteen lanes, then pairs (l, l+8), (l, l+4), (l, l+2), (l, l+1).
fn dot16(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        lanes[i % 16] += a * b;
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

/// The contract, one token at a time, nothing shared with the crate but the factors' values.
fn reference(modules: &[(f32, LoraModule)], y: &mut [f32], x: &[f32]) {
    for (s, module) in modules {
        let (a, b): (Vec<f32>, Vec<f32>) =
            (module.a.values().collect(), module.b.values().collect());
        let (rank, cols, rows) =
            (module.rank() as usize, module.a.cols() as usize, module.b.rows() as usize);
        for (y, x) in y.chunks_exact_mut(rows).zip(x.chunks_exact(cols)) {
            let z: Vec<f32> = a.chunks_exact(cols).map(|a| dot16(a, x)).collect();
            for (y, b) in y.iter_mut().zip(b.chunks_exact(rank)) {
                let mut u = 0.0f32;
                for (b, z) in b.iter().zip(&z) {
                    u += b * z;
                }
                *y += s * u;
            }
        }
    }
}

#[test]
fn every_tier_executor_and_batch_gives_the_contract_s_bits() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let rayon = RayonExecutor::new(pool);
    let executors: [&dyn Executor; 2] = [&Inline, &rayon];
    let (rows, cols) = (77u64, 53u64);
    for (first, second) in [
        (Encoding::F32, Encoding::F16),
        (Encoding::F16, Encoding::BF16),
        (Encoding::BF16, Encoding::F32),
    ] {
        for (rank_1, rank_2) in [(1, 8), (17, 3)] {
            let make = |encoding, rank: u64, seed, scale| {
                let a = factor(encoding, rank, cols, &ramp(rank * cols, seed));
                bound(scale, a, factor(encoding, rows, rank, &ramp(rows * rank, seed + 9)))
            };
            let (one, two) = (make(first, rank_1, 1, 2.0), make(second, rank_2, 2, 0.37));
            let module = |bound: &BoundAdapter| bound.adapter().plain_lora().unwrap().remove(0);
            let parts = [(0.7f32 * 2.0, module(&one)), (-0.3f32 * 0.37, module(&two))];
            let stack = Stack::new(base_id(), vec![(one, 0.7), (two, -0.3)])
                .unwrap()
                .for_tensor("blk.0.ffn_up.weight");
            for n_tokens in [0u64, 1, 2, 7, 64] {
                let (x, base) = (ramp(n_tokens * cols, 5), ramp(n_tokens * rows, 6));
                let mut expected = base.clone();
                reference(&parts, &mut expected, &x);
                for tier in Tier::available() {
                    let kernels = Kernels::with_tier(tier).unwrap();
                    for exec in executors {
                        let mut scratch = Vec::with_capacity(stack.scratch_len(n_tokens as usize));
                        let room = (scratch.capacity(), scratch.as_ptr());
                        let mut y = base.clone();
                        let n = n_tokens as usize;
                        stack.apply(&kernels, exec, &mut y, &x, &mut scratch, n, Gates::NONE);
                        assert_eq!(bits(&y), bits(&expected), "{tier:?}, {n_tokens} tokens");
                        assert_eq!(
                            (scratch.capacity(), scratch.as_ptr()),
                            room,
                            "the scratch was grown"
                        );
                    }
                }
            }
        }
    }
}

/// Three stacks over one row, as queries, keys and values are: the second one has one adapter only.
fn three_stacks(cols: u64) -> [TensorStack; 3] {
    let make = |encoding, rows: u64, rank: u64, seed| {
        let a = factor(encoding, rank, cols, &ramp(rank * cols, seed));
        bound(0.9, a, factor(Encoding::F32, rows, rank, &ramp(rows * rank, seed + 9)))
    };
    let stack = |entries| Stack::new(base_id(), entries).unwrap().for_tensor("blk.0.ffn_up.weight");
    [
        stack(vec![
            (make(Encoding::F16, 150, 256, 1), 0.7),
            (make(Encoding::F32, 150, 5, 2), -0.3),
        ]),
        stack(vec![(make(Encoding::BF16, 64, 1, 3), 1.1)]),
        stack(vec![(make(Encoding::F32, 48, 8, 4), 1.0), (make(Encoding::F16, 48, 17, 5), 0.2)]),
    ]
}

/// 38 KB of down-projections, which one of a few threads makes, and 307 KB, which two share.
#[test]
fn threads_add_to_a_lone_token_what_one_alone_adds_whoever_makes_the_downs() {
    for cols in [64, 512] {
        let (stacks, kernels) = (three_stacks(cols), Kernels::detect());
        let whole: Vec<Vec<f32>> = [150, 64, 48].map(|rows| ramp(rows, 6)).into();
        let mut scratch = LoneScratch::default();
        for round in 0..100 {
            // Another row each time: values that were left from the last one must not do.
            let x = ramp(cols, 5 + round as u64);
            let mut expected = whole.clone();
            for (y, stack) in expected.iter_mut().zip(&stacks) {
                stack.apply(&kernels, &Inline, y, &x, &mut Vec::new(), 1, Gates::NONE);
            }
            let n_workers = [0, 1, 2, 3, 40][round % 5];
            let lone = LoneDowns::new(&stacks, &x, &mut scratch, n_workers).unwrap();
            let lone = if round / 5 % 2 == 0 { lone } else { lone.read_once() };
            let mut made = whole.clone();
            std::thread::scope(|threads| {
                for (which, y) in made.iter_mut().enumerate() {
                    let (lone, kernels) = (&lone, &kernels);
                    for (piece, y) in y.chunks_mut(32).enumerate() {
                        threads.spawn(move || {
                            if round % 2 == 0 {
                                lone.begin(kernels, (which, piece) == (0, 0));
                            }
                            lone.up(kernels, y, which, piece * 32, Gates::NONE);
                        });
                    }
                }
            });
            for (y, expected) in made.iter().zip(&expected) {
                assert_eq!(bits(y), bits(expected));
            }
        }
    }
}

#[test]
fn a_rank_of_257_is_not_shared_and_one_of_256_is() {
    for (rank, shared) in [(256, true), (257, false)] {
        let a = factor(Encoding::F32, rank, 16, &ramp(rank * 16, 1));
        let one = bound(1.0, a, factor(Encoding::F32, 4, rank, &ramp(4 * rank, 2)));
        let stack = Stack::new(base_id(), vec![(one, 1.0)]).unwrap();
        let stacks = [stack.for_tensor("blk.0.ffn_up.weight")];
        let x = ramp(16, 3);
        assert_eq!(
            LoneDowns::new(&stacks, &x, &mut LoneScratch::default(), 1).is_some(),
            shared,
            "{rank}"
        );
    }
}

#[test]
fn a_stack_is_ordered_and_a_shorter_one_adds_what_it_always_added() {
    let make = |seed| {
        let a = factor(Encoding::F32, 4, 32, &ramp(128, seed));
        bound(1.0, a, factor(Encoding::F32, 64, 4, &ramp(256, seed + 1)))
    };
    let (one, two) = (make(1), make(2));
    let (y, x) = (ramp(64, 8), ramp(32, 9));
    let only = apply(&[(&one, 0.9)], &y, &x);
    let ab = apply(&[(&one, 0.9), (&two, 1.1)], &y, &x);
    let ba = apply(&[(&two, 1.1), (&one, 0.9)], &y, &x);
    assert_ne!(bits(&ab), bits(&ba), "the order of additions must show");
    assert_ne!(bits(&ab), bits(&only));
    assert_eq!(bits(&apply(&[(&one, 0.9)], &y, &x)), bits(&only));
}

/// Two LoRAs in either order differ by rounding alone.
///
/// Each adds a number of its own to an output `y`, which does not depend on what stands there: `a` and `b`, floats. With `u = 2^-24` and
/// `fl(p + q) = (p + q)(1 + e)`, `|e| <= u`, the first order gives `((y + a)(1 + e1) + b)(1 + e2)`, which is from `y + a + b` at most
/// `u|y + a|(1 + u) + u|y + a + b|` away; the other order likewise with `b`. So the two are at most
/// `u(|y + a| + |y + b|)(1 + u) + 2u|y + a + b|` apart, which is no more than four half-steps of `|y| + |a| + |b|`.
#[test]
fn the_order_of_a_stack_changes_bits_in_rounding_only() {
    let u = f64::from(f32::EPSILON) / 2.0;
    let (mut differing, mut worst) = (0, 0.0f64);
    for seed in 1..=40u64 {
        let make = |seed, rank: u64| {
            let a = factor(Encoding::F32, rank, 32, &ramp(rank * 32, seed));
            bound(0.37, a, factor(Encoding::F32, 64, rank, &ramp(64 * rank, seed + 1)))
        };
        let (one, two) = (make(seed, 4), make(seed + 50, 7));
        let (y, x) = (ramp(64, seed + 100), ramp(32, seed + 200));
        let ab = || apply(&[(&one, 0.9), (&two, -1.1)], &y, &x);
        let ba = || apply(&[(&two, -1.1), (&one, 0.9)], &y, &x);
        let (first, second) = (ab(), ba());
        assert_eq!(bits(&first), bits(&ab()), "the first order again");
        assert_eq!(bits(&second), bits(&ba()), "the second order again");
        // What each adds: from a zero, the addition is exact.
        let zero = vec![0.0; 64];
        let (a, b) = (apply(&[(&one, 0.9)], &zero, &x), apply(&[(&two, -1.1)], &zero, &x));
        for row in 0..64 {
            let wide = |values: &[f32]| f64::from(values[row]);
            let (y, a, b) = (wide(&y), wide(&a), wide(&b));
            let most =
                u * ((y + a).abs() + (y + b).abs()) * (1.0 + u) + 2.0 * u * (y + a + b).abs();
            let apart = (wide(&first) - wide(&second)).abs();
            assert!(apart <= most, "seed {seed}, row {row}: {apart:e}, at most {most:e}");
            assert!(most <= 4.0 * u * (1.0 + u) * (y.abs() + a.abs() + b.abs()));
            differing += usize::from(apart > 0.0);
            worst = worst.max(apart / most);
        }
    }
    println!("{differing} of 2560 outputs differ, by up to {worst:.3} of the bound");
    // The bound is near what happens: half of it would not hold.
    assert!(differing > 100 && worst > 0.5, "{differing} {worst}");
}

/// Eight adapters of ranks 1 to 64 on one tensor: the contract's bits for every shorter stack too, and memory that is the sum of its parts.
#[test]
fn eight_adapters_are_eight_additions_and_eight_sizes() {
    let (rows, cols) = (96u64, 64u64);
    let ranks = [1u64, 2, 4, 8, 16, 32, 48, 64];
    let entries: Vec<(Arc<BoundAdapter>, f32)> = ranks
        .iter()
        .zip([1.0f32, -0.5, 0.25, 2.0, 0.7, -1.0, 0.1, 0.9])
        .map(|(&rank, weight)| {
            let a = factor(Encoding::F32, rank, cols, &ramp(rank * cols, rank));
            let b = factor(Encoding::F32, rows, rank, &ramp(rows * rank, rank + 1));
            (bound(1.0 / rank as f32, a, b), weight)
        })
        .collect();
    let parts: Vec<(f32, LoraModule)> = entries
        .iter()
        .map(|(bound, weight)| {
            let module = bound.adapter().plain_lora().unwrap().remove(0);
            (weight * module.scale, module)
        })
        .collect();
    let (x, base) = (ramp(3 * cols, 5), ramp(3 * rows, 6));
    for n in 0..=8 {
        let stack = Stack::new(base_id(), entries[..n].to_vec()).unwrap();
        let sizes = entries[..n].iter().map(|(bound, _)| bound.bytes());
        assert_eq!(stack.bytes(), sizes.sum::<u64>());
        let mut expected = base.clone();
        reference(&parts[..n], &mut expected, &x);
        let mut y = base.clone();
        let tensor = stack.for_tensor("blk.0.ffn_up.weight");
        tensor.apply(&Kernels::detect(), &Inline, &mut y, &x, &mut Vec::new(), 3, Gates::NONE);
        assert_eq!(bits(&y), bits(&expected), "{n} adapters");
    }
    // The factors, and their copy in the kernels' form, whose parts may be filled up to whole strips of 16 rows.
    for ((bound, _), rank) in entries.iter().zip(ranks) {
        let factors = 4 * rank * (rows + cols);
        let (least, most) = (2 * factors, 2 * factors + 4 * 16 * (rows + cols));
        assert!((least..=most).contains(&bound.bytes()), "rank {rank}: {}", bound.bytes());
    }
}

#[test]
fn stacks_that_cannot_be_are_refused_beside_their_twins() {
    let scalar = |value: f32| factor(Encoding::F32, 1, 1, &[value]);
    let (one, two) = (bound(1e30, scalar(1.0), scalar(1.0)), bound(1.0, scalar(2.0), scalar(1.0)));
    let entries = |second: &Arc<BoundAdapter>, weight| {
        vec![(Arc::clone(&one), 1.0), (Arc::clone(second), weight)]
    };
    Stack::new(base_id(), entries(&two, 1.0)).unwrap();
    let code = |base, entries| Stack::new(base, entries).unwrap_err().code();
    let other = BaseId::of_canonical(b"another base");
    assert_eq!(code(other, entries(&two, 1.0)), "base-mismatch");
    assert_eq!(code(base_id(), entries(&one, 1.0)), "duplicate-adapter");
    assert_eq!(code(base_id(), entries(&one, 0.0)), "duplicate-adapter");
    assert_eq!(code(base_id(), entries(&two, f32::NAN)), "adapter-weight");
    assert_eq!(code(base_id(), entries(&two, f32::INFINITY)), "adapter-weight");
    assert_eq!(code(base_id(), vec![(Arc::clone(&one), 1e9)]), "adapter-weight");
    Stack::new(base_id(), vec![(one, 1e8)]).unwrap();
}

#[test]
fn an_adapter_binds_only_where_every_target_fits() {
    let module = LoraModule {
        target: "blk.0.ffn_up.weight".into(),
        scale: 1.0,
        a: factor(Encoding::F32, 2, 6, &[1.0; 12]),
        b: factor(Encoding::F32, 5, 2, &[1.0; 10]),
    };
    let adapter = Arc::new(Adapter::lora(vec![module]).unwrap());
    let bound = Arc::clone(&adapter).bind(base_id(), &shape(5, 6)).unwrap();
    assert_eq!((bound.base_id(), bound.id()), (base_id(), adapter.id()));
    // Beside the factors a copy of 48 and of 40 bytes, each from a multiple of 64 on.
    assert_eq!((adapter.bytes(), bound.bytes()), (88, 88 + 64 + 64));
    let code = |shape| Arc::clone(&adapter).bind(base_id(), &shape).unwrap_err().code();
    assert_eq!(code(shape(5, 7)), "adapter-shape");
    assert_eq!(code(shape(4, 6)), "adapter-shape");
    let without = BaseShape { tensors: BTreeMap::new(), ..tiny() };
    assert_eq!(code(without), "adapter-unknown-tensor");
}
