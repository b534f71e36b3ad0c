//! Which tensors the positions of a Plan 008 file mean.

use super::{BinaryError, LoraAdapter, to_adapter};
use crate::{Adapter, BaseShape, OverlayError};

/// Most bytes of a layout.
const LONGEST: u64 = 4 << 20;

/// Canonical tensor names, one for each position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    targets: Vec<String>,
}

impl Layout {
    /// Reads a JSON array of strings.
    ///
    /// # Errors
    /// [`BinaryError::Layout`].
    pub fn parse(json: &[u8]) -> Result<Layout, BinaryError> {
        if json.len() as u64 > LONGEST {
            let reason = format!("{} bytes, the limit is {LONGEST}", json.len());
            return Err(BinaryError::Layout { reason });
        }
        match serde_json::from_slice(json) {
            Ok(targets) => Ok(Layout { targets }),
            Err(error) => Err(BinaryError::Layout { reason: error.to_string() }),
        }
    }

    /// The layout as JSON, one name a line.
    pub fn to_json(targets: &[String]) -> String {
        let text = serde_json::to_string_pretty(targets);
        text.expect("BUG: a list of names is not JSON") + "\n"
    }

    /// The names.
    pub fn targets(&self) -> &[String] {
        &self.targets
    }

    /// The adapter that the pairs are on a base of this shape. A canonical name means the base's own tensor, so rows of q and k are taken to
    /// stand in the base's order.
    ///
    /// # Errors
    /// [`BinaryError::LayoutLength`] where there are more or fewer names than pairs; [`OverlayError::UnknownTensor`],
    /// [`OverlayError::DuplicateTarget`] or [`OverlayError::Shape`] when the base has not every target in the right shape;
    /// [`OverlayError::NoTarget`] when no pair changes anything.
    pub fn to_adapter(
        &self,
        pairs: &[LoraAdapter],
        base: &BaseShape<'_>,
    ) -> Result<Adapter, OverlayError> {
        if pairs.len() != self.targets.len() {
            let (names, pairs) = (self.targets.len(), pairs.len());
            return Err(BinaryError::LayoutLength { names, pairs }.into());
        }
        to_adapter(pairs, &self.targets, base, false)
    }
}
