//! The identities: one type each, one domain each, one encoding each.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};
use slm_format::{ContentHash, Digest, DigestError, Encoding};

use crate::config::ModelConfig;

/// The version of the arithmetic in `docs/numerics.md`. Part of every [`CompositionId`].
pub const NUMERICS_VERSION: u32 = 1;

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident, $domain:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Digest);

        impl $name {
            /// The domain tag that this identity is hashed under.
            pub const DOMAIN: &'static str = $domain;

            /// The identity whose canonical encoding is `bytes`.
            pub fn of_canonical(bytes: &[u8]) -> $name {
                $name(Digest::of_domain(Self::DOMAIN, bytes))
            }

            /// The identity that a stored or typed digest claims; compare it with a computed one before trusting it.
            pub const fn from_digest(digest: Digest) -> $name {
                $name(digest)
            }

            /// The digest inside.
            pub const fn digest(self) -> Digest {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = DigestError;

            fn from_str(text: &str) -> Result<$name, DigestError> {
                text.parse().map($name)
            }
        }
    };
}

identity! {
    /// What a base computes: its checked configuration and the bytes of every tensor, whatever file they came in.
    BaseId, "slm base 1"
}
identity! {
    /// The canonical tokenizer document.
    TokenizerId, "slm tokenizer 1"
}
identity! {
    /// The normal form of an adapter.
    AdapterId, "slm adapter 1"
}
identity! {
    /// A compression plan.
    PlanId, "slm plan 1"
}
identity! {
    /// A base, a tokenizer and an ordered stack of weighted adapters under one version of the arithmetic.
    CompositionId, "slm composition 1"
}
identity! {
    /// A composition under one execution profile: the key of bits, of KV pages and of prefixes.
    ExecutionId, "slm execution 1"
}

/// What a [`BaseId`] covers of one tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorIdentity {
    /// Canonical (GGUF) name.
    pub name: String,
    /// How the elements are stored.
    pub encoding: Encoding,
    /// Dimensions, innermost first, as GGUF counts them.
    pub shape: Vec<u64>,
    /// BLAKE3 of the bytes in ggml order.
    pub content: ContentHash,
}

impl BaseId {
    /// The identity of these tensors under this configuration; the order of `tensors` does not matter.
    ///
    /// # Panics
    /// Never for values that can be constructed: the encoding is infallible.
    pub fn compute(config: &ModelConfig, tensors: &[TensorIdentity]) -> BaseId {
        let mut rows: Vec<(&str, &str, &[u64], ContentHash)> = tensors
            .iter()
            .map(|tensor| {
                (
                    tensor.name.as_str(),
                    tensor.encoding.name(),
                    tensor.shape.as_slice(),
                    tensor.content,
                )
            })
            .collect();
        rows.sort_by_key(|row| row.0);
        BaseId::of_canonical(&encode(&(config.canonical(), rows)))
    }
}

/// What a [`CompositionId`] covers.
#[derive(Debug, Clone, PartialEq)]
pub struct CompositionParts {
    /// The base.
    pub base: BaseId,
    /// The tokenizer.
    pub tokenizer: TokenizerId,
    /// The stack, bottom first: adapter and weight.
    pub stack: Vec<(AdapterId, f32)>,
    /// The compression plan, if any.
    pub plan: Option<PlanId>,
}

impl CompositionParts {
    /// The identity under the arithmetic of this build, [`NUMERICS_VERSION`].
    pub fn id(&self) -> CompositionId {
        self.id_under(NUMERICS_VERSION)
    }

    /// The identity under another version of the arithmetic, to recognise a composition made by another build.
    pub fn id_under(&self, numerics_version: u32) -> CompositionId {
        let stack: Vec<(AdapterId, u32)> =
            self.stack.iter().map(|(id, weight)| (*id, weight.to_bits())).collect();
        CompositionId::of_canonical(&encode(&(
            self.base,
            self.tokenizer,
            stack,
            self.plan,
            numerics_version,
        )))
    }
}

/// How a composition is executed where that changes bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExecutionProfile {
    /// Activations in 8-bit blocks (the default path) or in f32 (the oracle mode).
    pub activations: Activations,
    /// How K and V are stored.
    pub kv: KvType,
    /// A RoPE base that replaces the model's, as f32 bits.
    pub rope_theta_bits: Option<u32>,
    /// A context length that replaces the model's.
    pub context_length: Option<u32>,
}

/// Precision of activations in products with integer-coded weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Activations {
    /// Signed 8-bit blocks of 32.
    Int8,
    /// f32, weights decoded.
    F32,
}

/// Precision of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KvType {
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl ExecutionProfile {
    /// 8-bit activations over an f16 cache, no overrides.
    pub const DEFAULT: ExecutionProfile = ExecutionProfile {
        activations: Activations::Int8,
        kv: KvType::F16,
        rope_theta_bits: None,
        context_length: None,
    };

    /// f32 activations over an f32 cache: the oracle mode.
    pub const ORACLE: ExecutionProfile = ExecutionProfile {
        activations: Activations::F32,
        kv: KvType::F32,
        ..ExecutionProfile::DEFAULT
    };

    /// The identity of `composition` under this profile.
    pub fn execution_id(&self, composition: CompositionId) -> ExecutionId {
        ExecutionId::of_canonical(&encode(&(composition, self)))
    }
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("BUG: an identity could not be encoded")
}
