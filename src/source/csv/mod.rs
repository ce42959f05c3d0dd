//! CSV files: `.csv` and `.tsv` in ranges of bytes, `.csv.zst` and `.tsv.zst` streamed.
//!
//! As RFC 4180 has it: a header, cells in quotes where they need them, lines that may go on inside quotes; besides that
//! any delimiter, line ends of either kind, empty lines, a byte order mark. What a row holds is decided by `shape`,
//! where it ends by `cutter`.
//!
//! From the middle of a file nobody can tell whether a line end is inside quotes. So a plain file that is larger than a
//! block is read once when it is opened, which finds the rows that blocks begin with; the blocks can then be read in
//! any order, and a row is in the block that it begins in. A compressed file is one block. A row that does not fit is a
//! bad record at its byte offset (in a compressed file: of what it decompresses to).

pub(super) mod cells;
pub(super) mod cutter;
pub(super) mod header;
mod pipe;
mod records;
mod shape;

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use bytes::Buf;

use self::cells::spans;
use self::cutter::Cutter;
use self::header::Header;
pub use self::pipe::CsvPipe;
use self::records::{CsvPieces, RowReader};
use self::shape::{CsvShape, FirstRows};
use super::columns::{Columns, Reading, RecordKind};
use super::lines::MAX_LINE_BYTES;
use super::store::{READER_BYTES, Shard, read_error, side_by_side};
use super::unpacked::{is_compressed, unpacked};
use super::{Block, BlockSource, BoxFuture, Fetched, Manifest, ReadLimits, zstd_frames};
use crate::error::{Error, Result};

/// A block of a plain file.
const BLOCK_BYTES: u64 = 4 << 20;
/// A block that is larger, because a row is, is streamed.
const FETCHED_BYTES: u64 = 4 * BLOCK_BYTES;
/// Rows of the first file that are looked at.
const FIRST_ROWS: usize = 100;
/// Files that are looked through at the same time.
const AT_ONCE: usize = 4;

/// Rows of CSV files.
pub struct CsvSource {
    manifest: Manifest,
    blocks: Vec<Block>,
    files: Vec<OpenFile>,
    /// Of each block: the file's index, and its bytes there.
    ranges: Vec<(usize, Range<u64>)>,
    shape: CsvShape,
}

struct OpenFile {
    shard: Shard,
    reader: Arc<RowReader>,
}

/// What is known of a file once it was looked at.
struct Looked {
    header: Header,
    first: FirstRows,
    /// Where its blocks begin, and where the last one ends.
    borders: Vec<u64>,
}

impl CsvSource {
    /// Rows of all shards, with this between cells; without it the name (`.tsv`) or the first line of each decides.
    pub async fn open(shards: Vec<Shard>, columns: &Columns, delimiter: Option<char>) -> Result<Self> {
        Self::open_with_block_bytes(shards, columns, delimiter, BLOCK_BYTES).await
    }

    /// The same with blocks of another size.
    pub async fn open_with_block_bytes(
        shards: Vec<Shard>,
        columns: &Columns,
        delimiter: Option<char>,
        block_bytes: u64,
    ) -> Result<Self> {
        let mut entries = Vec::new();
        for shard in &shards {
            entries.push(shard.entry().await?);
        }
        if entries.is_empty() {
            Manifest::default().require_files()?;
        }
        let shards: Vec<Shard> = shards.into_iter().filter(|shard| shard.size() > 0).collect();
        let looked = shards.iter().cloned().map(move |shard| look_through(shard, delimiter, block_bytes.max(1)));
        let looked: Vec<Looked> = side_by_side(looked.collect::<Vec<_>>(), AT_ONCE).await?;
        let Some(first) = looked.first() else {
            let name = entries.first().map_or("", |entry| &entry.name);
            return Err(Error::data(format!("{name}: no row in any file")));
        };
        let shape = CsvShape::find(&first.header.names, &first.first, columns);
        let shape = shape.map_err(|error| error.at(shards[0].name()))?;
        let (mut files, mut blocks, mut ranges) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (shard, looked)) in shards.into_iter().zip(looked).enumerate() {
            let Header { names, delimiter } = &looked.header;
            let reader = RowReader::new(&shape, names, *delimiter).map_err(|error| error.at(shard.name()))?;
            if is_compressed(&shard) {
                let size = shard.size();
                let start = shard.range(0..size.min(zstd_frames::MAX_HEADER_BYTES)).await?;
                // A first frame that is smaller than the file is not the only one.
                let known = zstd_frames::content_bytes(&start).filter(|&bytes| bytes >= size);
                let bytes = known.unwrap_or(size.saturating_mul(4));
                blocks.push(Block { bytes, fetch_bytes: READER_BYTES.min(size) });
                ranges.push((index, 0..size));
            } else {
                for border in looked.borders.windows(2) {
                    let bytes = border[1] - border[0];
                    let fetch_bytes = if bytes > FETCHED_BYTES { READER_BYTES } else { bytes };
                    blocks.push(Block { bytes, fetch_bytes });
                    ranges.push((index, border[0]..border[1]));
                }
            }
            files.push(OpenFile { shard, reader: Arc::new(reader) });
        }
        let said = delimiter.map_or(String::new(), |delimiter| format!(" delimiter {delimiter:?}"));
        let manifest = Manifest::new("csv", entries, &format!("{}{said}", shape.identity()));
        Ok(Self { manifest, blocks, files, ranges, shape })
    }

    /// What the records are.
    pub fn kind(&self) -> RecordKind {
        self.shape.kind()
    }

    /// Which columns are read, and which are not.
    pub fn reading(&self) -> &Reading {
        self.shape.reading()
    }

    async fn fetch_block(&self, block: usize, limits: ReadLimits) -> Result<Fetched> {
        let (file, range) = &self.ranges[block];
        let OpenFile { shard, reader } = &self.files[*file];
        let max_row_bytes = max_row_bytes(&limits);
        let delimiter = Some(reader.delimiter());
        let cutter = if is_compressed(shard) {
            let mut cutter = Cutter::new(unpacked(shard)?, 0, delimiter, max_row_bytes.max(MAX_HEADER_BYTES));
            let name = shard.name().clone();
            // It waits for bytes: not on a thread that drives others.
            let skip = tokio::task::spawn_blocking(move || {
                cutter.next().map_err(|e| read_error(&name, &e))?; // the header
                Ok::<_, Error>(cutter.with_max_row_bytes(max_row_bytes))
            });
            skip.await.map_err(|e| Error::internal(format!("skipping a header: {e}")))??
        } else if range.end - range.start > FETCHED_BYTES {
            Cutter::new(Box::new(shard.reader(range.clone())?), range.start, delimiter, max_row_bytes)
        } else {
            Cutter::new(Box::new(shard.range(range.clone()).await?.reader()), range.start, delimiter, max_row_bytes)
        };
        let pieces = CsvPieces::new(cutter, reader.clone(), shard.name().clone(), limits.piece_bytes);
        Ok(Fetched { pieces: Box::new(pieces) })
    }
}

/// A header that is longer is none.
const MAX_HEADER_BYTES: usize = 16 << 20;

/// A longer row is a bad record.
fn max_row_bytes(limits: &ReadLimits) -> usize {
    MAX_LINE_BYTES.min(usize::try_from(limits.record_bytes).unwrap_or(usize::MAX))
}

/// What is between the cells of a file, by what was said or by its name; `None` if its first line decides.
pub(super) fn known_delimiter(said: Option<char>, name: &str) -> Option<u8> {
    let lower = name.to_ascii_lowercase();
    let is_tabs = lower.ends_with(".tsv") || lower.ends_with(".tsv.zst");
    said.and_then(|said| u8::try_from(said).ok()).or(is_tabs.then_some(b'\t'))
}

/// Reads the header, and of a file with several blocks everything else, to find out where these begin.
async fn look_through(shard: Shard, delimiter: Option<char>, block_bytes: u64) -> Result<Looked> {
    let (input, is_plain) = (unpacked(&shard)?, !is_compressed(&shard));
    let look = move || look_at(input, shard.name(), is_plain.then(|| shard.size()), delimiter, block_bytes);
    // It waits for bytes: not on a thread that drives others.
    tokio::task::spawn_blocking(look).await.map_err(|e| Error::internal(format!("looking through a file: {e}")))?
}

fn look_at(
    input: Box<dyn Read + Send>,
    name: &str,
    size: Option<u64>,
    delimiter: Option<char>,
    block_bytes: u64,
) -> Result<Looked> {
    let mut cutter = Cutter::new(input, 0, known_delimiter(delimiter, name), MAX_HEADER_BYTES);
    let header = Header::read(&mut cutter, name)?;
    let (mut first, mut borders) = (FirstRows::new(header.names.len()), vec![cutter.offset()]);
    let (mut found, mut next, mut rows) = (Vec::new(), cutter.offset() + block_bytes, 0);
    while rows < FIRST_ROWS || size.is_some_and(|size| next < size) {
        let offset = cutter.offset();
        let row = match cutter.next() {
            Ok(Some(row)) => row,
            Ok(None) => break,
            // What a damaged file means is decided when it is read (`on_bad`).
            Err(_) if size.is_none() => break,
            Err(error) => return Err(read_error(&format!("{name}: after byte {offset}"), &error)),
        };
        if row.offset >= next {
            borders.push(row.offset);
            next = row.offset + block_bytes;
        }
        rows += 1;
        if rows <= FIRST_ROWS
            && let Ok(bytes) = row.bytes
            && let Ok(text) = std::str::from_utf8(bytes)
            && spans(bytes, header.delimiter, header.names.len(), &mut found) == header.names.len()
        {
            found.iter().enumerate().for_each(|(column, span)| first.see(column, &span.text(text)));
        }
    }
    borders.extend(size);
    Ok(Looked { header, first, borders })
}

impl BlockSource for CsvSource {
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

#[cfg(test)]
mod tests;
