//! docs/policy.md lists exactly the parameters of the local policy.

use slm_manifest::policy::{PARAMETERS, Parameter};

/// The page's path.
pub(crate) const PAGE: &str = "docs/policy.md";

/// What the page and the type do not agree on.
pub(crate) fn differences(page: &str) -> Vec<String> {
    let expected: Vec<String> = PARAMETERS.iter().map(row).collect();
    let found: Vec<&str> =
        page.lines().filter(|line| line.starts_with("| `") && line.contains('.')).collect();
    let mut problems = Vec::new();
    for row in &expected {
        if !found.contains(&row.as_str()) {
            problems.push(format!("tidy: {PAGE} does not have the row {row}"));
        }
    }
    for row in found {
        if !expected.iter().any(|expected| expected == row) {
            problems.push(format!("tidy: {PAGE} has the row {row}, which is no parameter's"));
        }
    }
    problems
}

fn row(parameter: &Parameter) -> String {
    let Parameter { path, default, bound, meaning } = parameter;
    let default = if default.is_empty() { "none".to_owned() } else { format!("`{default}`") };
    format!("| `{path}` | {default} | {bound} | {meaning} |")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_are_compared() {
        let rows: Vec<String> = PARAMETERS.iter().map(row).collect();
        let page = rows.join("\n");
        assert_eq!(differences(&page), Vec::<String>::new());
        assert_eq!(differences(&page.replacen("none", "some", 1)).len(), 2);
        assert_eq!(differences(&format!("{page}\n| `store.gone` | `1` | 1 to 2 | x |")).len(), 1);
        assert_eq!(differences(&rows[1..].join("\n")).len(), 1);
    }
}
