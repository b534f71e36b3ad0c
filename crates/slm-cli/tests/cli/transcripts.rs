//! Golden transcripts: what a person reads, for a day without trouble and for every kind of refusal.
//!
//! The snapshots were made by slm itself and read by us: they guard its words against change. Digests, times and places are left out of them.
//! `cargo insta review`, or `INSTA_UPDATE=always`, accepts a change.

use std::path::Path;

use crate::common::{Place, copy_folder, finish, golden, text};
use crate::transcript::Transcript;

#[test]
fn a_day_without_trouble() {
    let place = Place::new();
    let mut day = Transcript::new(&place);
    day.run(&["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    for (name, folder) in [("kjv", "tiny-kjv"), ("python", "tiny-python")] {
        day.run(&["adapter", "import", &golden(folder), "--name", name, "--base", "tiny"]);
    }
    day.run(&["compose", "plain", "--base", "tiny"]);
    let pair = ["--adapter", "kjv=0.7", "--adapter", "python=0.3"];
    day.run(&[&["compose", "pair", "--base", "tiny"], &pair[..]].concat());
    for args in [
        &["list"][..],
        &["activate", "plain"],
        &["activate", "pair"],
        &["activate", "pair"],
        &["status"],
        &["inspect", "pair"],
        &["deactivate", "kjv"],
        &["deactivate", "kjv"],
        &["rollback"],
        &["rollback"],
        &["history"],
        &["audit"],
        &["verify"],
        &["verify", "--deep"],
        &["gc"],
        &["pack", "pair", "pair.slm"],
        &["trust", "policy"],
        &["run", "In the beginning", "--max-tokens", "8"],
    ] {
        let ran = day.run(args);
        assert_eq!(ran.exit, 0, "{args:?}: {ran:?}");
    }
    insta::assert_snapshot!(day.finish());
}

#[test]
fn hostile_models() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../slm-format/tests/data/hostile");
    for folder in ["gguf", "safetensors"] {
        for file in files_of(&corpus.join(folder)) {
            if !file.ends_with("valid.gguf") {
                transcript.refused(3, &["import", &file, "--name", "x"]);
            }
        }
    }
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn hostile_adapters() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../slm-overlay/tests/data");
    for from in files_of(&data).iter().filter(|path| path.contains("refuse-")) {
        // Those that are refused for their configuration alone come without weights.
        let folder =
            place.path(Path::new(from).file_name().expect("a name").to_str().expect("text"));
        copy_folder(data.join("lora-qv").to_str().expect("a UTF-8 path"), &folder);
        copy_folder(from, &folder);
        let folder = folder.to_str().expect("a UTF-8 path").to_owned();
        transcript.refused(3, &["adapter", "import", &folder, "--name", "x", "--base", "tiny"]);
    }
    for (n, (from, to)) in [
        ("\"r\": 8", "\"r\": 0"),
        ("\"r\": 8", "\"r\": \"eight\""),
        ("\"lora_alpha\": 16", "\"lora_alpha\": 1e400"),
        ("\"peft_type\": \"LORA\"", "\"peft_type\": \"PROMPT_TUNING\""),
        ("\"r\": 8", "\"r\": 8, \"r\": 8"),
        ("\"r\": 8", "\"r\": 8, \"a_new_idea\": 1"),
    ]
    .iter()
    .enumerate()
    {
        let folder = place.path(&format!("bent{n}"));
        copy_folder(&golden("tiny-kjv"), &folder);
        let config = folder.join("adapter_config.json");
        let good = std::fs::read_to_string(&config).expect("the configuration");
        let bent = good.replacen(from, to, 1);
        assert_ne!(good, bent, "{from} stands in the configuration");
        std::fs::write(&config, bent).expect("the configuration is written");
        let folder = folder.to_str().expect("a UTF-8 path").to_owned();
        transcript.refused(3, &["adapter", "import", &folder, "--name", "x", "--base", "tiny"]);
    }
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn bent_manifests() {
    let place = Place::with_active();
    place.json(["compose", "told", "--base", "tiny", "--adapter", "kjv", "--out", "good.toml"]);
    let good = std::fs::read_to_string(place.path("good.toml")).expect("the manifest");
    let line = |key: &str| {
        let found = good.lines().find(|line| line.starts_with(key));
        found.unwrap_or_else(|| panic!("{key} in {good}")).to_owned()
    };
    let mut transcript = Transcript::new(&place);
    for key in [
        "base_model_hash",
        "tokenizer_id",
        "timestamp_utc",
        "load_order",
        "merge_weight",
        "file_hash",
        "rank",
        "nnz",
    ] {
        for value in ["", "= 0", "= \"sha256:../../x\"", "= nan", "= -1"] {
            let whole = line(key);
            let new = if value.is_empty() { String::new() } else { format!("{key} {value}") };
            place.write("bent.toml", good.replacen(&whole, &new, 1));
            if finish(&mut place.command(["inspect", "bent.toml"])).exit == 0 {
                // A number that describes, in a form that may be.
                continue;
            }
            transcript.refused(3, &["activate", "bent.toml"]);
        }
    }
    place.write("bent.toml", format!("surprise = 1\n{good}"));
    transcript.refused(3, &["activate", "bent.toml"]);
    place.write("bent.toml", "= 1");
    transcript.refused(3, &["activate", "bent.toml"]);
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn commands_that_cannot_be() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    for (exit, args) in [
        (2, &["nothing"][..]),
        (2, &["run", "x", "--threads", "0"]),
        (2, &["run", ""]),
        (2, &["compose", "no name", "--base", "tiny"]),
        (2, &["compose", "x", "--base", "tiny", "--adapter", "kjv=much"]),
        (2, &["logits", "--tokens", "1024"]),
        (3, &["compose", "kjv", "--base", "tiny"]),
        (3, &["compose", "x", "--base", "tiny", "--adapter", "kjv", "--adapter", "kjv"]),
        (4, &["activate", "absent"]),
        (4, &["import", "absent.gguf", "--name", "x"]),
        (4, &["compose", "x", "--base", "absent"]),
        (5, &["bench", "--prompt", "505", "--generate", "8"]),
    ] {
        transcript.refused(exit, args);
    }
    let empty = Place::new();
    let mut nothing = Transcript::new(&empty);
    for (exit, args) in
        [(4, &["status"][..]), (4, &["rollback"]), (4, &["run", "x"]), (4, &["deactivate", "kjv"])]
    {
        nothing.refused(exit, args);
    }
    let all = transcript.finish() + &nothing.finish();
    insta::assert_snapshot!(all);
}

#[test]
fn what_the_policy_refuses() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    for component in ["base", "adapters", "kv", "scratch", "total"] {
        place.write("store/policy.toml", format!("budget = {{ {component}_bytes = 1000 }}\n"));
        let args: &[&str] = match component {
            "kv" | "scratch" => &["run", "x", "--composition", "kjv", "--threads", "1"],
            _ => &["activate", "kjv"],
        };
        transcript.refused(5, args);
    }
    place.write("store/policy.toml", "budget = { gold_bytes = 1 }\n");
    transcript.refused(3, &["activate", "kjv"]);
    std::fs::remove_file(place.store().join("policy.toml")).expect("it is removed");

    place.json(["activate", "kjv"]);
    place.json(["key", "new", "alice"]);
    let bob = place.json(["key", "new", "bob"]);
    place.json(["trust", "add", "alice", "alice.pub"]);
    place.json(["trust", "policy", "signed"]);
    transcript.refused(3, &["activate", "python"]);
    transcript.refused(3, &["rollback"]);
    transcript.refused(3, &["deactivate", "kjv"]);
    place.json(["sign", "python", "--key", "bob.key"]);
    transcript.refused(3, &["activate", "python"]);
    place.json(["sign", "python", "--key", "alice.key"]);
    assert_eq!(transcript.run(&["activate", "python"]).exit, 0);
    insta::assert_snapshot!(transcript.finish().replace(text(&bob, "key"), "KEY"));
}

#[test]
fn hostile_binaries() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../slm-overlay/tests/data");
    for file in files_of(&data.join("lora-binary-hostile")) {
        if !file.contains("_ok") && !file.ends_with(".json") {
            let import = ["adapter", "import", &file, "--name", "x", "--base", "tiny"];
            transcript.refused(3, &import);
        }
    }
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn damage_and_no_parent() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    transcript.refused(4, &["rollback"]);
    let record =
        std::fs::read_to_string(place.store().join("names/adapter/kjv")).expect("a record");
    let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
    let hex = record["blob"].as_str().and_then(|blob| blob.strip_prefix("sha256:"));
    let blob = place.store().join("blobs/sha256").join(hex.expect("a digest"));
    let mut bytes = std::fs::read(&blob).expect("the blob");
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::remove_file(&blob).expect("it is removed");
    std::fs::write(&blob, bytes).expect("it is written");
    transcript.refused(7, &["activate", "kjv"]);
    transcript.refused(7, &["run", "x", "--composition", "kjv"]);
    let ran = transcript.run(&["verify", "--deep"]);
    assert_eq!(ran.exit, 7, "{ran:?}");
    // Another composition is not touched by it.
    assert_eq!(transcript.run(&["activate", "python"]).exit, 0);
    insta::assert_snapshot!(transcript.finish());
}

fn files_of(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder");
    let mut paths: Vec<String> = entries
        .map(|entry| entry.expect("an entry").path().to_str().expect("a UTF-8 path").to_owned())
        .collect();
    paths.sort();
    paths
}
