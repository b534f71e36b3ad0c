//! The trust policy holds for activation, rollback and deactivation alike.

mod common;

use common::share::record;
use common::{LIMITS, NOW, active_bits, bits_of, code, compose, composition, name, stocked, tiny};
use slm_format::Digest;
use slm_manifest::policy::{LocalPolicy, RawLocalPolicy, TrustedKey};
use slm_manifest::signature::{DocumentKind, KeyId, SecretKey, SignedDocument};
use slm_manifest::{BareBase, Manifest, TrustPolicy, TrustRule};
use slm_runtime::runtime::Reference;
use slm_runtime::{Engine, Runtime};
use slm_store::{MemStorage, Store};

fn text(composition: &str) -> Reference {
    Reference::Text(composition.to_owned())
}

fn alice() -> SecretKey {
    SecretKey::from_random([7; 40]).expect("a key")
}

fn under(storage: &MemStorage, trust: TrustPolicy, trusted: &[&SecretKey]) -> Runtime<MemStorage> {
    let keys = trusted
        .iter()
        .enumerate()
        .map(|(n, key)| TrustedKey { name: name(&format!("key-{n}")), key: key.public_key() })
        .collect();
    let raw = RawLocalPolicy { trust, keys, ..RawLocalPolicy::default() };
    let policy = LocalPolicy::check(raw).expect("a policy");
    Runtime::with_policy(
        Store::open(storage.clone()).expect("a store"),
        Engine::inline(),
        LIMITS,
        policy,
    )
}

fn sign(runtime: &Runtime<MemStorage>, manifest: &Manifest, key: &SecretKey) {
    let document = manifest.to_canonical_json();
    let comment = SignedDocument::manifest(&document).comment(0);
    let signature = key.sign(&document, &comment).expect("a signature");
    let kind = DocumentKind::Manifest;
    runtime
        .add_signature(kind, &document, &signature, &key.public_key(), NOW)
        .expect("a signature of this document");
}

const SIGNED: TrustPolicy = TrustPolicy { rule: TrustRule::Signed, bare_base: BareBase::AsOthers };

#[test]
fn all_three_ways_ask_for_the_same_trust() {
    let storage = MemStorage::new();
    let (free, _) = stocked(storage.clone());
    let both = compose(&free, "both", &[("kjv", 0.5), ("python", 1.0)]);
    let python = compose(&free, "p", &[("python", 1.0)]);
    // A history made while nobody asked: bare, python, both.
    for name in ["bare", "p", "both"] {
        free.activate_composition(&text(name), NOW).expect("active");
    }
    drop(free);
    let alice = alice();
    let runtime = under(&storage, SIGNED, &[&alice]);
    let serving = active_bits(&runtime);
    let refused = |runtime: &Runtime<MemStorage>, expected: &str| {
        assert_eq!(code(runtime.activate_composition(&text("p"), NOW)), expected, "activate");
        assert_eq!(code(runtime.rollback(NOW)), expected, "rollback");
        assert_eq!(code(runtime.deactivate_adapter("kjv", NOW)), expected, "deactivate");
        assert_eq!(runtime.status().expect("active").composition, both.composition);
        assert_eq!(active_bits(runtime), serving);
    };
    refused(&runtime, "unsigned");
    // The refusals are in the log.
    let log = runtime.store().audit().expect("a whole log").records;
    let codes: Vec<_> = log.iter().rev().filter_map(|record| record.code.as_deref()).collect();
    assert_eq!(codes[..3], ["unsigned"; 3]);

    // Signed by somebody whom nobody here knows.
    let stranger = SecretKey::from_random([9; 40]).expect("a key");
    sign(&runtime, &python.manifest, &stranger);
    refused(&runtime, "untrusted-key");
    // Signed by alice: all three go through, deactivation with the manifest that she signed.
    sign(&runtime, &python.manifest, &alice);
    let activation = runtime.activate_composition(&text("p"), NOW).expect("signed");
    assert!(activation.changed);
    assert_eq!(code(runtime.rollback(NOW)), "unsigned", "back to what is not signed");
    sign(&runtime, &both.manifest, &alice);
    assert_eq!(runtime.rollback(NOW).expect("signed").composition, both.composition);
    let deactivated = runtime.deactivate_adapter("kjv", NOW).expect("signed");
    assert_eq!(deactivated.manifest, python.manifest_digest);
    assert_eq!(active_bits(&runtime), bits_of(&composition(&tiny(), &[("python", 1.0)])));

    // Under signed-by, another trusted key is not enough.
    let only: TrustPolicy = TrustPolicy {
        rule: TrustRule::SignedBy(
            [stranger.id()].into_iter().collect::<std::collections::BTreeSet<KeyId>>(),
        ),
        bare_base: BareBase::AsOthers,
    };
    let strict = under(&storage, only, &[&alice, &stranger]);
    assert_eq!(code(strict.activate_composition(&text("both"), NOW)), "untrusted-key");
    strict.activate_composition(&text("p"), NOW).expect("the stranger signed this one");
}

#[test]
fn a_damaged_signature_takes_nothing_from_a_good_one() {
    let storage = MemStorage::new();
    let (free, _) = stocked(storage.clone());
    let manifest = compose(&free, "k", &[("kjv", 1.0)]).manifest;
    let stranger = SecretKey::from_random([9; 40]).expect("a key");
    sign(&free, &manifest, &alice());
    let of_alice = free.signatures_of(manifest.digest()).expect("signatures")[0].0;
    sign(&free, &manifest, &stranger);
    let all = free.signatures_of(manifest.digest()).expect("signatures");
    assert_eq!(all.len(), 2);
    let damage = |wanted: &dyn Fn(Digest) -> bool| {
        for (digest, bytes) in all.iter().filter(|signature| wanted(signature.0)) {
            let mut bent = bytes.clone();
            let last = bent.len() - 3;
            bent[last] ^= 1;
            let path = digest.to_string().replace("sha256:", "blobs/sha256/");
            storage.insert(&path, &bent);
        }
    };
    damage(&|digest| digest != of_alice);
    let strict = under(&storage, SIGNED, &[&alice()]);
    assert!(strict.activate_composition(&text("k"), NOW).expect("alice's holds").changed);
    damage(&|digest| digest == of_alice);
    // Whose signature it was cannot be told any more: that is damage, not absence.
    assert_eq!(code(strict.activate_composition(&text("k"), NOW)), "blob-damaged");
    strict.gc_dropping_damaged(10, NOW).expect("both are let go of");
    assert_eq!(code(strict.activate_composition(&text("k"), NOW)), "unsigned");
}

#[test]
fn the_bare_base_has_a_rule_of_its_own() {
    let storage = MemStorage::new();
    let (free, _) = stocked(storage.clone());
    compose(&free, "k", &[("kjv", 1.0)]);
    free.activate_composition(&text("k"), NOW).expect("active");
    drop(free);
    for (rule, bare_base, expected) in [
        (TrustRule::None, BareBase::AsOthers, None),
        (TrustRule::None, BareBase::Refused, Some("bare-base-refused")),
        (TrustRule::Signed, BareBase::AsOthers, Some("unsigned")),
        (TrustRule::Signed, BareBase::Refused, Some("bare-base-refused")),
        (TrustRule::Signed, BareBase::Unsigned, None),
    ] {
        let alice = alice();
        let runtime = under(&storage, TrustPolicy { rule: rule.clone(), bare_base }, &[&alice]);
        let outcome = runtime.deactivate_adapter("kjv", NOW);
        match expected {
            Some(expected) => assert_eq!(code(outcome), expected, "{rule:?}, {bare_base:?}"),
            None => {
                assert!(outcome.expect("allowed").changed, "{rule:?}, {bare_base:?}");
                common::runtime(storage.clone())
                    .activate_composition(&text("k"), NOW)
                    .expect("active");
            }
        }
    }
}

/// An evaluation record is found by its composition, kept with its signature, and collected with it.
#[test]
fn evaluation_records_stay_with_their_composition() {
    let (runtime, _) = stocked(MemStorage::new());
    let k = compose(&runtime, "k", &[("kjv", 1.0)]);
    runtime.activate_composition(&text("k"), NOW).expect("active");
    let record = |composition| record(composition, tiny().id(), None, 20.0);
    let (kept, lost) = (record(k.composition), record(composition(&tiny(), &[("kjv", 0.25)]).id()));
    let (digest, new) = runtime.record_evaluation(&kept, NOW).expect("stored");
    assert!(new && digest == kept.digest());
    assert!(!runtime.record_evaluation(&kept, NOW).expect("stored").1);
    let (other, _) = runtime.record_evaluation(&lost, NOW).expect("stored");
    assert_eq!(runtime.evaluations_of(k.composition).expect("records"), [(digest, kept)]);
    let removed = runtime.gc(10, NOW).expect("a collection").removed;
    assert_eq!(removed, [other], "the record of a composition that nobody has");
    assert!(runtime.verify(true).is_clean());
}
