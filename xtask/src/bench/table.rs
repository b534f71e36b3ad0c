//! Markdown.

use super::stats::Spread;

/// A table with a head; every row has as many cells.
#[derive(Debug)]
pub(crate) struct Table {
    text: String,
    columns: usize,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Table {
        let rule = "---|".repeat(head.len());
        Table { text: format!("| {} |\n|{rule}\n", head.join(" | ")), columns: head.len() }
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        assert_eq!(cells.len(), self.columns, "BUG: a row of another width");
        self.text += &format!("| {} |\n", cells.join(" | "));
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}

/// Three significant digits, or all that are before the point.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Median first, then the ends.
pub(crate) fn spread(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || "none".to_owned(),
        |s| format!("**{}** ({}–{})", number(s.median), number(s.min), number(s.max)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!([1234.5, 99.96, 12.34, 0.987].map(number), ["1234", "100.0", "12.3", "0.99"]);
        let given = Spread { min: 1.0, median: 2.5, max: 300.2 };
        assert_eq!(spread(Some(given)), "**2.50** (1.00–300)");
        assert_eq!(spread(None), "none");
    }

    #[test]
    fn a_table_is_markdown() {
        let mut table = Table::new(&["a", "b"]);
        table.row(&["1".to_owned(), "2".to_owned()]);
        assert_eq!(table.finish(), "| a | b |\n|---|---|\n| 1 | 2 |\n");
    }
}
