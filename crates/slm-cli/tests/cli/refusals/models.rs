//! Model folders, and models in slm's own container.

use std::path::Path;

use serde_json::{Value, json};
use slm_format::container::{Container, ContainerWriter, SectionKind, TensorEntry, TensorLayout};
use slm_format::safetensors::{self, Dtype, TensorSource};

use super::bend::Bend;
use super::{Imports, LIMITS, VALID};
use crate::common::{Place, copy_folder, golden};
use crate::transcript::Transcript;

/// The tiny model's folder under a name, with one file changed by `change`; weights that are not changed are not copied.
fn folder(place: &Place, name: &str, file: &str, change: &dyn Fn(&mut Value)) -> String {
    let folder = place.path(name);
    std::fs::create_dir(&folder).expect("the folder is made");
    for part in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let mut bytes = std::fs::read(golden(&format!("tiny/{part}"))).expect("a part");
        if part == file {
            let mut document = serde_json::from_slice(&bytes).expect("JSON");
            change(&mut document);
            bytes = serde_json::to_vec(&document).expect("JSON");
        }
        std::fs::write(folder.join(part), bytes).expect("a copy");
    }
    link(Path::new(&golden("tiny/model.safetensors")), &folder.join("model.safetensors"));
    place.arg(name)
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) {
    std::os::unix::fs::symlink(from, to).expect("a link");
}

#[cfg(not(unix))]
fn link(from: &Path, to: &Path) {
    std::fs::copy(from, to).expect("a copy");
}

#[test]
fn configurations_of_folders() {
    let place = Place::new();
    let mut transcript = Transcript::new(&place);
    let good = folder(&place, "good", "config.json", &|_| {});
    transcript.accepted(&["import", &good, "--name", "x"]);
    for (name, key, value) in [
        ("mamba", "model_type", json!("mamba")),
        ("gelu", "hidden_act", json!("gelu")),
        ("no-vocabulary", "vocab_size", json!(0)),
        ("larger-vocabulary", "vocab_size", json!(1025)),
        ("three-kv-heads", "num_key_value_heads", json!(3)),
        ("five-layers", "num_hidden_layers", json!(5)),
        ("three-layers", "num_hidden_layers", json!(3)),
    ] {
        let bent = folder(&place, name, "config.json", &|config| config[key] = value.clone());
        transcript.refused(3, &["import", &bent, "--name", "y"]);
    }
    let bent = folder(&place, "no-hidden-size", "config.json", &|config| {
        config.as_object_mut().expect("an object").remove("hidden_size");
    });
    transcript.refused(3, &["import", &bent, "--name", "y"]);
    let bent = folder(&place, "a-list", "config.json", &|config| *config = json!([]));
    transcript.refused(3, &["import", &bent, "--name", "y"]);
    for (name, file) in [("no-tokenizer", "tokenizer.json"), ("no-weights", "model.safetensors")] {
        let bent = folder(&place, name, "", &|_| {});
        std::fs::remove_file(Path::new(&bent).join(file)).expect("it is removed");
        transcript.refused(3, &["import", &bent, "--name", "y"]);
    }
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn weights_of_folders() {
    let place = Place::new();
    let mut transcript = Transcript::new(&place);
    let zeros = [0; 8192];
    let tensor = |name, dtype, shape, len| TensorSource { name, dtype, shape, data: &zeros[..len] };
    for (name, tensor) in [
        ("doubles", tensor("model.norm.weight", Dtype::F64, &[256], 2048)),
        ("a-bias", tensor("model.norm.bias", Dtype::F32, &[256], 1024)),
        ("a-norm-alone", tensor("model.norm.weight", Dtype::F32, &[256], 1024)),
    ] {
        let bent = folder(&place, name, "", &|_| {});
        let weights = Path::new(&bent).join("model.safetensors");
        std::fs::remove_file(&weights).expect("it is removed");
        let mut bytes = Vec::new();
        safetensors::write(&mut bytes, &[tensor], &Default::default()).expect("a file");
        std::fs::write(weights, bytes).expect("it is written");
        transcript.refused(3, &["import", &bent, "--name", "y"]);
    }
    let good = folder(&place, "good", "", &|_| {});
    transcript.accepted(&["import", &good, "--name", "x"]);
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn gemma() {
    let place = Place::new();
    let mut imports = Imports::new(&place);
    let mut gemma = Bend::of(VALID);
    for (key, value) in &mut gemma.metadata {
        *key = key.replace("llama.", "gemma3.");
        if key == "general.architecture" {
            *value = slm_format::gguf::Value::Str("gemma3");
        }
    }
    let window =
        |n| gemma.clone().set("gemma3.attention.sliding_window", slm_format::gguf::Value::U32(n));
    imports.refused("window-of-0.gguf", &window(0).to_bytes());
    // The twin gets further: it has not the tensors that this architecture needs.
    imports.refused("window-of-64.gguf", &window(64).to_bytes());
    insta::assert_snapshot!(imports.finish());
}

/// The blob of a thing in the store, as a file.
pub(super) fn blob(place: &Place, kind: &str, name: &str) -> Vec<u8> {
    let record = std::fs::read(place.store().join("names").join(kind).join(name)).expect("a name");
    let record: Value = serde_json::from_slice(&record).expect("JSON");
    let hex = record["blob"].as_str().and_then(|blob| blob.strip_prefix("sha256:"));
    let path = place.store().join("blobs/sha256").join(hex.expect("a digest"));
    std::fs::read(path).expect("the blob")
}

/// A container written anew with its sections changed.
pub(super) fn rebuilt(
    file: &[u8],
    change: impl FnOnce(&mut Vec<(SectionKind, Vec<u8>)>),
) -> Vec<u8> {
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

/// A container with the bytes of one section changed.
pub(super) fn with_section(
    file: &[u8],
    kind: SectionKind,
    change: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    rebuilt(file, |sections| {
        let found = sections.iter_mut().find(|section| section.0 == kind).expect("a section");
        change(&mut found.1);
    })
}

#[test]
fn models_in_a_container() {
    let place = Place::new();
    place.write("mini.gguf", VALID);
    place.json(["import", "mini.gguf", "--name", "mini"]);
    let good = blob(&place, "base", "mini");
    assert_eq!(rebuilt(&good, |_| {}), good);
    let mut imports = Imports::new(&place);
    imports.accepted("good.slm", &good);
    let without = |kind| rebuilt(&good, |sections| sections.retain(|section| section.0 != kind));
    imports.refused("no-tokenizer.slm", &without(SectionKind::Tokenizer));
    imports.refused("no-config.slm", &without(SectionKind::Config));
    let longer = |kind| with_section(&good, kind, |bytes| bytes.push(0));
    imports.refused("longer-config.slm", &longer(SectionKind::Config));
    imports.refused("longer-tokenizer.slm", &longer(SectionKind::Tokenizer));
    // The first name of the configuration, which must come first in the alphabet.
    let config = with_section(&good, SectionKind::Config, |bytes| {
        let at = super::find(bytes, b"architecture");
        bytes[at] = b'z';
    });
    imports.refused("config-out-of-order.slm", &config);
    // A strip of another matrix than its hash is of: the container's own hashes are right.
    let tiny = Place::with_tiny();
    let file = blob(&tiny, "base", "tiny");
    let container = Container::open(&file, &LIMITS).expect("a container");
    let strip = container.tensors().iter().find(|t| t.layout == TensorLayout::Interleaved16);
    let strip = strip.expect("an interleaved tensor");
    let mut writer = ContainerWriter::new();
    for section in container.sections() {
        if section.kind() != SectionKind::BaseWeights {
            writer.section(section.kind(), section.bytes()).expect("a section");
        }
    }
    let mut data = strip.data.to_vec();
    let last = data.len() - 1;
    data[last] ^= 1;
    for tensor in container.tensors() {
        let bytes = if tensor.name == strip.name { data.as_slice() } else { tensor.data };
        writer.entry(&TensorEntry { data: bytes, ..tensor.clone() }).expect("a tensor");
    }
    let mut bent = Vec::new();
    writer.write_to(&mut bent).expect("written");
    imports.accepted("tiny.slm", &file);
    imports.refused("another-hash.slm", &bent);
    insta::assert_snapshot!(imports.finish());
}

/// A model whose source's metadata are not what GGUF's are: it runs, and is not written as GGUF.
#[test]
fn models_that_are_not_written_as_gguf() {
    let place = Place::new();
    place.write("mini.gguf", VALID);
    place.json(["import", "mini.gguf", "--name", "mini"]);
    let good = blob(&place, "base", "mini");
    let longer = with_section(&good, SectionKind::SourceMetadata, |bytes| bytes.push(0));
    let bare = rebuilt(&good, |s| s.retain(|s| s.0 != SectionKind::SourceMetadata));
    let mut transcript = Transcript::new(&place);
    transcript.accepted(&["export", "gguf", "mini", "out.gguf"]);
    for (name, bytes) in [("longer", longer), ("bare", bare)] {
        let file = place.write(&format!("{name}.slm"), bytes);
        place.json(["import", &file, "--name", name]);
        transcript.refused(3, &["export", "gguf", name, "out2.gguf"]);
    }
    copy_folder(&golden("tiny"), &place.path("tiny"));
    place.json(["import", "tiny", "--name", "folder"]);
    transcript.refused(3, &["export", "gguf", "folder", "out2.gguf"]);
    insta::assert_snapshot!(transcript.finish());
}
