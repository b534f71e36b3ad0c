//! SLM1, version 1: the container of TinyRustLM's base models.
//!
//! A 108-byte header, a tokenizer section, a directory of 64-byte entries, and tensor data in regions that start at multiples of 64; all
//! little-endian. Tensors have no names, only the FNV-1a hash of one ([`name_hash`]). The types `q8_0` and `q4_0` are **not** ggml's of these
//! names: values and f32 scales lie apart ([`Slm1Dtype`]).
//!
//! Source: the published byte layout (mirust.com, header, tensor directory, row and block scales). Where its two editions differ, this reader
//! takes what a graph can run: fewer key and value heads than heads, if they divide them; heads of any width. It takes the stricter side of all
//! else: `model_type` 1, at least 260 tokens, finite positive constants, an aligned directory. Two things are not public and so not checked: the
//! constants of the header's checksum, which must only not be zero, and the order of values and scales, which may be either.
//!
//! ```
//! use slm_format::{Limits, slm1::{self, RawHeader, ScaleOrder, Slm1, Slm1Dtype, Slm1Header, Slm1Tensor}};
//!
//! let header = Slm1Header::check(RawHeader {
//!     flags: slm1::TIED_OUTPUT, vocab_size: 260, special_token_count: 4, hidden_size: 8, layer_count: 1, head_count: 2, kv_head_count: 2,
//!     head_dim: 4, ffn_size: 16, max_context: 32, rope_theta: 10_000.0, rms_norm_epsilon: 1e-5, checksum: 1,
//! })?;
//! let tensor = Slm1Tensor {
//!     name_hash: slm1::name_hash("norm.weight"), dtype: Slm1Dtype::Q8_0, rank: 1, dims: [8, 1, 1, 1], block_size: 8, reserved: 0,
//!     values: &[1; 8], scales: &[0, 0, 128, 63],
//! };
//! let mut file = Vec::new();
//! slm1::write(&mut file, &header, &[], b"BTOK", &[tensor], ScaleOrder::PerTensor)?;
//! assert_eq!(file.len() % 64, 0);
//! assert_eq!(Slm1::parse(&file, &Limits::STANDARD)?.tensors(), [tensor]);
//! # Ok::<(), slm1::Slm1Error>(())
//! ```

mod error;
mod header;
mod tensor;
mod write;

pub use error::Slm1Error;
pub use header::{RawHeader, Slm1Header, TIED_OUTPUT};
pub use tensor::{Slm1Dtype, Slm1Tensor, name_hash};
pub use write::{ScaleOrder, write};

use crate::limits::Limits;
use crate::read::Reader;
use header::Places;

/// The first four bytes of a file.
pub const MAGIC: [u8; 4] = *b"SLM1";
/// Bytes of the header, without an extension.
pub const HEADER_BYTES: u32 = 108;
/// Bytes of one entry of the directory.
pub const ENTRY_BYTES: u64 = 64;
/// What the directory and every region of tensor data start at a multiple of.
pub const ALIGNMENT: u64 = 64;

/// A file whose every offset, length and scale was checked, and whose every byte belongs to one part or is zero.
#[derive(Debug, Clone, PartialEq)]
pub struct Slm1<'a> {
    header: Slm1Header,
    extension: &'a [u8],
    tokenizer: &'a [u8],
    tensors: Vec<Slm1Tensor<'a>>,
}

impl<'a> Slm1<'a> {
    /// Reads a whole file. Copies no tensor data; reserves no more than the directory has entries.
    ///
    /// # Errors
    /// [`Slm1Error`], one code per rule.
    pub fn parse(bytes: &'a [u8], limits: &Limits) -> Result<Slm1<'a>, Slm1Error> {
        let (header, places) = header::read(bytes)?;
        let mut regions = Regions { file: bytes, taken: Vec::new() };
        let extension = &regions.take("the header", 0, u64::from(places.header_length))?
            [HEADER_BYTES as usize..];
        let tokenizer =
            regions.take("the tokenizer", places.tokenizer_offset, places.tokenizer_length)?;
        if tokenizer.starts_with(b"BTOK") && header.special_token_count < 4 {
            return Err(Slm1Error::SpecialTokens { found: header.special_token_count });
        }
        let tensors = read_tensors(&mut regions, &places, limits)?;
        regions.check()?;
        Ok(Slm1 { header, extension, tokenizer, tensors })
    }

    /// The header.
    pub fn header(&self) -> &Slm1Header {
        &self.header
    }

    /// What stands between byte 108 and the header's end; usually nothing, and never looked into.
    pub fn extension(&self) -> &'a [u8] {
        self.extension
    }

    /// The tokenizer section, `BTOK` or `BPE1`, not looked into.
    pub fn tokenizer(&self) -> &'a [u8] {
        self.tokenizer
    }

    /// The tensors in the directory's order; no two have one hash.
    pub fn tensors(&self) -> &[Slm1Tensor<'a>] {
        &self.tensors
    }
}

fn read_tensors<'a>(
    regions: &mut Regions<'a>,
    places: &Places,
    limits: &Limits,
) -> Result<Vec<Slm1Tensor<'a>>, Slm1Error> {
    let found = u64::from(places.tensor_count);
    if found > limits.max_tensors {
        return Err(Slm1Error::TensorCount { found, limit: limits.max_tensors });
    }
    let at = places.tensor_directory_offset;
    aligned("the tensor directory", at)?;
    // A u32 times 64 fits.
    let directory = regions.take("the tensor directory", at, found * ENTRY_BYTES)?;
    aligned("the tensor data", places.tensor_data_offset)?;
    if places.tensor_data_offset > regions.file.len() as u64 {
        return Err(Slm1Error::Range {
            what: "the tensor data".to_owned(),
            offset: places.tensor_data_offset,
            length: 0,
            file_length: regions.file.len() as u64,
        });
    }
    let mut reader = Reader::new(directory);
    let mut tensors = Vec::new();
    let mut hashes = std::collections::BTreeMap::new();
    for index in 0..found {
        let tensor = tensor::read(&mut reader, index, regions, places.tensor_data_offset)?;
        if let Some(first) = hashes.insert(tensor.name_hash, index) {
            return Err(Slm1Error::DuplicateTensor { first, index, hash: tensor.name_hash });
        }
        tensors.push(tensor);
    }
    Ok(tensors)
}

fn aligned(what: &str, offset: u64) -> Result<(), Slm1Error> {
    match offset.is_multiple_of(ALIGNMENT) {
        true => Ok(()),
        false => Err(Slm1Error::Alignment { what: what.to_owned(), offset }),
    }
}

/// The parts of a file that were handed out.
struct Regions<'a> {
    file: &'a [u8],
    /// Begin and end of each, with what it is.
    taken: Vec<(u64, u64, String)>,
}

impl<'a> Regions<'a> {
    fn take(&mut self, what: &str, offset: u64, length: u64) -> Result<&'a [u8], Slm1Error> {
        let mut reader = Reader::new(self.file);
        let taken = reader
            .take("offset", offset)
            .and_then(|_| reader.take("region", length))
            .map_err(|_| Slm1Error::Range {
                what: what.to_owned(),
                offset,
                length,
                file_length: self.file.len() as u64,
            })?;
        if length > 0 {
            self.taken.push((offset, offset + length, what.to_owned()));
        }
        Ok(taken)
    }

    /// No byte belongs to two parts; bytes of none are zero.
    fn check(mut self) -> Result<(), Slm1Error> {
        self.taken.sort();
        let mut covered = 0;
        let end = self.file.len() as u64;
        for (begin, next, what) in self.taken.into_iter().chain([(end, end, "the end".to_owned())])
        {
            if begin < covered {
                return Err(Slm1Error::Overlap { what, begin, end: covered });
            }
            // Both are at most the file's length, which is a usize.
            let gap = &self.file[covered as usize..begin as usize];
            if let Some(at) = gap.iter().position(|&byte| byte != 0) {
                return Err(Slm1Error::Padding { at: covered + at as u64, found: gap[at] });
            }
            covered = next;
        }
        Ok(())
    }
}
