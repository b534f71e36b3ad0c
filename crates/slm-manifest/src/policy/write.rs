//! A policy as a document that explains itself.

use super::{DuringGeneration, PARAMETERS, Parameter, RawLocalPolicy};
use crate::trust::{BareBase, TrustRule};

/// Every parameter in the order of [`PARAMETERS`]; one that has its default stands as a comment.
pub(super) fn toml(raw: &RawLocalPolicy) -> String {
    let mut text = String::from("# The local policy. No package can hold or change any of it.\n");
    let mut table = "";
    for parameter in PARAMETERS {
        let (of, key) = parameter.path.split_once('.').expect("BUG: a parameter without a table");
        if of != table {
            table = of;
            text.push_str(&format!("\n[{table}]\n"));
        }
        text.push_str(&format!("# {}: {}\n", parameter.meaning, parameter.bound));
        match value(raw, parameter) {
            Some(value) if value != parameter.default => {
                text.push_str(&format!("{key} = {value}\n"));
            }
            _ => text.push_str(&format!("# {key} = {}\n", parameter.default)),
        }
    }
    text
}

/// The value of a parameter as TOML writes it; `None` for a bound that is not set.
fn value(raw: &RawLocalPolicy, parameter: &Parameter) -> Option<String> {
    let text = |text: &str| Some(format!("\"{text}\""));
    let number = |number: u64| Some(number.to_string());
    match parameter.path {
        "budget.base_bytes" => raw.budget.base.and_then(number),
        "budget.adapters_bytes" => raw.budget.adapters.and_then(number),
        "budget.kv_bytes" => raw.budget.kv.and_then(number),
        "budget.scratch_bytes" => raw.budget.scratch.and_then(number),
        "budget.total_bytes" => raw.budget.total.and_then(number),
        "trust.rule" => text(match raw.trust.rule {
            TrustRule::None => "none",
            TrustRule::Signed => "signed",
            TrustRule::SignedBy(_) => "signed-by",
        }),
        "trust.signed_by" => match &raw.trust.rule {
            TrustRule::SignedBy(ids) => list(ids.iter().map(|id| format!("\"{id}\""))),
            _ => list([]),
        },
        "trust.bare_base" => text(match raw.trust.bare_base {
            BareBase::AsOthers => "as-others",
            BareBase::Unsigned => "unsigned",
            BareBase::Refused => "refused",
        }),
        "trust.keys" => list(raw.keys.iter().map(|trusted| {
            format!("\n  {{ name = \"{}\", key = \"{}\" }}", trusted.name, trusted.key.to_base64())
        })),
        "switch.during_generation" => text(match raw.switch.during_generation {
            DuringGeneration::Reject => "reject",
            DuringGeneration::Abort => "abort",
            DuringGeneration::Drain => "drain",
        }),
        "switch.drain_wait_ms" => number(raw.switch.drain_wait_ms),
        "store.keep_generations" => number(raw.store.keep_generations),
        path => unreachable!("BUG: the parameter {path} has no value"),
    }
}

fn list(items: impl IntoIterator<Item = String>) -> Option<String> {
    Some(format!("[{}]", items.into_iter().collect::<Vec<_>>().join(",")))
}
