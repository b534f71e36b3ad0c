//! Whether every run has the same digests.

use std::collections::BTreeMap;

use serde_json::Value;

use super::case::Case;

/// All cases on one tier of one side.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// For people: `native avx2`, `Node simd128`.
    pub(crate) name: String,
    /// The tier that was asked for.
    pub(crate) tier: String,
    /// A digest for each case.
    pub(crate) digests: Vec<Digest>,
    /// Milliseconds that each case took, where they were measured.
    pub(crate) ms: Vec<f64>,
}

/// What `logits` reports.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Digest {
    /// The fields that must be equal everywhere, in the order of [`FIELDS`].
    fields: [String; FIELDS.len()],
    /// Kernel of each encoding.
    kernels: BTreeMap<String, String>,
}

/// Identities first: where they differ, something else was run.
const FIELDS: [&str; 4] = ["composition", "execution", "logits_blake3", "all_blake3"];

impl Digest {
    /// Reads the object that `slm logits --json` and `logitsDigest` give.
    pub(crate) fn read(object: &Value) -> Option<Digest> {
        let mut fields = FIELDS.map(|_| String::new());
        for (field, name) in fields.iter_mut().zip(FIELDS) {
            *field = object[name].as_str()?.to_owned();
        }
        let kernels = object["kernels"]
            .as_object()?
            .iter()
            .map(|(encoding, kernel)| Some((encoding.clone(), kernel.as_str()?.to_owned())))
            .collect::<Option<_>>()?;
        Some(Digest { fields, kernels })
    }
}

/// Compares every run with the first, and the first with the golden vectors; the error is the first case that differs, and how.
pub(crate) fn compare(cases: &[Case], runs: &[Run]) -> Result<(), String> {
    let Some(first) = runs.first() else { return Err("nothing was run".to_owned()) };
    if let Some(run) = runs.iter().find(|run| run.digests.len() != cases.len()) {
        return Err(format!("{} ran {} of {} cases", run.name, run.digests.len(), cases.len()));
    }
    for (at, case) in cases.iter().enumerate() {
        let expected = &first.digests[at];
        if let Some(golden) = &case.golden
            && *golden != expected.fields[FIELDS.len() - 1]
        {
            let found = &expected.fields[FIELDS.len() - 1];
            return Err(format!(
                "{}: all_blake3 is {found} on {}, {golden} by the reference pass",
                case.name(),
                first.name
            ));
        }
        for run in runs {
            let found = &run.digests[at];
            for (n, field) in FIELDS.into_iter().enumerate() {
                if found.fields[n] != expected.fields[n] {
                    return Err(format!(
                        "{}: {field} is {} on {}, {} on {}",
                        case.name(),
                        found.fields[n],
                        run.name,
                        expected.fields[n],
                        first.name
                    ));
                }
            }
            if !found.kernels.keys().eq(expected.kernels.keys()) {
                return Err(format!("{}: other encodings on {}", case.name(), run.name));
            }
            let prefix = format!("{}-", run.tier);
            if let Some(kernel) = found.kernels.values().find(|name| !name.starts_with(&prefix)) {
                return Err(format!("{}: {} ran the kernel {kernel}", case.name(), run.name));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(tier: &str) -> Value {
        json!({
            "composition": "sha256:c", "execution": "sha256:e", "logits_blake3": "l",
            "all_blake3": "a", "kernels": { "Q8_0": format!("{tier}-int8") },
        })
    }

    fn run(tier: &str) -> Run {
        let digest = Digest::read(&object(tier)).expect("it has every field");
        Run {
            name: format!("Node {tier}"),
            tier: tier.to_owned(),
            digests: vec![digest; 2],
            ms: Vec::new(),
        }
    }

    fn cases() -> Vec<Case> {
        let case = |chunk| Case {
            stack: vec![("kjv".to_owned(), "0.7".to_owned())],
            tokens: vec![1, 2],
            chunk,
            activations: "int8",
            kv: "f16",
            golden: Some("a".to_owned()),
        };
        vec![case(1), case(2)]
    }

    #[test]
    fn equal_digests_pass() {
        assert_eq!(compare(&cases(), &[run("scalar"), run("simd128")]), Ok(()));
    }

    #[test]
    fn one_changed_field_is_named_with_its_case() {
        for (n, field) in FIELDS.into_iter().enumerate() {
            let mut other = run("simd128");
            other.digests[1].fields[n].push('x');
            let found = compare(&cases(), &[run("scalar"), other]).expect_err(field);
            let case = cases()[1].name();
            assert!(found.starts_with(&format!("{case}: {field} is ")), "{found}");
            assert!(found.contains("on Node simd128") && found.contains("on Node scalar"));
        }
    }

    #[test]
    fn other_faults_are_found() {
        let scalar = || run("scalar");
        let mut changed_golden = cases();
        changed_golden[1].golden = Some("b".to_owned());
        assert!(compare(&changed_golden, &[scalar()]).is_err());
        assert!(compare(&cases(), &[]).is_err());
        let mut short = run("simd128");
        short.digests.pop();
        assert!(compare(&cases(), &[scalar(), short]).is_err());
        let mut another_tier = run("simd128");
        another_tier.tier = "avx2".to_owned();
        assert!(compare(&cases(), &[scalar(), another_tier]).is_err());
        let mut no_encoding = run("simd128");
        no_encoding.digests[0].kernels.clear();
        assert!(compare(&cases(), &[scalar(), no_encoding]).is_err());
    }

    #[test]
    fn a_report_without_a_field_is_none() {
        for field in FIELDS.into_iter().chain(["kernels"]) {
            let mut object = object("scalar");
            object[field] = Value::Null;
            assert_eq!(Digest::read(&object), None, "{field}");
        }
    }
}
