//! A signature or an evaluation record that is damaged never reads as one that is not there.

mod common;

use common::share::record;
use common::{LIMITS, Medium, NOW, Stock, blob_path, code, compose, name, runtime, stocked, tiny};
use slm_format::{Coded, Digest, ErrorClass};
use slm_manifest::policy::{LocalPolicy, RawLocalPolicy, TrustedKey};
use slm_manifest::signature::{DocumentKind, SecretKey, SignedDocument};
use slm_manifest::{BareBase, Manifest, TrustPolicy, TrustRule};
use slm_runtime::runtime::{Composed, Reference};
use slm_runtime::{Engine, Runtime, RuntimeError};
use slm_store::{Store, StoreError};

on_both_media!(
    a_damaged_signature_is_not_an_absent_one,
    a_damaged_record_is_not_an_absent_one,
    a_damaged_blob_that_has_a_name_is_no_stray,
);

fn text(composition: &str) -> Reference {
    Reference::Text(composition.to_owned())
}

fn key() -> SecretKey {
    SecretKey::from_random([7; 40]).expect("a key")
}

/// A runtime that asks for a signature by [`key`].
fn strict<M: Medium>(medium: M) -> Runtime<M> {
    let trust = TrustPolicy { rule: TrustRule::Signed, bare_base: BareBase::AsOthers };
    let keys = vec![TrustedKey { name: name("alice"), key: key().public_key() }];
    let raw = RawLocalPolicy { trust, keys, ..RawLocalPolicy::default() };
    let policy = LocalPolicy::check(raw).expect("a policy");
    let store = Store::open(medium).expect("a store");
    Runtime::with_policy(store, Engine::inline(), LIMITS, policy)
}

fn signed<M: Medium>(medium: M) -> (Runtime<M>, Stock, Composed, Digest) {
    let (free, stock) = stocked(medium);
    let k = compose(&free, "k", &[("kjv", 1.0)]);
    let (signature, new) = sign(&free, &k.manifest);
    assert!(new);
    (free, stock, k, signature)
}

/// Signs by [`key`], and gives the signature's blob and whether it is new.
fn sign<M: Medium>(runtime: &Runtime<M>, manifest: &Manifest) -> (Digest, bool) {
    let document = manifest.to_canonical_json();
    let comment = SignedDocument::manifest(&document).comment(0);
    let signature = key().sign(&document, &comment).expect("a signature");
    let kind = DocumentKind::Manifest;
    runtime.add_signature(kind, &document, &signature, &key().public_key(), NOW).expect("stored")
}

fn damage<M: Medium>(medium: &M, digest: Digest) -> Vec<u8> {
    let path = blob_path(digest);
    let good = medium.files()[&path].clone();
    let mut bent = good.clone();
    bent[0] ^= 1;
    medium.put(&path, &bent);
    good
}

fn packed<M: Medium>(runtime: &Runtime<M>) -> Result<u64, RuntimeError> {
    runtime.pack(&text("k"), &mut Vec::new()).map(|shared| shared.signatures)
}

fn a_damaged_signature_is_not_an_absent_one<M: Medium>(medium: M) {
    let (look, again) = (medium.again(), medium.again());
    let (free, _, k, signature) = signed(medium);
    let strict = strict(again);
    // The twin: nothing is damaged.
    assert!(strict.activate_composition(&text("k"), NOW).expect("signed").changed);
    assert_eq!(packed(&free).expect("a package"), 1);

    let good = damage(&look, signature);
    let refused = strict.activate_composition(&text("k"), NOW).expect_err("no signature is seen");
    assert_eq!((refused.code(), refused.class()), ("blob-damaged", ErrorClass::Damaged));
    assert!(refused.to_string().contains(&signature.to_string()), "{refused}");
    assert!(refused.hint().is_some_and(|hint| hint.contains("--drop-damaged")));
    let log = strict.store().audit().expect("a whole log").records;
    assert_eq!(log.last().and_then(|record| record.code.as_deref()), Some("blob-damaged"));
    // Nobody asked for a signature: it hinders nobody.
    assert!(!free.activate_composition(&text("k"), NOW).expect("active").changed);
    // But it is neither left out nor collected.
    assert_eq!(code(packed(&free)), "blob-damaged");
    let report = free.gc(1, NOW).expect("a collection");
    assert_eq!((report.removed, report.damaged), (vec![], vec![signature]));
    assert!(look.files().contains_key(&blob_path(signature)));

    // Whole again, everything is as before.
    look.put(&blob_path(signature), &good);
    assert!(!strict.activate_composition(&text("k"), NOW).expect("signed").changed);
    assert_eq!(packed(&free).expect("a package"), 1);
    assert_eq!(free.gc(1, NOW).expect("a collection").damaged, []);

    // Signing again replaces it.
    damage(&look, signature);
    assert_eq!(sign(&free, &k.manifest), (signature, true));
    assert_eq!(sign(&free, &k.manifest), (signature, false));
    assert!(!strict.activate_composition(&text("k"), NOW).expect("signed").changed);

    // And whoever lets go of it is told that nothing is signed.
    look.put(&blob_path(signature), b"");
    assert_eq!(code(strict.activate_composition(&text("k"), NOW)), "blob-damaged");
    let report = free.gc_dropping_damaged(1, NOW).expect("a collection");
    assert_eq!((report.removed, report.damaged), (vec![signature], vec![]));
    assert_eq!(code(strict.activate_composition(&text("k"), NOW)), "unsigned");
    assert_eq!(packed(&free).expect("a package"), 0);
    assert!(free.verify(true).is_clean());
}

fn a_damaged_record_is_not_an_absent_one<M: Medium>(medium: M) {
    let look = medium.again();
    let (free, _) = stocked(medium);
    let k = compose(&free, "k", &[("kjv", 1.0)]);
    let record = record(k.composition, tiny().id(), None, 20.0);
    let (digest, _) = free.record_evaluation(&record, NOW).expect("stored");
    free.pack(&text("k"), &mut Vec::new()).expect("a package");
    damage(&look, digest);
    let refused = free.pack(&text("k"), &mut Vec::new()).expect_err("a record is not seen");
    let RuntimeError::Store(StoreError::StrayDamaged { digest: named, about }) = refused else {
        panic!("{refused}");
    };
    assert_eq!((named, about), (digest, k.manifest_digest));
    assert_eq!(free.gc(1, NOW).expect("a collection").damaged, [digest]);
    // Measured again, it is replaced.
    assert!(free.record_evaluation(&record, NOW).expect("stored").1);
    let shared = free.pack(&text("k"), &mut Vec::new()).expect("a package");
    assert!(shared.blobs.contains(&digest));
    assert_eq!(free.gc(1, NOW).expect("a collection").damaged, []);
}

fn a_damaged_blob_that_has_a_name_is_no_stray<M: Medium>(medium: M) {
    let (look, again) = (medium.again(), medium.again());
    let (free, stock) = stocked(medium);
    compose(&free, "k", &[("kjv", 1.0)]);
    let other = compose(&free, "other", &[("python", 1.0)]);
    damage(&look, stock.python.blob);
    damage(&look, other.manifest_digest);
    assert_eq!(free.store().damaged_strays().expect("a look"), []);
    assert_eq!(code(strict(again).activate_composition(&text("k"), NOW)), "unsigned");
    free.pack(&text("k"), &mut Vec::new()).expect("a package");
    // The twin: nothing names it any more.
    free.remove_name(slm_store::NameKind::Composition, &name("other"), NOW).expect("gone");
    assert_eq!(free.store().damaged_strays().expect("a look"), [other.manifest_digest]);
    assert_eq!(runtime(look).gc(1, NOW).expect("a collection").damaged, [other.manifest_digest]);
}
