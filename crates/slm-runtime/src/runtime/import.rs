//! `load_base` and `load_adapter`: from files into the store.

use std::io::{self, Write};
use std::sync::Arc;

use slm_format::container::ContainerWriteError;
use slm_format::{Digest, DigestWriter};
use slm_manifest::{BaseId, Name};
use slm_overlay::Adapter;
use slm_overlay::peft::BindingReport;
use slm_store::{Change, Intent, NameKind, NameRecord, Operation, Storage, WriteLock};

use crate::error::{ActivationError, RuntimeError};
use crate::load::Base;
use crate::runtime::{
    ClaimedTokens, ImportedAdapter, ImportedBase, Requires, Runtime, write_adapter,
};

/// An adapter that was read and resolved against a base, not yet stored.
#[derive(Debug, Clone)]
pub struct ResolvedAdapter {
    /// The adapter in its normal form.
    pub adapter: Adapter,
    /// What it touches.
    pub report: BindingReport,
    /// What its file requires, where it says so; it is refused on another base.
    pub bound_to: Option<Requires>,
    /// Tokens that files beside the adapter name; it is refused on a base that has others.
    pub tokens: ClaimedTokens,
}

impl<S: Storage> Runtime<S> {
    /// Stores an opened base as a `.slm` blob under a name.
    ///
    /// # Errors
    /// `name-taken` when the name points to another base and `replace` is false; `store-busy`; what the storage returns. On any error the store is
    /// as before.
    pub fn load_base(
        &self,
        base: &Base,
        name: &Name,
        now: &str,
        replace: bool,
    ) -> Result<ImportedBase, RuntimeError> {
        self.load_base_from(base, None, name, now, replace)
    }

    /// As [`Runtime::load_base`], and keeps the digest of the file that the base was read from: manifests name it as where their base came from. A name that
    /// stands for this base already keeps what it says.
    ///
    /// # Errors
    /// As [`Runtime::load_base`].
    pub fn load_base_from(
        &self,
        base: &Base,
        source: Option<Digest>,
        name: &Name,
        now: &str,
        replace: bool,
    ) -> Result<ImportedBase, RuntimeError> {
        let write = |out: &mut dyn Write| base.write_slm(out).map_err(as_io);
        let (operation, from) = (Operation::Import, (base.id().digest(), source));
        let (blob, changed) =
            self.store_named(operation, NameKind::Base, name, from, &write, now, replace)?;
        Ok(ImportedBase { base: base.id(), tokenizer: base.tokenizer_id(), blob, changed })
    }

    /// Resolves `read` against the base that `base` names, and stores the adapter bound to it.
    ///
    /// `read` is given the base's shape and returns the adapter's normal form: [`slm_overlay::peft`] does for PEFT folders.
    ///
    /// # Errors
    /// No such base; whatever makes the adapter not fit; `name-taken`. On any error the store is as before.
    pub fn load_adapter(
        &self,
        read: &dyn Fn(&slm_overlay::BaseShape) -> Result<ResolvedAdapter, RuntimeError>,
        base: &str,
        name: &Name,
        now: &str,
        replace: bool,
    ) -> Result<ImportedAdapter, RuntimeError> {
        let base = self.base_by_reference(base)?;
        let ResolvedAdapter { adapter, report, bound_to, tokens } = read(&base.shape())?;
        tokens.check(&base)?;
        if let Some(requires) = bound_to {
            requires.check(name.as_str(), &base)?;
        }
        let adapter = Arc::new(adapter);
        // Binding is what activation will do; it must work before anything is stored.
        Arc::clone(&adapter).bind(base.id(), &base.shape())?;
        let write =
            |out: &mut dyn Write| write_adapter(&adapter, &Requires::of(&base), out).map_err(as_io);
        let (operation, from) = (Operation::AdapterImport, (adapter.id().digest(), None));
        let (blob, changed) =
            self.store_named(operation, NameKind::Adapter, name, from, &write, now, replace)?;
        Ok(ImportedAdapter { adapter: adapter.id(), base: base.id(), blob, report, changed })
    }

    /// Stores what `write` writes as a blob under a name, as one logged operation; what is so already is neither changed nor logged.
    fn store_named(
        &self,
        operation: Operation,
        kind: NameKind,
        name: &Name,
        (id, source): (Digest, Option<Digest>),
        write: &dyn Fn(&mut dyn Write) -> io::Result<()>,
        now: &str,
        replace: bool,
    ) -> Result<(Digest, bool), RuntimeError> {
        let mut lock = self.lock_to_change(now)?;
        self.refuse_taken(kind, name, id, write, replace)?;
        // A blob without a name is no change; `gc` takes it if what follows fails.
        let blob = self.store.put_blob(&lock, &mut |out| write(out))?;
        let record = NameRecord { id, blob, source };
        let changed = self.name_logged(&mut lock, operation, kind, name, record, now, replace)?;
        Ok((blob, changed))
    }

    /// Gives a name as a logged operation; a name that stands for `record` already is neither changed nor logged.
    pub(super) fn name_logged(
        &self,
        lock: &mut WriteLock,
        operation: Operation,
        kind: NameKind,
        name: &Name,
        record: NameRecord,
        now: &str,
        replace: bool,
    ) -> Result<bool, RuntimeError> {
        if self
            .store
            .name(kind, name)
            .is_ok_and(|current| current.is_some_and(|current| current.is_same(&record)))
        {
            return Ok(false);
        }
        let intent = Intent {
            operation,
            time: now.to_owned(),
            actor: self.actor.clone(),
            composition: None,
            manifest: None,
        };
        let name = name.clone();
        let pending = self.store.begin(lock, intent)?;
        let staged = pending.stage(Change::SetName { kind, name, record, replace })?;
        Ok(staged.commit()?.changed)
    }

    /// Before a blob is written, not after: a taken name refuses the import. One identity can stand in two blobs (a base with another
    /// tokenizer, an adapter bound to another base), so where the identity is the same the blob's digest is worked out as well.
    pub(super) fn refuse_taken(
        &self,
        kind: NameKind,
        name: &Name,
        id: Digest,
        write: &dyn Fn(&mut dyn Write) -> io::Result<()>,
        replace: bool,
    ) -> Result<(), RuntimeError> {
        if replace {
            return Ok(());
        }
        let Some(record) = self.store.name(kind, name)? else { return Ok(()) };
        if record.id == id {
            let mut hashing = Hashing(DigestWriter::new());
            write(&mut hashing).map_err(|error| slm_store::StoreError::Source {
                kind: error.kind(),
                message: error.to_string(),
            })?;
            if hashing.0.finish() == record.blob {
                return Ok(());
            }
        }
        let (name, current) = (name.clone(), record.id);
        Err(slm_store::StoreError::NameTaken { kind, name, current }.into())
    }

    /// The base that a name or an id means, opened and verified.
    ///
    /// # Errors
    /// `not-found`; what opening refuses.
    pub fn base_by_reference(&self, reference: &str) -> Result<Arc<Base>, RuntimeError> {
        let id = match reference.parse::<BaseId>() {
            Ok(id) => id,
            Err(_) => match self.record(NameKind::Base, reference)? {
                Some(record) => {
                    return self.open_base(BaseId::from_digest(record.id), record.blob);
                }
                None => return Err(not_found("base", reference)),
            },
        };
        self.find_base(id, None)?.ok_or_else(|| not_found("base", reference))
    }

    /// The record under a name; text that is no name has none.
    pub(super) fn record(
        &self,
        kind: NameKind,
        reference: &str,
    ) -> Result<Option<NameRecord>, RuntimeError> {
        match reference.parse::<Name>() {
            Ok(name) => Ok(self.store.name(kind, &name)?),
            Err(_) => Ok(None),
        }
    }
}

/// The medium's own error where there is one, so that a full disk is told as a full disk.
fn as_io(error: RuntimeError) -> io::Error {
    match error {
        RuntimeError::ContainerWrite(ContainerWriteError::Io(error)) => error,
        other => io::Error::other(other),
    }
}

pub(super) fn not_found(kind: &'static str, name: &str) -> RuntimeError {
    ActivationError::NotFound { kind, name: name.chars().take(160).collect() }.into()
}

/// Takes what is written for its digest alone.
struct Hashing(DigestWriter);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
