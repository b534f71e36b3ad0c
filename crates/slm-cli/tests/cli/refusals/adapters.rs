//! Adapters: PEFT folders whose configuration or tensors are wrong, GGUF, binary and `.slm` files, and what a stack or a format cannot have.

use std::borrow::Cow;
use std::path::Path;

use serde_json::{Value as Json, json};
use slm_format::container::SectionKind;
use slm_format::gguf::{self, Value};
use slm_format::safetensors::{self, Dtype, SafeTensors, TensorSource};
use slm_format::{ContentHash, Encoding};
use slm_manifest::BaseId;
use slm_overlay::{Adapter, Delta, DenseDelta, Factor, Module, SparseDelta};
use slm_runtime::runtime::{Declared, Requires, write_adapter};

use super::models::{blob, with_section};
use super::{LIMITS, find, with};
use crate::common::{Place, golden, text};
use crate::transcript::Transcript;

const INTO: [&str; 4] = ["--name", "x", "--base", "tiny"];

/// A tensor of an adapter: name, type, shape, bytes.
type Tensor = (String, Dtype, Vec<u64>, Vec<u8>);

/// A folder of the reference data, taken apart.
pub(super) struct Peft {
    pub(super) config: Json,
    tensors: Vec<Tensor>,
}

impl Peft {
    pub(super) fn of(name: &str) -> Peft {
        let read = |file: &str| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../slm-overlay/tests/data")
                .join(name)
                .join(file);
            std::fs::read(path).expect("the reference data")
        };
        let weights = read("adapter_model.safetensors");
        let parsed = SafeTensors::parse(&weights, &LIMITS).expect("safetensors");
        Peft {
            config: serde_json::from_slice(&read("adapter_config.json")).expect("JSON"),
            tensors: parsed
                .tensors()
                .iter()
                .map(|t| (t.name.to_string(), t.dtype, t.shape.clone(), t.data.to_vec()))
                .collect(),
        }
    }

    pub(super) fn write(&self, place: &Place, folder: &str) -> String {
        let path = place.path(folder);
        std::fs::create_dir(&path).expect("the folder is made");
        std::fs::write(path.join("adapter_config.json"), self.config.to_string())
            .expect("it is written");
        std::fs::write(path.join("adapter_model.safetensors"), safetensors_of(&self.tensors))
            .expect("it is written");
        place.arg(folder)
    }
}

fn safetensors_of(tensors: &[Tensor]) -> Vec<u8> {
    let sources: Vec<TensorSource<'_>> = tensors
        .iter()
        .map(|(name, dtype, shape, data)| TensorSource { name, dtype: *dtype, shape, data })
        .collect();
    let mut bytes = Vec::new();
    safetensors::write(&mut bytes, &sources, &Default::default()).expect("a file");
    bytes
}

/// Small numbers as bytes.
fn numbers(n: usize) -> Vec<u8> {
    (0..n).flat_map(|i| ((i % 7) as f32 - 3.0).to_le_bytes()).collect()
}

fn import(transcript: &mut Transcript<'_>, exit: i32, path: &str, more: &[&str]) {
    let args = [&["adapter", "import", path], &INTO[..], more].concat();
    transcript.refused(exit, &args);
}

fn imported(transcript: &mut Transcript<'_>, path: &str, more: &[&str]) {
    let args = ["adapter", "import", path, "--name", "good", "--base", "tiny", "--replace"];
    transcript.accepted(&[&args, more].concat());
}

#[test]
fn configurations() {
    let place = Place::with_tiny();
    let mut transcript = Transcript::new(&place);
    let good = Peft::of("lora-qv");
    imported(&mut transcript, &good.write(&place, "good"), &[]);
    for (name, field, value) in [
        ("fan-in-fan-out", "fan_in_fan_out", json!(true)),
        ("kasa", "kasa_config", json!({"a": 1})),
        ("replication", "layer_replication", json!([[0, 2]])),
        ("trainable", "trainable_token_indices", json!([1])),
        ("parameters", "target_parameters", json!(["x"])),
        ("qalora", "use_qalora", json!(true)),
        ("bdlora", "use_bdlora", json!({"n": 2})),
        ("arrow", "arrow_config", json!({"top_k": 3})),
        ("monteclora", "monteclora_config", json!({"n": 3})),
        ("megatron", "megatron_config", json!({"x": 3})),
        ("waiting-for-a-word", "alora_invocation_tokens", json!("verily")),
        ("waiting-for-no-token", "alora_invocation_tokens", json!([5, 1024])),
        ("dora-without-magnitudes", "use_dora", json!(true)),
        ("scale-beyond-f32", "lora_alpha", json!(1e300)),
        ("pattern-unclosed", "rank_pattern", json!({"(": 8})),
        ("rank-4", "r", json!(4)),
        ("q-alone", "target_modules", json!(["q_proj"])),
        ("very-long", "task_type", json!("x".repeat(5 << 20))),
    ] {
        let mut bent = Peft::of("lora-qv");
        bent.config[field] = value;
        import(&mut transcript, 3, &bent.write(&place, name), &[]);
    }
    let mut vera = Peft::of("vera");
    imported(&mut transcript, &vera.write(&place, "vera"), &[]);
    vera.config["save_projection"] = json!(false);
    import(&mut transcript, 3, &vera.write(&place, "vera-without-projections"), &[]);
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn tensors() {
    let place = Place::with_tiny();
    let mut transcript = Transcript::new(&place);
    imported(&mut transcript, &Peft::of("lora-qv").write(&place, "good"), &[]);
    let layer = "base_model.model.model.layers";
    type Change<'a> = &'a dyn Fn(&mut Vec<Tensor>);
    let pair = |tensors: &mut Vec<Tensor>, path: &str| {
        for (half, shape) in [("A", vec![8, 256]), ("B", vec![256, 8])] {
            let name = format!("base_model.model.{path}.lora_{half}.weight");
            tensors.push((name, Dtype::F32, shape, numbers(2048)));
        }
    };
    let add = |tensors: &mut Vec<Tensor>, name: String| {
        tensors.push((name, Dtype::F32, vec![2, 2], numbers(4)));
    };
    let a_of = |tensors: &[Tensor]| {
        tensors.iter().position(|t| t.0.contains("q_proj.lora_A")).expect("a factor")
    };
    let changes: [(&str, Change<'_>); 9] = [
        ("no-a", &|t| drop(t.remove(a_of(t)))),
        ("of-128-columns", &|t| {
            let at = a_of(t);
            (t[at].2, t[at].3) = (vec![8, 128], numbers(1024));
        }),
        ("doubles", &|t| {
            let at = a_of(t);
            t[at] = (t[at].0.clone(), Dtype::F64, vec![8, 256], vec![0; 8 * 8 * 256]);
        }),
        ("layer-4", &|t| pair(t, "model.layers.4.self_attn.q_proj")),
        ("w-proj", &|t| pair(t, "model.layers.0.self_attn.w_proj")),
        ("up-proj", &|t| pair(t, "model.layers.0.mlp.up_proj")),
        ("a-norm", &|t| add(t, format!("{layer}.0.input_layernorm.weight"))),
        ("a-copy", &|t| add(t, format!("{layer}.0.self_attn.q_proj.base_layer.weight"))),
        ("nothing", &|t| t.clear()),
    ];
    for (name, change) in changes {
        let mut bent = Peft::of("lora-qv");
        change(&mut bent.tensors);
        import(&mut transcript, 3, &bent.write(&place, name), &[]);
    }
    // Without factors a module stays as it is, unless PEFT would have drawn them.
    let mut fewer = Peft::of("lora-qv");
    fewer.tensors.retain(|tensor| !tensor.0.contains("layers.0.self_attn.q_proj"));
    imported(&mut transcript, &fewer.write(&place, "fewer"), &[]);
    fewer.config["init_lora_weights"] = json!(false);
    import(&mut transcript, 3, &fewer.write(&place, "fewer-and-random"), &[]);
    let mut loha = Peft::of("loha");
    add(&mut loha.tensors, format!("{layer}.0.self_attn.q_proj.hada_t1"));
    import(&mut transcript, 3, &loha.write(&place, "a-convolution"), &[]);
    let pointer = Peft::of("lora-qv").write(&place, "a-pointer");
    let weights = Path::new(&pointer).join("adapter_model.safetensors");
    std::fs::write(weights, "version https://git-lfs.github.com/spec/v1\n").expect("written");
    import(&mut transcript, 3, &pointer, &[]);
    // As torch pickles it: the folder with the same factors as safetensors is the first one here.
    let pickled = Peft::of("lora-qv").write(&place, "a-pickle");
    let weights = Path::new(&pickled).join("adapter_model.safetensors");
    std::fs::rename(weights, Path::new(&pickled).join("adapter_model.bin")).expect("renamed");
    import(&mut transcript, 3, &pickled, &[]);
    let alone = place.write("pytorch_model.bin", b"PK\x03\x04 a zip of pickles");
    import(&mut transcript, 3, &alone, &[]);
    // A tokenizer beside it that has the base's tokens and merges them in another order, and one of no base's rules.
    let words = std::fs::read_to_string(format!("{}/tokenizer.json", golden("tiny"))).expect("one");
    for (name, change) in [
        ("with-its-tokenizer", None),
        ("with-other-merges", Some("merges")),
        ("with-another-normalizer", Some("normalizer")),
        ("with-one-more-token", Some("added")),
    ] {
        let folder = Peft::of("lora-qv").write(&place, name);
        let mut document: Json = serde_json::from_str(&words).expect("JSON");
        match change {
            Some("merges") => {
                document["model"]["merges"].as_array_mut().expect("a list").swap(0, 1)
            }
            Some("normalizer") => document["normalizer"] = json!({ "type": "Lowercase" }),
            Some(_) => document["added_tokens"]
                .as_array_mut()
                .expect("a list")
                .push(json!({ "id": 1024, "content": "<image_soft_token>", "special": true })),
            None => {}
        }
        let path = Path::new(&folder).join("tokenizer.json");
        std::fs::write(path, document.to_string()).expect("written");
        match change {
            Some(_) => import(&mut transcript, 3, &folder, &[]),
            None => imported(&mut transcript, &folder, &[]),
        }
    }
    // One side of tied weights, where both are claimed.
    let mut embed = Peft::of("lora-embed");
    embed.config["target_modules"] = json!(["q_proj", "embed_tokens", "lm_head"]);
    imported(&mut transcript, &embed.write(&place, "one-side"), &[]);
    embed.config["ensure_weight_tying"] = json!(true);
    import(&mut transcript, 3, &embed.write(&place, "one-side-of-two"), &[]);
    // A kind that cannot stand on the embedding table.
    embed.config["ensure_weight_tying"] = json!(false);
    embed.config["alora_invocation_tokens"] = json!([5, 6]);
    import(&mut transcript, 3, &embed.write(&place, "waiting-on-the-table"), &[]);
    // Beyond f16, where f16 was asked for.
    let mut large = Peft::of("lora-qv");
    let at = a_of(&large.tensors);
    large.tensors[at].3[..4].copy_from_slice(&65520f32.to_le_bytes());
    let large = large.write(&place, "beyond-f16");
    imported(&mut transcript, &large, &[]);
    import(&mut transcript, 3, &large, &["--factors", "f16"]);
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn gguf_files() {
    let place = Place::with_tiny();
    let mut transcript = Transcript::new(&place);
    let (a, b) = (numbers(512), numbers(256));
    let file = |name: &str, architecture: &'static str| {
        let metadata = [
            ("general.type", Value::Str("adapter")),
            ("general.architecture", Value::Str(architecture)),
            ("adapter.type", Value::Str("lora")),
        ];
        let tensor =
            |name, shape, data| gguf::TensorSource { name, shape, encoding: Encoding::F32, data };
        let tensors = [
            tensor("blk.0.attn_v.weight.lora_a", &[256, 2], &a),
            tensor("blk.0.attn_v.weight.lora_b", &[2, 128], &b),
        ];
        let mut bytes = Vec::new();
        gguf::write(&mut bytes, &metadata, &tensors).expect("a file");
        place.write(name, bytes)
    };
    imported(&mut transcript, &file("good.gguf", "llama"), &[]);
    import(&mut transcript, 3, &file("gemma3.gguf", "gemma3"), &[]);
    transcript.refused(3, &["import", "good.gguf", "--name", "x"]);
    import(&mut transcript, 3, &golden("tiny-q8_0.gguf"), &[]);
    insta::assert_snapshot!(transcript.finish());
}

/// Rank 1, alpha 2, A = [1, 2], B = [3, 4, 5]: written by the crate katgpt-types 0.2.0.
const PLAN008: &str = "4c4f524101000000d507ad886a49f7ccd7fe7c98460fd97ecf9192a3c1dcb51db1276303566c5d5c01000000010000000000004002000000030000000000803f0000004000004040000080400000a040";
/// Rank 1, one layer, target v, A = [1, 2], B = [1, 2, 3]: accepted by the same crate.
const COMPACT: &str = "4c4f5241010100010001000200010002000000803f00000040030001000000803f0000004000004040fb5127608ab4d2166055187cbf59e8ac4a5535c8b5a670b4f36ab1cfa793dcd6";

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(byte).collect()
}

#[test]
fn binary_files() {
    let place = Place::with_tiny();
    let mut transcript = Transcript::new(&place);
    let plan008 = |at: usize, bytes: &[u8]| {
        let mut file = with(&unhex(PLAN008), at, bytes);
        let hash = ContentHash::of(&file[40..]).to_bytes();
        file[8..40].copy_from_slice(&hash);
        file
    };
    let compact = |at: usize, bytes: &[u8]| {
        let file = unhex(COMPACT);
        let content = with(&file[..file.len() - 32], at, bytes);
        let hash = ContentHash::of(&content).to_bytes();
        [content, hash.to_vec()].concat()
    };
    let longer = {
        let mut file = [unhex(PLAN008), vec![0]].concat();
        let hash = ContentHash::of(&file[40..]).to_bytes();
        file[8..40].copy_from_slice(&hash);
        file
    };
    let good = place.write("good.lora", unhex(PLAN008));
    transcript.accepted(&["inspect", &good]);
    for (name, bytes) in [
        ("two-pairs-announced", plan008(40, &[2])),
        ("many-pairs-announced", plan008(40, &[0xff; 4])),
        ("no-inputs", plan008(52, &[0; 4])),
        ("more-behind", longer),
        ("highest-byte-first", plan008(4, &[0, 0, 0, 1])),
    ] {
        let file = place.write(&format!("{name}.lora"), bytes);
        transcript.refused(3, &["inspect", &file]);
    }
    let good = place.write("good.compact", unhex(COMPACT));
    transcript.accepted(&["inspect", &good]);
    for (name, bytes) in [
        ("rank-2", compact(5, &[2, 0])),
        ("target-7", compact(11, &[7, 0])),
        ("cut", unhex(COMPACT)[..20].to_vec()),
        ("version-2", compact(4, &[2])),
        ("lorb", compact(0, b"LORB")),
    ] {
        let file = place.write(&format!("{name}.compact"), bytes);
        import(&mut transcript, 3, &file, &["--format", "compact"]);
    }
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn layouts_of_binary_files() {
    let place = Place::with_tiny();
    let mut transcript = Transcript::new(&place);
    let file = golden("lora-binary/plan008.lora");
    let good = golden("lora-binary/plan008.layout.json");
    imported(&mut transcript, &file, &["--layout", &good]);
    let names = std::fs::read_to_string(&good).expect("the layout");
    for (name, layout) in [
        ("no-list", "{}".to_owned()),
        ("one-name", "[\"blk.0.attn_v.weight\"]".to_owned()),
        ("a-name-twice", names.replace("blk.0.attn_v", "blk.3.attn_v")),
        ("no-such-layer", names.replace("blk.0.attn_v", "blk.9.attn_v")),
    ] {
        let layout = place.write(&format!("{name}.json"), layout);
        import(&mut transcript, 3, &file, &["--layout", &layout]);
    }
    import(&mut transcript, 2, &file, &[]);
    import(&mut transcript, 3, &golden("lora-binary/compact.lora"), &["--layout", &good]);
    insta::assert_snapshot!(transcript.finish());
}

pub(super) fn module(target: &str, delta: Delta) -> Module {
    Module { target: target.to_owned(), delta }
}

pub(super) fn factor(rows: u64, cols: u64, value: f32) -> Factor {
    let bytes: Vec<u8> = (0..rows * cols).flat_map(|_| value.to_le_bytes()).collect();
    Factor::new("x", Encoding::F32, rows, cols, Cow::Owned(bytes)).expect("a factor")
}

pub(super) fn slm(adapter: &Adapter, requires: &Requires) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_adapter(adapter, requires, &mut bytes).expect("a file");
    bytes
}

#[test]
fn files_of_our_own() {
    let place = Place::with_tiny();
    let mut transcript = Transcript::new(&place);
    let good = blob(&place, "adapter", "kjv");
    imported(&mut transcript, &place.write("good.slm", &good), &[]);
    let section = |change: &dyn Fn(&mut Vec<u8>)| with_section(&good, SectionKind::Adapter, change);
    let last = |bytes: &mut Vec<u8>| {
        let at = bytes.len() - 1;
        bytes[at] ^= 1;
    };
    for (name, bytes) in [
        ("another-number", section(&last)),
        ("longer", section(&|bytes| bytes.push(0))),
        ("of-version-2", section(&|bytes| bytes[8] = 2)),
        ("no-requirements", with_section(&good, SectionKind::Config, |bytes| bytes.truncate(5))),
    ] {
        import(&mut transcript, 3, &place.write(&format!("{name}.slm"), bytes), &[]);
    }
    // What its base must be.
    let base: BaseId = text(&place.json(["inspect", "tiny"]), "base").parse().expect("an id");
    let info = place.json(["tokenize", "x", "--model", &golden("tiny-q8_0.gguf")]);
    let tokenizer = text(&info, "tokenizer").parse().expect("an id");
    let own: Vec<(String, u32)> = {
        let listed = place.json(["inspect", "tiny", "--kind", "base"])["quantization"].clone();
        let listed = listed.as_array().expect("a list").iter();
        listed
            .map(|q| (text(q, "type").to_owned(), q["tensors"].as_u64().expect("a number") as u32))
            .collect()
    };
    let requires = |quantization: &[(String, u32)], numerics| Requires {
        base,
        declared: Some(Declared { tokenizer, quantization: quantization.to_vec(), numerics }),
    };
    let numerics = slm_manifest::NUMERICS_VERSION;
    let dense = |scale: f32, value: f32| {
        let delta = Delta::Dense(DenseDelta { scale, delta: factor(128, 256, value) });
        Adapter::new(vec![module("blk.0.attn_v.weight", delta)]).expect("an adapter")
    };
    let any = Requires::base(base);
    imported(&mut transcript, &place.write("dense.slm", slm(&dense(1.0, 1.0), &any)), &[]);
    let of_another = Requires::base(BaseId::of_canonical(b"another"));
    let as_it_is = place.write("as-it-is.slm", slm(&dense(1.0, 1.0), &requires(&own, numerics)));
    imported(&mut transcript, &as_it_is, &[]);
    let four_bits = requires(&[("Q4_0".to_owned(), 29)], numerics);
    let of_tomorrow = requires(&own, numerics + 1);
    let sparse = |indices: [u64; 2]| {
        let (rows, cols, values) = (128, 256, factor(1, 2, 1.0));
        let delta = SparseDelta { scale: 1.0, rows, cols, indices: indices.into(), values };
        Adapter::new(vec![module("blk.0.attn_v.weight", Delta::Sparse(delta))]).expect("one")
    };
    let rising = slm(&sparse([3, 0x0102_0304_u64 % 32768]), &any);
    imported(&mut transcript, &place.write("sparse.slm", &rising), &[]);
    let falling = with_section(&rising, SectionKind::Adapter, |bytes| {
        let at = find(bytes, &[3, 0, 0, 0, 0, 0, 0, 0]);
        bytes[at..at + 8].copy_from_slice(&40_000u64.to_le_bytes());
    });
    for (name, bytes) in [
        ("of-another-base", slm(&dense(1.0, 1.0), &of_another)),
        ("of-four-bits", slm(&dense(1.0, 1.0), &four_bits)),
        ("of-other-numerics", slm(&dense(1.0, 1.0), &of_tomorrow)),
        ("beyond-f32", slm(&dense(1e30, 1e20), &any)),
        ("falling-indices", falling),
    ] {
        import(&mut transcript, 3, &place.write(&format!("{name}.slm"), bytes), &[]);
    }
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn stacks_and_formats_they_cannot_have() {
    let place = Place::with_tiny();
    let ia3 = golden("tiny-kjv-ia3");
    place.json(["adapter", "import", &ia3, "--name", "ia3", "--base", "tiny"]);
    let mut transcript = Transcript::new(&place);
    let stack = |adapter| ["compose", "x", "--base", "tiny", "--adapter", adapter];
    transcript.accepted(&stack("kjv=1e30"));
    for adapter in ["kjv=3e38", "ia3=3e38"] {
        let args = ["compose", "y", "--base", "tiny", "--adapter", adapter];
        transcript.refused(3, &args);
    }
    let export = |adapter, format| ["export", "adapter", adapter, "out", "--format", format];
    for format in ["gguf", "plan008"] {
        transcript.refused(3, &export("ia3", format));
    }
    transcript.accepted(&export("kjv", "gguf"));
    transcript.refused(4, &export("absent", "gguf"));
    insta::assert_snapshot!(transcript.finish());
}
