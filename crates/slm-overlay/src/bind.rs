//! An adapter on one base.

use std::ops::Range;
use std::sync::Arc;

use slm_manifest::{AdapterId, BaseId};
use slm_quant::layout::AlignedBytes;
use slm_quant::{DownMatrix, QuantError, UpMatrix};

use crate::kind::{Csr, Kron, Materials, RowSums, row_sums};
use crate::shape::{EMBEDDING, HEAD};
use crate::{Adapter, BaseShape, Delta, Factor, Module, OverlayError};

/// An adapter whose targets were found in one base, with its factors in the form the kernels read.
#[derive(Debug, Clone)]
pub struct BoundAdapter {
    adapter: Arc<Adapter>,
    base: BaseId,
    /// The modules' A and B as a lone token reads them, in one piece and in the order of a pass: what costs is less their bytes than each
    /// place in memory where reading begins anew.
    working: Arc<AlignedBytes>,
    places: Vec<Place>,
    forms: Vec<Form>,
}

/// Where a low-rank module's factors are in the working form; empty for other modules.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    /// A down-projection, but for the embedding table: rows of that are made from A, which is an up-projection then.
    pub(crate) a: Range<usize>,
    /// An up-projection; empty for the embedding table, whose B is read row by row.
    pub(crate) b: Range<usize>,
}

/// What a module needs beside its pair, or in the place of one.
#[derive(Debug, Clone)]
pub(crate) enum Form {
    /// Nothing: the working form has it, or the module itself.
    None,
    /// The sums that norms follow from, for every row.
    Dora(Arc<[RowSums]>),
    Sparse(Arc<Csr>),
    Dense(Arc<Factor>),
    Loha(Arc<Materials>),
    Lokr(Arc<Kron>),
}

impl PartialEq for BoundAdapter {
    /// The working form follows from the adapter and the base.
    fn eq(&self, other: &BoundAdapter) -> bool {
        self.adapter == other.adapter && self.base == other.base
    }
}

impl Adapter {
    /// This adapter on the base `base_id`, whose names and shapes are `base`. From here on it is tied to that digest. What a kind needs of the
    /// base's weights is worked out here, once.
    ///
    /// # Errors
    /// [`OverlayError::UnknownTensor`] or [`OverlayError::Shape`] when the base has not every target in the right shape;
    /// [`OverlayError::BaseWeights`] when a kind needs them and `base` gives none; [`OverlayError::Embedding`] for a kind that cannot
    /// stand on the embedding table; [`OverlayError::Invocation`] for one with a token that the base has not.
    pub fn bind(
        self: Arc<Adapter>,
        base_id: BaseId,
        base: &BaseShape<'_>,
    ) -> Result<BoundAdapter, OverlayError> {
        for module in self.modules() {
            let target = &module.target;
            // The graph asks for these; a target elsewhere would be ignored in silence.
            let Some((rows, cols)) = base.target(target) else {
                return Err(OverlayError::UnknownTensor {
                    tensor: format!("{target}.{}", module.factors()[0].0),
                    module: target.clone(),
                });
            };
            module.fits(rows, cols)?;
            let plain = matches!(&module.delta, Delta::Lora(lora) if lora.bias.is_none());
            let lora = matches!(&module.delta, Delta::Lora(_));
            let fixed = target == EMBEDDING && !(plain && self.invocation().is_empty());
            if fixed || target == HEAD && !lora {
                return Err(OverlayError::Embedding { tensor: target.clone() });
            }
        }
        expect_invocable(self.invocation(), base)?;
        let (working, places) = pairs(self.modules());
        let forms = self.modules().iter().map(|module| form(module, base));
        let forms = forms.collect::<Result<_, _>>()?;
        Ok(BoundAdapter { adapter: self, base: base_id, working: Arc::new(working), places, forms })
    }
}

impl BoundAdapter {
    /// The adapter.
    pub fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// The adapter's identity.
    pub fn id(&self) -> AdapterId {
        self.adapter.id()
    }

    /// The base it is bound to.
    pub fn base_id(&self) -> BaseId {
        self.base
    }

    /// Bytes resident beside the base: the adapter's factors, and their copy in the form that the kernels read.
    pub fn bytes(&self) -> u64 {
        let forms = self.forms.iter().map(|form| match form {
            Form::None | Form::Dense(_) => 0,
            Form::Dora(sums) => size_of_val(&sums[..]) as u64,
            Form::Sparse(csr) => csr.bytes(),
            Form::Loha(materials) => materials.bytes(),
            Form::Lokr(kron) => kron.bytes(),
        });
        self.adapter.bytes() + self.working.len() as u64 + forms.sum::<u64>()
    }

    /// Index of the module that touches `tensor`.
    pub(crate) fn position(&self, tensor: &str) -> Option<usize> {
        self.adapter.modules().binary_search_by(|module| module.target.as_str().cmp(tensor)).ok()
    }

    pub(crate) fn module(&self, index: usize) -> &Module {
        &self.adapter.modules()[index]
    }

    pub(crate) fn form(&self, index: usize) -> &Form {
        &self.forms[index]
    }

    /// All factors of low-rank modules, in the order in which a pass reads them.
    pub(crate) fn working(&self) -> &Arc<AlignedBytes> {
        &self.working
    }

    /// Where a module's factors are in [`BoundAdapter::working`].
    pub(crate) fn place(&self, index: usize) -> Place {
        self.places[index].clone()
    }
}

/// Refuses an invocation that no prompt can contain, because a token of it is not in the base's vocabulary: the adapter would never act.
pub(crate) fn expect_invocable(
    invocation: &[u32],
    base: &BaseShape<'_>,
) -> Result<(), OverlayError> {
    let Some((vocabulary, _)) = base.tensor(EMBEDDING) else { return Ok(()) };
    match invocation.iter().find(|&&token| u64::from(token) >= vocabulary) {
        None => Ok(()),
        Some(token) => Err(OverlayError::Invocation {
            found: format!("{token} where the base has {vocabulary} tokens"),
            expected: "ids of the base's tokens",
        }),
    }
}

/// The pair of a low-rank module: A `[rank, in]`, B `[out, rank]`.
pub(crate) fn pair(module: &Module) -> Option<(&Factor, &Factor)> {
    match &module.delta {
        Delta::Lora(lora) => Some((&lora.a, &lora.b)),
        Delta::Dora(dora) => Some((&dora.a, &dora.b)),
        Delta::Vera(vera) => Some((&vera.a, &vera.b)),
        _ => None,
    }
}

/// The working form of all pairs, and where each is. Pairs that share their bytes are there once.
fn pairs(modules: &[Module]) -> (AlignedBytes, Vec<Place>) {
    let (places, end) = places(modules);
    let mut working = AlignedBytes::zeroed(end);
    for (module, place) in modules.iter().zip(&places) {
        let Some((a, b)) = pair(module) else { continue };
        let [a_bytes, b_bytes] = [&place.a, &place.b].map(|place| place.clone());
        let packed = if module.target == EMBEDDING {
            pack_up(&a.transposed(), &mut working[a_bytes])
        } else {
            pack_down(a, &mut working[a_bytes]).and_then(|()| pack_up(b, &mut working[b_bytes]))
        };
        packed.expect("BUG: a factor of the wrong length");
    }
    (working, places)
}

fn pack_down(a: &Factor, bytes: &mut [u8]) -> Result<(), QuantError> {
    DownMatrix::pack(a.encoding(), a.rows() as usize, a.cols() as usize, a.data(), bytes)
}

fn pack_up(b: &Factor, bytes: &mut [u8]) -> Result<(), QuantError> {
    UpMatrix::pack(b.encoding(), b.rows() as usize, b.cols() as usize, b.data(), bytes)
}

/// Where each module's factors go, and how long all are together. Modules that read the same rows have their A one after the other, then
/// their B.
fn places(modules: &[Module]) -> (Vec<Place>, usize) {
    let mut order: Vec<(usize, usize)> =
        (0..modules.len()).flat_map(|n| [(n, 0), (n, 1)]).collect();
    order.sort_by_key(|&(n, factor)| {
        let (layer, group, role) = reading_order(&modules[n].target);
        (layer, group, factor, role, n)
    });
    let mut places = vec![Place::default(); modules.len()];
    let mut end = 0usize;
    // Only factors of kinds that share them are looked for.
    let mut shared: Vec<(&Factor, Range<usize>)> = Vec::new();
    for (n, half) in order {
        let Some((a, b)) = pair(&modules[n]) else { continue };
        let factor = if half == 0 { a } else { b };
        let shares = matches!(modules[n].delta, Delta::Vera(_));
        let known = shared.iter().find(|(known, _)| shares && known.shares(factor));
        let place = match known {
            Some((_, place)) => place.clone(),
            // The embedding table's B is read row by row where it is.
            None if half == 1 && modules[n].target == EMBEDDING => end..end,
            None => {
                let place = end..end + factor.data().len();
                end = place.end.next_multiple_of(64);
                place
            }
        };
        if shares {
            shared.push((factor, place.clone()));
        }
        *(if half == 0 { &mut places[n].a } else { &mut places[n].b }) = place;
    }
    (places, end)
}

/// Where a module stands in a pass: its layer, those that read the same rows, which of them. What is in no layer comes last.
fn reading_order(target: &str) -> (u32, usize, usize) {
    const GROUPS: [&[&str]; 4] =
        [&["attn_q", "attn_k", "attn_v"], &["attn_output"], &["ffn_gate", "ffn_up"], &["ffn_down"]];
    let of_layer = target.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let Some((layer, role)) = of_layer else { return (u32::MAX, 0, 0) };
    let role = role.strip_suffix(".weight").unwrap_or(role);
    let place = |roles: &&[&str]| roles.iter().position(|known| *known == role);
    let group = GROUPS.iter().position(|roles| place(roles).is_some()).unwrap_or(GROUPS.len());
    let role = GROUPS.get(group).and_then(place).unwrap_or(0);
    (layer.parse().unwrap_or(u32::MAX), group, role)
}

fn form(module: &Module, base: &BaseShape<'_>) -> Result<Form, OverlayError> {
    Ok(match &module.delta {
        Delta::Lora(_) | Delta::Ia3(_) | Delta::Vera(_) => Form::None,
        Delta::Dora(dora) => {
            let (tensor, what) = (module.target.clone(), "the norm of a row");
            let weights = base.weights.ok_or(OverlayError::BaseWeights { tensor, what })?;
            Form::Dora(row_sums(dora, base.weight_of(&module.target), weights).into())
        }
        Delta::Sparse(sparse) => {
            let csr = Csr::new(sparse);
            check_sum(module, base, sparse.scale, &mut |row, out| csr.fill(row, out))?;
            Form::Sparse(Arc::new(csr))
        }
        Delta::Dense(dense) => {
            check_sum(module, base, dense.scale, &mut |row, out| dense.delta.row_into(row, out))?;
            Form::Dense(Arc::new(dense.delta.clone()))
        }
        Delta::Loha(loha) => Form::Loha(Arc::new(Materials::new(loha))),
        Delta::Lokr(lokr) => Form::Lokr(Arc::new(Kron::new(lokr))),
    })
}

/// Refuses a delta that with the base's weights is beyond f32. Nothing is ever merged; such a delta is none for this base.
fn check_sum(
    module: &Module,
    base: &BaseShape<'_>,
    scale: f32,
    delta: &mut dyn FnMut(usize, &mut [f32]),
) -> Result<(), OverlayError> {
    let (Some(weights), Some((rows, cols))) = (base.weights, base.target(&module.target)) else {
        return Ok(());
    };
    let (mut w, mut d) = (vec![0.0; cols as usize], vec![0.0; cols as usize]);
    for row in 0..rows as usize {
        weights.row(base.weight_of(&module.target), row, &mut w);
        delta(row, &mut d);
        let sum = w.iter().zip(&d).position(|(w, d)| !(w + scale * d).is_finite());
        if let Some(column) = sum {
            let (tensor, row, column) = (module.target.clone(), row as u64, column as u64);
            return Err(OverlayError::Fused { tensor, row, column });
        }
    }
    Ok(())
}
