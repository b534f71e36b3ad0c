//! A store that is busy, damaged, of another version, or where the system fails.

use std::path::PathBuf;

use serde_json::{Value, json};
use slm_format::{ContentHash, Digest};

use crate::common::{Place, golden, slm, text};
use crate::transcript::Transcript;

/// Replaces a file of the store, as a disk that rots does.
fn put(place: &Place, path: &str, bytes: &[u8]) {
    let path = place.store().join(path);
    if path.exists() {
        std::fs::remove_file(&path).expect("it is removed");
    }
    std::fs::write(&path, bytes).expect("it is written");
}

fn get(place: &Place, path: &str) -> Vec<u8> {
    std::fs::read(place.store().join(path)).expect("a file of the store")
}

fn blob_path(digest: &str) -> PathBuf {
    PathBuf::from("blobs/sha256").join(digest.strip_prefix("sha256:").expect("a digest"))
}

fn record(place: &Place, name: &str) -> Value {
    serde_json::from_slice(&get(place, &format!("names/{name}"))).expect("JSON")
}

#[test]
fn busy() {
    let place = Place::with_active();
    place.json(["activate", "kjv"]);
    let key = place.json(["key", "new", "alice"]);
    let mut transcript = Transcript::new(&place);
    let packed = place.json(["pack", "both", "both.slm"]);
    assert!(packed["bytes"].is_u64(), "{packed}");
    let lock =
        std::fs::File::options().write(true).open(place.store().join("lock")).expect("the lock");
    lock.lock().expect("the lock is free");
    for args in [
        &["import", &golden("tiny-q8_0.gguf"), "--name", "x"][..],
        &["adapter", "import", &golden("tiny-kjv"), "--name", "x", "--base", "tiny"],
        &["compose", "x", "--base", "tiny"],
        &["activate", "python"],
        &["rollback"],
        &["deactivate", "kjv"],
        &["gc"],
        &["sign", "kjv", "--key", "alice.key"],
        &["trust", "add", "alice", "alice.pub"],
        &["unpack", "both.slm", "--name", "x"],
    ] {
        transcript.refused(6, args);
    }
    // Readers do not wait.
    for args in [
        &["status"][..],
        &["list"],
        &["history"],
        &["audit"],
        &["verify"],
        &["inspect", "kjv"],
        &["run", "x", "--max-tokens", "1"],
        &["pack", "both", "again.slm"],
    ] {
        transcript.accepted(args);
    }
    drop(lock);
    transcript.accepted(&["activate", "python"]);
    insta::assert_snapshot!(transcript.finish().replace(text(&key, "key"), "KEY"));
}

#[test]
fn damaged_records() {
    let place = Place::with_active();
    place.json(["activate", "kjv"]);
    let mut transcript = Transcript::new(&place);
    // One of the two records of what is active: the other holds, and it is said. Both: nobody knows.
    let slots = ["active.a", "active.b"].map(|slot| (slot, get(&place, slot)));
    for (slot, bytes) in &slots {
        let mut bent = bytes.clone();
        bent[20] ^= 1;
        put(&place, slot, &bent);
    }
    for args in [&["status"][..], &["activate", "python"], &["run", "x"], &["rollback"]] {
        transcript.refused(7, args);
    }
    slots.iter().for_each(|(slot, bytes)| put(&place, slot, bytes));
    transcript.accepted(&["status"]);
    // The log.
    let log = get(&place, "audit.log");
    let mut bent = log.clone();
    bent[100] ^= 1;
    put(&place, "audit.log", &bent);
    transcript.refused(7, &["audit"]);
    put(&place, "audit.log", &log);
    transcript.accepted(&["audit"]);
    // A name that cannot be read, one that says another identity than its blob, and one whose blob is no manifest.
    let good = record(&place, "composition/python");
    put(&place, "names/composition/python", b"{");
    transcript.refused(7, &["activate", "python"]);
    let base = record(&place, "base/tiny");
    let mut other = good.clone();
    other["id"] = record(&place, "composition/kjv")["id"].clone();
    put(&place, "names/composition/python", other.to_string().as_bytes());
    transcript.refused(7, &["activate", "python"]);
    let mut other = good.clone();
    other["blob"] = base["blob"].clone();
    put(&place, "names/composition/python", other.to_string().as_bytes());
    transcript.refused(3, &["activate", "python"]);
    transcript.refused(7, &["verify"]);
    // The way out of a name that nobody can use.
    put(&place, "names/composition/python", b"{");
    transcript.refused(7, &["gc"]);
    transcript.accepted(&["forget", "python", "--kind", "composition"]);
    transcript.accepted(&["forget", "python", "--kind", "composition"]);
    transcript.refused(4, &["activate", "python"]);
    transcript.accepted(&["gc"]);
    transcript.refused(2, &["forget", "no name", "--kind", "base"]);
    transcript.accepted(&["compose", "python", "--base", "tiny", "--adapter", "python"]);
    transcript.accepted(&["activate", "python"]);
    insta::assert_snapshot!(transcript.finish());
}

/// Both records of what is active are lost: the log tells what was.
#[test]
fn recovery() {
    let place = Place::with_active();
    place.json(["activate", "kjv"]);
    let before = place.json(["status"]);
    let slots = ["active.a", "active.b"].map(|slot| (slot, get(&place, slot)));
    let log = get(&place, "audit.log");
    let mut transcript = Transcript::new(&place);
    transcript.run(&["recover"]);
    transcript.run(&["recover", "--yes"]);
    slots.iter().for_each(|(slot, bytes)| put(&place, slot, &bytes[..40]));
    transcript.refused(7, &["status"]);
    transcript.refused(7, &["gc"]);
    // What the log says must be whole: its own chain, and every blob that is needed.
    let mut bent = get(&place, "audit.log");
    bent[100] ^= 1;
    let whole = get(&place, "audit.log");
    put(&place, "audit.log", &bent);
    transcript.refused(7, &["recover"]);
    transcript.refused(7, &["recover", "--yes"]);
    std::fs::remove_file(place.store().join("audit.log")).expect("it is there");
    transcript.refused(4, &["recover"]);
    transcript.refused(4, &["recover", "--yes"]);
    put(&place, "audit.log", &whole);
    let kjv = record(&place, "adapter/kjv");
    let path = blob_path(text(&kjv, "blob"));
    let path = path.to_str().expect("a path");
    let bytes = get(&place, path);
    std::fs::remove_file(place.store().join(path)).expect("it is there");
    transcript.refused(7, &["recover", "--yes"]);
    put(&place, path, &bytes[1..]);
    transcript.refused(7, &["recover", "--yes"]);
    put(&place, path, &bytes);
    place.json(["key", "new", "alice"]);
    place.json(["trust", "add", "alice", "alice.pub"]);
    place.json(["trust", "policy", "signed"]);
    transcript.refused(3, &["recover", "--yes"]);
    place.json(["trust", "policy", "none"]);
    // Shown, and nothing done, until somebody says yes.
    transcript.run(&["recover"]);
    transcript.refused(7, &["status"]);
    transcript.run(&["recover", "--yes"]);
    assert_eq!(place.json(["status"]), before);
    transcript.accepted(&["verify", "--deep"]);
    transcript.run(&["recover", "--yes"]);
    transcript.accepted(&["rollback"]);
    transcript.accepted(&["gc"]);
    assert!(get(&place, "audit.log").starts_with(&log));
    insta::assert_snapshot!(transcript.finish());
}

/// A record of what is active that names this generation, its checksum right.
fn slot(place: &Place, sequence: u64, generation: Digest, of: &Value) -> Vec<u8> {
    let digest = |field: &str| text(of, field).parse::<Digest>().expect("a digest").to_bytes();
    let mut bytes = b"slmslot1".to_vec();
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(generation.to_bytes());
    bytes.extend(digest("manifest"));
    bytes.extend(digest("composition"));
    let checksum = ContentHash::of(&bytes);
    bytes.extend(checksum.to_bytes());
    assert_eq!(bytes.len(), get(place, "active.a").len());
    bytes
}

#[test]
fn generations_that_are_none() {
    let place = Place::with_active();
    let status = place.json(["status"]);
    let mut transcript = Transcript::new(&place);
    let slots = ["active.a", "active.b"].map(|slot| (slot, get(&place, slot)));
    let current = slots.iter().max_by_key(|(_, bytes)| bytes[8..16].to_vec()).expect("two slots");
    let active = Digest::from_bytes(current.1[16..48].try_into().expect("a digest"));
    let mut point = |sequence: u64, bytes: &[u8], exit: i32, args: &[&str]| {
        let digest = Digest::of(bytes);
        let path = blob_path(&digest.to_string());
        put(&place, path.to_str().expect("a path"), bytes);
        put(&place, "active.a", &slot(&place, sequence, digest, &status));
        transcript.refused(exit, args);
        std::fs::remove_file(place.store().join(&path)).expect("it is removed");
        slots.iter().for_each(|(slot, bytes)| put(&place, slot, bytes));
    };
    point(9, b"{}", 3, &["status"]);
    let generation = json!({
        "number": 1,
        "composition": status["composition"],
        "manifest": status["manifest"],
        "parent": active,
        "time": "2026-11-30T00:00:00Z",
    });
    point(9, generation.to_string().as_bytes(), 7, &["verify"]);
    // One whose bytes are damaged: what brings an import back brings no generation back.
    let path = blob_path(&active.to_string());
    let path = path.to_str().expect("a path");
    let good = get(&place, path);
    put(&place, path, &good[1..]);
    transcript.refused(7, &["status"]);
    put(&place, path, &good);
    transcript.accepted(&["status"]);
    insta::assert_snapshot!(transcript.finish());
}

#[cfg(unix)]
#[test]
fn blobs_that_are_gone_or_linked() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    let base = record(&place, "base/tiny");
    let path = blob_path(text(&base, "blob"));
    let bytes = get(&place, path.to_str().expect("a path"));
    std::fs::remove_file(place.store().join(&path)).expect("it is removed");
    transcript.refused(7, &["run", "x"]);
    transcript.refused(7, &["verify"]);
    let outside = place.write("outside", &bytes);
    std::os::unix::fs::symlink(&outside, place.store().join(&path)).expect("a link");
    transcript.refused(7, &["run", "x"]);
    std::fs::remove_file(place.store().join(&path)).expect("it is removed");
    put(&place, path.to_str().expect("a path"), &bytes);
    transcript.accepted(&["run", "x", "--max-tokens", "1"]);
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn another_version() {
    let place = Place::with_tiny();
    let mut transcript = Transcript::new(&place);
    put(&place, "version", b"slm store 9\n");
    for args in [&["list"][..], &["compose", "x", "--base", "tiny"]] {
        transcript.refused(3, args);
    }
    put(&place, "version", b"slm store 1\n");
    transcript.accepted(&["list"]);
    insta::assert_snapshot!(transcript.finish());
}

/// In the words of one system.
#[cfg(target_os = "linux")]
#[test]
fn a_system_that_fails() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    place.write("file", "not a folder");
    for args in [
        &["export", "gguf", "tiny", "absent/out"][..],
        &["compose", "x", "--base", "tiny", "--out", "file/out"],
        &["pack", "kjv", "absent/out"],
        &["import", "file/model.gguf"],
    ] {
        transcript.refused(8, args);
    }
    place.json(["key", "new", "alice"]);
    transcript.refused(3, &["key", "new", "alice"]);
    transcript.refused(8, &["export", "gguf", "tiny", "/dev/full"]);
    transcript.refused(8, &["pack", "kjv", "/dev/full"]);
    transcript.refused(8, &["logits", "--tokens", "1", "--out", "/dev/full"]);
    // A file where the store should be.
    let file = place.arg("file");
    let ran = crate::common::finish(slm().args(["--store", &file, "list"]));
    assert_eq!((ran.exit, ran.stdout.as_str()), (8, ""), "{ran:?}");
    insta::assert_snapshot!(transcript.finish());
}
