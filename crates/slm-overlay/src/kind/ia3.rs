//! IA³: inputs (of feed-forward targets) or outputs multiplied element by element.

use super::{AdapterKind, Kind, expect_shape, len};
use crate::{Factor, OverlayError};

/// Which side of a product is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What the tensor is multiplied with.
    Input,
    /// What comes out.
    Output,
}

/// What an IA³ adapter does to one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Ia3 {
    /// The side.
    pub side: Side,
    /// `[1, in]` or `[1, out]`, outputs in the base's order.
    pub l: Factor,
}

impl Kind for Ia3 {
    const KIND: AdapterKind = AdapterKind::Ia3;

    fn numbers(&self) -> Vec<u32> {
        vec![u32::from(self.side == Side::Output)]
    }

    fn factors(&self) -> Vec<(&'static str, &Factor)> {
        vec![("ia3_l", &self.l)]
    }

    fn from_parts(numbers: &[u32], indices: Vec<u64>, factors: Vec<Factor>) -> Option<Ia3> {
        let side = match (numbers, &indices[..]) {
            ([0], []) => Side::Input,
            ([1], []) => Side::Output,
            _ => return None,
        };
        let [l] = <[Factor; 1]>::try_from(factors).ok()?;
        Some(Ia3 { side, l })
    }

    fn check(&self, target: &str) -> Result<(), OverlayError> {
        expect_shape(target, "ia3_l", &self.l, 1, self.l.cols().into())
    }

    fn fits(&self, target: &str, rows: u64, cols: u64) -> Result<(), OverlayError> {
        let expected = if self.side == Side::Input { cols } else { rows };
        expect_shape(target, "ia3_l", &self.l, 1, expected)
    }

    fn macs(&self) -> u64 {
        len(&self.l)
    }

    fn is_nothing(&self) -> bool {
        self.l.values().all(|value| value == 1.0)
    }
}

/// What each element is multiplied by at a weight: `l` itself at 1, else `1 + weight * (l - 1)`.
pub(crate) fn factors(l: &Factor, weight: f32) -> Vec<f32> {
    match weight == 1.0 {
        true => l.values().collect(),
        false => l.values().map(|l| 1.0 + weight * (l - 1.0)).collect(),
    }
}
