//! The local policy: the table of its parameters is true, and none of them can come in a package.

#[allow(dead_code, unreachable_pub, reason = "shared by test files")]
mod common;

use slm_format::{Coded, Limits};
use slm_manifest::policy::{
    DuringGeneration, LocalPolicy, MAX_BUDGET, MAX_KEEP_GENERATIONS, MAX_WAIT_MS, PARAMETERS,
    PolicyError, RawLocalPolicy, TrustedKey,
};
use slm_manifest::signature::PublicKey;
use slm_manifest::{BareBase, Manifest, TrustPolicy, TrustRule};

const PLAIN: &str = "RWS3XHPxmlaOjRoVdWRPfVYvN543ZehUMsxqBMxBBDdK65smyyCYSfgF";
const OTHER: &str = "RWTFO5L9GtcX/mB4lqTYbgnP1kUY60PnQ3YS19JGmf8Q/WBz676iXdxO";

fn read(text: &str) -> Result<LocalPolicy, PolicyError> {
    LocalPolicy::from_toml(text, &Limits::STANDARD)
}

fn code(text: &str) -> &'static str {
    read(text).expect_err(text).code()
}

#[test]
fn nothing_given_is_every_default() {
    let policy = LocalPolicy::default();
    assert_eq!(read("").expect("a policy"), policy);
    assert_eq!(read(&policy.to_toml()).expect("a policy"), policy);
    // The document with every default uncommented says the same: the table's defaults are the type's.
    let mut spelled = String::new();
    for line in policy.to_toml().lines() {
        let given =
            line.strip_prefix("# ").filter(|rest| rest.contains(" = ") && !rest.ends_with("= "));
        spelled.push_str(given.unwrap_or(line));
        spelled.push('\n');
    }
    assert_eq!(spelled.matches("keep_generations = 10\n").count(), 1, "{spelled}");
    assert_eq!(read(&spelled).expect("a policy"), policy);
    for parameter in PARAMETERS {
        let key = parameter.path.split_once('.').expect("a table").1;
        let line = format!("# {key} = {}\n", parameter.default);
        assert!(policy.to_toml().contains(&line), "{line}");
    }
}

#[test]
fn every_number_has_the_bounds_of_the_table() {
    let mut numbers = 0;
    for parameter in PARAMETERS {
        let Some((min, max)) = parameter.bound.split_once(" to ") else { continue };
        let (min, max): (u64, u64) =
            (min.parse().expect("a number"), max.parse().expect("a number"));
        let (table, key) = parameter.path.split_once('.').expect("a table");
        let with = |value: u64| read(&format!("[{table}]\n{key} = {value}\n"));
        for good in [min, max] {
            let policy = with(good).expect("a policy");
            assert_eq!(read(&policy.to_toml()).expect("a policy"), policy, "{}", parameter.path);
        }
        let mut beyond = vec![max + 1];
        beyond.extend(min.checked_sub(1));
        for bad in beyond {
            let error = with(bad).expect_err(parameter.path);
            let expected = PolicyError::Range { field: parameter.path, found: bad, min, max };
            assert_eq!((error.code(), error), ("policy-range", expected));
        }
        assert!([MAX_BUDGET, MAX_WAIT_MS, MAX_KEEP_GENERATIONS].contains(&max));
        numbers += 1;
    }
    assert_eq!(numbers, 7);
}

#[test]
fn a_whole_policy_is_read_and_written() {
    let key = |line: &str| PublicKey::parse(line.as_bytes()).expect("a key");
    let mut raw = RawLocalPolicy::default();
    raw.budget.kv = Some(1 << 30);
    raw.trust = TrustPolicy {
        rule: TrustRule::SignedBy([key(PLAIN).id()].into()),
        bare_base: BareBase::Refused,
    };
    raw.keys = vec![
        TrustedKey { name: "alice".parse().expect("a name"), key: key(PLAIN) },
        TrustedKey { name: "bob".parse().expect("a name"), key: key(OTHER) },
    ];
    raw.switch.during_generation = DuringGeneration::Drain;
    raw.switch.drain_wait_ms = 5;
    raw.store.keep_generations = 3;
    let policy = LocalPolicy::check(raw).expect("a policy");
    assert_eq!(read(&policy.to_toml()).expect("a policy"), policy);
    for (rule, bare_base) in
        [(TrustRule::Signed, BareBase::Unsigned), (TrustRule::None, BareBase::AsOthers)]
    {
        let raw = RawLocalPolicy { trust: TrustPolicy { rule, bare_base }, ..(*policy).clone() };
        let policy = LocalPolicy::check(raw).expect("a policy");
        assert_eq!(read(&policy.to_toml()).expect("a policy"), policy);
    }
}

#[test]
fn what_is_wrong_is_refused_by_name() {
    let keys = format!("keys = [{{ name = \"alice\", key = \"{PLAIN}\" }}]");
    // The twins of what follows.
    read(&format!("[trust]\nrule = \"signed-by\"\nsigned_by = [\"8D8E569AF1735CB7\"]\n{keys}\n"))
        .expect("a policy");
    read("[switch]\nduring_generation = \"abort\"\n").expect("a policy");
    for (text, expected) in [
        ("[switch]\nduring_generation = \"ABORT\"\n".to_owned(), "policy-syntax"),
        ("[switch]\nduring = \"abort\"\n".to_owned(), "policy-syntax"),
        ("[swich]\n".to_owned(), "policy-syntax"),
        ("threads = 4\n".to_owned(), "policy-syntax"),
        ("[store]\nkeep_generations = 1\nkeep_generations = 1\n".to_owned(), "policy-syntax"),
        ("[store]\nkeep_generations = -1\n".to_owned(), "policy-syntax"),
        ("[store]\nkeep_generations = 1.5\n".to_owned(), "policy-syntax"),
        ("[store]\nkeep_generations = \"1\"\n".to_owned(), "policy-syntax"),
        ("[trust]\nrule = \"signed-by\"\n".to_owned(), "policy-signed-by"),
        (format!("[trust]\nsigned_by = [\"8D8E569AF1735CB7\"]\n{keys}\n"), "policy-signed-by"),
        (
            "[trust]\nrule = \"signed-by\"\nsigned_by = [\"8D8E569AF1735CB7\"]\n".to_owned(),
            "policy-unknown-key",
        ),
        (format!("[trust]\nrule = \"signed-by\"\nsigned_by = [\"8d8e\"]\n{keys}\n"), "bad-key-id"),
        (format!("[trust]\nkeys = [{{ name = \"a/b\", key = \"{PLAIN}\" }}]\n"), "bad-name"),
        (
            "[trust]\nkeys = [{ name = \"alice\", key = \"RW\" }]\n".to_owned(),
            "public-key-malformed",
        ),
        (
            format!("[trust]\nkeys = [{{ name = \"alice\", key = \"{PLAIN}\", more = 1 }}]\n"),
            "policy-syntax",
        ),
        (
            format!(
                "[trust]\nkeys = [{{ name = \"a\", key = \"{PLAIN}\" }}, {{ name = \"b\", key = \"{PLAIN}\" }}]\n"
            ),
            "policy-duplicate-key",
        ),
        (
            format!(
                "[trust]\nkeys = [{{ name = \"a\", key = \"{PLAIN}\" }}, {{ name = \"a\", key = \"{OTHER}\" }}]\n"
            ),
            "policy-duplicate-key",
        ),
    ] {
        assert_eq!(code(&text), expected, "{text}");
    }
    let error = read("[store]\n\nkeep_generations = x\n").unwrap_err();
    assert!(matches!(error, PolicyError::Syntax { line: 3, .. }), "{error:?}");
    let small = Limits { max_header_bytes: 4, ..Limits::STANDARD };
    assert_eq!(LocalPolicy::from_toml("#####", &small).unwrap_err().code(), "limit-exceeded");
    assert!(LocalPolicy::from_toml("####", &small).is_ok());
}

#[test]
fn no_parameter_can_come_in_a_package() {
    let document = common::full();
    Manifest::parse(document.json().as_bytes(), &Limits::STANDARD).expect("a manifest");
    let mut keys: Vec<&str> = Vec::new();
    for parameter in PARAMETERS {
        keys.push(parameter.path.split_once('.').expect("a table").0);
        keys.push(parameter.path.split_once('.').expect("a table").1);
    }
    // What is given as an option of a command, on the same page.
    keys.extend(["threads", "kernel", "kv", "activations", "paths", "sampling", "policy"]);
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        for place in ["", "runtime.", "provenance.", "adapters.0.", "quantization.0."] {
            let with = document.clone().add(&format!("{place}{key}"), "1");
            for form in [with.json(), with.toml()] {
                let error = Manifest::parse(form.as_bytes(), &Limits::STANDARD).unwrap_err();
                assert_eq!(error.code(), "manifest-unknown-field", "{place}{key}");
            }
        }
    }
}
