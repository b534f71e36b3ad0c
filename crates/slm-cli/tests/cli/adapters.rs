//! Adapters of every format and kind through the program: imported, looked into, compared, written and read again.

use serde_json::{Value, json};

use crate::common::{Place, copy_folder, golden, text};

/// The identity of an adapter that is imported for the bf16 base `hf` or the 8-bit base `tiny`.
fn import(place: &Place, base: &str, name: &str, path: &str, more: &[&str]) -> Value {
    let args = ["adapter", "import", path, "--name", name, "--base", base];
    place.json([&args[..], more].concat())
}

#[test]
fn every_kind_is_imported_stacked_and_shown() {
    let place = Place::new();
    place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    for (name, kind, n) in [
        ("lora-bias-term", "lora", 8),
        ("lora-embed", "lora", 5),
        ("dora", "dora", 12),
        ("ia3", "ia3", 12),
        ("loha", "loha", 8),
        ("lokr", "lokr", 8),
        ("vera", "vera", 4),
    ] {
        let object = import(&place, "tiny", name, &golden(&format!("adapters/{name}")), &[]);
        assert_eq!(
            (text(&object, "kind"), object["targets"].as_array().map(Vec::len)),
            (kind, Some(n))
        );
        let shown = place.json(["adapter", "inspect", name]);
        assert_eq!(shown["adapter"], object["adapter"], "{name}");
        assert_eq!(shown["modules"].as_array().map(Vec::len), Some(n), "{name}");
        assert_eq!(shown["kind"], object["kind"], "{name}");
        let composed = format!("with-{name}");
        place.json(["compose", &composed, "--base", "tiny", "--adapter", name]);
        place.json(["activate", &composed]);
        let digest = place.json(["logits", "--tokens", "767,261,305"]);
        place.json([
            "compose",
            &composed,
            "--base",
            "tiny",
            "--adapter",
            &format!("{name}=0.5"),
            "--replace",
        ]);
        place.json(["activate", &composed]);
        let half = place.json(["logits", "--tokens", "767,261,305"]);
        assert_ne!(digest["all_blake3"], half["all_blake3"], "{name}");
        // Through PEFT's form and back it is the same adapter.
        let folder = place.arg(&format!("out-{name}"));
        place.json(["export", "adapter", name, &folder, "--format", "peft"]);
        let again = import(&place, "tiny", &format!("{name}-again"), &folder, &[]);
        assert_eq!(again["adapter"], object["adapter"], "{name}");
    }
    let embed = import(&place, "tiny", "e", &golden("adapters/lora-embed"), &[]);
    assert_eq!(embed["dropped"], json!(["base_model.model.model.embed_tokens.base_layer.weight"]));
    let warnings = embed["warnings"].as_array().expect("a list");
    assert!(warnings.iter().any(|w| w.as_str().is_some_and(|w| w.starts_with("tied-split"))));
}

#[test]
fn gguf_and_binary_files_are_adapters() {
    let place = Place::new();
    place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    let peft = import(&place, "tiny", "qv", &golden("adapters/lora-qv"), &[]);
    let gguf = golden("adapters/gguf/lora-qv.gguf");
    let twin = import(&place, "tiny", "qv-gguf", &gguf, &[]);
    assert_eq!(twin["adapter"], peft["adapter"], "one adapter in two formats");
    assert_eq!(place.json(["inspect", &gguf])["kind"], "gguf-adapter");
    let same = place.json(["adapter", "diff", "qv", &gguf, "--base", "tiny"]);
    assert_eq!((&same["same"], &same["tensors"]), (&json!(true), &json!([])));
    import(&place, "tiny", "layers", &golden("adapters/lora-layers"), &[]);
    let other = place.json(["adapter", "diff", "qv", "layers"]);
    assert_eq!(other["same"], json!(false));
    assert!(other["tensors"].as_array().is_some_and(|rows| rows.len() >= 8));

    let (plan008, layout) =
        (golden("lora-binary/plan008.lora"), golden("lora-binary/plan008.layout.json"));
    let args = ["adapter", "import", &plan008, "--name", "p", "--base", "tiny"];
    assert_eq!(place.refused(args), (2, "option-missing".to_owned()));
    let imported = import(&place, "tiny", "p", &plan008, &["--layout", &layout]);
    assert_eq!(imported["targets"].as_array().map(Vec::len), Some(4));
    let compact = golden("lora-binary/compact.lora");
    assert_eq!(
        import(&place, "tiny", "c", &compact, &[])["targets"].as_array().map(Vec::len),
        Some(8)
    );
    for file in [&plan008, &compact] {
        assert_eq!(place.json(["inspect", file])["kind"], "lora-binary");
    }
    // Written as Plan 008 with its layout, it is the same adapter again; as GGUF too.
    let out = place.arg("out.lora");
    place.json(["export", "adapter", "p", &out, "--format", "plan008"]);
    let layout = format!("{out}.layout.json");
    let again = import(&place, "tiny", "p2", &out, &["--layout", &layout]);
    assert_eq!(again["adapter"], imported["adapter"]);
    let out = place.arg("out.gguf");
    place.json(["export", "adapter", "p", &out, "--format", "gguf"]);
    assert_eq!(import(&place, "tiny", "p3", &out, &[])["adapter"], imported["adapter"]);
    import(&place, "tiny", "ia3", &golden("adapters/ia3"), &[]);
    let args = ["export", "adapter", "ia3", &out, "--format", "gguf"];
    assert_eq!(place.refused(args), (3, "adapter-export".to_owned()));
    let args = ["adapter", "import", &golden("tiny-q8_0.gguf"), "--name", "m", "--base", "tiny"];
    assert_eq!(place.refused(args), (3, "unknown-format".to_owned()));
}

#[test]
fn a_tokenizer_beside_an_adapter_must_be_the_base_s() {
    let place = Place::new();
    place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    copy_folder(&golden("adapters/lora-qv"), &place.path("qv"));
    let folder = place.arg("qv");
    let tokenizer =
        std::fs::read(format!("{}/tokenizer.json", golden("tiny"))).expect("a tokenizer");
    std::fs::write(place.path("qv").join("tokenizer.json"), &tokenizer).expect("written");
    import(&place, "tiny", "same", &folder, &[]);
    let refused = || {
        let args = ["adapter", "import", &folder, "--name", "more", "--base", "tiny"];
        assert_eq!(place.refused(args), (3, "tokenizer-mismatch".to_owned()));
        let run = ["run", "x", "--model", &golden("tiny-q8_0.gguf"), "--adapter", &folder];
        assert_eq!(place.refused(run), (3, "tokenizer-mismatch".to_owned()));
        let inspect = ["adapter", "inspect", &folder, "--base", "tiny"];
        assert_eq!(place.refused(inspect), (3, "tokenizer-mismatch".to_owned()));
    };
    for (file, content) in [
        ("added_tokens.json", r#"{"<new>": 1024}"#),
        ("tokenizer_config.json", r#"{"added_tokens_decoder": {"1024": {"content": "<new>"}}}"#),
    ] {
        let path = place.path("qv").join(file);
        std::fs::write(&path, content).expect("written");
        refused();
        std::fs::remove_file(&path).expect("removed");
    }
    // The same tokens, merged in another order, or of another text.
    let bent = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut document = serde_json::from_slice(&tokenizer).expect("JSON");
        change(&mut document);
        let path = place.path("qv").join("tokenizer.json");
        std::fs::write(path, document.to_string()).expect("written");
    };
    bent(&|d| d["model"]["merges"].as_array_mut().expect("merges").swap(0, 1));
    refused();
    bent(&|d| d["normalizer"] = serde_json::json!({ "type": "Lowercase" }));
    refused();
    bent(&|_| {});
    import(&place, "tiny", "again", &folder, &[]);
}

#[test]
fn a_layout_that_nothing_would_read_is_refused() {
    let place = Place::new();
    place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    let refused = (3, "unknown-format".to_owned());
    let layout = ["--layout", "nothing.json"];
    let folder = golden("adapters/lora-qv");
    let import = ["adapter", "import", &folder, "--name", "qv", "--base", "tiny"];
    let inspect = ["adapter", "inspect", &folder, "--base", "tiny"];
    for args in [&import[..], &inspect, &["adapter", "inspect", "qv"]] {
        place.json(args);
        assert_eq!(place.refused([args, &layout].concat()), refused, "{args:?}");
    }
}

#[test]
fn what_a_binding_found_is_told_by_every_command_that_binds() {
    let place = Place::new();
    let model = golden("tiny-q8_0.gguf");
    place.json(["import", &model, "--name", "tiny"]);
    for name in ["lora-embed", "lora-qv", "gguf/lora-qv.gguf"] {
        let path = golden(&format!("adapters/{name}"));
        let imported = import(&place, "tiny", "x", &path, &["--replace"]);
        let inspect = ["adapter", "inspect", &path, "--base", "tiny"];
        let shown = place.json(inspect);
        for field in ["patterns", "dropped", "warnings"] {
            assert_eq!(shown[field], imported[field], "{name}: {field}");
        }
        let lines = place.run(inspect).stdout;
        let warnings = shown["warnings"].as_array().expect("a list");
        let list = |field: &str| shown[field].as_array().expect("a list").clone();
        let patterns = list("patterns");
        let patterns = patterns
            .iter()
            .map(|p| format!("pattern {} matched {}", text(p, "pattern"), p["matched"]));
        let dropped = list("dropped");
        let dropped = dropped.iter().map(|d| format!("dropped {}", d.as_str().expect("a name")));
        let warned = warnings.iter().map(|w| format!("warning: {}", w.as_str().expect("text")));
        for line in patterns.chain(dropped).chain(warned) {
            assert!(lines.lines().any(|shown| shown == line), "{line} in\n{lines}");
        }
        // Run from files, nobody has imported it before: the warnings stand beside the text.
        let file = std::path::Path::new(&path).file_name().expect("a name").display().to_string();
        let run = ["run", "x", "--max-tokens", "1", "--model", &model, "--adapter", &path];
        let stderr = place.run(run).stderr;
        let expected: String = warnings
            .iter()
            .map(|w| format!("warning: {file}: {}\n", w.as_str().expect("text")))
            .collect();
        assert!(expected.contains("undeclared"), "{expected}");
        assert_eq!(stderr, expected);
        assert_eq!(place.run([&run[..], &["-q"]].concat()).stderr, "");
    }
    let embed = golden("adapters/lora-embed");
    let shown = place.json(["adapter", "inspect", &embed, "--base", "tiny"]);
    let alone = place.json(["inspect", &embed]);
    assert_eq!(shown["dropped"].as_array().map(Vec::len), Some(1));
    let codes = |object: &Value| -> Vec<String> {
        let warnings = object["warnings"].as_array().expect("a list").iter();
        warnings.filter_map(|w| w.as_str()?.split(':').next().map(str::to_owned)).collect()
    };
    assert!(codes(&shown).contains(&"tied-split".to_owned()), "{shown}");
    // Without a base as much as is known: a copy of a base weight is not said to be the base's own.
    assert!(codes(&alone).contains(&"undeclared".to_owned()), "{alone}");
    assert_eq!(alone["dropped"], json!([]));
    let copy = &shown["dropped"][0].as_str().expect("a name");
    let told = alone["warnings"].as_array().expect("a list").iter().filter_map(Value::as_str);
    let told: Vec<&str> = told.filter(|warning| warning.starts_with(copy)).collect();
    assert!(told.len() == 1 && told[0].ends_with("not compared: no base was given"), "{told:?}");
}

/// Nothing beside an adapter is passed over in silence: what could hold weights is a warning wherever the adapter is bound or looked into.
#[test]
fn files_beside_an_adapter_are_told() {
    let place = Place::new();
    place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    copy_folder(&golden("tiny-kjv"), &place.path("qv"));
    let folder = place.arg("qv");
    let plain = import(&place, "tiny", "plain", &folder, &[]);
    assert_eq!(plain["unread"], json!([]));
    for name in [
        "adapter_model.bin",
        "adapter_model.safetensors.index.json",
        "new_embeddings.safetensors",
        "optimizer.pt",
        "README.md",
    ] {
        std::fs::write(place.path("qv").join(name), "x").expect("written");
    }
    std::fs::create_dir(place.path("qv").join("checkpoint-8")).expect("a folder");
    let model = golden("tiny-q8_0.gguf");
    let imported = import(&place, "tiny", "more", &folder, &[]);
    assert_eq!(imported["adapter"], plain["adapter"]);
    let base = ["adapter", "inspect", &folder, "--base", "tiny"];
    for object in [imported, place.json(base), place.json(["inspect", &folder])] {
        assert_eq!(object["unread"], json!(["README.md", "optimizer.pt"]));
        let warnings = object["warnings"].as_array().expect("a list").iter();
        let told = warnings.filter_map(|w| w.as_str()?.split(" is not read: ").next());
        let told: Vec<&str> = told.filter(|name| name.starts_with('"')).collect();
        let expected = [
            "\"adapter_model.bin\"",
            "\"adapter_model.safetensors.index.json\"",
            "\"checkpoint-8\"",
            "\"new_embeddings.safetensors\"",
        ];
        assert_eq!(told, expected);
    }
    let run = ["run", "x", "--max-tokens", "1", "--model", &model, "--adapter", &folder];
    let stderr = place.run(run).stderr;
    assert!(stderr.contains("new_embeddings.safetensors\" is not read"), "{stderr}");
    assert!(!stderr.contains("README"), "{stderr}");
}
