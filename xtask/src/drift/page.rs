//! The tables of docs/drift.md: what stands between `<!-- drift:NAME:TABLE -->` and `<!-- /drift -->`.

use std::fmt::Write as _;

use super::study::Study;
use crate::problems::Problems;

/// The page's path.
pub(super) const PAGE: &str = "docs/drift.md";

const END: &str = "<!-- /drift -->";

/// The page with every table made again.
pub(super) fn fill(page: &str, studies: &[(&str, Study)]) -> Result<String, Problems> {
    let mut filled = String::new();
    let mut rest = page;
    while let Some(at) = rest.find("<!-- drift:") {
        let (before, from) = rest.split_at(at);
        let wrong = || Problems::one(format!("{PAGE}: a block without its end, or of no table"));
        let (mark, after) = from.split_once('\n').ok_or_else(wrong)?;
        let (_, after) = after.split_once(END).ok_or_else(wrong)?;
        let name = mark.trim_start_matches("<!-- drift:").trim_end_matches(" -->");
        let (model, table) = name.split_once(':').ok_or_else(wrong)?;
        let (_, study) = studies.iter().find(|(name, _)| *name == model).ok_or_else(wrong)?;
        let text = match table {
            "ways" => ways(study),
            "cycles" => cycles(study),
            "order" => order(study),
            _ => return Err(wrong()),
        };
        write!(filled, "{before}{mark}\n{text}{END}").expect("BUG: a string refuses text");
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// One adapter: on the quantized base, and merged from the clean one.
fn ways(study: &Study) -> String {
    let mut out = String::from(
        "| type | matrices of it | weights: overlay | weights: merge | KL: base alone | KL: overlay | KL: merge | overlay / merge |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    let effect = format!(
        "The adapter itself moves the clean base's logits by {}.\n\n",
        short(study.number("effect_of_a"))
    );
    for kind in &study.types {
        let [own, all] = kind.fit;
        let fit = match own == all {
            true => "all".to_owned(),
            false => format!("{own} of {all}, else {}", kind.fallback),
        };
        let (overlay, merge) = (kind.kl("overlay"), kind.kl("merge"));
        row(
            &mut out,
            &kind.name,
            &[
                fit,
                percent(kind.weight("overlay")),
                percent(kind.weight("merge")),
                short(kind.kl("base")),
                short(overlay),
                short(merge),
                format!("{:.2}", overlay / merge),
            ],
        );
    }
    effect + &out
}

/// Merged into the quantized weights and taken out again, over and over.
fn cycles(study: &Study) -> String {
    let mut out = String::from(
        "| type | weights: 0 | 1 | 10 | 100 | blocks at rest | KL: 0 | 1 | 10 | 100 | 100 / 0 | KL merged: 1 | 100 |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    let snapshots = study.list("snapshots");
    let at = |n: f64| snapshots.iter().position(|&snapshot| snapshot == n).unwrap_or(0);
    for kind in &study.types {
        let (weights, kls, merged) =
            (kind.weights("unmerged"), kind.kls("unmerged"), kind.kls("merged"));
        let value = |list: &[f64], at: usize| list.get(at).copied().unwrap_or(f64::NAN);
        let last = value(&kls, at(100.0));
        row(
            &mut out,
            &kind.name,
            &[
                percent(kind.weight("base")),
                percent(value(&weights, 0)),
                percent(value(&weights, 9)),
                percent(value(&weights, 99)),
                format!("{:.0} %", 100.0 * kind.weight("settled")),
                short(kind.kl("base")),
                short(value(&kls, at(1.0))),
                short(value(&kls, at(10.0))),
                short(last),
                known(last, format!("{:.1}", last / kind.kl("base"))),
                short(value(&merged, 0)),
                short(value(&merged, 2)),
            ],
        );
    }
    out
}

/// Two adapters.
fn order(study: &Study) -> String {
    let mut out = String::from(
        "| type | weights: joint | A, B | B, A | A, B to B, A | KL: overlay A, B | overlay B, A | joint | A, B | B, A |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for kind in &study.types {
        row(
            &mut out,
            &kind.name,
            &[
                percent(kind.weight("joint")),
                percent(kind.weight("sequential_ab")),
                percent(kind.weight("sequential_ba")),
                percent(kind.weight("ab_to_ba")),
                short(kind.kl("overlay_ab")),
                short(kind.kl("overlay_ba")),
                short(kind.kl("joint")),
                short(kind.kl("sequential_ab")),
                short(kind.kl("sequential_ba")),
            ],
        );
    }
    out
}

fn row(out: &mut String, name: &str, cells: &[String]) {
    writeln!(out, "| {name} | {} |", cells.join(" | ")).expect("BUG: a string refuses text");
}

fn percent(value: f64) -> String {
    known(value, format!("{:.2} %", 100.0 * value))
}

fn short(value: f64) -> String {
    known(value, format!("{value:.2e}"))
}

/// A dash for what was not measured.
fn known(value: f64, text: String) -> String {
    if value.is_nan() { "–".to_owned() } else { text }
}
