//! Packages and OCI layouts whose parts do not belong together.

use std::path::Path;

use serde_json::Value;
use slm_format::Digest;
use slm_format::container::SectionKind;
use slm_manifest::Manifest;

use super::LIMITS;
use super::models::rebuilt;
use crate::common::{Place, copy_folder, text};
use crate::transcript::Transcript;

type Sections = Vec<(SectionKind, Vec<u8>)>;

fn position(sections: &Sections, kind: SectionKind) -> usize {
    sections.iter().position(|section| section.0 == kind).expect("a section")
}

/// A store with a signed composition `both`, packed, and the manifest that a file of the package's own names.
fn packed(place: &Place) -> Vec<u8> {
    place.json(["pack", "both", "both.slm"]);
    std::fs::read(place.path("both.slm")).expect("the package")
}

#[test]
fn sections() {
    let place = Place::with_active();
    let file = packed(&place);
    let elsewhere = Place::new();
    let mut transcript = Transcript::new(&elsewhere);
    let good = elsewhere.write("good.slm", rebuilt(&file, |_| {}));
    transcript.accepted(&["unpack", &good, "--name", "good"]);
    type Change<'a> = &'a dyn Fn(&mut Sections);
    let cases: [(&str, Change<'_>); 7] = [
        ("no-manifest", &|s| drop(s.remove(position(s, SectionKind::Manifest)))),
        ("two-manifests", &|s| s.push(s[position(s, SectionKind::Manifest)].clone())),
        ("an-adapter-less", &|s| drop(s.remove(position(s, SectionKind::Adapter)))),
        ("an-adapter-twice", &|s| s.push(s[position(s, SectionKind::Adapter)].clone())),
        ("a-prefix-cache", &|s| s.push((SectionKind::PrefixCache, b"x".to_vec()))),
        ("no-signature-at-all", &|s| s.push((SectionKind::Signature, b"x".to_vec()))),
        ("a-spaced-manifest", &|s| {
            let at = position(s, SectionKind::Manifest);
            s[at].1.insert(0, b' ');
        }),
    ];
    for (name, change) in cases {
        let path = elsewhere.write(&format!("{name}.slm"), rebuilt(&file, change));
        transcript.refused(3, &["unpack", &path, "--name", "x"]);
    }
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn manifests_of_packages() {
    let place = Place::with_active();
    let file = packed(&place);
    let elsewhere = Place::new();
    let mut transcript = Transcript::new(&elsewhere);
    let with_manifest = |change: &dyn Fn(&mut slm_manifest::RawManifest)| {
        rebuilt(&file, |sections| {
            let at = position(sections, SectionKind::Manifest);
            let manifest = Manifest::parse(&sections[at].1, &LIMITS).expect("a manifest");
            let mut raw = (*manifest).clone();
            change(&mut raw);
            sections[at].1 = Manifest::check(raw).expect("a manifest").to_canonical_json();
        })
    };
    let absent = Digest::of(b"absent");
    type Change<'a> = &'a dyn Fn(&mut slm_manifest::RawManifest);
    let cases: [(&str, Change<'_>); 5] = [
        ("another-base", &|raw| raw.base_model_hash = slm_manifest::BaseId::from_digest(absent)),
        ("another-tokenizer", &|raw| {
            raw.tokenizer_id = slm_manifest::TokenizerId::from_digest(absent);
        }),
        ("another-form-of-the-base", &|raw| raw.provenance.base_file_hash = Some(absent)),
        ("a-record-that-is-not-there", &|raw| raw.evaluation = Some(absent)),
        ("another-rank", &|raw| raw.adapters[0].rank = 99),
    ];
    for (name, change) in cases {
        let path = elsewhere.write(&format!("{name}.slm"), with_manifest(change));
        transcript.refused(3, &["unpack", &path, "--name", "x"]);
    }
    insta::assert_snapshot!(transcript.finish());
}

/// The package of a composition whose manifest names this evaluation record.
fn with_record(file: &[u8], record: &[u8]) -> Vec<u8> {
    rebuilt(file, |sections| {
        let at = position(sections, SectionKind::Manifest);
        let manifest = Manifest::parse(&sections[at].1, &LIMITS).expect("a manifest");
        let mut raw = (*manifest).clone();
        raw.evaluation = Some(Digest::of(record));
        sections[at].1 = Manifest::check(raw).expect("a manifest").to_canonical_json();
        sections.push((SectionKind::EvaluationRecord, record.to_vec()));
    })
}

#[test]
fn evaluation_records_of_packages() {
    let place = Place::with_active();
    let file = packed(&place);
    let words = place.write("words", "In the beginning God created the heaven. ".repeat(6));
    let measured = place.json(["eval", "ppl", &words, "--ctx", "32", "--record"]);
    let hex = text(&measured, "record").strip_prefix("sha256:").expect("a digest").to_owned();
    let record = std::fs::read(place.store().join("blobs/sha256").join(hex)).expect("the record");
    let record = String::from_utf8(record).expect("text");
    // The record was made of this composition under another manifest than the one that then names it; only its ids must agree.
    let bent = |from: &str, to: &str| {
        assert!(record.contains(from), "{from} in {record}");
        record.replacen(from, to, 1).into_bytes()
    };
    let elsewhere = Place::new();
    let mut transcript = Transcript::new(&elsewhere);
    let good = elsewhere.write("good.slm", with_record(&file, record.as_bytes()));
    transcript.accepted(&["unpack", &good, "--name", "good"]);
    for (name, record) in [
        ("spaced", bent("\"router\":\"fixed\"", "\"router\": \"fixed\"")),
        ("no-router", bent("\"router\":\"fixed\",", "")),
        ("an-empty-router", bent("\"router\":\"fixed\"", "\"router\":\"\"")),
    ] {
        let path = elsewhere.write(&format!("{name}.slm"), with_record(&file, &record));
        transcript.refused(3, &["unpack", &path, "--name", "x"]);
    }
    insta::assert_snapshot!(transcript.finish());
}

/// The files of a layout, changed and put down under a name.
fn layout(place: &Place, from: &Path, name: &str, change: &dyn Fn(&Path)) -> String {
    let to = place.path(name);
    std::fs::create_dir_all(to.join("blobs")).expect("a folder");
    copy_folder(from.join("blobs/sha256").to_str().expect("a path"), &to.join("blobs/sha256"));
    for file in ["oci-layout", "index.json"] {
        std::fs::copy(from.join(file), to.join(file)).expect("a copy");
    }
    change(&to);
    place.arg(name)
}

#[test]
fn layouts() {
    let place = Place::with_active();
    let exported = place.json(["export", "oci", "both", "layout"]);
    assert!(exported["blobs"].is_array() || exported["blobs"].is_u64(), "{exported}");
    let from = place.path("layout");
    let elsewhere = Place::new();
    let mut transcript = Transcript::new(&elsewhere);
    let good = layout(&elsewhere, &from, "good", &|_| {});
    transcript.accepted(&["import", "oci", &good, "--name", "good"]);
    let edit = |file: &'static str, from: &'static str, to: &'static str| {
        move |folder: &Path| {
            let path = folder.join(file);
            let good = std::fs::read_to_string(&path).expect("text");
            assert!(good.contains(from), "{from} in {good}");
            std::fs::write(path, good.replacen(from, to, 1)).expect("it is written");
        }
    };
    let manifest = "application/vnd.oci.image.manifest.v1+json";
    let index = "application/vnd.oci.image.index.v1+json";
    let largest = |folder: &Path| {
        let entries = std::fs::read_dir(folder.join("blobs/sha256")).expect("a folder");
        let path = entries
            .map(|entry| entry.expect("an entry").path())
            .max_by_key(|path| path.metadata().expect("a file").len());
        let path = path.expect("a blob");
        let mut bytes = std::fs::read(&path).expect("a blob");
        bytes[1000] ^= 1;
        std::fs::write(path, bytes).expect("it is written");
    };
    let no_index = |folder: &Path| {
        std::fs::remove_file(folder.join("index.json")).expect("it is removed");
    };
    type Change<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Change<'_>); 4] = [
        ("no-index", &no_index),
        ("version-2", &edit("oci-layout", "1.0.0", "2.0.0")),
        ("an-index-as-image", &edit("index.json", manifest, index)),
        ("a-damaged-blob", &largest),
    ];
    for (name, change) in cases {
        let folder = layout(&elsewhere, &from, name, change);
        transcript.refused(3, &["import", "oci", &folder, "--name", "x"]);
    }
    transcript.refused(3, &["import", "oci", &good, "--name", "x", "--tag", "v9"]);
    transcript.refused(2, &["import", "oci", &good]);
    transcript.refused(4, &["import", "oci", "absent", "--name", "x"]);
    insta::assert_snapshot!(transcript.finish());
    let _: Value = exported;
}
