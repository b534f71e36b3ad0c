//! docs/format.md says what the constants of the container say.

use slm_format::Encoding;
use slm_format::container::SectionKind;
use slm_format::container::layout::{FIELDS, encoding_code};

use crate::problems::{Outcome, Problems};
use crate::run;

const PAGE: &str = "docs/format.md";

/// Compares the page's byte map, kinds and encodings with the constants.
pub(crate) fn check() -> Outcome {
    Problems::none_or(differences(&run::read(PAGE)?))
}

fn differences(page: &str) -> Vec<String> {
    let fields: Vec<Vec<String>> = FIELDS
        .iter()
        .map(|(structure, field, offset, size)| row(&[structure, field, offset, size]))
        .collect();
    let kinds: Vec<Vec<String>> = SectionKind::all()
        .map(|kind| {
            let count = match kind {
                SectionKind::BaseWeights => "1, present exactly when there are tensors",
                kind if kind.is_single() => "1",
                _ => "any",
            };
            row(&[&kind.number(), &kind.name(), &count])
        })
        .collect();
    let mut encodings: Vec<Encoding> = Encoding::all().collect();
    encodings.sort_by_key(|encoding| encoding_code(*encoding));
    let encodings: Vec<Vec<String>> = encodings
        .into_iter()
        .map(|encoding| {
            row(&[
                &encoding.name(),
                &encoding_code(encoding),
                &encoding.block_elements(),
                &encoding.block_bytes(),
            ])
        })
        .collect();
    let mut found = Vec::new();
    for (header, expected) in [
        (&["structure", "field", "offset", "size"][..], fields),
        (&["kind", "section", "how many"], kinds),
        (&["encoding", "code", "elements per block", "bytes per block"], encodings),
    ] {
        let written = table(page, header);
        for at in 0..expected.len().max(written.len()) {
            let (code, text) = (expected.get(at), written.get(at));
            if code != text {
                found.push(format!(
                    "format-doc: {PAGE}, table of {}: the constants say {}, the page {}",
                    header[0],
                    shown(code),
                    shown(text)
                ));
            }
        }
    }
    found
}

/// The rows of the table under this header; none if there is no such table.
fn table(page: &str, header: &[&str]) -> Vec<Vec<String>> {
    page.lines()
        .skip_while(|line| cells(line) != header)
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| cells(line).into_iter().map(str::to_owned).collect())
        .collect()
}

fn cells(line: &str) -> Vec<&str> {
    let inner = line.strip_prefix('|').and_then(|rest| rest.strip_suffix('|'));
    inner.map(|inner| inner.split('|').map(str::trim).collect()).unwrap_or_default()
}

fn row(values: &[&dyn std::fmt::Display]) -> Vec<String> {
    values.iter().map(|value| value.to_string()).collect()
}

fn shown(row: Option<&Vec<String>>) -> String {
    row.map_or_else(|| "nothing".to_owned(), |row| format!("`{}`", row.join(" | ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_in_step_and_any_bend_is_told() {
        let page = run::read(PAGE).expect("the page is there");
        assert_eq!(differences(&page), Vec::<String>::new());
        for (right, wrong) in [
            ("| header | version | 8 | 4 |", "| header | version | 8 | 8 |"),
            ("| tensor | layout | 86 | 2 |\n", ""),
            ("| 5 | adapter | any |", "| 6 | adapter | any |"),
            ("| Q4_0 | 2 | 32 | 18 |", "| Q4_0 | 2 | 32 | 20 |"),
        ] {
            assert!(page.contains(right), "{right}");
            assert!(!differences(&page.replace(right, wrong)).is_empty(), "{wrong}");
        }
    }
}
