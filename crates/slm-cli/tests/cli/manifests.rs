//! Manifests as files: each bent one is refused with its code and changes nothing; the unbent one activates.

use crate::common::{Place, text};

/// The manifest of kjv at 0.75 below python at 0.25, not active, in both forms.
struct Manifests {
    place: Place,
    toml: String,
    json: String,
    composition: String,
}

fn manifests() -> Manifests {
    let place = Place::with_active();
    let mut written = Vec::new();
    let mut composition = String::new();
    for file in ["m.toml", "m.json"] {
        let out = place.arg(file);
        let object = place.json([
            "compose",
            "m",
            "--base",
            "tiny",
            "--adapter",
            "kjv=0.75",
            "--adapter",
            "python=0.25",
            "--out",
            &out,
        ]);
        composition = text(&object, "composition").to_owned();
        written.push(std::fs::read_to_string(place.path(file)).expect("the manifest"));
    }
    let (json, toml) = (written.remove(1), written.remove(0));
    Manifests { place, toml, json, composition }
}

impl Manifests {
    /// Writes a bent document under every extension it could have and holds the refusals against the code and the store.
    fn refuses(&self, extension: &str, document: &str, code: &str) {
        let before = self.place.snapshot();
        let file = self.place.write(&format!("bent.{extension}"), document);
        let found = self.place.refused(["activate", &file]);
        assert_eq!(found, (3, code.to_owned()), "{extension}:\n{document}");
        let found = self.place.refused(["run", "x", "--composition", &file]);
        assert_eq!(found, (3, code.to_owned()), "run, {extension}:\n{document}");
        assert!(self.place.snapshot() == before, "{code}: the store has changed");
    }

    fn refuses_toml(&self, from: &str, to: &str, code: &str) {
        assert!(self.toml.contains(from), "{from} in\n{}", self.toml);
        self.refuses("toml", &self.toml.replacen(from, to, 1), code);
    }

    fn refuses_json(&self, from: &str, to: &str, code: &str) {
        assert!(self.json.contains(from), "{from} in\n{}", self.json);
        self.refuses("json", &self.json.replacen(from, to, 1), code);
    }

    /// The value of a string field, the first of its name.
    fn value(&self, field: &str) -> String {
        let lines = format!("\n{}", self.toml);
        let (_, rest) = lines.split_once(&format!("\n{field} = \"")).expect("the field");
        rest.split_once('"').expect("a closing quote").0.to_owned()
    }
}

#[test]
fn every_malformed_manifest_is_refused_and_changes_nothing() {
    let m = manifests();
    let status = m.place.json(["status"]);
    let tokenizer = m.value("tokenizer_id");
    let base = m.value("base_model_hash");
    let file_hash = m.value("file_hash");
    let absent = format!("sha256:{}", "1".repeat(64));

    // A field that is not there.
    m.refuses_toml("load_order = 1\n", "", "manifest-missing-field");
    m.refuses_json("\"load_order\":1,", "", "manifest-missing-field");
    m.refuses_toml(&format!("tokenizer_id = \"{tokenizer}\"\n"), "", "manifest-missing-field");
    m.refuses_json(&format!(",\"tokenizer_id\":\"{tokenizer}\""), "", "manifest-missing-field");

    // Hashes: misspelt, and well spelt but of nothing here.
    for hash in [&base, &file_hash] {
        for bad in [
            hash.replacen("sha256:", "", 1),
            hash.replacen("sha256:", "sha512:", 1),
            hash[..hash.len() - 1].to_owned(),
            hash.to_uppercase(),
        ] {
            m.refuses_toml(hash, &bad, "digest-spelling");
            m.refuses_json(hash, &bad, "digest-spelling");
        }
    }
    m.refuses_toml(&base, &absent, "base-absent");
    m.refuses_json(&base, &absent, "base-absent");
    m.refuses_toml(&file_hash, &absent, "adapter-absent");
    m.refuses_json(&file_hash, &absent, "adapter-absent");
    m.refuses_toml(&tokenizer, &absent, "tokenizer-mismatch");
    m.refuses_json(&tokenizer, &absent, "tokenizer-mismatch");
    let adapter = m.value("adapter_id");
    m.refuses_toml(&adapter, &absent, "adapter-mismatch");
    m.refuses_json(&adapter, &absent, "adapter-mismatch");

    // Keys that stand twice, or that no manifest has.
    m.refuses_toml(
        "merge_weight = 0.75\n",
        "merge_weight = 0.75\nmerge_weight = 0.75\n",
        "manifest-duplicate-key",
    );
    m.refuses_json(
        "\"merge_weight\":0.75,",
        "\"merge_weight\":0.75,\"merge_weight\":0.5,",
        "manifest-duplicate-key",
    );
    m.refuses_toml(
        "merge_weight = 0.75\n",
        "merge_weight = 0.75\nmerge_wieght = 1.0\n",
        "manifest-unknown-field",
    );
    m.refuses_json(
        "\"merge_weight\":0.75,",
        "\"merge_weight\":0.75,\"note\":null,",
        "manifest-unknown-field",
    );

    // The order of the stack.
    m.refuses_toml("load_order = 2", "load_order = 3", "manifest-load-order");
    m.refuses_json("\"load_order\":2", "\"load_order\":3", "manifest-load-order");
    m.refuses_toml("load_order = 1", "load_order = 2", "manifest-load-order");
    m.refuses_json("\"load_order\":1", "\"load_order\":0", "manifest-load-order");

    // Weights.
    for weight in ["nan", "inf", "-inf", "1e39"] {
        m.refuses_toml(
            "merge_weight = 0.75",
            &format!("merge_weight = {weight}"),
            "manifest-weight",
        );
    }
    m.refuses_json("\"merge_weight\":0.75", "\"merge_weight\":1e39", "manifest-weight");
    m.refuses_json("\"merge_weight\":0.75", "\"merge_weight\":NaN", "manifest-syntax");
    m.refuses_json("\"merge_weight\":0.75", "\"merge_weight\":\"0.75\"", "manifest-type");

    // Other arithmetic, another program, another time.
    m.refuses_toml("numerics = 1", "numerics = 2", "numerics-version");
    m.refuses_json("\"numerics\":1", "\"numerics\":2", "numerics-version");
    m.refuses_toml("name = \"slm\"", "name = \"other\"", "manifest-runtime");
    m.refuses_json("\"name\":\"slm\"", "\"name\":\"other\"", "manifest-runtime");
    m.refuses_toml("timestamp_utc = \"2", "timestamp_utc = \"x2", "manifest-timestamp");
    m.refuses_json("\"timestamp_utc\":\"2", "\"timestamp_utc\":\"x2", "manifest-timestamp");

    // What is said of an adapter or a base that is another.
    m.refuses_toml("rank = 8", "rank = 9", "manifest-contradicts");
    m.refuses_json("\"rank\":8", "\"rank\":9", "manifest-contradicts");
    m.refuses_toml("nnz = 155648", "nnz = 155647", "manifest-contradicts");
    m.refuses_json("\"blk.0.attn_k.weight\",", "", "manifest-contradicts");
    m.refuses_toml("tensors = 29", "tensors = 28", "manifest-contradicts");
    m.refuses_toml(
        "timestamp_utc",
        &format!("plan = \"{absent}\"\ntimestamp_utc"),
        "plan-unsupported",
    );

    // No document at all.
    m.refuses("toml", "= 1\n", "manifest-syntax");
    m.refuses("json", "{", "manifest-syntax");
    m.refuses("toml", "", "manifest-missing-field");

    assert_eq!(m.place.json(["status"]), status);
}

#[test]
fn the_unbent_manifest_activates_in_both_forms_and_under_any_name() {
    let m = manifests();
    let toml = m.place.json(["activate", &m.place.arg("m.toml")]);
    assert_eq!(
        (toml["changed"].as_bool(), text(&toml, "composition")),
        (Some(true), m.composition.as_str())
    );
    let json = m.place.json(["activate", &m.place.arg("m.json")]);
    assert_eq!(
        (json["changed"].as_bool(), &json["composition"]),
        (Some(false), &toml["composition"])
    );
    m.place.json(["activate", "kjv"]);
    // Without an extension: a file where the store has no such name; a name of the store before a file.
    m.place.write("plain", &m.toml);
    let plain = m.place.json(["activate", "plain"]);
    assert_eq!(text(&plain, "composition"), m.composition);
    m.place.write("kjv", &m.toml);
    let named = m.place.json(["activate", "kjv"]);
    assert_ne!(text(&named, "composition"), m.composition);
    let path = m.place.json(["activate", &m.place.arg("kjv")]);
    assert_eq!(text(&path, "composition"), m.composition);
    // By the digest of the manifest, and by the composition's.
    m.place.json(["rollback"]);
    let digest = m.place.json(["inspect", "m"]);
    let by_manifest = m.place.json(["activate", text(&digest, "manifest")]);
    assert_eq!(text(&by_manifest, "composition"), m.composition);
    // Order, spacing and comments of TOML are the writer's own.
    m.place.json(["activate", "base"]);
    let commented =
        m.place.write("c.toml", format!("# by hand\n{}", m.toml.replace(" = ", "   =  ")));
    assert_eq!(text(&m.place.json(["activate", &commented]), "composition"), m.composition);
}

#[test]
fn a_manifest_names_content_and_not_names() {
    let m = manifests();
    // The name now stands for another adapter; the manifest names files, not names, and still gives what it gave.
    m.place.json([
        "adapter",
        "import",
        &crate::common::golden("tiny-python"),
        "--name",
        "kjv",
        "--base",
        "tiny",
        "--replace",
    ]);
    let object = m.place.json(["activate", &m.place.arg("m.toml")]);
    assert_eq!(text(&object, "composition"), m.composition);
}
