//! Parquet shards, a block a row group; the one door to the `parquet` crate.
//!
//! Opening reads footers only and checks them wholly: every length that is later used lies inside the file. Fetching a
//! block waits for the column chunks that are needed, nothing else; the iterator decodes their pages, a piece at a
//! time, on a blocking worker. A damaged page costs the rest of its row group, and says which row. Columns are chosen
//! in `columns`.
//!
//! What pages promise is checked before they are decompressed (`parquet_pages`), and texts are read as views into their
//! pages: a dictionary that repeats one long text for every row costs nothing until `cuts` copies records, a few at a
//! time.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema};
use bytes::Bytes;
use parquet::DecodeResult;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::push_decoder::{ParquetPushDecoder, ParquetPushDecoderBuilder};
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaDataReader};

use super::binding::{Binding, IMAGE_BYTES};
use super::columns::{Columns, Reading, RecordKind};
use super::cuts::{Cut, Cuts, MAX_PIECE_ROWS};
use super::parquet_pages::check_pages;
use super::store::{Shard, side_by_side};
use super::{Block, BlockSource, BoxFuture, Fetched, Manifest, Piece, Positions, ReadLimits};
use crate::caught::quietly;
use crate::error::{Error, Result};

/// How much of the end is read at first: most footers fit.
const FOOTER_BYTES: u64 = 64 << 10;
/// Ranges this close are fetched as one: a request costs more than these bytes.
const GAP_BYTES: u64 = 64 << 10;
/// Requests under way at once for one block or one opening.
pub(super) const REQUESTS: usize = 8;

/// Records in Parquet files.
pub struct ParquetSource {
    manifest: Manifest,
    blocks: Vec<Block>,
    files: Vec<File>,
    /// Of each block.
    row_groups: Vec<RowGroup>,
    num_records: u64,
}

struct File {
    shard: Shard,
    footer: ArrowReaderMetadata,
    /// The footer with the types as which columns are read.
    reader: ArrowReaderMetadata,
    binding: Arc<Binding>,
    /// The columns of the file that are read, as leaves of its schema.
    leaves: Vec<usize>,
}

struct RowGroup {
    file: usize,
    /// Its number in the file.
    number: usize,
    /// Its rows among those of the file.
    rows: Range<u64>,
    /// Where its bytes are: the needed column chunks, near ones together.
    ranges: Vec<Range<u64>>,
}

impl ParquetSource {
    /// Reads the footers of all shards and finds the columns in each.
    pub async fn open(shards: Vec<Shard>, columns: &Columns) -> Result<Self> {
        let opened = shards.into_iter().map(|shard| async move {
            let footer = read_footer(&shard).await?;
            Ok((shard.entry().await?, shard, footer))
        });
        let opened = side_by_side(opened, REQUESTS).await?;
        let (mut entries, mut files) = (Vec::new(), Vec::new());
        let mut bindings: Vec<Binding> = Vec::new();
        for (entry, shard, footer) in opened {
            let chosen = bindings.first().map_or(columns, Binding::chosen);
            let mut binding = Binding::new(footer.schema(), chosen).map_err(|error| error.at(shard.name()))?;
            if let Some(first) = bindings.first_mut() {
                first.agree(&mut binding).map_err(|error| error.at(shard.name()))?;
            }
            bindings.push(binding);
            entries.push(entry);
            files.push((shard, footer));
        }
        let Some(mut common) = bindings.first().cloned() else { return Err(Error::data("no file to read")) };
        let manifest = Manifest::new("parquet", entries, &format!("{:?}", common.names()));
        let mut source =
            Self { manifest, blocks: Vec::new(), files: Vec::new(), row_groups: Vec::new(), num_records: 0 };
        for ((shard, footer), mut binding) in files.into_iter().zip(bindings) {
            common.agree(&mut binding)?; // what a later file widened, this one delivers too
            let leaves = leaves(&footer, &binding);
            let reader = with_views(&footer, &binding);
            source.add(File { shard, footer, reader, binding: Arc::new(binding), leaves })?;
        }
        if source.blocks.is_empty() {
            return Err(Error::data(format!("{}: no row in any file", source.files[0].shard.name())));
        }
        Ok(source)
    }

    /// Lists the row groups of one more file.
    fn add(&mut self, file: File) -> Result<()> {
        let mut first = 0;
        for (number, group) in file.footer.metadata().row_groups().iter().enumerate() {
            let wrong = |what: &str| Error::format(format!("{}: row group {number}: {what}", file.shard.name()));
            let num_rows = u64::try_from(group.num_rows()).map_err(|_| wrong("a negative number of rows"))?;
            let rows = first..u64::checked_add(first, num_rows).ok_or_else(|| wrong("too many rows"))?;
            first = rows.end;
            if num_rows == 0 {
                continue;
            }
            // Of all columns: the reader looks at those it does not read, too.
            if group.columns().iter().any(|column| chunk_range(column, u64::MAX).is_none()) {
                return Err(wrong("a column of negative length or place"));
            }
            let mut ranges = Vec::with_capacity(file.leaves.len());
            let (mut bytes, mut fetch_bytes) = (0u64, 0u64);
            for &leaf in &file.leaves {
                let column = group.columns().get(leaf).ok_or_else(|| wrong("a column is missing"))?;
                if let Compression::BROTLI(_) | Compression::LZO = column.compression() {
                    return Err(Error::unsupported(format!(
                        "{}: compressed with {}: write it with zstd, snappy, lz4 or gzip",
                        file.shard.name(),
                        column.compression()
                    )));
                }
                let range = chunk_range(column, file.shard.size())
                    .ok_or_else(|| wrong("a column lies outside the file; is it whole?"))?;
                fetch_bytes += range.end - range.start;
                bytes = bytes.saturating_add(memory_bytes(column, file.binding.number_bytes()));
                ranges.push(range);
            }
            self.blocks.push(Block { bytes, fetch_bytes });
            self.row_groups.push(RowGroup { file: self.files.len(), number, rows, ranges: merged(ranges) });
            self.num_records = self.num_records.saturating_add(num_rows);
        }
        self.files.push(file);
        Ok(())
    }

    /// What the records are.
    pub fn column_kind(&self) -> RecordKind {
        self.files[0].binding.kind()
    }

    /// Which columns are read, and which are not, in the first file.
    pub fn reading(&self) -> &Reading {
        self.files[0].binding.reading()
    }

    /// How many records all files have.
    pub fn num_records(&self) -> u64 {
        self.num_records
    }

    async fn fetch_block(&self, block: usize, limits: ReadLimits) -> Result<Fetched> {
        let group = &self.row_groups[block];
        let file = &self.files[group.file];
        let fetched = group.ranges.clone().into_iter().map(|range| file.shard.range(range));
        let buffers: Vec<Bytes> = side_by_side(fetched, REQUESTS).await?;
        let num_rows = group.rows.end - group.rows.start;
        let row_bytes = (self.blocks[block].bytes / num_rows).max(1);
        let mut piece_rows = (limits.piece_bytes as u64 / row_bytes).clamp(1, MAX_PIECE_ROWS);
        let mask = ProjectionMask::leaves(file.footer.parquet_schema(), file.leaves.iter().copied());
        let mut pieces = Pieces {
            decoder: None,
            current: None,
            file: file.shard.name().clone(),
            number: group.number,
            rows: group.rows.clone(),
            binding: file.binding.clone(),
            limits,
        };
        for chunk in self.chunks(group, &buffers) {
            let most_rows = check_pages(chunk, group.rows.end - group.rows.start, file.binding.number_bytes(), &limits);
            piece_rows = piece_rows.min(most_rows.map_err(|why| pieces.damaged(&why))?);
        }
        let decoder = guarded(|| {
            let mut decoder = ParquetPushDecoderBuilder::new_with_metadata(file.reader.clone())
                .with_row_groups(vec![group.number])
                .with_projection(mask)
                .with_batch_size(piece_rows as usize)
                .build()?;
            decoder.push_ranges(group.ranges.clone(), buffers)?;
            Ok(decoder)
        });
        pieces.decoder = Some(decoder.map_err(|why| pieces.damaged(&why))?);
        Ok(Fetched { pieces: Box::new(pieces) })
    }

    /// The bytes of the column chunks of a row group that are read.
    fn chunks<'a>(&'a self, group: &'a RowGroup, buffers: &'a [Bytes]) -> impl Iterator<Item = &'a [u8]> {
        let file = &self.files[group.file];
        let columns = file.footer.metadata().row_group(group.number).columns();
        file.leaves.iter().filter_map(move |&leaf| {
            let chunk = chunk_range(&columns[leaf], file.shard.size())?;
            let at = group.ranges.iter().position(|range| range.start <= chunk.start && chunk.end <= range.end)?;
            let start = group.ranges[at].start;
            buffers[at].get((chunk.start - start) as usize..(chunk.end - start) as usize)
        })
    }
}

impl BlockSource for ParquetSource {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    fn fetch(&self, block: usize, limits: ReadLimits) -> BoxFuture<'_, Result<Fetched>> {
        Box::pin(self.fetch_block(block, limits))
    }
}

/// The pieces of a row group.
struct Pieces {
    /// `None` once the block has ended.
    decoder: Option<ParquetPushDecoder>,
    /// Rows that are decoded and not all delivered.
    current: Option<Cuts>,
    file: Arc<str>,
    number: usize,
    /// What is still to come.
    rows: Range<u64>,
    binding: Arc<Binding>,
    limits: ReadLimits,
}

impl Pieces {
    fn piece(&mut self, (rows, records, bad): Cut) -> Result<Piece> {
        let first = self.rows.start;
        self.rows.start += rows.len() as u64;
        if self.rows.start > self.rows.end {
            return Err(self.damaged("more rows than the footer says"));
        }
        Ok(Piece { file: self.file.clone(), positions: Positions::Rows { first }, records, bad })
    }

    fn damaged(&self, why: &str) -> Error {
        Error::format(format!("{}: row group {}: row {}: damaged: {why}", self.file, self.number, self.rows.start))
    }
}

impl Iterator for Pieces {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        loop {
            if let Some(cut) = self.current.as_mut().and_then(|cuts| cuts.next(&self.binding, &self.limits)) {
                let piece = cut.map_err(|error| error.at(&self.file)).and_then(|cut| self.piece(cut));
                if piece.is_err() {
                    (self.current, self.decoder) = (None, None);
                }
                return Some(piece);
            }
            self.current = None; // its pages go before the next ones come
            let mut decoder = self.decoder.take()?;
            match guarded(|| decoder.try_decode()) {
                Ok(DecodeResult::Data(batch)) => {
                    self.current = Some(Cuts::new(batch));
                    self.decoder = Some(decoder);
                }
                Ok(DecodeResult::Finished) if self.rows.is_empty() => return None,
                Ok(DecodeResult::Finished) => return Some(Err(self.damaged("fewer rows than the footer says"))),
                Ok(DecodeResult::NeedsData(_)) => return Some(Err(self.damaged("its pages lie outside its columns"))),
                Err(why) => return Some(Err(self.damaged(&why))),
            }
        }
    }
}

/// Runs the reader on bytes that may be anything. It is written to return errors, but on some damaged pages it panics:
/// that must not end a run that was told to skip bad data.
pub(super) fn guarded<T>(act: impl FnOnce() -> std::result::Result<T, ParquetError>) -> std::result::Result<T, String> {
    match quietly(act) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("its pages contradict themselves".into()),
    }
}

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
fn leaves(footer: &ArrowReaderMetadata, binding: &Binding) -> Vec<usize> {
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
fn with_views(footer: &ArrowReaderMetadata, binding: &Binding) -> ArrowReaderMetadata {
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
fn memory_bytes(column: &ColumnChunkMetaData, number_bytes: u64) -> u64 {
    let positive = |n: i64| u64::try_from(n).unwrap_or(0);
    let stored = positive(column.uncompressed_size());
    let numbers = positive(column.num_values()).saturating_mul(number_bytes);
    let strings = positive(column.unencoded_byte_array_data_bytes().unwrap_or(0));
    stored.max(numbers).max(strings)
}

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

#[cfg(test)]
mod tests {
    use arrow::array::{
        ArrayRef, BinaryArray, BinaryViewArray, DictionaryArray, FixedSizeListArray, Int64Array, LargeListArray,
        LargeStringArray, ListArray, RecordBatch, StringArray, StringViewArray, StructArray, UInt8Array, UInt16Array,
    };
    use arrow::datatypes::{Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type};
    use parquet::arrow::ArrowWriter;
    use parquet::basic::ZstdLevel;
    use parquet::file::properties::WriterProperties;
    use proptest::prelude::*;

    use super::super::store::resolve;
    use super::super::testing::{blobs, data_folder, failure, pieces, run, shards};
    use super::super::{Lists, Records};
    use super::*;
    use crate::error::ErrorKind;
    use crate::source::{ColumnInfo, Wanted};

    fn table(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
    }

    fn parquet_file(batch: &RecordBatch, group_rows: usize) -> Vec<u8> {
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(group_rows))
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .build();
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
        bytes
    }

    #[test]
    fn one_long_text_for_every_row_is_copied_a_few_times_and_never_for_all_rows() {
        run(async {
            // A dictionary of one text of a hundred kilobytes: two gigabytes of rows in a file of a few kilobytes.
            let values: ArrayRef = Arc::new(StringArray::from(vec!["a".repeat(100_000)]));
            let keys = arrow::array::Int32Array::from(vec![0; 20_000]);
            let words: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys, values));
            let file = parquet_file(&table(vec![("text", words)]), 20_000);
            assert!(file.len() < 10_000, "{}", file.len());
            let source =
                ParquetSource::open(shards(&[("a.parquet", file)]).await, &Columns::Only(Wanted::Text)).await.unwrap();
            let limits = ReadLimits::of_memory(1000, 1 << 20);
            let pieces = source.fetch(0, limits).await.unwrap().pieces;
            let (mut next, mut largest) = (0, 0);
            for piece in pieces.take(50).map(Result::unwrap) {
                assert_eq!(piece.positions, Positions::Rows { first: next });
                next += piece.num_records() as u64;
                largest = largest.max(piece.num_bytes());
            }
            assert!(next >= 50 && largest < 200_000, "{next} rows, {largest} bytes");
            let limits = ReadLimits { record_bytes: 99_999, ..limits };
            let piece = source.fetch(0, limits).await.unwrap().pieces.next().unwrap().unwrap();
            assert!(piece.bad[0].1.starts_with("a record of 100000 bytes"), "{:?}", piece.bad);
        });
    }

    #[test]
    fn a_page_that_is_too_large_is_refused_before_it_is_decompressed() {
        run(async {
            let long: ArrayRef = Arc::new(StringArray::from(vec!["a".repeat(33 << 20)]));
            let file = parquet_file(&table(vec![("text", long)]), 10);
            let source =
                ParquetSource::open(shards(&[("a.parquet", file)]).await, &Columns::Only(Wanted::Text)).await.unwrap();
            let error = source.fetch(0, ReadLimits::of_memory(1000, 1 << 20)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Format);
            let text = error.to_string();
            assert!(text.starts_with("a.parquet: row group 0: row 0: damaged: a page takes 34 MiB"), "{text}");
            // Where there is room for the page, there is for its one record.
            let pieces = source.fetch(0, ReadLimits::of_memory(1000, 256 << 20)).await.unwrap().pieces;
            assert_eq!(pieces.map(|piece| piece.unwrap().num_bytes()).sum::<usize>(), (33 << 20) + 8);
        });
    }

    fn texts(n: usize) -> ArrayRef {
        Arc::new(StringArray::from_iter_values((0..n).map(|row| format!("text {row}"))))
    }

    /// Numbers that look random.
    fn mix(seed: u64, row: usize) -> u64 {
        (seed ^ (row as u64 + 1))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29)
            .wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }

    fn text_array(items: &[Option<String>], kind: u64) -> ArrayRef {
        let texts = || items.iter().map(|item| item.as_deref());
        let bytes = || items.iter().map(|item| item.as_ref().map(String::as_bytes));
        match kind % 6 {
            0 => Arc::new(texts().collect::<StringArray>()),
            1 => Arc::new(texts().collect::<LargeStringArray>()),
            2 => Arc::new(texts().collect::<StringViewArray>()),
            3 => Arc::new(texts().collect::<DictionaryArray<Int32Type>>()),
            4 => Arc::new(bytes().collect::<BinaryArray>()),
            _ => Arc::new(bytes().collect::<BinaryViewArray>()),
        }
    }

    /// Rows of three numbers, some missing; whole rows may be null where they are lists.
    type Row = Option<[Option<u8>; 3]>;

    fn list_array(rows: &[Row], kind: u64) -> ArrayRef {
        macro_rules! lists {
            ($array:ident, $type:ty, $number:ty) => {
                Arc::new($array::from_iter_primitive::<$type, _, _>(
                    rows.iter().map(|row| row.map(|row| row.map(|number| number.map(<$number>::from)))),
                ))
            };
        }
        let fixed = rows.iter().map(|row| row.map(|row| row.map(|number| number.map(u16::from))));
        match kind % 5 {
            0 => lists!(ListArray, UInt8Type, u8),
            1 => lists!(LargeListArray, Int64Type, i64),
            2 => lists!(ListArray, Int16Type, i16),
            3 => Arc::new(FixedSizeListArray::from_iter_primitive::<UInt16Type, _, _>(fixed, 3)),
            _ => Arc::new(FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(rows.iter().copied(), 3)),
        }
    }

    fn number_columns(rows: &[Row], kind: u64) -> Vec<(&'static str, ArrayRef)> {
        let column = |var: usize| rows.iter().map(move |row| row.unwrap_or_default()[var]);
        vec![
            ("x0", Arc::new(column(0).collect::<UInt8Array>())),
            ("between", Arc::new(StringArray::from_iter_values((0..rows.len()).map(|row| "y".repeat(row * 40))))),
            ("x1", Arc::new(column(1).map(|number| number.map(u16::from)).collect::<UInt16Array>())),
            match kind % 2 {
                0 => ("x2", Arc::new(column(2).map(|number| number.map(i64::from)).collect::<Int64Array>())),
                _ => ("x2", Arc::new(column(2).collect::<UInt8Array>())),
            },
        ]
    }

    /// What a source of lists delivers: file, row, and the numbers; `None` for a bad row.
    async fn lists(source: &ParquetSource, piece_bytes: usize) -> Vec<(String, u64, Row)> {
        let mut found = Vec::new();
        for block in 0..source.blocks().len() {
            let (pieces, end) = pieces(source, block, piece_bytes).await;
            end.unwrap();
            for piece in pieces {
                let Records::Lists(lists) = &piece.records else { panic!("{piece:?}") };
                for record in 0..piece.num_records() {
                    let is_bad = piece.bad.iter().any(|bad| *bad == (record, "null".into()));
                    let row = (!is_bad).then(|| cells(lists, record));
                    found.push((piece.file.to_string(), piece.positions.place(record).1, row));
                }
            }
        }
        found
    }

    fn cells(lists: &Lists, record: usize) -> [Option<u8>; 3] {
        let range = lists.range(record);
        assert_eq!(range.len(), 3);
        let cell = |at: usize| {
            let is_missing = lists.missing.as_ref().is_some_and(|missing| missing[at]);
            (!is_missing).then(|| lists.values.category(at).unwrap() as u8)
        };
        [cell(range.start), cell(range.start + 1), cell(range.start + 2)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_row_of_every_layout_comes_once_and_in_order(
            files in prop::collection::vec((0usize..50, 1usize..30, any::<u64>()), 1..4),
            form in 0..4,
            piece_bytes in 1usize..600,
        ) {
            let names = ["a.parquet", "b.parquet", "c.parquet"];
            let (mut written, mut texts, mut rows) = (Vec::new(), Vec::new(), Vec::new());
            for (&name, &(num_rows, group_rows, seed)) in names.iter().zip(&files) {
                let is_null = |row: usize, one_in: u64| mix(seed, row).is_multiple_of(one_in);
                let items: Vec<Option<String>> = (0..num_rows)
                    .map(|row| (!is_null(row, 4)).then(|| format!("{name} {row} {}", "é".repeat(row % 7))))
                    .collect();
                let numbers: Vec<Row> = (0..num_rows)
                    .map(|row| {
                        let value = |var: usize| (mix(seed, row) >> (8 * var)) as u8;
                        let cell = |var: usize| (!is_null(3 * row + var, 5)).then(|| value(var));
                        (form == 2 || !is_null(row, 4)).then(|| [cell(0), cell(1), cell(2)])
                    })
                    .collect();
                let label: ArrayRef = Arc::new(UInt8Array::from(vec![1; num_rows]));
                let batch = match form {
                    0 => table(vec![("label", label), ("text", text_array(&items, seed))]),
                    1 => table(vec![("id", text_array(&items, seed)), ("ids", list_array(&numbers, seed))]),
                    2 => table(number_columns(&numbers, seed)),
                    _ => {
                        let bytes = text_array(&items, 4 + seed % 2);
                        let fields = vec![("bytes", bytes), ("path", text_array(&items, 0))];
                        let image = StructArray::try_from(fields).unwrap();
                        table(vec![("image", Arc::new(image)), ("label", label)])
                    }
                };
                written.push((name, parquet_file(&batch, group_rows)));
                for (row, (item, numbers)) in items.into_iter().zip(numbers).enumerate() {
                    let nothing = if form == 3 { "no bytes; only a path is given" } else { "null" };
                    let content = item.map(String::into_bytes).ok_or_else(|| nothing.to_string());
                    texts.push((name.to_string(), row as u64, content));
                    rows.push((name.to_string(), row as u64, numbers));
                }
            }
            let columns = match form {
                0 => Columns::Only(Wanted::Text),
                2 => Columns::Many(vec!["x*".into()]),
                _ => Columns::Auto,
            };
            run(async {
                let source = ParquetSource::open(shards(&written).await, &columns).await;
                if rows.is_empty() {
                    assert!(failure(source).to_string().contains("no row"));
                    return;
                }
                let source = source.unwrap();
                assert_eq!(source.num_records(), rows.len() as u64);
                let num_groups: usize = files.iter().map(|(rows, group, _)| rows.div_ceil(*group)).sum();
                assert_eq!(source.blocks().len(), num_groups);
                if form == 0 || form == 3 {
                    assert_eq!(blobs(&source, piece_bytes).await, texts);
                } else {
                    assert_eq!(lists(&source, piece_bytes).await, rows);
                }
            });
        }
    }

    #[test]
    fn a_changed_byte_anywhere_is_an_error_or_other_data_and_never_a_panic() {
        let rows: Vec<Row> = (0..40).map(|row| Some([Some(row), None, Some(7)])).collect();
        let other = text_array(&vec![None; 40], 3);
        let file = parquet_file(&table(vec![("text", texts(40)), ("ids", list_array(&rows, 0)), ("x", other)]), 25);
        run(async {
            for (at, flip) in (0..file.len()).flat_map(|at| [(at, 0x01), (at, 0xFF)]) {
                let mut changed = file.clone();
                changed[at] ^= flip;
                let files = shards(&[("a.parquet", changed)]).await;
                let column = Columns::One(if at % 2 == 0 { "text" } else { "ids" }.into());
                let Ok(source) = ParquetSource::open(files, &column).await else { continue };
                for block in 0..source.blocks().len() {
                    if let Err(error) = pieces(&source, block, 100).await.1 {
                        assert_eq!(error.kind(), ErrorKind::Format, "{error}");
                    }
                }
            }
        });
    }

    #[test]
    fn wikitext_has_the_rows_its_readme_says() {
        let Some(folder) = data_folder() else { return };
        run(async {
            for (pattern, num_rows) in [("train-*", 36_718), ("valid", 3_760), ("test", 4_358)] {
                let pattern = folder.join(format!("wikitext2/{pattern}.parquet"));
                let files = resolve(&[pattern.to_str().unwrap().into()]).await.unwrap();
                let source = ParquetSource::open(files, &Columns::Only(Wanted::Text)).await.unwrap();
                assert_eq!((source.num_records(), source.column_kind()), (num_rows, RecordKind::Text));
                assert_eq!(blobs(&source, 1 << 16).await.len() as u64, num_rows);
            }
        });
    }

    #[tokio::test]
    async fn pieces_are_about_as_large_as_asked_for() {
        let items: Vec<Option<String>> = (0..1000).map(|row| Some(format!("{row:0100}"))).collect();
        let file = parquet_file(&table(vec![("text", text_array(&items, 0))]), 1000);
        let source =
            ParquetSource::open(shards(&[("a.parquet", file)]).await, &Columns::Only(Wanted::Text)).await.unwrap();
        assert!((100_000..110_000).contains(&source.blocks()[0].bytes), "{:?}", source.blocks());
        assert!(source.blocks()[0].fetch_bytes < 20_000);
        let (pieces, _) = pieces(&source, 0, 5_000).await;
        assert!(pieces.iter().all(|piece| piece.num_bytes() < 6_000));
        assert!(pieces[0].num_bytes() > 4_000);
    }

    #[tokio::test]
    async fn a_file_that_was_cut_off_is_named_as_such() {
        let file = parquet_file(&table(vec![("text", texts(100))]), 10);
        for length in [0, 3, 11, 12, file.len() / 2, file.len() - 9, file.len() - 1] {
            let files = shards(&[("cut.parquet", file[..length].to_vec())]).await;
            let error = failure(ParquetSource::open(files, &Columns::Only(Wanted::Text)).await);
            assert_eq!(error.kind(), ErrorKind::Format);
            let text = error.to_string();
            assert!(text.starts_with("cut.parquet: not a whole Parquet file: "), "{text}");
            assert!(text.ends_with("; was its writer interrupted?"), "{text}");
        }
        let mut long = b"PAR1".to_vec();
        long.extend_from_slice(&u32::MAX.to_le_bytes());
        long.extend_from_slice(b"PAR1");
        let files = shards(&[("long.parquet", long)]).await;
        let error = failure(ParquetSource::open(files, &Columns::Only(Wanted::Text)).await).to_string();
        assert!(error.contains("a footer of 4294967295 bytes in a file of 12"), "{error}");
    }

    #[tokio::test]
    async fn a_damaged_row_group_names_its_row_and_costs_no_other() {
        let file = parquet_file(&table(vec![("text", texts(100))]), 40);
        let files = shards(&[("a.parquet", file.clone())]).await;
        let whole = ParquetSource::open(files, &Columns::Only(Wanted::Text)).await.unwrap();
        let range = &whole.row_groups[1].ranges[0];
        let mut damaged = file;
        damaged[range.start as usize..range.end as usize].fill(0xFF);
        let files = shards(&[("a.parquet", damaged)]).await;
        let source = ParquetSource::open(files, &Columns::Only(Wanted::Text)).await.unwrap();
        let (_, end) = pieces(&source, 1, 1000).await;
        let error = end.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Format);
        assert!(error.to_string().starts_with("a.parquet: row group 1: row 40: damaged: "), "{error}");
        assert_eq!(pieces(&source, 2, 1000).await.0[0].positions, Positions::Rows { first: 80 });
    }

    #[tokio::test]
    async fn shards_that_do_not_fit_are_named() {
        let file = |columns| parquet_file(&table(columns), 10);
        let good =
            || ("a.parquet", file(vec![("text", texts(3)), ("n", Arc::new(UInt8Array::from(vec![1, 2, 3])) as _)]));
        let open = async |files: &[(&str, Vec<u8>)], columns: Columns| {
            ParquetSource::open(shards(files).await, &columns).await.map(drop)
        };
        let error = failure(open(&[good()], Columns::One("body".into())).await).to_string();
        assert_eq!(error, "a.parquet: no column `body`; there are `text` (Utf8), `n` (UInt8)");
        let other = ("b.parquet", file(vec![("body", texts(3))]));
        let error = failure(open(&[good(), other], Columns::Only(Wanted::Text)).await).to_string();
        assert_eq!(error, "b.parquet: no column `text`; there are `body` (Utf8)");
        let numbers = ("b.parquet", file(vec![("text", Arc::new(UInt8Array::from(vec![1])) as _)]));
        let error = failure(open(&[good(), numbers], Columns::Only(Wanted::Text)).await).to_string();
        assert_eq!(error, "b.parquet: column `text`: expected text, found lists of 1 numbers");
    }

    #[tokio::test]
    async fn integers_become_reals_where_another_shard_has_reals() {
        let ints = parquet_file(&table(vec![("x", Arc::new(UInt8Array::from(vec![1, 2])) as _)]), 10);
        let reals = arrow::array::Float64Array::from(vec![0.5]);
        let reals = parquet_file(&table(vec![("x", Arc::new(reals) as _)]), 10);
        let files = shards(&[("a.parquet", ints.clone()), ("b.parquet", ints), ("c.parquet", reals)]).await;
        let source = ParquetSource::open(files, &Columns::Auto).await.unwrap();
        assert_eq!(source.column_kind(), RecordKind::Lists { width: Some(1), reals: true });
        for (block, expected) in [(0, vec![1.0, 2.0]), (1, vec![1.0, 2.0]), (2, vec![0.5])] {
            let Records::Lists(lists) = &pieces(&source, block, 100).await.0[0].records else { panic!() };
            assert_eq!(lists.values, crate::data::Values::F32(expected));
        }
        let x = ColumnInfo { name: "x".into(), data_type: "UInt8".into() };
        assert_eq!(*source.reading(), Reading { read: vec![x], left_out: Vec::new() });
    }
}
