//! `Digest` (sha256, public) and `ContentHash` (BLAKE3, inside files).

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::error::Coded;

/// A sha256 digest with exactly one spelling, `sha256:` and 64 lower-case hexadecimal digits.
///
/// It has no `Deref` and no `AsRef`: a digest is compared, printed and parsed, and turned into bytes only on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// Why a string is not a digest, or bytes do not have the digest they should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DigestError {
    /// The text is not `sha256:` and 64 lower-case hexadecimal digits.
    #[error("{text:?} is not a digest: expected sha256: and 64 lower-case hexadecimal digits")]
    Spelling {
        /// What was given, cut to 80 characters.
        text: String,
    },
    /// The bytes have another digest.
    #[error("digest mismatch: expected {expected}, found {found}")]
    Mismatch {
        /// The digest that was asked for.
        expected: Digest,
        /// The digest of the bytes.
        found: Digest,
    },
}

impl Coded for DigestError {
    fn code(&self) -> &'static str {
        match self {
            DigestError::Spelling { .. } => "digest-spelling",
            DigestError::Mismatch { .. } => "digest-mismatch",
        }
    }
}

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// A digest of `bytes` that no other kind of value can share: sha256 over the domain tag's length (one byte), the tag, and the bytes.
    pub fn of_domain(domain: &'static str, bytes: &[u8]) -> Digest {
        let mut writer = DigestWriter::with_domain(domain);
        writer.update(bytes);
        writer.finish()
    }

    /// The digest with these 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }

    /// The 32 bytes.
    pub const fn to_bytes(self) -> [u8; 32] {
        self.0
    }

    /// The 64 hexadecimal digits without the prefix, fit for a file name.
    pub fn hex(self) -> String {
        hex(&self.0)
    }

    /// Checks that `bytes` have this digest.
    ///
    /// # Errors
    /// [`DigestError::Mismatch`] with both digests.
    pub fn verify(self, bytes: &[u8]) -> Result<(), DigestError> {
        let found = Digest::of(bytes);
        if found == self { Ok(()) } else { Err(DigestError::Mismatch { expected: self, found }) }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Digest, DigestError> {
        text.strip_prefix("sha256:")
            .and_then(parse_hex)
            .map(Digest)
            .ok_or_else(|| DigestError::Spelling { text: text.chars().take(80).collect() })
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
        } else {
            <[u8; 32]>::deserialize(deserializer).map(Digest)
        }
    }
}

/// Computes a [`Digest`] piece by piece.
///
/// ```
/// use slm_format::{Digest, DigestWriter};
///
/// let mut writer = DigestWriter::new();
/// writer.update(b"hel");
/// writer.update(b"lo");
/// assert_eq!(writer.finish(), Digest::of(b"hello"));
/// ```
#[derive(Clone, Default)]
pub struct DigestWriter(Sha256);

impl DigestWriter {
    /// An empty digest computation.
    pub fn new() -> DigestWriter {
        DigestWriter::default()
    }

    /// A computation that starts with a domain tag; see [`Digest::of_domain`].
    pub fn with_domain(domain: &'static str) -> DigestWriter {
        let mut writer = DigestWriter::new();
        let tag_len =
            u8::try_from(domain.len()).expect("BUG: a domain tag is longer than 255 bytes");
        writer.update(&[tag_len]);
        writer.update(domain.as_bytes());
        writer
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of everything added.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

/// A BLAKE3 hash: of a tensor, of a section, of logits. Fast to verify; never the public name of anything.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// The BLAKE3 hash of `bytes`.
    pub fn of(bytes: &[u8]) -> ContentHash {
        ContentHash(*blake3::hash(bytes).as_bytes())
    }

    /// The hash with these 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> ContentHash {
        ContentHash(bytes)
    }

    /// The 32 bytes.
    pub const fn to_bytes(self) -> [u8; 32] {
        self.0
    }
}

/// Computes a [`ContentHash`] piece by piece.
#[derive(Clone, Default)]
pub struct ContentHasher(blake3::Hasher);

impl ContentHasher {
    /// An empty computation.
    pub fn new() -> ContentHasher {
        ContentHasher::default()
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of everything added.
    pub fn finish(self) -> ContentHash {
        ContentHash(*self.0.finalize().as_bytes())
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blake3:{}", hex(&self.0))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn hex(bytes: &[u8; 32]) -> String {
    use fmt::Write as _;
    let mut text = String::with_capacity(64);
    for byte in bytes {
        write!(text, "{byte:02x}").expect("BUG: writing to a String failed");
    }
    text
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0u8; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_only() {
        let digest = Digest::of(b"");
        let text = digest.to_string();
        // FIPS 180-4: sha256 of the empty string.
        assert_eq!(text, "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(text.parse::<Digest>().unwrap(), digest);
        for bad in [
            text.to_uppercase(),
            text.replace("sha256:", ""),
            format!("{text}0"),
            format!(" {text}"),
            text.replace("sha256:", "sha256:../../"),
            text.replace('e', "g"),
        ] {
            assert_eq!(bad.parse::<Digest>().unwrap_err().code(), "digest-spelling", "{bad}");
        }
    }

    #[test]
    fn domains_do_not_collide() {
        assert_ne!(Digest::of_domain("a", b"bc"), Digest::of_domain("ab", b"c"));
        assert_ne!(Digest::of_domain("a", b""), Digest::of(b"a"));
    }

    #[test]
    fn mismatch_tells_both() {
        let error = Digest::of(b"a").verify(b"b").unwrap_err();
        assert_eq!(
            error,
            DigestError::Mismatch { expected: Digest::of(b"a"), found: Digest::of(b"b") }
        );
    }
}
