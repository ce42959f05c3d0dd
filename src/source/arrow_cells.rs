//! Arrow columns cell by cell, with their types: what a typed table is made of.
//!
//! A column has a type that one [`Cell`] can have, or it is not a column of a table: lists, structures, bytes and times
//! of day are not. Real numbers that are not a number are what data frames write for nothing, and stay what they are;
//! the schema takes them for missing. Used by `binding`, for learning and for answers.

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array};
use arrow::compute::take;
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Decimal128Type, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

use crate::data::{Cell, Cells};
use crate::error::{Error, Result};

const MILLIS_PER_DAY: i64 = 86_400_000;

/// Returns true if a column of this type has one value per row that a cell can be.
pub(super) fn is_cell(data_type: &DataType) -> bool {
    match data_type {
        DataType::Null | DataType::Boolean | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) | DataType::Decimal128(..) => true,
        DataType::Dictionary(_, values) => is_cell(values),
        other => other.is_integer() || other.is_floating(),
    }
}

/// The cells of some columns of equal length, row by row.
pub(super) fn cells(columns: &[&ArrayRef], num_rows: usize) -> Result<Cells> {
    // Without dictionaries: keys of one may be many and its values few, so it is taken apart once.
    let plain: Vec<ArrayRef> = columns.iter().map(|column| plain(column)).collect::<Result<_>>()?;
    let readers: Vec<Reader<'_>> = plain.iter().map(reader).collect::<Result<_>>()?;
    let mut cells = Cells::new(columns.len());
    for row in 0..num_rows {
        readers.iter().for_each(|read| cells.push(&read(row)));
    }
    Ok(cells)
}

fn plain(column: &ArrayRef) -> Result<ArrayRef> {
    match column.as_any_dictionary_opt() {
        None => Ok(column.clone()),
        Some(dictionary) => {
            take(dictionary.values(), dictionary.keys(), None).map_err(|error| Error::data(error.to_string()))
        }
    }
}

/// The cell of a row.
type Reader<'a> = Box<dyn Fn(usize) -> Cell<'a> + 'a>;

/// A reader that knows the type of a column.
fn reader(column: &ArrayRef) -> Result<Reader<'_>> {
    macro_rules! primitive {
        ($type:ty, $value:ident => $cell:expr) => {{
            let array = column.as_primitive::<$type>();
            of_valid(column, move |row| {
                let $value = array.value(row);
                $cell
            })
        }};
    }
    Ok(match column.data_type() {
        DataType::Null => Box::new(|_| Cell::Null),
        DataType::Boolean => {
            let array = column.as_boolean();
            of_valid(column, |row| Cell::Bool(array.value(row)))
        }
        DataType::Int8 => primitive!(Int8Type, value => Cell::Int(value.into())),
        DataType::Int16 => primitive!(Int16Type, value => Cell::Int(value.into())),
        DataType::Int32 => primitive!(Int32Type, value => Cell::Int(value.into())),
        DataType::Int64 => primitive!(Int64Type, value => Cell::Int(value)),
        DataType::UInt8 => primitive!(UInt8Type, value => Cell::Int(value.into())),
        DataType::UInt16 => primitive!(UInt16Type, value => Cell::Int(value.into())),
        DataType::UInt32 => primitive!(UInt32Type, value => Cell::Int(value.into())),
        DataType::UInt64 => {
            primitive!(UInt64Type, value => i64::try_from(value).map_or(Cell::Float(value as f64), Cell::Int))
        }
        DataType::Float16 => primitive!(Float16Type, value => Cell::Float(value.into())),
        DataType::Float32 => primitive!(Float32Type, value => Cell::Float(value.into())),
        DataType::Float64 => primitive!(Float64Type, value => Cell::Float(value)),
        DataType::Decimal128(_, scale) => decimals(column, column.as_primitive::<Decimal128Type>(), *scale),
        DataType::Utf8 => {
            let array = column.as_string::<i32>();
            of_valid(column, |row| Cell::Text(array.value(row).into()))
        }
        DataType::LargeUtf8 => {
            let array = column.as_string::<i64>();
            of_valid(column, |row| Cell::Text(array.value(row).into()))
        }
        DataType::Utf8View => {
            let array = column.as_string_view();
            of_valid(column, |row| Cell::Text(array.value(row).into()))
        }
        DataType::Date32 => primitive!(Date32Type, value => Cell::Date(value.into())),
        DataType::Date64 => primitive!(Date64Type, value => Cell::Date(value.div_euclid(MILLIS_PER_DAY))),
        // Times are in UTC whatever the zone that a column is shown in; beyond what microseconds reach is nothing.
        DataType::Timestamp(TimeUnit::Second, _) => primitive!(TimestampSecondType, value => scaled(value, 1_000_000)),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            primitive!(TimestampMillisecondType, value => scaled(value, 1000))
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            primitive!(TimestampMicrosecondType, value => Cell::Time(value))
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            primitive!(TimestampNanosecondType, value => Cell::Time(value.div_euclid(1000)))
        }
        other => return Err(Error::data(format!("{other} is not a value of a table"))),
    })
}

/// What lies under a null is anything.
fn of_valid<'a>(column: &'a ArrayRef, value: impl Fn(usize) -> Cell<'a> + 'a) -> Reader<'a> {
    match column.nulls() {
        None => Box::new(value),
        Some(nulls) => Box::new(move |row| if nulls.is_null(row) { Cell::Null } else { value(row) }),
    }
}

fn scaled<'a>(value: i64, micros: i64) -> Cell<'a> {
    value.checked_mul(micros).map_or(Cell::Null, Cell::Time)
}

fn decimals<'a>(column: &'a ArrayRef, array: &'a Decimal128Array, scale: i8) -> Reader<'a> {
    of_valid(column, move |row| match (i64::try_from(array.value(row)), scale) {
        (Ok(whole), 0) => Cell::Int(whole),
        _ => Cell::Float(array.value_as_string(row).parse().unwrap_or(f64::NAN)), // digits and a point
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        BooleanArray, Date32Array, DictionaryArray, Float32Array, Int64Array, NullArray, StringArray, StringViewArray,
        TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray, UInt64Array,
    };

    use super::*;

    #[test]
    fn every_type_of_a_table_becomes_its_cells_and_nulls_are_nulls() {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(BooleanArray::from(vec![Some(true), None])),
            Arc::new(Int64Array::from(vec![Some(-7), None])),
            Arc::new(UInt64Array::from(vec![Some(u64::MAX), None])),
            Arc::new(Float32Array::from(vec![Some(0.5), None])),
            Arc::new(StringArray::from(vec![Some("a"), None])),
            Arc::new(StringViewArray::from(vec![Some(""), None])),
            Arc::new([Some("b"), None].into_iter().collect::<DictionaryArray<Int8Type>>()),
            Arc::new(Date32Array::from(vec![Some(-1), None])),
            Arc::new(TimestampSecondArray::from(vec![Some(2), None])),
            Arc::new(TimestampMillisecondArray::from(vec![Some(2), None]).with_timezone("+02:00")),
            Arc::new(TimestampNanosecondArray::from(vec![Some(-1), None])),
            Arc::new(Decimal128Array::from(vec![Some(1234), None]).with_precision_and_scale(10, 2).unwrap()),
            Arc::new(Decimal128Array::from(vec![Some(1234), None]).with_precision_and_scale(10, 0).unwrap()),
            Arc::new(NullArray::new(2)),
        ];
        assert!(columns.iter().all(|column| is_cell(column.data_type())));
        let found = cells(&columns.iter().collect::<Vec<_>>(), 2).unwrap();
        let first: Vec<Cell<'_>> = (0..columns.len()).map(|column| found.get(0, column)).collect();
        let expected = [
            Cell::Bool(true),
            Cell::Int(-7),
            Cell::Float(u64::MAX as f64),
            Cell::Float(0.5),
            Cell::Text("a".into()),
            Cell::Text("".into()),
            Cell::Text("b".into()),
            Cell::Date(-1),
            Cell::Time(2_000_000),
            Cell::Time(2000),
            Cell::Time(-1),
            Cell::Float(12.34),
            Cell::Int(1234),
            Cell::Null,
        ];
        assert_eq!(first, expected);
        assert!((0..columns.len()).all(|column| found.get(1, column).is_null()));
    }

    #[test]
    fn a_slice_of_a_column_has_its_own_rows() {
        let column: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("c")]));
        let found = cells(&[&column.slice(1, 2)], 2).unwrap();
        assert_eq!((found.get(0, 0), found.get(1, 0)), (Cell::Null, Cell::Text("c".into())));
    }
}
