//! Exit codes: each provoked as a user would, with its code, and the twin that succeeds.

use std::path::Path;

use crate::common::{Place, finish, golden, slm, snapshot, text};

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).expect("the file");
    bytes[at] ^= 1;
    // A stored blob is read-only; a disk that rots does not ask.
    std::fs::remove_file(path).expect("the file is removed");
    std::fs::write(path, bytes).expect("the file is written");
}

#[test]
fn two_is_the_command_line_alone() {
    let place = Place::with_active();
    let before = place.snapshot();
    let kjv = golden("tiny-kjv");
    let cases: &[(&[&str], &str)] = &[
        (&["nothing"], "command-line"),
        (&["run", "--no-such-option"], "command-line"),
        (&["eval"], "command-line"),
        (&["compose", "x"], "command-line"),
        (&["adapter", "import", &kjv, "--format", "onnx"], "command-line"),
        (&["adapter", "import", &kjv, "--format", "pickle"], "command-line"),
        (&["run", "x", "--max-tokens", "many"], "command-line"),
        (&["run", "x", "--composition", "kjv", "--model", &kjv], "command-line"),
        (&["logits", "--text", "x", "--tokens", "1"], "command-line"),
        (&["compose", "no name", "--base", "tiny"], "bad-name"),
        (&["compose", "x", "--base", "tiny", "--adapter", "kjv=much"], "option-value"),
        (&["compose", "x", "--base", "tiny", "--adapter", "kjv=NaN"], "option-value"),
        (&["compose", "x", "--base", "tiny", "--adapter", "kjv=1e39"], "option-value"),
        (&["run", "x", "--threads", "0"], "option-value"),
        (&["run", "x", "--threads", "2000"], "option-value"),
        (&["run", "x", "--kernel", "abacus"], "option-value"),
        (&["bench", "--runs", "0"], "option-value"),
        (&["bench", "--prompt", "0"], "option-value"),
        (&["run", "x", "--adapter", &kjv], "option-missing"),
        (&["run", "x", "--system", "y"], "option-missing"),
        (&["run", ""], "empty-prompt"),
        (&["logits", "--tokens", "1024"], "token-out-of-range"),
    ];
    for (args, code) in cases {
        assert_eq!(place.refused(*args), (2, (*code).to_owned()), "{args:?}");
    }
    assert!(place.snapshot() == before);
    // For a person the same in words, with the same status and nothing on stdout.
    let ran = place.run(["adapter", "import", &kjv, "--format", "onnx"]);
    assert_eq!((ran.exit, ran.stdout.as_str()), (2, ""));
    assert!(
        ran.stderr.contains("possible values: auto, peft, gguf, plan008, compact, slm"),
        "{}",
        ran.stderr
    );
    for args in [&["--help"][..], &["--version"], &["run", "--help", "--json"]] {
        let ran = finish(slm().args(args));
        assert_eq!((ran.exit, ran.stderr.as_str()), (0, ""), "{args:?}");
        assert!(!ran.stdout.is_empty());
    }
}

#[test]
fn three_refuses_and_changes_nothing() {
    let place = Place::with_active();
    place.json(["import", &golden("tiny"), "--name", "hf"]);
    let before = place.snapshot();
    for (args, code) in [
        (&["import", &golden("tiny"), "--name", "tiny"][..], "name-taken"),
        (&["activate", &golden("tiny")], "unknown-format"),
        (&["inspect", &(golden("tiny") + "/config.json")], "unknown-format"),
        (&["compose", "kjv", "--base", "tiny"], "name-taken"),
        (&["compose", "x", "--base", "hf", "--adapter", "kjv"], "adapter-base-mismatch"),
        (
            &["compose", "x", "--base", "tiny", "--adapter", "kjv", "--adapter", "kjv"],
            "duplicate-adapter",
        ),
    ] {
        assert_eq!(place.refused(args), (3, code.to_owned()), "{args:?}");
    }
    assert!(place.snapshot() == before);
    let error =
        finish(place.command(["compose", "kjv", "--base", "tiny", "--json"]).arg("--quiet"));
    assert!(text(&error.error(), "hint").contains("--replace"));
    let replaced = place.json(["compose", "kjv", "--base", "tiny", "--replace"]);
    assert_eq!(replaced["changed"], true);
}

#[test]
fn four_is_not_found() {
    let place = Place::with_active();
    let before = place.snapshot();
    let absent = format!("sha256:{}", "0".repeat(64));
    let cases: &[(&[&str], &str)] = &[
        (&["import", "absent.gguf"], "file-not-found"),
        (&["adapter", "import", "absent"], "file-not-found"),
        (&["inspect", "absent"], "file-not-found"),
        (&["activate", "absent"], "not-found"),
        (&["activate", "absent.toml"], "file-not-found"),
        (&["activate", &absent], "not-found"),
        (&["inspect", &absent], "not-found"),
        (&["inspect", "kjv", "--kind", "base"], "not-found"),
        (&["run", "x", "--composition", "absent"], "not-found"),
        (&["run", "x", "--model", "absent"], "file-not-found"),
        (&["compose", "x", "--base", "absent"], "not-found"),
        (&["compose", "x", "--base", &absent], "not-found"),
        (&["compose", "x", "--base", "tiny", "--adapter", "absent"], "not-found"),
        (&["export", "gguf", "absent", "out.gguf"], "not-found"),
        (&["eval", "ppl", "absent.txt"], "file-not-found"),
        (&["tokenize", "--file", "absent.txt"], "file-not-found"),
    ];
    for (args, code) in cases {
        assert_eq!(place.refused(*args), (4, (*code).to_owned()), "{args:?}");
    }
    assert!(place.snapshot() == before);
}

#[test]
fn five_is_over_the_context() {
    let place = Place::with_active();
    for args in [
        &["bench", "--prompt", "505", "--generate", "8"][..],
        &["bench", "--prompt", "4294967295", "--generate", "0"],
        &["bench", "--prompt", "1", "--generate", "18446744073709551615"],
        &["run", &"word ".repeat(600)],
    ] {
        assert_eq!(place.refused(args), (5, "context-full".to_owned()));
    }
    place.json(["bench", "--prompt", "504", "--generate", "8", "--runs", "1"]);
}

#[test]
fn six_is_busy() {
    let place = Place::with_active();
    let lock =
        std::fs::File::options().write(true).open(place.store().join("lock")).expect("the lock");
    lock.lock().expect("the lock is free");
    let before = place.snapshot();
    let folder = golden("tiny");
    for args in [
        &["import", &folder, "--name", "hf"][..],
        &["compose", "x", "--base", "tiny"],
        &["activate", "kjv"],
        &["rollback"],
    ] {
        assert_eq!(place.refused(args), (6, "store-busy".to_owned()), "{args:?}");
    }
    assert!(place.snapshot() == before);
    // Reading needs no lock.
    place.json(["status"]);
    place.json(["run", "x", "--max-tokens", "1"]);
    drop(lock);
    assert_eq!(place.json(["activate", "kjv"])["changed"], true);
}

#[test]
fn seven_is_a_damaged_store() {
    // One place and one repair per blob: a base at its end (weights) and its start, an adapter, a manifest.
    for (what, kind, at_end) in [
        ("tiny", "base", true),
        ("tiny", "base", false),
        ("python", "adapter", true),
        ("python", "adapter", false),
        ("both", "composition", true),
    ] {
        let place = Place::with_active();
        // A composition and an adapter share the name `python`.
        let inspect = ["inspect", what, "--kind", kind];
        let hex = place.json(inspect);
        let hex = text(&hex, "blob").strip_prefix("sha256:").expect("a digest").to_owned();
        let path = place.store().join("blobs/sha256").join(hex);
        let good = std::fs::read(&path).expect("the blob");
        flip(&path, if at_end { good.len() - 1 } else { 40 });
        let before = place.snapshot();
        for args in [
            &inspect[..],
            &["run", "x", "--max-tokens", "1"],
            &["logits", "--tokens", "1"],
            &["activate", "both"],
        ] {
            let (exit, code) = place.refused(args);
            assert_eq!(
                (exit, code.as_str()),
                (7, "blob-damaged"),
                "{what}, at the end: {at_end}: {args:?}"
            );
        }
        assert!(place.snapshot() == before, "{what}");
        std::fs::remove_file(&path).expect("the file is removed");
        std::fs::write(&path, good).expect("the file is written");
        place.json(["run", "x", "--max-tokens", "1"]);
    }
    // The records of what is active, both of them; and one that rots leaves the other.
    let place = Place::with_active();
    place.json(["activate", "kjv"]);
    for slot in ["active.a", "active.b"] {
        flip(&place.store().join(slot), 12);
    }
    assert_eq!(place.refused(["status"]), (7, "slot-damaged".to_owned()));
    // A name's record.
    let place = Place::with_active();
    flip(&place.store().join("names/base/tiny"), 3);
    assert_eq!(place.refused(["inspect", "tiny"]), (7, "name-damaged".to_owned()));
    assert_eq!(place.refused(["compose", "x", "--base", "tiny"]), (7, "name-damaged".to_owned()));
    let list = place.json(["list"]);
    assert!(list["bases"][0]["damaged"].is_string(), "{list}");
    assert_eq!(list["adapters"].as_array().map(Vec::len), Some(2), "damage hides nothing else");
}

#[test]
fn a_damaged_blob_is_mended_by_importing_again() {
    let place = Place::with_active();
    let hex = place.json(["inspect", "tiny"]);
    let hex = text(&hex, "blob").strip_prefix("sha256:").expect("a digest").to_owned();
    let path = place.store().join("blobs/sha256").join(hex);
    let expected = place.json(["logits", "--tokens", "1,2,3"]);
    flip(&path, 5_000);
    let ran = finish(place.command(["logits", "--tokens", "1,2,3"]).arg("--json"));
    assert!(text(&ran.error(), "hint").contains("import the same file again"), "{ran:?}");
    place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    assert_eq!(place.json(["logits", "--tokens", "1,2,3"]), expected);
}

#[test]
fn eight_is_input_and_output() {
    let place = Place::with_active();
    let file = place.write("file", "not a store");
    for args in [&["list"][..], &["status"], &["import", &golden("tiny-q8_0.gguf"), "--name", "x"]]
    {
        let ran = finish(slm().args(args).args(["--json", "--store", &file]));
        assert_eq!((ran.exit, ran.error_code().as_str()), (8, "io"), "{args:?}");
    }
    // A file can be looked into all the same.
    let ran =
        finish(slm().args(["inspect", &golden("tiny-q8_0.gguf"), "--json", "--store", &file]));
    assert_eq!(text(&ran.object(), "kind"), "base");
    let before = place.snapshot();
    let files = snapshot(place.dir.path()).map(|files| files.len());
    // A folder that is not there, a file as a folder, a folder as a file.
    for out in ["absent/out", "file/out", "."] {
        let out = place.arg(out);
        for args in [
            &["export", "gguf", "tiny", &out][..],
            &["logits", "--tokens", "1", "--out", &out],
            &["compose", "new", "--base", "tiny", "--out", &out],
        ] {
            assert_eq!(place.refused(args), (8, "io".to_owned()), "{args:?}");
        }
    }
    assert!(
        place.snapshot() == before,
        "a composition was stored whose manifest could not be written"
    );
    assert_eq!(
        snapshot(place.dir.path()).map(|files| files.len()),
        files,
        "something was left behind"
    );
    assert_eq!(place.refused(["import", "file/model.gguf"]), (8, "io".to_owned()));
    if cfg!(target_os = "linux") {
        let ran = place.refused(["logits", "--tokens", "1", "--out", "/dev/full"]);
        assert_eq!(ran.0, 8);
        let ran = place.refused(["export", "gguf", "tiny", "/dev/full"]);
        assert_eq!(ran.0, 8);
        // A device is written to, never replaced.
        place.json(["logits", "--tokens", "1", "--out", "/dev/null"]);
        let kind = std::fs::metadata("/dev/null").expect("the device").file_type();
        assert!(!kind.is_file());
    }
}
