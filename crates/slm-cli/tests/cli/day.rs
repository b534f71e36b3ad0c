//! The whole way: from files to compositions, through switches and back, with every field that a program reads.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::common::{Place, copy_folder, finish, golden, is_blake3, is_digest, slm, text};

/// Weights, bytes and tensors per encoding, counted by the golden crate's own GGUF reader.
fn counted() -> (u64, u64, BTreeMap<String, u64>) {
    let model = slm_golden::load::gguf_model(slm_golden::TINY_Q8_0);
    let (mut parameters, mut bytes, mut encodings) = (0, 0, BTreeMap::new());
    for tensor in model.tensors.values() {
        parameters += (tensor.rows * tensor.cols) as u64;
        bytes += tensor.bytes.len() as u64;
        *encodings.entry(tensor.encoding.name().to_owned()).or_insert(0) += 1;
    }
    (parameters, bytes, encodings)
}

#[test]
fn a_base_is_imported_from_every_format() {
    let place = Place::new();
    let gguf = place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    let (parameters, bytes, encodings) = counted();
    assert_eq!(text(&gguf, "name"), "tiny");
    assert_eq!(text(&gguf, "architecture"), "llama");
    assert_eq!(gguf["parameters"], parameters);
    assert_eq!(gguf["bytes"], bytes);
    assert!(is_digest(&gguf, "base") && is_digest(&gguf, "tokenizer"), "{gguf}");
    assert_eq!(gguf["changed"], true);
    let rows: BTreeMap<String, u64> = gguf["quantization"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| (text(row, "type").to_owned(), row["tensors"].as_u64().expect("a count")))
        .collect();
    assert_eq!(rows, encodings);

    // Again: nothing changes.
    let before = place.snapshot();
    let again = place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    assert_eq!(again["changed"], false);
    assert_eq!(again["base"], gguf["base"]);
    assert_eq!(place.snapshot(), before);

    // The store's own file is a base too, with the same identities and the same bytes.
    let hex = text(&gguf, "blob").strip_prefix("sha256:").expect("a digest").to_owned();
    let blob = place.store().join("blobs/sha256").join(hex);
    let slm_file = place.write("tiny.slm", std::fs::read(blob).expect("a blob"));
    let other = Place::new();
    let from_slm = other.json(["import", &slm_file, "--name", "copy"]);
    for field in ["base", "tokenizer", "blob", "parameters", "bytes", "quantization"] {
        assert_eq!(from_slm[field], gguf[field], "{field}");
    }

    // The folder holds the same model before quantization: the same tokenizer, another base.
    let hf = place.json(["import", &golden("tiny"), "--name", "tiny-hf"]);
    assert_eq!(hf["tokenizer"], gguf["tokenizer"]);
    assert_eq!(hf["parameters"], parameters);
    assert_ne!(hf["base"], gguf["base"]);
    let types: Vec<&str> = hf["quantization"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| text(row, "type"))
        .collect();
    assert!(types.contains(&"BF16"), "{types:?}");
}

#[test]
fn adapters_report_what_they_touch() {
    let place = Place::new();
    place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    // (folder, rank, scale, modules of one layer): alpha / r, and alpha / sqrt(r) under rsLoRA, from the adapters' own configurations.
    for (name, folder, rank, scale, modules) in
        [("kjv", "tiny-kjv", 8, 2.0, 7), ("python", "tiny-python", 16, 8.0, 5)]
    {
        let object =
            place.json(["adapter", "import", &golden(folder), "--name", name, "--base", "tiny"]);
        assert_eq!(text(&object, "name"), name);
        assert_eq!(text(&object, "kind"), "lora");
        assert!(is_digest(&object, "adapter") && is_digest(&object, "base"), "{object}");
        assert_eq!(object["base"], place.json(["inspect", "tiny"])["base"]);
        assert_eq!(object["warnings"].as_array().map(Vec::len), Some(1));
        assert!(object["warnings"][0].as_str().is_some_and(|w| w.starts_with("undeclared")));
        let targets = object["targets"].as_array().expect("a list");
        assert_eq!(targets.len(), 4 * modules);
        for target in targets {
            assert!(text(target, "tensor").starts_with("blk."), "{target}");
            assert_eq!((&target["rank"], &target["scale"]), (&json!(rank), &json!(scale)));
        }
        let patterns = object["patterns"].as_array().expect("a list");
        assert_eq!(patterns.len(), modules);
        for pattern in patterns {
            assert!(text(pattern, "pattern").ends_with("_proj"), "{pattern}");
            assert_eq!(pattern["matched"], 4);
        }
    }
    // Rounded factors are another adapter, unless they were f16 all along.
    let kept = place.json(["inspect", "kjv"]);
    let rounded = place.json([
        "adapter",
        "import",
        &golden("tiny-kjv"),
        "--name",
        "kjv16",
        "--base",
        "tiny",
        "--factors",
        "f16",
    ]);
    assert_ne!(rounded["adapter"], kept["adapter"]);

    // A stored adapter is a file that imports elsewhere under the same identity.
    let hex = text(&kept, "blob").strip_prefix("sha256:").expect("a digest").to_owned();
    let blob = place.store().join("blobs/sha256").join(hex);
    let file = place.write("kjv.slm", std::fs::read(blob).expect("a blob"));
    let other = Place::new();
    other.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    let copy = other.json(["adapter", "import", &file, "--name", "copy", "--base", "tiny"]);
    assert_eq!(copy["adapter"], kept["adapter"]);
    assert_eq!(copy["targets"], kept["targets"]);
    // And is refused on a base that it was not made for.
    other.json(["import", &golden("tiny"), "--name", "hf"]);
    let args = ["adapter", "import", &file, "--name", "wrong", "--base", "hf"];
    assert_eq!(other.refused(args), (3, "adapter-base-mismatch".to_owned()));
}

#[test]
fn compositions_switch_and_come_back() {
    let place = Place::with_tiny();
    let mut ids: BTreeMap<&str, Value> = BTreeMap::new();
    for (name, stack) in [
        ("base", &[][..]),
        ("kjv", &["kjv"][..]),
        ("python", &["python=1"][..]),
        ("both", &["kjv=0.75", "python=0.25"][..]),
    ] {
        let mut args = vec!["compose", name, "--base", "tiny"];
        args.extend(stack.iter().flat_map(|adapter| ["--adapter", *adapter]));
        let object = place.json(&args);
        assert_eq!(text(&object, "name"), name);
        assert!(is_digest(&object, "composition") && is_digest(&object, "manifest"), "{object}");
        assert_eq!(object["changed"], true);
        let again = place.json(&args);
        assert_eq!((&again["changed"], &again["manifest"]), (&json!(false), &object["manifest"]));
        ids.insert(name, object["composition"].clone());
    }
    let distinct: std::collections::BTreeSet<String> = ids.values().map(Value::to_string).collect();
    assert_eq!(distinct.len(), 4);
    // The order of a stack is part of it.
    let turned = place.json([
        "compose",
        "turned",
        "--base",
        "tiny",
        "--adapter",
        "python=0.25",
        "--adapter",
        "kjv=0.75",
    ]);
    assert_ne!(turned["composition"], ids["both"]);

    assert_eq!(place.refused(["status"]), (4, "none-active".to_owned()));
    assert_eq!(place.refused(["rollback"]), (4, "none-active".to_owned()));
    let first = place.json(["activate", "base"]);
    assert_eq!(first["composition"], ids["base"]);
    assert_eq!((&first["generation"], &first["previous"]), (&json!(1), &Value::Null));
    assert_eq!(first["changed"], true);
    assert_eq!(place.refused(["rollback"]), (4, "no-parent".to_owned()));

    let second = place.json(["activate", "both"]);
    assert_eq!((&second["previous"], &second["generation"]), (&ids["base"], &json!(2)));
    let same = place.json(["activate", "both"]);
    assert_eq!((&same["changed"], &same["generation"]), (&json!(false), &json!(2)));

    let status = place.json(["status"]);
    assert_eq!(status["composition"], ids["both"]);
    assert_eq!(status["generation"], 2);
    assert!(is_digest(&status, "base"), "{status}");
    let adapters = status["adapters"].as_array().expect("a list");
    let rows: Vec<(&str, &Value)> =
        adapters.iter().map(|row| (text(row, "name"), &row["weight"])).collect();
    assert_eq!(rows, [("kjv", &json!(0.75)), ("python", &json!(0.25))]);
    assert!(adapters.iter().all(|row| is_digest(row, "adapter")), "{status}");

    // Without kjv the stack is python at 0.25, which is none of the four.
    let less = place.json(["deactivate", "kjv"]);
    assert_eq!((&less["previous"], &less["changed"]), (&ids["both"], &json!(true)));
    assert!(!distinct.contains(&less["composition"].to_string()), "{less}");
    let nothing = place.json(["deactivate", "kjv"]);
    assert_eq!(
        (&nothing["changed"], &nothing["composition"]),
        (&json!(false), &less["composition"])
    );

    let back = place.json(["rollback"]);
    assert_eq!((&back["composition"], &back["previous"]), (&ids["both"], &less["composition"]));
    let back = place.json(["rollback"]);
    assert_eq!((&back["composition"], &back["generation"]), (&ids["base"], &json!(1)));

    let by_id = place.json(["activate", ids["python"].as_str().expect("an id")]);
    assert_eq!(by_id["composition"], ids["python"]);
    let history = place.json(["history"]);
    let generations = history["generations"].as_array().expect("a list");
    let chain: Vec<&Value> = generations.iter().map(|row| &row["composition"]).collect();
    assert_eq!(chain, [&ids["python"], &ids["base"]]);
    assert!(generations.iter().all(|row| text(row, "time").ends_with('Z')), "{history}");

    let list = place.json(["list"]);
    let names = |kind: &str| -> Vec<String> {
        let rows = list[kind].as_array().expect("a list");
        rows.iter().map(|row| text(row, "name").to_owned()).collect()
    };
    assert_eq!(names("bases"), ["tiny"]);
    assert_eq!(names("adapters"), ["kjv", "python"]);
    assert_eq!(names("compositions"), ["base", "both", "kjv", "python", "turned"]);
    let active: Vec<&str> = list["compositions"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|row| row["active"] == true)
        .map(|row| text(row, "name"))
        .collect();
    assert_eq!(active, ["python"]);
}

#[test]
fn inspect_knows_names_ids_and_every_kind_of_file() {
    let place = Place::with_active();
    let base = place.json(["inspect", "tiny"]);
    assert_eq!(text(&base, "kind"), "base");
    assert!(base["tensors"].as_array().is_some_and(|list| !list.is_empty()), "{base}");
    assert_eq!(place.json(["inspect", text(&base, "base")])["base"], base["base"]);
    assert_eq!(place.json(["inspect", &golden("tiny-q8_0.gguf")])["base"], base["base"]);
    assert_eq!(text(&place.json(["inspect", &golden("tiny")]), "kind"), "base");

    // A base, an adapter and a composition may have one name; the composition comes first, and says so.
    assert_eq!(place.json(["inspect", "kjv"])["also"][0], "adapter");
    let adapter = place.json(["inspect", "kjv", "--kind", "adapter"]);
    assert_eq!(text(&adapter, "kind"), "adapter");
    assert_eq!(place.json(["inspect", text(&adapter, "adapter")])["targets"], adapter["targets"]);
    let folder = place.json(["inspect", &golden("tiny-kjv")]);
    assert_eq!(text(&folder, "kind"), "peft-adapter");
    let factors = golden("tiny-kjv") + "/adapter_model.safetensors";
    let factors = place.json(["inspect", &factors]);
    assert_eq!(text(&factors, "kind"), "safetensors");
    assert_eq!(factors["tensors"].as_array().map(Vec::len), Some(2 * 28));

    for name in ["both.toml", "both.json"] {
        let out = place.arg(name);
        let composed = place.json([
            "compose",
            "both",
            "--base",
            "tiny",
            "--adapter",
            "kjv=0.7",
            "--adapter",
            "python=0.3",
            "--out",
            &out,
        ]);
        let object = place.json(["inspect", &out]);
        assert_eq!(text(&object, "kind"), "manifest");
        assert_eq!(object["composition"], composed["composition"]);
        assert_eq!(object["manifest"], composed["manifest"]);
    }
    let stored = place.json(["inspect", "both"]);
    assert_eq!(stored["composition"], place.json(["status"])["composition"]);

    for field in ["base", "adapter"] {
        let object = if field == "base" { &base } else { &adapter };
        let hex = text(object, "blob").strip_prefix("sha256:").expect("a digest");
        let file = place.store().join("blobs/sha256").join(hex);
        let read = place.json(["inspect", file.to_str().expect("a UTF-8 path")]);
        assert_eq!(text(&read, "kind"), field);
        assert_eq!(read[field], object[field]);
    }
    let cpu = place.json(["inspect", "--cpu"]);
    assert!(cpu["tiers"].as_array().is_some_and(|tiers| tiers.contains(&cpu["best"])), "{cpu}");
    assert!(cpu["tiers"].as_array().is_some_and(|tiers| tiers.contains(&json!("scalar"))), "{cpu}");
    assert_eq!(place.refused(["inspect", "nothing"]).0, 4);
    assert_eq!(place.refused(["inspect"]), (2, "option-missing".to_owned()));
}

#[test]
fn an_export_has_the_bytes_of_its_source() {
    let place = Place::new();
    place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    let out = place.write("out.gguf", "old content");
    let object = place.json(["export", "gguf", "tiny", &out]);
    let written = std::fs::read(&out).expect("the export");
    assert!(written == slm_golden::TINY_Q8_0, "other bytes");
    assert_eq!(object["bytes"], written.len());
    assert!(is_digest(&object, "base"));
    // A base from a folder has no GGUF metadata to write, and the old file stays.
    place.json(["import", &golden("tiny"), "--name", "hf"]);
    assert_eq!(place.refused(["export", "gguf", "hf", &out]).0, 3);
    assert!(std::fs::read(&out).expect("the export") == slm_golden::TINY_Q8_0, "other bytes");
    let files = std::fs::read_dir(place.dir.path()).expect("the place").count();
    assert_eq!(files, 2, "the store and the export, no temporary file");
}

#[test]
fn measures_have_their_fields() {
    let place = Place::with_active();
    let text_file = place
        .write("text.txt", "In the beginning God created the heaven and the earth. ".repeat(20));
    let object = place.json(["eval", "ppl", &text_file, "--ctx", "64", "--limit", "150"]);
    let ppl = |object: &Value| object["perplexity"].as_f64().expect("a number");
    let (low, high) = (object["low"].as_f64(), object["high"].as_f64());
    assert!(low < Some(ppl(&object)) && Some(ppl(&object)) < high, "{object}");
    // Windows of 64, 64 and 22 ids, whose first id is not scored.
    assert_eq!(object["tokens"], 63 + 63 + 21);
    // The text is what one adapter was trained on, and the other was not.
    let under = |composition: &str| {
        ppl(&place.json([
            "eval",
            "ppl",
            &text_file,
            "--ctx",
            "64",
            "--limit",
            "150",
            "--composition",
            composition,
        ]))
    };
    assert!(under("kjv") < under("python"));

    let object = place.json(["bench", "--prompt", "16", "--generate", "8", "--runs", "1"]);
    for field in ["prompt_tokens_per_s", "decode_tokens_per_s", "load_ms"] {
        assert!(object[field].as_f64().is_some_and(|n| n > 0.0), "{field} in {object}");
    }
    assert!(is_blake3(&object, "logits_blake3"), "{object}");
    assert!(object["kernels"]["Q8_0"].is_string(), "{object}");
    if cfg!(target_os = "linux") {
        assert!(object["peak_rss_bytes"].as_u64().is_some_and(|n| n > 1_000_000), "{object}");
    }
    let one =
        place.json(["bench", "--prompt", "16", "--generate", "8", "--runs", "1", "--threads", "1"]);
    assert_eq!(one["logits_blake3"], object["logits_blake3"]);
}

#[test]
fn the_demo_needs_no_store() {
    let place = Place::new();
    let mut command = slm();
    command.args(["demo", "--json"]).env_remove("HOME").current_dir(place.dir.path());
    let object = finish(&mut command).object();
    assert_eq!(object["equal_on_return"], true);
    let steps = object["steps"].as_array().expect("a list");
    let names: Vec<&str> = steps.iter().map(|step| text(step, "step")).collect();
    assert_eq!(names, ["base", "kjv", "python", "rollback", "rollback"]);
    for (there, back) in [(1, 3), (0, 4)] {
        for field in ["composition", "logits_blake3", "text", "weights"] {
            assert_eq!(steps[there][field], steps[back][field]);
        }
    }
    let printed = finish(slm().arg("demo"));
    assert_eq!(printed.exit, 0);
    assert!(printed.stdout.contains("to the bit: yes"), "{}", printed.stdout);
    assert!(!printed.stdout.contains("NO"), "{}", printed.stdout);
    assert_eq!(std::fs::read_dir(place.dir.path()).expect("the place").count(), 0);
}

#[test]
fn the_store_is_found_by_option_and_environment_and_options_stand_anywhere() {
    let place = Place::with_active();
    let expected = place.json(["status"]);
    let store = place.store();
    let elsewhere = place.path("elsewhere");
    let status = |before: &[&str], after: &[&str], variable: &std::path::Path| {
        let mut command = slm();
        command.args(before).arg("status").args(after).env("SLM_STORE", variable);
        finish(&mut command)
    };
    let option = store.to_str().expect("a UTF-8 path");
    assert_eq!(status(&["--json"], &[], &store).object(), expected);
    assert_eq!(status(&[], &["--json"], &store).object(), expected);
    assert_eq!(status(&["--store", option, "--json"], &[], &elsewhere).object(), expected);
    assert_eq!(status(&[], &["--json", "--store", option], &elsewhere).object(), expected);
    assert_eq!(status(&["--json"], &[], &elsewhere).error_code(), "none-active");
    assert!(!elsewhere.exists(), "asking made a store");
    copy_folder(&golden("tiny-kjv"), &place.path("kjv=1"));
    // A folder whose own name holds the sign is a path, not a weight.
    let argument = place.arg("kjv=1");
    let object = place.json([
        "logits",
        "--tokens",
        "1",
        "--model",
        &golden("tiny-q8_0.gguf"),
        "--adapter",
        &argument,
    ]);
    let kjv = place.json(["logits", "--tokens", "1", "--composition", "kjv"]);
    assert_eq!(object["all_blake3"], kjv["all_blake3"]);
}
