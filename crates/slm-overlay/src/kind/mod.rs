//! What an adapter does to one tensor: a closed list of kinds, one file each. A file has the kind's normal form with its checks, and how it is
//! applied (`docs/numerics.md`, section 7).

mod dense;
mod dora;
mod ia3;
mod loha;
mod lokr;
mod lora;
mod pair;
mod sparse;
mod vera;

pub use dense::DenseDelta;
pub use dora::Dora;
pub use ia3::{Ia3, Side};
pub use loha::Loha;
pub use lokr::{Lokr, LokrFactor, RowOrder};
pub use lora::{Lora, LoraModule};
pub use sparse::SparseDelta;
pub use vera::Vera;

pub(crate) use dense::DenseTerm;
pub(crate) use dora::{DoraTerm, RowSums, row_sums};
pub(crate) use ia3::factors as ia3_factors;
pub(crate) use loha::{LohaTerm, Materials};
pub(crate) use lokr::{Kron, LokrTerm};
pub(crate) use lora::LoraTerm;
pub(crate) use pair::Pair;
pub(crate) use sparse::{Csr, SparseTerm};
pub(crate) use vera::VeraTerm;

use crate::{Factor, OverlayError};

/// What an adapter does to the tensors it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdapterKind {
    /// Low rank: `scale * B(A x)` is added to the base's product.
    Lora,
    /// Low rank that acts from an invocation sequence onward.
    Alora,
    /// Low rank, and every row brought to a trained length.
    Dora,
    /// Inputs or outputs multiplied element by element.
    Ia3,
    /// Single elements of the weights.
    Sparse,
    /// Whole matrices.
    Dense,
    /// The element-wise product of two low-rank matrices.
    Loha,
    /// A Kronecker product.
    Lokr,
    /// Fixed projections that all modules share, scaled by trained vectors.
    Vera,
}

impl AdapterKind {
    const ALL: [AdapterKind; 9] = [
        AdapterKind::Lora,
        AdapterKind::Alora,
        AdapterKind::Dora,
        AdapterKind::Ia3,
        AdapterKind::Sparse,
        AdapterKind::Dense,
        AdapterKind::Loha,
        AdapterKind::Lokr,
        AdapterKind::Vera,
    ];

    /// The name that an [`AdapterId`](slm_manifest::AdapterId) and an `.slm` file use.
    pub fn name(self) -> &'static str {
        match self {
            AdapterKind::Lora => "lora",
            AdapterKind::Alora => "alora",
            AdapterKind::Dora => "dora",
            AdapterKind::Ia3 => "ia3",
            AdapterKind::Sparse => "sparse",
            AdapterKind::Dense => "dense",
            AdapterKind::Loha => "loha",
            AdapterKind::Lokr => "lokr",
            AdapterKind::Vera => "vera",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<AdapterKind> {
        AdapterKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What an adapter does to one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Module {
    /// Canonical name of the base's tensor. `token_embd.weight` is the input side, `output.weight` the head, tied or not.
    pub target: String,
    /// What is done.
    pub delta: Delta,
}

/// One module's arithmetic.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant is the kind of that name")]
pub enum Delta {
    Lora(Lora),
    Dora(Dora),
    Ia3(Ia3),
    Sparse(SparseDelta),
    Dense(DenseDelta),
    Loha(Loha),
    Lokr(Lokr),
    Vera(Vera),
}

/// A module in parts, as an identity and a section hold it: the kind's name, numbers, indices, factors, each in a fixed order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parts<'a> {
    pub(crate) kind: AdapterKind,
    /// Bits of scales, sizes and choices.
    pub(crate) numbers: Vec<u32>,
    /// Positions of sparse elements.
    pub(crate) indices: &'a [u64],
    pub(crate) factors: Vec<(&'static str, &'a Factor)>,
}

/// The normal form of one kind.
trait Kind: Sized {
    const KIND: AdapterKind;

    fn numbers(&self) -> Vec<u32>;
    fn factors(&self) -> Vec<(&'static str, &Factor)>;
    fn indices(&self) -> &[u64] {
        &[]
    }
    /// The module of these parts; `None` where they are not as many as the kind has.
    fn from_parts(numbers: &[u32], indices: Vec<u64>, factors: Vec<Factor>) -> Option<Self>;
    /// Whether the parts fit each other.
    fn check(&self, target: &str) -> Result<(), OverlayError>;
    /// Whether the module fits a tensor of `rows` outputs and `cols` inputs.
    fn fits(&self, target: &str, rows: u64, cols: u64) -> Result<(), OverlayError>;
    /// Whether the module changes nothing.
    fn is_nothing(&self) -> bool;
    /// Multiplications for one token, beside the base's.
    fn macs(&self) -> u64;
    fn rank(&self) -> u32 {
        0
    }
    /// Values per token between the two halves of a pass.
    fn scratch_values(&self) -> u64 {
        u64::from(self.rank())
    }
    fn scale(&self) -> f32 {
        1.0
    }
}

/// One call of a [`Kind`]'s method on whatever kind a [`Delta`] is.
macro_rules! each {
    ($delta:expr, $kind:ident => $call:expr) => {
        match $delta {
            Delta::Lora($kind) => $call,
            Delta::Dora($kind) => $call,
            Delta::Ia3($kind) => $call,
            Delta::Sparse($kind) => $call,
            Delta::Dense($kind) => $call,
            Delta::Loha($kind) => $call,
            Delta::Lokr($kind) => $call,
            Delta::Vera($kind) => $call,
        }
    };
}

impl Module {
    /// Rank of the delta; 0 for kinds that have none.
    pub fn rank(&self) -> u32 {
        each!(&self.delta, kind => kind.rank())
    }

    /// What the delta is multiplied by; 1 for kinds that have no scale.
    pub fn scale(&self) -> f32 {
        each!(&self.delta, kind => kind.scale())
    }

    /// Multiplications for one token, beside the base's.
    pub fn macs(&self) -> u64 {
        each!(&self.delta, kind => kind.macs())
    }

    /// Values per token that a pass keeps for the module: its rank, where it is of low rank, else mostly its outputs. What
    /// [`crate::TensorStack::scratch_len`] adds up.
    pub fn scratch_values(&self) -> u64 {
        each!(&self.delta, kind => kind.scratch_values())
    }

    /// The kind, as the module alone tells.
    pub fn kind(&self) -> AdapterKind {
        self.parts().kind
    }

    /// The factors with their names, in the kind's order.
    pub fn factors(&self) -> Vec<(&'static str, &Factor)> {
        each!(&self.delta, kind => kind.factors())
    }

    /// Refuses a module that does not fit a tensor of `rows` outputs and `cols` inputs.
    pub(crate) fn fits(&self, rows: u64, cols: u64) -> Result<(), OverlayError> {
        each!(&self.delta, kind => kind.fits(&self.target, rows, cols))
    }

    pub(crate) fn check(&self) -> Result<(), OverlayError> {
        each!(&self.delta, kind => kind.check(&self.target))
    }

    pub(crate) fn parts(&self) -> Parts<'_> {
        fn parts<K: Kind>(kind: &K) -> Parts<'_> {
            let (numbers, indices, factors) = (kind.numbers(), kind.indices(), kind.factors());
            Parts { kind: K::KIND, numbers, indices, factors }
        }
        each!(&self.delta, kind => parts(kind))
    }

    /// The module of these parts; `None` where they are not those of the kind.
    pub(crate) fn from_parts(
        target: String,
        kind: AdapterKind,
        numbers: &[u32],
        indices: Vec<u64>,
        factors: Vec<Factor>,
    ) -> Option<Module> {
        let delta = match kind {
            AdapterKind::Lora | AdapterKind::Alora => {
                Delta::Lora(Kind::from_parts(numbers, indices, factors)?)
            }
            AdapterKind::Dora => Delta::Dora(Kind::from_parts(numbers, indices, factors)?),
            AdapterKind::Ia3 => Delta::Ia3(Kind::from_parts(numbers, indices, factors)?),
            AdapterKind::Sparse => Delta::Sparse(Kind::from_parts(numbers, indices, factors)?),
            AdapterKind::Dense => Delta::Dense(Kind::from_parts(numbers, indices, factors)?),
            AdapterKind::Loha => Delta::Loha(Kind::from_parts(numbers, indices, factors)?),
            AdapterKind::Lokr => Delta::Lokr(Kind::from_parts(numbers, indices, factors)?),
            AdapterKind::Vera => Delta::Vera(Kind::from_parts(numbers, indices, factors)?),
        };
        Some(Module { target, delta })
    }
}

/// Refuses modules of which none changes anything: whoever imports them expects a change and would get the base.
pub(crate) fn expect_effect(modules: &[Module]) -> Result<(), OverlayError> {
    match modules.iter().all(|module| each!(&module.delta, kind => kind.is_nothing())) {
        true => {
            let reason = "every module leaves its tensor as it is".into();
            Err(OverlayError::NoTarget { reason })
        }
        false => Ok(()),
    }
}

/// Refuses a factor of another shape.
fn expect_shape(
    target: &str,
    name: &str,
    factor: &Factor,
    rows: u64,
    cols: u64,
) -> Result<(), OverlayError> {
    let found = [u64::from(factor.rows()), u64::from(factor.cols())];
    match found == [rows, cols] {
        true => Ok(()),
        false => Err(OverlayError::Shape {
            tensor: format!("{target}.{name}"),
            found: found.into(),
            expected: vec![rows, cols],
        }),
    }
}

/// Refuses factors that disagree on the rank: the columns of `left` are the rows of `right`.
fn expect_rank(
    target: &str,
    name: &str,
    left: &Factor,
    right: &Factor,
) -> Result<(), OverlayError> {
    let (found, expected) = (u64::from(left.cols()), u64::from(right.rows()));
    match found == expected {
        true => Ok(()),
        false => Err(OverlayError::Rank { tensor: format!("{target}.{name}"), found, expected }),
    }
}

fn expect_scale(target: &str, scale: f32, rank: u32) -> Result<(), OverlayError> {
    match scale.is_finite() {
        true => Ok(()),
        false => Err(OverlayError::Scale { module: target.into(), alpha: f64::from(scale), rank }),
    }
}

/// Elements of a factor.
fn len(factor: &Factor) -> u64 {
    u64::from(factor.rows()) * u64::from(factor.cols())
}

fn is_zero(factor: &Factor) -> bool {
    factor.values().all(|value| value == 0.0)
}
