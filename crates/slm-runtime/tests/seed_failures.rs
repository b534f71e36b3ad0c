//! Eight ways in which the published worked example of atomic activation fails, each as a test that it does not happen here.

mod common;

use common::{
    Choices, LIMITS, Medium, NOW, active_bits, bits_of, blob_path, code, compose, composition,
    import, name, runtime, stocked, tiny,
};
use slm_format::{Coded, Digest};
use slm_manifest::{Manifest, Name};
use slm_runtime::runtime::Reference;
use slm_runtime::{Engine, Runtime};
use slm_store::faulty::{CrashStorage, FailingStorage, Failure};
use slm_store::{FsStorage, MemStorage, Store};

fn text(composition: &str) -> Reference {
    Reference::Text(composition.to_owned())
}

/// 1. "Import computes hashes; nothing is compared with an expected value."
#[test]
fn an_expected_hash_is_compared() {
    let (runtime, _) = stocked(MemStorage::new());
    let composed = compose(&runtime, "k", &[("kjv", 1.0)]);
    let document = composed.manifest.to_toml();
    let expected = composed.manifest.adapters[0].file_hash.to_string();
    let other = runtime.store().blobs().expect("blobs").find(|blob| blob.to_string() != expected);
    // A hash of nothing that is here, and one of something else that is here.
    for (found, refused) in [
        (Digest::of(b"nothing").to_string(), "adapter-absent"),
        (other.expect("another blob").to_string(), ""),
    ] {
        let bent = document.replace(&expected, &found);
        assert_ne!(bent, document);
        let outcome =
            code(runtime.activate_composition(&Reference::Manifest(bent.into_bytes()), NOW));
        assert!(refused.is_empty() || outcome == refused, "{outcome}");
        assert_eq!(code(runtime.status()), "none-active");
    }
    let twin = Reference::Manifest(document.into_bytes());
    assert!(runtime.activate_composition(&twin, NOW).expect("the twin").changed);
}

/// 2. "Hashes are never re-verified, so later tampering is invisible."
#[test]
fn hashes_are_verified_again_at_activation() {
    let storage = MemStorage::new();
    let (first, stock) = stocked(storage.clone());
    compose(&first, "k", &[("kjv", 1.0)]);
    first.activate_composition(&text("bare"), NOW).expect("active");
    for blob in [stock.kjv.blob, stock.base.blob] {
        let path = blob_path(blob);
        let good = storage.files()[&path].clone();
        let mut bad = good.clone();
        let at = bad.len() / 2;
        bad[at] ^= 1;
        storage.put(&path, &bad);
        let fresh = runtime(storage.clone());
        assert_eq!(code(fresh.activate_composition(&text("k"), NOW)), "blob-damaged");
        assert_eq!(fresh.status().expect("active").composition, composition(&tiny(), &[]).id());
        storage.put(&path, &good);
        fresh.activate_composition(&text("k"), NOW).expect("the twin");
        fresh.rollback(NOW).expect("a parent");
    }
}

/// 3. "Two renames, then a write to the device: a crash between them leaves pointer and state disagreeing."
#[test]
fn one_write_decides() {
    let start = MemStorage::new();
    let (first, _) = stocked(start.clone());
    compose(&first, "k", &[("kjv", 1.0)]);
    first.activate_composition(&text("bare"), NOW).expect("active");
    drop(first);
    let (bare, k) = (composition(&tiny(), &[]).id(), composition(&tiny(), &[("kjv", 1.0)]).id());
    let whole = CrashStorage::holding(&start);
    runtime(whole.clone()).activate_composition(&text("k"), NOW).expect("active");
    let mut changes = 0;
    let mut before = bare;
    for step in 0..=whole.steps() {
        let storage = CrashStorage::holding(&start);
        let stopped = runtime(storage.clone());
        storage.stop_at(step);
        let _ = stopped.activate_composition(&text("k"), NOW);
        drop(stopped);
        storage.restart();
        let active = runtime(storage).status().expect("active").composition;
        assert!(active == bare || active == k);
        changes += usize::from(active != before);
        before = active;
    }
    assert_eq!((changes, before), (1, k), "the state turned once, at one step");
}

/// 4. "Temp and rename with no fsync of file or directory."
#[test]
fn files_and_folders_are_synced_around_every_rename() {
    let storage = CrashStorage::new();
    let (runtime, _) = stocked(storage.clone());
    runtime.activate_composition(&text("bare"), NOW).expect("active");
    let events: Vec<String> = storage.events().iter().map(ToString::to_string).collect();
    let mut renames = 0;
    for (at, event) in events.iter().enumerate() {
        let words: Vec<&str> = event.split_whitespace().collect();
        if words[0] != "rename" {
            continue;
        }
        renames += 1;
        let (from, to) = (words[1], words[2]);
        assert!(events[..at].contains(&format!("sync {from}")), "{event}: not synced");
        let folder = to.rsplit_once('/').map_or("", |(folder, _)| folder);
        let later = events[at + 1..].iter().find(|event| event.starts_with("sync-dir"));
        assert_eq!(later, Some(&format!("sync-dir {folder}")), "{event}");
    }
    assert!(renames > 6, "{events:?}");
}

/// 5. "A failed import leaves copied files behind."
#[test]
fn a_failed_import_leaves_nothing() {
    let inner = MemStorage::new();
    drop(stocked(inner.clone()).0);
    let files = inner.files();
    let storage = FailingStorage::new(inner.clone());
    let failing = runtime(storage.clone());
    let other = common::open(&other_base()).expect("a base");
    let mut choices = Choices(5);
    let mut failures = 0;
    for _ in 0..20 {
        let failure = Failure::once(storage.operations() + choices.below(30) as u64);
        storage.fail(Some(Failure { writes_only: true, ..failure }));
        let outcome = failing.load_base(&other, &name("other"), NOW, false);
        storage.fail(None);
        if outcome.is_ok() {
            break;
        }
        failures += 1;
        // Whatever was left aside goes with the next lock, blobs without a name with the next collection.
        runtime(inner.clone()).gc(10, NOW).expect("a collection");
        assert!(inner.files() == files, "{:?}", inner.files().keys());
    }
    assert!(failures > 0, "nothing failed");
}

fn other_base() -> Vec<u8> {
    use slm_format::gguf::Value;
    common::bend::Bend::of(slm_golden::TINY_Q8_0)
        .set("tokenizer.ggml.eos_token_id", Value::U32(1))
        .to_bytes()
}

/// 6. "Re-activating the current model sets previous = current: not idempotent. History depth is 1 and rollback toggles."
#[test]
fn activation_and_deactivation_are_idempotent_and_three_rollbacks_go_back_three() {
    let (runtime, _) = stocked(MemStorage::new());
    let stacks: [(&str, &[(&str, f32)]); 4] = [
        ("bare", &[]),
        ("k", &[("kjv", 1.0)]),
        ("p", &[("python", 1.0)]),
        ("kp", &[("kjv", 0.5), ("python", 1.0)]),
    ];
    for (name, stack) in stacks {
        if name != "bare" {
            compose(&runtime, name, stack);
        }
        assert!(runtime.activate_composition(&text(name), NOW).expect("active").changed);
        for _ in 0..3 {
            assert!(!runtime.activate_composition(&text(name), NOW).expect("active").changed);
            assert!(!runtime.deactivate_adapter("nobody", NOW).expect("active").changed);
        }
    }
    for (name, stack) in stacks[..3].iter().rev() {
        let back = runtime.rollback(NOW).expect("a parent");
        assert_eq!(back.composition, composition(&tiny(), stack).id(), "{name}");
        assert_eq!(active_bits(&runtime), bits_of(&composition(&tiny(), stack)), "{name}");
        assert!(!runtime.activate_composition(&text(name), NOW).expect("active").changed);
    }
    assert_eq!(code(runtime.rollback(NOW)), "no-parent");
}

/// 7. "Fixed temp name: two processes collide; no lock."
#[test]
fn two_writers_do_not_meet() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || FsStorage::open(folder.path().join("store"));
    let (first, _) = stocked(open());
    compose(&first, "k", &[("kjv", 1.0)]);
    let second = runtime(open());
    let lock = first.lock(NOW).expect("the lock");
    assert_eq!(code(second.activate_composition(&text("k"), NOW)), "store-busy");
    assert_eq!(code(import(&second, "kjv", "tiny")), "store-busy");
    assert_eq!(code(second.gc(10, NOW)), "store-busy");
    drop(lock);
    second.activate_composition(&text("k"), NOW).expect("the twin");
    // Eight at once: each either switches or is told that another does, and the store is whole.
    let busy = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let store = Store::open(open()).expect("a store");
                scope.spawn(move || {
                    let runtime = Runtime::new(store, Engine::inline(), LIMITS);
                    let mut busy = 0;
                    for round in 0..6 {
                        let target = ["bare", "k"][(n + round) % 2];
                        match runtime.activate_composition(&text(target), NOW) {
                            Ok(_) => {}
                            Err(error) if error.code() == "store-busy" => busy += 1,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    busy
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<u32>()
    });
    println!("48 activations by eight at once, {busy} told that another was at it");
    assert!(busy < 48);
    assert!(first.verify(true).is_clean());
}

/// 8. "The manifest is built by string formatting with no escaping: a quote or newline yields broken or injected TOML."
#[test]
fn nothing_can_be_injected_into_a_manifest() {
    for bad in ["a\"b", "a\nb", "a = 1", "a]", "", "..", "a/b", "a\u{0}b", "é"] {
        assert!(bad.parse::<Name>().is_err(), "{bad:?}");
    }
    "a-b.c_1".parse::<Name>().expect("the twin");
    let (runtime, _) = stocked(MemStorage::new());
    let composed = compose(&runtime, "k", &[("kjv", 1.0)]);
    let document = composed.manifest.to_toml();
    let again = Manifest::from_toml(&document, &LIMITS).expect("what we write we read");
    assert_eq!(again, composed.manifest);
    for injected in ["kjv\"\nevil = \"1", "kjv\\", "kjv'''"] {
        let bent = document.replacen("\"kjv\"", &format!("\"{injected}\""), 1);
        assert!(bent != document && Manifest::from_toml(&bent, &LIMITS).is_err(), "{injected:?}");
    }
}
