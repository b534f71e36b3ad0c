//! The normal form of an adapter, and its identity.

use slm_format::Digest;
use slm_manifest::AdapterId;

use crate::{Factor, OverlayError};

/// What an adapter does to the tensors it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdapterKind {
    /// Low rank: `scale * B(A x)` is added to the base's product.
    Lora,
}

impl AdapterKind {
    /// The name that an [`AdapterId`] and an `.slm` file use.
    pub fn name(self) -> &'static str {
        match self {
            AdapterKind::Lora => "lora",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<AdapterKind> {
        [AdapterKind::Lora].into_iter().find(|kind| kind.name() == name)
    }
}

/// What a LoRA adapter adds to one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraModule {
    /// Canonical name of the base's tensor.
    pub target: String,
    /// What the product of the factors is multiplied by.
    pub scale: f32,
    /// Down-projection, `[rank, in]`.
    pub a: Factor,
    /// Up-projection, `[out, rank]`, rows in the base's order.
    pub b: Factor,
}

impl LoraModule {
    /// Rank of the delta.
    pub fn rank(&self) -> u32 {
        self.a.rows()
    }

    /// Rows (outputs) and columns (inputs) that the base's tensor must have.
    pub fn shape(&self) -> (u64, u64) {
        (u64::from(self.b.rows()), u64::from(self.a.cols()))
    }
}

/// Where an adapter came from. Provenance: no part of the identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceDigest {
    /// The file's name, without folders.
    pub name: String,
    /// Digest of its bytes.
    pub digest: Digest,
}

/// An adapter in normal form: targets by canonical name and sorted, ranks agreeing, every number finite. Cloning shares the factors.
///
/// Two files that mean the same adapter give the same [`Adapter::id`], whatever the order of their tensors or the wording of their
/// configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    id: AdapterId,
    kind: AdapterKind,
    modules: Vec<LoraModule>,
    sources: Vec<SourceDigest>,
}

impl Adapter {
    /// The LoRA adapter of these modules, in any order.
    ///
    /// # Errors
    /// [`OverlayError::NoTarget`] for none, [`OverlayError::DuplicateTarget`], [`OverlayError::Rank`] where A and B differ in it,
    /// [`OverlayError::Scale`] for a scale that is not finite.
    pub fn lora(mut modules: Vec<LoraModule>) -> Result<Adapter, OverlayError> {
        if modules.is_empty() {
            return Err(OverlayError::NoTarget { reason: "the adapter has no modules".into() });
        }
        modules.sort_by(|a, b| a.target.cmp(&b.target));
        if let Some(pair) = modules.windows(2).find(|pair| pair[0].target == pair[1].target) {
            return Err(OverlayError::DuplicateTarget { tensor: pair[0].target.clone() });
        }
        for module in &modules {
            if module.b.cols() != module.a.rows() {
                let (found, expected) = (u64::from(module.b.cols()), u64::from(module.a.rows()));
                return Err(OverlayError::Rank {
                    tensor: format!("{}.lora_b", module.target),
                    found,
                    expected,
                });
            }
            if !module.scale.is_finite() {
                let (module, alpha, rank) =
                    (module.target.clone(), f64::from(module.scale), module.rank());
                return Err(OverlayError::Scale { module, alpha, rank });
            }
        }
        let id = identity(AdapterKind::Lora, &modules);
        Ok(Adapter { id, kind: AdapterKind::Lora, modules, sources: Vec::new() })
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
        let round = |module: &LoraModule| {
            Ok(LoraModule {
                target: module.target.clone(),
                scale: module.scale,
                a: module.a.to_f16(&format!("{}.lora_a", module.target))?,
                b: module.b.to_f16(&format!("{}.lora_b", module.target))?,
            })
        };
        let modules = self.modules.iter().map(round).collect::<Result<_, OverlayError>>()?;
        Ok(Adapter::lora(modules)?.with_sources(self.sources.clone()))
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
    pub fn modules(&self) -> &[LoraModule] {
        &self.modules
    }

    /// The files it came from, where that is recorded.
    pub fn sources(&self) -> &[SourceDigest] {
        &self.sources
    }

    /// The largest rank of any module.
    pub fn max_rank(&self) -> u32 {
        self.modules.iter().map(LoraModule::rank).max().unwrap_or(0)
    }

    /// Elements of all factors that are not zero. Reads them all.
    pub fn nnz(&self) -> u64 {
        self.factors()
            .map(|factor| factor.values().filter(|&value| value != 0.0).count() as u64)
            .sum()
    }

    /// Bytes of all factors.
    pub fn bytes(&self) -> u64 {
        self.factors().map(|factor| factor.data().len() as u64).sum()
    }

    /// The modules of an adapter that is low rank and nothing else; `None` for any other.
    pub fn plain_lora(&self) -> Option<Vec<LoraModule>> {
        Some(self.modules.clone())
    }

    fn factors(&self) -> impl Iterator<Item = &Factor> {
        self.modules.iter().flat_map(|module| [&module.a, &module.b])
    }
}

/// The canonical encoding is the postcard of (kind, [(target, scale bits, A, B)]), a factor being (encoding, rows, columns, BLAKE3 of its
/// bytes).
fn identity(kind: AdapterKind, modules: &[LoraModule]) -> AdapterId {
    let factor = |factor: &Factor| {
        (factor.encoding().name(), factor.rows(), factor.cols(), factor.content())
    };
    let rows: Vec<_> = modules
        .iter()
        .map(|module| {
            (module.target.as_str(), module.scale.to_bits(), factor(&module.a), factor(&module.b))
        })
        .collect();
    AdapterId::of_canonical(
        &postcard::to_stdvec(&(kind.name(), rows)).expect("BUG: an identity could not be encoded"),
    )
}
