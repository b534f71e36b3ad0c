//! The sum for one composition, one profile and one amount of work.

use slm_kv::KvGeometry;
use slm_manifest::{AdapterId, ExecutionProfile, KvType, ModelConfig};
use slm_overlay::BoundAdapter;
use slm_quant::QuantizedRows;

use crate::budget::Component;
use crate::composition::Composition;
use crate::error::RuntimeError;
use crate::graph::{Blocks, HEAD_BATCH, scores_len};
use crate::load::Base;
use crate::session::PAGE_LEN;

/// What the allocator, the tokenizer's tables and everything small take, in percent of the rest. The counting allocator in the tests holds it
/// against the truth.
const OVERHEAD_PERCENT: u64 = 10;

/// How much is to be computed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Positions that the cache shall hold: prompt and answer.
    pub positions: u32,
    /// Tokens of a prefill pass.
    pub chunk: usize,
    /// Whether logits of every position are wanted, and not of the last alone.
    pub all_logits: bool,
}

/// Bytes, and the work that adapters add to each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryPlan {
    /// The base's tensors as they stand in memory.
    pub base: u64,
    /// The adapters' factors, and their copies in the order that kernels read: both are resident.
    pub adapters: u64,
    /// Buffers of a pass. No matrix is dequantized as a whole, so that none is as large as one.
    pub scratch: u64,
    /// Buffers for requantized weights: always zero, an adapter's part is added to products and never to weights.
    pub requantization: u64,
    /// Pages of the cache.
    pub kv: u64,
    /// Allowance for the allocator, the tokenizer's tables and everything small.
    pub overhead: u64,
    /// Multiplications that the adapters add to each token.
    pub extra_macs: u64,
    /// Bytes that the adapters add to what each token reads.
    pub extra_bytes: u64,
}

/// What one adapter of a stack costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterCost {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub adapter: AdapterId,
    /// Bytes resident.
    pub bytes: u64,
    /// Multiplications for each token.
    pub extra_macs: u64,
    /// Bytes read for each token.
    pub extra_bytes: u64,
}

impl MemoryPlan {
    /// The plan of a composition that is resident, for one session.
    ///
    /// # Errors
    /// A cache geometry that overflows.
    pub fn of_session(
        composition: &Composition,
        profile: &ExecutionProfile,
        n_workers: usize,
        work: Workload,
    ) -> Result<MemoryPlan, RuntimeError> {
        let config = composition.base().config();
        let (mut extra_macs, mut extra_bytes) = (0, 0);
        for (bound, weight) in composition.stack().entries() {
            // Weight zero adds nothing and computes nothing.
            if *weight != 0.0 {
                extra_macs += adapter_macs(bound);
                extra_bytes += bound.adapter().bytes();
            }
        }
        let context_length = profile.context_length.unwrap_or(config.context_length);
        let plan = MemoryPlan {
            base: base_bytes(composition.base()),
            adapters: composition.stack().bytes(),
            scratch: scratch_bytes(composition, n_workers, work),
            requantization: 0,
            kv: kv_bytes(config, profile.kv, work.positions, context_length)?,
            overhead: 0,
            extra_macs,
            extra_bytes,
        };
        Ok(plan.with_overhead())
    }

    /// Bytes of all components.
    pub fn total(&self) -> u64 {
        [self.base, self.adapters, self.scratch, self.requantization, self.kv, self.overhead]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Bytes of one component.
    pub fn of(&self, component: Component) -> u64 {
        match component {
            Component::Base => self.base,
            Component::Adapters => self.adapters,
            Component::Kv => self.kv,
            Component::Scratch => self.scratch.saturating_add(self.requantization),
            Component::Total => self.total(),
        }
    }

    /// The same components, with the overhead that they make.
    pub fn with_overhead(self) -> MemoryPlan {
        let rest = MemoryPlan { overhead: 0, ..self }.total();
        MemoryPlan { overhead: rest / 100 * OVERHEAD_PERCENT, ..self }
    }
}

impl AdapterCost {
    /// The costs of a composition's adapters, bottom first.
    pub fn of(composition: &Composition) -> Vec<AdapterCost> {
        let bound = composition.stack().entries().iter();
        bound
            .zip(composition.adapters())
            .map(|((bound, _), named)| AdapterCost {
                name: named.name.clone(),
                adapter: bound.id(),
                bytes: bound.bytes(),
                extra_macs: adapter_macs(bound),
                extra_bytes: bound.adapter().bytes(),
            })
            .collect()
    }
}

/// A base's tensors in memory, each from a multiple of 64 on.
pub(crate) fn base_bytes(base: &Base) -> u64 {
    base.weight_bytes() + 64 * base.tensors().len() as u64
}

/// The buffers of a session that takes `work`.
pub(crate) fn scratch_bytes(composition: &Composition, n_workers: usize, work: Workload) -> u64 {
    let acting = composition.stack().entries().iter().filter(|(_, weight)| *weight != 0.0);
    let widest = |bound: &BoundAdapter| {
        bound.adapter().modules().iter().map(slm_overlay::Module::scratch_values).max()
    };
    let between = acting.map(|(bound, _)| widest(bound).unwrap_or(0)).sum();
    pass_bytes(composition.base().config(), n_workers, work, between)
}

fn adapter_macs(bound: &BoundAdapter) -> u64 {
    bound.adapter().modules().iter().map(slm_overlay::Module::macs).sum()
}

/// Pages that `positions` positions need: whole ones, but for the last of the context.
fn kv_bytes(
    config: &ModelConfig,
    kv: KvType,
    positions: u32,
    context_length: u32,
) -> Result<u64, RuntimeError> {
    let widths = vec![config.n_kv_heads * config.head_dim; config.n_layers as usize];
    let in_pages = positions.max(1).checked_next_multiple_of(PAGE_LEN).unwrap_or(u32::MAX);
    Ok(KvGeometry::new(widths, PAGE_LEN, in_pages.min(context_length))?.bytes(kv))
}

/// The buffers of a session that takes `work`, on as many threads: those of the whole pass once, those of a block for each thread.
fn pass_bytes(config: &ModelConfig, n_workers: usize, work: Workload, rank: u64) -> u64 {
    let c = |value: u32| u64::from(value);
    let n_tokens = work.chunk.max(1).min(work.positions.max(1) as usize);
    let blocks = Blocks::new(n_tokens);
    let (tokens, block, padded) = (n_tokens as u64, blocks.len as u64, blocks.padded() as u64);
    let q_width = c(config.n_heads) * c(config.head_dim);
    let kv_width = c(config.n_kv_heads) * c(config.head_dim);
    let widest = q_width.max(c(config.n_embd)).max(c(config.n_ff));
    let pass = tokens * (c(config.n_embd) + q_width + 2 * kv_width + 2 * c(config.head_dim))
        + padded * q_width;
    let n_scores = scores_len(blocks, config.n_heads as usize, work.positions as usize) as u64;
    let rows = block.max(if work.all_logits { HEAD_BATCH as u64 } else { 1 });
    // Queries, keys and values are computed together.
    let each = rows * (widest + c(config.n_embd) + 2 * c(config.n_ff) + 3 * rank)
        + c(config.head_dim)
        + n_scores;
    let quantized =
        rows * widest.div_ceil(32).next_multiple_of(8) * QuantizedRows::BLOCK_BYTES as u64;
    let n_logits = if work.all_logits { (HEAD_BATCH as u64).min(tokens) } else { 1 };
    // The session's own, and the copy that a caller gets.
    let logits = (n_logits + 1) * c(config.vocab_size);
    4 * (pass + logits) + n_workers as u64 * (4 * each + quantized)
}
