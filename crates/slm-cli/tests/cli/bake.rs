//! `bake`: a composition as a new base, read back as what it claims to be; refused whole or not written.

use serde_json::json;

use crate::common::{Place, golden, is_digest, snapshot, text};

#[test]
fn a_baked_file_is_a_new_base() {
    let place = Place::with_active();
    let file = place.arg("baked.gguf");
    let object = place.json(["bake", &file]);
    assert!(is_digest(&object, "base") && is_digest(&object, "digest"));
    let active = place.json(["status"]);
    assert_eq!(object["from"]["composition"], active["composition"]);
    assert_eq!(object["from"]["base"], active["base"]);
    assert_eq!(object["bytes"], std::fs::metadata(&file).expect("a file").len());
    let changed = object["tensors"].as_array().expect("a list");
    assert_eq!(object["changed"], changed.len());
    assert!(changed.iter().all(|row| row["to"] == "Q8_0" && row["changed"] == json!(true)));
    assert!(
        changed
            .iter()
            .all(|row| row["error"].as_f64().is_some_and(|error| error > 0.0 && error < 0.01))
    );
    let warnings = object["warnings"].as_array().expect("a list");
    let begins = |start: &str| {
        warnings.iter().any(|warning| warning.as_str().is_some_and(|text| text.starts_with(start)))
    };
    assert!(begins("one-way: ") && begins("rounded: ") && !begins("unchanged: "));

    let imported = place.json(["import", &file, "--name", "baked"]);
    assert_eq!(imported["base"], object["base"]);
    assert_ne!(imported["base"], object["from"]["base"]);
    // The same composition from files, without a store, gives the same base.
    let args = ["--composition", "both"];
    let again = place.arg("again.gguf");
    let twin = place.json([&["bake", &again, "--threads", "1"][..], &args].concat());
    assert_eq!(twin["digest"], object["digest"], "byte for byte");

    // A person is told as loudly.
    let ran = place.run(["bake", &place.arg("third.gguf")]);
    assert_eq!(ran.exit, 0);
    assert!(ran.stderr.contains("WARNING one-way: "), "{}", ran.stderr);
}

#[test]
fn a_baked_folder_is_a_new_base() {
    let place = Place::with_active();
    let folder = place.arg("baked");
    let object = place.json(["bake", &folder, "--format", "safetensors", "--composition", "kjv"]);
    let mut files: Vec<String> = std::fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    files.sort();
    let plain = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert!(plain.iter().all(|file| files.iter().any(|found| found == file)), "{files:?}");
    let imported = place.json(["import", &folder, "--name", "baked"]);
    assert_eq!(imported["base"], object["base"]);
    let tiny = place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    assert_eq!(imported["tokenizer"], tiny["tokenizer"]);
    // The overlay's numbers, but for rounding: the most likely tokens are the same ones.
    let logits = |model: &[&str]| {
        let args = ["logits", "--tokens", "767,261,305", "--activations", "f32"];
        place.json([&args[..], model].concat())
    };
    let top = |object: &serde_json::Value| {
        let rows = object["top"].as_array().expect("a list").clone();
        rows.iter()
            .map(|row| (row["id"].clone(), row["logit"].as_f64().expect("a number")))
            .collect::<Vec<_>>()
    };
    let (overlay, baked) =
        (top(&logits(&["--composition", "kjv"])), top(&logits(&["--model", &folder])));
    for ((id, logit), (found, near)) in overlay.iter().zip(&baked) {
        assert_eq!(id, found);
        assert!((logit - near).abs() < 1e-4 * logit.abs().max(1.0), "{logit} {near}");
    }
    let half = place.json([
        "bake",
        &place.arg("half"),
        "--format",
        "safetensors",
        "--encoding",
        "f16",
        "--composition",
        "kjv",
    ]);
    assert!(half["bytes"].as_u64() < object["bytes"].as_u64());
    assert_ne!(half["base"], object["base"]);
}

#[test]
fn what_is_there_stays() {
    let place = Place::with_active();
    let file = place.write("taken", "mine");
    for format in ["gguf", "safetensors"] {
        let refused = place.refused(["bake", &file, "--format", format]);
        assert_eq!(refused, (3, "file-exists".to_owned()), "{format}");
        assert_eq!(std::fs::read(&file).expect("a file"), b"mine");
    }
    let object = place.json(["bake", &file, "--replace"]);
    assert_eq!(object["bytes"], std::fs::metadata(&file).expect("a file").len());
    let missing = place.arg("no/such/folder/file");
    assert_eq!(place.refused(["bake", &missing]).0, 8);
}

#[test]
fn what_cannot_be_baked_leaves_nothing() {
    let place = Place::with_tiny();
    let import = |name: &str| {
        place.json([
            "adapter",
            "import",
            &golden(&format!("adapters/{name}")),
            "--name",
            name,
            "--base",
            "tiny",
        ]);
        place.json(["compose", name, "--base", "tiny", "--adapter", name]);
    };
    for name in ["lora-bias-term", "lora-embed", "lora-qv"] {
        import(name);
    }
    let before = snapshot(place.dir.path());
    let out = place.arg("out");
    let refused = |args: &[&str]| place.refused([&["bake", &out][..], args].concat());
    assert_eq!(refused(&["--composition", "lora-bias-term"]), (3, "bake-bias".to_owned()));
    assert_eq!(refused(&["--composition", "lora-embed"]), (3, "bake-tied-split".to_owned()));
    let keep = ["--composition", "lora-qv", "--format", "safetensors", "--encoding", "keep"];
    assert_eq!(refused(&keep), (3, "bake-format".to_owned()));
    assert_eq!(refused(&["--composition", "nobody"]).0, 4);
    assert_eq!(refused(&["--composition", "lora-qv", "--encoding", "q4"]).0, 2);
    assert_eq!(snapshot(place.dir.path()), before);
    // Their twins.
    let untied = place.json(["bake", &out, "--composition", "lora-embed", "--untie"]);
    let warnings = untied["warnings"].as_array().expect("a list");
    assert!(
        warnings.iter().any(|text| text.as_str().is_some_and(|text| text.starts_with("untied: ")))
    );
    assert_eq!(place.json(["import", &out, "--name", "untied"])["base"], untied["base"]);
    let folder = place.arg("folder");
    place.json([
        "bake",
        &folder,
        "--composition",
        "lora-qv",
        "--format",
        "safetensors",
        "--encoding",
        "f32",
    ]);
    // From files, without a store.
    let (model, adapter) = (golden("tiny-q8_0.gguf"), golden("adapters/lora-qv"));
    let object = place.json([
        "bake",
        &place.arg("files"),
        "--model",
        &model,
        "--adapter",
        &format!("{adapter}=0.5"),
    ]);
    assert_eq!(text(&object["tensors"][0], "from"), "Q8_0");
}
