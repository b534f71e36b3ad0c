//! Element types.

use crate::encoding::Encoding;

/// How the elements of a safetensors tensor are stored: the format's types of whole bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(
    non_camel_case_types,
    missing_docs,
    clippy::upper_case_acronyms,
    reason = "the format's own names"
)]
#[non_exhaustive]
pub enum Dtype {
    BOOL,
    U8,
    I8,
    F8_E5M2,
    F8_E4M3,
    F8_E8M0,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    F64,
    I64,
    U64,
}

const TABLE: [(Dtype, &str, u64); 16] = [
    (Dtype::BOOL, "BOOL", 1),
    (Dtype::U8, "U8", 1),
    (Dtype::I8, "I8", 1),
    (Dtype::F8_E5M2, "F8_E5M2", 1),
    (Dtype::F8_E4M3, "F8_E4M3", 1),
    (Dtype::F8_E8M0, "F8_E8M0", 1),
    (Dtype::I16, "I16", 2),
    (Dtype::U16, "U16", 2),
    (Dtype::F16, "F16", 2),
    (Dtype::BF16, "BF16", 2),
    (Dtype::I32, "I32", 4),
    (Dtype::U32, "U32", 4),
    (Dtype::F32, "F32", 4),
    (Dtype::F64, "F64", 8),
    (Dtype::I64, "I64", 8),
    (Dtype::U64, "U64", 8),
];

impl Dtype {
    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Dtype> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The format's name, for example `BF16`.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Bytes of one element.
    pub fn size(self) -> u64 {
        TABLE[self as usize].2
    }

    /// The encoding with the same bytes; only F32, F16 and BF16 have one.
    pub fn encoding(self) -> Option<Encoding> {
        match self {
            Dtype::F32 => Some(Encoding::F32),
            Dtype::F16 => Some(Encoding::F16),
            Dtype::BF16 => Some(Encoding::BF16),
            _ => None,
        }
    }

    /// The type with the same bytes as `encoding`; only plain floats have one.
    pub fn from_encoding(encoding: Encoding) -> Option<Dtype> {
        match encoding {
            Encoding::F32 => Some(Dtype::F32),
            Encoding::F16 => Some(Dtype::F16),
            Encoding::BF16 => Some(Dtype::BF16),
            _ => None,
        }
    }

    /// Bytes of a tensor of this shape; `None` where they cannot be counted.
    pub fn tensor_bytes(self, shape: &[u64]) -> Option<u64> {
        shape.iter().try_fold(self.size(), |bytes, &dim| bytes.checked_mul(dim))
    }
}

impl core::fmt::Display for Dtype {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
