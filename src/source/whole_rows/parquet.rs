//! A Parquet file, a row group at a time.

use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use parquet::DecodeResult;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::arrow::push_decoder::{ParquetPushDecoder, ParquetPushDecoderBuilder};
use tokio::runtime::Handle;

use super::super::parquet::{REQUESTS, chunk_range, guarded, merged, read_footer};
use super::super::parquet_pages::check_pages;
use super::super::store::{Shard, side_by_side};
use super::{FileRows, ReadLimits};
use crate::error::{Error, Result};

/// Rows that are decoded at a time.
const ROWS_AT_ONCE: u64 = 1024;

/// Bytes that a value takes at least, in the sense of `check_pages`.
const VALUE_BYTES: u64 = 8;

pub(super) struct ParquetRows {
    shard: Shard,
    footer: ArrowReaderMetadata,
    num_rows: u64,
    handle: Handle,
    limits: ReadLimits,
    /// The row group that comes after the current one.
    next_group: usize,
    /// The current row group.
    current: Option<Group>,
}

struct Group {
    decoder: ParquetPushDecoder,
    place: String,
    /// Rows that are still to come.
    left: u64,
}

impl ParquetRows {
    pub async fn open(shard: Shard, limits: ReadLimits) -> Result<Self> {
        let footer = read_footer(&shard).await?;
        let mut num_rows = 0u64;
        for (number, group) in footer.metadata().row_groups().iter().enumerate() {
            let rows = u64::try_from(group.num_rows()).ok().and_then(|rows| num_rows.checked_add(rows));
            let wrong = || Error::format(format!("{}: row group {number}: a wrong number of rows", shard.name()));
            num_rows = rows.ok_or_else(wrong)?;
        }
        Ok(Self { shard, footer, num_rows, handle: Handle::current(), limits, next_group: 0, current: None })
    }

    /// Waits for a row group's bytes.
    async fn fetch(&self, number: usize) -> Result<Group> {
        let columns = self.footer.metadata().row_group(number);
        let place = format!("{}: row group {number}", self.shard.name());
        let damaged = |why: &str| Error::format(format!("{place}: damaged: {why}"));
        let chunks: Option<Vec<Range<u64>>> =
            columns.columns().iter().map(|column| chunk_range(column, self.shard.size())).collect();
        let chunks = chunks.ok_or_else(|| damaged("a column lies outside the file; is it whole?"))?;
        let ranges = merged(chunks.clone());
        let fetched = ranges.clone().into_iter().map(|range| self.shard.range(range));
        let buffers: Vec<Bytes> = side_by_side(fetched, REQUESTS).await?;
        let left = u64::try_from(columns.num_rows()).map_err(|_| damaged("a negative number of rows"))?;
        let mut at_once = ROWS_AT_ONCE;
        for chunk in &chunks {
            let at = ranges.iter().position(|range| range.start <= chunk.start && chunk.end <= range.end);
            let bytes = at.and_then(|at| {
                let start = ranges[at].start;
                buffers[at].get((chunk.start - start) as usize..(chunk.end - start) as usize)
            });
            let bytes = bytes.ok_or_else(|| damaged("its pages lie outside its columns"))?;
            at_once = at_once.min(check_pages(bytes, left, VALUE_BYTES, &self.limits).map_err(|why| damaged(&why))?);
        }
        let decoder = guarded(|| {
            let mut decoder = ParquetPushDecoderBuilder::new_with_metadata(self.footer.clone())
                .with_row_groups(vec![number])
                .with_batch_size(at_once.max(1) as usize)
                .build()?;
            decoder.push_ranges(ranges, buffers)?;
            Ok(decoder)
        });
        Ok(Group { decoder: decoder.map_err(|why| damaged(&why))?, place, left })
    }
}

impl FileRows for ParquetRows {
    fn schema(&self) -> &SchemaRef {
        self.footer.schema()
    }

    fn num_rows(&self) -> Option<u64> {
        Some(self.num_rows)
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let mut group = match self.current.take() {
                Some(group) => group,
                None if self.next_group == self.footer.metadata().num_row_groups() => return Ok(None),
                None => {
                    let number = self.next_group;
                    self.next_group += 1;
                    self.handle.block_on(self.fetch(number))?
                }
            };
            let damaged = |why: &str| Err(Error::format(format!("{}: damaged: {why}", group.place)));
            match guarded(|| group.decoder.try_decode()) {
                Ok(DecodeResult::Data(rows)) => {
                    let Some(left) = group.left.checked_sub(rows.num_rows() as u64) else {
                        return damaged("more rows than the footer says");
                    };
                    group.left = left;
                    self.current = Some(group);
                    return Ok(Some(rows));
                }
                Ok(DecodeResult::Finished) if group.left == 0 => {}
                Ok(DecodeResult::Finished) => return damaged("fewer rows than the footer says"),
                Ok(DecodeResult::NeedsData(_)) => return damaged("its pages lie outside its columns"),
                Err(why) => return damaged(&why),
            }
        }
    }
}
