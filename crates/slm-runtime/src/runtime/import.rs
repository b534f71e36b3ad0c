//! `load_base` and `load_adapter`: from files into the store.

use std::sync::Arc;

use slm_format::Digest;
use slm_manifest::{BaseId, Name};
use slm_overlay::Adapter;
use slm_overlay::peft::BindingReport;
use slm_store::{NameKind, NameRecord, Storage};

use crate::error::{ActivationError, RuntimeError};
use crate::load::Base;
use crate::runtime::{ImportedAdapter, ImportedBase, Runtime, write_adapter};

/// An adapter that was read and resolved against a base, not yet stored.
#[derive(Debug, Clone)]
pub struct ResolvedAdapter {
    /// The adapter in its normal form.
    pub adapter: Adapter,
    /// What it touches.
    pub report: BindingReport,
    /// The base it was bound to before, where its file says so; it is refused on another.
    pub bound_to: Option<BaseId>,
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
        replace: bool,
    ) -> Result<ImportedBase, RuntimeError> {
        let lock = self.store.lock()?;
        self.refuse_taken(NameKind::Base, name, base.id().digest(), replace)?;
        let blob = self
            .store
            .put_blob(&lock, &mut |out| base.write_slm(out).map_err(std::io::Error::other))?;
        let record = NameRecord { id: base.id().digest(), blob };
        let changed = self.store.set_name(&lock, NameKind::Base, name, &record, replace)?;
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
        replace: bool,
    ) -> Result<ImportedAdapter, RuntimeError> {
        let base = self.base_by_reference(base)?;
        let ResolvedAdapter { adapter, report, bound_to } = read(&base.shape())?;
        if let Some(bound) = bound_to
            && bound != base.id()
        {
            return Err(ActivationError::AdapterBase {
                name: name.to_string(),
                bound,
                base: base.id(),
            }
            .into());
        }
        let adapter = Arc::new(adapter);
        // Binding is what activation will do; it must work before anything is stored.
        Arc::clone(&adapter).bind(base.id(), &base.shape())?;
        let lock = self.store.lock()?;
        self.refuse_taken(NameKind::Adapter, name, adapter.id().digest(), replace)?;
        let blob = self.store.put_blob(&lock, &mut |out| {
            write_adapter(&adapter, base.id(), out).map_err(std::io::Error::other)
        })?;
        let record = NameRecord { id: adapter.id().digest(), blob };
        let changed = self.store.set_name(&lock, NameKind::Adapter, name, &record, replace)?;
        Ok(ImportedAdapter { adapter: adapter.id(), base: base.id(), blob, report, changed })
    }

    /// Before a large blob is written, not after: a taken name refuses the import.
    fn refuse_taken(
        &self,
        kind: NameKind,
        name: &Name,
        id: Digest,
        replace: bool,
    ) -> Result<(), RuntimeError> {
        match self.store.name(kind, name)? {
            Some(record) if record.id != id && !replace => Err(slm_store::StoreError::NameTaken {
                kind,
                name: name.clone(),
                current: record.id,
            }
            .into()),
            _ => Ok(()),
        }
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
                    return self.open_base(BaseId::from_digest(record.id), Some(record.blob));
                }
                None => return Err(not_found("base", reference)),
            },
        };
        self.find_base(id)?.ok_or_else(|| not_found("base", reference))
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

pub(super) fn not_found(kind: &'static str, name: &str) -> RuntimeError {
    ActivationError::NotFound { kind, name: name.chars().take(160).collect() }.into()
}
