//! The variables of a model that has learned from numbers, in a table with other columns besides.
//!
//! A column for each, or one with a list per row, bound by their names as a source binds them. A column that is not
//! there is one whose cells are all missing.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt8Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::super::binding::Binding;
use super::super::{Columns, Piece, Positions, RecordKind};
use super::Part;
use crate::error::{Error, Result};

/// Columns of a table that are numbers, or lists of them.
pub struct NumberColumns {
    binding: Binding,
    /// The columns of the table, then those that are not there. A column without a type is of numbers that are missing.
    schema: SchemaRef,
    /// Those that are not there.
    absent: Vec<String>,
    is_list: bool,
}

impl NumberColumns {
    /// Finds the columns. Names that are not there are absent, if at least one is there.
    pub fn find(schema: &Schema, columns: &Columns) -> Result<Self> {
        let is_there = |name: &String| schema.fields().iter().any(|field| field.name() == name);
        let absent: Vec<String> = match columns {
            Columns::Many(names) if names.iter().any(is_there) => {
                names.iter().filter(|name| !name.ends_with('*') && !is_there(name)).cloned().collect()
            }
            _ => Vec::new(),
        };
        let typed = |field: &Arc<Field>| match field.data_type() {
            DataType::Null => Arc::new(Field::new(field.name(), DataType::UInt8, true)),
            _ => field.clone(),
        };
        let mut fields: Vec<Arc<Field>> = schema.fields().iter().map(typed).collect();
        fields.extend(absent.iter().map(|name| Arc::new(Field::new(name, DataType::UInt8, true))));
        let schema = Arc::new(Schema::new(fields));
        let binding = Binding::new(&schema, columns)?;
        let name = &binding.names()[0];
        let RecordKind::Lists { .. } = binding.kind() else {
            return Err(Error::unsupported(format!(
                "column `{name}`: the model has learned from what was cut out of texts or images, so a row of a table \
                 is no row of the model; ask about columns of numbers, or a list of numbers per row"
            )));
        };
        let is_list =
            binding.names().len() == 1 && schema.field_with_name(name).is_ok_and(|field| field.data_type().is_nested());
        Ok(Self { binding, schema, absent, is_list })
    }

    /// The columns in the order of variables, or the one with lists.
    pub fn names(&self) -> &[String] {
        self.binding.names()
    }

    /// Returns true if a row is a list.
    pub fn is_list(&self) -> bool {
        self.is_list
    }

    /// How many variables there are, where the columns tell.
    pub fn num_vars(&self) -> Option<usize> {
        match self.binding.kind() {
            RecordKind::Lists { width, .. } => width,
            RecordKind::Cells { width } => Some(width),
            RecordKind::Text | RecordKind::Image => None,
        }
    }

    /// The columns that the table does not have.
    pub fn absent(&self) -> &[String] {
        &self.absent
    }

    /// The numbers of some rows.
    pub fn piece(&self, part: &Part) -> Result<Piece> {
        let nothing: ArrayRef = Arc::new(UInt8Array::new_null(part.rows.num_rows()));
        let typed = |column: &ArrayRef| match column.data_type() {
            DataType::Null => nothing.clone(),
            _ => column.clone(),
        };
        let mut columns: Vec<ArrayRef> = part.rows.columns().iter().map(typed).collect();
        columns.extend(self.absent.iter().map(|_| nothing.clone()));
        let rows = RecordBatch::try_new(self.schema.clone(), columns).map_err(|e| Error::internal(e.to_string()))?;
        let (records, bad) = self.binding.records(&rows).map_err(|error| error.at(&part.file))?;
        Ok(Piece { file: part.file.clone(), positions: Positions::Rows { first: part.first }, records, bad })
    }
}
