//! What is needed: from names and the active record through generations and manifests to blobs.

use core::fmt;
use std::collections::BTreeSet;

use slm_format::{Digest, Limits};
use slm_manifest::{BaseId, CompositionId, Manifest, Name};

use super::Store;
use crate::error::StoreError;
use crate::record::{Generation, NameKind};
use crate::slot::Slots;
use crate::storage::Storage;

/// What a manifest needs beyond the blobs it and the names of bases tell: above all the blob of a base that no name stands for, which only
/// somebody who knows models can find.
pub type Needs<'a> = dyn FnMut(&Manifest) -> Result<Vec<Digest>, StoreError> + 'a;

/// Where something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// A blob, by itself.
    Blob(Digest),
    /// A name, or what it stands for.
    Name(NameKind, Name),
    /// The record of the active generation.
    Active,
    /// A generation.
    Generation(Digest),
    /// A manifest, or what it needs.
    Manifest(Digest),
    /// The audit log.
    Log,
    /// Another file or folder.
    Path(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Blob(digest) => write!(f, "blob {digest}"),
            Place::Name(kind, name) => write!(f, "{kind} {name}"),
            Place::Active => f.write_str("active record"),
            Place::Generation(digest) => write!(f, "generation {digest}"),
            Place::Manifest(digest) => write!(f, "manifest {digest}"),
            Place::Log => f.write_str("audit log"),
            Place::Path(path) => f.write_str(path),
        }
    }
}

impl Place {
    /// What takes something that cannot be read out of the way of `gc`.
    pub(crate) fn way_out(&self) -> Option<String> {
        match self {
            Place::Name(kind, name) => Some(format!(
                "take the {kind} name {name} away, or give it anew with --replace; then gc works"
            )),
            Place::Generation(_) | Place::Manifest(_) => Some(
                "bring the blob in again, or let go of what needs it: activate something else and keep fewer generations, slm gc --keep 1"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// A walk over everything needed. What goes wrong is told to `told`, which ends the walk or lets it go on.
pub(super) struct Walk<'a, S: Storage> {
    store: &'a Store<S>,
    needs: &'a mut Needs<'a>,
    told: &'a mut dyn FnMut(Place, StoreError) -> Result<(), StoreError>,
    /// The blobs of named bases, by identity.
    bases: Vec<(Digest, Digest)>,
    manifests: BTreeSet<Digest>,
    /// Every blob that is needed, whether it is there or not.
    pub(super) needed: BTreeSet<Digest>,
    /// The oldest generations that are needed; what they name as their parent is not.
    pub(super) oldest: Vec<Generation>,
}

impl<'a, S: Storage> Walk<'a, S> {
    pub(super) fn new(
        store: &'a Store<S>,
        needs: &'a mut Needs<'a>,
        told: &'a mut dyn FnMut(Place, StoreError) -> Result<(), StoreError>,
    ) -> Walk<'a, S> {
        Walk {
            store,
            needs,
            told,
            bases: Vec::new(),
            manifests: BTreeSet::new(),
            needed: BTreeSet::new(),
            oldest: Vec::new(),
        }
    }

    /// What names stand for, and what that needs.
    pub(super) fn names(&mut self) -> Result<(), StoreError> {
        for kind in [NameKind::Base, NameKind::Adapter, NameKind::Composition] {
            let names = match self.store.names(kind) {
                Ok(names) => names,
                Err(error) => {
                    let folder = crate::layout::names(kind).to_owned();
                    (self.told)(Place::Path(folder), error)?;
                    continue;
                }
            };
            for (name, record) in names {
                let place = Place::Name(kind, name);
                match record {
                    Err(error) => (self.told)(place, error)?,
                    Ok(record) => {
                        self.blob(record.blob, &place)?;
                        match kind {
                            NameKind::Base => self.bases.push((record.id, record.blob)),
                            NameKind::Adapter => {}
                            NameKind::Composition => {
                                self.manifest(record.blob, CompositionId::from_digest(record.id))?;
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The active generation and those before it, `keep` at most, that of the other slot, and what they need. Comes after the names.
    pub(super) fn generations(&mut self, keep: usize) -> Result<(), StoreError> {
        let slots = match self.store.slots() {
            Ok(slots) => slots,
            Err(error) => return (self.told)(Place::Active, error),
        };
        let Slots { current, other, .. } = slots;
        if current.sequence > 0 {
            let read = self.store.active().map(|_| ());
            let told = read.is_err();
            read.or_else(|error| (self.told)(Place::Active, error))?;
            self.chain(current.generation, keep, told)?;
        }
        // The other slot is in force should the current one be lost.
        match other {
            Some(other) if other.sequence > 0 => self.chain(other.generation, 1, false),
            _ => Ok(()),
        }
    }

    /// A blob that nothing else speaks for.
    pub(super) fn root(&mut self, digest: Digest) {
        self.needed.insert(digest);
    }

    /// A generation or a manifest, and what it needs; any other blob for itself.
    pub(super) fn document(&mut self, digest: Digest) -> Result<(), StoreError> {
        self.needed.insert(digest);
        let blob = match self.store.blob(digest) {
            Ok(blob) if (*blob).as_ref().len() <= MAX_DOCUMENT => blob,
            _ => return Ok(()),
        };
        let bytes = (*blob).as_ref();
        if let Ok(generation) = Generation::decode(bytes) {
            self.manifest(generation.manifest, generation.composition)?;
            self.oldest.push(generation);
        } else if let Ok(manifest) = Manifest::from_json(bytes, &Limits::STANDARD) {
            self.manifest(digest, manifest.composition_id())?;
        }
        Ok(())
    }

    /// `told` says that what is wrong with the first was told of already.
    fn chain(&mut self, first: Digest, keep: usize, told: bool) -> Result<(), StoreError> {
        let mut next = Some(first);
        for nth in 0..keep.max(1) {
            let Some(digest) = next else { return Ok(()) };
            let generation = match self.store.generation(digest) {
                Ok(generation) => generation,
                // Removed by an earlier gc.
                Err(StoreError::NotFound { .. }) => return Ok(()),
                Err(error) => {
                    self.needed.insert(digest);
                    return if nth == 0 && told {
                        Ok(())
                    } else {
                        (self.told)(Place::Generation(digest), error)
                    };
                }
            };
            self.needed.insert(digest);
            self.blob(generation.manifest, &Place::Generation(digest))?;
            self.manifest(generation.manifest, generation.composition)?;
            next = generation.parent;
            if nth + 1 == keep.max(1) {
                self.oldest.push(generation);
            }
        }
        Ok(())
    }

    /// A manifest's blob, which is told of by whoever names it where it is missing, and what the manifest needs.
    fn manifest(&mut self, digest: Digest, expected: CompositionId) -> Result<(), StoreError> {
        let place = Place::Manifest(digest);
        let manifest = match self.store.manifest(digest) {
            Ok(manifest) => manifest,
            Err(StoreError::NotFound { .. }) => return Ok(()),
            Err(error) if self.manifests.insert(digest) => return (self.told)(place, error),
            Err(_) => return Ok(()),
        };
        let found = manifest.composition_id();
        if found != expected {
            let error = StoreError::ManifestContradicts { digest, found, expected };
            (self.told)(place.clone(), error)?;
        }
        if !self.manifests.insert(digest) {
            return Ok(());
        }
        for adapter in &manifest.adapters {
            self.blob(adapter.file_hash, &place)?;
        }
        // These may have been left elsewhere.
        self.needed.extend(manifest.evaluation);
        self.needed.extend(manifest.provenance.tokenizer_file_hash);
        self.needed.extend(manifest.provenance.base_source_hash);
        let mut bases: Vec<Digest> = manifest.provenance.base_file_hash.into_iter().collect();
        let base = manifest.base_model_hash;
        bases.extend(
            self.bases.iter().filter(|(id, _)| *id == base.digest()).map(|(_, blob)| *blob),
        );
        match (self.needs)(&manifest) {
            Ok(more) => bases.extend(more),
            Err(error) => (self.told)(place.clone(), error)?,
        }
        self.needed.extend(&bases);
        self.base(base, &bases, place)
    }

    /// One of `bases` must be there.
    fn base(&mut self, base: BaseId, bases: &[Digest], place: Place) -> Result<(), StoreError> {
        for blob in bases {
            match self.store.has_blob(*blob) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => (self.told)(place.clone(), error)?,
            }
        }
        (self.told)(place, StoreError::BaseMissing { base })
    }

    /// A blob that `place` cannot do without.
    fn blob(&mut self, digest: Digest, place: &Place) -> Result<(), StoreError> {
        self.needed.insert(digest);
        match self.store.has_blob(digest) {
            Ok(true) => Ok(()),
            Ok(false) => (self.told)(place.clone(), StoreError::BlobMissing { digest }),
            Err(error) => (self.told)(place.clone(), error),
        }
    }
}

/// Longest blob that is taken for a generation or a manifest.
pub(super) const MAX_DOCUMENT: usize = 1 << 20;

impl<S: Storage> Store<S> {
    /// The manifest in the blob `digest`, whose bytes are compared with the digest.
    fn manifest(&self, digest: Digest) -> Result<Manifest, StoreError> {
        let blob = self.verified_blob(digest)?;
        Manifest::from_json((*blob).as_ref(), &Limits::STANDARD)
            .map_err(|error| StoreError::NotAManifest { digest, problem: error.to_string() })
    }
}
