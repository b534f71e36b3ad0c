//! Bytes to checked views.
//!
//! This crate turns untrusted bytes into values that need no further checks: the [`Digest`] type, the [`Limits`] every decode
//! travels with, the bounded [`Reader`], block geometry of tensor encodings ([`Encoding`]), and readers of GGUF, safetensors, SLM1 and the
//! `.slm` container.
//!
//! It does not know models, arithmetic on weights, or paths: input is `&[u8]`.
//!
//! ```
//! use slm_format::{Digest, Encoding};
//!
//! let digest = Digest::of(b"hello");
//! assert_eq!(digest, digest.to_string().parse().unwrap());
//! assert_eq!(Encoding::Q4_0.row_bytes(64), Some(36));
//! ```

pub mod container;
pub mod error;
pub mod gguf;
pub mod safetensors;
pub mod slm1;

mod counted;
mod digest;
mod encoding;
mod limits;
mod read;

pub use digest::{ContentHash, ContentHasher, Digest, DigestError, DigestWriter};
pub use encoding::Encoding;
pub use error::{Coded, ErrorClass};
pub use limits::Limits;
pub use read::{ReadError, Reader};
