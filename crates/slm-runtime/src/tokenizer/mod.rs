//! Text to token ids and back, decided by one canonical document.
//!
//! A [`TokenizerSpec`] holds everything that decides the ids: vocabulary, merges or ranks, pre-tokenizer, special ids. It is read
//! from GGUF metadata, from Hugging Face files or from an SLM1 file's section; they give the same document where they say the same. A [`Tokenizer`] is the
//! compiled form of a spec. The merge loop is ours, because no crate measured was right on every case within the memory that
//! `docs/tokenizers.md` allows; the figures are there.
//!
//! Special tokens inside a user's text stay text unless the caller asks for [`SpecialTokens::Parse`].
//!
//! This module does not know models, prompts or templates.

mod byte_map;
mod decode;
mod encode;
mod error;
mod gguf;
mod hf;
mod marked;
mod pairs;
mod pre_tokenizer;
mod slm1;
mod spec;

pub use decode::{SpecialText, StreamDecoder};
pub use encode::{SpecialTokens, Tokenizer};
pub use error::TokenizerError;
pub use pre_tokenizer::PreTokenizer;
pub use spec::{Algorithm, RawTokenizerSpec, Stripping, Token, TokenKind, TokenizerSpec};
pub(crate) use spec::{Document, SPACE_MARK, every_split};

#[cfg(test)]
mod tests;
