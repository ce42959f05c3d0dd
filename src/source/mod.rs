//! Where rows come from.
//!
//! A source delivers *records* (a text, an image file, a list of numbers) in [`Piece`]s and knows nothing of what they
//! mean; `decode` does. What a source can do decides how its rows can be ordered:
//!
//! * [`BlockSource`]: blocks (row groups, ranges of lines, compressed frames) that can be read again in any order;
//! * [`IndexedSource`]: any row by its number (mapped token files, arrays, memory, synthetic data);
//! * [`LiveSource`]: records as they arrive, in windows with positions (topics, growing files and folders, standard
//!   input).
//!
//! Waiting is async, working is not: `fetch` awaits bytes, the iterator it returns cuts them into pieces on a blocking
//! worker. Errors name file and place. Drained by `pipeline`.
//!
//! `parquet` and `arrow_stream` need the feature `parquet`.

#[doc(hidden)]
pub mod ahead;
#[cfg(feature = "parquet")]
mod arrow_cells;
#[cfg(feature = "parquet")]
mod arrow_messages;
#[cfg(feature = "parquet")]
#[cfg_attr(docsrs, doc(cfg(feature = "parquet")))]
#[doc(hidden)]
pub mod arrow_stream;
#[cfg(feature = "parquet")]
mod arrow_values;
#[cfg(feature = "parquet")]
mod binding;
#[cfg(target_os = "linux")]
mod bus_error;
mod changes;
#[cfg(feature = "cloud")]
mod cloud;
#[doc(hidden)]
pub mod columns;
#[doc(hidden)]
pub mod compressed_tokens;
mod concatenated;
#[doc(hidden)]
pub mod csv;
#[cfg(feature = "parquet")]
mod cuts;
#[doc(hidden)]
pub mod follow;
mod glob;
#[doc(hidden)]
pub mod json_lines;
#[doc(hidden)]
pub mod json_records;
mod json_shape;
mod json_values;
#[doc(hidden)]
pub mod jsonl;
#[doc(hidden)]
pub mod kafka;
mod limits;
mod lines;
mod mapped;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod npy;
mod npy_header;
#[cfg(feature = "parquet")]
#[cfg_attr(docsrs, doc(cfg(feature = "parquet")))]
#[doc(hidden)]
pub mod parquet;
#[cfg(feature = "parquet")]
mod parquet_pages;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod synthetic;
#[cfg(test)]
mod testing;
#[doc(hidden)]
pub mod token_ranges;
#[doc(hidden)]
pub mod token_width;
#[doc(hidden)]
pub mod tokens;
mod unpacked;
#[doc(hidden)]
pub mod watch;
#[cfg(feature = "parquet")]
#[doc(hidden)]
pub mod whole_rows;
#[doc(hidden)]
pub mod zstd_frames;

pub use columns::{ColumnInfo, Columns, Reading, RecordKind, Wanted};
pub use limits::ReadLimits;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::data::{Cells, Digest, Position, Values};
use crate::error::{Error, Result};
use crate::order::Share;

/// A future behind a pointer, so that traits with async methods can be objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A source, by what it can do.
#[derive(Clone)]
pub enum Source {
    /// Blocks that can be read in any order.
    Blocks(Arc<dyn BlockSource>),
    /// Any row by its number.
    Indexed(Arc<dyn IndexedSource>),
    /// Each record once.
    Live(Arc<dyn LiveSource>),
}

impl Source {
    /// What the data is.
    pub fn manifest(&self) -> &Manifest {
        match self {
            Self::Blocks(source) => source.manifest(),
            Self::Indexed(source) => source.manifest(),
            Self::Live(source) => source.manifest(),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Blocks(_) => "Blocks",
            Self::Indexed(_) => "Indexed",
            Self::Live(_) => "Live",
        };
        write!(f, "Source::{kind}({:?})", self.manifest())
    }
}

/// Data in blocks that can be read again, in any order.
pub trait BlockSource: Send + Sync {
    /// What the data is.
    fn manifest(&self) -> &Manifest;

    /// The blocks, in the order of the data.
    fn blocks(&self) -> &[Block];

    /// Waits for a block's bytes. Its pieces, and what is in memory to make them, keep to the limits.
    fn fetch(&self, block: usize, limits: ReadLimits) -> BoxFuture<'_, Result<Fetched>>;
}

/// What a plan needs to know of a block before it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// About how many bytes it takes in memory, before decoding: what the byte budget and shuffle windows count.
    pub bytes: u64,
    /// Bytes that `fetch` holds at once: of the whole block, or of a buffer that streams through it.
    pub fetch_bytes: u64,
}

/// A block that has arrived: its pieces, cut one by one on a blocking worker.
pub struct Fetched {
    /// The pieces in order. An `Err` ends the block; it is either a failure to read (`Io`, which stops the run) or
    /// unreadable data (`Data` or `Format`), which counts as bad records; any other kind stops the run as well.
    pub pieces: Box<dyn Iterator<Item = Result<Piece>> + Send>,
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fetched")
    }
}

/// Data whose rows can be read by number.
pub trait IndexedSource: Send + Sync {
    /// What the data is.
    fn manifest(&self) -> &Manifest;

    /// How many rows an epoch has; `None` is an endless source, whose rows cannot be shuffled.
    fn num_rows(&self) -> Option<u64>;

    /// Those rows, in that order, as [`Records::Lists`] of equal length, one list a row.
    fn gather(&self, rows: &[u64]) -> Result<Piece>;
}

/// Data that arrives while it is read.
pub trait LiveSource: Send + Sync {
    /// What is known of the data.
    fn manifest(&self) -> &Manifest;

    /// Returns true if it can be read again from a position. A pipe cannot: it goes on with whatever comes.
    fn can_go_back(&self) -> bool;

    /// A reader from a position on; `None` is the beginning. May block.
    fn open(self: Arc<Self>, from: Option<&Position>) -> Result<Box<dyn LiveReader>>;

    /// Returns an error unless it can be shared out among so many shards. What comes as one stream cannot.
    fn check_shards(&self, shards: usize) -> Result<()> {
        if shards == 1 {
            return Ok(());
        }
        Err(Error::option(format!(
            "batch.shards = {shards}: {} comes as one stream, which cannot be shared out; learn from it with \
             batch.shards = 1, or from a watched folder, a topic, or files that are there",
            self.manifest().kind
        ))
        .with_key("batch.shards"))
    }

    /// A reader of one share, which has positions of its own. Whose a record is follows from where it is kept (the name
    /// of a file, the number of a partition), so it is the same whoever reads it, and whenever. Only a source that can
    /// go back has more than one share. May block.
    fn open_share(self: Arc<Self>, share: Share, from: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        self.check_shards(share.shards)?;
        self.open(from)
    }

    /// A checkpoint with this position is on disk: what comes before it need not be kept for this run any more. Must
    /// not block.
    fn kept(&self, position: &Position) {
        let _ = position;
    }
}

/// Reads a live source, window by window.
///
/// The order of events is `WindowStart`, pieces or damage, `WindowEnd`, and so on; `Quiet` and `Note` may come at any
/// time. A window is what is read again at a resume, and its first rows, which were learned from before, are left out
/// then. So a window that is opened at the position of its start must have the same records in the same order, and
/// small ones cost a resumed run less.
pub trait LiveReader: Send {
    /// What comes next; `None` at the end, after which nothing comes any more. Runs on a thread of its own and may
    /// block, but where nothing arrives it says so ([`Arrived::Quiet`]) several times a second, so that a run can end;
    /// only a pipe may block for as long as it likes. An error ends the stream.
    fn next(&mut self, limits: &ReadLimits) -> Result<Option<Arrived>>;
}

/// What comes next from a live source.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrived {
    /// A window begins. Opened at this position, the source delivers the same window again.
    WindowStart(Position),
    /// Records of the current window.
    Piece(Piece),
    /// Part of the current window cannot be read at all; what that means is the policy's business (`on_bad`).
    Damaged(Error),
    /// The current window is complete. Opened at this position, the source delivers what comes after it.
    WindowEnd(Position),
    /// The rest of the window that the source was opened at does not come again ([`OnGap::Skip`]); what comes next is
    /// at this position. Comes before the first window.
    WindowLost(Position),
    /// Nothing has arrived for a moment.
    Quiet,
    /// Something that a user should know: a file that was rotated, a connection that was lost.
    Note(String),
}

/// What to do where records that come next are not there any more: a file that vanished in the midst of being read,
/// messages that a broker has deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnGap {
    /// Stop with an error that says what is lost.
    #[default]
    Fail,
    /// Say what is lost, and go on with what there is.
    Skip,
}

/// Some records that were read together.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The file, for messages.
    pub file: Arc<str>,
    /// Where in the file each record is, for messages and the ledger.
    pub positions: Positions,
    /// What was read.
    pub records: Records,
    /// Records among them that could not be read, by index and with the reason. Decoders leave them out.
    pub bad: Vec<(usize, String)>,
}

impl Piece {
    /// How many records there are, readable or not.
    pub fn num_records(&self) -> usize {
        self.records.len()
    }

    /// Bytes that the records take.
    pub fn num_bytes(&self) -> usize {
        self.records.num_bytes()
    }
}

/// Where the records of a piece are in their file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Consecutive rows of the file, from this one.
    Rows {
        /// Number of the first.
        first: u64,
    },
    /// Rows by number, in any order.
    RowNumbers(Vec<u64>),
    /// Byte offsets.
    Bytes(Vec<u64>),
    /// Offsets of messages in their partition.
    Offsets(Vec<u64>),
}

impl Positions {
    /// The place of a record: a unit and a number.
    pub fn place(&self, record: usize) -> (&'static str, u64) {
        match self {
            Self::Rows { first } => ("row", first + record as u64),
            Self::RowNumbers(rows) => ("row", rows[record]),
            Self::Bytes(offsets) => ("byte", offsets[record]),
            Self::Offsets(offsets) => ("offset", offsets[record]),
        }
    }
}

/// What was read, by its nature.
#[derive(Clone, Debug, PartialEq)]
pub enum Records {
    /// Texts or image files.
    Blobs(Blobs),
    /// Lists of numbers: token ids, rows of a table.
    Lists(Lists),
    /// Rows of a table whose columns have types of their own; a row that cannot be read has nulls.
    Cells(Cells),
}

impl Records {
    /// How many records.
    pub fn len(&self) -> usize {
        match self {
            Self::Blobs(blobs) => blobs.ends.len(),
            Self::Lists(lists) => lists.ends.len(),
            Self::Cells(cells) => cells.num_rows(),
        }
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn num_bytes(&self) -> usize {
        match self {
            Self::Blobs(blobs) => blobs.bytes.len() + 8 * blobs.ends.len(),
            Self::Lists(lists) => {
                lists.values.num_bytes() + 8 * lists.ends.len() + lists.missing.as_ref().map_or(0, Vec::len)
            }
            Self::Cells(cells) => cells.num_bytes(),
        }
    }
}

/// Byte strings one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blobs {
    /// All bytes.
    pub bytes: Vec<u8>,
    /// Where each record ends.
    pub ends: Vec<usize>,
}

impl Blobs {
    /// Adds a record.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
    }

    /// The bytes of a record.
    pub fn get(&self, record: usize) -> &[u8] {
        &self.bytes[record.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[record]]
    }
}

/// Lists of numbers one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Lists {
    /// All values, as narrow as they came.
    pub values: Values,
    /// Where each record ends.
    pub ends: Vec<usize>,
    /// Which values are missing; `None` where none is.
    pub missing: Option<Vec<bool>>,
}

impl Lists {
    /// Where the values of a record are.
    pub fn range(&self, record: usize) -> std::ops::Range<usize> {
        record.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[record]
    }
}

/// What the data is: enough to refuse to resume on other data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// What kind of source it is.
    pub kind: String,
    /// Its files, in order.
    pub files: Vec<FileEntry>,
    /// Digest of kind and files, and of the options that decide which records there are.
    pub digest: String,
}

/// A file of a manifest. Neither folder nor time of change is part of it: a copy is the same data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name without the folder.
    pub name: String,
    /// How long it is.
    pub bytes: u64,
    /// Digest of its first and last 64 KiB: the footer of a Parquet file is there.
    pub digest: String,
}

impl Manifest {
    /// The manifest of some files. `options` is whatever else decides which records there are, such as the column.
    pub fn new(kind: &str, files: Vec<FileEntry>, options: &str) -> Self {
        let mut digest = Digest::new().part(kind).part(options);
        for file in &files {
            digest = digest.part(&file.name).part(file.bytes.to_le_bytes()).part(&file.digest);
        }
        Self { kind: kind.into(), files, digest: digest.finish() }
    }

    /// Refuses data without a file.
    pub fn require_files(&self) -> Result<()> {
        if self.files.is_empty() { Err(Error::data("no file to read")) } else { Ok(()) }
    }
}
