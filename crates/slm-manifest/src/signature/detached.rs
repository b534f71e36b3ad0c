//! Detached signatures.

use super::error::{FileKind, SignatureError};
use super::text::{self, TRUSTED, UNTRUSTED};
use super::{KeyId, SignedDocument};

const KIND: FileKind = FileKind::Signature;
/// Algorithm, key id, signature.
const BYTES: usize = 2 + 8 + 64;
/// Longest trusted comment that minisign 0.11 reads, its newline and end included.
pub(super) const MAX_COMMENT_BYTES: usize = 8192 - 20;

/// What the Ed25519 signature is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Prehash {
    /// The document itself: minisign's legacy form, `Ed`.
    None,
    /// The document's BLAKE2b-512: minisign's form since 0.8, `ED`.
    Blake2b512,
}

/// A signature as its file has it; nothing is proved until [`super::PublicKey::verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    prehash: Prehash,
    key: KeyId,
    signature: [u8; 64],
    trusted_comment: String,
    comment_signature: [u8; 64],
}

impl Signature {
    /// Reads minisign's file of four lines. Its untrusted comment is dropped.
    ///
    /// # Errors
    /// `signature-malformed`, `signature-algorithm`, `signature-comment`, `limit-exceeded`.
    pub fn parse(file: &[u8]) -> Result<Signature, SignatureError> {
        let [untrusted, signature, trusted, comment_signature] = text::lines::<4>(KIND, file)?;
        text::after(KIND, 1, untrusted, UNTRUSTED)?;
        let bytes: [u8; BYTES] = text::decode(KIND, 2, signature)?;
        let mut rest = bytes.as_slice();
        let prehash = match text::cut(&mut rest) {
            [b'E', b'd'] => Prehash::None,
            [b'E', b'D'] => Prehash::Blake2b512,
            found => return Err(SignatureError::Algorithm { kind: KIND, found }),
        };
        let trusted_comment = text::after(KIND, 3, trusted, TRUSTED)?;
        check_comment(trusted_comment)?;
        Ok(Signature {
            prehash,
            key: KeyId(text::cut(&mut rest)),
            signature: text::cut(&mut rest),
            trusted_comment: trusted_comment.to_owned(),
            comment_signature: text::decode(KIND, 4, comment_signature)?,
        })
    }

    pub(super) fn new(
        key: KeyId,
        trusted_comment: &str,
        signature: [u8; 64],
        sign: impl FnOnce(&[u8]) -> [u8; 64],
    ) -> Result<Signature, SignatureError> {
        check_comment(trusted_comment)?;
        let mut whole = Signature {
            prehash: Prehash::Blake2b512,
            key,
            signature,
            trusted_comment: trusted_comment.to_owned(),
            comment_signature: [0; 64],
        };
        whole.comment_signature = sign(&whole.commented());
        Ok(whole)
    }

    /// The key that it says it is by.
    pub fn key_id(&self) -> KeyId {
        self.key
    }

    /// What the signature is over.
    pub fn prehash(&self) -> Prehash {
        self.prehash
    }

    /// The trusted comment; as trusted as the signature once that was verified. One line, no control characters but tabs.
    pub fn trusted_comment(&self) -> &str {
        &self.trusted_comment
    }

    /// The document that the trusted comment names, if it names one.
    pub fn names(&self) -> Option<SignedDocument> {
        SignedDocument::in_comment(&self.trusted_comment)
    }

    /// The file that `minisign -x` takes. Its untrusted comment says what the trusted one names.
    pub fn to_document(&self) -> String {
        match self.names() {
            Some(document) => self.to_document_of(document),
            None => self.document(&format!("signature by the key {}", self.key)),
        }
    }

    /// As [`Signature::to_document`], with an untrusted comment that names `document`: so does a store keep a signature whose trusted comment
    /// names nothing. [`SignedDocument::claimed_by`] finds it again.
    pub fn to_document_of(&self, document: SignedDocument) -> String {
        self.document(&format!("signature\t{document}"))
    }

    fn document(&self, untrusted: &str) -> String {
        let mut bytes = match self.prehash {
            Prehash::None => b"Ed".to_vec(),
            Prehash::Blake2b512 => b"ED".to_vec(),
        };
        bytes.extend(self.key.to_bytes());
        bytes.extend(self.signature);
        format!(
            "{UNTRUSTED}{untrusted}\n{}\n{TRUSTED}{}\n{}\n",
            text::encode(&bytes),
            self.trusted_comment,
            text::encode(&self.comment_signature)
        )
    }

    pub(super) fn bytes(&self) -> [u8; 64] {
        self.signature
    }

    pub(super) fn comment_bytes(&self) -> [u8; 64] {
        self.comment_signature
    }

    /// What the second signature covers: the first one and the trusted comment.
    pub(super) fn commented(&self) -> Vec<u8> {
        let mut message = self.signature.to_vec();
        message.extend(self.trusted_comment.as_bytes());
        message
    }
}

fn check_comment(comment: &str) -> Result<(), SignatureError> {
    if comment.len() > MAX_COMMENT_BYTES || !text::is_plain(comment) {
        return Err(SignatureError::Comment { limit: MAX_COMMENT_BYTES as u64 });
    }
    Ok(())
}
