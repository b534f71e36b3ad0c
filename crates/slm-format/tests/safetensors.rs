//! safetensors: the hostile corpus, one bent header at a time, and writing what was read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use slm_format::safetensors::{
    Dtype, SafeTensors, SafeTensorsError, TensorHead, TensorSource, write, write_with,
};
use slm_format::{Coded, Encoding, Limits};

/// (file, code) for every file of the corpus, which the project's own corpus writer made from published defects of other readers.
const CASES: [(&str, &str); 9] = [
    ("empty.safetensors", "safetensors-empty"),
    ("header_len_max.safetensors", "safetensors-header-length"),
    ("metadata_not_string.safetensors", "safetensors-metadata"),
    ("offsets_reversed.safetensors", "safetensors-offsets"),
    ("overlap.safetensors", "safetensors-overlap"),
    ("rubbish_after_json.safetensors", "safetensors-header-json"),
    ("shape_mismatch.safetensors", "safetensors-shape"),
    ("shape_wrap.safetensors", "safetensors-shape-overflow"),
    ("short_8.safetensors", "safetensors-truncated"),
];

#[test]
fn every_hostile_file_has_its_code() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/hostile/safetensors"));
    for (name, code) in CASES {
        let bytes = fs::read(folder.join(name)).unwrap();
        assert_eq!(refusal(&bytes).map(|error| error.code()), Some(code), "{name}");
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), CASES.len());
}

/// Each header differs from the accepted one in one thing. The data are always 12 bytes.
#[test]
fn one_bent_field_one_code() {
    let good = r#"{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}}"#;
    assert!(refusal(&file(good)).is_none());
    let cases = [
        ("safetensors-metadata", r#"{"k":"v"}"#, r#"{"k":1}"#),
        ("safetensors-metadata", r#"{"k":"v"}"#, r#"["k"]"#),
        ("safetensors-duplicate-key", r#""k":"v""#, r#""k":"v","k":"w""#),
        ("safetensors-duplicate-key", r#""a":{"#, r#""__metadata__":{},"a":{"#),
        ("safetensors-duplicate-tensor", r#""b":{"#, r#""a":{"#),
        ("safetensors-dtype", r#""BF16""#, r#""Q4_0""#),
        ("safetensors-info", r#""shape":[2]"#, r#""shape":[-2]"#),
        ("safetensors-info", r#""shape":[2]"#, r#""shape":[2],"x":1"#),
        ("safetensors-info", r#""dtype":"F32","#, ""),
        ("safetensors-info", r#""shape":[2]"#, r#""shape":[2],"shape":[2]"#),
        ("safetensors-info", "[0,8]", "[0]"),
        ("safetensors-n-dims", "[2]", "[2,1,1,1,1]"),
        ("safetensors-n-dims", "[2]", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]"),
        ("safetensors-shape", "[2]", "[3]"),
        ("safetensors-shape-overflow", "[2]", "[9223372036854775808,2]"),
        ("safetensors-offsets", "[0,8]", "[8,0]"),
        ("safetensors-overlap", "[8,12]", "[4,8]"),
        ("safetensors-truncated", "[8,12]", "[12,16]"),
        ("safetensors-truncated", "[8,12]", "[18446744073709551608,18446744073709551612]"),
        ("safetensors-header-json", r#"{"__m"#, r#" {"__m"#),
        ("safetensors-header-json", r#"[8,12]}}"#, r#"[8,12]}"#),
        ("safetensors-header-json", r#"[8,12]}}"#, r#"[8,12]}}}"#),
    ];
    for (code, from, to) in cases {
        assert!(good.contains(from), "{from}");
        let bent = good.replacen(from, to, 1);
        let error = refusal(&file(&bent));
        assert_eq!(error.as_ref().map(Coded::code), Some(code), "{bent}: {error:?}");
    }
    let gap = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#;
    assert_eq!(refusal(&file(gap)).unwrap().code(), "safetensors-gap");
    assert_eq!(refusal(&file("{}")).unwrap().code(), "safetensors-trailing");
    assert_eq!(
        refusal(b"version https://git-lfs.github.com/spec/v1\n").unwrap().code(),
        "safetensors-lfs-pointer"
    );
}

#[test]
fn every_shorter_and_longer_file_is_refused() {
    let bytes = sample();
    for len in 0..bytes.len() {
        assert!(refusal(&bytes[..len]).is_some(), "{len} bytes");
    }
    assert!(refusal(&bytes).is_none());
    assert_eq!(refusal(&[&bytes[..], &[0]].concat()).unwrap().code(), "safetensors-trailing");
}

/// No changed byte makes the reader panic, and whatever it then accepts the format's own library accepts too.
#[test]
fn no_changed_byte_is_a_panic() {
    let bytes = sample();
    for at in 0..bytes.len() {
        for flip in 1..=255 {
            let mut bent = bytes.clone();
            bent[at] ^= flip;
            if refusal(&bent).is_none() {
                assert!(safetensors::SafeTensors::deserialize(&bent).is_ok(), "{at} ^ {flip:#x}");
            }
        }
    }
}

#[test]
fn limits_are_the_callers() {
    let bytes = sample();
    let tight = [
        Limits { max_header_bytes: 8, ..Limits::STANDARD },
        Limits { max_tensors: 2, ..Limits::STANDARD },
        Limits { max_metadata_entries: 1, ..Limits::STANDARD },
        Limits { max_dims: 1, ..Limits::STANDARD },
    ];
    let codes = tight.map(|limits| SafeTensors::parse(&bytes, &limits).unwrap_err().code());
    assert_eq!(
        codes,
        [
            "safetensors-header-length",
            "safetensors-count",
            "safetensors-count",
            "safetensors-n-dims"
        ]
    );
}

#[test]
fn written_files_read_back_and_do_not_depend_on_order() {
    let bytes = sample();
    let read = SafeTensors::parse(&bytes, &Limits::STANDARD).unwrap();
    let names: Vec<_> = read.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["a \"quoted\" é", "b", "scalar"]);
    assert_eq!(read.metadata()["format"], "pt");
    let b = read.get("b").unwrap();
    assert_eq!((b.dtype, b.shape.as_slice(), b.data), (Dtype::F32, [2, 1].as_slice(), &DATA[..8]));
    assert_eq!(b.dtype.encoding(), Some(Encoding::F32));
    assert!(read.get("c").is_none());

    // The library that defines the format reads the same.
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for tensor in read.tensors() {
        let view = theirs.tensor(&tensor.name).unwrap();
        assert_eq!(view.data(), tensor.data);
        assert_eq!(view.dtype().to_string(), tensor.dtype.name());
    }

    let mut turned = sources();
    turned.reverse();
    let mut again = Vec::new();
    write(&mut again, &turned, &metadata()).unwrap();
    assert_eq!(again, bytes);
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(header_len.is_multiple_of(8));
}

#[test]
fn a_writer_refuses_what_a_reader_would() {
    let [a, b, _] = sources();
    let code = |tensors: &[TensorSource<'_>]| {
        let mut out = Vec::new();
        let result = write(&mut out, tensors, &BTreeMap::new());
        assert!(result.is_ok() || out.is_empty(), "bytes were written before the check");
        result.err().map(|error| error.code())
    };
    assert_eq!(code(&[a, b]), None);
    assert_eq!(code(&[a, a]), Some("safetensors-duplicate-tensor"));
    assert_eq!(code(&[TensorSource { data: &DATA[..3], ..a }]), Some("safetensors-shape"));
    assert_eq!(
        code(&[TensorSource { shape: &[u64::MAX, 2], ..a }]),
        Some("safetensors-shape-overflow")
    );
    assert_eq!(
        code(&[TensorSource { name: "__metadata__", ..a }]),
        Some("safetensors-duplicate-tensor")
    );
}

/// Bytes made as they are written are the file that bytes at hand give; too few or too many are refused.
#[test]
fn a_tensor_can_be_made_as_it_is_written() {
    let tensors = sources();
    let heads =
        tensors.map(|TensorSource { name, dtype, shape, .. }| TensorHead { name, dtype, shape });
    let made = |more: usize| {
        let mut out = Vec::new();
        let len = write_with(&mut out, &heads, &metadata(), &mut |at, out| {
            out.write_all(tensors[at].data)?;
            Ok(out.write_all(&DATA[..more])?)
        })
        .map_err(|error: SafeTensorsError| error.code())?;
        assert_eq!(len, out.len() as u64);
        Ok(out)
    };
    assert_eq!(made(0), Ok(sample()));
    assert_eq!(made(1), Err("safetensors-shape"));
}

const DATA: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

fn sources() -> [TensorSource<'static>; 3] {
    [
        TensorSource { name: "a \"quoted\" é", dtype: Dtype::F16, shape: &[3], data: &DATA[..6] },
        TensorSource { name: "b", dtype: Dtype::F32, shape: &[2, 1], data: &DATA[..8] },
        TensorSource { name: "scalar", dtype: Dtype::BF16, shape: &[], data: &DATA[..2] },
    ]
}

fn metadata() -> BTreeMap<String, String> {
    [("format", "pt"), ("q\"", "\n")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
}

fn sample() -> Vec<u8> {
    let mut bytes = Vec::new();
    let len = write(&mut bytes, &sources(), &metadata()).unwrap();
    assert_eq!(len, bytes.len() as u64);
    bytes
}

fn file(header: &str) -> Vec<u8> {
    let len = (header.len() as u64).to_le_bytes();
    [len.as_slice(), header.as_bytes(), &[0; 12]].concat()
}

fn refusal(bytes: &[u8]) -> Option<SafeTensorsError> {
    SafeTensors::parse(bytes, &Limits::STANDARD).err()
}
