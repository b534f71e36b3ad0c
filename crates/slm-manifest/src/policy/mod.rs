//! The local policy: what the owner of the machine decides, and no package can.

mod error;
mod read;
mod write;

use core::ops::Deref;

use slm_format::Limits;

pub use error::PolicyError;

use crate::manifest::Manifest;
use crate::name::Name;
use crate::signature::PublicKey;
use crate::trust::{TrustError, TrustPolicy};

/// One parameter of a policy, as `docs/policy.md` lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// Table and key, for example `store.keep_generations`.
    pub path: &'static str,
    /// What holds where it is not given, as TOML writes it; empty where there is then no bound, or nothing.
    pub default: &'static str,
    /// What it can be.
    pub bound: &'static str,
    /// What it decides.
    pub meaning: &'static str,
}

/// Most bytes in a budget: what every JSON reader gives back.
pub const MAX_BUDGET: u64 = crate::MAX_COUNT;
/// Longest wait, in milliseconds: one hour.
pub const MAX_WAIT_MS: u64 = 3_600_000;
/// Most generations that can be kept.
pub const MAX_KEEP_GENERATIONS: u64 = 1_000;
/// Most trusted keys.
pub const MAX_KEYS: u64 = 1_000;

/// Every parameter there is, in the order of the document.
pub const PARAMETERS: &[Parameter] = &[
    budget("budget.base_bytes", "memory for the base's weights"),
    budget("budget.adapters_bytes", "memory for the adapters of one composition"),
    budget("budget.kv_bytes", "memory for keys and values of one session"),
    budget("budget.scratch_bytes", "memory for what a forward pass needs beside them"),
    budget("budget.total_bytes", "memory for all of these together"),
    Parameter {
        path: "trust.rule",
        default: "\"none\"",
        bound: "none, signed, signed-by",
        meaning: "who must have signed a manifest that is activated: nobody, a trusted key, one of trust.signed_by",
    },
    Parameter {
        path: "trust.signed_by",
        default: "[]",
        bound: "ids of trust.keys; exactly with the rule signed-by",
        meaning: "the keys of which one must have signed",
    },
    Parameter {
        path: "trust.bare_base",
        default: "\"as-others\"",
        bound: "as-others, unsigned, refused",
        meaning: "whether the empty stack may be activated: judged by the rule, always, never",
    },
    Parameter {
        path: "trust.keys",
        default: "[]",
        bound: "at most 1000 of { name, key }, no name and no key twice",
        meaning: "public keys that are trusted, each as the line that minisign prints",
    },
    Parameter {
        path: "switch.during_generation",
        default: "\"reject\"",
        bound: "reject, abort, drain",
        meaning: "what a switch does while tokens are generated: fail, end them, wait for them",
    },
    Parameter {
        path: "switch.drain_wait_ms",
        default: "30000",
        bound: "0 to 3600000",
        meaning: "how long a draining switch waits before it fails",
    },
    Parameter {
        path: "store.keep_generations",
        default: "10",
        bound: "1 to 1000",
        meaning: "how many of the last generations keep what they need when garbage is collected",
    },
];

const fn budget(path: &'static str, meaning: &'static str) -> Parameter {
    Parameter { path, default: "", bound: "1 to 9007199254740991", meaning }
}

/// A policy before [`LocalPolicy::check`]. Its `Default` is the policy of a machine that has none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawLocalPolicy {
    /// Bounds of memory.
    pub budget: BudgetPolicy,
    /// What must hold before a composition is activated.
    pub trust: TrustPolicy,
    /// Whose signatures count.
    pub keys: Vec<TrustedKey>,
    /// How a switch treats what runs.
    pub switch: SwitchPolicy,
    /// How the store is kept.
    pub store: StorePolicy,
}

/// Bounds of memory in bytes; `None` is no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BudgetPolicy {
    /// The base's weights.
    pub base: Option<u64>,
    /// The adapters of one composition.
    pub adapters: Option<u64>,
    /// Keys and values of one session.
    pub kv: Option<u64>,
    /// What a forward pass needs beside them.
    pub scratch: Option<u64>,
    /// All of these together.
    pub total: Option<u64>,
}

/// A public key and what its owner is called here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedKey {
    /// What it is called.
    pub name: Name,
    /// The key.
    pub key: PublicKey,
}

/// What a switch does while tokens are generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DuringGeneration {
    /// The switch fails.
    #[default]
    Reject,
    /// The generations end with a typed reason.
    Abort,
    /// The switch waits for them, up to [`SwitchPolicy::drain_wait_ms`].
    Drain,
}

/// How a switch treats what runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchPolicy {
    /// While tokens are generated.
    pub during_generation: DuringGeneration,
    /// How long a draining switch waits, in milliseconds.
    pub drain_wait_ms: u64,
}

/// How the store is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorePolicy {
    /// How many generations keep what they need.
    pub keep_generations: u64,
}

impl Default for SwitchPolicy {
    fn default() -> SwitchPolicy {
        SwitchPolicy { during_generation: DuringGeneration::Reject, drain_wait_ms: 30_000 }
    }
}

impl Default for StorePolicy {
    fn default() -> StorePolicy {
        StorePolicy { keep_generations: 10 }
    }
}

/// A policy whose values are within their bounds and agree with each other. Fields are read through [`Deref`].
///
/// It comes from a document of its owner (`policy.toml`) or from a program, never from a package: no manifest has any of its fields.
///
/// ```
/// use slm_format::Limits;
/// use slm_manifest::policy::{DuringGeneration, LocalPolicy};
///
/// let policy = LocalPolicy::from_toml(
///     "budget = { total_bytes = 1_000_000_000 }\n[switch]\nduring_generation = \"drain\"\n",
///     &Limits::STANDARD,
/// )?;
/// assert_eq!(policy.budget.total, Some(1_000_000_000));
/// assert_eq!(policy.switch.during_generation, DuringGeneration::Drain);
/// assert_eq!(policy.store.keep_generations, 10);
/// assert_eq!(LocalPolicy::from_toml("", &Limits::STANDARD)?, LocalPolicy::default());
/// assert_eq!(LocalPolicy::from_toml(&policy.to_toml(), &Limits::STANDARD)?, policy);
/// # Ok::<(), slm_manifest::policy::PolicyError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocalPolicy(RawLocalPolicy);

impl Deref for LocalPolicy {
    type Target = RawLocalPolicy;

    fn deref(&self) -> &RawLocalPolicy {
        &self.0
    }
}

impl LocalPolicy {
    /// Checks `raw`.
    ///
    /// # Errors
    /// [`PolicyError`] names the first parameter that is wrong.
    pub fn check(raw: RawLocalPolicy) -> Result<LocalPolicy, PolicyError> {
        read::check(&raw)?;
        Ok(LocalPolicy(raw))
    }

    /// Reads a policy in TOML; what is not given has its default.
    ///
    /// # Errors
    /// [`PolicyError`] names the first parameter that is wrong.
    pub fn from_toml(text: &str, limits: &Limits) -> Result<LocalPolicy, PolicyError> {
        LocalPolicy::check(read::raw_from_toml(text, limits)?)
    }

    /// As [`LocalPolicy::from_toml`], of the bytes of a file.
    ///
    /// # Errors
    /// [`PolicyError::NotUtf8`]; as [`LocalPolicy::from_toml`].
    pub fn from_bytes(bytes: &[u8], limits: &Limits) -> Result<LocalPolicy, PolicyError> {
        let text = core::str::from_utf8(bytes)
            .map_err(|error| PolicyError::NotUtf8 { offset: error.valid_up_to() as u64 })?;
        LocalPolicy::from_toml(text, limits)
    }

    /// The policy in TOML: every parameter with its meaning as a comment, those that have their default as comments too.
    pub fn to_toml(&self) -> String {
        write::toml(&self.0)
    }

    /// Whether `manifest` may be activated, where `signatures` were found for it: [`TrustPolicy::judge`] with the trusted keys.
    ///
    /// # Errors
    /// As [`TrustPolicy::judge`].
    pub fn judge<S: AsRef<[u8]>>(
        &self,
        manifest: &Manifest,
        signatures: &[S],
    ) -> Result<(), TrustError> {
        let keys: Vec<PublicKey> = self.0.keys.iter().map(|trusted| trusted.key).collect();
        self.0.trust.judge(manifest, signatures, &keys)
    }
}
