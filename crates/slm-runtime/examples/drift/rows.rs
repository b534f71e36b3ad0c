//! Everything that is done to weights, row by row: rows know nothing of each other.

use std::sync::Arc;

use rayon::prelude::*;
use serde_json::{Value, json};
use slm_format::Encoding;
use slm_overlay::Materialized;
use slm_quant::codec;
use slm_runtime::load::Base;
use slm_runtime::{Composition, Engine};

use crate::{Outcome, short};

/// How many cycles every block goes through.
const CYCLES: usize = 100;

/// Cycles whose state is kept for a pass.
pub(crate) const SNAPSHOTS: [usize; 7] = [1, 2, 5, 10, 20, 50, 100];

/// The clean base under each adapter alone.
pub(crate) struct Study {
    adapters: [Composition; 2],
}

/// Tensors as a model takes them: name, encoding, bytes.
type Tensors = Vec<(String, Encoding, Vec<u8>)>;

/// One way that the touched tensors went.
pub(crate) struct State {
    pub(crate) name: String,
    pub(crate) tensors: Tensors,
}

/// What a type makes of the model.
pub(crate) struct Made {
    /// The clean base, quantized.
    pub(crate) base: Base,
    /// How many matrices are of the type itself, and of how many.
    pub(crate) fit: [usize; 2],
    pub(crate) states: Vec<State>,
    /// Errors of weights, relative to the norm of what was meant.
    pub(crate) weights: Value,
}

/// Sums over the elements of one tensor.
#[derive(Clone)]
struct Sums {
    /// Squares of what was meant: of the base, with A, with A and B.
    meant: [f64; 3],
    /// Squares of A's delta.
    delta: f64,
    /// Squares of errors: the base, the merge, the joint merge, A then B, B then A, and between the last two.
    errors: [f64; 6],
    /// After each cycle: merged, and unmerged again.
    cycles: Vec<[f64; 2]>,
    /// Blocks that a cycle at last leaves as they are, the cycles they needed, and how many there are.
    settled: [u64; 2],
    blocks: u64,
}

impl Study {
    pub(crate) fn new(a: Composition, b: Composition) -> Study {
        Study { adapters: [a, b] }
    }

    /// What an adapter is.
    pub(crate) fn summary(&self, at: usize) -> Value {
        let adapter = self.adapters[at].stack().entries()[0].0.adapter();
        json!({ "kind": adapter.kind().name(), "rank": adapter.max_rank(), "tensors": adapter.modules().len() })
    }

    /// Sends every tensor every way. Matrices that no adapter touches are only quantized; the embedding table is Q8_0 whatever the type, as in the files
    /// that people run.
    pub(crate) fn make(
        &self,
        clean: &Arc<Base>,
        engine: &Engine,
        encoding: Encoding,
        fallback: Encoding,
    ) -> Outcome<Made> {
        let matrices =
            clean.tensors().iter().enumerate().filter(|(_, tensor)| tensor.shape().len() == 2);
        let (mut quantized, mut fit) = (Tensors::new(), [0, 0]);
        let mut all = Sums::new();
        let mut states: Vec<State> =
            names().into_iter().map(|name| State { name, tensors: Vec::new() }).collect();
        for (at, tensor) in matrices {
            let cols = tensor.shape()[0] as usize;
            let is_table = tensor.name() == "token_embd.weight";
            let own = match encoding.row_bytes(cols) {
                _ if is_table => Encoding::Q8_0,
                Some(_) => encoding,
                None => fallback,
            };
            if !is_table {
                fit[0] += usize::from(own == encoding);
                fit[1] += 1;
            }
            let w: Vec<f32> = clean
                .tensor_bytes(at)
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            let name = tensor.name().to_owned();
            let [a, b] = [0, 1].map(|n| self.adapters[n].stack().materialize(&name));
            let (a, b) = (a?, b?);
            if a.is_empty() && b.is_empty() {
                quantized.push((name, own, encode_all(own, &w, cols)));
                continue;
            }
            let rows: Vec<(Sums, Vec<Vec<u8>>)> = w
                .par_chunks_exact(cols)
                .enumerate()
                .map(|(row, w)| {
                    one_row(
                        own,
                        w,
                        delta(&a, row, cols).as_deref(),
                        delta(&b, row, cols).as_deref(),
                    )
                })
                .collect();
            let n_states = states.len() + 1;
            let mut bytes = vec![Vec::new(); n_states];
            for (sums, made) in rows {
                all.add(&sums);
                bytes.iter_mut().zip(made).for_each(|(bytes, made)| bytes.extend(made));
            }
            let mut bytes = bytes.into_iter();
            quantized.push((name.clone(), own, bytes.next().unwrap_or_default()));
            for (state, bytes) in states.iter_mut().zip(bytes) {
                state.tensors.push((name.clone(), own, bytes));
            }
        }
        let base = clean.with_tensors(quantized, engine.kernels, &*engine.exec)?;
        Ok(Made { base, fit, states, weights: all.to_json() })
    }
}

/// The names of the states, in the order in which [`one_row`] gives them after the quantized base.
fn names() -> Vec<String> {
    let mut names: Vec<String> = ["merge", "joint", "ab", "ba"].map(str::to_owned).into();
    for n in SNAPSHOTS {
        names.extend([format!("merged {n}"), format!("unmerged {n}")]);
    }
    names
}

/// A row's way through everything as `encoding`, under deltas that may leave its tensor alone. Only what an adapter gives is in f64 before it is rounded; merging and
/// unmerging are sums of f32, as tools do them.
fn one_row(
    encoding: Encoding,
    w: &[f32],
    a: Option<&[f32]>,
    b: Option<&[f32]>,
) -> (Sums, Vec<Vec<u8>>) {
    let code = |x: &[f32]| encode_all(encoding, x, x.len());
    let value = |bytes: &[u8]| {
        let mut out = vec![0.0; w.len()];
        decode(encoding, bytes, &mut out);
        out
    };
    // Into quantized weights, or out of them; a tensor that the adapter leaves alone is not touched.
    let step = |state: &[u8], delta: Option<&[f32]>, sign: f32| match delta {
        None => state.to_vec(),
        Some(delta) => {
            let sum = value(state).into_iter().zip(delta).map(|(w, d)| w + sign * d);
            code(&sum.collect::<Vec<f32>>())
        }
    };
    // What is meant, rounded once.
    let meant = |deltas: [Option<&[f32]>; 2]| -> Vec<f32> {
        let mut sum: Vec<f64> = w.iter().map(|&w| f64::from(w)).collect();
        for delta in deltas.into_iter().flatten() {
            sum.iter_mut().zip(delta).for_each(|(sum, &d)| *sum += f64::from(d));
        }
        sum.into_iter().map(|sum| sum as f32).collect()
    };
    let (with_a, with_b, with_ab) = (meant([a, None]), meant([None, b]), meant([a, b]));
    let base = code(w);
    let (merge, joint) = (code(&with_a), code(&with_ab));
    let (ab, ba) = (step(&merge, b, 1.0), step(&code(&with_b), a, 1.0));
    let (ab_value, ba_value) = (value(&ab), value(&ba));
    let mut sums = Sums::new();
    sums.meant = [norm(w), norm(&with_a), norm(&with_ab)];
    sums.delta = a.map_or(0.0, norm);
    sums.errors = [
        distance(&value(&base), w),
        distance(&value(&merge), &with_a),
        distance(&value(&joint), &with_ab),
        distance(&ab_value, &with_ab),
        distance(&ba_value, &with_ab),
        distance(&ab_value, &ba_value),
    ];
    sums.cycles = vec![[0.0; 2]; CYCLES];
    let mut states = vec![Vec::with_capacity(base.len()); 2 * SNAPSHOTS.len()];
    let (elements, bytes) = (encoding.block_elements(), encoding.block_bytes());
    for (at, state) in base.chunks_exact(bytes).enumerate() {
        let here = at * elements..(at + 1) * elements;
        let block = Block { encoding, w: &w[here.clone()], with_a: &with_a[here.clone()] };
        block.cycle(state, a.map(|a| &a[here]), &mut sums, &mut states);
    }
    let mut made = vec![base, merge, joint, ab, ba];
    made.extend(states);
    (sums, made)
}

/// Blocks know nothing of each other either.
struct Block<'a> {
    encoding: Encoding,
    w: &'a [f32],
    with_a: &'a [f32],
}

impl Block<'_> {
    /// Merges and unmerges a block over and over; `states` get it as it is merged and unmerged at each snapshot.
    fn cycle(&self, base: &[u8], a: Option<&[f32]>, sums: &mut Sums, states: &mut [Vec<u8>]) {
        let last = CYCLES;
        let (mut state, mut values) = (base.to_vec(), vec![0.0; self.w.len()]);
        let mut rest = states;
        let mut n = 0;
        while n < last {
            let merged = self.step(&state, &mut values, a, 1.0);
            let merged_error = self.error(&merged, &mut values, self.with_a);
            let unmerged = self.step(&merged, &mut values, a, -1.0);
            let errors = [merged_error, self.error(&unmerged, &mut values, self.w)];
            let settled = unmerged == state;
            // What a cycle leaves as it was, all later ones leave.
            let until = if settled { last } else { n + 1 };
            for cycle in n + 1..=until {
                sums.cycles[cycle - 1].iter_mut().zip(errors).for_each(|(sum, own)| *sum += own);
                if SNAPSHOTS.contains(&cycle) {
                    let (two, later) = std::mem::take(&mut rest).split_at_mut(2);
                    two[0].extend_from_slice(&merged);
                    two[1].extend_from_slice(&unmerged);
                    rest = later;
                }
            }
            if settled {
                sums.settled[0] += 1;
                sums.settled[1] += n as u64;
            }
            (state, n) = (unmerged, until);
        }
        sums.blocks += 1;
    }

    /// Into quantized weights, or out of them; a tensor that the adapter leaves alone is not touched.
    fn step(&self, state: &[u8], values: &mut [f32], delta: Option<&[f32]>, sign: f32) -> Vec<u8> {
        let Some(delta) = delta else { return state.to_vec() };
        decode(self.encoding, state, values);
        values.iter_mut().zip(delta).for_each(|(w, d)| *w += sign * d);
        encode_all(self.encoding, values, values.len())
    }

    fn error(&self, state: &[u8], values: &mut [f32], meant: &[f32]) -> f64 {
        decode(self.encoding, state, values);
        distance(values, meant)
    }
}

fn decode(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
    codec::decode(encoding, bytes, out).expect("BUG: what was encoded does not decode");
}

/// A row of an adapter's delta: what it adds to nothing. Low rank alone: what other kinds do depends on the base.
fn delta(change: &Materialized, row: usize, cols: usize) -> Option<Vec<f32>> {
    if change.is_empty() {
        return None;
    }
    let mut wide = vec![0.0; cols];
    change.row(row, &mut wide);
    Some(wide.into_iter().map(|value| value as f32).collect())
}

fn encode_all(encoding: Encoding, values: &[f32], cols: usize) -> Vec<u8> {
    codec::encode(encoding, values, cols).expect("BUG: a weight that its type cannot hold")
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value) * f64::from(value)).sum()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum()
}

impl Sums {
    fn new() -> Sums {
        Sums {
            meant: [0.0; 3],
            delta: 0.0,
            errors: [0.0; 6],
            cycles: Vec::new(),
            settled: [0; 2],
            blocks: 0,
        }
    }

    fn add(&mut self, other: &Sums) {
        self.meant.iter_mut().zip(other.meant).for_each(|(sum, own)| *sum += own);
        self.errors.iter_mut().zip(other.errors).for_each(|(sum, own)| *sum += own);
        self.settled.iter_mut().zip(other.settled).for_each(|(sum, own)| *sum += own);
        self.delta += other.delta;
        self.blocks += other.blocks;
        self.cycles.resize(other.cycles.len().max(self.cycles.len()), [0.0; 2]);
        for (sum, own) in self.cycles.iter_mut().zip(&other.cycles) {
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
    }

    fn to_json(&self) -> Value {
        let [base, with_a, with_ab] = self.meant;
        let relative = |error: f64, meant: f64| short((error / meant).sqrt());
        let [own, merge, joint, ab, ba, between] = self.errors;
        let cycles = |at: usize, meant: f64| -> Vec<f64> {
            self.cycles.iter().map(|errors| relative(errors[at], meant)).collect()
        };
        json!({
            "delta": relative(self.delta, base),
            "base": relative(own, base),
            "overlay": relative(own, with_a),
            "merge": relative(merge, with_a),
            "merged": cycles(0, with_a),
            "unmerged": cycles(1, base),
            "overlay_ab": relative(own, with_ab),
            "joint": relative(joint, with_ab),
            "sequential_ab": relative(ab, with_ab),
            "sequential_ba": relative(ba, with_ab),
            "ab_to_ba": relative(between, with_ab),
            "settled": short(self.settled[0] as f64 / self.blocks as f64),
            "cycles_to_settle": short(self.settled[1] as f64 / (self.settled[0] as f64).max(1.0)),
        })
    }
}
