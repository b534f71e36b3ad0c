//! Hashes of logits: what two machines compare.

use slm_format::{ContentHash, ContentHasher};

/// What a stream of logits hashed to. One bit of one logit changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogitsDigest {
    /// BLAKE3 over the last position's logits, each an f32 in little-endian bytes.
    pub last: ContentHash,
    /// BLAKE3 over the logits of all positions in order.
    pub all: ContentHash,
}

/// Computes a [`LogitsDigest`] position by position.
///
/// ```
/// use slm_format::ContentHash;
/// use slm_runtime::audit::{LogitsHasher, hex};
///
/// let mut hasher = LogitsHasher::new();
/// hasher.update(&[1.0]);
/// hasher.update(&[-0.0]);
/// let digest = hasher.finish();
/// assert_eq!(digest.last, ContentHash::of(&[0, 0, 0, 0x80]));
/// assert_eq!(digest.all, ContentHash::of(&[0, 0, 0x80, 0x3f, 0, 0, 0, 0x80]));
/// assert_eq!(hex(digest.last).len(), 64);
/// ```
#[derive(Clone, Default)]
pub struct LogitsHasher {
    all: ContentHasher,
    last: Vec<u8>,
}

impl LogitsHasher {
    /// Before the first position.
    pub fn new() -> LogitsHasher {
        LogitsHasher::default()
    }

    /// Takes the logits of the next position, `[vocab_size]`. Allocates at the first position only.
    pub fn update(&mut self, logits: &[f32]) {
        self.last.clear();
        self.last.extend(logits.iter().flat_map(|logit| logit.to_le_bytes()));
        self.all.update(&self.last);
    }

    /// The bytes that the last position hashed: its logits, little-endian. Empty before the first.
    pub fn last_bytes(&self) -> &[u8] {
        &self.last
    }

    /// The digest of every position taken; of no bytes when there was none.
    pub fn finish(self) -> LogitsDigest {
        LogitsDigest { last: ContentHash::of(&self.last), all: self.all.finish() }
    }
}

/// A hash as reports spell it: 64 lower-case hexadecimal digits without a prefix.
pub fn hex(hash: ContentHash) -> String {
    let text = hash.to_string();
    text.strip_prefix("blake3:").map_or_else(|| text.clone(), str::to_owned)
}
