//! A cache against flat vectors: any sequence of appends, commits and truncations gives the same rows.

use proptest::prelude::*;
use slm_format::{Coded, ErrorClass};
use slm_kv::{KvCache, KvError, KvGeometry, KvRows};
use slm_manifest::{ExecutionId, KvType};

#[derive(Debug, Clone)]
enum Op {
    /// Append to every layer in pieces of these sizes, then commit.
    Pass(Vec<u32>),
    /// Append to the first layers only, then drop it.
    Abandoned {
        n_tokens: u32,
        n_layers: usize,
    },
    Truncate(u32),
    Reserve(u32),
}

/// Rows as f32 bits, `[position][channel]`, K then V per layer.
struct Model {
    rows: Vec<[Vec<Vec<f32>>; 2]>,
    len: u32,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => prop::collection::vec(0u32..9, 1..4).prop_map(Op::Pass),
        1 => (0u32..9, 0usize..4).prop_map(|(n_tokens, n_layers)| Op::Abandoned { n_tokens, n_layers }),
        2 => (0u32..40).prop_map(Op::Truncate),
        1 => (0u32..40).prop_map(Op::Reserve),
    ];
    prop::collection::vec(op, 1..20)
}

/// IEEE binary16 nearest even of a value in its normal range, by hand: the oracle of the rounding.
fn to_f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let exponent = (magnitude >> 23) as i32 - 127;
    assert!((-14..=15).contains(&exponent), "the oracle covers normal numbers only");
    let kept = magnitude >> 13;
    let rest = magnitude & 0x1fff;
    let up = rest > 0x1000 || (rest == 0x1000 && kept & 1 == 1);
    sign | (kept + u32::from(up) - ((127 - 15) << 10)) as u16
}

/// Values whose low bits matter, so that rounding to f16 is seen.
fn fresh(counter: &mut u32) -> f32 {
    *counter += 1;
    let sign = if counter.is_multiple_of(3) { -1.0 } else { 1.0 };
    sign * (1.0 + (*counter as f32) * 0.001_220_703_1)
}

fn check(cache: &KvCache, model: &Model, written: &[u32]) {
    assert_eq!(cache.len(), model.len);
    assert!(cache.bytes_reserved() <= cache.geometry().bytes(cache.kv_type()));
    for (layer, halves) in model.rows.iter().enumerate() {
        let end = written[layer];
        for start in [0, end / 3, end] {
            let mut next = start;
            for span in cache.spans(layer, start..end).unwrap() {
                assert_eq!(span.first_position, next);
                for (half, rows) in halves.iter().zip([span.k, span.v]) {
                    let expected: Vec<f32> = half[next as usize..(next + span.n) as usize]
                        .iter()
                        .flatten()
                        .copied()
                        .collect();
                    match rows {
                        KvRows::F32(rows) => assert_eq!(rows, expected),
                        KvRows::F16(rows) => {
                            assert_eq!(
                                rows,
                                expected
                                    .iter()
                                    .map(|&value| to_f16_bits(value))
                                    .collect::<Vec<_>>()
                            );
                        }
                    }
                }
                next += span.n;
            }
            assert_eq!(next, end);
        }
        assert_eq!(cache.spans(layer, 0..end + 1).unwrap_err().code(), "kv-range");
    }
}

fn append(
    cache: &mut KvCache,
    model: &mut Model,
    layer: usize,
    n_tokens: u32,
    counter: &mut u32,
) -> Result<(), KvError> {
    let width = cache.geometry().widths()[layer] as usize;
    let mut rows = || {
        (0..n_tokens)
            .map(|_| (0..width).map(|_| fresh(counter)).collect())
            .collect::<Vec<Vec<f32>>>()
    };
    let (k, v) = (rows(), rows());
    cache.append(cache.execution(), layer, &k.concat(), &v.concat())?;
    model.rows[layer][0].extend(k);
    model.rows[layer][1].extend(v);
    Ok(())
}

fn run(widths: &[u32], page_len: u32, capacity: u32, kv_type: KvType, ops: &[Op]) {
    let execution = ExecutionId::of_canonical(b"model based");
    let geometry = KvGeometry::new(widths.to_vec(), page_len, capacity).unwrap();
    let mut cache = KvCache::new(execution, geometry, kv_type).unwrap();
    let mut model =
        Model { rows: widths.iter().map(|_| [Vec::new(), Vec::new()]).collect(), len: 0 };
    let mut counter = 0;
    for op in ops {
        match op {
            Op::Pass(pieces) => {
                let n_tokens: u32 = pieces.iter().sum();
                let fits = model.len + n_tokens <= capacity;
                let mut refused = false;
                for layer in 0..widths.len() {
                    for &piece in pieces {
                        let before = cache.bytes_reserved();
                        if let Err(error) =
                            append(&mut cache, &mut model, layer, piece, &mut counter)
                        {
                            assert_eq!(
                                (error.code(), error.class()),
                                ("kv-full", ErrorClass::Budget)
                            );
                            assert_eq!(
                                cache.bytes_reserved(),
                                before,
                                "a refused append made pages"
                            );
                            refused = true;
                            break;
                        }
                    }
                }
                assert_eq!(refused, !fits);
                match fits {
                    true => {
                        cache.commit(n_tokens).unwrap();
                        model.len += n_tokens;
                    }
                    false => {
                        assert_eq!(cache.commit(n_tokens).unwrap_err().code(), "kv-uneven");
                        cache.truncate(cache.len());
                    }
                }
            }
            Op::Abandoned { n_tokens, n_layers } => {
                let n_layers = (*n_layers).min(widths.len());
                if model.len + n_tokens <= capacity {
                    for layer in 0..n_layers {
                        append(&mut cache, &mut model, layer, *n_tokens, &mut counter).unwrap();
                    }
                    let written: Vec<u32> = (0..widths.len())
                        .map(|layer| model.len + if layer < n_layers { *n_tokens } else { 0 })
                        .collect();
                    check(&cache, &model, &written);
                    if *n_tokens > 0 && n_layers < widths.len() {
                        assert_eq!(cache.commit(*n_tokens).unwrap_err().code(), "kv-uneven");
                    }
                    cache.truncate(cache.len());
                }
            }
            Op::Truncate(len) => {
                cache.truncate(*len);
                model.len = model.len.min(*len);
            }
            Op::Reserve(n_tokens) => {
                let fits = model.len + n_tokens <= capacity;
                assert_eq!(cache.reserve(*n_tokens).is_ok(), fits);
            }
        }
        for half in model.rows.iter_mut().flatten() {
            half.truncate(model.len as usize);
        }
        check(&cache, &model, &vec![model.len; widths.len()]);
    }
}

proptest! {
    #[test]
    fn a_cache_equals_flat_vectors(
        widths in prop::collection::vec(1u32..5, 1..4),
        page_len in 1u32..9,
        capacity in 1u32..40,
        f16 in any::<bool>(),
        ops in ops(),
    ) {
        run(&widths, page_len, capacity, if f16 { KvType::F16 } else { KvType::F32 }, &ops);
    }
}

#[test]
fn the_generator_reaches_full_caches_and_page_boundaries() {
    run(
        &[3, 1, 2],
        4,
        10,
        KvType::F16,
        &[
            Op::Pass(vec![3, 2]),
            Op::Pass(vec![5]),
            Op::Pass(vec![1]),
            Op::Truncate(4),
            Op::Reserve(6),
            Op::Reserve(7),
            Op::Pass(vec![0, 6, 0]),
        ],
    );
}
