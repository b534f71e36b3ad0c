//! Which compositions may be activated: a policy over signatures.

use std::collections::BTreeSet;

use slm_format::{Coded, Digest};

use crate::manifest::Manifest;
use crate::signature::{DocumentKind, KeyId, PublicKey, Signature, SignatureError};

/// Who must have signed a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TrustRule {
    /// Nobody.
    #[default]
    None,
    /// Any of the trusted keys.
    Signed,
    /// One of the trusted keys with these ids.
    SignedBy(BTreeSet<KeyId>),
}

/// Whether the bare base, the empty stack, may be activated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BareBase {
    /// As any other composition: the rule decides.
    #[default]
    AsOthers,
    /// Yes, whoever has signed it or not.
    Unsigned,
    /// Never: where a model must not run without its adapters.
    Refused,
}

/// What must hold before a composition is activated, by whatever way: activation, rollback or deactivation of an adapter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrustPolicy {
    /// Who must have signed.
    pub rule: TrustRule,
    /// Whether the empty stack is allowed.
    pub bare_base: BareBase,
}

/// Why a composition is not trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// There is no signature.
    #[error("manifest {manifest} is not signed, and the trust policy asks for a signature")]
    Unsigned {
        /// The manifest.
        manifest: Digest,
    },
    /// There are signatures, by nobody whom the policy accepts.
    #[error(
        "manifest {manifest} is signed by {}, whom the trust policy does not accept",
        list(found)
    )]
    UntrustedKey {
        /// The manifest.
        manifest: Digest,
        /// Who has signed, in ascending order.
        found: Vec<KeyId>,
    },
    /// No signature holds, and at least one claims to be by an accepted key or cannot be read.
    #[error("the signature of manifest {manifest} does not hold: {source}")]
    BadSignature {
        /// The manifest.
        manifest: Digest,
        /// What is wrong with the first such signature.
        source: SignatureError,
    },
    /// The empty stack, where that is never allowed.
    #[error("manifest {manifest} is the bare base, which the trust policy never allows")]
    BareBase {
        /// The manifest.
        manifest: Digest,
    },
}

impl Coded for TrustError {
    fn code(&self) -> &'static str {
        match self {
            TrustError::Unsigned { .. } => "unsigned",
            TrustError::UntrustedKey { .. } => "untrusted-key",
            TrustError::BadSignature { .. } => "bad-signature",
            TrustError::BareBase { .. } => "bare-base-refused",
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            TrustError::Unsigned { .. } => "sign it: slm sign NAME --key FILE",
            TrustError::UntrustedKey { .. } => {
                "if you trust that key: slm trust add NAME FILE; a rule signed-by must name its id too"
            }
            TrustError::BadSignature { .. } | TrustError::BareBase { .. } => return None,
        };
        Some(hint.to_owned())
    }
}

impl TrustPolicy {
    /// Whether `manifest` may be activated, where `signatures` are the files of signatures that were found for it and `keys` are trusted.
    ///
    /// One signature that holds, by a key that is accepted, is enough; others can take nothing away, so that nobody can lock a
    /// composition out by laying a broken signature beside a good one. A signature holds if it verifies over the manifest's canonical JSON and
    /// its trusted comment names no other document. Under [`TrustRule::None`] no signature is read.
    ///
    /// ```
    /// use slm_format::Limits;
    /// use slm_manifest::signature::{SecretKey, SignedDocument};
    /// use slm_manifest::{Manifest, TrustPolicy, TrustRule};
    ///
    /// # let text = r#"{"base_model_hash":"sha256:1111111111111111111111111111111111111111111111111111111111111111",
    /// # "tokenizer_id":"sha256:2222222222222222222222222222222222222222222222222222222222222222","adapters":[],
    /// # "quantization":[{"dtype":"int4","scheme":"NF4","block_size":64,"tensors":210}],
    /// # "runtime":{"name":"slm","version":"0.1.0","numerics":1},"timestamp_utc":"2026-07-21T00:00:00Z"}"#;
    /// let manifest = Manifest::parse(text.as_bytes(), &Limits::STANDARD)?;
    /// let document = manifest.to_canonical_json();
    /// let secret = SecretKey::from_random([7; 40])?;
    /// let signature =
    ///     secret.sign(&document, &SignedDocument::manifest(&document).comment(0))?.to_document();
    ///
    /// let policy = TrustPolicy { rule: TrustRule::Signed, ..TrustPolicy::default() };
    /// assert!(policy.judge(&manifest, &[&signature], &[secret.public_key()]).is_ok());
    /// assert!(policy.judge(&manifest, &[&signature], &[]).is_err());
    /// assert!(policy.judge::<&str>(&manifest, &[], &[secret.public_key()]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `bare-base-refused`; else, where no signature is enough, the first that applies of `bad-signature`, `untrusted-key`, `unsigned`.
    pub fn judge<S: AsRef<[u8]>>(
        &self,
        manifest: &Manifest,
        signatures: &[S],
        keys: &[PublicKey],
    ) -> Result<(), TrustError> {
        if manifest.adapters.is_empty() {
            match self.bare_base {
                BareBase::AsOthers => {}
                BareBase::Unsigned => return Ok(()),
                BareBase::Refused => {
                    return Err(TrustError::BareBase { manifest: manifest.digest() });
                }
            }
        }
        if self.rule == TrustRule::None {
            return Ok(());
        }
        let document = manifest.to_canonical_json();
        let manifest = Digest::of(&document);
        let accepted: Vec<&PublicKey> =
            keys.iter().filter(|key| self.rule.accepts(key.id())).collect();
        let mut bad = None;
        let mut strangers = BTreeSet::new();
        for signature in signatures {
            match check(&document, signature.as_ref(), &accepted) {
                Ok(Checked::Holds) => return Ok(()),
                Ok(Checked::Stranger(key)) => {
                    strangers.insert(key);
                }
                Err(error) => bad = bad.or(Some(error)),
            }
        }
        Err(match bad {
            Some(source) => TrustError::BadSignature { manifest, source },
            None if strangers.is_empty() => TrustError::Unsigned { manifest },
            None => TrustError::UntrustedKey { manifest, found: strangers.into_iter().collect() },
        })
    }
}

impl TrustRule {
    /// Whether a trusted key with this id is enough.
    fn accepts(&self, key: KeyId) -> bool {
        match self {
            TrustRule::None | TrustRule::Signed => true,
            TrustRule::SignedBy(ids) => ids.contains(&key),
        }
    }
}

enum Checked {
    Holds,
    Stranger(KeyId),
}

/// Checks one signature with every accepted key of its id, of which there may be several.
fn check(
    document: &[u8],
    signature: &[u8],
    accepted: &[&PublicKey],
) -> Result<Checked, SignatureError> {
    let signature = Signature::parse(signature)?;
    let id = signature.key_id();
    let mut result = Ok(Checked::Stranger(id));
    for key in accepted.iter().filter(|key| key.id() == id) {
        match key.verify_document(DocumentKind::Manifest, document, &signature) {
            Ok(()) => return Ok(Checked::Holds),
            Err(error) => result = Err(error),
        }
    }
    result
}

fn list(keys: &[KeyId]) -> String {
    keys.iter().map(KeyId::to_string).collect::<Vec<_>>().join(", ")
}
