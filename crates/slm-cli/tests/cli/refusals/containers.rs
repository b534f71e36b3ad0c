//! `.slm` files with one wrong field, all hashes over header and index made right again.

use slm_format::ContentHash;
use slm_format::Encoding;
use slm_format::container::layout::{header, section, tensor};
use slm_format::container::{Container, ContainerWriter, SectionKind};

use super::{LIMITS, with};
use crate::common::Place;
use crate::transcript::Transcript;

const NORM: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

/// A configuration, two adapters, and the tensors `token_embd.weight`, `norm` and `nf4`: a container, and no model.
fn sample() -> Vec<u8> {
    let mut writer = ContainerWriter::new();
    writer.section(SectionKind::Config, b"config".as_slice()).expect("a section");
    writer.section(SectionKind::Adapter, vec![7; 64]).expect("a section");
    writer.section(SectionKind::Adapter, vec![8; 65]).expect("a section");
    for (name, encoding, shape, data) in [
        ("token_embd.weight", Encoding::Q4_0, &[64, 2][..], &[0x5a; 72][..]),
        ("norm", Encoding::F32, &[3], &NORM),
        ("nf4", Encoding::NF4, &[64], &[0xc3; 36]),
    ] {
        writer.tensor(name, encoding, shape, data).expect("a tensor");
    }
    let mut out = Vec::new();
    writer.write_to(&mut out).expect("written");
    out
}

/// Makes the hash over header and index right again.
fn rehash(bytes: &mut [u8]) {
    let field = |at: u64| {
        let at = at as usize;
        u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")))
    };
    let end = header::SIZE
        + field(header::SECTION_COUNT) * section::SIZE
        + field(header::TENSOR_COUNT) * tensor::SIZE
        + field(header::NAMES_LENGTH);
    let Some(index) = bytes.get(header::SIZE as usize..end as usize) else { return };
    let hashed = [&bytes[..header::INDEX_BLAKE3 as usize], index].concat();
    let hash = ContentHash::of(&hashed).to_bytes();
    bytes[header::INDEX_BLAKE3 as usize..header::SIZE as usize].copy_from_slice(&hash);
}

const SECTION_0: u64 = header::SIZE;
const BASE: u64 = SECTION_0 + 3 * section::SIZE;
const TENSOR_0: u64 = SECTION_0 + 4 * section::SIZE;
const TENSOR_2: u64 = TENSOR_0 + 2 * tensor::SIZE;
const NAMES: u64 = TENSOR_0 + 3 * tensor::SIZE;

#[test]
fn one_wrong_field() {
    let place = Place::new();
    let mut transcript = Transcript::new(&place);
    let good = sample();
    // The container itself is sound: what refuses it is that the configuration is none.
    transcript.refused(3, &["import", &place.write("no-model.slm", &good), "--name", "x"]);
    let u32 = |v: u32| v.to_le_bytes().to_vec();
    let u64 = |v: u64| v.to_le_bytes().to_vec();
    for (file, at, bytes) in [
        ("version-1", header::VERSION, u32(1)),
        ("many-sections", header::SECTION_COUNT, u32(u32::MAX)),
        ("many-tensors", header::TENSOR_COUNT, u32(u32::MAX)),
        ("many-names", header::NAMES_LENGTH, u32(u32::MAX)),
        ("longer-file", header::FILE_LENGTH, u64(1 << 20)),
        ("section-kind-14", SECTION_0 + section::KIND, u32(14)),
        ("two-configs", BASE + section::KIND, u32(SectionKind::Config.number())),
        ("no-weights", BASE + section::KIND, u32(SectionKind::Manifest.number())),
        ("section-reserved", SECTION_0 + section::RESERVED, u32(1)),
        ("section-at-0", SECTION_0 + section::OFFSET, u64(0)),
        ("section-of-0", SECTION_0 + section::LENGTH, u64(0)),
        ("tensor-at-64", TENSOR_0 + tensor::OFFSET, u64(64)),
        ("tensor-of-71", TENSOR_0 + tensor::LENGTH, u64(71)),
        ("dimension-of-0", TENSOR_0 + tensor::SHAPE, u64(0)),
        ("name-of-0", TENSOR_0 + tensor::NAME_LENGTH, u32(0)),
        ("encoding-24", TENSOR_0 + tensor::ENCODING, 24u16.to_le_bytes().to_vec()),
        ("layout-2", TENSOR_0 + tensor::LAYOUT, 2u16.to_le_bytes().to_vec()),
        ("tensor-reserved", TENSOR_0 + tensor::RESERVED, u32(1)),
    ] {
        let mut bent = with(&good, at as usize, &bytes);
        rehash(&mut bent);
        let path = place.write(&format!("{file}.slm"), bent);
        transcript.refused(3, &["import", &path, "--name", "x"]);
    }
    // `norm` and `nf4` as `nor` and `nor`, in as many bytes.
    let mut twice = good.clone();
    let names = NAMES as usize + 17;
    twice[names..names + 7].copy_from_slice(b"nf4xnf4");
    let mut set = |at: u64, value: u32| {
        twice[at as usize..at as usize + 4].copy_from_slice(&value.to_le_bytes());
    };
    set(TENSOR_0 + tensor::NAME_LENGTH, 18);
    set(TENSOR_0 + tensor::SIZE + tensor::NAME_LENGTH, 3);
    twice[names..names + 7].copy_from_slice(b"xnf4nf4");
    set_len(&mut twice, TENSOR_2, 3);
    rehash(&mut twice);
    let path = place.write("two-of-one-name.slm", twice);
    transcript.refused(3, &["import", &path, "--name", "x"]);
    // Nothing hashed again.
    let container = Container::open(&good, &LIMITS).expect("a container");
    let config = container.sections()[0].offset() as usize;
    for (file, bytes) in [
        ("index-changed", with(&good, SECTION_0 as usize + 20, &[9])),
        ("padding", with(&good, config + 6, &[1])),
        ("cut-header", good[..40].to_vec()),
        ("cut-index", good[..200].to_vec()),
    ] {
        let path = place.write(&format!("{file}.slm"), bytes);
        transcript.refused(3, &["import", &path, "--name", "x"]);
    }
    insta::assert_snapshot!(transcript.finish());
}

fn set_len(bytes: &mut [u8], at: u64, value: u32) {
    let at = (at + tensor::NAME_LENGTH) as usize;
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn damaged_parts() {
    let place = Place::with_tiny();
    let mut transcript = Transcript::new(&place);
    let good = super::models::blob(&place, "base", "tiny");
    let container = Container::open(&good, &LIMITS).expect("a container");
    let offset = |kind| container.section(kind).expect("a section").offset() as usize;
    transcript.accepted(&["inspect", &place.write("good.slm", &good)]);
    for (file, at) in [
        ("config", offset(SectionKind::Config)),
        ("tokenizer", offset(SectionKind::Tokenizer) + 99),
        ("weights", offset(SectionKind::BaseWeights) + 1000),
    ] {
        let path = place.write(&format!("{file}-damaged.slm"), with(&good, at, &[good[at] ^ 1]));
        transcript.refused(3, &["import", &path, "--name", "x"]);
        transcript.refused(3, &["unpack", &path, "--name", "x"]);
    }
    insta::assert_snapshot!(transcript.finish());
}
