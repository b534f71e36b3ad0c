//! How PEFT lays out the two matrices of a LoKr module. It stores neither their shapes nor which of them are whole: it works both out again, from
//! the width and height of the module, the rank, and two options (PEFT's `lokr/layer.py`, `update_layer` and `factorization`).

use crate::Lokr;

/// The options and ranks under which PEFT makes matrices of just these shapes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) decompose_both: bool,
    pub(super) decompose_factor: i64,
    /// Of each module; of one whose matrices are both whole, the least that keeps them so.
    pub(super) ranks: Vec<u32>,
}

impl Layout {
    /// The layout of all modules of one adapter, or which of them has no place in it.
    pub(super) fn of(modules: &[&Lokr]) -> Result<Layout, usize> {
        let decompose_both = modules.iter().any(|module| module.low_rank().0.is_some());
        let mut ranks = Vec::with_capacity(modules.len());
        for (at, module) in modules.iter().enumerate() {
            let ((rows1, cols1), (rows2, cols2)) = module.shapes();
            let (largest1, largest2) = (rows1.max(cols1), rows2.max(cols2));
            let rank = match module.low_rank() {
                (Some(rank), Some(other)) if rank != other => return Err(at),
                (Some(rank), _) | (None, Some(rank)) => u64::from(rank),
                (None, None) if decompose_both => largest1.max(largest2).div_ceil(2),
                (None, None) => largest2.div_ceil(2),
            };
            let whole1 = !(decompose_both && 2 * rank < largest1);
            let whole2 = 2 * rank >= largest2;
            let (low1, low2) = module.low_rank();
            match u32::try_from(rank) {
                Ok(rank) if whole1 == low1.is_none() && whole2 == low2.is_none() => {
                    ranks.push(rank);
                }
                _ => return Err(at),
            }
        }
        // PEFT's default, or what gives the largest side of a left matrix: whatever larger option it was trained with, no divisor lies between.
        let left = modules.iter().map(|module| module.shapes().0);
        let largest = left.map(|(rows, cols)| rows.max(cols)).max().unwrap_or(1);
        let fits = |factor: Option<u64>, module: &Lokr| {
            let ((rows1, cols1), (rows2, cols2)) = module.shapes();
            first_factor(rows1 * rows2, factor) == rows1
                && first_factor(cols1 * cols2, factor) == cols1
        };
        let misfit = |factor| modules.iter().position(|module| !fits(factor, module));
        match (misfit(None), misfit(Some(largest)), i64::try_from(largest)) {
            (None, ..) => Ok(Layout { decompose_both, decompose_factor: -1, ranks }),
            (_, None, Ok(decompose_factor)) => {
                Ok(Layout { decompose_both, decompose_factor, ranks })
            }
            (_, misfit, _) => Err(misfit.unwrap_or(0)),
        }
    }
}

/// The left one of the two numbers that PEFT takes a dimension for: `factor` where it divides, else the largest divisor that is neither above it nor
/// above the root.
fn first_factor(dimension: u64, factor: Option<u64>) -> u64 {
    match factor {
        Some(factor) if dimension.is_multiple_of(factor) => factor,
        _ => {
            let most = dimension.isqrt().min(factor.unwrap_or(dimension));
            (1..=most).rev().find(|&divisor| dimension.is_multiple_of(divisor)).unwrap_or(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::first_factor;

    /// The examples of PEFT's own documentation, and what its program gives for others.
    #[test]
    fn dimensions_come_apart_as_in_peft() {
        for (dimension, factor, first) in [
            (256, None, 16),
            (128, None, 8),
            (127, None, 1),
            (128, Some(4), 4),
            (576, None, 24),
            (1536, None, 32),
            (576, Some(10), 9),
            (192, Some(16), 16),
            (100, Some(50), 50),
            (100, Some(60), 10),
        ] {
            assert_eq!(first_factor(dimension, factor), first, "{dimension} {factor:?}");
        }
    }
}
