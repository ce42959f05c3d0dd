//! Rows as lines of values for other programs: CSV, JSON, or one JSON object per line.
//!
//! `sample` and `inpaint` name things alike: `row` is the number of the row from 0, `line` says which line of the row
//! it is where there are several (`original`, `kept`, or the number of a completion from 1), and `x0`, `x1`, … are the
//! variables. In JSON the variables are the list `values`, and `text` is what tokens say. Where variables are columns
//! of a table, they have the names of these and cells as the table has them, and `values` is an object. A missing value
//! is an empty cell, or null.

use std::path::Path;

use serde_json::Value;

use super::sink::Sink;
use super::view::{Meant, categories_of};
use crate::data::{Batch, Cell, TableSchema, Values};
use crate::error::Result;

/// How values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// A header, then a line for each row.
    Csv,
    /// One list of objects.
    Json,
    /// An object per line.
    Jsonl,
}

/// Takes rows.
pub(super) struct RowLines<'a> {
    sink: Sink,
    layout: Layout,
    meant: &'a Meant,
    is_first: bool,
}

impl<'a> RowLines<'a> {
    /// Begins to write rows of `num_vars` variables. `has_lines` if every row comes with the name of its line.
    pub fn open(
        out: Option<&Path>,
        layout: Layout,
        meant: &'a Meant,
        num_vars: usize,
        has_lines: bool,
    ) -> Result<Self> {
        let mut sink = Sink::open(out)?;
        if layout == Layout::Csv {
            let line = if has_lines { ",line" } else { "" };
            let name = |var: usize| match &meant.table {
                Some(table) => format!(",{}", quoted(&table.columns[var].name)),
                None => format!(",x{var}"),
            };
            let names: String = (0..num_vars).map(name).collect();
            sink.line(&format!("row{line}{names}"))?;
        }
        Ok(Self { sink, layout, meant, is_first: true })
    }

    /// Writes row `at` of `batch` under the number `row`; `false` if the reader is gone.
    pub fn push(&mut self, row: u64, line: Option<&str>, batch: &Batch, at: usize) -> Result<bool> {
        let is_first = std::mem::take(&mut self.is_first);
        match self.layout {
            Layout::Csv => {
                let line = line.map_or(String::new(), |line| format!(",{line}"));
                let values = match &self.meant.table {
                    Some(table) => table_cells(table, batch, at).map(|cell| quoted_cell(&cell)).collect::<Vec<_>>(),
                    None => cells(batch, at).map(Option::unwrap_or_default).collect(),
                };
                let values = values.join(",");
                self.sink.line(&format!("{row}{line},{values}"))
            }
            Layout::Jsonl => {
                let object = self.object(row, line, batch, at)?;
                self.sink.line(&object)
            }
            // The comma is before all but the first: whichever is the last needs no notice.
            Layout::Json => {
                let before = if is_first { "[" } else { "," };
                let object = self.object(row, line, batch, at)?;
                self.sink.line(&format!("{before}{object}"))
            }
        }
    }

    /// Writes what is left.
    pub fn finish(mut self) -> Result<()> {
        if self.layout == Layout::Json {
            self.sink.line(if self.is_first { "[]" } else { "]" })?;
        }
        self.sink.finish()
    }

    /// Written by hand: a real number keeps the few digits that give it back.
    fn object(&self, row: u64, line: Option<&str>, batch: &Batch, at: usize) -> Result<String> {
        let mut object = format!("{{\"row\":{row}");
        if let Some(line) = line {
            object += &format!(",\"line\":{}", Value::from(line));
        }
        if let Some(table) = &self.meant.table {
            let named = table_cells(table, batch, at).zip(&table.columns);
            let named = named.map(|(cell, column)| format!("{}:{}", Value::from(&*column.name), json_of(&cell)));
            object += &format!(",\"values\":{{{}}}", named.collect::<Vec<_>>().join(","));
            return Ok(object + "}");
        }
        let values = cells(batch, at).map(|cell| cell.unwrap_or_else(|| "null".into())).collect::<Vec<_>>().join(",");
        object += &format!(",\"values\":[{values}]");
        if let Some(decoder) = &self.meant.text
            && let Some(tokens) = text_tokens(batch, at, decoder.end_of_text())
        {
            object += &format!(",\"text\":{}", Value::from(decoder.decode_tokens(&tokens)?));
        }
        Ok(object + "}")
    }
}

/// The tokens of a row that is a text: all of them, or those before the end where the row has nothing behind it. Half a
/// row is no text.
fn text_tokens(batch: &Batch, row: usize, end: Option<u32>) -> Option<Vec<u32>> {
    let mut tokens = categories_of(batch, row);
    let Some(rest) = (0..tokens.len()).find(|&var| batch.is_missing(row, var)) else { return Some(tokens) };
    let is_cut = (rest..tokens.len()).all(|var| batch.is_missing(row, var));
    tokens.truncate(rest);
    (is_cut && end.is_some() && tokens.pop() == end).then_some(tokens)
}

/// The values of a row; `None` where one is missing.
fn cells(batch: &Batch, row: usize) -> impl Iterator<Item = Option<String>> {
    (0..batch.num_vars()).map(move |var| match batch.column(var) {
        _ if batch.is_missing(row, var) => None,
        Values::F32(values) => Some(values[row].to_string()),
        column => Some(column.category(row).unwrap_or_default().to_string()),
    })
}

/// The cells of a row of a table.
fn table_cells<'a>(table: &'a TableSchema, batch: &'a Batch, row: usize) -> impl Iterator<Item = Cell<'a>> {
    table.columns.iter().enumerate().map(move |(var, column)| match batch.is_missing(row, var) {
        true => Cell::Null,
        false => column.decode(batch.column(var).real(row) as f32),
    })
}

fn quoted_cell(cell: &Cell<'_>) -> String {
    match cell {
        Cell::Null => String::new(),
        // An empty text is none that is missing.
        Cell::Text(text) | Cell::Raw(text) if text.is_empty() => "\"\"".into(),
        cell => quoted(&cell.to_string()),
    }
}

/// A text as a cell of CSV.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) || text.trim() != text {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    }
}

fn json_of(cell: &Cell<'_>) -> Value {
    match cell {
        Cell::Null => Value::Null,
        Cell::Bool(truth) => Value::from(*truth),
        Cell::Int(number) => Value::from(*number),
        Cell::Float(number) => Value::from(*number),
        Cell::Text(_) | Cell::Raw(_) | Cell::Date(_) | Cell::Time(_) => Value::from(cell.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{CellType, ColumnSchema, Label, Meaning};

    fn written(layout: Layout, rows: usize) -> String {
        let columns = vec![Values::U8(vec![7, 1]), Values::F32(vec![0.1, -2.0]), Values::U32(vec![70_000, 0])];
        let batch = Batch::from_columns(columns).unwrap().with_missing(|row, var| row == 1 && var == 1);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let meant = Meant::default();
        let mut lines = RowLines::open(Some(&path), layout, &meant, 3, true).unwrap();
        for row in 0..rows {
            assert!(lines.push(row as u64, Some("kept"), &batch, row).unwrap());
        }
        lines.finish().unwrap();
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn rows_of_a_table_have_its_names_and_cells() {
        let column = |name: &str, cell_type, meaning| ColumnSchema { name: name.into(), cell_type, meaning };
        let vocabulary = vec![Label::Text("a,\"b\"".into()), Label::Text(String::new())];
        let columns = vec![
            column("x, y", CellType::Float, Meaning::Number),
            column("c", CellType::Text, Meaning::Category { vocabulary, unseen: Default::default() }),
        ];
        let meant = Meant { text: None, table: Some(TableSchema { columns, ignored: Vec::new() }) };
        let values = vec![Values::F32(vec![0.1, 2.0, 3.0]), Values::U8(vec![0, 1, 2])];
        let batch = Batch::from_columns(values).unwrap().with_missing(|row, var| row == 1 && var == 0);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        for (layout, expected) in [
            (Layout::Csv, "row,\"x, y\",c\n0,0.1,\"a,\"\"b\"\"\"\n1,,\"\"\n2,3,other\n"),
            (
                Layout::Jsonl,
                "{\"row\":0,\"values\":{\"x, y\":0.1,\"c\":\"a,\\\"b\\\"\"}}\n{\"row\":1,\"values\":{\"x, y\":null,\
                 \"c\":\"\"}}\n{\"row\":2,\"values\":{\"x, y\":3.0,\"c\":\"other\"}}\n",
            ),
        ] {
            let mut lines = RowLines::open(Some(&path), layout, &meant, 2, false).unwrap();
            (0..3).for_each(|row| assert!(lines.push(row as u64, None, &batch, row).unwrap()));
            lines.finish().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        }
    }

    #[test]
    fn rows_are_lines_with_nothing_for_what_is_missing() {
        assert_eq!(written(Layout::Csv, 2), "row,line,x0,x1,x2\n0,kept,7,0.1,70000\n1,kept,1,,0\n");
        let objects = [
            "{\"row\":0,\"line\":\"kept\",\"values\":[7,0.1,70000]}",
            "{\"row\":1,\"line\":\"kept\",\"values\":[1,null,0]}",
        ];
        assert_eq!(written(Layout::Jsonl, 2), objects.map(|object| format!("{object}\n")).concat());
        let list: Value = serde_json::from_str(&written(Layout::Json, 2)).unwrap();
        assert_eq!(list, serde_json::from_str::<Value>(&format!("[{}]", objects.join(","))).unwrap());
        assert_eq!(written(Layout::Json, 0), "[]\n");
    }
}
