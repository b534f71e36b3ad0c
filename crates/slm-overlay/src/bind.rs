//! An adapter on one base.

use std::ops::Range;
use std::sync::Arc;

use slm_format::Encoding;
use slm_manifest::{AdapterId, BaseId};
use slm_quant::QMatrix;
use slm_quant::layout::AlignedBytes;

use crate::{Adapter, BaseShape, LoraModule, OverlayError};

/// An adapter whose targets were found in one base, with its factors in the form the kernels read.
#[derive(Debug, Clone)]
pub struct BoundAdapter {
    adapter: Arc<Adapter>,
    base: BaseId,
    /// Module after module, A, and B transposed to `[rank, out]` so that the up-projection reads whole rows: in one piece, because a pass
    /// reads each of them once, and small pieces in many places cost more than their bytes.
    working: Arc<AlignedBytes>,
    places: Vec<Place>,
}

/// Where a module's factors are in the working form.
#[derive(Debug, Clone)]
struct Place {
    a: Range<usize>,
    b_transposed: Range<usize>,
}

impl PartialEq for BoundAdapter {
    /// The working form follows from the adapter.
    fn eq(&self, other: &BoundAdapter) -> bool {
        self.adapter == other.adapter && self.base == other.base
    }
}

impl Adapter {
    /// This adapter on the base `base_id`, whose names and shapes are `base`. From here on it is tied to that digest.
    ///
    /// # Errors
    /// [`OverlayError::UnknownTensor`] or [`OverlayError::Shape`] when the base has not every target in the right shape.
    pub fn bind(
        self: Arc<Adapter>,
        base_id: BaseId,
        base: &BaseShape,
    ) -> Result<BoundAdapter, OverlayError> {
        for module in self.modules() {
            let target = &module.target;
            // The graph asks for the linear modules of its blocks; a target elsewhere would be ignored in silence.
            let Some((rows, cols)) = base.linear(target) else {
                return Err(OverlayError::UnknownTensor {
                    tensor: format!("{target}.lora_a"),
                    module: target.clone(),
                });
            };
            let (found_rows, found_cols) = module.shape();
            let rank = u64::from(module.rank());
            if found_cols != cols {
                let (found, expected) = (vec![rank, found_cols], vec![rank, cols]);
                return Err(OverlayError::Shape {
                    tensor: format!("{target}.lora_a"),
                    found,
                    expected,
                });
            }
            if found_rows != rows {
                let (found, expected) = (vec![found_rows, rank], vec![rows, rank]);
                return Err(OverlayError::Shape {
                    tensor: format!("{target}.lora_b"),
                    found,
                    expected,
                });
            }
        }
        let mut end = 0usize;
        let mut place = |len: usize| {
            let start = end;
            end = (start + len).next_multiple_of(64);
            start..start + len
        };
        let places: Vec<Place> = self
            .modules()
            .iter()
            .map(|module| Place {
                a: place(module.a.data().len()),
                b_transposed: place(module.b.data().len()),
            })
            .collect();
        let mut working = AlignedBytes::zeroed(end);
        for (module, place) in self.modules().iter().zip(&places) {
            working[place.a.clone()].copy_from_slice(module.a.data());
            module.b.transpose_into(&mut working[place.b_transposed.clone()]);
        }
        Ok(BoundAdapter { adapter: self, base: base_id, working: Arc::new(working), places })
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
        self.adapter.bytes() + self.working.len() as u64
    }

    /// Index of the module that touches `tensor`.
    pub(crate) fn position(&self, tensor: &str) -> Option<usize> {
        self.adapter.modules().binary_search_by(|module| module.target.as_str().cmp(tensor)).ok()
    }

    pub(crate) fn module(&self, index: usize) -> &LoraModule {
        &self.adapter.modules()[index]
    }

    /// A of a module, `[rank, in]`.
    pub(crate) fn a(&self, index: usize) -> QMatrix<'_> {
        let a = &self.module(index).a;
        matrix(a.encoding(), a.rows(), a.cols(), self.a_bytes(index))
    }

    /// The bytes of a module's A.
    pub(crate) fn a_bytes(&self, index: usize) -> &[u8] {
        &self.working[self.places[index].a.clone()]
    }

    /// B of a module, transposed: `[rank, out]`.
    pub(crate) fn b_transposed(&self, index: usize) -> QMatrix<'_> {
        let b = &self.module(index).b;
        let bytes = &self.working[self.places[index].b_transposed.clone()];
        matrix(b.encoding(), b.cols(), b.rows(), bytes)
    }
}

fn matrix(encoding: Encoding, rows: u32, cols: u32, data: &[u8]) -> QMatrix<'_> {
    QMatrix::new(encoding, rows as usize, cols as usize, data)
        .expect("BUG: a factor of the wrong length")
}
