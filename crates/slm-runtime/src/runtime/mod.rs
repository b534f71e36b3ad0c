//! The runtime: a store, what is resident, and the one pointer to the active composition.
//!
//! ```text
//! validate  manifest, every blob re-hashed, adapters bound
//! stage     adapter data in working form
//! swap      slot written and synced, then the pointer in memory
//! commit    the old composition is released when its last user ends
//! ```
//!
//! Any failure before the swap leaves the old composition serving.

mod activate;
mod adapter_file;
mod compose;
mod import;
mod resident;
mod share;

use std::sync::{Arc, Mutex, PoisonError};

use slm_format::{Digest, Limits};
use slm_manifest::{AdapterId, BaseId, CompositionId, Manifest, TokenizerId};
use slm_overlay::peft::BindingReport;
use slm_store::{SlotFault, Storage, Store};

use crate::composition::Composition;
use crate::error::RuntimeError;
use crate::session::Engine;

pub use adapter_file::{read_adapter, write_adapter};
pub use compose::StackEntry;
pub use import::ResolvedAdapter;
use resident::Resident;
pub use share::{FileBytes, LayoutReader, LayoutWriter, ShareError, Shared, Unpacked, media_type};

/// What a caller calls a base, an adapter or a composition.
#[derive(Debug, Clone, PartialEq)]
pub enum Reference {
    /// A name, or an id spelt `sha256:…`.
    Text(String),
    /// A manifest document, TOML or JSON.
    Manifest(Vec<u8>),
}

/// What an import did.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedBase {
    /// The identity.
    pub base: BaseId,
    /// The tokenizer's identity.
    pub tokenizer: TokenizerId,
    /// Digest of the stored `.slm` blob.
    pub blob: Digest,
    /// False when the name already pointed to this base.
    pub changed: bool,
}

/// What an adapter import did.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedAdapter {
    /// The identity.
    pub adapter: AdapterId,
    /// The base it is bound to.
    pub base: BaseId,
    /// Digest of the stored `.slm` blob.
    pub blob: Digest,
    /// Every tensor it touches, pattern matches and warnings.
    pub report: BindingReport,
    /// False when the name already pointed to this adapter.
    pub changed: bool,
}

/// A composition that was put together.
#[derive(Debug, Clone, PartialEq)]
pub struct Composed {
    /// The identity.
    pub composition: CompositionId,
    /// The manifest.
    pub manifest: Manifest,
    /// Digest of the manifest.
    pub manifest_digest: Digest,
    /// False when the name already pointed to this composition.
    pub changed: bool,
}

/// What an activation, a rollback or a deactivation did.
#[derive(Debug, Clone, PartialEq)]
pub struct Activation {
    /// The composition that is active now.
    pub composition: CompositionId,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// Its generation number.
    pub generation: u64,
    /// What was active before.
    pub previous: Option<CompositionId>,
    /// False when nothing was to do.
    pub changed: bool,
}

/// What is active.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The composition.
    pub composition: CompositionId,
    /// Its generation number.
    pub generation: u64,
    /// Digest of its manifest.
    pub manifest_digest: Digest,
    /// Its manifest.
    pub manifest: Manifest,
    /// The other slot of the store, where it cannot be used: the last switch was torn and this is the state before it, or the medium failed.
    pub fault: Option<SlotFault>,
}

/// One generation of the history.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryEntry {
    /// The generation number.
    pub generation: u64,
    /// Its composition.
    pub composition: CompositionId,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// When it was first activated.
    pub time: String,
}

/// What a tokenizer is, for a caller that prepares text.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizerInfo {
    /// The identity.
    pub tokenizer: TokenizerId,
    /// Tokens of the vocabulary.
    pub vocab_size: u32,
    /// Beginning of text, if the model has one.
    pub bos: Option<u32>,
    /// Whether the model wants it before a text.
    pub add_bos: bool,
    /// Ids that end a text.
    pub eos: Vec<u32>,
    /// Whether the model has a chat template.
    pub has_chat_template: bool,
}

/// A store and what is resident of it.
///
/// `Sync`: sessions are made from any thread. The decode path takes no lock; a session holds its own reference.
pub struct Runtime<S: Storage> {
    store: Store<S>,
    engine: Engine,
    limits: Limits,
    resident: Resident,
    active: Mutex<Option<(Digest, Arc<Composition>)>>,
}

impl<S: Storage> Runtime<S> {
    /// A runtime over `store`; nothing is loaded yet.
    pub fn new(store: Store<S>, engine: Engine, limits: Limits) -> Runtime<S> {
        Runtime { store, engine, limits, resident: Resident::default(), active: Mutex::new(None) }
    }

    /// The store.
    pub fn store(&self) -> &Store<S> {
        &self.store
    }

    /// How its sessions run.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The tokenizer of the active composition.
    ///
    /// # Errors
    /// Nothing is active; what opening the composition refuses.
    pub fn query_tokenizer_info(&self) -> Result<TokenizerInfo, RuntimeError> {
        let composition = self.active_composition()?;
        tokenizer_info(&composition)
    }

    fn set_active(&self, generation: Digest, composition: Arc<Composition>) {
        // The only thing a panicking holder could have left is a whole old pair.
        *self.active.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((generation, composition));
    }

    fn cached_active(&self, generation: Digest) -> Option<Arc<Composition>> {
        let active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        active.as_ref().filter(|pair| pair.0 == generation).map(|pair| Arc::clone(&pair.1))
    }
}

/// The tokenizer of a composition.
///
/// # Errors
/// What building the tokenizer refuses.
pub fn tokenizer_info(composition: &Composition) -> Result<TokenizerInfo, RuntimeError> {
    let base = composition.base();
    let tokenizer = base.tokenizer()?;
    Ok(TokenizerInfo {
        tokenizer: base.tokenizer_id(),
        vocab_size: base.config().vocab_size,
        bos: tokenizer.bos(),
        add_bos: tokenizer.add_bos(),
        eos: tokenizer.eos_ids().to_vec(),
        has_chat_template: base.chat_template_source().is_some(),
    })
}
