//! The variables of a model of a typed table, in a table with other columns besides: cells by the names of columns.
//!
//! A column that is not there is one whose cells are all missing.

use std::sync::Arc;

use arrow::array::{ArrayRef, NullArray};
use arrow::datatypes::Schema;

use super::super::arrow_cells::{cells, is_cell};
use super::super::{Piece, Positions, Records};
use super::Part;
use crate::error::{Error, Result};

/// Columns of a table, cell by cell.
pub struct CellColumns {
    names: Vec<String>,
    /// Those that are not there.
    absent: Vec<String>,
}

impl CellColumns {
    /// Finds the columns. Names that are not there are absent, if at least one is there.
    pub fn find(schema: &Schema, names: &[String]) -> Result<Self> {
        let absent: Vec<String> = names.iter().filter(|name| schema.field_with_name(name).is_err()).cloned().collect();
        if absent.len() == names.len() {
            let there: Vec<&str> = schema.fields().iter().take(20).map(|field| field.name().as_str()).collect();
            return Err(Error::data(format!(
                "the table has none of the model's columns (`{}`…); it has `{}`",
                names.first().map_or("", String::as_str),
                there.join("`, `")
            )));
        }
        let odd = schema.fields().iter().find(|field| names.contains(field.name()) && !is_cell(field.data_type()));
        if let Some(field) = odd {
            let (name, data_type) = (field.name(), field.data_type());
            return Err(Error::data(format!("column `{name}` is {data_type}, not a single value per row")));
        }
        Ok(Self { names: names.to_vec(), absent })
    }

    /// The columns that the table does not have.
    pub fn absent(&self) -> &[String] {
        &self.absent
    }

    /// The cells of some rows.
    pub fn piece(&self, part: &Part) -> Result<Piece> {
        let num_rows = part.rows.num_rows();
        let nothing: ArrayRef = Arc::new(NullArray::new(num_rows));
        let columns: Vec<&ArrayRef> =
            self.names.iter().map(|name| part.rows.column_by_name(name).unwrap_or(&nothing)).collect();
        let records = Records::Cells(cells(&columns, num_rows)?);
        let positions = Positions::Rows { first: part.first };
        Ok(Piece { file: part.file.clone(), positions, records, bad: Vec::new() })
    }
}
