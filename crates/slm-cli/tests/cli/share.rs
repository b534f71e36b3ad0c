//! Signatures, trust and packages through the program.

use serde_json::Value;

use crate::common::{Place, golden};

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_else(|| panic!("no text {field} in {object}"))
}

/// A key pair in the place, its public file and its secret file.
fn key(place: &Place, name: &str) -> (String, String) {
    let made = place.json(["key", "new", name]);
    assert_eq!(made["encrypted"], false);
    (place.arg(&format!("{name}.pub")), place.arg(&format!("{name}.key")))
}

#[test]
fn a_key_pair_is_made_once_and_the_secret_half_is_private() {
    let place = Place::new();
    let (public, secret) = key(&place, "alice");
    let line = std::fs::read_to_string(&public).expect("the public key");
    assert!(line.starts_with("untrusted comment: minisign public key "), "{line}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(&secret).expect("the secret key").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let before = std::fs::read(&secret).expect("the secret key");
    assert_eq!(place.refused(["key", "new", "alice"]), (3, "file-exists".to_owned()));
    assert_eq!(std::fs::read(&secret).expect("the secret key"), before);
    assert_ne!(place.json(["key", "new", "bob"])["key"], place.json(["key", "new", "eve"])["key"]);
    assert_eq!(place.refused(["key", "new", "a/b"]), (2, "bad-name".to_owned()));
    // A store was not needed.
    assert_eq!(place.snapshot(), None);
}

/// What a killed `pack` has left goes with the next one to the same place; what a living one writes stays.
#[test]
fn files_that_a_killed_pack_left_are_removed() {
    let place = Place::with_active();
    let left = place.path(".both.slm.slm-part-killed");
    let living = place.path(".both.slm.slm-part-living");
    let others = [place.path(".other.slm.slm-part-killed"), place.path("both.slm.slm-part-x")];
    for path in [&left, &living, &others[0], &others[1]] {
        std::fs::write(path, "part").expect("it is written");
    }
    let lock = std::fs::File::options().write(true).open(&living).expect("the file");
    lock.lock().expect("nobody has it");
    place.json(["pack", "both", "both.slm"]);
    assert!(!left.exists());
    assert!(living.exists() && others.iter().all(|path| path.exists()));
    drop(lock);
    place.json(["pack", "both", "both.slm"]);
    assert!(!living.exists());
    let names = std::fs::read_dir(place.dir.path()).expect("the place");
    let parts =
        names.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(".both"));
    assert_eq!(parts.count(), 0, "and leaves nothing itself");
}

/// Killed at some moment, again and again: at most what the last one left is there.
#[cfg(unix)]
#[test]
fn killed_packs_do_not_pile_up() {
    let place = Place::with_active();
    let parts = || {
        let names = std::fs::read_dir(place.dir.path()).expect("the place");
        names.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with('.')).count()
    };
    let began = std::time::Instant::now();
    place.json(["pack", "both", "both.slm"]);
    let whole = began.elapsed();
    let mut left = 0;
    for at in 1..=12 {
        let mut child = place.command(["pack", "both", "both.slm"]).spawn().expect("it starts");
        std::thread::sleep(whole.mul_f64(f64::from(at) / 12.0));
        // One that is through already cannot be killed.
        let _ = child.kill();
        child.wait().expect("it ends");
        assert!(parts() <= 1, "{} files are left", parts());
        left += parts();
    }
    println!("{left} of 12 killed packs left a file");
    place.json(["pack", "both", "both.slm"]);
    assert_eq!(parts(), 0);
}

#[test]
fn a_key_under_a_password_signs_with_it_alone() {
    let place = Place::with_active();
    let password = place.write("password", "correct horse\n");
    let other = place.write("other", "battery staple\n");
    let made = place.json(["key", "new", "alice", "--password-file", &password]);
    assert_eq!(made["encrypted"], true);
    let sign = |with: &[&str]| {
        let mut args = vec!["sign".to_owned(), "kjv".to_owned()];
        args.extend(["--key".to_owned(), place.arg("alice.key")]);
        args.extend(with.iter().map(|&arg| arg.to_owned()));
        args
    };
    let refused = |with: &[&str]| place.refused(sign(with));
    assert_eq!(refused(&[]), (3, "secret-key-encrypted".to_owned()));
    assert_eq!(refused(&["--password-file", &other]), (3, "secret-key-checksum".to_owned()));
    let signed = place.json(sign(&["--password-file", &password]));
    assert_eq!(signed["key"], made["key"]);
}

#[test]
fn what_is_not_trusted_is_not_activated() {
    let place = Place::with_active();
    let (public, secret) = key(&place, "alice");
    let (stranger, strangers_key) = key(&place, "eve");
    let policy = place.json(["trust", "policy", "signed"]);
    assert_eq!((text(&policy, "rule"), &policy["changed"]), ("signed", &Value::Bool(true)));
    assert_eq!(place.json(["trust", "policy", "signed"])["changed"], false);
    let status = place.json(["status"]);
    for command in [&["activate", "kjv"][..], &["deactivate", "kjv"]] {
        assert_eq!(place.refused(command), (3, "unsigned".to_owned()), "{command:?}");
    }
    place.json(["sign", "kjv", "--key", &strangers_key]);
    assert_eq!(place.refused(["activate", "kjv"]), (3, "untrusted-key".to_owned()));
    let signed = place.json(["sign", "kjv", "--key", &secret, "--out", "kjv.minisig"]);
    assert_eq!(signed["changed"], true);
    assert_eq!(place.refused(["activate", "kjv"]), (3, "untrusted-key".to_owned()));
    assert_eq!(place.json(["status"]), status, "nothing has changed");
    let added = place.json(["trust", "add", "alice", &public]);
    assert_eq!((&added["key"], &added["changed"]), (&signed["key"], &Value::Bool(true)));
    assert_eq!(place.json(["trust", "add", "alice", &public])["changed"], false);
    assert_eq!(place.json(["activate", "kjv"])["changed"], true);
    // Back to what nobody has signed.
    assert_eq!(place.refused(["rollback"]), (3, "unsigned".to_owned()));
    place.json(["sign", "both", "--key", &secret]);
    assert_eq!(place.json(["rollback"])["changed"], true);
    // One key of several.
    place.json(["trust", "add", "eve", &stranger]);
    let by = place.json(["trust", "policy", "signed-by", "eve"]);
    assert_eq!(by["signed_by"].as_array().map(Vec::len), Some(1));
    assert_eq!(place.refused(["activate", "both"]), (3, "untrusted-key".to_owned()));
    assert_eq!(place.json(["activate", "kjv"])["changed"], true);
    // The bare base: judged by the rule, allowed, or never.
    for (bare_base, expected) in [("as-others", "unsigned"), ("refused", "bare-base-refused")] {
        place.json(["trust", "policy", "--bare-base", bare_base]);
        assert_eq!(place.refused(["activate", "base"]), (3, expected.to_owned()));
    }
    place.json(["trust", "policy", "--bare-base", "unsigned"]);
    assert_eq!(place.json(["activate", "base"])["changed"], true);
    // Who changed whom is trusted stands in the log.
    let audit = place.run(["audit"]);
    assert!(
        audit.exit == 0 && audit.stdout.contains("trust") && audit.stdout.contains("sign"),
        "{audit:?}"
    );
}

#[test]
fn the_list_of_trust_is_kept_and_checked() {
    let place = Place::with_tiny();
    let (public, _) = key(&place, "alice");
    let line = std::fs::read_to_string(&public).expect("the public key");
    let line = line.lines().nth(1).expect("a key").to_owned();
    assert_eq!(place.json(["trust", "list"])["keys"], Value::Array(Vec::new()));
    place.json(["trust", "add", "alice", &line]);
    let list = place.json(["trust", "list"]);
    assert_eq!(
        (text(&list["keys"][0], "name"), text(&list["keys"][0], "public")),
        ("alice", line.as_str())
    );
    for (args, expected) in [
        (&["trust", "add", "alias", &line][..], (3, "policy-duplicate-key")),
        (
            &["trust", "add", "alice", &golden("tiny-kjv/adapter_config.json")],
            (3, "public-key-malformed"),
        ),
        (&["trust", "add", "alice", "nothing.pub"], (4, "file-not-found")),
        (&["trust", "policy", "signed-by"], (3, "policy-signed-by")),
        (&["trust", "policy", "signed-by", "8D8E569AF1735CB7"], (3, "policy-unknown-key")),
        (&["trust", "policy", "signed-by", "bob"], (3, "bad-key-id")),
        (&["trust", "policy", "sometimes"], (2, "command-line")),
    ] {
        assert_eq!(place.refused(args), (expected.0, expected.1.to_owned()), "{args:?}");
    }
    assert_eq!(place.json(["trust", "list"]), list);
    // The document explains itself. Under one that is wrong a person may look, and nothing else.
    let path = place.store().join("policy.toml");
    let document = std::fs::read_to_string(&path).expect("the policy");
    assert!(document.contains("# keep_generations = 10"), "{document}");
    std::fs::write(&path, document.replace("# keep_generations = 10", "keep_generations = 0"))
        .expect("written");
    for args in [
        &["compose", "x", "--base", "tiny"][..],
        &["gc"],
        &["trust", "list"],
        &["trust", "remove", "alice"],
    ] {
        assert_eq!(place.refused(args), (3, "policy-range".to_owned()), "{args:?}");
    }
    for args in [&["list"][..], &["inspect", "tiny"], &["audit"], &["verify"], &["history"]] {
        let ran = place.run(args);
        assert_eq!(ran.exit, 0, "{args:?}: {ran:?}");
        assert!(ran.stderr.starts_with("warning: policy.toml: "), "{ran:?}");
        place.json(args);
    }
    std::fs::write(&path, &document).expect("written");
    place.json(["list"]);
    assert_eq!(place.json(["trust", "remove", "alice"])["changed"], true);
    assert_eq!(place.json(["trust", "remove", "alice"])["changed"], false);
}

#[test]
fn a_composition_goes_to_another_store_in_one_file_and_as_an_image() {
    let place = Place::with_active();
    let (_, secret) = key(&place, "alice");
    place.json(["sign", "both", "--key", &secret]);
    let composition = text(&place.json(["status"]), "composition").to_owned();
    let bits = |place: &Place| {
        let object = place.json(["logits", "--tokens", "767,261,305", "--composition", "shared"]);
        (text(&object, "composition").to_owned(), text(&object, "all_blake3").to_owned())
    };
    let packed = place.json(["pack", "both", "both.slm"]);
    assert_eq!(
        (text(&packed, "composition"), &packed["signatures"]),
        (composition.as_str(), &1.into())
    );
    let image = place.json(["export", "oci", "both", "layout"]);
    assert_eq!(image["blobs"], packed["blobs"]);
    let (file, layout) = (place.arg("both.slm"), place.arg("layout"));
    let expected = {
        let object = place.json(["logits", "--tokens", "767,261,305"]);
        (composition.clone(), text(&object, "all_blake3").to_owned())
    };
    for args in [&["unpack", &file][..], &["import", "oci", &layout]] {
        let other = Place::new();
        let named = [args, &["--name", "shared"]].concat();
        assert_eq!(other.refused(args), (2, "option-missing".to_owned()), "{args:?}");
        let unpacked = other.json(&named);
        assert_eq!(
            (text(&unpacked, "composition"), &unpacked["signatures"]),
            (composition.as_str(), &1.into())
        );
        assert_eq!(other.json(&named)["changed"], false);
        assert_eq!(bits(&other), expected);
        assert_eq!(other.run(["verify", "--deep"]).exit, 0);
        // Nothing of it is garbage.
        let before = other.json(["list"]);
        other.json(["activate", "shared"]);
        other.json(["gc"]);
        assert_eq!(bits(&other), expected);
        assert_eq!(other.json(["list"])["bases"], before["bases"]);
        other.json(["pack", "shared", "again.slm"]);
        let again = std::fs::read(other.path("again.slm")).expect("the package");
        assert_eq!(again, std::fs::read(&file).expect("the package"));
    }
    // It runs as it is, base alone.
    let base = place.json(["logits", "--tokens", "767,261,305", "--composition", "base"]);
    let model = place.json(["logits", "--tokens", "767,261,305", "--model", &file]);
    assert_eq!(model["all_blake3"], base["all_blake3"]);
    for (args, expected) in [
        (&["unpack", &file, "--name", "kjv"][..], (3, "name-taken")),
        (&["unpack", &golden("tiny-q8_0.gguf"), "--name", "x"], (3, "slm-magic")),
        (&["unpack", "nothing.slm", "--name", "x"], (4, "file-not-found")),
        (&["import", "image", &layout, "--name", "x"], (2, "command-line")),
        (&["import", "oci", &golden("tiny-kjv"), "--name", "x"], (3, "oci-layout")),
        (&["import", "oci", "nothing", "--name", "x"], (4, "file-not-found")),
        (&["import", "oci", &layout, "--name", "x", "--tag", "v9"], (3, "oci-layout")),
        (&["export", "oci", "both", &layout], (3, "file-exists")),
        (&["pack", "nothing", "x.slm"], (4, "not-found")),
        (&["sign", "nothing", "--key", &secret], (4, "not-found")),
        (&["sign", "both"], (2, "option-missing")),
        (&["sign", "both", "--key", &file], (3, "limit-exceeded")),
    ] {
        assert_eq!(place.refused(args), (expected.0, expected.1.to_owned()), "{args:?}");
    }
    assert!(!place.path("x.slm").exists());
}

#[test]
fn what_another_program_signed_is_stored_if_it_holds() {
    let place = Place::with_active();
    let (public, secret) = key(&place, "alice");
    place.json(["sign", "kjv", "--document", "kjv.json"]);
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(place.path("kjv.json")).expect("the document"))
            .expect("JSON");
    assert!(manifest["base_model_hash"].is_string());
    // Signed elsewhere: here in another store, over the file.
    let elsewhere = Place::with_tiny();
    let (from, signature) = (place.arg("kjv.json"), place.arg("kjv.minisig"));
    elsewhere.json(["sign", &from, "--key", &secret, "--out", &signature]);
    let store = ["sign", "kjv", "--signature", &signature];
    assert_eq!(place.refused(store), (2, "option-missing".to_owned()), "nobody knows the key");
    let with_key = [&store[..], &["--public-key", &public]].concat();
    assert_eq!(place.json(&with_key)["changed"], true);
    place.json(["trust", "add", "alice", &public]);
    assert_eq!(place.json(store)["changed"], false);
    let other = ["sign", "both", "--signature", &signature];
    assert_eq!(place.refused(other), (3, "signature-other-document".to_owned()));
    place.json(["trust", "policy", "signed"]);
    assert_eq!(place.json(["activate", "kjv"])["changed"], true);
}

/// A limit on the length of a file fails a write as a full disk does: in the midst of the base.
#[cfg(unix)]
#[test]
fn a_layout_that_cannot_be_written_whole_leaves_nothing() {
    let place = Place::with_active();
    let image = || crate::common::snapshot(&place.path("layout"));
    for (is_there, left) in [(false, None), (true, Some(Default::default()))] {
        if is_there {
            std::fs::create_dir(place.path("layout")).expect("a folder");
        }
        let before = std::fs::read_dir(place.dir.path()).expect("the place").count();
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; ulimit -f 1000; exec \"$0\" \"$@\""]);
        shell.arg(env!("CARGO_BIN_EXE_slm")).arg("--store").arg(place.store());
        shell.args(["export", "oci", "both", "layout", "--json"]).current_dir(place.dir.path());
        let ran = crate::common::finish(&mut shell);
        assert_eq!(ran.exit, 8, "{ran:?}");
        assert_eq!(image(), left);
        assert_eq!(std::fs::read_dir(place.dir.path()).expect("the place").count(), before);
        place.json(["export", "oci", "both", "layout"]);
        let names: Vec<_> = image().expect("a layout").into_keys().collect();
        for file in ["index.json", "oci-layout"] {
            assert!(names.contains(&place.path("layout").join(file)), "{names:?}");
        }
        let other = Place::new();
        other.json(["import", "oci", &place.arg("layout"), "--name", "shared"]);
        std::fs::remove_dir_all(place.path("layout")).expect("removed");
    }
}
