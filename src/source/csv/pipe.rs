//! CSV as it comes through a pipe: a `LiveSource` that cannot go back.
//!
//! Opening waits for the header and the first row. A window is what has arrived, at most 1,000 rows. Nothing can be
//! read again: after a crash the producer, which has to send the header again, decides what comes next. A cell in
//! quotes that is never closed is waited for over 16 MiB; then its line is a bad record.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use super::cells::spans;
use super::cutter::Cutter;
use super::header::Header;
use super::records::RowReader;
use super::shape::{CsvShape, FirstRows};
use super::{known_delimiter, max_row_bytes};
use crate::data::Position;
use crate::error::{Error, Result};
use crate::source::columns::{Columns, Reading, RecordKind};
use crate::source::{Arrived, LiveReader, LiveSource, Manifest, Piece, ReadLimits};

/// Rows in a window at most.
const WINDOW_ROWS: usize = 1000;

/// CSV from a pipe.
pub struct CsvPipe {
    name: Arc<str>,
    shape: CsvShape,
    reader: RowReader,
    manifest: Manifest,
    cutter: Mutex<Cutter>,
    /// The first row, which says what columns hold.
    first: Mutex<Option<Piece>>,
}

impl CsvPipe {
    /// Waits for the header and the first row. Messages call the stream `name`.
    pub fn new(
        name: &str,
        read: Box<dyn Read + Send>,
        columns: &Columns,
        delimiter: Option<char>,
        limits: &ReadLimits,
    ) -> Result<Self> {
        let mut cutter = Cutter::new(read, 0, known_delimiter(delimiter, ""), max_row_bytes(limits));
        let Header { names, delimiter } = Header::read(&mut cutter, name)?;
        let mut first = FirstRows::new(names.len());
        let Some(row) = cutter.next().map_err(|e| Error::io(name, &e))? else {
            return Err(Error::format(format!("{name}: ended before the first row: pipe CSV in")));
        };
        let mut found = Vec::new();
        if let Ok(bytes) = row.bytes
            && let Ok(text) = std::str::from_utf8(bytes)
            && spans(bytes, delimiter, names.len(), &mut found) == names.len()
        {
            found.iter().enumerate().for_each(|(column, span)| first.see(column, &span.text(text)));
        }
        let shape = CsvShape::find(&names, &first, columns).map_err(|error| error.at(name))?;
        let reader = RowReader::new(&shape, &names, delimiter)?;
        let mut records = reader.records();
        records.push(&reader, &row);
        let first = Mutex::new(Some(records.finish(name.into())));
        let manifest = Manifest::new("csv-pipe", Vec::new(), &shape.identity());
        Ok(Self { name: name.into(), shape, reader, manifest, cutter: Mutex::new(cutter), first })
    }

    /// What the records are.
    pub fn kind(&self) -> RecordKind {
        self.shape.kind()
    }

    /// Which columns are read, and which are not.
    pub fn reading(&self) -> &Reading {
        self.shape.reading()
    }
}

impl std::fmt::Debug for CsvPipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CsvPipe").field("name", &self.name).field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl LiveSource for CsvPipe {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn can_go_back(&self) -> bool {
        false
    }

    fn open(self: Arc<Self>, _: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        Ok(Box::new(Reader { stream: self, state: State::Between }))
    }
}

/// There is one at a time: what one has read, no other sees.
struct Reader {
    stream: Arc<CsvPipe>,
    state: State,
}

enum State {
    Between,
    /// A window has begun, with this piece if it is the first.
    Begun(Option<Piece>),
    /// Its rows were delivered.
    Delivered,
}

impl LiveReader for Reader {
    fn next(&mut self, limits: &ReadLimits) -> Result<Option<Arrived>> {
        let stream = &self.stream;
        // Nothing here panics while the lock is held.
        let mut cutter = stream.cutter.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = cutter.offset();
        let failed = |e: &std::io::Error| Error::io(&format!("{}: after byte {offset}", stream.name), e);
        match std::mem::replace(&mut self.state, State::Between) {
            State::Between => {
                let first = stream.first.lock().unwrap_or_else(PoisonError::into_inner).take();
                if first.is_none() && !cutter.wait_for_row().map_err(|e| failed(&e))? {
                    return Ok(None);
                }
                let begins = first.as_ref().map_or_else(|| cutter.offset(), |piece| piece.positions.place(0).1);
                self.state = State::Begun(first);
                Ok(Some(Arrived::WindowStart(bytes_so_far(begins)?)))
            }
            State::Begun(Some(first)) => {
                self.state = State::Delivered;
                Ok(Some(Arrived::Piece(first)))
            }
            State::Begun(None) => {
                let mut records = stream.reader.records();
                while records.is_empty()
                    || (records.len() < WINDOW_ROWS && records.num_bytes() < limits.piece_bytes && cutter.has_row())
                {
                    match cutter.next().map_err(|e| failed(&e))? {
                        Some(row) => records.push(&stream.reader, &row),
                        None => break,
                    }
                }
                self.state = State::Delivered;
                Ok(Some(Arrived::Piece(records.finish(stream.name.clone()))))
            }
            State::Delivered => Ok(Some(Arrived::WindowEnd(bytes_so_far(offset)?))),
        }
    }
}

/// What is known of a place in a pipe: it tells people how far it came.
fn bytes_so_far(bytes: u64) -> Result<Position> {
    Position::new(&serde_json::json!({ "bytes": bytes }))
}
