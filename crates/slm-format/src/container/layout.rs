//! The byte map of the container, version 0: every offset follows from the field before it. `docs/format.md` says what they mean.

use crate::encoding::Encoding;

/// The first eight bytes: not text, and broken by any conversion of line ends.
pub const MAGIC: [u8; 8] = *b"\x89SLM\r\n\x1a\n";
/// The version this crate reads and writes.
pub const VERSION: u32 = 0;
/// Payloads of sections and tensors start at multiples of this.
pub const ALIGNMENT: u64 = 64;
/// How the rows of a tensor are laid out in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorLayout {
    /// Row after row, as ggml has them.
    Rows,
    /// Strips of sixteen rows, a permutation of the same bytes; `docs/format.md` defines it per encoding.
    Interleaved16,
}

impl TensorLayout {
    /// The code in the file.
    pub fn number(self) -> u16 {
        match self {
            TensorLayout::Rows => 0,
            TensorLayout::Interleaved16 => 1,
        }
    }

    /// Whether tensors in `encoding` can be laid out so. Where interleaving would change nothing there is no such layout, so that one tensor
    /// has one form.
    pub fn fits(self, encoding: Encoding) -> bool {
        match self {
            TensorLayout::Rows => true,
            TensorLayout::Interleaved16 => matches!(
                encoding,
                Encoding::Q4_0
                    | Encoding::Q4_1
                    | Encoding::Q5_0
                    | Encoding::Q5_1
                    | Encoding::Q8_0
                    | Encoding::Q4_K
                    | Encoding::Q5_K
                    | Encoding::Q6_K
            ),
        }
    }

    /// The layout of this code.
    pub fn from_number(number: u16) -> Option<TensorLayout> {
        [TensorLayout::Rows, TensorLayout::Interleaved16]
            .into_iter()
            .find(|layout| layout.number() == number)
    }
}
/// Dimensions that a tensor entry has room for.
pub const MAX_DIMS: usize = 4;

/// Field sizes and offsets of the header.
pub mod header {
    #![allow(missing_docs, reason = "named and described in docs/format.md")]
    pub const MAGIC: u64 = 0;
    pub const VERSION: u64 = MAGIC + 8;
    pub const SECTION_COUNT: u64 = VERSION + 4;
    pub const TENSOR_COUNT: u64 = SECTION_COUNT + 4;
    pub const NAMES_LENGTH: u64 = TENSOR_COUNT + 4;
    pub const FILE_LENGTH: u64 = NAMES_LENGTH + 4;
    pub const INDEX_BLAKE3: u64 = FILE_LENGTH + 8;
    pub const SIZE: u64 = INDEX_BLAKE3 + 32;
}

/// Field offsets of a section entry.
pub mod section {
    #![allow(missing_docs, reason = "named and described in docs/format.md")]
    pub const KIND: u64 = 0;
    pub const RESERVED: u64 = KIND + 4;
    pub const OFFSET: u64 = RESERVED + 4;
    pub const LENGTH: u64 = OFFSET + 8;
    pub const SHA256: u64 = LENGTH + 8;
    pub const BLAKE3: u64 = SHA256 + 32;
    pub const SIZE: u64 = BLAKE3 + 32;
}

/// Field offsets of a tensor entry.
pub mod tensor {
    #![allow(missing_docs, reason = "named and described in docs/format.md")]
    pub const OFFSET: u64 = 0;
    pub const LENGTH: u64 = OFFSET + 8;
    pub const BLAKE3: u64 = LENGTH + 8;
    pub const SHAPE: u64 = BLAKE3 + 32;
    pub const NAME_LENGTH: u64 = SHAPE + 8 * super::MAX_DIMS as u64;
    pub const ENCODING: u64 = NAME_LENGTH + 4;
    pub const LAYOUT: u64 = ENCODING + 2;
    pub const N_DIMS: u64 = LAYOUT + 2;
    pub const RESERVED: u64 = N_DIMS + 4;
    pub const SIZE: u64 = RESERVED + 4;
}

const _: () = assert!(header::SIZE == ALIGNMENT);
const _: () = assert!(section::SIZE == 88 && section::SIZE.is_multiple_of(8));
const _: () = assert!(tensor::SIZE == 96 && tensor::SIZE.is_multiple_of(8));
const _: () = assert!(section::OFFSET.is_multiple_of(8) && tensor::SHAPE.is_multiple_of(8));

/// Every field: structure, name, offset, size. `docs/format.md` has the same table.
pub const FIELDS: &[(&str, &str, u64, u64)] = &[
    ("header", "magic", header::MAGIC, header::VERSION - header::MAGIC),
    ("header", "version", header::VERSION, header::SECTION_COUNT - header::VERSION),
    (
        "header",
        "section_count",
        header::SECTION_COUNT,
        header::TENSOR_COUNT - header::SECTION_COUNT,
    ),
    ("header", "tensor_count", header::TENSOR_COUNT, header::NAMES_LENGTH - header::TENSOR_COUNT),
    ("header", "names_length", header::NAMES_LENGTH, header::FILE_LENGTH - header::NAMES_LENGTH),
    ("header", "file_length", header::FILE_LENGTH, header::INDEX_BLAKE3 - header::FILE_LENGTH),
    ("header", "index_blake3", header::INDEX_BLAKE3, header::SIZE - header::INDEX_BLAKE3),
    ("section", "kind", section::KIND, section::RESERVED - section::KIND),
    ("section", "reserved", section::RESERVED, section::OFFSET - section::RESERVED),
    ("section", "offset", section::OFFSET, section::LENGTH - section::OFFSET),
    ("section", "length", section::LENGTH, section::SHA256 - section::LENGTH),
    ("section", "sha256", section::SHA256, section::BLAKE3 - section::SHA256),
    ("section", "blake3", section::BLAKE3, section::SIZE - section::BLAKE3),
    ("tensor", "offset", tensor::OFFSET, tensor::LENGTH - tensor::OFFSET),
    ("tensor", "length", tensor::LENGTH, tensor::BLAKE3 - tensor::LENGTH),
    ("tensor", "blake3", tensor::BLAKE3, tensor::SHAPE - tensor::BLAKE3),
    ("tensor", "shape", tensor::SHAPE, tensor::NAME_LENGTH - tensor::SHAPE),
    ("tensor", "name_length", tensor::NAME_LENGTH, tensor::ENCODING - tensor::NAME_LENGTH),
    ("tensor", "encoding", tensor::ENCODING, tensor::LAYOUT - tensor::ENCODING),
    ("tensor", "layout", tensor::LAYOUT, tensor::N_DIMS - tensor::LAYOUT),
    ("tensor", "n_dims", tensor::N_DIMS, tensor::RESERVED - tensor::N_DIMS),
    ("tensor", "reserved", tensor::RESERVED, tensor::SIZE - tensor::RESERVED),
];

/// The container's number for NF4, which ggml has none for.
const NF4_CODE: u16 = 256;

/// The container's stable number of `encoding`: ggml's where it has one, our own from 256 on.
pub fn encoding_code(encoding: Encoding) -> u16 {
    match encoding.ggml_type() {
        Some(number) => u16::try_from(number).expect("BUG: a ggml type number passes 16 bits"),
        None => NF4_CODE,
    }
}

/// The encoding with this number.
pub fn encoding_from_code(code: u16) -> Option<Encoding> {
    match code {
        NF4_CODE => Some(Encoding::NF4),
        code => Encoding::from_ggml_type(code.into()),
    }
}

/// What a section holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[non_exhaustive]
pub enum SectionKind {
    /// The tensors of the tensor table.
    BaseWeights = 1,
    /// The checked model configuration.
    Config = 2,
    /// The canonical tokenizer document.
    Tokenizer = 3,
    /// GGUF metadata verbatim; see [`crate::gguf::RawMetadata::to_bytes`].
    SourceMetadata = 4,
    /// An adapter in its normal form.
    Adapter = 5,
    /// A composition manifest.
    Manifest = 6,
    /// A generation record.
    Generation = 7,
    /// An evaluation record.
    EvaluationRecord = 8,
    /// A cliff atlas.
    Atlas = 9,
    /// A head-level atlas.
    HeadAtlas = 10,
    /// A compression plan.
    CompressionPlan = 11,
    /// A prefix cache.
    PrefixCache = 12,
    /// A detached signature.
    Signature = 13,
}

const KINDS: [(SectionKind, &str); 13] = [
    (SectionKind::BaseWeights, "base weights"),
    (SectionKind::Config, "config"),
    (SectionKind::Tokenizer, "tokenizer"),
    (SectionKind::SourceMetadata, "source metadata"),
    (SectionKind::Adapter, "adapter"),
    (SectionKind::Manifest, "manifest"),
    (SectionKind::Generation, "generation"),
    (SectionKind::EvaluationRecord, "evaluation record"),
    (SectionKind::Atlas, "atlas"),
    (SectionKind::HeadAtlas, "head atlas"),
    (SectionKind::CompressionPlan, "compression plan"),
    (SectionKind::PrefixCache, "prefix cache"),
    (SectionKind::Signature, "signature"),
];

impl SectionKind {
    /// Every kind, by number.
    pub fn all() -> impl Iterator<Item = SectionKind> {
        KINDS.iter().map(|row| row.0)
    }

    /// The kind with this number.
    pub fn from_number(number: u32) -> Option<SectionKind> {
        SectionKind::all().find(|kind| kind.number() == number)
    }

    /// The number in the file.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The name as `docs/format.md` has it, for example `source metadata`.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|row| row.0 == self).expect("BUG: a kind is missing from the table").1
    }

    /// Whether a file has at most one section of this kind.
    pub fn is_single(self) -> bool {
        matches!(
            self,
            SectionKind::BaseWeights
                | SectionKind::Config
                | SectionKind::Tokenizer
                | SectionKind::SourceMetadata
        )
    }
}

impl core::fmt::Display for SectionKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// The first place at or after `end` where a payload may start; `None` past the end of u64.
pub(crate) fn align_up(end: u64) -> Option<u64> {
    end.checked_next_multiple_of(ALIGNMENT)
}
