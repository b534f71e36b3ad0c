//! `logits`: the same bits whatever the threads, the chunks, the tier and the way to the model; and the bits of the reference pass.

use serde_json::{Value, json};
use slm_golden::vectors::{self, VectorFile};

use crate::common::{Place, finish, golden, is_blake3, is_digest, slm, text};

/// The composition of `Place::with_active` for each stack of the golden vectors.
fn composition_of(stack: &[vectors::StackEntry]) -> &'static str {
    match stack {
        [] => "base",
        [one] if one.adapter == "tiny-kjv" => "kjv",
        [_] => "python",
        _ => "both",
    }
}

fn ids(tokens: &[u32]) -> String {
    tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn the_logits_are_the_reference_pass_s_in_both_modes() {
    let place = Place::with_active();
    for file in [vectors::TINY_Q8_0_INT8, vectors::TINY_Q8_0_F32] {
        let VectorFile { activations, kv, vectors, .. } = vectors::parse(file);
        assert_eq!(vectors.len(), 8);
        for vector in vectors {
            let object = place.json([
                "logits",
                "--tokens",
                &ids(&vector.tokens),
                "--activations",
                &activations,
                "--kv",
                &kv,
                "--composition",
                composition_of(&vector.stack),
            ]);
            assert_eq!(
                text(&object, "all_blake3"),
                vector.all_blake3,
                "{activations}: {}",
                vector.name
            );
            assert_eq!(object["tokens"], json!(vector.tokens), "ids are taken verbatim");
        }
    }
}

#[test]
fn threads_chunks_tiers_and_the_way_to_the_model_change_no_bit() {
    let place = Place::with_active();
    let other = Place::with_active();
    let tokens = "28,92,311,63,307,506,92,30,767,261,305,71,266,78,298,767,261";
    let expected = place.json(["logits", "--tokens", tokens]);
    assert!(is_digest(&expected, "composition"), "{expected}");
    assert!(
        is_blake3(&expected, "all_blake3") && is_blake3(&expected, "logits_blake3"),
        "{expected}"
    );
    assert_eq!(expected["kernels"].as_object().map(serde_json::Map::len), Some(2), "{expected}");
    let fields = |object: &Value| {
        ["composition", "execution", "base", "tokens", "logits_blake3", "all_blake3", "top"]
            .map(|field| object[field].clone())
    };
    let cpu = place.json(["inspect", "--cpu"]);
    let mut options: Vec<Vec<&str>> = vec![
        vec!["--threads", "1"],
        vec!["--threads", "2"],
        vec!["--threads", "3", "--chunk", "5"],
        vec!["--chunk", "1"],
        vec!["--chunk", "7"],
        vec!["--chunk", "17"],
        vec!["--chunk", "1000"],
    ];
    let tiers: Vec<&str> =
        cpu["tiers"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    options
        .extend(tiers.iter().map(|tier| vec!["--kernel", tier, "--threads", "1", "--chunk", "3"]));
    for options in options {
        let object = place.json(["logits", "--tokens", tokens].iter().chain(&options));
        assert_eq!(fields(&object), fields(&expected), "{options:?}");
        if let ["--kernel", tier, ..] = options[..] {
            let names = object["kernels"].as_object().expect("kernels").values();
            assert!(names.filter_map(Value::as_str).all(|name| name.starts_with(tier)), "{object}");
        }
    }
    let elsewhere = other.json(["logits", "--tokens", tokens]);
    assert_eq!(fields(&elsewhere), fields(&expected), "another store");
    let (model, kjv, python) =
        (golden("tiny-q8_0.gguf"), golden("tiny-kjv") + "=0.7", golden("tiny-python") + "=0.3");
    let files = ["--model", &model, "--adapter", &kjv, "--adapter", &python];
    let raw = place.json(["logits", "--tokens", tokens].iter().chain(&files));
    assert_eq!(fields(&raw), fields(&expected), "the files themselves");
    // A twin of each that must differ: another stack, another mode.
    let base = place.json(["logits", "--tokens", tokens, "--composition", "base"]);
    assert_ne!(base["all_blake3"], expected["all_blake3"]);
    let oracle = place.json(["logits", "--tokens", tokens, "--activations", "f32"]);
    assert_eq!(oracle["composition"], expected["composition"]);
    assert_ne!(oracle["execution"], expected["execution"]);
    assert_ne!(oracle["all_blake3"], expected["all_blake3"]);
}

#[test]
fn the_file_holds_one_tensor_that_gives_the_hashes() {
    let place = Place::with_active();
    let out = place.arg("logits.safetensors");
    let tokens = [767, 261, 305, 71, 266];
    let object = place.json(["logits", "--tokens", &ids(&tokens), "--out", &out, "--top", "3"]);
    let bytes = std::fs::read(&out).expect("the file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    assert_eq!(file.names(), ["logits"]);
    let tensor = file.tensor("logits").expect("the tensor");
    assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
    assert_eq!(tensor.shape(), [tokens.len(), 1024]);
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    let last = &tensor.data()[(tokens.len() - 1) * 4096..];
    assert_eq!(hash(tensor.data()), text(&object, "all_blake3"));
    assert_eq!(hash(last), text(&object, "logits_blake3"));

    let mut best: Vec<(usize, f32)> = last
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .enumerate()
        .collect();
    best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let top = object["top"].as_array().expect("a list");
    assert_eq!(top.len(), 3);
    for (row, (id, logit)) in top.iter().zip(best) {
        assert_eq!((&row["id"], row["logit"].as_f64()), (&json!(id), Some(f64::from(logit))));
    }
    for (n, expected) in [("0", 0), ("1024", 1024), ("999999", 1024)] {
        let object = place.json(["logits", "--tokens", "1", "--top", n]);
        assert_eq!(object["top"].as_array().map(Vec::len), Some(expected), "--top {n}");
    }
}

#[test]
fn a_model_given_by_path_needs_no_store_and_has_the_ids_of_the_store() {
    let place = Place::with_active();
    let expected = place.json(["run", "In the beginning", "--max-tokens", "12", "--ignore-eos"]);
    let empty = Place::new();
    let mut command = slm();
    command
        .args(["run", "In the beginning", "--max-tokens", "12", "--ignore-eos", "--json"])
        .args(["--model", &golden("tiny-q8_0.gguf")])
        .args([
            "--adapter",
            &(golden("tiny-kjv") + "=0.7"),
            "--adapter",
            &(golden("tiny-python") + "=0.3"),
        ])
        .env_remove("HOME")
        .env_remove("XDG_DATA_HOME")
        .current_dir(empty.dir.path());
    let object = finish(&mut command).object();
    for field in ["composition", "execution", "base", "tokens", "prompt_tokens", "text", "stop"] {
        assert_eq!(object[field], expected[field], "{field}");
    }
    let stack = |object: &Value| -> Vec<(Value, Value)> {
        let rows = object["adapters"].as_array().expect("a list");
        rows.iter().map(|row| (row["adapter"].clone(), row["weight"].clone())).collect()
    };
    assert_eq!(stack(&object), stack(&expected));
    assert_eq!(stack(&object).len(), 2);
    assert_eq!(std::fs::read_dir(empty.dir.path()).expect("the place").count(), 0);
    // The folder that a home would have got stays unmade as well.
    command.env("HOME", empty.dir.path());
    finish(&mut command).object();
    assert_eq!(std::fs::read_dir(empty.dir.path()).expect("the place").count(), 0);
    // A .slm adapter knows its base, and a folder of weights is another base.
    let hf = golden("tiny");
    let object =
        place.json(["logits", "--tokens", "1", "--model", &hf, "--adapter", &golden("tiny-kjv")]);
    assert_ne!(object["base"], expected["base"]);
}
