//! What the footer of a Parquet file says: which columns there are, and where their bytes lie.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaDataReader};

use super::guarded;
use crate::error::{Error, Result};
use crate::source::columns::{Binding, IMAGE_BYTES};
use crate::source::store::Shard;

/// How much of the end is read at first: most footers fit.
const FOOTER_BYTES: u64 = 64 << 10;

/// Ranges this close are fetched as one: a request costs more than these bytes.
const GAP_BYTES: u64 = 64 << 10;

/// Reads the footer of a file, and checks it before one length in it is trusted.
pub(super) async fn read_footer(shard: &Shard) -> Result<ArrowReaderMetadata> {
    let name = shard.name();
    let broken =
        |why: &str| Error::format(format!("{name}: not a whole Parquet file: {why}; was its writer interrupted?"));
    let size = shard.size();
    if size < 12 {
        return Err(broken(&format!("{size} bytes are too few")));
    }
    let tail = shard.range(size.saturating_sub(FOOTER_BYTES)..size).await?;
    let (before, end) = tail.split_at(tail.len() - 8);
    match &end[4..] {
        b"PAR1" => {}
        b"PARE" => return Err(Error::unsupported(format!("{name}: encrypted Parquet cannot be read"))),
        _ => return Err(broken("it does not end with PAR1")),
    }
    let length = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
    if length > size - 12 {
        return Err(broken(&format!("a footer of {length} bytes in a file of {size}")));
    }
    let footer = match before.len().checked_sub(length as usize) {
        Some(start) => tail.slice(start..before.len()),
        None => shard.range(size - 8 - length..size - 8).await?,
    };
    guarded(|| {
        let metadata = ParquetMetaDataReader::decode_metadata(&footer)?;
        ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new())
    })
    .map_err(|why| broken(&format!("its footer cannot be read ({why})")))
}

/// The leaves of the schema below the bound columns; of an image only the bytes.
pub(super) fn leaves(footer: &ArrowReaderMetadata, binding: &Binding) -> Vec<usize> {
    let schema = footer.parquet_schema();
    let wanted = |leaf: &usize| {
        let path = schema.column(*leaf).path().clone();
        let parts = path.parts();
        binding.names().iter().any(|name| *name == parts[0])
            && (!binding.reads_image_bytes() || parts.get(1).is_some_and(|field| field == IMAGE_BYTES))
    };
    (0..schema.num_columns()).filter(wanted).collect()
}

/// The footer of a file whose texts and byte strings are read as views; the same footer where that cannot be.
pub(super) fn with_views(footer: &ArrowReaderMetadata, binding: &Binding) -> ArrowReaderMetadata {
    let schema = footer.schema();
    let field = |field: &Arc<Field>| match binding.names().contains(field.name()) {
        true => Arc::new(field.as_ref().clone().with_data_type(viewed(field.data_type()))),
        false => field.clone(),
    };
    let fields: Fields = schema.fields().iter().map(field).collect();
    let viewed = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
    let options = ArrowReaderOptions::new().with_schema(viewed);
    guarded(|| ArrowReaderMetadata::try_new(footer.metadata().clone(), options)).unwrap_or_else(|_| footer.clone())
}

fn viewed(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Dictionary(_, values) if matches!(viewed(values), DataType::Utf8View | DataType::BinaryView) => {
            viewed(values)
        }
        DataType::Struct(fields) => {
            let field = |field: &Arc<Field>| match field.name() == IMAGE_BYTES {
                true => Arc::new(field.as_ref().clone().with_data_type(viewed(field.data_type()))),
                false => field.clone(),
            };
            DataType::Struct(fields.iter().map(field).collect())
        }
        other => other.clone(),
    }
}

/// Where a column chunk is, if that is inside the file.
pub(super) fn chunk_range(column: &ColumnChunkMetaData, size: u64) -> Option<Range<u64>> {
    let start = u64::try_from(column.dictionary_page_offset().unwrap_or(column.data_page_offset())).ok()?;
    let end = start.checked_add(u64::try_from(column.compressed_size()).ok()?)?;
    (end <= size).then_some(start..end)
}

/// About how much of memory a column chunk takes: as a record, not as the dictionary and run lengths it is stored in.
pub(super) fn memory_bytes(column: &ColumnChunkMetaData, number_bytes: u64) -> u64 {
    let positive = |n: i64| u64::try_from(n).unwrap_or(0);
    let stored = positive(column.uncompressed_size());
    let numbers = positive(column.num_values()).saturating_mul(number_bytes);
    let strings = positive(column.unencoded_byte_array_data_bytes().unwrap_or(0));
    stored.max(numbers).max(strings)
}

/// Ranges in order, near ones together.
pub(super) fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(GAP_BYTES) => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
