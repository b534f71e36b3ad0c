//! Signatures: files made by the minisign program, then everything that can be wrong with one.

use slm_format::{Coded, Limits};
use slm_manifest::Manifest;
use slm_manifest::signature::{
    DocumentKind, KeyId, MAX_FILE_BYTES, Prehash, PublicKey, SecretKey, SecretKeyFile, Signature,
    SignatureError, SignedDocument,
};

const DOCUMENT: &[u8] = include_bytes!("data/minisign/manifest.json");
const BARE: &[u8] = include_bytes!("data/minisign/bare.json");
const PLAIN_PUB: &str = include_str!("data/minisign/plain.pub");
const PLAIN_KEY: &str = include_str!("data/minisign/plain.key");
const ENCRYPTED_PUB: &str = include_str!("data/minisign/encrypted.pub");
const ENCRYPTED_KEY: &str = include_str!("data/minisign/encrypted.key");
const PREHASHED: &str = include_str!("data/minisign/plain.prehashed.minisig");
const LEGACY: &str = include_str!("data/minisign/plain.legacy.minisig");
const NAMED: &str = include_str!("data/minisign/plain.named.minisig");
const MISNAMED: &str = include_str!("data/minisign/plain.misnamed.minisig");
const BY_ENCRYPTED: &str = include_str!("data/minisign/encrypted.minisig");

fn public(text: &str) -> PublicKey {
    PublicKey::parse(text.as_bytes()).expect("a public key")
}

fn signature(text: &str) -> Signature {
    Signature::parse(text.as_bytes()).expect("a signature")
}

fn secret() -> SecretKey {
    SecretKeyFile::parse(PLAIN_KEY.as_bytes()).expect("a file").open(None).expect("a key")
}

#[test]
fn the_documents_are_what_a_store_keeps() {
    for document in [DOCUMENT, BARE] {
        let manifest = Manifest::parse(document, &Limits::STANDARD).expect("a manifest");
        assert_eq!(manifest.to_canonical_json(), document);
        assert_eq!(SignedDocument::manifest(document).digest, manifest.digest());
    }
}

#[test]
fn signatures_of_the_minisign_program_hold() {
    let key = public(PLAIN_PUB);
    // As the program prints it.
    assert_eq!(key.id().to_string(), "8D8E569AF1735CB7");
    for (text, prehash, comment) in [
        (PREHASHED, Prehash::Blake2b512, "timestamp:1796007393\tfile:manifest.json\thashed"),
        (LEGACY, Prehash::None, "a comment of my own"),
    ] {
        let signature = signature(text);
        assert_eq!((signature.prehash(), signature.key_id()), (prehash, key.id()));
        assert_eq!((signature.trusted_comment(), signature.names()), (comment, None));
        key.verify(DOCUMENT, &signature).expect("it holds");
        key.verify_document(DocumentKind::Manifest, DOCUMENT, &signature).expect("it holds");
        assert_eq!(key.verify(BARE, &signature).unwrap_err().code(), "signature-invalid");
    }
    let by_other = signature(BY_ENCRYPTED);
    public(ENCRYPTED_PUB).verify(DOCUMENT, &by_other).expect("it holds");
    assert_eq!(key.verify(DOCUMENT, &by_other).unwrap_err().code(), "signature-other-key");
}

#[test]
fn a_comment_that_names_a_document_is_held_to_it() {
    let key = public(PLAIN_PUB);
    let named = signature(NAMED);
    assert_eq!(named.names(), Some(SignedDocument::manifest(DOCUMENT)));
    key.verify_document(DocumentKind::Manifest, DOCUMENT, &named).expect("it holds");
    let as_record = key.verify_document(DocumentKind::EvaluationRecord, DOCUMENT, &named);
    assert_eq!(as_record.unwrap_err().code(), "signature-other-document");
    let misnamed = signature(MISNAMED);
    key.verify(DOCUMENT, &misnamed).expect("the bytes are the ones that were signed");
    let error = key.verify_document(DocumentKind::Manifest, DOCUMENT, &misnamed).unwrap_err();
    let (named, found) = (SignedDocument::manifest(BARE), SignedDocument::manifest(DOCUMENT));
    assert_eq!(error, SignatureError::OtherDocument { named, found });
}

#[test]
fn a_stored_signature_says_what_it_belongs_to() {
    let (key, document) = (public(PLAIN_PUB), SignedDocument::manifest(DOCUMENT));
    for (text, own_name) in [(PREHASHED, None), (NAMED, Some(document))] {
        assert_eq!(SignedDocument::claimed_by(text.as_bytes()), None);
        let read = signature(text);
        assert_eq!(SignedDocument::claimed_by(read.to_document().as_bytes()), own_name);
        let stored = read.to_document_of(document);
        assert_eq!(SignedDocument::claimed_by(stored.as_bytes()), Some(document));
        assert_eq!(signature(&stored), read);
        key.verify(DOCUMENT, &signature(&stored)).expect("it holds");
    }
    let record = SignedDocument::evaluation_record(b"{}");
    let stored = secret().sign(b"{}", &record.comment(0)).expect("a comment").to_document();
    assert_eq!(SignedDocument::claimed_by(stored.as_bytes()), Some(record));
    for nothing in ["", "untrusted comment: x\n", &format!(" {stored}")] {
        assert_eq!(SignedDocument::claimed_by(nothing.as_bytes()), None, "{nothing}");
    }
}

#[test]
fn our_signatures_are_the_bits_that_the_program_writes() {
    // Ed25519 is deterministic: of the same key, document and comment there is one signature.
    let key = secret();
    for text in [PREHASHED, NAMED] {
        let theirs = signature(text);
        let ours = key.sign(DOCUMENT, theirs.trusted_comment()).expect("a comment");
        assert_eq!(ours, theirs);
        let lines = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(&ours.to_document()), lines(text));
    }
}

#[test]
fn keys_are_the_files_that_the_program_writes() {
    let key = secret();
    assert_eq!(key.public_key(), public(PLAIN_PUB));
    assert_eq!(key.public_key().to_file(), PLAIN_PUB);
    assert_eq!(key.to_file().lines().nth(1), PLAIN_KEY.lines().nth(1));
    let line = PLAIN_PUB.lines().nth(1).expect("a key");
    assert_eq!(public(line), public(PLAIN_PUB));
    assert_eq!(public(&PLAIN_PUB.replace('\n', "\r\n")), public(PLAIN_PUB));
}

#[test]
fn a_new_key_goes_through_its_files() {
    let key = SecretKey::from_random(core::array::from_fn(|at| at as u8)).expect("a key");
    assert_eq!(key.id().to_string(), "0706050403020100");
    let again = SecretKeyFile::parse(key.to_file().as_bytes()).expect("a file").open(None);
    let again = again.expect("a key");
    assert_eq!(again.public_key(), key.public_key());
    let made = again.sign(b"document", "comment").expect("a comment");
    let read = signature(&made.to_document());
    assert_eq!(read, made);
    key.public_key().verify(b"document", &read).expect("it holds");
    assert_ne!(SecretKey::from_random([1; 40]).expect("a key").public_key(), key.public_key());
    assert_eq!(SecretKey::from_random([0; 40]).unwrap_err().code(), "random-zero");
    // Nothing of the secret is shown.
    assert_eq!(format!("{key:?}"), "SecretKey(0706050403020100)");
    let file = SecretKeyFile::parse(PLAIN_KEY.as_bytes()).expect("a file");
    assert_eq!(format!("{file:?}"), "SecretKeyFile(encrypted: false)");
}

#[test]
fn every_changed_bit_of_a_signature_is_noticed() {
    let key = public(PLAIN_PUB);
    let mut codes = std::collections::BTreeMap::new();
    for at in 0..NAMED.len() {
        let mut bytes = NAMED.as_bytes().to_vec();
        bytes[at] ^= 1;
        let untrusted = at < NAMED.find('\n').expect("a line");
        let found = Signature::parse(&bytes).and_then(|signature| {
            key.verify_document(DocumentKind::Manifest, DOCUMENT, &signature)
        });
        match found {
            // What is not signed may say what it likes.
            Ok(()) => assert!(untrusted, "byte {at}"),
            Err(error) => *codes.entry(error.code()).or_insert(0) += 1,
        }
    }
    for code in [
        "signature-malformed",
        "signature-algorithm",
        "signature-other-key",
        "signature-other-document",
        "signature-invalid",
        "signature-comment-invalid",
    ] {
        assert!(codes.contains_key(code), "{code} in {codes:?}");
    }
    for at in 0..DOCUMENT.len() {
        let mut bytes = DOCUMENT.to_vec();
        bytes[at] ^= 1;
        assert_eq!(key.verify(&bytes, &signature(NAMED)).unwrap_err().code(), "signature-invalid");
    }
}

#[test]
fn what_is_no_signature_is_refused_by_its_line() {
    let lines: Vec<&str> = PREHASHED.lines().collect();
    let with = |at: usize, line: &str| {
        let mut lines = lines.clone();
        lines[at] = line;
        lines.join("\n")
    };
    let code = |text: &str| Signature::parse(text.as_bytes()).unwrap_err().code();
    // The twin of all that follows.
    signature(&with(0, lines[0]));
    let no_spaces = format!(" {}", lines[1]);
    let unpadded = lines[3].trim_end_matches('=').to_owned();
    let (long, escape) =
        (format!("trusted comment: {}", "x".repeat(8173)), "trusted comment: \x1b[2J");
    signature(&with(2, &long[..long.len() - 1]));
    for (line, text, expected) in [
        (0, "trusted comment: x", "signature-malformed"),
        (1, no_spaces.as_str(), "signature-malformed"),
        (1, &lines[1][4..], "signature-malformed"),
        (1, "", "signature-malformed"),
        (2, "untrusted comment: x", "signature-malformed"),
        (2, escape, "signature-comment"),
        (2, long.as_str(), "signature-comment"),
        (3, unpadded.as_str(), "signature-malformed"),
        (3, lines[1], "signature-malformed"),
    ] {
        assert_eq!(code(&with(line, text)), expected, "line {line}: {text}");
    }
    assert_eq!(code(&format!("{PREHASHED}more")), "signature-malformed");
    for cut in 0..4 {
        let error = Signature::parse(lines[..cut].join("\n").as_bytes()).unwrap_err();
        assert!(
            matches!(error, SignatureError::Malformed { line, .. } if line == cut.max(1) as u64 + u64::from(cut > 0))
        );
    }
    assert_eq!(code(&"x".repeat(MAX_FILE_BYTES + 1)), "limit-exceeded");
    assert_eq!(code(&"x".repeat(MAX_FILE_BYTES)), "signature-malformed");
    let mut bytes = PREHASHED.as_bytes().to_vec();
    bytes[0] = 0xff;
    assert_eq!(Signature::parse(&bytes).unwrap_err().code(), "signature-malformed");
}

#[test]
fn a_comment_is_checked_before_it_is_signed() {
    let key = secret();
    for bad in ["two\nlines", "\r", "\x1b[2J", "\u{85}", &"x".repeat(8173)] {
        assert_eq!(key.sign(DOCUMENT, bad).unwrap_err().code(), "signature-comment", "{bad:?}");
    }
    for good in ["", "tabs\tand ünïcode", &"x".repeat(8172)] {
        let signed = key.sign(DOCUMENT, good).expect("a comment");
        assert_eq!(signature(&signed.to_document()).trusted_comment(), good);
    }
}

#[test]
fn weak_and_malformed_public_keys_are_refused() {
    let with = |key: [u8; 32]| {
        let id = KeyId::from_bytes([1; 8]);
        PublicKey::new(id, key).map(|key| key.id())
    };
    let mut base = public(PLAIN_PUB).to_bytes();
    with(base).expect("a key");
    // The neutral point, the point of order two, and one whose y is not below the field's prime.
    let mut neutral = [0; 32];
    neutral[0] = 1;
    let mut order_two = [0xff; 32];
    (order_two[0], order_two[31]) = (0xec, 0x7f);
    for weak in [neutral, order_two, [0xff; 32]] {
        assert_eq!(with(weak).unwrap_err().code(), "public-key-weak");
    }
    // Half of all y have no x: one of a few neighbours is none.
    assert!((0..32).any(|step| {
        base[0] = base[0].wrapping_add(step);
        with(base).is_err()
    }));
    let code = |text: &str| PublicKey::parse(text.as_bytes()).unwrap_err().code();
    let line = PLAIN_PUB.lines().nth(1).expect("a key");
    assert_eq!(code(&format!("A{}", &line[1..])), "signature-algorithm");
    assert_eq!(code(&line[4..]), "public-key-malformed");
    assert_eq!(code(""), "public-key-malformed");
    assert_eq!(code(&format!("{PLAIN_PUB}more")), "public-key-malformed");
    assert_eq!(code(PREHASHED), "public-key-malformed");
}

#[test]
fn damaged_secret_keys_are_refused() {
    use base64ct::{Base64, Encoding as _};
    let line = PLAIN_KEY.lines().nth(1).expect("a key");
    let bytes = Base64::decode_vec(line).expect("Base64");
    let open = |bytes: &[u8]| {
        let file = format!("untrusted comment: x\n{}\n", Base64::encode_string(bytes));
        SecretKeyFile::parse(file.as_bytes())?.open(None).map(|key| key.id())
    };
    assert_eq!(open(&bytes), Ok(public(PLAIN_PUB).id()));
    for (at, code) in [
        (0, "signature-algorithm"),
        (2, "signature-algorithm"),
        (4, "signature-algorithm"),
        // The seed, the public half, the checksum.
        (62, "secret-key-checksum"),
        (94, "secret-key-checksum"),
        (157, "secret-key-checksum"),
    ] {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        assert_eq!(open(&bytes).unwrap_err().code(), code, "byte {at}");
    }
    assert_eq!(open(&bytes[3..]).unwrap_err().code(), "secret-key-malformed");
    let encrypted = SecretKeyFile::parse(ENCRYPTED_KEY.as_bytes()).expect("a file");
    assert!(encrypted.is_encrypted());
    assert_eq!(encrypted.open(None).unwrap_err().code(), "secret-key-encrypted");
}

#[cfg(feature = "encrypted-keys")]
#[test]
fn a_secret_key_of_the_program_opens_with_its_password() {
    use base64ct::{Base64, Encoding as _};
    let file = SecretKeyFile::parse(ENCRYPTED_KEY.as_bytes()).expect("a file");
    let key = file.open(Some(b"pass")).expect("the password");
    assert_eq!(key.public_key(), public(ENCRYPTED_PUB));
    let theirs = signature(BY_ENCRYPTED);
    assert_eq!(key.sign(DOCUMENT, theirs.trusted_comment()), Ok(theirs));
    assert_eq!(file.open(Some(b"word")).unwrap_err().code(), "secret-key-checksum");
    // Whoever wrote the file does not decide how long we work or how much memory we take.
    let line = ENCRYPTED_KEY.lines().nth(1).expect("a key");
    let bytes = Base64::decode_vec(line).expect("Base64");
    for at in [42, 50] {
        let mut bytes = bytes.clone();
        bytes[at] = 1;
        let file = format!("untrusted comment: x\n{}\n", Base64::encode_string(&bytes));
        let error = SecretKeyFile::parse(file.as_bytes()).expect("a file").open(Some(b"pass"));
        assert_eq!(error.unwrap_err().code(), "secret-key-derivation");
    }
    // The other way: written under a password, and opened again.
    let again = key.to_encrypted_file(b"other", [9; 32]).expect("a file");
    let again = SecretKeyFile::parse(again.as_bytes()).expect("a file");
    assert!(again.is_encrypted());
    assert_eq!(again.open(Some(b"other")).expect("a key").public_key(), key.public_key());
}

#[test]
fn a_key_id_has_one_spelling() {
    let id: KeyId = "8D8E569AF1735CB7".parse().expect("an id");
    assert_eq!(id, public(PLAIN_PUB).id());
    assert_eq!(KeyId::from_bytes(id.to_bytes()), id);
    for bad in ["", "8d8e569af1735cb7", "8D8E569AF1735CB", "8D8E569AF1735CB70", "+D8E569AF1735CB7"]
    {
        assert_eq!(bad.parse::<KeyId>().unwrap_err().code(), "bad-key-id", "{bad}");
    }
}
