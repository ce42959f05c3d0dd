//! CSV with a header: quotes where they are needed, nothing for null.
//!
//! Numbers are written with as many digits as bring back the same bits. Lists, structs and bytes have no place in CSV.

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::Schema;
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::error::{Error, Result};

/// The names of the columns, as a line.
pub(super) fn header(schema: &Schema) -> String {
    let mut line = Vec::new();
    schema.fields().iter().enumerate().for_each(|(at, field)| push(&mut line, at, field.name()));
    line.push(b'\n');
    String::from_utf8_lossy(&line).into_owned()
}

/// The rows, a line each.
pub(super) fn lines(rows: &RecordBatch) -> Result<Vec<u8>> {
    let options = FormatOptions::default().with_null("");
    let columns: std::result::Result<Vec<_>, _> =
        rows.columns().iter().map(|column| ArrayFormatter::try_new(column, &options)).collect();
    let columns = columns.map_err(|e| Error::internal(e.to_string()))?;
    let mut lines = Vec::new();
    for row in 0..rows.num_rows() {
        for (at, (cells, column)) in columns.iter().zip(rows.columns()).enumerate() {
            match is_null(column, row) {
                true if at > 0 => lines.push(b','),
                // A line with nothing in it would be no row.
                true if columns.len() == 1 => lines.extend_from_slice(b"NA"),
                true => {}
                false => {
                    let cell = cells.value(row).try_to_string().map_err(|e| Error::internal(e.to_string()))?;
                    push(&mut lines, at, &cell);
                }
            }
        }
        lines.push(b'\n');
    }
    Ok(lines)
}

/// Returns true if there is nothing, in the column or behind its dictionary.
fn is_null(column: &dyn Array, row: usize) -> bool {
    column.is_null(row) || column.logical_nulls().is_some_and(|nulls| nulls.is_null(row))
}

/// A cell as CSV has it. An empty text is quoted: nothing at all is null.
fn push(line: &mut Vec<u8>, at: usize, cell: &str) {
    if at > 0 {
        line.push(b',');
    }
    match cell.is_empty() || cell.contains([',', '"', '\n', '\r']) || cell.trim() != cell {
        true => line.extend(format!("\"{}\"", cell.replace('"', "\"\"")).bytes()),
        false => line.extend_from_slice(cell.as_bytes()),
    }
}
