//! Answers of a model as columns of a table, beside those that the rows came with.
//!
//! A cell that was not missing keeps its bits, and a column its type. Where every variable is a column of the table,
//! there is a column of answers for each, `WHAT_NAME`; where a row is one list, answers about variables are lists too,
//! of the same name. Made by `cli`, written by the sinks.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Date32Array, FixedSizeListArray, Float32Array, Float64Array, Int64Array,
    LargeListArray, ListArray, RecordBatch, StringArray, TimestampMicrosecondArray, new_null_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::error::ArrowError;

use crate::data::{Cell, CellType};
use crate::error::{Error, Result};

/// New columns with their names.
pub type Named = Vec<(String, ArrayRef)>;

/// Where the variables of a model are in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A column for each, by its name.
    Columns(Vec<String>),
    /// One column with a list per row.
    List {
        /// Its name.
        column: String,
        /// How long every list is.
        num_vars: usize,
    },
}

impl Layout {
    /// How many variables there are.
    pub fn num_vars(&self) -> usize {
        match self {
            Self::Columns(names) => names.len(),
            Self::List { num_vars, .. } => *num_vars,
        }
    }
}

/// A number per row.
pub fn per_row(name: &str, values: Vec<f64>) -> (String, ArrayRef) {
    (name.into(), Arc::new(Float64Array::from(values)))
}

/// The number of each draw: 1 to `draws` for every row.
pub fn draw_numbers(num_rows: usize, draws: usize) -> (String, ArrayRef) {
    let numbers = (0..num_rows).flat_map(|_| 1..=draws as i64);
    ("draw".into(), Arc::new(Int64Array::from_iter_values(numbers)))
}

/// A number per cell, or none: `WHAT_NAME` for each variable that `is_asked` of, or one column of lists.
pub fn per_cell(
    layout: &Layout,
    what: &str,
    num_rows: usize,
    is_asked: impl Fn(usize) -> bool,
    value: impl Fn(usize, usize) -> Option<f64>,
) -> Named {
    match layout {
        Layout::Columns(names) => {
            let column = |var: usize| Float64Array::from_iter((0..num_rows).map(|row| value(row, var)));
            let asked = names.iter().enumerate().filter(|(var, _)| is_asked(*var));
            asked.map(|(var, name)| (format!("{what}_{name}"), Arc::new(column(var)) as _)).collect()
        }
        Layout::List { column, num_vars } => {
            let cells = (0..num_rows * num_vars).map(|cell| value(cell / num_vars, cell % num_vars));
            let cells: ArrayRef = Arc::new(Float64Array::from_iter(cells));
            vec![(format!("{what}_{column}"), Arc::new(lists(cells, num_rows, *num_vars, None)))]
        }
    }
}

/// The probabilities of the categories of every missing cell: `p_NAME_CATEGORY` for each variable that has categories,
/// or a list of lists.
pub fn probabilities<'a>(
    layout: &Layout,
    num_rows: usize,
    num_cats: impl Fn(usize) -> Option<u32>,
    category_name: impl Fn(usize, u32) -> String,
    of_cell: impl Fn(usize, usize) -> Option<&'a [f32]>,
) -> Named {
    match layout {
        Layout::Columns(names) => {
            let mut named = Named::new();
            for (var, name) in names.iter().enumerate() {
                let cells: Vec<Option<&[f32]>> = (0..num_rows).map(|row| of_cell(row, var)).collect();
                for category in 0..num_cats(var).unwrap_or(0) {
                    let of_category = |cell: &Option<&[f32]>| cell.map(|cell| cell[category as usize]);
                    let column = Float32Array::from_iter(cells.iter().map(of_category));
                    named.push((format!("p_{name}_{}", category_name(var, category)), Arc::new(column)));
                }
            }
            named
        }
        Layout::List { column, num_vars } => {
            let (mut values, mut lengths, mut known) = (Vec::new(), Vec::new(), Vec::new());
            for cell in 0..num_rows * num_vars {
                let found = of_cell(cell / num_vars, cell % num_vars);
                known.push(found.is_some());
                lengths.push(found.map_or(0, <[f32]>::len));
                values.extend_from_slice(found.unwrap_or_default());
            }
            let item = Arc::new(Field::new_list_field(DataType::Float32, true));
            let offsets = OffsetBuffer::from_lengths(lengths);
            let known = Some(NullBuffer::from(known));
            let inner = ListArray::new(item, offsets, Arc::new(Float32Array::from(values)), known);
            vec![(format!("p_{column}"), Arc::new(lists(Arc::new(inner), num_rows, *num_vars, None)))]
        }
    }
}

/// Lists of equal length; of any length to whoever reads them.
fn lists(values: ArrayRef, num_lists: usize, length: usize, known: Option<NullBuffer>) -> ListArray {
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    ListArray::new(item, OffsetBuffer::from_repeated_length(length, num_lists), values, known)
}

/// The rows with cells in place of what was missing.
pub struct Filled {
    /// The rows.
    pub rows: RecordBatch,
    /// Cells that were missing and stay so, because a column cannot hold what they would be.
    pub still_missing: u64,
}

/// The rows with `cell` in place of what `is_missing`, by row and variable. A column of the model that is not in the
/// table is added, of the type that its cells have. Columns keep their types; a cell that its column cannot hold stays
/// missing.
pub fn fill<'a>(
    rows: &RecordBatch,
    layout: &Layout,
    cell_type: impl Fn(usize) -> CellType,
    is_missing: impl Fn(usize, usize) -> bool,
    cell: impl Fn(usize, usize) -> Cell<'a>,
) -> Result<Filled> {
    let num_rows = rows.num_rows();
    let (mut fields, mut columns) = (rows.schema().fields().to_vec(), rows.columns().to_vec());
    let mut still_missing = 0;
    let mut filled = |column: &ArrayRef, marks: &BooleanArray, cells: Vec<Cell<'a>>| -> Result<ArrayRef> {
        if marks.true_count() == 0 {
            return Ok(column.clone());
        }
        let values = cells_as(&cells, column.data_type()).map_err(|e| internal(&e))?;
        still_missing += (0..cells.len()).filter(|&at| marks.value(at) && values.is_null(at)).count() as u64;
        zip(marks, &values, column).map_err(|e| internal(&e))
    };
    match layout {
        Layout::List { column, num_vars } => {
            let at = position(&fields, column).ok_or_else(|| Error::internal("the list is not there"))?;
            let marks: BooleanArray =
                (0..num_rows * num_vars).map(|cell| Some(is_missing(cell / num_vars, cell % num_vars))).collect();
            let cells = (0..num_rows * num_vars).map(|at| match marks.value(at) {
                true => cell(at / num_vars, at % num_vars),
                false => Cell::Null,
            });
            let items = filled(&items_of(&columns[at], *num_vars)?, &marks, cells.collect())?;
            columns[at] = with_items(&columns[at], items, *num_vars).map_err(|e| internal(&e))?;
        }
        Layout::Columns(names) => {
            for (var, name) in names.iter().enumerate() {
                let marks: BooleanArray = (0..num_rows).map(|row| Some(is_missing(row, var))).collect();
                let cells = (0..num_rows).map(|row| if marks.value(row) { cell(row, var) } else { Cell::Null });
                match position(&fields, name) {
                    // A column of a text file in which there is nothing: it has no type of its own.
                    Some(at) if columns[at].data_type() == &DataType::Null => {
                        let data_type = arrow_type(cell_type(var));
                        columns[at] = filled(&new_null_array(&data_type, num_rows), &marks, cells.collect())?;
                        fields[at] = Arc::new(Field::new(name, data_type, true));
                    }
                    Some(at) => columns[at] = filled(&columns[at], &marks, cells.collect())?,
                    None => {
                        let data_type = arrow_type(cell_type(var));
                        columns.push(filled(&new_null_array(&data_type, num_rows), &marks, cells.collect())?);
                        fields.push(Arc::new(Field::new(name, data_type, true)));
                    }
                }
            }
        }
    }
    let rows = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(|e| internal(&e))?;
    Ok(Filled { rows, still_missing })
}

fn position(fields: &[Arc<Field>], name: &str) -> Option<usize> {
    fields.iter().position(|field| field.name() == name)
}

fn internal(error: &ArrowError) -> Error {
    Error::internal(error.to_string())
}

/// The type of a column of such cells.
pub fn arrow_type(cells: CellType) -> DataType {
    match cells {
        CellType::Bool => DataType::Boolean,
        CellType::Int => DataType::Int64,
        CellType::Float => DataType::Float64,
        CellType::Text => DataType::Utf8,
        CellType::Date => DataType::Date32,
        CellType::Time => DataType::Timestamp(TimeUnit::Microsecond, None),
    }
}

/// Cells as an array of a type: whole numbers take the nearest, texts take what is written. A cell that is none of the
/// type is null.
pub fn cells_as(cells: &[Cell<'_>], to: &DataType) -> std::result::Result<ArrayRef, ArrowError> {
    let number = |cell: &Cell<'_>| match cell {
        Cell::Bool(value) => Some(f64::from(u8::from(*value))),
        Cell::Int(value) => Some(*value as f64),
        Cell::Float(value) => Some(*value),
        _ => None,
    };
    let array: ArrayRef = match to {
        DataType::Dictionary(_, values) => cells_as(cells, values)?,
        DataType::Boolean => Arc::new(BooleanArray::from_iter(cells.iter().map(|cell| match cell {
            Cell::Bool(value) => Some(*value),
            cell => number(cell).map(|number| number >= 0.5),
        }))),
        DataType::Date32 | DataType::Date64 => Arc::new(Date32Array::from_iter(cells.iter().map(|cell| match cell {
            Cell::Date(days) => i32::try_from(*days).ok(),
            Cell::Time(micros) => i32::try_from(micros.div_euclid(MICROS_PER_DAY)).ok(),
            _ => None,
        }))),
        DataType::Timestamp(_, zone) => {
            let micros = TimestampMicrosecondArray::from_iter(cells.iter().map(|cell| match cell {
                Cell::Date(days) => days.checked_mul(MICROS_PER_DAY),
                Cell::Time(micros) => Some(*micros),
                _ => None,
            }));
            Arc::new(if zone.is_some() { micros.with_timezone("+00:00") } else { micros })
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let text = |cell: &Cell<'_>| (!cell.is_null()).then(|| cell.to_string());
            Arc::new(StringArray::from_iter(cells.iter().map(text)))
        }
        to if to.is_integer() => Arc::new(Int64Array::from_iter(cells.iter().map(|cell| match cell {
            Cell::Int(value) => Some(*value),
            cell => number(cell).map(|number| number.round() as i64),
        }))),
        to if to.is_numeric() => Arc::new(Float64Array::from_iter(cells.iter().map(number))),
        to => return Ok(new_null_array(to, cells.len())),
    };
    cast(&array, to)
}

/// Microseconds of a day.
const MICROS_PER_DAY: i64 = 86_400_000_000;

/// Returns true if the column of a variable can hold numbers that are not whole; one that is not there cannot.
pub fn holds_fractions(rows: &RecordBatch, layout: &Layout, var: usize) -> bool {
    let schema = rows.schema();
    let name = match layout {
        Layout::Columns(names) => &names[var],
        Layout::List { column, .. } => column,
    };
    let Ok(field) = schema.field_with_name(name) else { return false };
    let data_type = match field.data_type() {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item.data_type(),
        other => other,
    };
    data_type.is_floating()
}

/// The items of lists of equal length, one list after the other.
fn items_of(column: &ArrayRef, length: usize) -> Result<ArrayRef> {
    let num_items = column.len() * length;
    let items = |values: &ArrayRef, first: usize| values.slice(first, num_items);
    Ok(match column.data_type() {
        DataType::FixedSizeList(..) => items(column.as_fixed_size_list().values(), 0),
        DataType::LargeList(_) => {
            let array = column.as_list::<i64>();
            items(array.values(), array.value_offsets()[0] as usize)
        }
        DataType::List(_) => {
            let array = column.as_list::<i32>();
            items(array.values(), array.value_offsets()[0] as usize)
        }
        other => return Err(Error::internal(format!("{other} is not a list"))),
    })
}

/// The same lists with other items.
fn with_items(column: &ArrayRef, items: ArrayRef, length: usize) -> std::result::Result<ArrayRef, ArrowError> {
    let (nulls, num_lists) = (column.nulls().cloned(), column.len());
    Ok(match column.data_type() {
        DataType::FixedSizeList(item, width) => {
            Arc::new(FixedSizeListArray::try_new(item.clone(), *width, items, nulls)?)
        }
        DataType::LargeList(item) => {
            let offsets = OffsetBuffer::from_repeated_length(length, num_lists);
            Arc::new(LargeListArray::try_new(item.clone(), offsets, items, nulls)?)
        }
        DataType::List(item) => {
            let offsets = OffsetBuffer::from_repeated_length(length, num_lists);
            Arc::new(ListArray::try_new(item.clone(), offsets, items, nulls)?)
        }
        other => return Err(ArrowError::InvalidArgumentError(format!("{other} is not a list"))),
    })
}

/// Every row so many times, one after the other.
pub fn repeated(rows: &RecordBatch, times: usize) -> Result<RecordBatch> {
    let indices = (0..rows.num_rows() as u64).flat_map(|row| std::iter::repeat_n(row, times));
    let indices = arrow::array::UInt64Array::from_iter_values(indices);
    let columns: std::result::Result<Vec<_>, _> =
        rows.columns().iter().map(|column| take(column, &indices, None)).collect();
    columns.and_then(|columns| RecordBatch::try_new(rows.schema(), columns)).map_err(|e| internal(&e))
}

/// The columns that are carried along, then the new ones.
pub fn beside(rows: &RecordBatch, carried: impl Fn(&str) -> bool, new: Named) -> Result<RecordBatch> {
    let schema = rows.schema();
    let old = schema.fields().iter().zip(rows.columns()).filter(|(field, _)| carried(field.name()));
    let (mut fields, mut columns): (Vec<Arc<Field>>, Vec<ArrayRef>) = old.map(|(f, c)| (f.clone(), c.clone())).unzip();
    for (name, column) in new {
        fields.push(Arc::new(Field::new(name, column.data_type().clone(), true)));
        columns.push(column);
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(|e| internal(&e))
}
