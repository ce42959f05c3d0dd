//! JSON lines: an object per row, with the columns in their order.
//!
//! Numbers have as many digits as bring back the same bits; what is not finite has no number in JSON and is null.
//! Lists and structs are lists and objects; dates, times and decimals are texts. Bytes have no place here.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde::Serialize;

use super::is_bytes;
use crate::error::{Error, Result};

/// Returns true if JSON has a place for cells of this type.
pub(super) fn holds(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => holds(item.data_type()),
        DataType::Struct(fields) => fields.iter().all(|field| holds(field.data_type())),
        DataType::Dictionary(_, values) => holds(values),
        other => !other.is_nested() && !is_bytes(other),
    }
}

/// The rows, a line each.
pub(super) fn lines(rows: &RecordBatch) -> Result<Vec<u8>> {
    let schema = rows.schema();
    let names: Vec<String> = schema.fields().iter().map(|field| quoted(field.name())).collect();
    let columns: Vec<ArrayRef> = rows.columns().iter().map(without_dictionary).collect::<Result<_>>()?;
    let mut lines = Vec::new();
    for row in 0..rows.num_rows() {
        for (at, (name, column)) in names.iter().zip(&columns).enumerate() {
            lines.push(if at == 0 { b'{' } else { b',' });
            lines.extend_from_slice(name.as_bytes());
            lines.push(b':');
            push(&mut lines, column, row)?;
        }
        lines.extend_from_slice(if names.is_empty() { b"{}\n" } else { b"}\n" });
    }
    Ok(lines)
}

fn without_dictionary(column: &ArrayRef) -> Result<ArrayRef> {
    match column.data_type() {
        DataType::Dictionary(_, values) => cast(column, values).map_err(|e| Error::internal(e.to_string())),
        _ => Ok(column.clone()),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn push(out: &mut Vec<u8>, array: &dyn Array, row: usize) -> Result<()> {
    if array.is_null(row) {
        out.extend_from_slice(b"null");
        return Ok(());
    }
    match array.data_type() {
        DataType::Boolean => push_plain(out, array.as_boolean().value(row)),
        DataType::Int8 => push_plain(out, array.as_primitive::<Int8Type>().value(row)),
        DataType::Int16 => push_plain(out, array.as_primitive::<Int16Type>().value(row)),
        DataType::Int32 => push_plain(out, array.as_primitive::<Int32Type>().value(row)),
        DataType::Int64 => push_plain(out, array.as_primitive::<Int64Type>().value(row)),
        DataType::UInt8 => push_plain(out, array.as_primitive::<UInt8Type>().value(row)),
        DataType::UInt16 => push_plain(out, array.as_primitive::<UInt16Type>().value(row)),
        DataType::UInt32 => push_plain(out, array.as_primitive::<UInt32Type>().value(row)),
        DataType::UInt64 => push_plain(out, array.as_primitive::<UInt64Type>().value(row)),
        DataType::Float16 => push_plain(out, f32::from(array.as_primitive::<Float16Type>().value(row))),
        DataType::Float32 => push_plain(out, array.as_primitive::<Float32Type>().value(row)),
        DataType::Float64 => push_plain(out, array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => push_plain(out, array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => push_plain(out, array.as_string::<i64>().value(row)),
        DataType::Utf8View => push_plain(out, array.as_string_view().value(row)),
        DataType::List(_) => push_list(out, &*array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => push_list(out, &*array.as_list::<i64>().value(row)),
        DataType::FixedSizeList(..) => push_list(out, &*array.as_fixed_size_list().value(row)),
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            out.push(b'{');
            for (at, (field, column)) in fields.iter().zip(columns).enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                out.extend_from_slice(quoted(field.name()).as_bytes());
                out.push(b':');
                push(out, column, row)?;
            }
            out.push(b'}');
            Ok(())
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            push(out, dictionary.values(), dictionary.normalized_keys()[row])
        }
        DataType::Null => push_plain(out, ()),
        _ => {
            let format = ArrayFormatter::try_new(array, &FormatOptions::default());
            let text = format.and_then(|cells| cells.value(row).try_to_string());
            push_plain(out, text.map_err(|e| Error::internal(e.to_string()))?.as_str())
        }
    }
}

/// A number that is not finite is null.
fn push_plain(out: &mut Vec<u8>, value: impl Serialize) -> Result<()> {
    serde_json::to_writer(out, &value).map_err(|e| Error::internal(e.to_string()))
}

fn push_list(out: &mut Vec<u8>, items: &dyn Array) -> Result<()> {
    out.push(b'[');
    for item in 0..items.len() {
        if item > 0 {
            out.push(b',');
        }
        push(out, items, item)?;
    }
    out.push(b']');
    Ok(())
}
