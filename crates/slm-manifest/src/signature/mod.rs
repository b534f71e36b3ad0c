//! Detached signatures in the form of minisign: Ed25519 over a document's bytes, with a signed comment.
//!
//! What is signed is the document as a store keeps it: the canonical JSON (RFC 8785) of a [`crate::Manifest`] or of an
//! evaluation record. Its sha256 is the digest that everything else uses, so a signature holds for the TOML and the JSON form
//! of one manifest alike, and anybody who has the stored blob can check it with the public minisign program and no line of ours. Signing
//! the digest's text instead would shorten nothing that matters (documents are a few kilobytes) and would take that away.
//!
//! The trusted comment, which the signature covers as well, names the digest: so a signature that lies alone says what it belongs to, and one
//! that was laid beside another document is refused with both digests instead of a plain "invalid". A signature made by another program
//! names none, and is as good: the bytes decide.
//!
//! ```
//! use slm_manifest::signature::{SecretKey, Signature, SignedDocument};
//!
//! let secret = SecretKey::from_random([7; 40])?;
//! let document = br#"{"a":1}"#;
//! let signature = secret.sign(document, &SignedDocument::manifest(document).comment(1_796_083_199))?;
//!
//! let read = Signature::parse(signature.to_document().as_bytes())?;
//! assert_eq!(read.names(), Some(SignedDocument::manifest(document)));
//! secret.public_key().verify(document, &read)?;
//! assert!(secret.public_key().verify(br#"{"a":2}"#, &read).is_err());
//! # Ok::<(), slm_manifest::signature::SignatureError>(())
//! ```

mod comment;
mod detached;
mod error;
mod public;
mod secret;
mod text;

use core::fmt;
use core::str::FromStr;

pub use comment::{DocumentKind, SignedDocument};
pub use detached::{Prehash, Signature};
pub use error::{FileKind, SignatureError};
pub use public::PublicKey;
pub use secret::{SECRET_KEY_RANDOM_BYTES, SecretKey, SecretKeyFile};

/// Most bytes of a key file or a signature.
pub const MAX_FILE_BYTES: usize = 16 << 10;

/// The eight bytes that tell keys apart, written as minisign writes them: sixteen upper-case hexadecimal digits.
///
/// A random label, not a fingerprint: two keys can have one id, so a signature is checked with the key and never by the id alone.
///
/// ```
/// use slm_manifest::signature::KeyId;
///
/// let id: KeyId = "8D8E569AF1735CB7".parse().unwrap();
/// assert_eq!(id.to_string(), "8D8E569AF1735CB7");
/// assert!("8d8e569af1735cb7".parse::<KeyId>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId([u8; 8]);

impl KeyId {
    /// The id of these bytes, in the order of the file.
    pub const fn from_bytes(bytes: [u8; 8]) -> KeyId {
        KeyId(bytes)
    }

    /// The bytes, in the order of the file.
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0
    }
}

/// Written as the little-endian number that the bytes are.
impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", u64::from_le_bytes(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

impl FromStr for KeyId {
    type Err = SignatureError;

    fn from_str(text: &str) -> Result<KeyId, SignatureError> {
        let spelled = text.len() == 16
            && text.bytes().all(|byte| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte));
        match u64::from_str_radix(text, 16) {
            Ok(number) if spelled => Ok(KeyId(number.to_le_bytes())),
            _ => Err(SignatureError::KeyId { found: text.chars().take(80).collect() }),
        }
    }
}
