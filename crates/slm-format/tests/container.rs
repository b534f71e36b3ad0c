//! The `.slm` container: what is written is read; every bent field has its code and an accepted twin; no damage passes.

use slm_format::container::layout::{self, FIELDS, header, section, tensor};
use slm_format::container::{Container, ContainerError, ContainerWriter, Index, SectionKind};
use slm_format::{Coded, ContentHash, Digest, Encoding, Limits};

const NORM: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
const EMBED: [u8; 72] = [0x5a; 72];
const NF4: [u8; 36] = [0xc3; 36];

#[test]
fn what_is_written_is_read() {
    let bytes = sample();
    let container = Container::open(&bytes, &Limits::STANDARD).unwrap();
    container.verify_all().unwrap();

    let kinds: Vec<_> = container.sections().iter().map(|section| section.kind()).collect();
    let expected =
        [SectionKind::Config, SectionKind::Adapter, SectionKind::Adapter, SectionKind::BaseWeights];
    assert_eq!(kinds, expected);
    let config = container.section(SectionKind::Config).unwrap();
    assert_eq!(config.bytes(), b"config");
    assert_eq!(config.sha256(), Digest::of(b"config"));
    assert_eq!(config.content(), ContentHash::of(b"config"));
    let adapters: Vec<_> = container.sections_of(SectionKind::Adapter).map(|s| s.bytes()).collect();
    assert_eq!(adapters, [&[7u8; 64][..], &[8u8; 65][..]]);
    assert!(container.section(SectionKind::Tokenizer).is_none());

    let names: Vec<_> = container.tensors().iter().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["token_embd.weight", "é", "nf4"]);
    let embed = container.tensor("token_embd.weight").unwrap();
    assert_eq!((embed.encoding, embed.shape.as_slice()), (Encoding::Q4_0, [64, 2].as_slice()));
    assert_eq!(embed.data, EMBED);
    assert_eq!(embed.content, ContentHash::of(&EMBED));
    assert_eq!(container.tensor("é").unwrap().data, NORM);
    assert_eq!(container.tensor("nf4").unwrap().encoding, Encoding::NF4);
    for at in 0..3 {
        let range = container.index().tensor_range(at);
        assert!(range.start.is_multiple_of(64));
        let range = range.start as usize..range.end as usize;
        assert_eq!(&bytes[range], container.tensors()[at].data);
    }
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    assert_eq!(sample(), sample());
    let mut out = Vec::new();
    let written = writer().write_to(&mut out).unwrap();
    assert_eq!((written.file_length, written.digest), (out.len() as u64, Digest::of(&out)));
}

/// The bytes themselves are pinned: a change of the layout is a change of the version.
#[test]
fn version_0_has_these_bytes() {
    // Computed by a Python script written from docs/format.md alone (struct, hashlib and the blake3 package), not by this crate.
    let bytes = sample();
    assert_eq!(&bytes[..8], b"\x89SLM\r\n\x1a\n");
    assert_eq!(bytes[8..24], [0, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 22, 0, 0, 0]);
    assert_eq!(Digest::of(&bytes).to_string(), PINNED);
}

const PINNED: &str = "sha256:222cd5d8e7a529c45b21b0f078994efbda2014c0f7f6fe86bf152c39e2630889";

#[test]
fn header_and_index_are_enough() {
    let bytes = sample();
    let needed = Index::prefix_length(&bytes[..64], &Limits::STANDARD).unwrap();
    let prefix = &bytes[..needed as usize];
    let index = Index::parse(prefix, &Limits::STANDARD).unwrap();
    assert_eq!((index.length(), index.file_length()), (needed, bytes.len() as u64));
    let at = index.position("é").unwrap();
    let range = index.tensor_range(at);
    let fetched = &bytes[range.start as usize..range.end as usize];
    index.tensors()[at].verify(fetched).unwrap();
    assert_eq!(index.tensors()[at].verify(&fetched[1..]).unwrap_err().code(), "slm-tensor-hash");

    let config = index.sections()[0];
    let fetched = &bytes[config.offset as usize..(config.offset + config.length) as usize];
    config.verify(fetched).unwrap();
    assert_eq!(config.verify(b"konfig").unwrap_err().code(), "slm-section-hash");

    for len in 0..prefix.len() {
        let code = Index::parse(&prefix[..len], &Limits::STANDARD).unwrap_err().code();
        assert_eq!(code, "slm-truncated", "{len} bytes");
    }
}

/// Where the fields of the sample are.
const SECTION_0: u64 = header::SIZE;
const BASE: u64 = SECTION_0 + 3 * section::SIZE;
const TENSOR_0: u64 = SECTION_0 + 4 * section::SIZE;
const TENSOR_1: u64 = TENSOR_0 + tensor::SIZE;
const NAMES: u64 = TENSOR_0 + 3 * tensor::SIZE;

#[test]
fn one_bent_field_one_code() {
    let u16 = |v: u16| v.to_le_bytes().to_vec();
    let u32 = |v: u32| v.to_le_bytes().to_vec();
    let u64 = |v: u64| v.to_le_bytes().to_vec();
    let cases = [
        ("slm-magic", header::MAGIC, b"\x89SLM\n\x1a\n\0".to_vec()),
        ("slm-version", header::VERSION, u32(1)),
        ("slm-section-count", header::SECTION_COUNT, u32(u32::MAX)),
        ("slm-tensor-count", header::TENSOR_COUNT, u32(u32::MAX)),
        ("slm-names-length", header::NAMES_LENGTH, u32(u32::MAX)),
        ("slm-file-length", header::FILE_LENGTH, u64(1 << 20)),
        ("slm-section-kind", SECTION_0 + section::KIND, u32(0)),
        ("slm-section-kind", SECTION_0 + section::KIND, u32(14)),
        ("slm-duplicate-section", BASE + section::KIND, u32(SectionKind::Config.number())),
        ("slm-base-weights", BASE + section::KIND, u32(SectionKind::Manifest.number())),
        ("slm-section-reserved", SECTION_0 + section::RESERVED, u32(1)),
        ("slm-section-offset", SECTION_0 + section::OFFSET, u64(0)),
        ("slm-section-offset", BASE + section::OFFSET, u64(u64::MAX)),
        ("slm-section-length", SECTION_0 + section::LENGTH, u64(0)),
        ("slm-section-length", SECTION_0 + section::LENGTH, u64(u64::MAX)),
        ("slm-section-length", BASE + section::LENGTH, u64(1 << 20)),
        ("slm-tensor-offset", TENSOR_0 + tensor::OFFSET, u64(64)),
        ("slm-tensor-offset", TENSOR_1 + tensor::OFFSET, u64(0)),
        ("slm-tensor-length", TENSOR_0 + tensor::LENGTH, u64(71)),
        ("slm-tensor-dims", TENSOR_0 + tensor::SHAPE, u64(0)),
        ("slm-tensor-dims", TENSOR_0 + tensor::SHAPE + 16, u64(1)),
        ("slm-tensor-dims", TENSOR_0 + tensor::N_DIMS, u32(1)),
        ("slm-tensor-dims", TENSOR_0 + tensor::N_DIMS, u32(3)),
        ("slm-tensor-dims", TENSOR_0 + tensor::N_DIMS, u32(0)),
        ("slm-tensor-dims", TENSOR_0 + tensor::N_DIMS, u32(5)),
        ("slm-tensor-length", TENSOR_0 + tensor::SHAPE, u64(65)),
        ("slm-tensor-length", TENSOR_0 + tensor::SHAPE + 8, u64(u64::MAX)),
        ("slm-tensor-name", TENSOR_0 + tensor::NAME_LENGTH, u32(0)),
        ("slm-names-length", TENSOR_0 + tensor::NAME_LENGTH, u32(400)),
        ("slm-names-length", TENSOR_0 + 2 * tensor::SIZE + tensor::NAME_LENGTH, u32(2)),
        ("slm-tensor-name", NAMES, vec![0xff]),
        ("slm-duplicate-tensor", NAMES + 17, b"nf4nf".to_vec()),
        ("slm-tensor-encoding", TENSOR_0 + tensor::ENCODING, u16(24)),
        ("slm-tensor-encoding", TENSOR_0 + tensor::ENCODING, u16(257)),
        ("slm-tensor-layout", TENSOR_0 + tensor::LAYOUT, u16(2)),
        ("slm-tensor-reserved", TENSOR_0 + tensor::RESERVED, u32(1)),
    ];
    for (code, at, bytes) in cases {
        let mut bent = sample();
        let at = at as usize;
        bent[at..at + bytes.len()].copy_from_slice(&bytes);
        if code == "slm-duplicate-tensor" {
            // The second name takes three letters of the five, so the third is the same.
            set_u32(&mut bent, TENSOR_1 + tensor::NAME_LENGTH, 3);
            set_u32(&mut bent, header::NAMES_LENGTH, 23);
            bent.splice((NAMES + 17) as usize..(NAMES + 22) as usize, *b"nf4nf4");
            // One padding byte less, so that everything behind stays where it is.
            bent.remove((NAMES + 23) as usize);
        }
        rehash(&mut bent);
        let found = Container::open(&bent, &Limits::STANDARD).err();
        assert_eq!(found.as_ref().map(Coded::code), Some(code), "byte {at}: {found:?}");
    }
    // The twin of them all: the same bytes, hashed the same way, nothing bent.
    let mut twin = sample();
    rehash(&mut twin);
    assert!(Container::open(&twin, &Limits::STANDARD).is_ok());
    assert_eq!(twin, sample());
}

/// A liar that gets every BLAKE3 right and one sha256 wrong.
#[test]
fn a_section_must_be_the_blob_it_names() {
    let mut bytes = sample();
    bytes[(SECTION_0 + section::SHA256) as usize] ^= 1;
    rehash(&mut bytes);
    let container = Container::open(&bytes, &Limits::STANDARD).unwrap();
    let error = container.verify_all().unwrap_err();
    assert!(matches!(error, ContainerError::SectionDigest { kind: SectionKind::Config, .. }));
    assert_eq!(error.code(), "slm-section-hash");
}

#[test]
fn no_flipped_byte_passes() {
    let bytes = sample();
    let prefix = Index::prefix_length(&bytes, &Limits::STANDARD).unwrap() as usize;
    let payloads: Vec<_> = Container::open(&bytes, &Limits::STANDARD)
        .unwrap()
        .sections()
        .iter()
        .map(|section| section.offset() as usize..section.offset() as usize + section.bytes().len())
        .collect();
    for at in 0..bytes.len() {
        for flip in (0..8).map(|bit| 1u8 << bit).chain([0xff]) {
            let mut bent = bytes.clone();
            bent[at] ^= flip;
            let outcome = Container::open(&bent, &Limits::STANDARD)
                .and_then(|container| container.verify_all().map(|()| "accepted"));
            let code = outcome.err().map(|error| error.code());
            let in_payload = payloads.iter().any(|range| range.contains(&at));
            match code {
                None => panic!("byte {at} ^ {flip:#x} passed"),
                Some("slm-tensor-hash" | "slm-section-hash") => assert!(in_payload, "byte {at}"),
                Some("slm-padding") => assert!(at >= prefix, "byte {at}"),
                Some(_) => assert!(at < prefix, "byte {at}: {code:?}"),
            }
        }
    }
}

#[test]
fn no_other_length_passes() {
    let bytes = sample();
    for len in 0..bytes.len() {
        assert!(Container::open(&bytes[..len], &Limits::STANDARD).is_err(), "{len} bytes");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    let error = Container::open(&longer, &Limits::STANDARD).unwrap_err();
    assert_eq!(error.code(), "slm-file-length");
}

#[test]
fn limits_are_the_callers() {
    let bytes = sample();
    let tight = [
        Limits { max_metadata_entries: 3, ..Limits::STANDARD },
        Limits { max_tensors: 2, ..Limits::STANDARD },
        Limits { max_header_bytes: 21, ..Limits::STANDARD },
        Limits { max_string_bytes: 16, ..Limits::STANDARD },
    ];
    let codes = tight.map(|limits| Container::open(&bytes, &limits).unwrap_err().code());
    let expected = ["slm-section-count", "slm-tensor-count", "slm-names-length", "slm-tensor-name"];
    assert_eq!(codes, expected);
}

#[test]
fn a_writer_refuses_what_a_reader_would() {
    let mut writer = ContainerWriter::new();
    writer.section(SectionKind::Config, b"c".as_slice()).unwrap();
    for (kind, bytes) in [
        (SectionKind::Config, &b"second"[..]),
        (SectionKind::Adapter, b""),
        (SectionKind::BaseWeights, b"weights"),
    ] {
        assert_eq!(writer.section(kind, bytes).unwrap_err().code(), "slm-write-section");
    }
    writer.tensor("a", Encoding::F32, &[3], NORM.as_slice()).unwrap();
    let cases: [(&str, &[u64], &[u8]); 6] = [
        ("a", &[3], &NORM),
        ("", &[3], &NORM),
        ("b", &[4], &NORM),
        ("b", &[], &NORM[..4]),
        ("b", &[3, 0], &[]),
        ("b", &[1, 1, 1, 1, 3], &NORM),
    ];
    for (name, shape, data) in cases {
        let error = writer.tensor(name, Encoding::F32, shape, data).unwrap_err();
        assert_eq!(error.code(), "slm-write-tensor", "{name} {shape:?}");
    }
    let mut out = Vec::new();
    writer.write_to(&mut out).unwrap();
    let container = Container::open(&out, &Limits::STANDARD).unwrap();
    assert_eq!((container.sections().len(), container.tensors().len()), (2, 1));
}

#[test]
fn an_empty_container_is_a_header() {
    let mut out = Vec::new();
    ContainerWriter::new().write_to(&mut out).unwrap();
    assert_eq!(out.len(), 64);
    assert!(Container::open(&out, &Limits::STANDARD).unwrap().sections().is_empty());
}

/// Each structure's fields follow one another without a hole, and every code reads back.
#[test]
fn the_byte_map_has_no_holes() {
    for (structure, size) in
        [("header", header::SIZE), ("section", section::SIZE), ("tensor", tensor::SIZE)]
    {
        let mut end = 0;
        for (_, field, offset, len) in FIELDS.iter().filter(|row| row.0 == structure) {
            assert_eq!(*offset, end, "{structure} {field}");
            end += len;
        }
        assert_eq!(end, size, "{structure}");
    }
    for encoding in Encoding::all() {
        let code = layout::encoding_code(encoding);
        assert_eq!(layout::encoding_from_code(code), Some(encoding));
    }
    for kind in SectionKind::all() {
        assert_eq!(SectionKind::from_number(kind.number()), Some(kind));
    }
}

/// GGUF to container and back: the same file.
#[test]
fn gguf_survives_the_container() {
    use slm_format::gguf::{Gguf, RawMetadata, TensorSource, write_raw};
    let source: &[u8] = include_bytes!("data/hostile/gguf/valid.gguf");
    let model = Gguf::parse(source, &Limits::STANDARD).unwrap();
    let mut writer = ContainerWriter::new();
    writer.section(SectionKind::SourceMetadata, model.raw_metadata().to_bytes()).unwrap();
    for tensor in model.tensors() {
        writer.tensor(tensor.name, tensor.encoding, &tensor.shape, tensor.data).unwrap();
    }
    let mut file = Vec::new();
    writer.write_to(&mut file).unwrap();

    let container = Container::open(&file, &Limits::STANDARD).unwrap();
    container.verify_all().unwrap();
    let section = container.section(SectionKind::SourceMetadata).unwrap().bytes();
    let (metadata, _) = RawMetadata::from_bytes(section, &Limits::STANDARD).unwrap();
    let tensors: Vec<_> = container
        .tensors()
        .iter()
        .map(|tensor| TensorSource {
            name: tensor.name,
            shape: &tensor.shape,
            encoding: tensor.encoding,
            data: tensor.data,
        })
        .collect();
    let mut out = Vec::new();
    write_raw(&mut out, &metadata, &tensors).unwrap();
    assert_eq!(out, source);
}

fn writer() -> ContainerWriter<'static> {
    let mut writer = ContainerWriter::new();
    writer.section(SectionKind::Config, b"config".as_slice()).unwrap();
    writer.section(SectionKind::Adapter, vec![7; 64]).unwrap();
    writer.section(SectionKind::Adapter, vec![8; 65]).unwrap();
    writer.tensor("token_embd.weight", Encoding::Q4_0, &[64, 2], EMBED.as_slice()).unwrap();
    writer.tensor("é", Encoding::F32, &[3], NORM.as_slice()).unwrap();
    writer.tensor("nf4", Encoding::NF4, &[64], NF4.as_slice()).unwrap();
    writer
}

fn sample() -> Vec<u8> {
    let mut out = Vec::new();
    writer().write_to(&mut out).unwrap();
    out
}

fn set_u32(bytes: &mut [u8], at: u64, value: u32) {
    let at = at as usize;
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Makes the hash over header and index right again, where the counts are small enough to have an index.
fn rehash(bytes: &mut [u8]) {
    let field = |at: u64| {
        let at = at as usize;
        u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()))
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

/// An interleaved tensor keeps its layout and the hash its writer gave; its bytes are covered by the section's hashes. Its twin in ggml order is
/// verified by its own hash, and an encoding without such a layout is refused.
#[test]
fn interleaved_rows_are_held_as_they_stand() {
    use slm_format::ContentHash;
    use slm_format::container::TensorLayout;

    let data: Vec<u8> = (0..16 * 18).map(|i| i as u8).collect();
    let content = ContentHash::of(b"the bytes in ggml order");
    let file = |encoding: Encoding, interleaved: bool, shape: [u64; 2]| {
        let mut writer = ContainerWriter::new();
        let added = match interleaved {
            true => writer.interleaved_tensor("w", encoding, &shape, content, data.as_slice()),
            false => writer.tensor("w", encoding, &shape, data.as_slice()),
        };
        added.map_err(|error| error.code())?;
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).unwrap();
        Ok::<_, &str>(bytes)
    };
    let (strips, rows) = (
        file(Encoding::Q4_0, true, [32, 16]).unwrap(),
        file(Encoding::Q4_0, false, [32, 16]).unwrap(),
    );
    for (bytes, layout) in [(&strips, TensorLayout::Interleaved16), (&rows, TensorLayout::Rows)] {
        let container = Container::open(bytes, &Limits::STANDARD).unwrap();
        container.verify_all().unwrap();
        let tensor = &container.tensors()[0];
        assert_eq!((tensor.layout, tensor.data), (layout, data.as_slice()));
        assert_eq!(tensor.content == content, layout == TensorLayout::Interleaved16);
        let mut bent = bytes.clone();
        *bent.last_mut().unwrap() ^= 1;
        assert!(Container::open(&bent, &Limits::STANDARD).unwrap().verify_all().is_err());
    }
    assert_eq!(file(Encoding::F32, true, [8, 9]), Err("slm-write-tensor"));
    assert!(file(Encoding::F32, false, [8, 9]).is_ok());
}
