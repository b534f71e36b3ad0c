//! What this crate writes, read by the minisign program itself (feature `minisign-program`; it must be on the path).

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use slm_manifest::signature::{
    DocumentKind, PublicKey, SecretKey, SecretKeyFile, Signature, SignedDocument,
};

const DOCUMENT: &[u8] = include_bytes!("data/minisign/manifest.json");

/// Runs the program in `folder` with a password on its standard input, and says whether it was content.
fn minisign(folder: &Path, arguments: &[&str], password: &str) -> bool {
    let mut child = Command::new("minisign")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the minisign program");
    // A program that asks for no password may have ended by now.
    let _ = child.stdin.take().expect("a pipe").write_all(format!("{password}\n").as_bytes());
    child.wait().expect("an end").success()
}

#[test]
fn the_program_verifies_what_is_signed_here() {
    let folder = tempfile::tempdir().expect("a folder");
    let put = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).expect("a file");
    };
    let verifies = || {
        let arguments = ["-V", "-p", "key.pub", "-x", "signature", "-m", "document"];
        minisign(folder.path(), &arguments, "")
    };
    for seed in 1..=20 {
        let secret = SecretKey::from_random([seed; 40]).expect("a key");
        let comment = SignedDocument::manifest(DOCUMENT).comment(1_796_083_199);
        let signature = secret.sign(DOCUMENT, &comment).expect("a comment");
        put("key.pub", secret.public_key().to_file().as_bytes());
        put("document", DOCUMENT);
        put("signature", signature.to_document().as_bytes());
        assert!(verifies(), "seed {seed}");
        put("document", b"another");
        assert!(!verifies(), "seed {seed}");
        put("document", DOCUMENT);
        put("signature", signature.to_document().replace("timestamp:1", "timestamp:2").as_bytes());
        assert!(!verifies(), "seed {seed}");
    }
}

#[test]
fn the_program_signs_with_the_keys_that_are_written_here() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = SecretKey::from_random([3; 40]).expect("a key");
    let verify = |name: &str| {
        let bytes = std::fs::read(folder.path().join(name)).expect("a signature");
        let signature = Signature::parse(&bytes).expect("a signature");
        let key = secret.public_key();
        key.verify_document(DocumentKind::Manifest, DOCUMENT, &signature).expect("it holds");
    };
    std::fs::write(folder.path().join("document"), DOCUMENT).expect("a file");
    std::fs::write(folder.path().join("plain.key"), secret.to_file()).expect("a file");
    for (signature, legacy) in [("prehashed", None), ("legacy", Some("-l"))] {
        let mut arguments = vec!["-S", "-s", "plain.key", "-m", "document", "-x", signature];
        arguments.extend(legacy);
        assert!(minisign(folder.path(), &arguments, ""), "{signature}");
        verify(signature);
    }
    let file = secret.to_encrypted_file(b"pass", [5; 32]).expect("a file");
    std::fs::write(folder.path().join("encrypted.key"), file).expect("a file");
    let arguments = ["-S", "-s", "encrypted.key", "-m", "document", "-x", "encrypted"];
    assert!(minisign(folder.path(), &arguments, "pass"));
    verify("encrypted");
    // The public key from the secret one, by the program.
    assert!(minisign(folder.path(), &["-R", "-s", "encrypted.key", "-p", "again.pub"], "pass"));
    let again = std::fs::read(folder.path().join("again.pub")).expect("a key");
    assert_eq!(PublicKey::parse(&again).expect("a key"), secret.public_key());
}

#[test]
fn keys_that_the_program_makes_are_read_here() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(minisign(folder.path(), &["-G", "-W", "-p", "new.pub", "-s", "new.key"], ""));
    let read = |name: &str| std::fs::read(folder.path().join(name)).expect("a file");
    let secret = SecretKeyFile::parse(&read("new.key")).expect("a file").open(None).expect("a key");
    assert_eq!(PublicKey::parse(&read("new.pub")).expect("a key"), secret.public_key());
}
