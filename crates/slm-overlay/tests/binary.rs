//! The two binary LoRA formats: known answers, hostile files, round trips.

mod common;

use common::{read, tiny};
use slm_format::{Coded, ContentHash, ErrorClass, Limits};
use slm_overlay::binary::{BinaryError, BinaryFormat, Compact, Layout, LoraAdapter, to_plan008};
use slm_overlay::{Adapter, Factor, LoraModule};

const LIMITS: Limits = Limits::STANDARD;

/// Rank 1, alpha 2, A = [1, 2], B = [3, 4, 5]: written by the crate katgpt-types 0.2.0.
const PLAN008: &str = "4c4f524101000000d507ad886a49f7ccd7fe7c98460fd97ecf9192a3c1dcb51db1276303566c5d5c01000000010000000000004002000000030000000000803f0000004000004040000080400000a040";
/// Rank 1, one layer, target v, A = [1, 2], B = [1, 2, 3]: accepted by the same crate.
const COMPACT: &str = "4c4f5241010100010001000200010002000000803f00000040030001000000803f0000004000004040fb5127608ab4d2166055187cbf59e8ac4a5535c8b5a670b4f36ab1cfa793dcd6";

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// What `y += (alpha / rank) * B(A x)` gives from zero.
fn apply(adapter: &LoraAdapter, x: &[f32]) -> Vec<f32> {
    let z: Vec<f32> = adapter
        .a
        .chunks_exact(adapter.in_dim)
        .map(|row| row.iter().zip(x).map(|(a, x)| a * x).sum())
        .collect();
    let scale = adapter.scale().unwrap();
    let rows = adapter.b.chunks_exact(adapter.rank);
    rows.map(|row| scale * row.iter().zip(&z).map(|(b, z)| b * z).sum::<f32>()).collect()
}

fn pair(rank: usize, in_dim: usize, out_dim: usize, alpha: f32) -> LoraAdapter {
    let values = |n: usize| (0..n).map(|i| i as f32 * 0.25 - 1.0).collect();
    LoraAdapter {
        rank,
        in_dim,
        out_dim,
        a: values(rank * in_dim),
        b: values(out_dim * rank),
        alpha,
    }
}

#[test]
fn known_answers() {
    let plan008 = unhex(PLAN008);
    let loaded = LoraAdapter::load(&plan008, &LIMITS).unwrap();
    assert_eq!(loaded.len(), 1);
    assert_eq!(apply(&loaded[0], &[10.0, 100.0]), [1260.0, 1680.0, 2100.0]);
    assert_eq!(LoraAdapter::save(&[&loaded[0]], 1, 2.0).unwrap(), plan008);

    let compact = Compact::load(&unhex(COMPACT), &LIMITS).unwrap();
    assert_eq!(compact.layout(), ["blk.0.attn_v.weight"]);
    assert_eq!((compact.adapters[0].alpha, compact.adapters[0].scale().unwrap()), (2.0, 2.0));
    assert_eq!(apply(&compact.adapters[0], &[10.0, 100.0]), [420.0, 840.0, 1260.0]);
    // Rank 2, alpha 8, all ones, as that crate computes it: 8.
    let ones = LoraAdapter {
        rank: 2,
        in_dim: 1,
        out_dim: 1,
        a: vec![1.0; 2],
        b: vec![1.0; 2],
        alpha: 8.0,
    };
    assert_eq!(apply(&ones, &[1.0]), [8.0]);
}

/// Upstream's Issue 299: `load` once returned the first pair of a file and dropped the rest.
#[test]
fn load_gives_every_pair_and_load_first_says_what_it_drops() {
    let (a, b, c) = (pair(2, 3, 4, 4.0), pair(2, 4, 3, 4.0), pair(2, 1, 1, 4.0));
    let file = LoraAdapter::save(&[&a, &b, &c], 2, 4.0).unwrap();
    assert_eq!(LoraAdapter::load(&file, &LIMITS).unwrap(), [a.clone(), b, c]);
    let first = LoraAdapter::load_first(&file, &LIMITS).unwrap();
    assert_eq!((first.adapter, first.dropped), (a.clone(), 2));
    let alone = LoraAdapter::save(&[&a], 2, 4.0).unwrap();
    assert_eq!(LoraAdapter::load_first(&alone, &LIMITS).unwrap().dropped, 0);
}

#[test]
fn load_then_save_is_byte_identical() {
    let file = read("lora-binary/plan008.lora");
    let pairs = LoraAdapter::load(&file, &LIMITS).unwrap();
    assert_eq!((pairs.len(), pairs[0].rank, pairs[0].alpha), (4, 4, 6.0));
    let again = LoraAdapter::save(&pairs.iter().collect::<Vec<_>>(), 4, 6.0).unwrap();
    assert!(again == file);
}

#[test]
fn save_refuses_what_one_header_cannot_hold() {
    let (good, rank, alpha) = (pair(2, 3, 4, 4.0), pair(3, 3, 4, 4.0), pair(2, 3, 4, 7.0));
    let code = |pairs: &[&LoraAdapter], rank, alpha| {
        LoraAdapter::save(pairs, rank, alpha).unwrap_err().code()
    };
    LoraAdapter::save(&[&good, &good], 2, 4.0).unwrap();
    assert_eq!(code(&[&good, &rank], 2, 4.0), "lora-binary-mixed-rank");
    assert_eq!(code(&[&good, &alpha], 2, 4.0), "lora-binary-mixed-alpha");
    // The argument does not silently win over the pair, either.
    assert_eq!(code(&[&good], 2, 7.0), "lora-binary-mixed-alpha");
    assert_eq!(code(&[], 2, 4.0), "lora-binary-empty");
    assert_eq!(code(&[&good], 0, 4.0), "lora-binary-rank-zero");
    assert_eq!(code(&[&good], 2, f32::NAN), "lora-binary-alpha");
    let short = LoraAdapter { a: vec![0.0; 5], ..good.clone() };
    assert_eq!(code(&[&short], 2, 4.0), "lora-binary-length");
    let mut bad = good.clone();
    bad.b[1] = f32::NEG_INFINITY;
    assert_eq!(code(&[&bad], 2, 4.0), "lora-binary-non-finite");
    let nothing = LoraAdapter { in_dim: 0, a: vec![], ..good };
    assert_eq!(code(&[&nothing], 2, 4.0), "lora-binary-zero-dimension");
}

fn load_any(bytes: &[u8]) -> Result<Vec<LoraAdapter>, BinaryError> {
    match BinaryFormat::detect(bytes) {
        Some(BinaryFormat::Plan008) => LoraAdapter::load(bytes, &LIMITS),
        Some(BinaryFormat::Compact) => LoraAdapter::load_from_bin(bytes, &LIMITS),
        None => Err(BinaryError::Magic),
    }
}

#[test]
fn each_hostile_file_has_its_code() {
    for (name, code) in [
        ("plan008_ok", None),
        ("compact_ok", None),
        ("plan008_rank0", Some("lora-binary-rank-zero")),
        ("plan008_alpha_nan", Some("lora-binary-alpha")),
        ("plan008_none", Some("lora-binary-empty")),
        ("plan008_bad_hash", Some("lora-binary-checksum")),
        ("plan008_dims_wrap", Some("lora-binary-dimensions")),
        ("compact_dup_target", Some("lora-binary-duplicate-target")),
        ("compact_inf", Some("lora-binary-non-finite")),
    ] {
        let found = load_any(&read(&format!("lora-binary-hostile/{name}.lora")));
        assert_eq!(found.as_ref().err().map(Coded::code), code, "{name}: {found:?}");
        assert!(found.is_ok() || found.unwrap_err().class() == ErrorClass::Refused);
    }
}

/// A file with other bytes in its payload, its hash made right again.
fn plan008_with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = unhex(PLAN008);
    file[at..at + bytes.len()].copy_from_slice(bytes);
    rehash_plan008(file)
}

fn rehash_plan008(mut file: Vec<u8>) -> Vec<u8> {
    let hash = ContentHash::of(&file[40..]).to_bytes();
    file[8..40].copy_from_slice(&hash);
    file
}

fn compact_with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut content = unhex(COMPACT);
    content.truncate(content.len() - 32);
    content[at..at + bytes.len()].copy_from_slice(bytes);
    rehash_compact(content)
}

fn rehash_compact(content: Vec<u8>) -> Vec<u8> {
    let hash = ContentHash::of(&content).to_bytes();
    [content, hash.to_vec()].concat()
}

#[test]
fn one_field_wrong_and_its_twin() {
    let plan008 = |at, bytes: &[u8]| {
        LoraAdapter::load(&plan008_with(at, bytes), &LIMITS).map_err(|error| error.code())
    };
    plan008(40, &[1, 0, 0, 0]).unwrap();
    assert_eq!(plan008(0, b"LORB"), Err("lora-binary-magic"));
    assert_eq!(plan008(4, &[2]), Err("lora-binary-version"));
    assert_eq!(plan008(4, &[0, 0, 0, 1]), Err("lora-binary-big-endian"));
    assert_eq!(plan008(4, &[0, 0, 0, 2]), Err("lora-binary-version"));
    assert_eq!(plan008(40, &[2, 0, 0, 0]), Err("truncated"));
    assert_eq!(plan008(40, &[0xff; 4]), Err("lora-binary-count"));
    assert_eq!(plan008(44, &[0xff; 4]), Err("lora-binary-dimensions"));
    assert_eq!(plan008(52, &[0; 4]), Err("lora-binary-zero-dimension"));
    assert_eq!(plan008(56, &[0; 4]), Err("lora-binary-zero-dimension"));
    assert_eq!(plan008(60, &f32::NAN.to_le_bytes()), Err("lora-binary-non-finite"));
    let mut long = unhex(PLAN008);
    long.push(0);
    assert_eq!(
        LoraAdapter::load(&rehash_plan008(long), &LIMITS).unwrap_err().code(),
        "trailing-bytes"
    );
    for len in 0..unhex(PLAN008).len() {
        let cut = &unhex(PLAN008)[..len];
        assert!(LoraAdapter::load(cut, &LIMITS).is_err(), "{len}");
        if len >= 40 {
            assert!(LoraAdapter::load(&rehash_plan008(cut.to_vec()), &LIMITS).is_err(), "{len}");
        }
    }

    let compact = |at, bytes: &[u8]| {
        Compact::load(&compact_with(at, bytes), &LIMITS).map_err(|error| error.code())
    };
    compact(4, &[1]).unwrap();
    assert_eq!(compact(0, b"LORB"), Err("lora-binary-magic"));
    assert_eq!(compact(4, &[2]), Err("lora-binary-version"));
    assert_eq!(compact(5, &[0, 0]), Err("lora-binary-rank-zero"));
    // Read happily elsewhere: a matrix whose rank is not the file's.
    assert_eq!(compact(5, &[2, 0]), Err("lora-binary-rank"));
    assert_eq!(compact(7, &[0, 0]), Err("lora-binary-empty"));
    assert_eq!(compact(9, &[0, 0]), Err("lora-binary-empty"));
    assert_eq!(compact(11, &[7, 0]), Err("lora-binary-target-id"));
    assert_eq!(compact(7, &[0xff; 2]), Err("lora-binary-count"));
    assert_eq!(compact(15, &[0xff; 2]), Err("lora-binary-dimensions"));
    let mut bad = unhex(COMPACT);
    let end = bad.len() - 1;
    bad[end] ^= 1;
    assert_eq!(Compact::load(&bad, &LIMITS).unwrap_err().code(), "lora-binary-checksum");
    assert_eq!(Compact::load(&bad[..42], &LIMITS).unwrap_err().code(), "lora-binary-short");
    for len in 0..41 {
        let cut = rehash_compact(unhex(COMPACT)[..len].to_vec());
        assert!(Compact::load(&cut, &LIMITS).is_err(), "{len}");
    }
}

#[test]
fn each_reader_refuses_the_other_format() {
    assert_eq!(
        LoraAdapter::load(&unhex(COMPACT), &LIMITS).unwrap_err().code(),
        "lora-binary-version"
    );
    assert_eq!(Compact::load(&unhex(PLAN008), &LIMITS).unwrap_err().code(), "lora-binary-checksum");
    assert_eq!(BinaryFormat::detect(&unhex(PLAN008)), Some(BinaryFormat::Plan008));
    assert_eq!(BinaryFormat::detect(&unhex(COMPACT)), Some(BinaryFormat::Compact));
    assert_eq!(BinaryFormat::detect(b"GGUF"), None);
    // Rank 0 and 256 layers: bytes 4 to 8 are those of Plan 008's version. The place of the hash tells.
    let ambiguous = compact_with(5, &[0, 0, 0, 1]);
    assert_eq!(BinaryFormat::detect(&ambiguous), Some(BinaryFormat::Compact));
    assert_eq!(load_any(&ambiguous).unwrap_err().code(), "lora-binary-rank-zero");
}

#[test]
fn a_layout_gives_positions_their_tensors() {
    let pairs = LoraAdapter::load(&read("lora-binary/plan008.lora"), &LIMITS).unwrap();
    let json = read("lora-binary/plan008.layout.json");
    let layout = Layout::parse(&json).unwrap();
    let adapter = layout.to_adapter(&pairs, &tiny()).unwrap();
    let targets: Vec<_> = adapter
        .plain_lora()
        .unwrap()
        .into_iter()
        .map(|module| (module.target, module.scale))
        .collect();
    let expected = [
        "blk.0.attn_v.weight",
        "blk.1.ffn_down.weight",
        "blk.3.attn_output.weight",
        "blk.3.attn_v.weight",
    ];
    assert_eq!(targets, expected.map(|target| (target.to_owned(), 1.5)));

    let code = |json: &str| {
        let layout = Layout::parse(json.as_bytes())?;
        layout.to_adapter(&pairs, &tiny())
    };
    let code = |json: &str| code(json).map_err(|error| error.code()).unwrap_err();
    assert_eq!(code("[\"blk.0.attn_v.weight\"]"), "lora-binary-layout-length");
    assert_eq!(code("{}"), "lora-binary-layout");
    let with = |name: &str| {
        format!(
            "[\"{name}\", \"blk.1.ffn_down.weight\", \"blk.3.attn_output.weight\", \"blk.3.attn_v.weight\"]"
        )
    };
    assert!(
        Layout::parse(with("blk.0.attn_v.weight").as_bytes())
            .unwrap()
            .to_adapter(&pairs, &tiny())
            .is_ok()
    );
    assert_eq!(code(&with("blk.9.attn_v.weight")), "adapter-unknown-tensor");
    assert_eq!(code(&with("blk.0.attn_output.weight")), "adapter-shape");
    assert_eq!(code(&with("blk.3.attn_v.weight")), "adapter-duplicate-target");
}

#[test]
fn a_compact_file_names_its_own_tensors() {
    let compact = Compact::load(&read("lora-binary/compact.lora"), &LIMITS).unwrap();
    let adapter = compact.to_adapter(&tiny()).unwrap();
    let modules = adapter.plain_lora().unwrap();
    assert_eq!(modules.len(), 8);
    assert!(modules.iter().all(|module| module.scale == 2.0 && module.rank() == 2));
    // The hostile files' shapes fit no model here.
    let other = Compact::load(&read("lora-binary-hostile/compact_ok.lora"), &LIMITS).unwrap();
    assert_eq!(other.to_adapter(&tiny()).unwrap_err().code(), "adapter-shape");
}

#[test]
fn pairs_that_change_nothing_are_no_adapter() {
    let layout = Layout::parse(b"[\"blk.0.attn_v.weight\", \"blk.1.attn_v.weight\"]").unwrap();
    let good = pair(2, 256, 128, 4.0);
    let nothing = LoraAdapter { b: vec![0.0; 256], ..good.clone() };
    let plan008 = |pairs: [&LoraAdapter; 2]| {
        let pairs =
            LoraAdapter::load(&LoraAdapter::save(&pairs, 2, 4.0).unwrap(), &LIMITS).unwrap();
        layout.to_adapter(&pairs, &tiny()).map_err(|error| error.code())
    };
    assert_eq!(plan008([&nothing, &nothing]), Err("adapter-no-target"));
    assert!(plan008([&nothing, &good]).is_ok());

    let compact = |last: f32| {
        let mut file = b"LORA\x01".to_vec();
        // Rank 1, one layer, target v.
        [1u16, 1, 1, 2, 1, 256].iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend(common::f32_bytes(&[1.0; 256]));
        [128u16, 1].iter().for_each(|word| file.extend(word.to_le_bytes()));
        let mut b = [0.0; 128];
        b[127] = last;
        file.extend(common::f32_bytes(&b));
        let file = Compact::load(&rehash_compact(file), &LIMITS).unwrap();
        file.to_adapter(&tiny()).map_err(|error| error.code())
    };
    assert_eq!(compact(0.0), Err("adapter-no-target"));
    assert!(compact(1.0).is_ok());
}

/// Written once, such a file could not be read again.
#[test]
fn plan008_has_no_room_for_the_embedding_table_the_head_or_biases() {
    let of = |target: &str| {
        let values = |n: u64| common::f32_bytes(&common::ramp(n, 1)).into();
        let a = Factor::new("a", slm_format::Encoding::F32, 2, 256, values(512)).unwrap();
        let b = Factor::new("b", slm_format::Encoding::F32, 128, 2, values(256)).unwrap();
        let module = LoraModule { target: target.into(), scale: 1.0, a, b };
        to_plan008(&Adapter::lora(vec![module]).unwrap()).map_err(|error| error.code())
    };
    for target in ["token_embd.weight", "output.weight"] {
        assert_eq!(of(target), Err("lora-binary-kind"));
    }
    assert!(of("blk.0.attn_v.weight").is_ok());
    let biased =
        common::resolve(&common::config("lora-bias-term"), &common::weights("lora-bias-term"));
    let error = to_plan008(&biased.unwrap().0).unwrap_err();
    assert_eq!(error.to_string(), "the format holds plain LoRA, not LoRA with biases");
}

#[test]
fn plan008_out_folds_ranks_and_scales() {
    let factor = |rows: u64, cols: u64| {
        let values = common::ramp(rows * cols, rows);
        Factor::new("x", slm_format::Encoding::F32, rows, cols, common::f32_bytes(&values).into())
            .unwrap()
    };
    let module = |target: &str, scale: f32, rank: u64, rows: u64| LoraModule {
        target: target.into(),
        scale,
        a: factor(rank, 256),
        b: factor(rows, rank),
    };
    // The scale of rsLoRA at rank 3 and another by pattern, and two ranks.
    let root = (16.0 / 3f64.sqrt()) as f32;
    let adapter = Adapter::lora(vec![
        module("blk.0.attn_v.weight", root, 3, 128),
        module("blk.1.attn_q.weight", 4.0, 2, 256),
    ])
    .unwrap();
    let (file, names) = to_plan008(&adapter).unwrap();
    let pairs = LoraAdapter::load(&file, &LIMITS).unwrap();
    let layout = Layout::parse(Layout::to_json(&names).as_bytes()).unwrap();
    let back = layout.to_adapter(&pairs, &tiny()).unwrap();
    let x: Vec<f32> = common::ramp(256, 9);
    for (ours, pair) in adapter.plain_lora().unwrap().iter().zip(&pairs) {
        let whole = LoraAdapter {
            rank: ours.rank() as usize,
            in_dim: 256,
            out_dim: ours.b.rows() as usize,
            a: ours.a.values().collect(),
            b: ours.b.values().collect(),
            alpha: ours.scale * ours.rank() as f32,
        };
        for (expected, found) in apply(&whole, &x).iter().zip(apply(pair, &x)) {
            assert!(
                (expected - found).abs() <= 1e-4 * (1.0 + expected.abs()),
                "{expected} {found}"
            );
        }
    }
    assert_eq!(back.modules().len(), 2);
    // One rank and one scale: nothing is folded, and the way back gives the same adapter.
    let plain = Adapter::lora(vec![
        module("blk.0.attn_v.weight", 2.0, 3, 128),
        module("blk.1.attn_v.weight", 2.0, 3, 128),
    ])
    .unwrap();
    let (file, names) = to_plan008(&plain).unwrap();
    let layout = Layout::parse(Layout::to_json(&names).as_bytes()).unwrap();
    assert_eq!(
        layout.to_adapter(&LoraAdapter::load(&file, &LIMITS).unwrap(), &tiny()).unwrap().id(),
        plain.id()
    );
}
