//! The hostile corpus: files that differ from `valid.gguf` in one thing, made by the project's own corpus writer from published
//! defects of other readers. Each must be refused with the code that names that thing, quickly and without memory.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use slm_format::gguf::Gguf;
use slm_format::{Coded, Limits};

/// (file, code; `None` where the bytes are a sound GGUF file and only the model in it is wrong)
const CASES: [(&str, Option<&str>); 26] = [
    ("valid.gguf", None),
    ("n_tensors_i32max.gguf", Some("gguf-tensor-count")),
    ("n_kv_u64max.gguf", Some("gguf-kv-count")),
    ("key_len_u64max.gguf", Some("gguf-key-length")),
    ("dims_product_wrap.gguf", Some("gguf-dims-overflow")),
    ("dim_umax.gguf", Some("gguf-dims-overflow")),
    ("padded_sum_wrap.gguf", Some("gguf-tensor-out-of-bounds")),
    ("align_zero.gguf", Some("gguf-alignment")),
    ("align_i32.gguf", Some("gguf-alignment")),
    ("empty_key.gguf", Some("gguf-key-empty")),
    ("dup_tensor.gguf", Some("gguf-duplicate-tensor")),
    ("n_dims_huge.gguf", Some("gguf-n-dims")),
    ("unknown_kv_type.gguf", Some("gguf-value-type")),
    ("offset_unaligned.gguf", Some("gguf-offset-unaligned")),
    ("tail_cut.gguf", Some("gguf-tensor-out-of-bounds")),
    ("version_0.gguf", Some("gguf-version")),
    ("big_endian.gguf", Some("gguf-big-endian")),
    ("token_len_huge.gguf", Some("gguf-string-length")),
    ("lfs_pointer.gguf", Some("gguf-lfs-pointer")),
    ("bool_array_huge.gguf", Some("gguf-array-length")),
    ("header_only_23.gguf", Some("gguf-truncated-header")),
    ("shape_vs_config.gguf", None),
    ("block_count_huge.gguf", None),
    ("rope_zero.gguf", None),
    ("eos_out_of_range.gguf", None),
    ("unknown_pre.gguf", None),
];

#[test]
fn every_file_has_its_code() {
    for (name, code) in CASES {
        let bytes = read(name);
        let start = Instant::now();
        let found = Gguf::parse(&bytes, &Limits::STANDARD).err();
        assert!(start.elapsed() < Duration::from_secs(1), "{name} took {:?}", start.elapsed());
        assert_eq!(found.as_ref().map(Coded::code), code, "{name}: {found:?}");
    }
}

#[test]
fn every_file_of_the_corpus_has_a_case() {
    let mut files: Vec<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut cases: Vec<_> = CASES.iter().map(|case| case.0.to_owned()).collect();
    files.sort();
    cases.sort();
    assert_eq!(files, cases);
}

/// Every prefix of the valid file is refused: no length is special.
#[test]
fn no_prefix_is_accepted() {
    let bytes = read("valid.gguf");
    let last = Gguf::parse(&bytes, &Limits::STANDARD).unwrap();
    let end = last.tensors().iter().map(|t| t.offset + t.data.len() as u64).max().unwrap();
    let end = usize::try_from(last.data_offset() + end).unwrap();
    // Everything up to the data, then a spread of lengths: each parse reads the whole list again.
    let dense = 0..usize::try_from(last.data_offset()).unwrap();
    for len in dense.chain((dense_end(&last)..end).step_by(97)).chain([end - 1]) {
        assert!(Gguf::parse(&bytes[..len], &Limits::STANDARD).is_err(), "{len} bytes");
    }
    assert!(Gguf::parse(&bytes[..end], &Limits::STANDARD).is_ok());
}

/// No single changed byte makes the reader panic or reach outside the file.
#[test]
fn no_changed_byte_is_a_panic() {
    let bytes = read("valid.gguf");
    let head =
        usize::try_from(Gguf::parse(&bytes, &Limits::STANDARD).unwrap().data_offset()).unwrap();
    for at in 0..head {
        for flip in [0x01, 0x80, 0xff] {
            let mut bent = bytes.clone();
            bent[at] ^= flip;
            if let Ok(model) = Gguf::parse(&bent, &Limits::STANDARD) {
                let total: usize = model.tensors().iter().map(|tensor| tensor.data.len()).sum();
                assert!(total <= bytes.len(), "byte {at}");
            }
        }
    }
}

fn dense_end(model: &Gguf<'_>) -> usize {
    usize::try_from(model.data_offset()).unwrap()
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/hostile/gguf"))
}

fn read(name: &str) -> Vec<u8> {
    fs::read(folder().join(name)).unwrap()
}
