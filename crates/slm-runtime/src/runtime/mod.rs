//! The runtime: a store, what is resident, and the one pointer to the active composition.
//!
//! ```text
//! validate  manifest, trust, every blob re-hashed, adapters bound, budgets
//! stage     adapter data in working form
//! swap      slot written and synced, then the pointer in memory
//! commit    the old composition is released when its last user ends
//! ```
//!
//! Any failure before the swap leaves the old composition serving. [`Runtime::prepare`] gives the states as types; the calls by name,
//! [`Runtime::activate_composition`], [`Runtime::rollback`] and [`Runtime::deactivate_adapter`], go through all of them.

mod activate;
mod adapter_file;
mod claimed;
mod compose;
mod evaluation;
mod generation;
mod import;
mod machine;
mod pause;
mod recover;
mod resident;
mod rules;
mod share;
mod switchboard;
mod trust;
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::{ArcSwap, ArcSwapOption};

use slm_format::{Digest, Limits};
use slm_manifest::policy::LocalPolicy;
use slm_manifest::{
    AdapterId, BaseId, CompositionId, ExecutionProfile, Manifest, Name, TokenizerId,
};
use slm_overlay::peft::BindingReport;
use slm_store::{SlotFault, Storage, Store};

use crate::budget::{Ledger, MemoryPlan, Workload};
use crate::composition::Composition;
use crate::error::RuntimeError;
use crate::session::Engine;

pub use adapter_file::{Declared, Requires, read_adapter, write_adapter};
pub use claimed::ClaimedTokens;
pub use compose::StackEntry;
pub use generation::Generation;
pub use import::ResolvedAdapter;
pub use machine::{Committed, Prepared, Request, RolledBack, Staged};
#[cfg(feature = "clock")]
pub use pause::SystemPause;
pub use pause::{Pause, no_patience};
use resident::Resident;
use rules::{Rules, Source};
pub use share::{FileBytes, LayoutReader, LayoutWriter, ShareError, Shared, Unpacked, media_type};
use switchboard::{Slot, Switchboard, User};

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

/// What the audit log says was active last, where the active records do not tell.
#[derive(Debug, Clone, PartialEq)]
pub struct Recovery {
    /// The composition.
    pub composition: CompositionId,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// Its generation number.
    pub generation: u64,
    /// When it was first activated.
    pub time: String,
    /// A later generation, of which the log does not know whether it became active.
    pub unsure: Option<Digest>,
    /// Whether it was made active now.
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

/// What is active, as the pointer has it.
#[derive(Debug)]
struct Active {
    generation: Digest,
    composition: Arc<Composition>,
}

type Board = Switchboard<Active, AtomicU64, ArcSwapOption<Slot<Active>>>;
type BoardUser = User<Active, AtomicU64, ArcSwapOption<Slot<Active>>>;

/// What a runtime shares with its generations.
struct Core {
    board: Arc<Board>,
    resident: Resident,
    rules: ArcSwap<Rules>,
    ledger: Ledger,
}

impl Core {
    /// Everything that is resident or reserved, and so much more.
    fn planned(&self, more_base: u64, more_adapters: u64) -> MemoryPlan {
        let (base, adapters) = self.resident.bytes();
        let plan = MemoryPlan {
            base: base.saturating_add(more_base),
            adapters: adapters.saturating_add(more_adapters),
            ..MemoryPlan::default()
        };
        self.ledger.with_reserved(plan).with_overhead()
    }

    /// What a session of `work` makes of everything resident, and what it needs by itself.
    fn plan_of(
        &self,
        composition: &Composition,
        profile: &ExecutionProfile,
        engine: &Engine,
        work: Workload,
    ) -> Result<(MemoryPlan, MemoryPlan), RuntimeError> {
        let own = MemoryPlan::of_session(composition, profile, engine.exec.n_workers(), work)?;
        let (base, adapters) = self.resident.bytes();
        // What runs without a store is resident for this alone.
        let (base, adapters) = (base.max(own.base), adapters.max(own.adapters));
        Ok((MemoryPlan { base, adapters, ..own }, own))
    }

    /// Before so much is allocated.
    fn check_room(&self, more_base: u64, more_adapters: u64) -> Result<(), RuntimeError> {
        Ok(self.followed()?.budgets.check(&self.planned(more_base, more_adapters))?)
    }
}

/// A store and what is resident of it.
///
/// `Sync`: generations and sessions are made from any thread. The decode path takes no lock: a session holds its own reference, and a generation
/// reads one word for each token.
pub struct Runtime<S: Storage> {
    store: Store<S>,
    engine: Engine,
    limits: Limits,
    actor: Option<Name>,
    /// Whether weights stay where the medium has them.
    in_place: bool,
    policy_of: Source,
    pause: Option<Arc<dyn Pause>>,
    shared: Arc<Core>,
}

impl<S: Storage> Runtime<S> {
    /// A runtime over `store` under the default policy: no budgets, no signatures asked for, a switch is rejected while generations run.
    /// Nothing is loaded yet.
    pub fn new(store: Store<S>, engine: Engine, limits: Limits) -> Runtime<S> {
        Runtime::with_policy(store, engine, limits, LocalPolicy::default())
    }

    /// A runtime under local rules: how much memory it may use, what becomes of running generations at a switch, and who must have signed
    /// what is activated.
    pub fn with_policy(
        store: Store<S>,
        engine: Engine,
        limits: Limits,
        policy: LocalPolicy,
    ) -> Runtime<S> {
        Runtime::under(store, engine, limits, policy.into(), Source::Caller)
    }

    /// A runtime under the store's own policy, the document `policy.toml`: as it stands now, and read again under every lock, so that a change binds every
    /// process from its next operation on. A document that cannot be followed hinders nobody from looking: [`Runtime::policy_fault`].
    pub fn under_store_policy(store: Store<S>, engine: Engine, limits: Limits) -> Runtime<S> {
        let rules = Rules::of_store(&store);
        Runtime::under(store, engine, limits, rules, Source::Store)
    }

    fn under(
        store: Store<S>,
        engine: Engine,
        limits: Limits,
        rules: Rules,
        policy_of: Source,
    ) -> Runtime<S> {
        let shared = Core {
            board: Arc::new(Switchboard::new()),
            resident: Resident::default(),
            rules: ArcSwap::from_pointee(rules),
            ledger: Ledger::default(),
        };
        Runtime {
            store,
            engine,
            limits,
            actor: None,
            in_place: false,
            policy_of,
            pause: pause::usual(),
            shared: Arc::new(shared),
        }
    }

    /// The same runtime, which leaves weights where the medium has them instead of reading them into memory: for whoever switches and does not
    /// generate. Everything is verified all the same; what is mapped from a file can change under a reader later, what was read cannot.
    pub fn in_place(self) -> Runtime<S> {
        Runtime { in_place: true, ..self }
    }

    /// The same runtime, whose operations the log ascribes to `actor`.
    pub fn acting_for(self, actor: Option<Name>) -> Runtime<S> {
        Runtime { actor, ..self }
    }

    /// The store.
    pub fn store(&self) -> &Store<S> {
        &self.store
    }

    /// How its sessions run.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What is resident and reserved now, in the terms of a plan.
    pub fn memory(&self) -> MemoryPlan {
        self.shared.planned(0, 0)
    }

    /// Generations that run.
    pub fn running(&self) -> u64 {
        self.shared.board.running()
    }

    /// The tokenizer of the active composition.
    ///
    /// # Errors
    /// Nothing is active; what opening the composition refuses.
    pub fn query_tokenizer_info(&self) -> Result<TokenizerInfo, RuntimeError> {
        let composition = self.active_composition()?;
        tokenizer_info(&composition)
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
