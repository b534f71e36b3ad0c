//! Removing what nothing needs, and the leases that keep it.

use slm_format::Digest;
use slm_manifest::Name;

use super::walk::{Needs, Place, Walk};
use super::{Change, Intent, Store, WriteLock};
use crate::audit::Operation;
use crate::error::StoreError;
use crate::layout;
use crate::record::{Generation, NameKind, NameRecord};
use crate::storage::Storage;

/// What [`Store::gc`] keeps, and what it tells the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcOptions {
    /// When: RFC 3339 in UTC.
    pub time: String,
    /// Who.
    pub actor: Option<Name>,
    /// How many generations are kept, the active one and those before it; at least one is.
    pub keep_generations: usize,
    /// Blobs that are kept besides.
    pub roots: Vec<Digest>,
    /// Whether [`Store::damaged_strays`] go too.
    pub drop_damaged: bool,
}

impl GcOptions {
    /// Generations that are kept where nobody says how many.
    pub const KEEP_GENERATIONS: usize = 10;

    /// The usual ones.
    pub fn new(time: &str) -> GcOptions {
        GcOptions {
            time: time.to_owned(),
            actor: None,
            keep_generations: GcOptions::KEEP_GENERATIONS,
            roots: Vec::new(),
            drop_damaged: false,
        }
    }
}

/// What [`Store::gc`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcReport {
    /// The blobs that are gone.
    pub removed: Vec<Digest>,
    /// How many bytes they had.
    pub bytes: u64,
    /// How many blobs are left.
    pub kept: usize,
    /// Blobs that nothing needs but a reader who has them open.
    pub leased: Vec<Digest>,
    /// Damaged blobs that nothing names, and that are kept because they may be signatures or evaluation records of what is kept.
    pub damaged: Vec<Digest>,
    /// As [`Committed::unrecorded`](super::Committed::unrecorded).
    pub unrecorded: Option<StoreError>,
}

/// Keeps blobs from [`Store::gc`] in every process, until it is dropped or its process dies.
#[derive(Debug)]
pub struct Lease<S: Storage> {
    _files: Vec<S::Lease>,
}

impl<S: Storage> Store<S> {
    /// Removes every blob that nothing needs. Needed are: what a name stands for; the active generation and those before it,
    /// [`GcOptions::keep_generations`] in all, and the one in the other slot; their manifests; what a manifest names, what `needs` says
    /// it needs besides, and every named base of its base's identity; what is leased; [`GcOptions::roots`]. [`Store::damaged_strays`] stay as well, unless
    /// [`GcOptions::drop_damaged`].
    ///
    /// A crash at any moment leaves some of the blobs that were to go. The chain of generations is cut first, so that what is left of it
    /// is whole.
    ///
    /// # Errors
    /// [`StoreError::BadTime`]; [`StoreError::LogDamaged`]. [`StoreError::SlotDamaged`] where neither slot can be used, or nothing is active
    /// although the audit log says that something was made so; nothing is removed. Where a needed name, generation or manifest is damaged, or the active
    /// generation is missing, so that it is not known what it needs, [`StoreError::Hidden`] with the name or the digest, and nothing is removed. [`StoreError::Io`], after some
    /// may have been removed.
    ///
    /// # Panics
    /// If `lock` is another store's.
    pub fn gc(
        &self,
        lock: &mut WriteLock,
        options: &GcOptions,
        needs: &mut Needs<'_>,
    ) -> Result<GcReport, StoreError> {
        let pending = self.begin(
            lock,
            Intent {
                operation: Operation::Gc,
                time: options.time.clone(),
                actor: options.actor.clone(),
                composition: None,
                manifest: None,
            },
        )?;
        let plan = match self.plan_gc(pending.lock(), options, needs) {
            Ok(plan) => plan,
            Err(error) => {
                // The error is what the caller must hear; where the log cannot be told either, the next operation tells it.
                let _ = pending.refuse(&error);
                return Err(error);
            }
        };
        let mut report = GcReport {
            removed: Vec::new(),
            bytes: 0,
            kept: plan.kept,
            leased: plan.leased,
            damaged: plan.damaged,
            unrecorded: None,
        };
        if plan.first.is_empty() && plan.rest.is_empty() {
            report.unrecorded = pending.unchanged().err();
            return Ok(report);
        }
        let staged = pending.stage(Change::Nothing)?;
        for round in [plan.first, plan.rest] {
            for digest in &round {
                let path = layout::blob(*digest);
                let len = self.storage.read_at(&path, 0, 0)?.map_or(0, |(_, len)| len);
                if self.storage.remove_unleased(&path)? {
                    report.removed.push(*digest);
                    report.bytes += len;
                } else {
                    report.leased.push(*digest);
                    report.kept += 1;
                }
            }
            if !round.is_empty() {
                self.storage.sync_dir(layout::BLOBS)?;
            }
        }
        report.removed.sort_unstable();
        report.unrecorded = staged.commit()?.unrecorded;
        Ok(report)
    }

    /// Keeps `digests` from [`Store::gc`], in this process or another, for as long as the lease lives. It needs no lock, no right to
    /// write, and waits for nobody. A reader who opens blobs one after another leases all of them first: then they stay.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] for a blob that is not there; [`StoreError::Busy`] where a writer looks at one without end;
    /// [`StoreError::Symlink`]; [`StoreError::Io`].
    pub fn lease(&self, digests: &[Digest]) -> Result<Lease<S>, StoreError> {
        let lease = |digest: &Digest| match self.storage.lease(&layout::blob(*digest))? {
            Some(file) => Ok(file),
            None => Err(StoreError::NotFound { digest: *digest }),
        };
        Ok(Lease { _files: digests.iter().map(lease).collect::<Result<_, _>>()? })
    }

    fn plan_gc(
        &self,
        lock: &WriteLock,
        options: &GcOptions,
        needs: &mut Needs<'_>,
    ) -> Result<Plan, StoreError> {
        // A writer that died may have left names and an active record that a power cut takes back; then the earlier ones would be in force,
        // and need what they name.
        let slots = self.slots()?;
        if slots.current.sequence == 0 {
            self.check_never_active(&slots)?;
        }
        self.sync_slots(lock, &slots)?;
        for kind in [NameKind::Base, NameKind::Adapter, NameKind::Composition] {
            self.sync_names(kind)?;
        }
        let mut told = |place, error: StoreError| match (place, error) {
            // What is active must be known.
            (Place::Active, error) => Err(error),
            // Any other thing that is not there cannot be kept, and needs nothing.
            (_, StoreError::BlobMissing { .. } | StoreError::BaseMissing { .. }) => Ok(()),
            (_, error @ StoreError::Io { .. }) => Err(error),
            (place, error) => {
                let place = self.named(place);
                Err(StoreError::Hidden { place, error: Box::new(error) })
            }
        };
        let mut needs = |manifest: &_| needs(manifest);
        let mut walk = Walk::new(self, &mut needs, &mut told);
        walk.names()?;
        walk.generations(options.keep_generations)?;
        options.roots.iter().for_each(|root| walk.root(*root));
        let all: Vec<Digest> = self.blobs()?.collect();
        let mut leased = Vec::new();
        for digest in all.iter().filter(|digest| !walk.needed.contains(digest)) {
            if self.storage.is_leased(&layout::blob(*digest))? {
                leased.push(*digest);
            }
        }
        leased.iter().try_for_each(|digest| walk.document(*digest))?;
        let (needed, oldest) = (walk.needed, walk.oldest);
        let mut unneeded: Vec<Digest> =
            all.iter().copied().filter(|digest| !needed.contains(digest)).collect();
        let damaged =
            if options.drop_damaged { Vec::new() } else { self.damaged_strays_among(&unneeded)? };
        unneeded.retain(|digest| !damaged.contains(digest));
        let is_parent =
            |digest: &Digest| oldest.iter().any(|child: &Generation| child.parent == Some(*digest));
        let (first, rest): (Vec<Digest>, Vec<Digest>) = unneeded.into_iter().partition(is_parent);
        Ok(Plan { kept: all.len() - first.len() - rest.len(), first, rest, leased, damaged })
    }
}

impl<S: Storage> Store<S> {
    /// The name of a composition that stands for the manifest, where there is one: that is what a person can do something about.
    fn named(&self, place: Place) -> Place {
        let Place::Manifest(manifest) = place else { return place };
        let names = self.names(NameKind::Composition).unwrap_or_default();
        let stands = |record: &Result<NameRecord, _>| {
            record.as_ref().is_ok_and(|record| record.blob == manifest)
        };
        match names.into_iter().find(|(_, record)| stands(record)) {
            Some((name, _)) => Place::Name(NameKind::Composition, name),
            None => Place::Manifest(manifest),
        }
    }
}

struct Plan {
    /// Generations whose child stays.
    first: Vec<Digest>,
    rest: Vec<Digest>,
    kept: usize,
    leased: Vec<Digest>,
    damaged: Vec<Digest>,
}
