//! Names, generations and blobs that no longer agree: told as damage, and nothing else is served instead.

mod common;

use common::{Medium, NOW, blob_path, code, compose, name, runtime, stocked};
use slm_format::{Coded, ErrorClass};
use slm_runtime::runtime::Reference;
use slm_store::{NameKind, NameRecord};

on_both_media!(
    a_store_name_deactivates_whatever_the_manifest_calls_it,
    a_record_that_names_another_identity_is_damage,
    a_blob_that_the_active_generation_needs_is_missed,
);

fn by_name(text: &str) -> Reference {
    Reference::Text(text.to_owned())
}

fn a_store_name_deactivates_whatever_the_manifest_calls_it<M: Medium>(medium: M) {
    let (runtime, stock) = stocked(medium);
    compose(&runtime, "one", &[("kjv", 1.0)]);
    runtime.activate_composition(&by_name("one"), NOW).expect("an activation");
    // Another name for the same adapter; the manifest knows it as kjv.
    let lock = runtime.store().lock().expect("the lock");
    let record = NameRecord::new(stock.kjv.adapter.digest(), stock.kjv.blob);
    runtime
        .store()
        .set_name(&lock, NameKind::Adapter, &name("alias"), &record, false)
        .expect("a name");
    drop(lock);
    assert!(!runtime.deactivate_adapter("python", NOW).expect("not in the stack").changed);
    assert_eq!(code(runtime.deactivate_adapter("sha256:xx", NOW)), "digest-spelling");
    let done = runtime.deactivate_adapter("alias", NOW).expect("the same adapter");
    assert!(done.changed);
    assert!(runtime.status().expect("active").manifest.adapters.is_empty());
}

fn a_record_that_names_another_identity_is_damage<M: Medium>(medium: M) {
    let (runtime, stock) = stocked(medium);
    let one = compose(&runtime, "one", &[("kjv", 1.0)]);
    let bare = compose(&runtime, "plain", &[]);
    let lock = runtime.store().lock().expect("the lock");
    let set = |kind, text: &str, id, blob| {
        let record = NameRecord::new(id, blob);
        runtime.store().set_name(&lock, kind, &name(text), &record, true).expect("a name");
    };
    set(NameKind::Composition, "bent", one.composition.digest(), bare.manifest_digest);
    set(NameKind::Composition, "twin", one.composition.digest(), one.manifest_digest);
    set(NameKind::Adapter, "bent", stock.python.adapter.digest(), stock.kjv.blob);
    set(NameKind::Adapter, "twin", stock.python.adapter.digest(), stock.python.blob);
    drop(lock);
    let refused = runtime.activate_composition(&by_name("bent"), NOW).expect_err("another id");
    assert_eq!((refused.code(), refused.class()), ("name-damaged", ErrorClass::Damaged));
    let refused =
        runtime.compose(&name("x"), "tiny", &[("bent", 1.0)], NOW, false).expect_err("another id");
    assert_eq!((refused.code(), refused.class()), ("name-damaged", ErrorClass::Damaged));
    assert_eq!(code(runtime.status()), "none-active");
    runtime.activate_composition(&by_name("twin"), NOW).expect("an activation");
    runtime.compose(&name("x"), "tiny", &[("twin", 1.0)], NOW, false).expect("a composition");
}

fn a_blob_that_the_active_generation_needs_is_missed<M: Medium>(medium: M) {
    let again = medium.again();
    let (first, stock) = stocked(medium);
    let one = compose(&first, "one", &[("kjv", 1.0)]);
    first.activate_composition(&by_name("one"), NOW).expect("an activation");
    drop(first);
    let files = again.files();
    for digest in [stock.kjv.blob, stock.base.blob, one.manifest_digest] {
        let path = blob_path(digest);
        again.delete(&path);
        let refused = runtime(again.again()).active_composition().expect_err("a missing blob");
        assert_eq!((refused.code(), refused.class()), ("blob-missing", ErrorClass::Damaged));
        again.put(&path, &files[&path]);
        runtime(again.again()).active_composition().expect("whole again");
    }
}
