//! Bound columns of a batch become records.

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, RecordBatch};
use arrow::datatypes::DataType;

use super::{Binding, Form, IMAGE_BYTES};
use crate::data::Column;
use crate::error::{Error, Result};
use crate::source::arrow_values::{NumberType, Numbers, blobs, numbers};
use crate::source::{Lists, Records};

impl Binding {
    /// The records of a batch that has the bound columns, and which of them cannot be used, in order.
    pub fn records(&self, batch: &RecordBatch) -> Result<(Records, Vec<(usize, String)>)> {
        let columns = self.names.iter().map(|name| {
            batch.column_by_name(name).ok_or_else(|| Error::data(format!("no column `{name}` in a batch of rows")))
        });
        let columns: Vec<&ArrayRef> = columns.collect::<Result<_>>()?;
        match self.form {
            Form::Blobs => blobs(columns[0]).map(|(blobs, bad)| (Records::Blobs(blobs), bad)),
            Form::Images => image_records(columns[0]),
            Form::Lists => self.list_records(columns[0]),
            Form::Numbers => self.number_records(&columns, batch.num_rows()),
        }
        .map_err(|error| error.at(format_args!("column `{}`", self.names[0])))
    }

    fn list_records(&self, array: &ArrayRef) -> Result<(Records, Vec<(usize, String)>)> {
        let (values, ends) = match array.data_type() {
            DataType::List(_) => list_parts::<i32>(array),
            DataType::LargeList(_) => list_parts::<i64>(array),
            DataType::FixedSizeList(_, width) => {
                let (lists, width) = (array.as_fixed_size_list(), *width as usize);
                let ends = (1..=lists.len()).map(|record| record * width).collect();
                (lists.values().slice(0, lists.len() * width), ends)
            }
            other => return Err(Error::data(format!("{other} is not a list"))),
        };
        let Numbers { values, missing, bad: bad_values } = numbers(&values, self.number)?;
        let mut bad: Vec<(usize, String)> =
            (0..array.len()).filter(|&record| array.is_null(record)).map(|record| (record, "null".into())).collect();
        for (index, reason) in bad_values {
            let record = ends.partition_point(|&end| end <= index);
            let first = record.checked_sub(1).map_or(0, |before| ends[before]);
            bad.push((record, format!("value {}: {reason}", index - first)));
        }
        Ok((Records::Lists(Lists { values, ends, missing }), first_of_each(bad)))
    }

    fn number_records(&self, columns: &[&ArrayRef], num_rows: usize) -> Result<(Records, Vec<(usize, String)>)> {
        let width = columns.len();
        let mut read = Vec::with_capacity(width);
        for (name, array) in self.names.iter().zip(columns) {
            read.push(numbers(array, self.number).map_err(|error| error.at(format_args!("column `{name}`")))?);
        }
        let bad = read.iter().zip(&self.names).flat_map(|(numbers, name)| {
            numbers.bad.iter().map(move |(record, reason)| match width {
                1 => (*record, reason.clone()),
                _ => (*record, format!("column `{name}`: {reason}")),
            })
        });
        let bad = first_of_each(bad.collect());
        let masks: Vec<Option<&[bool]>> = read.iter().map(|numbers| numbers.missing.as_deref()).collect();
        let missing = masks.iter().any(Option::is_some).then(|| {
            let mask = |column: usize| masks[column].unwrap_or(&[]);
            let cells = (0..num_rows * width).map(|cell| mask(cell % width).get(cell / width).copied());
            cells.map(Option::unwrap_or_default).collect()
        });
        let parts: Vec<&Column> = read.iter().map(|numbers| &numbers.values).collect();
        let values = match self.number {
            NumberType::U8 => Column::U8(rows_of(&parts, num_rows, |c| if let Column::U8(v) = c { v } else { &[] })),
            NumberType::U16 => Column::U16(rows_of(&parts, num_rows, |c| if let Column::U16(v) = c { v } else { &[] })),
            NumberType::U32 => Column::U32(rows_of(&parts, num_rows, |c| if let Column::U32(v) = c { v } else { &[] })),
            NumberType::F32 => Column::F32(rows_of(&parts, num_rows, |c| if let Column::F32(v) = c { v } else { &[] })),
        };
        let ends = (1..=num_rows).map(|record| record * width).collect();
        Ok((Records::Lists(Lists { values, ends, missing }), bad))
    }
}

/// Columns laid out row by row. `values` sees columns of one type only: `numbers` made them so.
fn rows_of<T: Copy + Default>(columns: &[&Column], num_rows: usize, values: impl Fn(&Column) -> &[T]) -> Vec<T> {
    let width = columns.len();
    let mut rows = vec![T::default(); num_rows * width];
    for (var, column) in columns.iter().enumerate() {
        for (row, &value) in values(column).iter().enumerate() {
            rows[row * width + var] = value;
        }
    }
    rows
}

fn image_records(array: &ArrayRef) -> Result<(Records, Vec<(usize, String)>)> {
    let images = array.as_struct();
    let bytes = images.column_by_name(IMAGE_BYTES).ok_or_else(|| Error::data("no field `bytes`"))?;
    let (blobs, no_bytes) = blobs(bytes)?;
    let bad = no_bytes.into_iter().map(|(record, _)| (record, "no bytes; only a path is given".to_string()));
    // The struct itself may be null over bytes that are not.
    let null = (0..images.len()).filter(|&record| images.is_null(record)).map(|record| (record, "null".to_string()));
    Ok((Records::Blobs(blobs), first_of_each(null.chain(bad).collect())))
}

/// The values of all lists, and where each list ends among them.
fn list_parts<O: OffsetSizeTrait>(array: &ArrayRef) -> (ArrayRef, Vec<usize>) {
    let lists = array.as_list::<O>();
    let offsets = lists.value_offsets();
    let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    let ends = offsets[1..].iter().map(|end| end.as_usize() - first).collect();
    (lists.values().slice(first, last - first), ends)
}

/// In order, one reason a record.
fn first_of_each(mut bad: Vec<(usize, String)>) -> Vec<(usize, String)> {
    bad.sort_by_key(|&(record, _)| record);
    bad.dedup_by_key(|&mut (record, _)| record);
    bad
}
