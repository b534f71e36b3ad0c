//! `plan`, `audit`, `verify`, `gc` and `eval … --record`.

use serde_json::Value;

use crate::common::{Place, golden};

#[test]
fn plan_says_what_is_needed_and_holds_the_policy_to_it() {
    let place = Place::with_active();
    let object = place.json(["plan", "--positions", "100", "--threads", "1"]);
    let plan = &object["plan"];
    let bytes = |what: &str| plan[what].as_u64().unwrap_or_else(|| panic!("{what}: {object}"));
    let parts =
        ["base", "adapters", "dequantization_scratch", "requantization_scratch", "kv", "overhead"];
    assert_eq!(parts.iter().map(|part| bytes(part)).sum::<u64>(), bytes("total"));
    assert_eq!(bytes("requantization_scratch"), 0);
    assert_eq!(object["measured"]["kv"], plan["kv"]);
    assert_eq!(object["measured"]["adapters"], plan["adapters"]);
    assert_eq!(object["adapters"].as_array().map(Vec::len), Some(2));
    assert!(bytes("extra_macs_per_token") > 0 && bytes("extra_bytes_per_token") > 0);
    // The whole context is the most there is to plan.
    let of_one = ["plan", "--threads", "1", "--chunk", "1"];
    let whole = place.json(of_one)["positions"].as_u64().expect("a number");
    let positions = |n: u64| [&of_one[..], &["--positions", &n.to_string()]].concat().join(" ");
    let twin = place.json(positions(whole).split(' '));
    assert_eq!(twin["positions"], whole);
    let beyond = place.refused(positions(whole + 1).split(' '));
    assert_eq!(beyond, (2, "option-value".to_owned()));
    // A byte less than what is planned is refused, by the plan and by what would allocate it.
    for (allowed, exit) in [(bytes("kv"), 0), (bytes("kv") - 1, 5)] {
        place.write("store/policy.toml", format!("budget = {{ kv_bytes = {allowed} }}\n"));
        for command in [
            &["plan", "--positions", "100", "--threads", "1"][..],
            &["run", "x", "--max-tokens", "99", "--ignore-eos", "--threads", "1"],
        ] {
            let ran = place.run(command);
            assert_eq!(ran.exit, exit, "{command:?}: {ran:?}");
        }
    }
    assert_eq!(place.refused(["plan", "--positions", "100"]), (5, "over-budget-kv".to_owned()));
    place.write("store/policy.toml", "budget = { adapters_bytes = 1000 }\n");
    let before = place.snapshot();
    assert_eq!(place.refused(["activate", "kjv"]), (5, "over-budget-adapters".to_owned()));
    assert_eq!(place.snapshot(), before);
    assert_eq!(place.json(["activate", "base"])["changed"], true);
}

#[test]
fn audit_tells_who_did_what_and_finds_a_changed_line() {
    let place = Place::with_active();
    place.json(["activate", "kjv"]);
    place.json(["rollback"]);
    assert_eq!(place.refused(["rollback"]), (4, "no-parent".to_owned()));
    let object = place.json(["audit"]);
    let records = object["records"].as_array().expect("a list");
    let last = records.last().expect("a record");
    let said = |operation: &str, stage: &str| {
        records.iter().filter(|row| row["operation"] == operation && row["stage"] == stage).count()
    };
    assert_eq!(said("import", "committed"), 1);
    assert_eq!(said("adapter-import", "committed"), 2);
    assert_eq!(said("compose", "committed"), 4);
    assert_eq!(said("activate", "committed"), 2);
    assert_eq!((said("rollback", "committed"), said("rollback", "refused")), (1, 1));
    assert_eq!(last["sequence"].as_u64(), Some(records.len() as u64));
    let text = place.run(["audit"]).stdout;
    assert!(text.contains("activate") && text.contains("committed"), "{text}");
    let log = place.store().join("audit.log");
    let good = std::fs::read_to_string(&log).expect("the log");
    std::fs::write(&log, good.replacen("committed", "unchanged", 1)).expect("a file");
    assert_eq!(place.refused(["audit"]), (7, "log-damaged".to_owned()));
    assert_eq!(place.refused(["verify"]), (7, "store-unclean".to_owned()));
    std::fs::write(&log, good).expect("a file");
    assert_eq!(place.json(["audit"]), object);
}

/// The system's word for who it was, and not the environment's.
#[cfg(unix)]
#[test]
fn audit_names_the_user_whose_process_it_was() {
    let place = Place::with_tiny();
    let mut command = place.command(["compose", "base", "--base", "tiny"]);
    let ran = crate::common::finish(command.env("USER", "mallory").env("LOGNAME", "mallory"));
    assert_eq!(ran.exit, 0, "{ran:?}");
    let records = place.json(["audit"]);
    let who = records["records"].as_array().and_then(|records| records.last()).expect("a record")
        ["actor"]
        .clone();
    let id = |what: &str| {
        let output = std::process::Command::new("id").arg(what).output().expect("id of coreutils");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    let (number, name) = (format!("uid-{}", id("-u")), id("-un"));
    assert!(who == number.as_str() || who == name.as_str(), "{who} is neither {number} nor {name}");
}

/// A manifest names what its base was imported from: the file's sha256, or that of what `sha256sum` prints of a folder's files.
#[test]
fn a_manifest_names_what_its_base_was_imported_from() {
    let place = Place::with_active();
    let source = |composition: &str| {
        let path = place.arg(&format!("{composition}.json"));
        place.json(["compose", composition, "--base", "tiny", "--replace", "--out", &path]);
        let manifest = std::fs::read(place.path(&format!("{composition}.json"))).expect("written");
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
        manifest["provenance"]["base_source_hash"].clone()
    };
    let file = std::fs::read(golden("tiny-q8_0.gguf")).expect("the model");
    let expected = slm_format::Digest::of(&file);
    assert_eq!(source("a"), serde_json::json!(expected));
    let bases = place.json(["list"])["bases"].clone();
    assert_eq!(bases[0]["source"], serde_json::json!(expected));

    let folder = golden("tiny");
    let imported = place.json(["import", &folder, "--name", "folder"]);
    let mut files: Vec<_> = std::fs::read_dir(&folder).expect("a folder").flatten().collect();
    files.sort_by_key(std::fs::DirEntry::file_name);
    let read = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
    let mut lines = String::new();
    for file in files {
        let name = file.file_name().into_string().expect("text");
        if read.contains(&name.as_str())
            || name.ends_with(".safetensors")
            || name.ends_with(".jinja")
        {
            let bytes = std::fs::read(file.path()).expect("a file");
            lines.push_str(&format!("{}  {name}\n", slm_format::Digest::of(&bytes).hex()));
        }
    }
    assert_eq!(imported["source"], serde_json::json!(slm_format::Digest::of(lines.as_bytes())));

    // A store that an earlier build wrote says nothing of it, and is read all the same.
    let name = place.store().join("names/base/tiny");
    let record = std::fs::read_to_string(&name).expect("the record");
    let at = record.find(",\"source\"").expect("a source");
    std::fs::remove_file(&name).expect("it is there");
    std::fs::write(&name, record[..at].to_owned() + "}\n").expect("written");
    assert_eq!(source("b"), serde_json::Value::Null);
    assert_eq!(
        place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"])["changed"],
        false
    );
    assert!(place.json(["verify", "--deep"])["clean"].as_bool().expect("clean"));
}

#[test]
fn verify_names_what_is_broken() {
    let place = Place::with_active();
    let object = place.json(["verify", "--deep"]);
    assert_eq!((&object["clean"], &object["deep"]), (&Value::Bool(true), &Value::Bool(true)));
    assert_eq!(object["hashed"], object["blobs"]);
    let blobs = place.store().join("blobs/sha256");
    let largest = std::fs::read_dir(&blobs)
        .expect("blobs")
        .map(|entry| entry.expect("a blob").path())
        .max_by_key(|path| path.metadata().expect("a file").len())
        .expect("a blob");
    let good = std::fs::read(&largest).expect("a blob");
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    let replace = |bytes: &[u8]| {
        std::fs::remove_file(&largest).expect("removed");
        std::fs::write(&largest, bytes).expect("written");
    };
    replace(&bad);
    let ran = place.run(["verify", "--deep"]);
    assert_eq!(ran.exit, 7, "{ran:?}");
    let name = largest.file_name().and_then(|name| name.to_str()).expect("a digest").to_owned();
    assert!(ran.stderr.contains(&name) && ran.stderr.contains("blob-damaged"), "{ran:?}");
    // One broken blob breaks nothing else.
    assert_eq!(place.run(["list"]).exit, 0);
    replace(&good);
    assert_eq!(place.json(["verify", "--deep"])["clean"], true);
}

#[test]
fn gc_removes_what_nothing_needs() {
    let place = Place::with_active();
    for round in 0..4 {
        place.json(["activate", ["kjv", "python"][round % 2]]);
    }
    let whole = place.json(["verify", "--deep"]);
    let object = place.json(["gc", "--keep", "2"]);
    let removed = object["removed"].as_array().expect("a list").len() as u64;
    assert!(removed >= 3, "{object}");
    assert_eq!(object["kept"].as_u64(), whole["blobs"].as_u64().map(|blobs| blobs - removed));
    let after = place.json(["verify", "--deep"]);
    assert_eq!(after["unneeded"].as_array().map(Vec::len), Some(0), "{after}");
    assert_eq!(place.json(["gc", "--keep", "2"])["removed"].as_array().map(Vec::len), Some(0));
    // One step back is left, and after it none.
    place.json(["rollback"]);
    assert_eq!(place.refused(["rollback"]), (4, "no-parent".to_owned()));
    assert_eq!(place.refused(["gc", "--keep", "0"]), (2, "command-line".to_owned()));
    place.json(["activate", "both"]);
}

#[test]
fn an_evaluation_is_recorded_shown_and_kept() {
    let place = Place::with_active();
    let text = place
        .write("text.txt", "In the beginning God created the heaven and the earth. ".repeat(6));
    let object = place.json(["eval", "ppl", &text, "--ctx", "32", "--record"]);
    let record = object["record"].as_str().expect("a digest").to_owned();
    let status = place.json(["status"]);
    let shown = &status["records"].as_array().expect("a list")[0];
    assert_eq!(shown["record"], record.as_str());
    assert_eq!(shown["results"]["perplexity"]["value"], object["perplexity"]);
    assert_eq!(shown["execution"], object["execution"]);
    assert_eq!(place.json(["inspect", "both"])["records"], status["records"]);
    assert_eq!(place.json(["inspect", "kjv"])["records"].as_array().map_or(0, Vec::len), 0);
    place.json(["gc", "--keep", "1"]);
    assert_eq!(place.json(["status"])["records"], status["records"], "kept with its composition");
    let model = crate::common::golden("tiny-q8_0.gguf");
    let refused = place.refused(["eval", "ppl", &text, "--record", "--model", &model]);
    assert_eq!(refused, (2, "option-value".to_owned()));
}

/// Whatever a person can hold in hand is shown by its digest, and as a file.
#[test]
fn every_document_can_be_looked_into() {
    let place = Place::with_active();
    place.json(["key", "new", "alice"]);
    let words = "In the beginning God created the heaven and the earth. ".repeat(6);
    let text = place.write("text.txt", words);
    let measured = place.json(["eval", "ppl", &text, "--ctx", "32", "--record"]);
    let record = measured["record"].as_str().expect("a digest");
    let signed = place.json(["sign", record, "--key", "alice.key", "--out", "record.minisig"]);
    let shown = place.json(["inspect", record]);
    assert_eq!((&shown["kind"], &shown["record"]), (&"evaluation-record".into(), &record.into()));
    assert_eq!(shown["composition"], measured["composition"]);
    assert_eq!(shown["results"]["perplexity"]["value"], measured["perplexity"]);
    assert_eq!(shown["document"]["evaluator"]["method"], "ppl");
    assert_eq!(shown["signatures"][0]["key"], signed["key"]);
    assert_eq!(shown["signatures"][0]["trusted_as"], Value::Null);
    place.json(["trust", "add", "alice", "alice.pub"]);
    assert_eq!(place.json(["inspect", record])["signatures"][0]["trusted_as"], "alice");
    // The same document as a file, and what else lies beside it.
    let document = place.store().join("blobs/sha256").join(&record["sha256:".len()..]);
    let bytes = std::fs::read(document).expect("the record");
    let copy = place.write("record.json", &bytes);
    assert_eq!(place.json(["inspect", &copy])["record"], record);
    for (what, kind) in [
        ("record.minisig", "signature"),
        ("alice.pub", "public-key"),
        ("alice.key", "secret-key"),
        (signed["signature"].as_str().expect("a digest"), "signature"),
        (place.json(["status"])["manifest"].as_str().expect("a digest"), "manifest"),
        (measured["composition"].as_str().expect("an id"), "manifest"),
    ] {
        assert_eq!(place.json(["inspect", what])["kind"], kind, "{what}");
    }
    let secret = place.run(["inspect", "alice.key"]);
    assert!(!secret.stdout.contains("RW"), "nothing of a secret key is shown: {secret:?}");
    // The generation that is active: its digest stands behind the number in the newer record.
    let slots = ["active.a", "active.b"].map(|slot| place.store().join(slot));
    let slots = slots.map(|slot| std::fs::read(slot).expect("a record"));
    let newer = slots.iter().max_by_key(|slot| slot[8..16].to_vec()).expect("two");
    let hex: String = newer[16..48].iter().map(|byte| format!("{byte:02x}")).collect();
    let generation = place.json(["inspect", &format!("sha256:{hex}")]);
    assert_eq!((&generation["kind"], &generation["generation"]), (&"generation".into(), &1.into()));
}

/// One name may be that of a base, an adapter and a composition, as it is after `unpack`.
#[test]
fn a_name_of_several_things_says_so() {
    let place = Place::with_active();
    let shown = place.json(["inspect", "kjv"]);
    assert_eq!((&shown["kind"], &shown["also"]), (&"manifest".into(), &Value::from(["adapter"])));
    for (kind, of) in [("composition", "manifest"), ("adapter", "adapter")] {
        let shown = place.json(["inspect", "kjv", "--kind", kind]);
        assert_eq!((&shown["kind"], &shown["also"]), (&of.into(), &Value::Array(Vec::new())));
    }
    let words = place.run(["inspect", "kjv"]).stdout;
    assert!(words.contains("slm inspect kjv --kind adapter"), "{words}");
    place.json(["pack", "both", "both.slm"]);
    let elsewhere = Place::new();
    elsewhere.json(["unpack", &place.arg("both.slm"), "--name", "k"]);
    let shown = elsewhere.json(["inspect", "k"]);
    assert_eq!((&shown["kind"], &shown["also"]), (&"manifest".into(), &Value::from(["base"])));
    assert_eq!(elsewhere.json(["inspect", "k", "--kind", "base"])["kind"], "base");
}
