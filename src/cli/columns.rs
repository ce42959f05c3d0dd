//! What the columns of a table are understood as, a line each.

use crate::pipeline::table::{ColumnLine, TableReport};

/// Columns that a run shows of a wide table.
pub(super) const SHOWN: usize = 40;

/// The names of what is shown.
const HEADER: [&str; 5] = ["column", "holds", "understood as", "categories", "missing"];

/// The columns with what they are understood as; no more than `most` of them.
pub(super) fn describe_table(report: &TableReport, most: usize) -> String {
    let shown = &report.columns[..report.columns.len().min(most)];
    let rows: Vec<[String; 5]> = shown.iter().map(cells).collect();
    let width = |at: usize| {
        let cells = rows.iter().map(|row| row[at].chars().count());
        cells.chain([HEADER[at].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
    let line = |cells: &[String; 5], note: &str| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = format!("  {}  {note}", padded.collect::<Vec<_>>().join("  "));
        line.trim_end().to_string()
    };
    let mut lines = vec![line(&HEADER.map(String::from), "")];
    lines.extend(rows.iter().zip(shown).map(|(cells, column)| line(cells, column.note.as_deref().unwrap_or(""))));
    if let more @ 1.. = report.columns.len() - shown.len() {
        lines.push(format!("  … and {more} more: `anemone check` shows all"));
    }
    lines.join("\n")
}

fn cells(column: &ColumnLine) -> [String; 5] {
    let missing = |share: f64| match share {
        share if share > 0.0 && share < 0.001 => "< 0.1 %".to_string(),
        share => format!("{:.1} %", 100.0 * share),
    };
    [
        column.name.escape_debug().to_string(),
        column.cell_type.clone(),
        column.understood_as.clone(),
        column.categories.map_or_else(String::new, |number| number.to_string()),
        column.missing.map_or_else(String::new, missing),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_lines_under_a_header_and_a_wide_table_is_cut() {
        let column = |name: &str, missing| ColumnLine {
            name: name.into(),
            cell_type: "texts".into(),
            understood_as: "category".into(),
            categories: Some(12),
            missing: Some(missing),
            note: (name == "b").then(|| "3 more names are `other`".into()),
        };
        let report = TableReport { columns: vec![column("a\n", 0.25), column("b", 0.0), column("c", 1e-5)], rows: 9 };
        let text = describe_table(&report, 2);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  column  holds  understood as  categories  missing");
        assert_eq!(lines[1], "  a\\n     texts  category       12          25.0 %");
        assert_eq!(lines[2], "  b       texts  category       12          0.0 %    3 more names are `other`");
        assert_eq!(lines[3], "  … and 1 more: `anemone check` shows all");
        assert!(describe_table(&report, 9).ends_with("< 0.1 %"));
    }
}
