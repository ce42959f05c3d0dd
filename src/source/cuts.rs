//! Record batches cut into pieces of bounded size.
//!
//! A batch of Arrow or Parquet rows may say the same long text for every row through a dictionary or a view, so what is
//! a few kilobytes in the batch can be gigabytes as records. The size of every record is therefore looked up before it
//! is copied: pieces end where they are large enough, and a record that is too large by itself is bad and is never
//! copied. Used by `parquet` and `arrow_stream`.

use std::ops::Range;

use arrow::array::{Array, AsArray, RecordBatch, downcast_dictionary_array};
use arrow::datatypes::{ArrowNativeType, DataType};

use super::binding::{Binding, IMAGE_BYTES, is_text};
use super::columns::RecordKind;
use super::limits::ReadLimits;
use super::{Blobs, Lists, Records};
use crate::data::{Cells, Values};
use crate::error::Result;

/// A piece has no more rows than this, however small they are.
pub(super) const MAX_PIECE_ROWS: u64 = 8192;

/// A piece may be this many times as large as it should be before it is cut: batches are planned by mean sizes.
const SLACK: u64 = 4;

/// What a record takes beside its values: where it ends.
const END_BYTES: u64 = 8;

/// A batch that is delivered in pieces.
#[derive(Debug)]
pub(super) struct Cuts {
    batch: RecordBatch,
    /// The first row that is still to come.
    next: usize,
}

/// Some rows of a batch: which ones, their records, and which of these are bad.
pub(super) type Cut = (Range<usize>, Records, Vec<(usize, String)>);

impl Cuts {
    /// The pieces of a batch.
    pub fn new(batch: RecordBatch) -> Self {
        Self { batch, next: 0 }
    }

    /// How many rows the batch has.
    pub fn num_rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// The next rows; `None` after the last.
    pub fn next(&mut self, binding: &Binding, limits: &ReadLimits) -> Option<Result<Cut>> {
        let start = self.next;
        if start == self.batch.num_rows() {
            return None;
        }
        let bytes = record_bytes(&self.batch, binding);
        if let Err(reason) = limits.check_record(bytes(start)) {
            drop(bytes);
            self.next += 1;
            return Some(Ok((start..self.next, empty_record(binding.kind()), vec![(0, reason)])));
        }
        let most = (limits.piece_bytes as u64).saturating_mul(SLACK);
        let last = self.batch.num_rows().min(start.saturating_add(MAX_PIECE_ROWS as usize));
        let (mut end, mut total) = (start, 0u64);
        while end < last {
            let record = bytes(end);
            total = total.saturating_add(record.saturating_add(END_BYTES));
            if end > start && (total > most || limits.check_record(record).is_err()) {
                break;
            }
            end += 1;
        }
        drop(bytes);
        self.next = end;
        let records = binding.records(&self.batch.slice(start, end - start));
        Some(records.map(|(records, bad)| (start..end, records, bad)))
    }
}

/// In the place of a record that is not read.
fn empty_record(kind: RecordKind) -> Records {
    match kind {
        RecordKind::Text | RecordKind::Image => Records::Blobs(Blobs { bytes: Vec::new(), ends: vec![0] }),
        RecordKind::Lists { .. } => {
            Records::Lists(Lists { values: Values::U8(Vec::new()), ends: vec![0], missing: None })
        }
        RecordKind::Cells { width } => {
            let mut cells = Cells::new(width);
            cells.push_null_row();
            Records::Cells(cells)
        }
    }
}

/// How many bytes a row of a batch takes as a record.
fn record_bytes<'a>(batch: &'a RecordBatch, binding: &Binding) -> Box<dyn Fn(usize) -> u64 + 'a> {
    let number = binding.number_bytes().max(1);
    let fixed = number.saturating_mul(binding.names().len() as u64);
    if let RecordKind::Cells { .. } = binding.kind() {
        let columns = binding.names().iter().filter_map(|name| batch.column_by_name(name));
        let texts: Vec<_> =
            columns.filter(|column| is_text(column.data_type())).map(|column| value_bytes(column, 0)).collect();
        return Box::new(move |row| texts.iter().fold(fixed, |sum, text| sum.saturating_add(text(row))));
    }
    match binding.names() {
        [name] => match batch.column_by_name(name) {
            Some(array) => value_bytes(array, number),
            None => Box::new(move |_| fixed), // `Binding::records` will say that it is missing
        },
        _ => Box::new(move |_| fixed),
    }
}

/// How many bytes a value of an array takes; `number` is what one number of a list takes.
fn value_bytes<'a>(array: &'a dyn Array, number: u64) -> Box<dyn Fn(usize) -> u64 + 'a> {
    fn between<O: ArrowNativeType>(offsets: &[O], number: u64) -> Box<dyn Fn(usize) -> u64 + '_> {
        Box::new(move |row| {
            let length = offsets[row + 1].as_usize().saturating_sub(offsets[row].as_usize());
            (length as u64).saturating_mul(number)
        })
    }
    fn viewed(views: &[u128]) -> Box<dyn Fn(usize) -> u64 + '_> {
        Box::new(|row| u64::from(views[row] as u32)) // the low half of the low half of a view is its length
    }
    match array.data_type() {
        DataType::Utf8 => between(array.as_string::<i32>().value_offsets(), 1),
        DataType::LargeUtf8 => between(array.as_string::<i64>().value_offsets(), 1),
        DataType::Binary => between(array.as_binary::<i32>().value_offsets(), 1),
        DataType::LargeBinary => between(array.as_binary::<i64>().value_offsets(), 1),
        DataType::Utf8View => viewed(array.as_string_view().views()),
        DataType::BinaryView => viewed(array.as_binary_view().views()),
        DataType::List(_) => between(array.as_list::<i32>().value_offsets(), number),
        DataType::LargeList(_) => between(array.as_list::<i64>().value_offsets(), number),
        DataType::FixedSizeList(_, width) => {
            let bytes = u64::try_from(*width).unwrap_or(0).saturating_mul(number);
            Box::new(move |_| bytes)
        }
        DataType::Struct(_) => match array.as_struct().column_by_name(IMAGE_BYTES) {
            Some(bytes) => value_bytes(bytes, number),
            None => Box::new(|_| 0),
        },
        DataType::Dictionary(..) => downcast_dictionary_array!(
            array => {
                let (keys, value) = (array.keys(), value_bytes(array.values(), number));
                Box::new(move |row| if keys.is_null(row) { 0 } else { value(keys.value(row).as_usize()) })
            },
            _ => Box::new(move |_| number)
        ),
        _ => Box::new(move |_| number),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, BinaryViewArray, DictionaryArray, Int8Array, LargeStringArray, StringArray, UInt8Array,
    };

    use super::*;
    use crate::source::Columns;

    fn cuts(array: ArrayRef, limits: &ReadLimits) -> Vec<Cut> {
        let batch = RecordBatch::try_from_iter_with_nullable([("x", array, true)]).unwrap();
        let binding = Binding::new(&batch.schema(), &Columns::One("x".into())).unwrap();
        let mut cuts = Cuts::new(batch);
        std::iter::from_fn(|| cuts.next(&binding, limits)).map(Result::unwrap).collect()
    }

    fn limits(piece_bytes: usize, record_bytes: u64) -> ReadLimits {
        ReadLimits { piece_bytes, part_bytes: u64::MAX, record_bytes }
    }

    #[test]
    fn one_long_text_behind_a_dictionary_or_a_view_is_copied_a_few_times_not_once_for_every_row() {
        let text = "a".repeat(1000);
        let values: ArrayRef = Arc::new(LargeStringArray::from(vec![text.as_str(), "b"]));
        let keys: Int8Array = (0..100).map(|row| (row % 50 != 7).then_some(i8::from(row % 10 == 9))).collect();
        let words: ArrayRef = Arc::new(DictionaryArray::new(keys, values));
        let views: ArrayRef = Arc::new(BinaryViewArray::from_iter((0..100).map(|_| Some(text.as_bytes()))));
        for array in [words, views] {
            let cuts = cuts(array, &limits(1000, 2000));
            assert!(cuts.len() >= 20, "{}", cuts.len());
            let mut next = 0;
            for (rows, records, _) in cuts {
                assert_eq!((rows.start, rows.len()), (next, records.len()));
                next = rows.end;
                let Records::Blobs(blobs) = records else { panic!("texts are blobs") };
                assert!(blobs.bytes.len() <= 4000, "{}", blobs.bytes.len());
            }
            assert_eq!(next, 100);
        }
    }

    #[test]
    fn a_record_that_is_too_large_is_bad_and_its_neighbours_are_not() {
        let texts = ["a", &"b".repeat(101), "c", &"d".repeat(100)];
        let found = cuts(Arc::new(StringArray::from(texts.to_vec())), &limits(1 << 20, 100));
        let rows: Vec<_> = found.iter().map(|(rows, ..)| rows.clone()).collect();
        assert_eq!(rows, [0..1, 1..2, 2..4]);
        assert_eq!(found[1].2[0].0, 0);
        assert!(found[1].2[0].1.starts_with("a record of 101 bytes is more than the 100 bytes"), "{:?}", found[1].2);
        let Records::Blobs(blobs) = &found[2].1 else { panic!("texts are blobs") };
        assert_eq!((blobs.get(0), blobs.get(1).len()), (&b"c"[..], 100));
        assert!(found[0].2.is_empty() && found[2].2.is_empty());
    }

    #[test]
    fn rows_of_numbers_come_in_pieces_of_so_many_rows() {
        let found = cuts(Arc::new(UInt8Array::from(vec![1; 20_000])), &limits(1 << 20, 100));
        let rows: Vec<_> = found.iter().map(|(rows, ..)| rows.len()).collect();
        assert_eq!(rows, [8192, 8192, 3616]);
    }
}
