//! Public keys.

use core::fmt;

use blake2::{Blake2b512, Digest as _};

use super::detached::{Prehash, Signature};
use super::error::{FileKind, SignatureError};
use super::text::{self, UNTRUSTED};
use super::{DocumentKind, KeyId, SignedDocument};

const KIND: FileKind = FileKind::PublicKey;
/// Algorithm, id, key.
const BYTES: usize = 2 + 8 + 32;

/// A public key of minisign: an Ed25519 key and the id it goes by. It is a point of the curve and not one of the weak ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey {
    id: KeyId,
    key: [u8; 32],
}

impl PublicKey {
    /// The key `key` under the id `id`.
    ///
    /// # Errors
    /// `public-key-weak`.
    pub fn new(id: KeyId, key: [u8; 32]) -> Result<PublicKey, SignatureError> {
        ed25519_compact::PublicKey::new(key)
            .validate()
            .map_err(|_| SignatureError::WeakKey { key: id })?;
        Ok(PublicKey { id, key })
    }

    /// Reads minisign's file of two lines, or the one line that `minisign -P` takes.
    ///
    /// ```
    /// use slm_manifest::signature::PublicKey;
    ///
    /// // Made by minisign 0.11.
    /// let line = "RWS3XHPxmlaOjRoVdWRPfVYvN543ZehUMsxqBMxBBDdK65smyyCYSfgF";
    /// let key = PublicKey::parse(line.as_bytes()).unwrap();
    /// assert_eq!(key.id().to_string(), "8D8E569AF1735CB7");
    /// assert_eq!(key.to_base64(), line);
    /// assert_eq!(PublicKey::parse(key.to_file().as_bytes()).unwrap(), key);
    /// ```
    ///
    /// # Errors
    /// `public-key-malformed`, `signature-algorithm`, `public-key-weak`, `limit-exceeded`.
    pub fn parse(file: &[u8]) -> Result<PublicKey, SignatureError> {
        let (number, line) = if file.starts_with(UNTRUSTED.as_bytes()) {
            let [comment, line] = text::lines::<2>(KIND, file)?;
            text::after(KIND, 1, comment, UNTRUSTED)?;
            (2, line)
        } else {
            let [line] = text::lines::<1>(KIND, file)?;
            (1, line)
        };
        let bytes: [u8; BYTES] = text::decode(KIND, number, line)?;
        let mut rest = bytes.as_slice();
        let found = text::cut(&mut rest);
        if found != *b"Ed" {
            return Err(SignatureError::Algorithm { kind: KIND, found });
        }
        PublicKey::new(KeyId(text::cut(&mut rest)), text::cut(&mut rest))
    }

    /// Its id.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The Ed25519 key.
    pub fn to_bytes(self) -> [u8; 32] {
        self.key
    }

    /// The one line that `minisign -P` takes.
    pub fn to_base64(self) -> String {
        let mut bytes = b"Ed".to_vec();
        bytes.extend(self.id.to_bytes());
        bytes.extend(self.key);
        text::encode(&bytes)
    }

    /// The file that `minisign -p` takes.
    pub fn to_file(self) -> String {
        format!("{UNTRUSTED}minisign public key {}\n{}\n", self.id, self.to_base64())
    }

    /// Checks that `signature` is by this key and holds for `document` and for its own trusted comment.
    ///
    /// What the trusted comment says is not looked at: see [`PublicKey::verify_document`].
    ///
    /// # Errors
    /// `signature-other-key`, `signature-invalid`, `signature-comment-invalid`.
    pub fn verify(&self, document: &[u8], signature: &Signature) -> Result<(), SignatureError> {
        let (expected, found) = (self.id, signature.key_id());
        if found != expected {
            return Err(SignatureError::OtherKey { expected, found });
        }
        let key = ed25519_compact::PublicKey::new(self.key);
        let holds = |message: &[u8], signature: [u8; 64]| {
            key.verify(message, &ed25519_compact::Signature::new(signature)).is_ok()
        };
        let over_document = match signature.prehash() {
            Prehash::None => holds(document, signature.bytes()),
            Prehash::Blake2b512 => holds(&Blake2b512::digest(document), signature.bytes()),
        };
        if !over_document {
            return Err(SignatureError::Invalid { key: self.id });
        }
        if !holds(&signature.commented(), signature.comment_bytes()) {
            return Err(SignatureError::CommentInvalid { key: self.id });
        }
        Ok(())
    }

    /// As [`PublicKey::verify`], and a trusted comment that names a document names this one.
    ///
    /// # Errors
    /// `signature-other-document`, and those of [`PublicKey::verify`].
    pub fn verify_document(
        &self,
        kind: DocumentKind,
        document: &[u8],
        signature: &Signature,
    ) -> Result<(), SignatureError> {
        let found = SignedDocument { kind, digest: slm_format::Digest::of(document) };
        match signature.names() {
            Some(named) if named != found => Err(SignatureError::OtherDocument { named, found }),
            _ => self.verify(document, signature),
        }
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.to_base64())
    }
}
