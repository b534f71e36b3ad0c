//! What a signature says of itself in its trusted comment.

use core::fmt;

use slm_format::Digest;

use super::MAX_FILE_BYTES;
use super::text::UNTRUSTED;

/// What kind of document is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DocumentKind {
    /// A composition's manifest.
    Manifest,
    /// An evaluation record.
    EvaluationRecord,
}

impl DocumentKind {
    fn word(self) -> &'static str {
        match self {
            DocumentKind::Manifest => "manifest",
            DocumentKind::EvaluationRecord => "evaluation-record",
        }
    }
}

/// A document by kind and digest, as a trusted comment names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SignedDocument {
    /// What it is.
    pub kind: DocumentKind,
    /// sha256 of its canonical JSON.
    pub digest: Digest,
}

impl SignedDocument {
    /// The manifest whose canonical JSON is `bytes`.
    pub fn manifest(bytes: &[u8]) -> SignedDocument {
        SignedDocument { kind: DocumentKind::Manifest, digest: Digest::of(bytes) }
    }

    /// The evaluation record whose canonical JSON is `bytes`.
    pub fn evaluation_record(bytes: &[u8]) -> SignedDocument {
        SignedDocument { kind: DocumentKind::EvaluationRecord, digest: Digest::of(bytes) }
    }

    /// The trusted comment for a signature of this document made `seconds` after 1970: fields apart by tabs, as minisign writes its own.
    ///
    /// ```
    /// use slm_manifest::signature::SignedDocument;
    ///
    /// let comment = SignedDocument::manifest(b"").comment(1_796_083_199);
    /// assert!(comment.starts_with("timestamp:1796083199\tmanifest:sha256:e3b0c442"));
    /// ```
    pub fn comment(&self, seconds: u64) -> String {
        format!("timestamp:{seconds}\t{self}")
    }

    /// The document that the untrusted comment of a signature's file names: a claim, to find signatures by. Verification decides.
    ///
    /// Looks at the first line alone, so that anything that is no signature is passed over at once.
    pub fn claimed_by(file: &[u8]) -> Option<SignedDocument> {
        if file.len() > MAX_FILE_BYTES {
            return None;
        }
        let line = file.strip_prefix(UNTRUSTED.as_bytes())?.split(|&byte| byte == b'\n').next()?;
        SignedDocument::in_comment(core::str::from_utf8(line).ok()?)
    }

    /// The document that a trusted comment names: its first field that is one.
    pub fn in_comment(comment: &str) -> Option<SignedDocument> {
        comment.split('\t').find_map(|field| {
            let (word, digest) = field.split_once(':')?;
            let kind = [DocumentKind::Manifest, DocumentKind::EvaluationRecord]
                .into_iter()
                .find(|kind| kind.word() == word)?;
            Some(SignedDocument { kind, digest: digest.parse().ok()? })
        })
    }
}

impl fmt::Display for SignedDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.word(), self.digest)
    }
}
