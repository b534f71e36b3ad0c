//! Sharing a composition whole: one `.slm` file, or an OCI image layout; and the signatures that go with it.
//!
//! A package holds a manifest and everything it needs: base, adapters, signatures, and the evaluation records of the composition with theirs. It holds nothing local: no
//! policy, no names but those in the manifest, no generations. Reading one checks all of it before the store is touched, and one change
//! of one name makes it visible; so a package that is refused, or a process that dies half-way, leaves no composition behind.

mod error;
mod layout;
mod oci;
mod pack;
mod package;
mod signed;

use slm_format::Digest;
use slm_manifest::{AdapterId, BaseId, CompositionId, Name};

pub use error::ShareError;
pub use layout::{FileBytes, LayoutReader, LayoutWriter};
pub use oci::media_type;

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    /// The composition.
    pub composition: CompositionId,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// The base.
    pub base: BaseId,
    /// Every blob of the store that is in it: base, adapters, manifest, evaluation records, signatures.
    pub blobs: Vec<Digest>,
    /// How many of them are signatures.
    pub signatures: u64,
    /// Bytes written.
    pub bytes: u64,
    /// sha256 of the file, or of the OCI manifest.
    pub digest: Digest,
}

/// What was brought in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// The composition.
    pub composition: CompositionId,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// The base.
    pub base: BaseId,
    /// The adapters, bottom first, as the manifest calls them; true where the name stands for this adapter in the store now.
    pub adapters: Vec<(Name, AdapterId, bool)>,
    /// The blobs that are in the store now, as in [`Shared::blobs`].
    pub blobs: Vec<Digest>,
    /// How many of them are signatures.
    pub signatures: u64,
    /// How many of the signatures are by keys that the policy trusts, and hold. The others are of keys unknown here: whose signature is needed is the
    /// business of the policy, at activation.
    pub verified: u64,
    /// False where the names stood for all of this already.
    pub changed: bool,
}
