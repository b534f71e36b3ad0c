//! Typed metadata, one bent field at a time, and writing what was read.

use slm_format::gguf::{
    Gguf, GgufError, GgufWriteError, RawMetadata, TensorHead, TensorSource, Value, write,
    write_raw, write_with,
};
use slm_format::{Coded, Encoding, Limits};

const VALID: &[u8] = include_bytes!("data/hostile/gguf/valid.gguf");

#[test]
fn typed_access_names_key_and_types() {
    let metadata = [
        ("small", Value::U8(7)),
        ("negative", Value::I32(-1)),
        ("wide", Value::U64(1 << 40)),
        ("float", Value::F32(0.5)),
        ("yes", Value::Bool(true)),
        ("text", Value::Str("é")),
        ("texts", Value::str_array(vec!["a", ""])),
        ("floats", Value::f32_array(&[1.0, -0.0])),
        ("ints", Value::i32_array(&[-3, 4])),
        ("uints", Value::u32_array(&[5, 6])),
        ("large uints", Value::u32_array(&[u32::MAX])),
    ];
    let file = written(&metadata, &[]);
    let model = Gguf::parse(&file, &Limits::STANDARD).unwrap();
    let found = model.metadata();

    assert_eq!(found.require_u32("small").unwrap(), 7);
    assert_eq!(found.require_i32("negative").unwrap(), -1);
    assert_eq!(found.require_u64("wide").unwrap(), 1 << 40);
    assert_eq!(found.require_f32("float").unwrap(), 0.5);
    assert!(found.require_bool("yes").unwrap());
    assert_eq!(found.require_str("text").unwrap(), "é");
    assert_eq!(found.require_str_array("texts").unwrap(), ["a", ""]);
    let floats = found.require_f32_array("floats").unwrap();
    assert_eq!(floats.iter().map(|f| f.to_bits()).collect::<Vec<_>>(), [0x3f80_0000, 0x8000_0000]);
    assert_eq!(found.require_i32_array("ints").unwrap(), [-3, 4]);
    assert_eq!(found.require_i32_array("uints").unwrap(), [5, 6]);
    assert_eq!(found.u32("absent").unwrap(), None);
    assert_eq!(found.iter().map(|entry| entry.0).next(), Some("small"));

    assert_eq!(found.require_u32("absent").unwrap_err().code(), "gguf-metadata-missing");
    assert_eq!(found.u32("negative").unwrap_err().code(), "gguf-metadata-range");
    assert_eq!(found.u32("wide").unwrap_err().code(), "gguf-metadata-range");
    assert_eq!(found.i32_array("large uints").unwrap_err().code(), "gguf-metadata-range");
    assert_eq!(
        found.str("floats").unwrap_err(),
        GgufError::WrongType {
            key: "floats".into(),
            expected: "a string",
            found: "an array of f32".into()
        }
    );
    let error = found.f32("small").unwrap_err();
    assert_eq!(error.code(), "gguf-metadata-type");
    assert_eq!(error.to_string(), "metadata small is a u8, expected an f32");
}

/// A file whose bytes are known by offset: one entry `k`, two F32 tensors `a` and `b` of 8 elements.
struct Plain(Vec<u8>);

impl Plain {
    const KEY_LEN: usize = 24;
    const KEY: usize = 32;
    const VALUE_TYPE: usize = 33;
    const VALUE: usize = 37;
    const TENSOR: usize = 38;
    /// Name length, name, number of dimensions, one dimension, type, offset.
    const TENSOR_BYTES: usize = 8 + 1 + 4 + 8 + 4 + 8;

    fn new() -> Plain {
        let data = [0u8; 32];
        let tensor =
            |name| TensorSource { name, shape: &[8], encoding: Encoding::F32, data: &data };
        Plain(written(&[("k", Value::Bool(true))], &[tensor("a"), tensor("b")]))
    }

    fn with(mut self, at: usize, bytes: &[u8]) -> Plain {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn code(&self) -> Option<&'static str> {
        Gguf::parse(&self.0, &Limits::STANDARD).err().map(|error| error.code())
    }
}

#[test]
fn one_bent_field_one_code() {
    let name = Plain::TENSOR + 8;
    let n_dims = name + 1;
    let dim = n_dims + 4;
    let ggml_type = dim + 8;
    let offset = ggml_type + 4;
    let second = Plain::TENSOR_BYTES;
    let cases: [(&str, usize, &[u8]); 20] = [
        ("gguf-magic", 0, b"GGML"),
        ("gguf-version", 4, &1u32.to_le_bytes()),
        ("gguf-version", 4, &4u32.to_le_bytes()),
        ("gguf-big-endian", 4, &[0, 0, 0, 3]),
        ("gguf-tensor-count", 8, &u64::MAX.to_le_bytes()),
        ("gguf-kv-count", 16, &u64::MAX.to_le_bytes()),
        ("gguf-key-empty", Plain::KEY_LEN, &0u64.to_le_bytes()),
        ("gguf-key-length", Plain::KEY_LEN, &u64::MAX.to_le_bytes()),
        ("gguf-key-utf8", Plain::KEY, &[0xff]),
        ("gguf-value-type", Plain::VALUE_TYPE, &13u32.to_le_bytes()),
        ("gguf-bool", Plain::VALUE, &[2]),
        ("gguf-tensor-name", Plain::TENSOR, &65u64.to_le_bytes()),
        ("gguf-tensor-name", name, &[0xff]),
        ("gguf-duplicate-tensor", name, b"b"),
        ("gguf-n-dims", n_dims, &0u32.to_le_bytes()),
        ("gguf-dims-zero", dim, &0u64.to_le_bytes()),
        ("gguf-dims-overflow", dim, &(1u64 << 63).to_le_bytes()),
        ("gguf-tensor-type", ggml_type, &24u32.to_le_bytes()),
        ("gguf-offset-unaligned", offset, &1u64.to_le_bytes()),
        ("gguf-overlap", offset + second, &0u64.to_le_bytes()),
    ];
    for (code, at, bytes) in cases {
        let twin = Plain::new();
        assert_eq!(twin.code(), None);
        let undo = twin.0[at..at + bytes.len()].to_vec();
        let bent = twin.with(at, bytes);
        assert_eq!(bent.code(), Some(code), "byte {at}");
        assert_eq!(bent.with(at, &undo).code(), None);
    }
    let out_of_bounds = Plain::new().with(offset + second, &64u64.to_le_bytes());
    assert_eq!(out_of_bounds.code(), Some("gguf-tensor-out-of-bounds"));
    let partial_block = Plain::new().with(ggml_type, &2u32.to_le_bytes());
    assert_eq!(partial_block.code(), Some("gguf-tensor-shape"));
}

#[test]
fn entries_that_a_writer_must_refuse_too() {
    let twice = [("k", Value::U8(1)), ("k", Value::U8(2))];
    let cases: [(&str, &[(&str, Value<'_>)]); 4] = [
        ("gguf-duplicate-key", &twice),
        ("gguf-key-empty", &[("", Value::U64(1))]),
        ("gguf-alignment", &[("general.alignment", Value::U32(48))]),
        ("gguf-alignment", &[("general.alignment", Value::U64(32))]),
    ];
    for (code, metadata) in cases {
        assert_eq!(write(&mut Vec::new(), metadata, &[]).unwrap_err().code(), code);
    }
    assert_eq!(write(&mut Vec::new(), &twice[..1], &[]).unwrap(), 64);
}

#[test]
fn tensors_that_a_writer_must_refuse() {
    let data = [0u8; 72];
    let tensor = |name, shape, encoding, len: usize| TensorSource {
        name,
        shape,
        encoding,
        data: &data[..len],
    };
    let long = "x".repeat(65);
    let cases = [
        ("gguf-write-name", tensor("", &[4], Encoding::F32, 16)),
        ("gguf-write-name", tensor(long.as_str(), &[4], Encoding::F32, 16)),
        ("gguf-write-encoding", tensor("a", &[64], Encoding::NF4, 36)),
        ("gguf-write-size", tensor("a", &[4], Encoding::F32, 15)),
        ("gguf-write-size", tensor("a", &[33], Encoding::Q4_0, 18)),
        ("gguf-write-size", tensor("a", &[], Encoding::F32, 4)),
        ("gguf-write-size", tensor("a", &[4, 0], Encoding::F32, 0)),
    ];
    for (code, tensor) in cases {
        let mut out = Vec::new();
        assert_eq!(write(&mut out, &[], &[tensor]).unwrap_err().code(), code, "{tensor:?}");
        assert!(out.is_empty(), "bytes were written before the check");
    }
    let good = tensor(&long[..64], &[4], Encoding::F32, 16);
    assert!(write(&mut Vec::new(), &[], &[good]).is_ok());
    assert_eq!(write(&mut Vec::new(), &[], &[good, good]).unwrap_err().code(), "gguf-write-name");
}

/// The layout of the reference writer is reproduced byte for byte: `valid.gguf` was written by other software.
#[test]
fn reading_and_writing_gives_the_same_file() {
    assert_eq!(rewritten(VALID), VALID);
    let data: Vec<u8> = (0..=255).collect();
    let tensors = [
        TensorSource { name: "a", shape: &[32, 2], encoding: Encoding::Q4_0, data: &data[..36] },
        TensorSource { name: "b", shape: &[3], encoding: Encoding::F16, data: &data[36..42] },
    ];
    for alignment in [1u32, 8, 64, 8192] {
        let metadata = [("general.alignment", Value::U32(alignment)), ("k", Value::F64(0.1))];
        let file = written(&metadata, &tensors);
        assert_eq!(rewritten(&file), file, "alignment {alignment}");
        let model = Gguf::parse(&file, &Limits::STANDARD).unwrap();
        assert_eq!(model.alignment(), u64::from(alignment));
        assert_eq!(model.tensors()[1].data, &data[36..42]);
        assert_eq!(model.tensors()[0].shape, [32, 2]);
    }
}

#[test]
fn metadata_alone_round_trips() {
    let model = Gguf::parse(VALID, &Limits::STANDARD).unwrap();
    let section = model.raw_metadata().to_bytes();
    let (raw, metadata) = RawMetadata::from_bytes(&section, &Limits::STANDARD).unwrap();
    assert_eq!(raw, model.raw_metadata());
    assert_eq!(&metadata, model.metadata());

    let longer = [section.as_slice(), &[0]].concat();
    let error = RawMetadata::from_bytes(&longer, &Limits::STANDARD).unwrap_err();
    assert_eq!(error.code(), "gguf-metadata-trailing");
    for len in 0..section.len() {
        assert!(RawMetadata::from_bytes(&section[..len], &Limits::STANDARD).is_err(), "{len}");
    }
}

#[test]
fn limits_are_the_callers() {
    let model = Gguf::parse(VALID, &Limits::STANDARD).unwrap();
    let tight = [
        Limits { max_tensors: model.tensors().len() as u64 - 1, ..Limits::STANDARD },
        Limits { max_metadata_entries: model.metadata().len() as u64 - 1, ..Limits::STANDARD },
        Limits { max_string_bytes: 4, ..Limits::STANDARD },
        Limits { max_array_len: 4, ..Limits::STANDARD },
        Limits { max_dims: 1, ..Limits::STANDARD },
    ];
    let codes = tight.map(|limits| Gguf::parse(VALID, &limits).unwrap_err().code());
    let expected = [
        "gguf-tensor-count",
        "gguf-kv-count",
        "gguf-string-length",
        "gguf-array-length",
        "gguf-n-dims",
    ];
    assert_eq!(codes, expected);
}

/// Bytes made as they are written are the file that bytes at hand give; too few or too many are refused.
#[test]
fn a_tensor_can_be_made_as_it_is_written() {
    let whole = written(
        &[("general.name", Value::Str("x"))],
        &[
            TensorSource { name: "a", shape: &[3], encoding: Encoding::F32, data: &[1; 12] },
            TensorSource { name: "b", shape: &[32], encoding: Encoding::Q8_0, data: &[2; 34] },
        ],
    );
    let model = Gguf::parse(&whole, &Limits::STANDARD).unwrap();
    let heads = [
        TensorHead { name: "a", shape: &[3], encoding: Encoding::F32 },
        TensorHead { name: "b", shape: &[32], encoding: Encoding::Q8_0 },
    ];
    let made = |sizes: [usize; 2]| {
        let mut out = Vec::new();
        let len = write_with(&mut out, &model.raw_metadata(), &heads, &mut |at, out| {
            // In pieces, as they come.
            (0..sizes[at]).try_for_each(|_| Ok(out.write_all(&[at as u8 + 1])?))
        })
        .map_err(|error: GgufWriteError| error.code())?;
        assert_eq!(len, out.len() as u64);
        Ok(out)
    };
    assert_eq!(made([12, 34]), Ok(whole.clone()));
    assert_eq!(made([11, 34]), Err("gguf-write-size"));
    assert_eq!(made([12, 35]), Err("gguf-write-size"));
}

fn written(metadata: &[(&str, Value<'_>)], tensors: &[TensorSource<'_>]) -> Vec<u8> {
    let mut file = Vec::new();
    let len = write(&mut file, metadata, tensors).unwrap();
    assert_eq!(len, file.len() as u64);
    file
}

fn rewritten(bytes: &[u8]) -> Vec<u8> {
    let model = Gguf::parse(bytes, &Limits::STANDARD).unwrap();
    let tensors: Vec<_> = model
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
    write_raw(&mut out, &model.raw_metadata(), &tensors).unwrap();
    out
}
