//! The formulas, in exact integers. `s` is bytes per value everywhere.
//!
//! | | formula |
//! |---|---|
//! | base | `N · b / 8` |
//! | low-rank adapter, per tensor | `r · (m + n) · s` |
//! | sparse adapter, per tensor | `k · (s_value + s_index)` |
//! | scale vectors, per tensor | `(m + n) · s` |
//! | one matrix in full precision | `N_i · s` |
//! | extra multiplications, low rank | `r · (m + n)` of the base's `m · n` |
//! | KV | `2 · Σ_layers n_kv_heads · head_dim · s` per position |

/// Bytes of `parameters` weights of `bits` each, scales not counted: whoever has the tensors adds their bytes up instead, scales and all.
pub fn base_bytes(parameters: u64, bits: u32) -> u64 {
    narrow(u128::from(parameters) * u128::from(bits) / 8)
}

/// Bytes of a low-rank adapter of one tensor with `m` outputs and `n` inputs.
pub fn low_rank_bytes(rank: u64, m: u64, n: u64, s: u64) -> u64 {
    let values = u128::from(rank).saturating_mul(u128::from(m) + u128::from(n));
    narrow(values.saturating_mul(u128::from(s)))
}

/// Bytes of a sparse adapter of one tensor with `k` values.
pub fn sparse_bytes(k: u64, s_value: u64, s_index: u64) -> u64 {
    narrow(u128::from(k).saturating_mul(u128::from(s_value) + u128::from(s_index)))
}

/// Bytes of the scale vectors of one tensor, where both sides are scaled.
pub fn scale_vector_bytes(m: u64, n: u64, s: u64) -> u64 {
    narrow((u128::from(m) + u128::from(n)).saturating_mul(u128::from(s)))
}

/// Bytes of one whole matrix in full precision: what a runtime that dequantizes a matrix before it multiplies needs, and slm does not.
pub fn matrix_bytes(m: u64, n: u64, s: u64) -> u64 {
    narrow((u128::from(m) * u128::from(n)).saturating_mul(u128::from(s)))
}

/// Multiplications that a low-rank adapter of one tensor adds to each token.
pub fn low_rank_macs(rank: u64, m: u64, n: u64) -> u64 {
    low_rank_bytes(rank, m, n, 1)
}

/// Bytes of K and V of one position, `width` values each in every layer.
pub fn kv_bytes_per_position(n_layers: u64, width: u64, s: u64) -> u64 {
    narrow(
        (2 * u128::from(n_layers)).saturating_mul(u128::from(width)).saturating_mul(u128::from(s)),
    )
}

/// More bytes than any machine has stay more than any budget.
fn narrow(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    //! The worked examples of the report that the formulas come from, each with what the formula really gives.

    use super::*;

    const MB: u64 = 1_000_000;
    const GB: u64 = 1_000 * MB;

    #[test]
    fn seven_billion_weights_of_four_bits() {
        assert_eq!(base_bytes(7 * GB, 4), 3_500 * MB);
        // The report's 5048 MB are the footprint of fine-tuning in its source, gradients and all; the formula gives two thirds of it, and
        // with a 32-bit scale for each 64 weights 3937.5 MB.
        let scales = base_bytes(7 * GB, 32) / 64;
        assert_eq!(base_bytes(7 * GB, 4) + scales, 3_937_500_000);
        assert!(base_bytes(7 * GB, 4) + scales < 5_048 * MB);
    }

    #[test]
    fn rank_sixteen_over_every_projection_of_a_70b_model() {
        // hidden 8192, k and v 1024, feed-forward 28672; 80 layers; 16-bit factors.
        let projections = [
            (8192, 8192),
            (1024, 8192),
            (1024, 8192),
            (8192, 8192),
            (28672, 8192),
            (28672, 8192),
            (8192, 28672),
        ];
        let layer: u64 = projections.iter().map(|&(m, n)| low_rank_bytes(16, m, n, 2)).sum();
        let total = 80 * layer;
        assert_eq!(total, 414_187_520);
        // "~400 MB of 140 GB (0.28 %)": 3.5 % above the one, and 0.0029 of the other.
        assert!(total.abs_diff(400 * MB) * 100 < 4 * 400 * MB);
        assert_eq!(total * 10_000 / base_bytes(70 * GB, 16), 29);
    }

    #[test]
    fn sparse_values_of_sixteen_bits_with_indices_of_thirty_two() {
        assert_eq!(sparse_bytes(1_000, 2, 4), 6_000);
        // Beyond a sixth of the values the index costs more than a dense delta of 16 bits would.
        let dense = matrix_bytes(4096, 4096, 2);
        assert!(sparse_bytes(4096 * 4096 / 3, 2, 4) <= dense);
        assert!(sparse_bytes(4096 * 4096 / 3 + 1, 2, 4) > dense);
    }

    #[test]
    fn scale_vectors_are_very_small() {
        assert_eq!(scale_vector_bytes(4096, 4096, 2), 16_384);
    }

    #[test]
    fn one_matrix_in_sixteen_bits() {
        // "≈ 32 MB"
        assert_eq!(matrix_bytes(4096, 4096, 2), 32 << 20);
    }

    #[test]
    fn the_peak_of_a_switch() {
        // "P ≈ 5.4 GB + buffers" for a base of 5 GB and 400 MB of adapters: dequantization and requantization buffers of the largest matrix
        // come on top, and in slm do not exist.
        let (base, adapters) = (5 * GB, 400 * MB);
        assert_eq!(base + adapters, 5_400 * MB);
        let buffers = 2 * matrix_bytes(11008, 4096, 2);
        assert_eq!(buffers, 180_355_072);
    }

    #[test]
    fn rank_eight_on_a_square_matrix_of_4096() {
        let (extra, whole) = (low_rank_macs(8, 4096, 4096), 4096 * 4096);
        assert_eq!(extra, 65_536);
        // The report says "< 0.2 %": that is r / (m + n). Of the work that is r (m + n) / (m n), 0.39 %.
        assert_eq!(extra * 10_000 / whole, 39);
    }

    #[test]
    fn what_overflows_is_more_than_any_budget() {
        assert_eq!(base_bytes(u64::MAX, 32), u64::MAX);
        assert_eq!(low_rank_bytes(u64::MAX, u64::MAX, 1, 4), u64::MAX);
        assert_eq!(low_rank_bytes(1 << 41, 1 << 20, 1 << 20, 4), u64::MAX);
    }
}
