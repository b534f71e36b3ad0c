//! Sizes, each product checked once.

use slm_manifest::KvType;

use crate::KvError;

/// How a cache is laid out. Every product of its fields fits in memory sizes of the machine, so later code multiplies freely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvGeometry {
    widths: Vec<u32>,
    page_len: u32,
    capacity: u32,
    /// Values of one position over all layers, K and V.
    row_values: usize,
}

impl KvGeometry {
    /// A geometry of one row width per layer (`n_kv_heads * head_dim` values), `page_len` positions per page, and at most `capacity`
    /// positions.
    ///
    /// # Errors
    /// [`KvError::Geometry`] when a field is zero or a page or the whole cache would not fit in the address space.
    pub fn new(widths: Vec<u32>, page_len: u32, capacity: u32) -> Result<KvGeometry, KvError> {
        let wrong = |field, found, expected| Err(KvError::Geometry { field, found, expected });
        if widths.is_empty() {
            return wrong("layers", 0, "at least one");
        }
        if widths.contains(&0) {
            return wrong("width", 0, "a positive number");
        }
        if page_len == 0 {
            return wrong("page_len", 0, "a positive number");
        }
        if capacity == 0 {
            return wrong("capacity", 0, "a positive number");
        }
        let widest = size_of::<f32>() as u64;
        let too_large = KvError::Geometry {
            field: "bytes",
            found: u64::MAX,
            expected: "a cache that fits in memory",
        };
        let row = widths
            .iter()
            .try_fold(0u64, |sum, &width| sum.checked_add(2 * u64::from(width)))
            .ok_or(too_large.clone())?;
        // Checked at f32 width, so that a geometry is good for either type.
        let bytes = row
            .checked_mul(widest)
            .and_then(|bytes| bytes.checked_mul(u64::from(capacity)))
            .filter(|&bytes| bytes <= isize::MAX as u64)
            .ok_or(too_large)?;
        debug_assert!(bytes >= row);
        let row_values = usize::try_from(row).expect("BUG: a row is longer than the whole cache");
        Ok(KvGeometry { widths, page_len, capacity, row_values })
    }

    /// Row width of each layer, in values.
    pub fn widths(&self) -> &[u32] {
        &self.widths
    }

    /// Positions per page.
    pub fn page_len(&self) -> u32 {
        self.page_len
    }

    /// Most positions the cache may hold.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Bytes of a full cache of `kv_type`: the most that a cache of this geometry ever reserves for rows.
    pub fn bytes(&self, kv_type: KvType) -> u64 {
        self.row_values as u64 * value_bytes(kv_type) * u64::from(self.capacity)
    }

    /// Values of one position over all layers, K and V.
    pub(crate) fn row_values(&self) -> usize {
        self.row_values
    }

    /// Positions that page `index` holds: `page_len`, less in the last page where the capacity is no multiple of it.
    pub(crate) fn page_positions(&self, index: usize) -> u32 {
        let first = index as u64 * u64::from(self.page_len);
        let left = u64::from(self.capacity).saturating_sub(first);
        left.min(u64::from(self.page_len)) as u32
    }

    /// Pages that hold `positions` positions.
    pub(crate) fn pages(&self, positions: u32) -> usize {
        positions.div_ceil(self.page_len) as usize
    }
}

/// Bytes of one value.
pub(crate) fn value_bytes(kv_type: KvType) -> u64 {
    match kv_type {
        KvType::F16 => 2,
        KvType::F32 => 4,
    }
}

#[cfg(test)]
mod tests {
    use slm_format::Coded;

    use super::*;

    #[test]
    fn zero_and_overflowing_fields_are_refused_and_their_twins_accepted() {
        assert!(KvGeometry::new(vec![64, 32], 32, 100).is_ok());
        for (widths, page_len, capacity) in [
            (vec![], 32, 100),
            (vec![64, 0], 32, 100),
            (vec![64, 32], 0, 100),
            (vec![64, 32], 32, 0),
            (vec![u32::MAX; 2], 32, u32::MAX),
        ] {
            assert_eq!(
                KvGeometry::new(widths, page_len, capacity).unwrap_err().code(),
                "kv-geometry"
            );
        }
    }

    #[test]
    fn the_last_page_is_as_short_as_the_capacity_makes_it() {
        let geometry = KvGeometry::new(vec![64, 32], 32, 70).unwrap();
        assert_eq!(
            (0..4).map(|index| geometry.page_positions(index)).collect::<Vec<_>>(),
            [32, 32, 6, 0]
        );
        assert_eq!([0, 1, 32, 33, 70].map(|n| geometry.pages(n)), [0, 1, 1, 2, 3]);
        assert_eq!(geometry.bytes(KvType::F16), 70 * 2 * 96 * 2);
        assert_eq!(geometry.bytes(KvType::F32), 70 * 2 * 96 * 4);
    }
}
