//! Block geometry of tensor encodings: how many bytes a row takes. No arithmetic on weights.

use serde::{Deserialize, Serialize};

/// How the elements of a tensor are stored.
///
/// Sizes and type numbers are ggml's, but for [`Encoding::NF4`], which is ours: 64 elements as one little-endian f32 (the block's
/// absolute maximum, double quantization already undone) and 32 bytes of codes, high nibble first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(non_camel_case_types, reason = "the field's own names")]
#[non_exhaustive]
pub enum Encoding {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    BF16,
    /// 4 bits, f16 scale, blocks of 32.
    Q4_0,
    /// 4 bits, f16 scale and minimum, blocks of 32.
    Q4_1,
    /// 5 bits, f16 scale, blocks of 32.
    Q5_0,
    /// 5 bits, f16 scale and minimum, blocks of 32.
    Q5_1,
    /// 8 bits, f16 scale, blocks of 32.
    Q8_0,
    /// 2 bits, 4-bit scales and minima, super-blocks of 256.
    Q2_K,
    /// 3 bits, 6-bit scales, super-blocks of 256.
    Q3_K,
    /// 4 bits, 6-bit scales and minima, super-blocks of 256.
    Q4_K,
    /// 5 bits, 6-bit scales and minima, super-blocks of 256.
    Q5_K,
    /// 6 bits, 8-bit scales, super-blocks of 256.
    Q6_K,
    /// 4-bit codes of a non-linear table, f16 scale, blocks of 32.
    IQ4_NL,
    /// 4-bit codes of a non-linear table, 6-bit scales, super-blocks of 256.
    IQ4_XS,
    /// 4-bit floats (E2M1) with a shared power of two, blocks of 32.
    MXFP4,
    /// 4-bit normal-float codes with an f32 scale, blocks of 64.
    NF4,
}

/// (encoding, ggml type number, name, elements per block, bytes per block)
const TABLE: [(Encoding, Option<u32>, &str, usize, usize); 17] = [
    (Encoding::F32, Some(0), "F32", 1, 4),
    (Encoding::F16, Some(1), "F16", 1, 2),
    (Encoding::Q4_0, Some(2), "Q4_0", 32, 18),
    (Encoding::Q4_1, Some(3), "Q4_1", 32, 20),
    (Encoding::Q5_0, Some(6), "Q5_0", 32, 22),
    (Encoding::Q5_1, Some(7), "Q5_1", 32, 24),
    (Encoding::Q8_0, Some(8), "Q8_0", 32, 34),
    (Encoding::Q2_K, Some(10), "Q2_K", 256, 84),
    (Encoding::Q3_K, Some(11), "Q3_K", 256, 110),
    (Encoding::Q4_K, Some(12), "Q4_K", 256, 144),
    (Encoding::Q5_K, Some(13), "Q5_K", 256, 176),
    (Encoding::Q6_K, Some(14), "Q6_K", 256, 210),
    (Encoding::IQ4_NL, Some(20), "IQ4_NL", 32, 18),
    (Encoding::IQ4_XS, Some(23), "IQ4_XS", 256, 136),
    (Encoding::BF16, Some(30), "BF16", 1, 2),
    (Encoding::MXFP4, Some(39), "MXFP4", 32, 17),
    (Encoding::NF4, None, "NF4", 64, 36),
];

/// The table has every encoding: one that is added is the last then.
const _: () = assert!(Encoding::NF4 as usize + 1 == TABLE.len());

/// Where in the table each encoding is, in the order of the enumeration.
const PLACES: [u8; TABLE.len()] = {
    let mut places = [u8::MAX; TABLE.len()];
    let mut at = 0;
    while at < TABLE.len() {
        let place = &mut places[TABLE[at].0 as usize];
        assert!(*place == u8::MAX, "an encoding twice in the table");
        *place = at as u8;
        at += 1;
    }
    places
};

impl Encoding {
    /// Every encoding, in the order of ggml's type numbers.
    pub fn all() -> impl Iterator<Item = Encoding> {
        TABLE.iter().map(|row| row.0)
    }

    /// The encoding with this ggml type number, if slm has it.
    pub fn from_ggml_type(number: u32) -> Option<Encoding> {
        TABLE.iter().find(|row| row.1 == Some(number)).map(|row| row.0)
    }

    /// ggml's type number; `None` for [`Encoding::NF4`], which GGUF cannot hold.
    pub fn ggml_type(self) -> Option<u32> {
        self.row().1
    }

    /// The encoding with this name, as [`Encoding::name`] spells it.
    pub fn from_name(name: &str) -> Option<Encoding> {
        TABLE.iter().find(|row| row.2 == name).map(|row| row.0)
    }

    /// The field's name, for example `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Elements per block; 1 for plain floats.
    #[inline]
    pub fn block_elements(self) -> usize {
        self.row().3
    }

    /// Bytes per block.
    #[inline]
    pub fn block_bytes(self) -> usize {
        self.row().4
    }

    /// Whether the codes of a block are integers under common scales, so that its product with 8-bit activations is an integer sum.
    /// Plain floats, [`Encoding::MXFP4`] and [`Encoding::NF4`] are not.
    pub fn is_integer_coded(self) -> bool {
        !matches!(
            self,
            Encoding::F32 | Encoding::F16 | Encoding::BF16 | Encoding::MXFP4 | Encoding::NF4
        )
    }

    /// Bytes of a row of `cols` elements; `None` when `cols` is not a whole number of blocks or the product overflows.
    #[inline]
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_elements()) {
            return None;
        }
        (cols / self.block_elements()).checked_mul(self.block_bytes())
    }

    /// Bytes of a tensor whose innermost dimension is `shape[0]`, as GGUF counts dimensions; `None` as in [`Encoding::row_bytes`].
    pub fn tensor_bytes(self, shape: &[u64]) -> Option<u64> {
        let (&cols, outer) = shape.split_first()?;
        let block_elements = self.block_elements() as u64;
        if cols % block_elements != 0 {
            return None;
        }
        let row = (cols / block_elements).checked_mul(self.block_bytes() as u64)?;
        outer.iter().try_fold(row, |bytes, &dim| bytes.checked_mul(dim))
    }

    #[inline]
    fn row(self) -> &'static (Encoding, Option<u32>, &'static str, usize, usize) {
        &TABLE[PLACES[self as usize] as usize]
    }
}

impl core::fmt::Display for Encoding {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_round_trip() {
        for encoding in Encoding::all() {
            assert_eq!(Encoding::from_name(encoding.name()), Some(encoding));
            if let Some(number) = encoding.ggml_type() {
                assert_eq!(Encoding::from_ggml_type(number), Some(encoding));
            }
        }
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(Encoding::Q4_K.tensor_bytes(&[512, 3]), Some(288 * 3));
        assert_eq!(Encoding::Q4_K.tensor_bytes(&[100, 3]), None);
        assert_eq!(Encoding::F32.tensor_bytes(&[1 << 62, 4]), None);
        assert_eq!(Encoding::F32.tensor_bytes(&[]), None);
    }
}
