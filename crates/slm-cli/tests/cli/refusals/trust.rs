//! Keys, signatures, and a policy that cannot be.

use crate::common::{Place, text};
use crate::transcript::Transcript;

/// A document of the reference data, made by the minisign program.
fn minisign(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../slm-manifest/tests/data/minisign")
        .join(name);
    std::fs::read_to_string(path).expect("the reference data")
}

/// A document with one of its lines another.
fn with_line(document: &str, at: usize, line: &str) -> String {
    let mut lines: Vec<&str> = document.lines().collect();
    lines[at] = line;
    lines.join("\n") + "\n"
}

#[test]
fn keys() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    let (public, secret) = (minisign("plain.pub"), minisign("plain.key"));
    place.write("good.pub", &public);
    transcript.accepted(&["trust", "add", "good", "good.pub"]);
    let line = public.lines().nth(1).expect("a key");
    // Algorithm, id and the point of order one, as minisign would write them.
    let weak = "RWS3XHPxmlaOjQEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    for (file, document) in [
        ("no-key.pub", "hello\n".to_owned()),
        ("another-algorithm.pub", with_line(&public, 1, &format!("A{}", &line[1..]))),
        ("weak.pub", with_line(&public, 1, weak)),
    ] {
        place.write(file, document);
        transcript.refused(3, &["trust", "add", "bob", file]);
    }
    transcript.refused(3, &["trust", "add", "bob", "good.pub"]);
    transcript.refused(3, &["trust", "policy", "signed-by"]);
    transcript.refused(3, &["trust", "policy", "signed-by", "bob"]);
    transcript.refused(3, &["trust", "policy", "signed-by", "0123456789ABCDEF"]);
    transcript.refused(2, &["trust", "add", "no name", "good.pub"]);
    place.write("good.key", &secret);
    transcript.accepted(&["sign", "kjv", "--key", "good.key"]);
    let line = secret.lines().nth(1).expect("a key");
    place.write("no-key.key", with_line(&secret, 1, &line[4..]));
    transcript.refused(3, &["sign", "kjv", "--key", "no-key.key"]);
    let mut damaged = line.to_owned();
    let at = line.len() - 8;
    let other = if line.as_bytes()[at] == b'A' { "B" } else { "A" };
    damaged.replace_range(at..=at, other);
    place.write("damaged.key", with_line(&secret, 1, &damaged));
    transcript.refused(3, &["sign", "kjv", "--key", "damaged.key"]);
    place.write("encrypted.key", minisign("encrypted.key"));
    place.write("password", "pass\n");
    place.write("another-password", "word\n");
    transcript.refused(3, &["sign", "kjv", "--key", "encrypted.key"]);
    let with = |password| ["sign", "kjv", "--key", "encrypted.key", "--password-file", password];
    transcript.refused(3, &with("another-password"));
    transcript.accepted(&with("password"));
    // Work without bound, asked for by whoever wrote the file: the numbers stand behind algorithm, checksum algorithm and salt.
    let encrypted = minisign("encrypted.key");
    let line = encrypted.lines().nth(1).expect("a key");
    let greedy = format!("{}//////////8{}", &line[..51], &line[62..]);
    place.write("greedy.key", with_line(&encrypted, 1, &greedy));
    transcript.refused(3, &["sign", "kjv", "--key", "greedy.key", "--password-file", "password"]);
    transcript.refused(3, &["sign", "kjv", "--key", "good.pub"]);
    transcript.refused(2, &["sign", "kjv"]);
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn signatures() {
    let place = Place::with_active();
    for name in ["alice", "bob"] {
        place.json(["key", "new", name]);
    }
    place.json(["sign", "kjv", "--key", "alice.key", "--out", "good.minisig"]);
    let mut transcript = Transcript::new(&place);
    let good = std::fs::read_to_string(place.path("good.minisig")).expect("a signature");
    let store = |file, key| ["sign", "kjv", "--signature", file, "--public-key", key];
    transcript.accepted(&store("good.minisig", "alice.pub"));
    let line = good.lines().nth(1).expect("a signature");
    let flipped = |at: usize| {
        let mut line = line.to_owned();
        let other = if line.as_bytes()[at] == b'A' { "B" } else { "A" };
        line.replace_range(at..=at, other);
        with_line(&good, 1, &line)
    };
    let comment = good.lines().nth(2).expect("a comment");
    for (file, document) in [
        ("no-signature", "hello\n".to_owned()),
        ("another-algorithm", with_line(&good, 1, &format!("A{}", &line[1..]))),
        ("another-signature", flipped(40)),
        ("another-comment", with_line(&good, 2, &format!("{comment}!"))),
        ("long-comment", with_line(&good, 2, &format!("trusted comment: {}", "x".repeat(9000)))),
        ("very-long", "x".repeat(1 << 20)),
    ] {
        place.write(file, document);
        transcript.refused(3, &store(file, "alice.pub"));
    }
    transcript.refused(3, &store("good.minisig", "bob.pub"));
    let other = ["sign", "both", "--signature", "good.minisig", "--public-key", "alice.pub"];
    transcript.refused(3, &other);
    transcript.refused(2, &["sign", "kjv", "--signature", "good.minisig"]);
    place.json(["trust", "add", "alice", "alice.pub"]);
    place.json(["trust", "policy", "signed"]);
    transcript.accepted(&["activate", "kjv"]);
    transcript.refused(3, &["activate", "python"]);
    place.json(["trust", "policy", "--bare-base", "refused"]);
    place.json(["sign", "base", "--key", "alice.key"]);
    transcript.refused(3, &["activate", "base"]);
    // A label of 64 bits can be copied; the key decides. A signature that claims to be by a trusted key and is not.
    let alice = std::fs::read_to_string(place.path("alice.pub")).expect("a key");
    let forged = forged(&place, &alice);
    let digest = text(&forged, "digest");
    assert!(digest.starts_with("sha256:"));
    transcript.refused(3, &["activate", "python"]);
    let shown = transcript.finish();
    insta::assert_snapshot!(without_keys(&shown, &place));
}

/// A stored signature that rots is damage, and not absence: neither trust nor a package nor gc passes over it.
#[test]
fn a_damaged_signature() {
    let place = Place::with_active();
    place.json(["key", "new", "alice"]);
    let signed = place.json(["sign", "python", "--key", "alice.key"]);
    place.json(["trust", "add", "alice", "alice.pub"]);
    place.json(["trust", "policy", "signed"]);
    let blob = text(&signed, "signature");
    let path = place.store().join("blobs/sha256").join(blob.trim_start_matches("sha256:"));
    let good = std::fs::read(&path).expect("a signature");
    let put = |bytes: &[u8]| {
        // Blobs are read-only: another file takes the name.
        std::fs::remove_file(&path).expect("it is there");
        std::fs::write(&path, bytes).expect("it is written");
    };
    let mut transcript = Transcript::new(&place);
    put(&[&b"U"[..], &good[1..]].concat());
    transcript.refused(7, &["activate", "python"]);
    transcript.refused(7, &["pack", "python", "python.slm"]);
    transcript.refused(7, &["export", "oci", "python", "layout"]);
    transcript.run(&["gc"]);
    put(&good);
    transcript.accepted(&["activate", "python"]);
    transcript.accepted(&["pack", "python", "python.slm"]);
    put(b"");
    transcript.run(&["gc", "--drop-damaged"]);
    transcript.refused(3, &["activate", "kjv"]);
    insta::assert_snapshot!(transcript.finish());
}

/// Puts a signature of `python` into the store that has alice's id and was made by somebody else's key, past the program, which checks it.
fn forged(place: &Place, alice: &str) -> serde_json::Value {
    use slm_format::Digest;
    use slm_manifest::signature::{PublicKey, SecretKey, SignedDocument};

    place.json(["sign", "python", "--document", "python.json"]);
    let document = std::fs::read(place.path("python.json")).expect("the document");
    let id = PublicKey::parse(alice.as_bytes()).expect("a key").id().to_bytes();
    let mut random = [7; 40];
    random[..8].copy_from_slice(&id);
    let key = SecretKey::from_random(random).expect("a key");
    let signed = SignedDocument::manifest(&document);
    let signature = key.sign(&document, &signed.comment(0)).expect("a comment");
    let bytes = signature.to_document_of(signed);
    let digest = Digest::of(bytes.as_bytes());
    let path = place.store().join("blobs/sha256").join(digest.hex());
    std::fs::write(path, bytes).expect("it is written");
    serde_json::json!({ "digest": digest })
}

/// The ids of keys that are new in every run.
fn without_keys(text: &str, place: &Place) -> String {
    ["alice", "bob"].iter().fold(text.to_owned(), |text, name| {
        let key = std::fs::read_to_string(place.path(&format!("{name}.pub"))).expect("a key");
        let key = slm_manifest::signature::PublicKey::parse(key.as_bytes()).expect("a key");
        text.replace(&key.id().to_string(), &format!("KEY-OF-{}", name.to_uppercase()))
    })
}

#[test]
fn policies() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    let path = place.store().join("policy.toml");
    let signed_by = "trust = { rule = \"signed-by\", signed_by = [\"0123456789ABCDEF\"] }\n";
    for document in [
        "= 1\n",
        "budget = { gold_bytes = 1 }\n",
        "store = { keep_generations = 0 }\n",
        "trust = { rule = \"signed-by\" }\n",
        signed_by,
        "trust = { rule = \"signed-by\", signed_by = [\"xyz\"] }\n",
        "budget = { kv_bytes = \"much\" }\n",
    ] {
        std::fs::write(&path, document).expect("it is written");
        transcript.refused(3, &["activate", "kjv"]);
    }
    std::fs::write(&path, b"\xff\n").expect("it is written");
    transcript.refused(3, &["activate", "kjv"]);
    std::fs::write(&path, "store = { keep_generations = 1 }\n").expect("it is written");
    transcript.accepted(&["activate", "kjv"]);
    insta::assert_snapshot!(transcript.finish());
}
