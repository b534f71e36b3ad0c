//! The hostile corpus as a user meets it: refused with the code that names the fault, at once, in little memory, with nothing stored.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::{Place, finish, golden, slm, text};

/// (file, code). The corpus differs from `valid.gguf` in one thing each; `crates/slm-format/tests` says where it comes from.
const CASES: [(&str, &str); 34] = [
    ("gguf/align_i32.gguf", "gguf-alignment"),
    ("gguf/align_zero.gguf", "gguf-alignment"),
    ("gguf/big_endian.gguf", "gguf-big-endian"),
    ("gguf/block_count_huge.gguf", "config-n-layers"),
    ("gguf/bool_array_huge.gguf", "gguf-array-length"),
    ("gguf/dim_umax.gguf", "gguf-dims-overflow"),
    ("gguf/dims_product_wrap.gguf", "gguf-dims-overflow"),
    ("gguf/dup_tensor.gguf", "gguf-duplicate-tensor"),
    ("gguf/empty_key.gguf", "gguf-key-empty"),
    ("gguf/eos_out_of_range.gguf", "tokenizer-special-out-of-range"),
    ("gguf/header_only_23.gguf", "gguf-truncated-header"),
    ("gguf/key_len_u64max.gguf", "gguf-key-length"),
    ("gguf/lfs_pointer.gguf", "gguf-lfs-pointer"),
    ("gguf/n_dims_huge.gguf", "gguf-n-dims"),
    ("gguf/n_kv_u64max.gguf", "gguf-kv-count"),
    ("gguf/n_tensors_i32max.gguf", "gguf-tensor-count"),
    ("gguf/offset_unaligned.gguf", "gguf-offset-unaligned"),
    ("gguf/padded_sum_wrap.gguf", "gguf-tensor-out-of-bounds"),
    ("gguf/rope_zero.gguf", "config-rope"),
    ("gguf/shape_vs_config.gguf", "config-heads"),
    ("gguf/tail_cut.gguf", "gguf-tensor-out-of-bounds"),
    ("gguf/token_len_huge.gguf", "gguf-string-length"),
    ("gguf/unknown_kv_type.gguf", "gguf-value-type"),
    ("gguf/unknown_pre.gguf", "tokenizer-unknown-pre"),
    ("gguf/version_0.gguf", "gguf-version"),
    ("safetensors/empty.safetensors", "safetensors-empty"),
    ("safetensors/header_len_max.safetensors", "safetensors-header-length"),
    ("safetensors/metadata_not_string.safetensors", "safetensors-metadata"),
    ("safetensors/offsets_reversed.safetensors", "safetensors-offsets"),
    ("safetensors/overlap.safetensors", "safetensors-overlap"),
    ("safetensors/rubbish_after_json.safetensors", "safetensors-header-json"),
    ("safetensors/shape_mismatch.safetensors", "safetensors-shape"),
    ("safetensors/shape_wrap.safetensors", "safetensors-shape-overflow"),
    ("safetensors/short_8.safetensors", "safetensors-truncated"),
];

fn corpus(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../slm-format/tests/data/hostile").join(name)
}

fn corpus_arg(name: &str) -> String {
    corpus(name).to_str().expect("a UTF-8 path").to_owned()
}

#[test]
fn every_hostile_file_is_refused_by_its_name_and_leaves_nothing() {
    let listed = ["gguf", "safetensors"]
        .iter()
        .map(|folder| std::fs::read_dir(corpus(folder)).expect("the corpus").count())
        .sum::<usize>();
    assert_eq!(listed, CASES.len() + 1, "every file but valid.gguf has a case");
    let absent = Place::new();
    let place = Place::with_active();
    let before = place.snapshot();
    for (name, code) in CASES {
        let file = corpus_arg(name);
        // Without --name the file is still what is complained of.
        let commands: [&[&str]; 6] = [
            &["import", &file, "--name", "x"],
            &["import", &file],
            &["inspect", &file],
            &["run", "x", "--model", &file],
            &["logits", "--model", &file],
            &["tokenize", "--model", &file],
        ];
        for args in commands {
            let started = Instant::now();
            assert_eq!(absent.refused(args), (3, code.to_owned()), "{args:?}");
            assert!(
                started.elapsed() < Duration::from_secs(1),
                "{args:?}: {:?}",
                started.elapsed()
            );
        }
        assert_eq!(place.refused(["import", &file, "--name", "x"]), (3, code.to_owned()));
    }
    for (name, code) in CASES.iter().filter(|case| case.0.starts_with("safetensors")) {
        let file = corpus_arg(name);
        for args in [&["adapter", "import", &file][..], &["run", "x", "--adapter", &file]] {
            assert_eq!(place.refused(args), (3, (*code).to_owned()), "{args:?}");
        }
    }
    assert!(absent.snapshot().is_none(), "a refused import made a store");
    assert!(place.snapshot() == before, "a refused import changed the store");
}

/// The address space that a process may have is bounded from outside, so that a count which reserves memory cannot pass.
#[test]
#[cfg(target_os = "linux")]
fn no_hostile_file_reserves_memory() {
    let program = env!("CARGO_BIN_EXE_slm");
    let mut files: Vec<String> = CASES.iter().map(|case| corpus_arg(case.0)).collect();
    files.push(corpus_arg("gguf/valid.gguf"));
    for (n, file) in files.iter().enumerate() {
        // In KiB: 256 MiB are for code, the stack and the allocator's arenas. One thread, since each reserves addresses of its own.
        let script = "ulimit -v 262144; exec \"$@\"";
        let ran = finish(
            std::process::Command::new("sh")
                .args(["-c", script, "sh", program, "logits", "--tokens", "1", "--json"])
                .args(["--threads", "1", "--model", file]),
        );
        let expected = if n < CASES.len() { 3 } else { 0 };
        assert_eq!(ran.exit, expected, "{file}: {ran:?}");
    }
}

#[test]
fn the_valid_file_goes_the_whole_way() {
    let place = Place::new();
    let file = corpus_arg("gguf/valid.gguf");
    let imported = place.json(["import", &file, "--name", "mini"]);
    assert_eq!(text(&imported, "architecture"), "llama");
    let composed = place.json(["compose", "mini", "--base", "mini"]);
    assert_eq!(place.json(["activate", "mini"])["composition"], composed["composition"]);
    let ran = place.json(["run", "ab", "--max-tokens", "4", "--ignore-eos"]);
    assert_eq!(ran["composition"], composed["composition"]);
    assert_eq!(ran["tokens"].as_array().map(Vec::len), Some(4));
    // An adapter of another shape does not fit it.
    let before = place.snapshot();
    let args = ["adapter", "import", &golden("tiny-kjv"), "--name", "a", "--base", "mini"];
    let (exit, code) = place.refused(args);
    assert_eq!(exit, 3);
    assert!(["adapter-shape", "adapter-unknown-layer"].contains(&code.as_str()), "{code}");
    assert!(place.snapshot() == before);
}

#[test]
fn a_good_file_with_a_missing_option_stores_nothing() {
    let place = Place::new();
    let gguf = golden("tiny-q8_0.gguf");
    assert_eq!(place.refused(["import", &gguf]), (2, "option-missing".to_owned()));
    assert_eq!(place.refused(["import", &gguf, "--name", "a b"]), (2, "bad-name".to_owned()));
    let folder = golden("tiny-kjv");
    assert_eq!(place.refused(["adapter", "import", &folder]), (2, "option-missing".to_owned()));
    let args = ["adapter", "import", &folder, "--name", "kjv"];
    assert_eq!(place.refused(args), (2, "option-missing".to_owned()));
    assert!(place.snapshot().is_none());
    let args = ["adapter", "import", &folder, "--name", "kjv", "--base", "nothing"];
    assert_eq!(place.refused(args), (4, "not-found".to_owned()));
}

#[test]
fn files_of_no_format_are_refused() {
    let place = Place::new();
    for (name, content, code) in [
        ("empty", &b""[..], "unknown-format"),
        ("noise", &b"\x00\x01\x02\x03\x04\x05\x06\x07\x08"[..], "unknown-format"),
        ("short.slm", &b"\x53"[..], "unknown-format"),
        ("text.gguf", &b"hello"[..], "unknown-format"),
        ("m.toml", &b"= 1"[..], "manifest-syntax"),
        ("m.json", &b"[]"[..], "manifest-syntax"),
    ] {
        let file = place.write(name, content);
        assert_eq!(place.refused(["inspect", &file]), (3, code.to_owned()), "{name}");
        assert_eq!(place.refused(["import", &file]), (3, "unknown-format".to_owned()), "{name}");
        let adapter = place.refused(["adapter", "import", &file]);
        assert_eq!(adapter, (3, "unknown-format".to_owned()), "{name}");
    }
    // A folder without its parts says which is missing.
    copy_without(&place, "config.json");
    assert_eq!(place.refused(["import", &place.arg("part")]), (3, "file-missing".to_owned()));
    // One flipped byte of a .slm file, in its header, its index and its data.
    place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    let hex = place.json(["inspect", "tiny"]);
    let hex = text(&hex, "blob").strip_prefix("sha256:").expect("a digest").to_owned();
    let good = std::fs::read(place.store().join("blobs/sha256").join(hex)).expect("the blob");
    for at in [0, 9, good.len() / 2, good.len() - 1] {
        let mut bent = good.clone();
        bent[at] ^= 1;
        let file = place.write("bent.slm", &bent);
        for args in [&["inspect", &file][..], &["import", &file, "--name", "x"]] {
            assert_eq!(place.refused(args).0, 3, "byte {at}");
        }
    }
    let file = place.write("good.slm", &good);
    assert_eq!(finish(slm().args(["inspect", &file])).exit, 0);
}

fn copy_without(place: &Place, name: &str) {
    crate::common::copy_folder(&golden("tiny"), &place.path("part"));
    std::fs::remove_file(place.path("part").join(name)).expect("the file was there");
}
