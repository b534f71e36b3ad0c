//! A composition: one base under an ordered stack of weighted adapters.

use std::sync::Arc;

use slm_manifest::{
    AdapterId, BaseId, CompositionId, CompositionParts, ExecutionId, ExecutionProfile,
};
use slm_overlay::{BoundAdapter, Stack};

use crate::error::RuntimeError;
use crate::load::Base;

/// One adapter of a composition, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct ActiveAdapter {
    /// The name it goes by.
    pub name: String,
    /// Its identity.
    pub adapter: AdapterId,
    /// Its weight in the stack.
    pub weight: f32,
}

/// A base and a stack, joined and identified. Immutable: another stack is another composition over the same base.
#[derive(Debug)]
pub struct Composition {
    base: Arc<Base>,
    stack: Stack,
    adapters: Vec<ActiveAdapter>,
    id: CompositionId,
}

impl Composition {
    /// Stacks `adapters` (name, bound adapter, weight; bottom first) on `base`.
    ///
    /// # Errors
    /// An adapter bound to another base, the same adapter twice, a weight that is not finite.
    pub fn new(
        base: Arc<Base>,
        adapters: Vec<(String, Arc<BoundAdapter>, f32)>,
    ) -> Result<Composition, RuntimeError> {
        let names: Vec<ActiveAdapter> = adapters
            .iter()
            .map(|(name, adapter, weight)| ActiveAdapter {
                name: name.clone(),
                adapter: adapter.id(),
                weight: *weight,
            })
            .collect();
        let stack = Stack::new(
            base.id(),
            adapters.into_iter().map(|(_, adapter, weight)| (adapter, weight)).collect(),
        )?;
        let id = CompositionParts {
            base: base.id(),
            tokenizer: base.tokenizer_id(),
            stack: stack.id_parts(),
            plan: None,
        }
        .id();
        Ok(Composition { base, stack, adapters: names, id })
    }

    /// The bare base.
    ///
    /// # Errors
    /// None for a base that was opened; the signature is that of [`Composition::new`].
    pub fn bare(base: Arc<Base>) -> Result<Composition, RuntimeError> {
        Composition::new(base, Vec::new())
    }

    /// The identity.
    pub fn id(&self) -> CompositionId {
        self.id
    }

    /// The identity under an execution profile: the key of bits.
    pub fn execution_id(&self, profile: &ExecutionProfile) -> ExecutionId {
        profile.execution_id(self.id)
    }

    /// The base.
    pub fn base(&self) -> &Arc<Base> {
        &self.base
    }

    /// The base's identity.
    pub fn base_id(&self) -> BaseId {
        self.base.id()
    }

    /// The stack.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The adapters, bottom first.
    pub fn adapters(&self) -> &[ActiveAdapter] {
        &self.adapters
    }
}
