//! The normal form of an adapter, and its identity.

use slm_format::{ContentHash, Digest};
use slm_manifest::AdapterId;

use crate::kind::Parts;
use crate::{AdapterKind, Delta, Factor, Lora, LoraModule, Module, OverlayError};

/// Where an adapter came from. Provenance: no part of the identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceDigest {
    /// The file's name, without folders.
    pub name: String,
    /// Digest of its bytes.
    pub digest: Digest,
}

/// An adapter in normal form: modules of one kind, targets by canonical name and sorted, ranks agreeing, every number finite. Cloning shares the
/// factors.
///
/// Two files that mean the same adapter give the same [`Adapter::id`], whatever the order of their tensors or the wording of their
/// configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    id: AdapterId,
    kind: AdapterKind,
    modules: Vec<Module>,
    invocation: Vec<u32>,
    sources: Vec<SourceDigest>,
}

impl Adapter {
    /// The adapter of these modules, in any order.
    ///
    /// # Errors
    /// [`OverlayError::NoTarget`] for none, [`OverlayError::DuplicateTarget`], [`OverlayError::MixedKinds`], and what makes a module unusable:
    /// [`OverlayError::Rank`] and [`OverlayError::Shape`] where its factors differ, [`OverlayError::Scale`] for a scale that is not
    /// finite, [`OverlayError::SparseIndex`].
    pub fn new(modules: Vec<Module>) -> Result<Adapter, OverlayError> {
        Adapter::with_invocation(modules, Vec::new())
    }

    /// The adapter of these low-rank modules, in any order.
    ///
    /// # Errors
    /// As [`Adapter::new`].
    pub fn lora(modules: Vec<LoraModule>) -> Result<Adapter, OverlayError> {
        let module = |LoraModule { target, scale, a, b }| {
            let delta = Delta::Lora(Lora { scale, a, b, bias: None });
            Module { target, delta }
        };
        Adapter::new(modules.into_iter().map(module).collect())
    }

    /// The low-rank adapter that acts from the start of the last occurrence of `invocation` onward; always, where `invocation` is empty.
    ///
    /// # Errors
    /// As [`Adapter::new`]; [`OverlayError::MixedKinds`] where a module is of another kind.
    pub fn with_invocation(
        mut modules: Vec<Module>,
        invocation: Vec<u32>,
    ) -> Result<Adapter, OverlayError> {
        let Some(first) = modules.first() else {
            return Err(OverlayError::NoTarget { reason: "the adapter has no modules".into() });
        };
        let kind = if invocation.is_empty() { first.kind() } else { AdapterKind::Lora };
        modules.sort_by(|a, b| a.target.cmp(&b.target));
        if let Some(pair) = modules.windows(2).find(|pair| pair[0].target == pair[1].target) {
            return Err(OverlayError::DuplicateTarget { tensor: pair[0].target.clone() });
        }
        for module in &modules {
            if module.kind() != kind {
                let (tensor, found) = (module.target.clone(), module.kind().name());
                return Err(OverlayError::MixedKinds { tensor, found, expected: kind.name() });
            }
            module.check()?;
        }
        let kind = if invocation.is_empty() { kind } else { AdapterKind::Alora };
        let id = identity(kind, &modules, &invocation);
        Ok(Adapter { id, kind, modules, invocation, sources: Vec::new() })
    }

    /// The same adapter with a record of the files it came from, kept in the order given.
    pub fn with_sources(self, sources: Vec<SourceDigest>) -> Adapter {
        Adapter { sources, ..self }
    }

    /// Another adapter: the factors rounded to f16, to nearest even.
    ///
    /// # Errors
    /// [`OverlayError::F16Range`] for an element beyond f16.
    pub fn with_factors_f16(&self) -> Result<Adapter, OverlayError> {
        // A factor that several modules share stays shared.
        let mut rounded: Vec<(&Factor, Factor)> = Vec::new();
        let mut modules = Vec::with_capacity(self.modules.len());
        for module in &self.modules {
            let Parts { kind, numbers, indices, factors } = module.parts();
            let mut halves = Vec::with_capacity(factors.len());
            for (name, factor) in factors {
                let known = rounded.iter().rev().take(8).find(|(known, _)| known.shares(factor));
                let half = match known {
                    Some((_, half)) => half.clone(),
                    None => factor.to_f16(&format!("{}.{name}", module.target))?,
                };
                rounded.push((factor, half.clone()));
                halves.push(half);
            }
            let target = module.target.clone();
            let module = Module::from_parts(target, kind, &numbers, indices.to_vec(), halves);
            modules.push(module.expect("BUG: a module's own parts do not make it"));
        }
        let adapter = Adapter::with_invocation(modules, self.invocation.clone())?;
        Ok(adapter.with_sources(self.sources.clone()))
    }

    /// The identity: kind, targets, scales, and the factors in the precision given. Sources are no part of it.
    pub fn id(&self) -> AdapterId {
        self.id
    }

    /// What the adapter does to its targets.
    pub fn kind(&self) -> AdapterKind {
        self.kind
    }

    /// The modules, sorted by target.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// The tokens from whose last occurrence on the adapter acts; empty where it always does.
    pub fn invocation(&self) -> &[u32] {
        &self.invocation
    }

    /// The modules of an adapter that is low rank and nothing else; `None` for any other.
    pub fn plain_lora(&self) -> Option<Vec<LoraModule>> {
        if self.kind != AdapterKind::Lora {
            return None;
        }
        let plain = |module: &Module| match &module.delta {
            Delta::Lora(Lora { scale, a, b, bias: None }) => {
                let (target, a, b) = (module.target.clone(), a.clone(), b.clone());
                Some(LoraModule { target, scale: *scale, a, b })
            }
            _ => None,
        };
        self.modules.iter().map(plain).collect()
    }

    /// The files it came from, where that is recorded.
    pub fn sources(&self) -> &[SourceDigest] {
        &self.sources
    }

    /// The largest rank of any module; 0 for kinds that have none.
    pub fn max_rank(&self) -> u32 {
        self.modules.iter().map(Module::rank).max().unwrap_or(0)
    }

    /// Elements of all factors that are not zero; what modules share counts once. Reads them all.
    pub fn nnz(&self) -> u64 {
        self.factors().map(Factor::n_not_zero).sum()
    }

    /// Bytes of all factors and indices; what modules share counts once.
    pub fn bytes(&self) -> u64 {
        let indices = self.modules.iter().map(|module| 8 * module.parts().indices.len() as u64);
        self.factors().map(|factor| factor.data().len() as u64).chain(indices).sum()
    }

    /// Every factor once.
    fn factors(&self) -> impl Iterator<Item = &Factor> {
        let mut seen = std::collections::BTreeSet::new();
        self.modules
            .iter()
            .flat_map(|module| module.factors())
            .map(|(_, factor)| factor)
            .filter(move |factor| seen.insert(factor.data().as_ptr() as usize))
    }
}

/// The canonical encoding is the postcard of (kind, [(target, scale bits, A, B)]), a factor being (encoding, rows, columns, BLAKE3 of its
/// bytes), for an adapter of low-rank modules without biases that always acts; of any other (2, kind, invocation tokens, [(target, numbers,
/// BLAKE3 of the indices, factors)]).
fn identity(kind: AdapterKind, modules: &[Module], invocation: &[u32]) -> AdapterId {
    let factor = |factor: &Factor| {
        (factor.encoding().name(), factor.rows(), factor.cols(), factor.content())
    };
    let plain = |module: &Module| match &module.delta {
        Delta::Lora(Lora { scale, a, b, bias: None }) => {
            Some((module.target.clone(), scale.to_bits(), factor(a), factor(b)))
        }
        _ => None,
    };
    let plain = modules.iter().map(plain).collect::<Option<Vec<_>>>();
    let bytes = match plain.filter(|_| kind == AdapterKind::Lora) {
        Some(rows) => postcard::to_stdvec(&(kind.name(), rows)),
        None => {
            let row = |module: &Module| {
                let Parts { numbers, indices, factors, .. } = module.parts();
                let indices: Vec<u8> =
                    indices.iter().flat_map(|index| index.to_le_bytes()).collect();
                let factors: Vec<_> = factors.iter().map(|(_, part)| factor(part)).collect();
                (module.target.clone(), numbers, ContentHash::of(&indices), factors)
            };
            let rows: Vec<_> = modules.iter().map(row).collect();
            postcard::to_stdvec(&("2", kind.name(), invocation, rows))
        }
    };
    AdapterId::of_canonical(&bytes.expect("BUG: an identity could not be encoded"))
}
