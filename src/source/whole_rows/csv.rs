//! A CSV file with all its columns. Read twice: what its columns hold is known once all rows were seen.

use std::io::Read;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::super::csv::cells::{Span, spans};
use super::super::csv::cutter::Cutter;
use super::super::csv::header::Header;
use super::super::csv::known_delimiter;
use super::super::store::{Shard, read_error};
use super::super::unpacked::unpacked;
use super::found::{Column, Found, columns_of, kind_of_text, rows_of};
use super::{FileRows, ReadLimits};
use crate::data::Cell;
use crate::error::{Error, Result};

/// Rows that are read at a time.
const ROWS_AT_ONCE: usize = 1024;

pub(super) struct CsvRows {
    name: String,
    rows: Rows,
    found: Found,
    schema: SchemaRef,
    num_rows: u64,
    /// Rows of the second pass so far.
    read: u64,
    piece_bytes: usize,
}

impl CsvRows {
    /// Looks at all rows.
    pub async fn open(shard: &Shard, limits: ReadLimits) -> Result<Self> {
        let (first, again) = (unpacked(shard)?, unpacked(shard)?);
        let (name, piece_bytes) = (shard.name().to_string(), limits.piece_bytes);
        let look = move || {
            let mut rows = Rows::begin(first, &name, &limits)?;
            let mut found = Found::with_columns(&rows.header.names).map_err(|error| error.at(&name))?;
            let mut num_rows = 0;
            while rows.next(&name, num_rows)? {
                for (column, span) in rows.spans.iter().enumerate() {
                    // Nothing in quotes is a text only among texts: who quotes everything quotes what is missing.
                    if let Cell::Raw(text) | Cell::Text(text) = span.cell(&rows.row) {
                        found.see(column, kind_of_text(&text));
                    }
                }
                num_rows += 1;
            }
            let rows = Rows::begin(again, &name, &limits)?;
            if rows.header.names.len() != found.width() {
                return Err(changed(&name, 0));
            }
            let schema = found.schema();
            Ok(Self { name, rows, found, schema, num_rows, read: 0, piece_bytes })
        };
        // It waits for bytes: not on a thread that drives others.
        tokio::task::spawn_blocking(look).await.map_err(|e| Error::internal(format!("looking at a file: {e}")))?
    }
}

fn changed(name: &str, row: u64) -> Error {
    Error::data(format!("{name}: row {row}: is not as it was when the file was opened: it changed while it was read"))
}

impl FileRows for CsvRows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn num_rows(&self) -> Option<u64> {
        Some(self.num_rows)
    }

    fn found(&self) -> Option<&Found> {
        Some(&self.found)
    }

    fn widen(&mut self, all: &Found) {
        self.found.widen(all);
        self.schema = self.found.schema();
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let mut columns = columns_of(&self.schema);
        let (mut num_rows, mut bytes) = (0, 0);
        while num_rows < ROWS_AT_ONCE && bytes < self.piece_bytes && self.rows.next(&self.name, self.read)? {
            for (column, span) in columns.iter_mut().zip(&self.rows.spans) {
                push(column, span, &self.rows.row).map_err(|()| changed(&self.name, self.read))?;
            }
            bytes += self.rows.row.len();
            num_rows += 1;
            self.read += 1;
        }
        match num_rows {
            0 if self.read < self.num_rows => Err(changed(&self.name, self.read)),
            0 => Ok(None),
            _ => rows_of(&self.schema, &mut columns).map(Some),
        }
    }
}

fn push(column: &mut Column, span: &Span, row: &str) -> std::result::Result<(), ()> {
    match span.cell(row) {
        Cell::Raw(text) | Cell::Text(text) => column.push_spelled(&text).map_err(drop),
        _ => {
            column.push_null();
            Ok(())
        }
    }
}

/// The rows of a file, one after the other. A row that cannot be read is an error: every row has an answer.
struct Rows {
    cutter: Cutter,
    header: Header,
    /// The current row, and its cells.
    row: String,
    spans: Vec<Span>,
}

impl Rows {
    fn begin(input: Box<dyn Read + Send>, name: &str, limits: &ReadLimits) -> Result<Self> {
        let most = usize::try_from(limits.record_bytes).unwrap_or(usize::MAX);
        let mut cutter = Cutter::new(input, 0, known_delimiter(None, name), most);
        let header = Header::read(&mut cutter, name)?;
        Ok(Self { cutter, header, row: String::new(), spans: Vec::new() })
    }

    /// Goes on to the row of this number; false if there is none.
    fn next(&mut self, name: &str, number: u64) -> Result<bool> {
        let bad = |why: String| Error::data(why).at_row(number).at(name);
        let row = self.cutter.next().map_err(|error| read_error(&format!("{name}: row {number}"), &error))?;
        let Some(row) = row else { return Ok(false) };
        let bytes = row.bytes.map_err(bad)?;
        let text =
            std::str::from_utf8(bytes).map_err(|e| bad(format!("not UTF-8 at byte {} of it", e.valid_up_to())))?;
        let width = self.header.names.len();
        match spans(bytes, self.header.delimiter, width, &mut self.spans) {
            count if count == width => {}
            1 => return Err(bad(format!("1 cell where the header has {width}"))),
            count => return Err(bad(format!("{count} cells where the header has {width}"))),
        }
        self.row.clear();
        self.row.push_str(text);
        Ok(true)
    }
}
