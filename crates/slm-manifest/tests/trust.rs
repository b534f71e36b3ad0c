//! The trust policy, over signatures that the minisign program made.

use std::collections::BTreeSet;

use slm_format::{Coded, ErrorClass, Limits};
use slm_manifest::signature::{KeyId, PublicKey, SecretKey, SignedDocument};
use slm_manifest::{BareBase, Manifest, TrustError, TrustPolicy, TrustRule};

const MANIFEST: &[u8] = include_bytes!("data/minisign/manifest.json");
const BARE: &[u8] = include_bytes!("data/minisign/bare.json");
const PLAIN_PUB: &[u8] = include_bytes!("data/minisign/plain.pub");
const OTHER_PUB: &[u8] = include_bytes!("data/minisign/encrypted.pub");
const PREHASHED: &[u8] = include_bytes!("data/minisign/plain.prehashed.minisig");
const LEGACY: &[u8] = include_bytes!("data/minisign/plain.legacy.minisig");
const MISNAMED: &[u8] = include_bytes!("data/minisign/plain.misnamed.minisig");
const BY_OTHER: &[u8] = include_bytes!("data/minisign/encrypted.minisig");
const OF_BARE: &[u8] = include_bytes!("data/minisign/bare.minisig");

/// Rule, signatures, trusted keys, and the code.
type Case<'a> = (TrustRule, &'a [&'a [u8]], &'a [PublicKey], Result<(), &'static str>);

/// Rule, what it says of the bare base, signatures, and the code.
type BareCase<'a> = (TrustRule, BareBase, &'a [&'a [u8]], Result<(), &'static str>);

fn manifest(document: &[u8]) -> Manifest {
    Manifest::parse(document, &Limits::STANDARD).expect("a manifest")
}

fn key(file: &[u8]) -> PublicKey {
    PublicKey::parse(file).expect("a key")
}

fn by(keys: &[PublicKey]) -> TrustRule {
    TrustRule::SignedBy(keys.iter().map(PublicKey::id).collect())
}

fn judge(
    rule: TrustRule,
    document: &[u8],
    signatures: &[&[u8]],
    keys: &[PublicKey],
) -> Result<(), TrustError> {
    TrustPolicy { rule, ..TrustPolicy::default() }.judge(&manifest(document), signatures, keys)
}

#[test]
fn each_rule_wants_what_it_says() {
    let (plain, other) = (key(PLAIN_PUB), key(OTHER_PUB));
    let both = [plain, other];
    let code = |rule, signatures: &[&[u8]], keys: &[PublicKey]| {
        judge(rule, MANIFEST, signatures, keys).map_err(|error| error.code())
    };
    let cases: [Case<'_>; 20] = [
        (TrustRule::None, &[], &[], Ok(())),
        // Under no rule, no signature is read.
        (TrustRule::None, &[b"x"], &[], Ok(())),
        (TrustRule::Signed, &[], &both, Err("unsigned")),
        (TrustRule::Signed, &[PREHASHED], &both, Ok(())),
        (TrustRule::Signed, &[LEGACY], &both, Ok(())),
        (TrustRule::Signed, &[BY_OTHER], &both, Ok(())),
        (TrustRule::Signed, &[PREHASHED], &[other], Err("untrusted-key")),
        (TrustRule::Signed, &[PREHASHED], &[], Err("untrusted-key")),
        (TrustRule::Signed, &[PREHASHED, BY_OTHER], &[other], Ok(())),
        (TrustRule::Signed, &[OF_BARE], &both, Err("bad-signature")),
        (TrustRule::Signed, &[MISNAMED], &both, Err("bad-signature")),
        (TrustRule::Signed, &[b"no signature"], &both, Err("bad-signature")),
        // A bad one beside a good one takes nothing away, whatever the order.
        (TrustRule::Signed, &[OF_BARE, b"x", PREHASHED], &both, Ok(())),
        (TrustRule::Signed, &[PREHASHED, OF_BARE], &both, Ok(())),
        (TrustRule::Signed, &[BY_OTHER, OF_BARE], &[plain], Err("bad-signature")),
        (by(&[plain]), &[PREHASHED], &both, Ok(())),
        (by(&[plain]), &[BY_OTHER], &both, Err("untrusted-key")),
        (by(&both), &[BY_OTHER], &both, Ok(())),
        // An id in the rule is no key: what is not trusted cannot be checked.
        (by(&[plain]), &[PREHASHED], &[other], Err("untrusted-key")),
        (by(&[]), &[PREHASHED], &both, Err("untrusted-key")),
    ];
    for (rule, signatures, keys, expected) in cases {
        let shown = format!("{rule:?} {}", signatures.len());
        assert_eq!(code(rule, signatures, keys), expected, "{shown}");
    }
}

#[test]
fn the_bare_base_is_judged_as_the_policy_says() {
    let keys = [key(PLAIN_PUB)];
    let cases: [BareCase<'_>; 6] = [
        (TrustRule::None, BareBase::AsOthers, &[], Ok(())),
        (TrustRule::None, BareBase::Refused, &[], Err("bare-base-refused")),
        (TrustRule::Signed, BareBase::AsOthers, &[], Err("unsigned")),
        (TrustRule::Signed, BareBase::AsOthers, &[OF_BARE], Ok(())),
        (TrustRule::Signed, BareBase::Unsigned, &[], Ok(())),
        (TrustRule::Signed, BareBase::Refused, &[OF_BARE], Err("bare-base-refused")),
    ];
    for (rule, bare_base, signatures, expected) in cases {
        let policy = TrustPolicy { rule, bare_base };
        let found = policy.judge(&manifest(BARE), signatures, &keys).map_err(|e| e.code());
        assert_eq!(found, expected, "{policy:?}");
        // A stack of adapters is none of its business.
        let stacked = policy.judge(&manifest(MANIFEST), &[PREHASHED], &keys);
        assert_eq!(stacked, Ok(()), "{policy:?}");
    }
}

#[test]
fn keys_of_one_id_are_told_apart_by_the_signature() {
    // Nothing hinders a stranger from giving his key a trusted key's id.
    let mut random = [9; 40];
    random[..8].copy_from_slice(&key(PLAIN_PUB).id().to_bytes());
    let twin = SecretKey::from_random(random).expect("a key");
    assert_eq!(twin.id(), key(PLAIN_PUB).id());
    let comment = SignedDocument::manifest(MANIFEST).comment(0);
    let forged = twin.sign(MANIFEST, &comment).expect("a comment").to_document();
    let judged =
        |keys: &[PublicKey]| judge(TrustRule::Signed, MANIFEST, &[forged.as_bytes()], keys);
    let error = judged(&[key(PLAIN_PUB)]).unwrap_err();
    assert_eq!((error.code(), error.class()), ("bad-signature", ErrorClass::Refused));
    assert_eq!(judged(&[key(PLAIN_PUB), twin.public_key()]), Ok(()));
    assert_eq!(judged(&[twin.public_key(), key(PLAIN_PUB)]), Ok(()));
}

#[test]
fn the_error_names_manifest_and_strangers() {
    let error = judge(TrustRule::Signed, MANIFEST, &[PREHASHED, BY_OTHER], &[]).unwrap_err();
    let found: BTreeSet<KeyId> = [key(PLAIN_PUB).id(), key(OTHER_PUB).id()].into();
    let found: Vec<KeyId> = found.into_iter().collect();
    assert_eq!(error, TrustError::UntrustedKey { manifest: manifest(MANIFEST).digest(), found });
    let text = error.to_string();
    assert!(text.contains("8D8E569AF1735CB7") && text.contains("FE17D71AFD923BC5"), "{text}");
}
