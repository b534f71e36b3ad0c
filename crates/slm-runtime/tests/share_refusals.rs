//! Packages and layouts that are refused, each beside a twin that is accepted; the store is as before.

mod common;

use common::share::{Layout, exported, origin, pack};
use common::{LIMITS, Medium as _, NOW, code, compose, name, runtime};
use slm_format::Digest;
use slm_format::container::{Container, ContainerWriter, SectionKind};
use slm_manifest::signature::SignedDocument;
use slm_manifest::{Manifest, RawManifest};
use slm_runtime::runtime::media_type;
use slm_store::MemStorage;

/// A package's sections, its weights put in as they are.
fn rebuilt(file: &[u8], change: impl Fn(&mut Vec<(SectionKind, Vec<u8>)>)) -> Vec<u8> {
    let container = Container::open(file, &LIMITS).expect("a container");
    let mut sections: Vec<(SectionKind, Vec<u8>)> = container
        .sections()
        .iter()
        .filter(|section| section.kind() != SectionKind::BaseWeights)
        .map(|section| (section.kind(), section.bytes().to_vec()))
        .collect();
    change(&mut sections);
    let mut writer = ContainerWriter::new();
    for (kind, bytes) in sections {
        writer.section(kind, bytes).expect("a section");
    }
    for tensor in container.tensors() {
        writer.entry(tensor).expect("a tensor");
    }
    let mut out = Vec::new();
    writer.write_to(&mut out).expect("written");
    out
}

fn position(sections: &[(SectionKind, Vec<u8>)], kind: SectionKind) -> usize {
    sections.iter().position(|section| section.0 == kind).expect("a section")
}

/// Unpacking refuses with this code, and the store is as before.
fn refused(file: &[u8], expected: &str, what: &str) {
    let storage = MemStorage::new();
    let fresh = runtime(storage.clone());
    let before = storage.files();
    assert_eq!(code(fresh.unpack(file, &name("shared"), false, NOW)), expected, "{what}");
    assert_eq!(storage.files(), before, "{what}");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let origin = origin();
    let file = pack(&origin.runtime, &origin.reference);
    assert_eq!(rebuilt(&file, |_| {}), file, "the twin of all that follows");
    let kjv_alone = compose(&origin.runtime, "kjv-alone", &[("kjv", 1.0)]).manifest;
    let bytes = |manifest: &Manifest| manifest.to_canonical_json();
    let change = |change: &dyn Fn(&mut RawManifest)| {
        let mut raw: RawManifest = (*origin.manifest).clone();
        change(&mut raw);
        bytes(&Manifest::check(raw).expect("a manifest"))
    };
    let with_manifest = |manifest: Vec<u8>| {
        rebuilt(&file, |sections| {
            // Signatures and records are of the old one.
            sections.retain(|section| {
                !matches!(section.0, SectionKind::Signature | SectionKind::EvaluationRecord)
            });
            let at = position(sections, SectionKind::Manifest);
            sections[at].1.clone_from(&manifest);
        })
    };
    let no_record = change(&|raw| raw.evaluation = None);
    let fresh = runtime(MemStorage::new());
    let twin = with_manifest(no_record.clone());
    fresh.unpack(&twin, &name("shared"), false, NOW).expect("the twin");
    let spaced = [b" ".as_slice(), &no_record].concat();
    for (manifest, expected) in [
        (spaced, "package-not-canonical"),
        (bytes(&origin.manifest), "package-incomplete"),
        (bytes(&kjv_alone), "package-stray"),
        (change(&|raw| raw.adapters[0].file_hash = Digest::of(b"x")), "package-incomplete"),
        (
            change(&|raw| (raw.evaluation, raw.adapters[0].rank) = (None, 99)),
            "manifest-contradicts",
        ),
        (change(&|raw| (raw.evaluation, raw.adapters[0].nnz) = (None, 1)), "manifest-contradicts"),
        (change(&|raw| raw.quantization[0].tensors += 1), "manifest-contradicts"),
        (
            change(&|raw| raw.adapters[0].adapter_id = raw.base_model_hash_as_adapter()),
            "adapter-mismatch",
        ),
        (
            change(&|raw| {
                raw.base_model_hash = slm_manifest::BaseId::from_digest(Digest::of(b"x"))
            }),
            "base-mismatch",
        ),
        (
            change(&|raw| {
                raw.tokenizer_id = slm_manifest::TokenizerId::from_digest(Digest::of(b"x"))
            }),
            "tokenizer-mismatch",
        ),
        (
            change(&|raw| raw.provenance.base_file_hash = Some(Digest::of(b"x"))),
            "package-base-form",
        ),
        (b"{}".to_vec(), "manifest-missing-field"),
    ] {
        let shown = String::from_utf8_lossy(&manifest).into_owned();
        refused(&with_manifest(manifest), expected, &shown);
    }
}

trait AsAdapter {
    fn base_model_hash_as_adapter(&self) -> slm_manifest::AdapterId;
}

impl AsAdapter for RawManifest {
    fn base_model_hash_as_adapter(&self) -> slm_manifest::AdapterId {
        slm_manifest::AdapterId::from_digest(self.base_model_hash.digest())
    }
}

#[test]
fn sections_are_those_of_a_package() {
    let origin = origin();
    let file = pack(&origin.runtime, &origin.reference);
    let other = origin.secret.sign(b"x", &SignedDocument::manifest(b"x").comment(0));
    let other = other.expect("a comment").to_document().into_bytes();
    type Change<'a> = &'a dyn Fn(&mut Vec<(SectionKind, Vec<u8>)>);
    let cases: [(Change<'_>, &str); 9] = [
        (&|s| drop(s.remove(position(s, SectionKind::Manifest))), "package-manifests"),
        (&|s| s.push(s[position(s, SectionKind::Manifest)].clone()), "package-manifests"),
        (&|s| drop(s.remove(position(s, SectionKind::Adapter))), "package-incomplete"),
        (&|s| drop(s.remove(position(s, SectionKind::EvaluationRecord))), "package-incomplete"),
        (&|s| s.push(s[position(s, SectionKind::Adapter)].clone()), "package-stray"),
        (&|s| s.push((SectionKind::Signature, other.clone())), "package-stray"),
        (&|s| s.push((SectionKind::Signature, b"x".to_vec())), "signature-malformed"),
        (&|s| s.push((SectionKind::PrefixCache, b"x".to_vec())), "package-section"),
        (
            &|s| {
                let tokenizer = s.remove(position(s, SectionKind::Tokenizer));
                s.push(tokenizer);
            },
            "package-section",
        ),
    ];
    for (at, (change, expected)) in cases.into_iter().enumerate() {
        refused(&rebuilt(&file, change), expected, &format!("case {at}"));
    }
    // A base alone is no package.
    let mut base = Vec::new();
    common::tiny().write_slm(&mut base).expect("written");
    refused(&base, "package-manifests", "a base");
    // Without signatures it is a package as well: nobody has signed it.
    let unsigned = rebuilt(&file, |s| s.retain(|section| section.0 != SectionKind::Signature));
    let fresh = runtime(MemStorage::new());
    let unpacked = fresh.unpack(&unsigned, &name("shared"), false, NOW).expect("unpacked");
    assert_eq!(unpacked.signatures, 0);
}

#[test]
fn damage_anywhere_is_noticed_before_anything_is_stored() {
    let origin = origin();
    let file = pack(&origin.runtime, &origin.reference);
    let container = Container::open(&file, &LIMITS).expect("a container");
    let mut places = vec![9, 70, 100];
    for section in container.sections() {
        let (start, len) = (section.offset() as usize, section.bytes().len());
        places.extend([start, start + len / 2, start + len - 1]);
    }
    let storage = MemStorage::new();
    let fresh = runtime(storage.clone());
    let before = storage.files();
    for at in places {
        let mut bad = file.clone();
        bad[at] ^= 0x10;
        assert!(fresh.unpack(&bad, &name("shared"), false, NOW).is_err(), "byte {at}");
        let cut = &file[..at];
        assert!(fresh.unpack(cut, &name("shared"), false, NOW).is_err(), "cut at {at}");
    }
    assert_eq!(storage.files(), before);
}

#[test]
fn what_is_no_layout_of_a_composition_is_refused() {
    let origin = origin();
    let (layout, image) = exported(&origin);
    let image_path = format!("blobs/sha256/{}", image.hex());
    let text = |path: &str| String::from_utf8(layout[path].clone()).expect("text");
    let replace = |path: &str, from: &str, to: &str| {
        let mut bad = layout.clone();
        let changed = text(path).replacen(from, to, 1);
        assert_ne!(changed, text(path), "{from}");
        bad.insert(path.to_owned(), changed.into_bytes());
        bad
    };
    // A changed image under its own new digest, so that only what it says is wrong.
    let with_image = |from: &str, to: &str| {
        let changed = text(&image_path).replacen(from, to, 1).into_bytes();
        assert_ne!(changed, layout[&image_path], "{from}");
        let mut bad = layout.clone();
        let digest = Digest::of(&changed);
        let index =
            text("index.json").replacen(&image.to_string(), &digest.to_string(), 1).replacen(
                &format!(":{}", layout[&image_path].len()),
                &format!(":{}", changed.len()),
                1,
            );
        bad.insert("index.json".to_owned(), index.into_bytes());
        bad.insert(format!("blobs/sha256/{}", digest.hex()), changed);
        bad
    };
    let without = |path: &str| {
        let mut bad = layout.clone();
        bad.remove(path);
        bad
    };
    let base_blob = |bad: &mut Layout, change: &dyn Fn(&mut Vec<u8>)| {
        let largest = bad.iter().max_by_key(|(_, bytes)| bytes.len()).expect("files").0.clone();
        change(bad.get_mut(&largest).expect("a file"));
    };
    let mut flipped = layout.clone();
    base_blob(&mut flipped, &|bytes| bytes[1000] ^= 1);
    let mut cut = layout.clone();
    base_blob(&mut cut, &|bytes| bytes.truncate(1000));
    let entry = text("index.json");
    let entry = &entry[entry.find("[").expect("a list") + 1..entry.rfind("]").expect("a list")];
    let first_hex = image.hex();
    for (bad, expected) in [
        (Layout::new(), "oci-layout"),
        (without("oci-layout"), "oci-layout"),
        (without("index.json"), "oci-layout"),
        (without(&image_path), "oci-layout"),
        (replace("oci-layout", "1.0.0", "2.0.0"), "oci-layout"),
        (
            replace("index.json", "\"manifests\":[", &format!("\"manifests\":[{entry},")),
            "oci-layout",
        ),
        (replace("index.json", media_type::OCI_MANIFEST, media_type::OCI_INDEX), "oci-media-type"),
        (replace("index.json", &first_hex, "../../../etc/passwd"), "oci-layout"),
        (replace("index.json", "\"size\":", "\"size\":1"), "oci-blob-digest"),
        (flipped, "oci-blob-digest"),
        (cut, "oci-blob-digest"),
        (
            with_image(media_type::ADAPTER, "application/vnd.oci.image.layer.v1.tar+gzip"),
            "oci-media-type",
        ),
        (with_image(media_type::BASE, media_type::ADAPTER), "oci-layout"),
        (with_image(media_type::ADAPTER, media_type::BASE), "oci-layout"),
        (with_image(media_type::MANIFEST, media_type::EVALUATION_RECORD), "package-manifests"),
        (with_image("\"schemaVersion\":2", "\"schemaVersion\":1"), "oci-layout"),
    ] {
        let storage = MemStorage::new();
        let fresh = runtime(storage.clone());
        let before = storage.files();
        let imported = fresh.import_oci(&bad, None, &name("shared"), false, NOW);
        assert_eq!(code(imported), expected);
        assert_eq!(storage.files(), before);
    }
    let fresh = runtime(MemStorage::new());
    let absent = fresh.import_oci(&layout, Some("v2"), &name("shared"), false, NOW);
    assert_eq!(code(absent), "oci-layout");
    // The twin of those that changed the image: a field that nobody reads.
    let twin = with_image("\"annotations\":{", "\"annotations\":{\"x\":\"y\",");
    fresh.import_oci(&twin, None, &name("shared"), false, NOW).expect("imported");
}
