//! Rows of a table whose columns mean something each become values of variables.
//!
//! What the columns mean is a [`TableSchema`]. A row is bad if one of its cells is no value of its column: the reason
//! names the column. All values of a piece are real numbers here, also categories, which a whole number below 2²²
//! is exactly; the batch has them in the type of their column. Fed by sources that deliver cells.

use std::collections::HashMap;

use super::records::{self, decode_each};
use super::{Decoded, Decoder, Output, RowShape, ValueKind};
use crate::data::{Cell, ColumnSchema, Digest, Label, Meaning, Table, TableSchema, Values};
use crate::error::Result;
use crate::source::Piece;

/// Encodes cells by a schema.
#[derive(Clone, Debug)]
pub struct TableDecoder {
    schema: TableSchema,
    shape: RowShape,
    /// Where the cells of each variable are in a record.
    cells: Vec<usize>,
    names: Vec<Names>,
}

/// The categories of a column by what its cells nearly always are: `encode` looks through the whole list.
#[derive(Clone, Debug, Default)]
struct Names {
    texts: HashMap<String, f32>,
    whole: HashMap<i64, f32>,
}

impl Names {
    fn of(column: &ColumnSchema) -> Self {
        let mut names = Self::default();
        if let Meaning::Category { vocabulary, .. } = &column.meaning {
            for (category, label) in vocabulary.iter().enumerate() {
                match label {
                    Label::Text(text) if column.cell_type == crate::data::CellType::Text => {
                        names.texts.insert(text.clone(), category as f32);
                    }
                    Label::Int(number) => _ = names.whole.insert(*number, category as f32),
                    Label::Text(_) | Label::Bool(_) => {}
                }
            }
        }
        names
    }

    fn find(&self, cell: &Cell<'_>) -> Option<f32> {
        match cell {
            Cell::Text(text) | Cell::Raw(text) => self.texts.get(&**text).copied(),
            Cell::Int(number) => self.whole.get(number).copied(),
            _ => None,
        }
    }
}

impl TableDecoder {
    /// For records that have the cells of these columns, among them those of the schema.
    pub fn new(schema: TableSchema, columns: &[String]) -> Result<Self> {
        schema.check()?;
        let position = |column: &ColumnSchema| {
            let found = columns.iter().position(|name| *name == column.name);
            found
                .ok_or_else(|| crate::error::Error::data(format!("no column `{}`, which is learned from", column.name)))
        };
        let cells = schema.columns.iter().map(position).collect::<Result<_>>()?;
        let shape = RowShape {
            num_vars: schema.num_vars(),
            values: ValueKind::Mixed,
            grid: None,
            columns: schema.input_specs(),
        };
        let names = schema.columns.iter().map(Names::of).collect();
        Ok(Self { schema, shape, cells, names })
    }

    /// What the columns mean.
    pub fn schema(&self) -> &TableSchema {
        &self.schema
    }

    /// The value of a cell of a variable, `None` if it is missing, or why it is none.
    pub fn encode(&self, var: usize, cell: &Cell<'_>) -> std::result::Result<Option<f32>, String> {
        match self.names[var].find(cell) {
            Some(category) => Ok(Some(category)),
            None => self.schema.columns[var].encode(cell),
        }
    }
}

impl Decoder for TableDecoder {
    fn shape(&self) -> &RowShape {
        &self.shape
    }

    fn identity(&self) -> String {
        format!("table {}", Digest::new().part(self.schema.to_json().to_string()).finish())
    }

    fn schema(&self) -> Option<&TableSchema> {
        Some(&self.schema)
    }

    fn decode(&self, piece: &Piece) -> Result<Decoded> {
        let cells = records::cells(piece)?;
        let num_vars = self.shape.num_vars;
        let mut values: Vec<f32> = Vec::with_capacity(cells.num_rows() * num_vars);
        let mut missing: Vec<bool> = Vec::with_capacity(cells.num_rows() * num_vars);
        let bad = decode_each(piece, |row| {
            let start = values.len();
            for (var, &column) in self.cells.iter().enumerate() {
                match self.encode(var, &cells.get(row, column)) {
                    Ok(value) => {
                        values.push(value.unwrap_or(0.0));
                        missing.push(value.is_none());
                    }
                    Err(why) => {
                        values.truncate(start);
                        missing.truncate(start);
                        return Err(format!("column `{}`: {why}", self.schema.columns[var].name));
                    }
                }
            }
            Ok(())
        });
        let table = Table::new(num_vars, Values::F32(values))?.with_missing(missing)?;
        Ok(Decoded { output: Output::Rows(table), records: piece.num_records() as u64, bad })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{CellType, Cells, InputSpec};
    use crate::source::{Positions, Records};

    fn schema() -> TableSchema {
        let column = |name: &str, cell_type, meaning| ColumnSchema { name: name.into(), cell_type, meaning };
        let vocabulary = vec![Label::Text("DE".into()), Label::Text("FR".into())];
        let unseen = crate::data::schema::Unseen::Error;
        TableSchema {
            columns: vec![
                column("size", CellType::Float, Meaning::Number),
                column("country", CellType::Text, Meaning::Category { vocabulary, unseen }),
            ],
            ignored: Vec::new(),
        }
    }

    fn piece(rows: &[[Cell<'_>; 3]]) -> Piece {
        let mut cells = Cells::new(3);
        rows.iter().flatten().for_each(|cell| cells.push(cell));
        let positions = Positions::Rows { first: 7 };
        Piece { file: "a".into(), positions, records: Records::Cells(cells), bad: Vec::new() }
    }

    #[test]
    fn cells_are_found_by_name_encoded_and_bad_rows_left_out() {
        let columns = ["country", "id", "size"].map(String::from);
        let decoder = TableDecoder::new(schema(), &columns).unwrap();
        assert_eq!(decoder.shape().columns, [InputSpec::Gaussian, InputSpec::Categorical(2)]);
        let text = |text: &str| Cell::Text(text.to_string().into());
        let rows = [
            [text("FR"), Cell::Int(1), Cell::Float(0.5)],
            [text("IT"), Cell::Int(2), Cell::Float(1.5)],
            [Cell::Null, Cell::Int(3), Cell::Raw("2".into())],
        ];
        let decoded = decoder.decode(&piece(&rows)).unwrap();
        let expected = Table::new(2, Values::F32(vec![0.5, 1.0, 2.0, 0.0])).unwrap();
        let expected = expected.with_missing(vec![false, false, false, true]).unwrap();
        assert_eq!(decoded.output, Output::Rows(expected));
        let lines: Vec<String> = decoded.bad.iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["a: row 8: column `country`: `IT` is not among the 2 categories"]);
        assert_eq!(decoded.records, 3);
    }

    #[test]
    fn the_quick_way_to_a_category_is_the_way_of_the_schema() {
        let decoder = TableDecoder::new(schema(), &["size", "country"].map(String::from)).unwrap();
        let cells = ["DE", "FR", "IT", "", "de"];
        let cells = cells.iter().flat_map(|text| [Cell::Text((*text).into()), Cell::Raw((*text).into())]);
        for cell in cells.chain([Cell::Int(1), Cell::Null, Cell::Bool(true)]) {
            assert_eq!(decoder.encode(1, &cell), decoder.schema().columns[1].encode(&cell), "{cell:?}");
        }
        assert!(TableDecoder::new(schema(), &["size".to_string()]).is_err());
    }
}
